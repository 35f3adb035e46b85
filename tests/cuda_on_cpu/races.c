/* SPDX-License-Identifier: Apache-2.0 */
/* Races in global memory during a launch: accesses that nothing orders, whichever came first here.
 * The blocks of a watched launch run one after another, and a bug shows in any order of them.
 *
 * Two accesses are in order if one thread made both, if a barrier of the block or of their common
 * warp lies between, or, from block to block, by way of an atomic: fence, atomic, then an atomic of
 * another thread on the same word, fence. A fence hands on what its thread had done and knew of by
 * then. An atomic that is release and acquire does as fence, atomic, fence on its word. One without
 * fences orders nothing, and does not race with others on its word.
 *
 * A clock goes up with each barrier and fence of the running block, and each word has a mark of its
 * last write and of a read. What is not seen: of the blocks that read a word, all but the first one
 * where nothing orders them; of writes to pieces of a word, those behind which a barrier or another
 * block's write came; pieces of a word within a block. A flag that is no atomic gives no order, and
 * no block waits for another one. */
#include "on_cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE 0xfu

enum { MANY_LANES = 1, MANY_WARPS = 2, TICKET = 3 };

/* A thread's fence: it hands on its own accesses before `clock`, those of its warp before
 * `warp_barrier` and all of its block before `barrier`. */
typedef struct handed {
    uint32_t block, thread, clock, warp_barrier, barrier;
} handed;

/* A word with atomics. The first `n` of `given` are what they have handed on, in their order. */
typedef struct ticket {
    cpu_stamp write, atomic; /* the last ones; each atomic saw those before it */
    handed *given;
    uint32_t n, capacity;
} ticket;

/* A thread of the running block has found the first `n` that a ticket hands on. */
typedef struct found {
    uint32_t thread, clock;
    bool fenced; /* else they count from the thread's next fence on */
    uint32_t ticket, n;
} found;

static struct {
    const cpu_launch *launch;
    uint32_t first, block, next; /* of the launch; running; of the launch to come. Never 0 */
    uint32_t clock, barrier, warp_barrier[CPU_MAX_WARPS];
    handed fence[CPU_MAX_THREADS]; /* the last one, if it is of this block */
    found *found;
    uint32_t n_found, found_capacity;
    ticket *tickets;
    uint32_t n_tickets, tickets_capacity;
} order = {.next = 1};

/* Room for one more. */
static void *grow(void *list, uint32_t n, uint32_t *capacity, size_t size) {
    if (n < *capacity) return list;
    *capacity = 2 * *capacity + 16;
    list = realloc(list, *capacity * size);
    if (!list) abort();
    return list;
}

/* ---- What happened before what --------------------------------------------------------------- */

static bool before(const cpu_stamp *s, const handed *h) {
    if (s->clock < h->barrier) return true;
    if (s->many == MANY_WARPS || s->thread / CPU_WARP != h->thread / CPU_WARP) return false;
    return s->clock < h->warp_barrier ||
           (s->many == 0 && s->thread == h->thread && s->clock < h->clock);
}

/* What the running thread could hand on now. */
static handed present(uint32_t thread) {
    return (handed){order.block, thread, order.clock + 1, order.warp_barrier[thread / CPU_WARP],
                    order.barrier};
}

static bool is_known(const found *f, const handed *me) {
    const cpu_stamp at = {.clock = f->clock, .thread = (uint16_t)f->thread};
    return f->fenced && before(&at, me);
}

static bool ordered(const cpu_stamp *s, const handed *me) {
    if (s->block == me->block && (s->pieces || before(s, me))) return true;
    for (uint32_t i = 0; i < order.n_found; i++) {
        const found *f = &order.found[i];
        if (!is_known(f, me)) continue;
        const handed *given = order.tickets[f->ticket].given;
        for (uint32_t j = 0; j < f->n; j++)
            if (given[j].block == s->block && before(s, &given[j])) return true;
    }
    return false;
}

static bool is_of_launch(const cpu_stamp *s) {
    return s->block >= order.first;
}

/* ---- Failures -------------------------------------------------------------------------------- */

static const char *const verbs[] = {"read", "write", "atomic operation"};

static const void *place_of(const cpu_stamp *s) {
    return (const char *)order.launch->kernel->entry + (int32_t)s->where;
}

static _Noreturn void race(const cpu_stamp *s, cpu_access_kind before_kind, const cpu_stamp *me,
                           cpu_access_kind kind, uintptr_t at) {
    cpu_worker *w = cpu_me;
    const cpu_allocation *a = cpu_allocation_find(at);
    const uint32_t i = s->block - order.first;
    const cpu_dim grid = order.launch->grid;
    const unsigned first = (unsigned)__builtin_ctz(s->bytes & me->bytes);
    snprintf(w->other, sizeof w->other,
             ", which nothing orders with the %s by block (%u,%u,%u) thread %u%s",
             verbs[before_kind], i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y, s->thread,
             s->many ? " and others" : "");
    w->other_where = place_of(s);
    cpu_fail(TMS_CU_LAUNCH_FAILED, place_of(me),
             "race in global memory: %s of byte %zu of an allocation of %zu bytes", verbs[kind],
             (size_t)(at - a->begin) + first, a->bytes);
}

static inline void judge(const cpu_stamp *s, cpu_access_kind before_kind, const cpu_stamp *me,
                         const handed *now, cpu_access_kind kind, uintptr_t at) {
    if (is_of_launch(s) && s->bytes & me->bytes && !ordered(s, now))
        race(s, before_kind, me, kind, at);
}

/* ---- Accesses -------------------------------------------------------------------------------- */

static inline bool is_ticket(const cpu_mark *m) {
    return is_of_launch(&m->write) && m->write.many == TICKET;
}

static inline void judge_word(const cpu_mark *m, const cpu_stamp *me, const handed *now,
                              cpu_access_kind kind, uintptr_t at) {
    if (is_ticket(m)) {
        const ticket *t = &order.tickets[m->write.clock];
        judge(&t->write, CPU_WRITE, me, now, kind, at);
        if (kind != CPU_ATOMIC) judge(&t->atomic, CPU_ATOMIC, me, now, kind, at);
    } else {
        judge(&m->write, CPU_WRITE, me, now, kind, at);
    }
    if (kind != CPU_READ) judge(&m->read, CPU_READ, me, now, kind, at);
}

/* Joins the present access to those of the same block that stand there, if they are the thread's
 * own or nothing orders them before it. */
static inline void join(cpu_stamp *s, const cpu_stamp *me, const handed *now) {
    const cpu_stamp old = *s;
    *s = *me;
    if ((old.many || old.thread != me->thread) && before(&old, now)) return;
    s->bytes |= old.bytes;
    s->pieces |= old.pieces;
    s->many = old.many;
    if (old.thread / CPU_WARP != me->thread / CPU_WARP)
        s->many = MANY_WARPS;
    else if (old.thread != me->thread && s->many == 0)
        s->many = MANY_LANES;
}

static inline void keep_read(cpu_stamp *s, const cpu_stamp *me, const handed *now) {
    if (!is_of_launch(s))
        *s = *me;
    else if (s->block == me->block)
        join(s, me, now);
    else if (order.n_found && ordered(s, now))
        *s = *me;
}

/* Reads before it are in order with it, and need not be kept. */
static inline void keep_write(cpu_mark *m, const cpu_stamp *me, const handed *now) {
    if (me->bytes != WHOLE && m->write.block == me->block && m->write.many != TICKET)
        join(&m->write, me, now);
    else
        m->write = *me;
    if (me->bytes == WHOLE) m->read.block = 0;
}

static inline cpu_stamp stamp(const cpu_worker *w, const void *where) {
    const intptr_t offset = (const char *)where - (const char *)w->launch->kernel->entry;
    return (cpu_stamp){.block = order.block,
                       .clock = order.clock,
                       .where = (uint32_t)offset,
                       .thread = (uint16_t)w->current->index,
                       .bytes = WHOLE};
}

void cpu_race_access(cpu_mark *marks, uintptr_t begin, uintptr_t at, size_t n, cpu_access_kind kind,
                     const void *where) {
    const cpu_worker *w = cpu_me;
    const handed now = present(w->current->index);
    const uintptr_t end = at + n;
    cpu_stamp me = stamp(w, where);
    for (uintptr_t word = at & ~(uintptr_t)3; word < end; word += 4) {
        cpu_mark *m = &marks[(word - begin) / 4];
        me.bytes = WHOLE;
        if (word < at) me.bytes &= (uint8_t)(WHOLE << (at - word));
        if (end - word < 4) me.bytes &= (uint8_t)(WHOLE >> (4 - (end - word)));
        me.pieces = me.bytes != WHOLE;
        judge_word(m, &me, &now, kind, word);
        if (kind == CPU_READ)
            keep_read(&m->read, &me, &now);
        else
            keep_write(m, &me, &now);
    }
}

/* ---- Atomics and fences ---------------------------------------------------------------------- */

static void give_one(ticket *t, const handed *h) {
    for (uint32_t i = t->n; i-- > 0;)
        if (t->given[i].block == h->block && t->given[i].thread == h->thread &&
            t->given[i].clock >= h->clock)
            return;
    t->given = grow(t->given, t->n, &t->capacity, sizeof *t->given);
    t->given[t->n++] = *h;
}

/* The fence `h` and what its thread knew of then. */
static void give(uint32_t index, const handed *h) {
    ticket *t = &order.tickets[index];
    give_one(t, h);
    for (uint32_t i = 0; i < order.n_found; i++) {
        const found *f = &order.found[i];
        for (uint32_t j = 0; f->ticket != index && is_known(f, h) && j < f->n; j++)
            give_one(t, &order.tickets[f->ticket].given[j]);
    }
}

static void find(uint32_t index, uint32_t thread, bool fenced) {
    const uint32_t n = order.tickets[index].n;
    if (!n) return;
    order.found = grow(order.found, order.n_found, &order.found_capacity, sizeof *order.found);
    order.found[order.n_found++] = (found){thread, order.clock, fenced, index, n};
}

static uint32_t take_ticket(cpu_mark *m) {
    if (is_ticket(m)) return m->write.clock;
    order.tickets =
        grow(order.tickets, order.n_tickets, &order.tickets_capacity, sizeof *order.tickets);
    order.tickets[order.n_tickets] = (ticket){.write = m->write};
    m->write = (cpu_stamp){.block = order.block, .clock = order.n_tickets, .many = TICKET};
    return order.n_tickets++;
}

/* What the running thread has done until now is told from what it does next. */
static handed hand_on(uint32_t thread) {
    const handed h = present(thread);
    order.clock++;
    return h;
}

void cpu_race_fence(void) {
    cpu_worker *w = cpu_me;
    const uint32_t thread = w->current->index;
    if (!w->launch->watched) return;
    for (uint32_t i = 0; i < order.n_found; i++) {
        found *f = &order.found[i];
        if (f->fenced || f->thread != thread) continue;
        f->fenced = true;
        f->clock = order.clock;
    }
    order.fence[thread] = hand_on(thread);
}

/* Words that blocks find each other by begin at 0: whoever comes last puts them back. */
static void check_begin(const cpu_mark *m, bool orders, uint32_t value, uintptr_t at,
                        const void *where) {
    const cpu_allocation *a = cpu_allocation_find(at);
    if (orders && value && !is_of_launch(&m->write))
        cpu_fail(TMS_CU_LAUNCH_FAILED, where,
                 "ticket not put back: byte %zu of an allocation of %zu bytes is %u before the "
                 "first atomic operation of the launch",
                 (size_t)(at - a->begin), a->bytes, value);
}

void cpu_race_atomic(uint32_t *p, bool acq_rel, const void *where) {
    cpu_worker *w = cpu_me;
    const uintptr_t at = (uintptr_t)p;
    if (!w->launch->watched || at - w->arena < CPU_ARENA_BYTES) return;
    const uint32_t thread = w->current->index;
    const bool hands_on = acq_rel || order.fence[thread].block == order.block;
    cpu_mark *m = cpu_allocation_marks(at) + (at - cpu_allocation_find(at)->begin) / 4;
    const cpu_stamp me = stamp(w, where);
    const handed now = present(thread);
    judge_word(m, &me, &now, CPU_ATOMIC, at);
    check_begin(m, hands_on, *p, at, where);
    const uint32_t index = take_ticket(m);
    order.tickets[index].atomic = me;
    find(index, thread, acq_rel);
    const handed h = acq_rel ? hand_on(thread) : order.fence[thread];
    if (hands_on) give(index, &h);
}

/* ---- The launch ------------------------------------------------------------------------------ */

void cpu_race_launch(const cpu_launch *launch, uint64_t blocks) {
    for (uint32_t i = 0; i < order.n_tickets; i++)
        free(order.tickets[i].given);
    order.n_tickets = 0;
    if (blocks > UINT32_MAX - order.next) {
        fprintf(stderr, "cuda_on_cpu: more than 2^32 watched blocks in one process\n");
        abort();
    }
    order.launch = launch;
    order.first = order.next;
    order.next += (uint32_t)blocks;
}

void cpu_race_block(uint32_t index) {
    order.block = order.first + index;
    order.n_found = 0;
    order.clock = order.barrier = 1;
    memset(order.warp_barrier, 0, sizeof order.warp_barrier);
}

void cpu_race_barrier(void) {
    order.barrier = ++order.clock;
}

void cpu_race_warp_barrier(uint32_t warp) {
    order.warp_barrier[warp] = ++order.clock;
}
