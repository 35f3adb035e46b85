/* SPDX-License-Identifier: Apache-2.0 */
/* Copies on a context's second queue: what the two queues wait for, what is refused. */
#include "lib/core/core.h"
#include "tests/api/fixture.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS 2u

/* A context, and as much memory on both sides. */
typedef struct rig {
    tamis_context *context;
    tamis_host_buffer *host;
    tamis_buffer *device;
} rig;

static rig open_rig(uint64_t bytes) {
    const tamis_context_params params = {.device = test_device};
    rig r = {NULL, NULL, NULL};
    OK(tamis_context_create(&params, &r.context, &test_error));
    OK(tamis_host_buffer_create(r.context, bytes, &r.host, &test_error));
    OK(tamis_buffer_create(r.context, bytes, &r.device, &test_error));
    assert_int_equal(tamis_host_buffer_bytes(r.host), bytes);
    assert_int_equal((uintptr_t)tamis_host_buffer_data(r.host) % 64, 0);
    return r;
}

static void close_rig(rig *r) {
    tamis_host_buffer_destroy(&r->host);
    tamis_buffer_destroy(&r->device);
    tamis_context_destroy(&r->context);
}

/* The bytes of a round: none equals those of another one. */
static void fill(uint8_t *at, uint64_t bytes, uint32_t round) {
    for (uint64_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(i * 7 + i / 251 + round * 13 + 1);
}

/* Two slots on each side in turn: the copy waits for who has used the slot, the first queue for the
 * copy, the host for the copy before it fills the slot again. */
static void run_ring(uint64_t bytes, uint32_t rounds) {
    rig r = open_rig(SLOTS * bytes);
    tamis_buffer *all = NULL;
    tamis_event *done[SLOTS] = {NULL}, *used[SLOTS] = {NULL};
    uint8_t *host = tamis_host_buffer_data(r.host), *got = malloc(bytes), *want = malloc(bytes);
    assert_true(got && want);
    OK(tamis_buffer_create(r.context, rounds * bytes, &all, &test_error));
    for (uint32_t round = 0; round < rounds; round++) {
        const uint32_t slot = round % SLOTS;
        const uint64_t at = slot * bytes;
        if (done[slot]) OK(tamis_event_wait(done[slot], &test_error));
        tamis_event_destroy(&done[slot]);
        fill(host + at, bytes, round);
        OK(tamis_buffer_upload(r.device, at, r.host, at, bytes, used[slot], &done[slot],
                               &test_error));
        OK(tamis_event_await(done[slot], &test_error));
        assert_int_equal(tms_device_copy(r.context->dev, (tms_ref){all->mem, round * bytes},
                                         (tms_ref){r.device->mem, at}, bytes, NULL),
                         TAMIS_OK);
        tamis_event_destroy(&used[slot]);
        OK(tamis_event_record(r.context, &used[slot], &test_error));
    }
    for (uint32_t round = 0; round < rounds; round++) {
        fill(want, bytes, round);
        OK(tamis_buffer_read(all, round * bytes, got, bytes, &test_error));
        if (memcmp(got, want, bytes) != 0) fail_msg("round %u of %u bytes", round, (unsigned)bytes);
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        tamis_event_destroy(&done[slot]);
        tamis_event_destroy(&used[slot]);
    }
    tamis_buffer_destroy(&all);
    free(got);
    free(want);
    close_rig(&r);
}

static void two_queues_share_a_ring(void **state) {
    (void)state;
    run_ring(1, 8);
    run_ring(4096 + 5, 64);
    run_ring(3u << 20, 6);
}

/* Whatever is under way is over before memory goes. */
static void waiting_and_destroying_wait_for_uploads(void **state) {
    (void)state;
    const uint64_t bytes = 8u << 20;
    for (int how = 0; how < 4; how++) {
        rig r = open_rig(bytes);
        tamis_event *done = NULL;
        uint8_t last = 0, *host = tamis_host_buffer_data(r.host);
        memset(host, 9, bytes);
        OK(tamis_buffer_upload(r.device, 0, r.host, 0, bytes, NULL, &done, &test_error));
        if (how == 0) OK(tamis_context_wait(r.context, &test_error));
        if (how == 1) tamis_host_buffer_destroy(&r.host);
        if (how == 2) tamis_buffer_destroy(&r.device);
        if (how == 0) memset(host, 1, bytes);
        if (how < 2) {
            OK(tamis_buffer_read(r.device, bytes - 1, &last, 1, &test_error));
            assert_int_equal(last, 9);
        }
        tamis_event_destroy(&done);
        close_rig(&r);
    }
}

static void bad_arguments_are_refused(void **state) {
    (void)state;
    rig r = open_rig(64), other = open_rig(64);
    tamis_host_buffer *host = NULL;
    tamis_event *mark = NULL, *done = NULL;
    FAILS(tamis_host_buffer_create(NULL, 64, &host, &test_error), TAMIS_E_ARGUMENT, "context");
    FAILS(tamis_host_buffer_create(r.context, 64, NULL, &test_error), TAMIS_E_ARGUMENT, "out");
    FAILS(tamis_host_buffer_create(r.context, 0, &host, &test_error), TAMIS_E_ARGUMENT, "0 bytes");
    FAILS(tamis_host_buffer_create(r.context, 1ull << 60, &host, &test_error), TAMIS_E_NO_MEMORY,
          "1152921504606846976");
    assert_null(host);
    tamis_host_buffer_destroy(&host);
    tamis_host_buffer_destroy(NULL);
    assert_null(tamis_host_buffer_data(NULL));
    assert_int_equal(tamis_host_buffer_bytes(NULL), 0);

    OK(tamis_event_record(other.context, &mark, &test_error));
    FAILS(tamis_buffer_upload(NULL, 0, r.host, 0, 1, NULL, &done, &test_error), TAMIS_E_ARGUMENT,
          "buffer: NULL");
    FAILS(tamis_buffer_upload(r.device, 0, NULL, 0, 1, NULL, &done, &test_error), TAMIS_E_ARGUMENT,
          "from: NULL");
    FAILS(tamis_buffer_upload(r.device, 0, r.host, 0, 1, NULL, NULL, &test_error), TAMIS_E_ARGUMENT,
          "done: NULL");
    FAILS(tamis_buffer_upload(r.device, 60, r.host, 0, 5, NULL, &done, &test_error),
          TAMIS_E_ARGUMENT, "5 bytes at offset 60: the buffer has 64");
    FAILS(tamis_buffer_upload(r.device, 0, r.host, UINT64_MAX, 2, NULL, &done, &test_error),
          TAMIS_E_ARGUMENT, "2 bytes from offset 18446744073709551615: the host buffer has 64");
    FAILS(tamis_buffer_upload(r.device, 0, other.host, 0, 1, NULL, &done, &test_error),
          TAMIS_E_ARGUMENT, "the two buffers are of different contexts");
    FAILS(tamis_buffer_upload(r.device, 0, r.host, 0, 1, mark, &done, &test_error),
          TAMIS_E_ARGUMENT, "the mark is of another context");
    FAILS(tamis_event_await(NULL, &test_error), TAMIS_E_ARGUMENT, "event: NULL");
    assert_null(done);
    OK(tamis_buffer_upload(r.device, 64, r.host, 64, 0, NULL, &done, &test_error));
    OK(tamis_event_wait(done, &test_error));
    tamis_event_destroy(&done);
    tamis_event_destroy(&mark);
    close_rig(&r);
    close_rig(&other);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_queues_share_a_ring),
        cmocka_unit_test(waiting_and_destroying_wait_for_uploads),
        cmocka_unit_test(bad_arguments_are_refused),
    };
    const int skip = test_begin(argc, argv);
    return skip ? skip : cmocka_run_group_tests(tests, NULL, NULL);
}
