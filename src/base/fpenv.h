/* SPDX-License-Identifier: MIT
 * fpenv.h - is this thread's floating point the one that exact-1 needs? */
#ifndef ISO_BASE_FPENV_H
#define ISO_BASE_FPENV_H

#include "base/err.h"

/* Each thread calls it when it starts: rounding must be to nearest even (MXCSR on x86-64, FPCR on
 * aarch64). Flush-to-zero may be on or off: the arithmetic does not depend on it.
 * Errors: ISO_E_SELF_CHECK with the mode found. */
enum iso_err iso_fpenv_check(void) ISO_NODISCARD;

#endif
