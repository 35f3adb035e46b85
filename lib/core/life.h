/* SPDX-License-Identifier: Apache-2.0 */
/* How long objects live, and which thread is in them. An object is closed when its handle is
 * destroyed; it ends when it is closed and nothing that was made from it is left. Calls on what was
 * made from a closed object answer E_STATE, and so does a second thread's call on a context that
 * another thread is in. A tms_life is the first member of every object with a handle. */
#ifndef TMS_LIFE_H
#define TMS_LIFE_H

#include "lib/core/error.h"

#include <stdatomic.h>

typedef struct tms_life {
    struct tms_life *from, *also;       /* what it was made from; NULL: nothing */
    struct tms_life *root;              /* the context, by `from`; itself where that is NULL */
    void (*end)(struct tms_life *life); /* frees the object */
    const char *name;                   /* "cache" */
    _Atomic uint32_t holders;           /* its handle, and what was made from it */
    _Atomic bool closed;
    /* Of a context. The mark of the thread that is in it, NULL: none; and how many calls of that
     * thread are, one in another. */
    bool owned;
    _Atomic(const void *) owner;
    uint32_t depth;
} tms_life;

/* Begins an object's life: it holds what it was made from, of which `also` may be NULL. */
void tms_life_begin(tms_life *life, const char *name, tms_life *from, tms_life *also,
                    void (*end)(tms_life *life));

/* Keeps an object that is needed beside what the holder was made from, also once it is closed; and
 * ends that. life may be NULL. */
void tms_hold(tms_life *life);
void tms_let_go(tms_life *life);

/* A handle's life. */
#define TMS_LIFE(handle) ((tms_life *)(uintptr_t)(const void *)(handle))

/* A call's part in its context, which ends with the variable. */
typedef tms_life *tms_call;
void tms_leave(tms_call *call);

/* Enters the object's context and checks that nothing that the object was made from is closed.
 * life may be NULL: then *entry is, too. E_STATE. */
tamis_status tms_enter(tms_life *life, tms_call *call, tamis_error *error);

/* Closes an object, whose handle is gone then: waits for a call of another thread that is in its
 * context. `close`, which may be NULL, is called before, within the context. */
void tms_life_close(tms_life *life, void (*close)(tms_life *life));

/* The first line of a public call on `handle`, which may be NULL: returns E_STATE from it, or is in
 * the handle's context until it returns. */
#define TMS_ENTER(handle)                                                                          \
    __attribute__((cleanup(tms_leave))) tms_call entered_ = NULL;                                  \
    TMS_TRY(tms_enter(TMS_LIFE(handle), &entered_, error))

/* The same for a call that answers no status: it waits for the other thread's call, and is not
 * refused where something is closed. */
void tms_enter_waiting(tms_life *life, tms_call *call);
#define TMS_ENTER_WAITING(handle)                                                                  \
    __attribute__((cleanup(tms_leave))) tms_call entered_ = NULL;                                  \
    tms_enter_waiting(TMS_LIFE(handle), &entered_)

#endif
