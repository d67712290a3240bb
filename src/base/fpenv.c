/* SPDX-License-Identifier: MIT
 * fpenv.c - checks the rounding mode of the calling thread. */
#include "base/fpenv.h"

#include <fenv.h>
#include <float.h>

#if FLT_EVAL_METHOD != 0
#error "isobit needs FLT_EVAL_METHOD 0 (no x87 arithmetic)"
#endif

enum iso_err iso_fpenv_check(void)
{
    const int mode = fegetround();
    if (mode != FE_TONEAREST) {
        ISO_FAIL(ISO_E_SELF_CHECK, "rounding mode 0x%x, need to-nearest (0x%x)", (unsigned)mode,
                 (unsigned)FE_TONEAREST);
    }
    return ISO_OK;
}
