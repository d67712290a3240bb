/* SPDX-License-Identifier: MIT
 * interrupt.c - the signal handler behind interrupt.h. */
#include "cli/interrupt.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t g_seen;

static void on_signal(int number)
{
    if (g_seen) _exit(128 + number); /* the user means it */
    g_seen = 1;
}

void iso_interrupt_catch(void)
{
    struct sigaction a;
    memset(&a, 0, sizeof(a));
    a.sa_handler = on_signal;
    (void)sigemptyset(&a.sa_mask);
    (void)sigaction(SIGINT, &a, NULL);
    (void)sigaction(SIGTERM, &a, NULL);
}

bool iso_interrupted(void)
{
    return g_seen != 0;
}

void iso_interrupt_reset(void)
{
    g_seen = 0;
}
