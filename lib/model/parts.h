/* SPDX-License-Identifier: Apache-2.0 */
/* A model's GGUF file, or the parts of one that was split: they lie beside each other, and their
 * names end in -00001-of-00003.gguf and so on. */
#ifndef TMS_PARTS_H
#define TMS_PARTS_H

#include "lib/model/gguf.h"

/* Opens a model by its file or by any of its parts, as one whose tensors lie in several files. The
 * keys are those of the first part. Errors: as tms_gguf_open_file; E_IO for a part that is missing;
 * E_FORMAT for parts that do not belong together, for a part whose name does not tell where the
 * others are, and for parts that stand one behind the other in one file. */
tamis_status tms_gguf_open(const char *path, tms_gguf *out, tamis_error *error);
/* The same without tensors, from the first part alone: for what lies in keys. */
tamis_status tms_gguf_open_keys(const char *path, tms_gguf *out, tamis_error *error);

#endif
