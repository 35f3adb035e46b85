/* SPDX-License-Identifier: Apache-2.0 */
/* How long requests wait for one worker, in cases that can be told by hand. */
#include "bench/ttft.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

enum { REQUESTS = 200 };
static double seconds[REQUESTS], room[REQUESTS];

static void all_take(double each) {
    for (int i = 0; i < REQUESTS; i++)
        seconds[i] = each;
}

static bool near(double value, double wanted, double share) {
    return fabs(value - wanted) <= share * wanted;
}

/* So seldom that nobody waits. */
static void rare_requests_wait_for_nobody(void **state) {
    (void)state;
    ttft_queue q;
    all_take(0.25);
    ttft_serve(seconds, REQUESTS, 1e-6, 7, room, &q);
    assert_true(near(q.mean, 0.25, 1e-3) && near(q.p50, 0.25, 1e-6));
    assert_true(near(q.per_s, 1e-6, 0.2)); /* the mean gap of 200 is within 20 % */
    assert_true(q.busy < 1e-6);
}

/* So often that all are there at once: the i-th waits for those before it. */
static void requests_at_once_wait_for_each_other(void **state) {
    (void)state;
    ttft_queue q;
    all_take(0.5);
    ttft_serve(seconds, REQUESTS, 1e9, 7, room, &q);
    assert_true(near(q.mean, 0.5 * (REQUESTS + 1) / 2, 1e-6));
    assert_true(near(q.p50, 0.5 * REQUESTS / 2, 1e-6));
    assert_true(near(q.p95, 0.5 * REQUESTS * 95 / 100, 1e-6));
    assert_true(near(q.per_s, 2, 1e-6) && near(q.busy, 1, 1e-6));
}

/* At half of what a worker does, a queue of this kind (M/D/1) waits for half of a service on
 * average: rho / (2 (1 - rho)) services. */
static void half_busy_waits_for_half_a_service(void **state) {
    (void)state;
    double mean = 0;
    ttft_queue q;
    all_take(1);
    for (uint64_t seed = 0; seed < 200; seed++) {
        ttft_serve(seconds, REQUESTS, 0.5, seed, room, &q);
        mean += q.mean / 200;
    }
    assert_true(near(mean, 1.5, 0.03));
}

static void a_seed_gives_the_same(void **state) {
    (void)state;
    ttft_queue q[3];
    all_take(1);
    for (int i = 0; i < 3; i++)
        ttft_serve(seconds, REQUESTS, 0.7, i / 2, room, &q[i]);
    assert_true(q[0].mean == q[1].mean && q[0].p95 == q[1].p95);
    assert_true(q[0].mean != q[2].mean);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rare_requests_wait_for_nobody),
        cmocka_unit_test(requests_at_once_wait_for_each_other),
        cmocka_unit_test(half_busy_waits_for_half_a_service),
        cmocka_unit_test(a_seed_gives_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
