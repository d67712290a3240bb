/* SPDX-License-Identifier: MIT
 * os.h - what each operating system does in its own way; one file per system. */
#ifndef ISO_BASE_OS_H
#define ISO_BASE_OS_H

#include <stddef.h>
#include <stdint.h>

#include "base/digest.h"
#include "base/err.h"

/* Processors that this process may run on, at least 1. */
unsigned iso_os_processors(void);

/* Bytes of memory that could be used now without swapping; 0 when unknown. */
uint64_t iso_os_memory_available(void);

/* Largest resident size of this process so far, in bytes; 0 when unknown. */
uint64_t iso_os_peak_memory(void);

/* The processor's model name into out [len]; "unknown" when there is none. */
void iso_os_cpu_name(char *out, size_t len);

/* Waits until what was written to a file or directory survives a loss of power, as far as the system
 * can promise it. 0, or -1 with errno. */
int iso_os_sync(int fd);

/* Feeds the machine code of the running program to h: the fingerprint of what will run.
 * Errors: ISO_E_IO when the program's code cannot be found. */
enum iso_err iso_os_hash_code(struct iso_hasher *h) ISO_NODISCARD;

#endif
