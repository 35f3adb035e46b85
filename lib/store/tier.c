/* SPDX-License-Identifier: Apache-2.0 */
/* Tiers: their names; walks through one: the list of keys, and when they end. */
#include "lib/store/tier.h"

#include <stdlib.h>
#include <string.h>

const char *tamis_tier_name(tamis_tier tier) {
    switch (tier) {
    case TAMIS_TIER_MEMORY:
        return "memory";
    case TAMIS_TIER_DISK:
        return "disk";
    case TAMIS_TIER_REDIS:
        return "redis";
    }
    return "unknown";
}

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

tamis_status tms_tier_patience(const tms_tier *tier, double lost_us, tamis_error *error) {
    TMS_REQUIRE(tier->patience_us == 0 || lost_us <= tier->patience_us, TAMIS_E_IO,
                "the %s tier names records that are not there: looked for %.0f ms",
                tamis_tier_name(tier->ops->tier), lost_us / 1e3);
    return TAMIS_OK;
}
