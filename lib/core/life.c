/* SPDX-License-Identifier: Apache-2.0 */
/* The life of objects: who holds them, when they end, and the owner's mark of a context. */
#include "lib/core/life.h"

#include <time.h>

/* The address of it is a thread's mark. */
static _Thread_local char mark;

void tms_hold(tms_life *life) {
    if (life) atomic_fetch_add_explicit(&life->holders, 1, memory_order_relaxed);
}

/* Ends what nobody holds any more, and then what it was made from. */
void tms_let_go(tms_life *life) {
    while (life && atomic_fetch_sub_explicit(&life->holders, 1, memory_order_acq_rel) == 1) {
        tms_life *from = life->from;
        tms_life *also = life->also;
        life->end(life);
        tms_let_go(also);
        life = from;
    }
}

void tms_life_begin(tms_life *life, const char *name, tms_life *from, tms_life *also,
                    void (*end)(tms_life *life)) {
    life->from = from;
    life->also = also;
    life->root = from ? from->root : life;
    life->end = end;
    life->name = name;
    atomic_init(&life->holders, 1);
    atomic_init(&life->closed, false);
    tms_hold(from);
    tms_hold(also);
}

/* A thread in a context holds it, so that the context stays until it has been left. */
static bool take(tms_life *root) {
    const void *nobody = NULL;
    if (atomic_load_explicit(&root->owner, memory_order_relaxed) == &mark)
        return root->depth++, true;
    if (!atomic_compare_exchange_strong_explicit(&root->owner, &nobody, &mark, memory_order_acquire,
                                                 memory_order_relaxed))
        return false;
    root->depth = 1;
    tms_hold(root);
    return true;
}

void tms_leave(tms_call *call) {
    tms_life *root = *call;
    if (!root || --root->depth > 0) return;
    atomic_store_explicit(&root->owner, NULL, memory_order_release);
    tms_let_go(root);
}

/* The first closed one of what an object was made from; NULL: none is. */
static const tms_life *closed_one(const tms_life *life) {
    for (; life; life = life->from) {
        if (atomic_load_explicit(&life->closed, memory_order_relaxed)) return life;
        const tms_life *also = life->also ? closed_one(life->also) : NULL;
        if (also) return also;
    }
    return NULL;
}

tamis_status tms_enter(tms_life *life, tms_call *call, tamis_error *error) {
    *call = NULL;
    if (!life) return TAMIS_OK;
    TMS_REQUIRE(!life->root->owned || take(life->root), TAMIS_E_STATE,
                "another thread is in a call on the context of this %s: one thread at a time uses "
                "a context and what was made from it",
                life->name);
    if (life->root->owned) *call = life->root;
    const tms_life *closed = closed_one(life);
    TMS_REQUIRE(!closed || closed == life, TAMIS_E_STATE,
                "the %s from which the %s was made has been destroyed", closed->name, life->name);
    TMS_REQUIRE(!closed, TAMIS_E_STATE, "the %s has been destroyed", life->name);
    return TAMIS_OK;
}

void tms_enter_waiting(tms_life *life, tms_call *call) {
    *call = life && life->root->owned ? life->root : NULL;
    while (*call && !take(*call))
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

void tms_life_close(tms_life *life, void (*close)(tms_life *life)) {
    tms_call entered;
    tms_enter_waiting(life, &entered);
    if (close) close(life);
    atomic_store_explicit(&life->closed, true, memory_order_relaxed);
    tms_let_go(life);
    tms_leave(&entered);
}
