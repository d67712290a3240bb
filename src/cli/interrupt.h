/* SPDX-License-Identifier: MIT
 * interrupt.h - Ctrl-C: the first one asks the running answer to stop, a second one ends the program. */
#ifndef ISO_CLI_INTERRUPT_H
#define ISO_CLI_INTERRUPT_H

#include <stdbool.h>

/* Installs the handler for SIGINT and SIGTERM. */
void iso_interrupt_catch(void);

/* Was there one since the last reset? Any thread. */
bool iso_interrupted(void);
void iso_interrupt_reset(void);

#endif
