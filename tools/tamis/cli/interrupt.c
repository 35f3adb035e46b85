/* SPDX-License-Identifier: Apache-2.0 */
/* Ctrl-C: the first time it ends what is being done, the second time the program. */
#define _POSIX_C_SOURCE 200809L
#include "cli/interrupt.h"

#include "cli/output.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t interrupted;

static void set_handler(void (*handler)(int)) {
    struct sigaction now, then = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&then.sa_mask);
    if (sigaction(SIGINT, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
        sigaction(SIGINT, &then, NULL);
}

static void note(int number) {
    (void)number;
    interrupted = 1;
    set_handler(cli_output_ending());
}

void cli_interrupt_catch(void) {
    interrupted = 0;
    set_handler(note);
}

void cli_interrupt_release(void) {
    set_handler(cli_output_ending());
}

bool cli_interrupted(void) {
    return interrupted != 0;
}
