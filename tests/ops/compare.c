/* SPDX-License-Identifier: Apache-2.0 */
/* Comparison of outputs: bits first, then what must stay untouched, NaN, infinities, tolerance. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static uint32_t bits_of(uint32_t type, const void *data, uint64_t i) {
    uint32_t word = 0;
    const size_t size = check_type_size(type);
    memcpy(&word, (const char *)data + i * size, size);
    return word;
}

static bool is_preset(uint32_t type, uint32_t bits) {
    return bits == (check_type_size(type) == 2 ? CHECK_PRESET & 0xFFFF : CHECK_PRESET);
}

static bool element_ok(const check_buffer *b, const void *want, const void *got, uint64_t i) {
    const uint32_t want_bits = bits_of(b->type, want, i), got_bits = bits_of(b->type, got, i);
    if (want_bits == got_bits) return true;
    if (b->type == CHECK_I32 || is_preset(b->type, want_bits) || is_preset(b->type, got_bits))
        return false;
    const double w = check_load(b->type, want, i), g = check_load(b->type, got, i);
    if (isnan(w) || isnan(g)) return isnan(w) && isnan(g);
    if (isinf(w) || isinf(g)) return w == g;
    if (b->tolerance) return fabs(w - g) <= b->tolerance[i];
    return b->by_value && w == g;
}

static int show(const check_buffer *b, const void *data, uint64_t i, char *to, size_t size) {
    if (is_preset(b->type, bits_of(b->type, data, i))) return snprintf(to, size, "nothing written");
    return snprintf(to, size, "%.9g", check_load(b->type, data, i));
}

static void describe(const check_buffer *b, const char *name, const void *want, const void *got,
                     uint64_t first, uint64_t bad, char *why, size_t why_size) {
    char want_text[32], got_text[32], allowed[40] = "";
    show(b, want, first, want_text, sizeof want_text);
    show(b, got, first, got_text, sizeof got_text);
    if (b->tolerance) snprintf(allowed, sizeof allowed, " within %.3g", b->tolerance[first]);
    snprintf(why, why_size, "%s[%llu]: expected %s%s, got %s (0x%x); %llu of %llu differ", name,
             (unsigned long long)first, want_text, allowed, got_text, bits_of(b->type, got, first),
             (unsigned long long)bad, (unsigned long long)b->count);
}

bool check_compare(const check_data *data, void *const *want, void *const *got, char *why,
                   size_t why_size) {
    for (int id = 0; id < BUF_COUNT; id++) {
        const check_buffer *b = &data->buf[id];
        uint64_t bad = 0, first = 0;
        if (b->role != ROLE_OUTPUT && b->role != ROLE_UPDATE) continue;
        for (uint64_t i = 0; i < b->count; i++)
            if (!element_ok(b, want[id], got[id], i) && !bad++) first = i;
        if (bad) {
            describe(b, check_buffer_name((check_id)id), want[id], got[id], first, bad, why,
                     why_size);
            return false;
        }
    }
    return true;
}

/* Whether both are a NaN that was written. Its sign and payload follow from the order in which a
 * compiler takes the operands, which may differ between the kernels of one form. */
static bool both_nan(const check_buffer *b, const void *want, const void *got, uint64_t i) {
    return b->type != CHECK_I32 && isnan(check_load(b->type, want, i)) &&
           isnan(check_load(b->type, got, i)) && !is_preset(b->type, bits_of(b->type, want, i)) &&
           !is_preset(b->type, bits_of(b->type, got, i));
}

bool check_compare_bits(const check_data *data, void *const *want, void *const *got, char *why,
                        size_t why_size) {
    for (int id = 0; id < BUF_COUNT; id++) {
        const check_buffer *b = &data->buf[id];
        if (b->role != ROLE_OUTPUT && b->role != ROLE_UPDATE) continue;
        for (uint64_t i = 0; i < b->count; i++) {
            uint32_t was = bits_of(b->type, want[id], i), is = bits_of(b->type, got[id], i);
            if (was != is && !both_nan(b, want[id], got[id], i)) {
                snprintf(why, why_size, "%s[%llu]: bits 0x%x, then 0x%x",
                         check_buffer_name((check_id)id), (unsigned long long)i, was, is);
                return false;
            }
        }
    }
    return true;
}

void check_no_oracle(check_data *data) {
    (void)data;
}

bool check_same_apart(check_side *side, tamis_status (*apart)(check_side *), char *why,
                      size_t why_size) {
    check_side other;
    const tms_form form = side->dev->form;
    bool same = check_side_open(&other, side->dev, side->data);
    side->dev->form = TMS_FORM_AUTO;
    if (!same || apart(&other) != TAMIS_OK || !check_side_read(&other)) {
        snprintf(why, why_size, "apart: %.150s %.150s", other.error.text, other.why);
        same = false;
    }
    side->dev->form = form;
    same = same && check_compare_bits(side->data, other.result, side->result, why, why_size);
    check_side_close(&other);
    return same;
}
