/* SPDX-License-Identifier: Apache-2.0 */
/* What names a record: 128 bits, as bytes and as text. */
#ifndef TMS_STORE_KEY_H
#define TMS_STORE_KEY_H

#include <stdbool.h>
#include <tamis/store.h>

#define TMS_KEY_BYTES   16
#define TMS_KEY_TEXT    33 /* hexadecimal, with its NUL */
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
void tms_key_text(const uint8_t key[TMS_KEY_BYTES], char text[TMS_KEY_TEXT]);
/* Reads the text's first 32 characters; false if they are no key. */
bool tms_key_parse(const char *text, uint8_t key[TMS_KEY_BYTES]);

#endif
