/* SPDX-License-Identifier: MIT
 * program_image_darwin.c - sections of the running program: there are no CUDA programs on macOS to read. */
#include "device/program_image.h"

enum iso_err iso_program_section(const uint8_t **p, size_t *len, const char *name)
{
    *p = NULL;
    *len = 0;
    ISO_FAIL(ISO_E_UNSUPPORTED, "sections of a program ('%s') are not read on this system", name);
}
