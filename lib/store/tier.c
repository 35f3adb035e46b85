/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of keys, which walks through a tier make. */
#include "lib/store/tier.h"

#include <stdlib.h>
#include <string.h>

tamis_status tms_keys_add(tms_keys *keys, const uint8_t key[TMS_KEY_BYTES], tamis_error *error) {
    if (keys->count == keys->room) {
        const size_t room = keys->room ? 2 * keys->room : 256;
        void *more = realloc(keys->keys, room * sizeof *keys->keys);
        TMS_REQUIRE(more, TAMIS_E_NO_MEMORY, "no memory for the keys of %zu records", room);
        keys->keys = more;
        keys->room = room;
    }
    memcpy(keys->keys[keys->count++], key, TMS_KEY_BYTES);
    return TAMIS_OK;
}
