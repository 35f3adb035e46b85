/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of a block as fibers of one OS thread: stacks, switching, the barrier, failure. */
#include "on_cpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

_Thread_local cpu_worker *cpu_me;

/* ---- Switching ------------------------------------------------------------------------------- */

/* Saves the registers that a call keeps on the present stack, its pointer in *from, and goes on
 * with the stack `to`. Own code and not longjmp, which sanitizers of the host would watch. */
void cpu_switch(void **from, void *to);
#if defined __x86_64__
#define FRAME_WORDS 8 /* six registers, the return address, and one to keep 16-byte alignment */
#define FRAME_ENTRY 6
__asm__(".text\n.globl cpu_switch\n.hidden cpu_switch\n.type cpu_switch, @function\ncpu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size cpu_switch, . - cpu_switch\n");
#elif defined __aarch64__
#define FRAME_WORDS 20 /* x19..x30, d8..d15 */
#define FRAME_ENTRY 11
__asm__(".text\n.globl cpu_switch\n.hidden cpu_switch\n.type cpu_switch, %function\ncpu_switch:\n"
        "sub sp, sp, #160\n"
        "stp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
        "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
        "stp d14, d15, [sp, #144]\n"
        "mov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
        "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
        "ldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n"
        ".size cpu_switch, . - cpu_switch\n");
#else
#error "fibers know x86-64 and aarch64"
#endif

/* The next fiber that may go on, of the present warp if it has one; NULL: none. */
static cpu_fiber *pick(cpu_worker *w) {
    if (!w->ready_warps) return NULL;
    uint32_t warp = w->current ? w->current->index / CPU_WARP : 0;
    if (!(w->ready_warps >> warp & 1)) warp = (uint32_t)__builtin_ctz(w->ready_warps);
    cpu_warp *p = &w->warps[warp];
    const uint32_t lane = (uint32_t)__builtin_ctz(p->ready);
    p->ready &= p->ready - 1;
    if (!p->ready) w->ready_warps &= ~(1u << warp);
    return &w->fibers[warp * CPU_WARP + lane];
}

void cpu_wait(cpu_worker *w) {
    cpu_fiber *from = w->current, *to = pick(w);
    w->current = to;
    if (to) w->stack = to->stack;
    cpu_switch(&from->sp, to ? to->sp : w->sp);
}

/* ---- Failure --------------------------------------------------------------------------------- */

_Noreturn void cpu_fail(tms_cu_result result, const void *where, const char *format, ...) {
    cpu_worker *w = cpu_me;
    va_list list;
    va_start(list, format);
    vsnprintf(w->message, sizeof w->message, format, list);
    va_end(list);
    w->failed = true;
    w->result = result;
    w->where = where;
    w->failed_thread = w->current->index;
    void *nowhere;
    cpu_switch(&nowhere, w->sp);
    abort(); /* nobody goes back to it */
}

/* ---- The block's barrier --------------------------------------------------------------------- */

static void release(cpu_worker *w) {
    for (uint32_t i = 0; i < w->n_warps; i++) {
        w->warps[i].ready |= w->warps[i].blocked;
        if (w->warps[i].blocked) w->ready_warps |= 1u << i;
        w->warps[i].blocked = 0;
    }
    w->arrived = 0;
    w->block_epoch++;
    if (w->launch->watched) cpu_race_barrier();
}

void cpu_block_sync(const char *file, int line) {
    cpu_worker *w = cpu_me;
    const uint32_t index = w->current->index;
    if (!w->arrived)
        w->place = (cpu_place){file, line};
    else if (w->place.line != line || strcmp(w->place.file, file) != 0)
        cpu_fail(TMS_CU_LAUNCH_FAILED, NULL,
                 "divergent barrier: other threads wait at %s:%d [%s:%d]", w->place.file,
                 w->place.line, file, line);
    w->warps[index / CPU_WARP].blocked |= 1u << index % CPU_WARP;
    if (++w->arrived == w->alive) {
        release(w);
        w->warps[index / CPU_WARP].ready &= ~(1u << index % CPU_WARP); /* goes on right now */
        if (!w->warps[index / CPU_WARP].ready) w->ready_warps &= ~(1u << index / CPU_WARP);
        return;
    }
    cpu_wait(w);
}

/* ---- A block --------------------------------------------------------------------------------- */

/* Where a fiber begins and ends. */
static void fiber_main(void) {
    cpu_worker *w = cpu_me;
    cpu_fiber *f = w->current;
    w->launch->kernel->entry(w->launch->args);
    cpu_warp *warp = &w->warps[f->index / CPU_WARP];
    if (f->copies_used)
        cpu_fail(TMS_CU_LAUNCH_FAILED, NULL,
                 "ended with %u asynchronous copies that nobody waited for", f->copies_used);
    if (warp->arrived)
        cpu_fail(TMS_CU_LAUNCH_FAILED, NULL,
                 "divergent warp operation: ended while lanes %08x wait at %s:%d", warp->arrived,
                 warp->place.file, warp->place.line);
    warp->alive &= ~(1u << f->index % CPU_WARP);
    w->alive--;
    if (w->alive && w->arrived == w->alive) release(w);
    cpu_wait(w);
    abort(); /* an ended fiber is never ready */
}

static void fiber_prepare(cpu_worker *w, uint32_t index) {
    cpu_fiber *f = &w->fibers[index];
    const cpu_dim size = w->launch->block;
    *f->thread = (cpu_thread){{index % size.x, index / size.x % size.y, index / size.x / size.y},
                              w->block_index,
                              size,
                              w->launch->grid};
    uintptr_t *frame = (uintptr_t *)f->thread - FRAME_WORDS;
    memset(frame, 0, FRAME_WORDS * sizeof *frame);
    frame[FRAME_ENTRY] = (uintptr_t)fiber_main;
    f->sp = frame;
    f->copies_used = f->committed = 0;
}

static void block_prepare(cpu_worker *w, uint32_t threads) {
    w->alive = threads;
    w->arrived = 0;
    w->static_begin = w->static_used = 0;
    w->current = NULL;
    w->failed = false;
    w->other[0] = 0;
    w->other_where = NULL;
    w->block_epoch++;
    w->block_serial++;
    w->n_warps = (threads + CPU_WARP - 1) / CPU_WARP;
    w->ready_warps = w->n_warps == CPU_MAX_WARPS ? ~0u : (1u << w->n_warps) - 1;
    for (uint32_t i = 0; i < w->n_warps; i++) {
        const uint32_t lanes = threads - i * CPU_WARP;
        cpu_warp *p = &w->warps[i];
        p->alive = p->ready = lanes >= CPU_WARP ? ~0u : (1u << lanes) - 1;
        p->arrived = p->blocked = p->epoch = p->turn = 0;
    }
    for (uint32_t i = 0; i < threads; i++)
        fiber_prepare(w, i);
    memset((void *)(w->arena + CPU_DYNAMIC_OFFSET), 0xff, w->launch->shared);
}

/* No thread may go on and some have not ended: lanes wait for lanes of their warp that wait at the
 * block's barrier. */
static void explain_standstill(cpu_worker *w) {
    for (uint32_t i = 0; i < w->n_warps; i++) {
        const cpu_warp *p = &w->warps[i];
        if (!p->arrived) continue;
        w->failed = true;
        w->result = TMS_CU_LAUNCH_FAILED;
        w->where = NULL;
        w->failed_thread = i * CPU_WARP + (uint32_t)__builtin_ctz(p->arrived);
        snprintf(w->message, sizeof w->message,
                 "divergent warp operation: lanes %08x of the warp wait at %s:%d [%s:%d]",
                 p->blocked, w->place.file, w->place.line, p->place.file, p->place.line);
        return;
    }
    abort(); /* a barrier that all have reached lets them go */
}

bool cpu_block_run(cpu_worker *w, cpu_dim block_index) {
    const cpu_dim size = w->launch->block;
    w->block_index = block_index;
    block_prepare(w, size.x * size.y * size.z);
    cpu_fiber *first = pick(w);
    w->current = first;
    w->stack = first->stack;
    cpu_switch(&w->sp, first->sp);
    if (!w->failed && w->alive) explain_standstill(w);
    return !w->failed;
}

const cpu_thread *cpu_self(void) {
    return cpu_me->current->thread;
}

/* ---- Workers --------------------------------------------------------------------------------- */

/* Stacks with a guard page below each. They lie an odd number of pages apart and begin at 16 places
 * of a page in turn: their tops shall not share one set of the processor's caches. */
static bool take_stacks(cpu_worker *w) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), step = CPU_STACK_BYTES + page;
    char *all = mmap(NULL, step * CPU_MAX_THREADS, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) return false;
    for (uint32_t i = 0; i < CPU_MAX_THREADS; i++) {
        cpu_fiber *f = &w->fibers[i];
        mprotect(all + i * step, page, PROT_NONE);
        f->index = i;
        f->stack = (uintptr_t)(all + i * step + page);
        f->thread =
            (cpu_thread *)(f->stack + CPU_STACK_BYTES - sizeof(cpu_thread) - (i % 16) * 256);
    }
    return true;
}

cpu_worker *cpu_worker_create(void) {
    cpu_worker *w = mmap(NULL, sizeof *w, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void *arena =
        mmap(NULL, CPU_ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (w == MAP_FAILED || arena == MAP_FAILED || !take_stacks(w)) {
        fprintf(stderr, "cuda_on_cpu: no memory for threads\n");
        abort();
    }
    w->arena = (uintptr_t)arena;
    return w;
}
