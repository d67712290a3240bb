/* SPDX-License-Identifier: MIT
 * device_metal_stub.c - builds without Metal refuse the GPU by name. */
#include "device/device.h"

#ifndef ISO_METAL

enum iso_err iso_device_metal_open(struct iso_device **out, const char *isa)
{
    (void)out;
    (void)isa;
    ISO_FAIL(ISO_E_UNSUPPORTED, "this program was built without Metal (make METAL=1 on a Mac)");
}

#endif
