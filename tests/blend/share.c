/* SPDX-License-Identifier: Apache-2.0 */
/* The controller by numbers: the paper's, and cases that can be told by hand. */
#include "tests/store/rig.h"
#include <tamis/blend.h>

#include <math.h>
#include <string.h>

static double share_of(tamis_blend_costs costs) {
    double share = -1;
    OK(tamis_blend_share(&costs, &share, &test_error));
    return share;
}

static void expect_share(tamis_blend_costs costs, double wanted) {
    const double share = share_of(costs);
    if (fabs(share - wanted) > 1e-12) fail_msg("the share is %g, not %g", share, wanted);
}

/* Figures of the paper for 4K tokens, a layer: 15 % of Llama-7B takes 3 ms and an NVMe disk 16 ms;
 * of Llama-70B 7 ms and 4 ms. */
static void the_papers_models(void **state) {
    (void)state;
    expect_share((tamis_blend_costs){.load_us = 16, .compute_us = 3 / 0.15}, 0.8);
    expect_share((tamis_blend_costs){.load_us = 4, .compute_us = 7 / 0.15}, 0.15);
    expect_share((tamis_blend_costs){.load_us = 4, .compute_us = 7 / 0.15, .least = 0.01},
                 4 * 0.15 / 7);
    expect_share((tamis_blend_costs){.load_us = 16, .compute_us = 20, .most = 0.3}, 0.3);
    expect_share((tamis_blend_costs){.load_us = 50, .compute_us = 20}, 1);
    expect_share((tamis_blend_costs){.load_us = 0, .compute_us = 20}, 0.15);
    expect_share((tamis_blend_costs){.load_us = 10, .compute_us = 10, .least = 0.4, .most = 0.4},
                 0.4);
    expect_share((tamis_blend_costs){.load_us = 9, .compute_us = 10, .most = 0.15}, 0.15);
}

/* Exact rows are loaded and never computed; fresh ones hide loading. */
static void other_rows_count(void **state) {
    (void)state;
    tamis_blend_costs c = {.load_us = 1, .compute_us = 4, .hits = 1000};
    expect_share(c, 0.25);
    c.exact = 500;
    expect_share(c, 1500.0 / 4000);
    c.fresh = 125;
    expect_share(c, (1500.0 - 500) / 4000);
    c.fresh = 1000;
    expect_share(c, 0.15);
    /* At the share, both take equally long. */
    c.fresh = 30;
    const double share = share_of(c);
    assert_true(fabs((c.fresh + share * (double)c.hits) * c.compute_us -
                     (double)(c.hits + c.exact) * c.load_us) < 1e-9);
}

static void expect_tier(const tamis_blend_costs *costs, double share, const tamis_blend_tier *tiers,
                        size_t n, size_t wanted, int hidden) {
    size_t chosen = 99;
    int is_hidden = -1;
    OK(tamis_blend_choose_tier(costs, share, tiers, n, &chosen, &is_hidden, &test_error));
    assert_int_equal(chosen, wanted);
    assert_int_equal(is_hidden, hidden);
    OK(tamis_blend_choose_tier(costs, share, tiers, n, &chosen, NULL, &test_error));
}

static void the_cheapest_that_is_hidden(void **state) {
    (void)state;
    /* Memory, a fast disk, a slow disk. */
    const tamis_blend_tier tiers[] = {
        {.load_us = 1, .price = 100}, {.load_us = 6, .price = 10}, {.load_us = 60, .price = 1}};
    const tamis_blend_costs c = {.compute_us = 40};
    expect_tier(&c, 0.15, tiers, 3, 1, 1); /* computing takes 6 */
    expect_tier(&c, 0.14, tiers, 3, 0, 1);
    expect_tier(&c, 1, tiers, 3, 1, 1);
    expect_tier(&c, 0.01, tiers, 3, 0, 0);
    expect_tier(&c, 0, tiers + 1, 2, 0, 0);
    const tamis_blend_costs slow = {.compute_us = 400};
    expect_tier(&slow, 0.15, tiers, 3, 2, 1);
    const tamis_blend_costs fresh = {.compute_us = 40, .hits = 100, .exact = 100, .fresh = 300};
    expect_tier(&fresh, 0, tiers, 3, 2, 1); /* 300 * 40 hide 200 * 60 */
}

static void ties_of_tiers(void **state) {
    (void)state;
    const tamis_blend_costs c = {.compute_us = 40};
    const tamis_blend_tier alike[] = {
        {.load_us = 5, .price = 2}, {.load_us = 4, .price = 2}, {.load_us = 4, .price = 2}};
    expect_tier(&c, 0.5, alike, 3, 1, 1);
    expect_tier(&c, 0, alike, 3, 1, 0);
    const tamis_blend_tier slow[] = {
        {.load_us = 50, .price = 3}, {.load_us = 70, .price = 1}, {.load_us = 50, .price = 2}};
    expect_tier(&c, 0.5, slow, 3, 2, 0);
    expect_tier(&c, 0.5, slow, 1, 0, 0);
}

static void what_is_wrong_is_refused(void **state) {
    (void)state;
    const tamis_blend_costs good = {.load_us = 1, .compute_us = 1};
    const tamis_blend_tier tier = {.load_us = 1, .price = 1};
    tamis_blend_costs c;
    double share = 0;
    size_t chosen = 0;
#define REFUSED(change, text)                                                                      \
    do {                                                                                           \
        c = good;                                                                                  \
        change;                                                                                    \
        FAILS(tamis_blend_share(&c, &share, &test_error), TAMIS_E_ARGUMENT, text);                 \
        FAILS(tamis_blend_choose_tier(&c, 0.1, &tier, 1, &chosen, NULL, &test_error),              \
              TAMIS_E_ARGUMENT, text);                                                             \
    } while (0)
    REFUSED(c.load_us = -1, "load_us is -1");
    REFUSED(c.load_us = NAN, "load_us is nan");
    REFUSED(c.compute_us = INFINITY, "compute_us is inf");
    REFUSED(c.compute_us = 0, "compute_us is 0");
    REFUSED(c.fresh = 5, "no hits beside 0 exact and 5 fresh rows");
    REFUSED(c.exact = 5, "no hits beside 5 exact and 0 fresh rows");
    REFUSED(c.least = 1.5, "least is 1.5");
    REFUSED(c.least = -0.1, "least is -0.1");
    REFUSED(c.most = NAN, "most is nan");
    REFUSED((c.least = 0.5, c.most = 0.4), "least is 0.5, most 0.4");
    REFUSED(c.most = 0.1, "least is 0.15, most 0.1");
    REFUSED(c.reserved[3] = 1, "reserved");
    FAILS(tamis_blend_share(NULL, &share, &test_error), TAMIS_E_ARGUMENT, "costs is NULL");
    FAILS(tamis_blend_share(&good, NULL, &test_error), TAMIS_E_ARGUMENT, "share is NULL");
#define TIER(costs, at, of, n, to, text)                                                           \
    FAILS(tamis_blend_choose_tier(costs, at, of, n, to, NULL, &test_error), TAMIS_E_ARGUMENT, text)
    TIER(NULL, 0.1, &tier, 1, &chosen, "costs is NULL");
    TIER(&good, 0.1, NULL, 1, &chosen, "there are no tiers");
    TIER(&good, 0.1, &tier, 0, &chosen, "there are no tiers");
    TIER(&good, 0.1, &tier, 1, NULL, "chosen is NULL");
    TIER(&good, 1.1, &tier, 1, &chosen, "share is 1.1");
    tamis_blend_tier wrong = {.load_us = -2};
    TIER(&good, 0.1, &wrong, 1, &chosen, "load_us of a tier is -2");
    wrong = (tamis_blend_tier){.price = NAN};
    TIER(&good, 0.1, &wrong, 1, &chosen, "price of tier 0 is nan");
    wrong = (tamis_blend_tier){.reserved = {0, 1}};
    TIER(&good, 0.1, &wrong, 1, &chosen, "reserved");
    tamis_blend_costs out;
    FAILS(tamis_blend_get_costs(NULL, &out, &test_error), TAMIS_E_ARGUMENT, "blend is NULL");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_papers_models),           cmocka_unit_test(other_rows_count),
        cmocka_unit_test(the_cheapest_that_is_hidden), cmocka_unit_test(ties_of_tiers),
        cmocka_unit_test(what_is_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
