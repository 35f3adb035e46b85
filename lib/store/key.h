/* SPDX-License-Identifier: Apache-2.0 */
/* What names a record: 128 bits, as bytes and as text. */
#ifndef TMS_STORE_KEY_H
#define TMS_STORE_KEY_H

#include "host/base/dtype.h"
#include "lib/core/bytes.h"
#include <tamis/store.h>

#include <stdbool.h>

#define TMS_KEY_BYTES   16
#define TMS_KEY_TEXT    33 /* by tms_hex, with its NUL */
#define TMS_MOST_TOKENS (1u << 22)

/* E_ARGUMENT for a shape that no record has. */
tamis_status tms_shape_check(const tamis_chunk_shape *shape, tamis_error *error);
/* E_ARGUMENT for an id that can name no record. */
tamis_status tms_id_check(const tamis_chunk_id *id, tamis_error *error);
/* The same for a list of tokens that is taken in pages. */
tamis_status tms_prefix_check(const tamis_chunk_id *id, uint32_t page_tokens, tamis_error *error);
/* The key of an id that has been checked. */
void tms_key_of(const tamis_chunk_id *id, uint8_t key[TMS_KEY_BYTES]);

/* Whether that is no parent: zeros. */
bool tms_key_none(const uint8_t key[TMS_KEY_BYTES]);

#endif
