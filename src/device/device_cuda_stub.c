/* SPDX-License-Identifier: MIT
 * device_cuda_stub.c - builds without CUDA refuse the GPU by name. */
#include "device/device.h"

#ifndef ISO_CUDA

enum iso_err iso_device_cuda_open(struct iso_device **out, const char *isa)
{
    (void)out;
    (void)isa;
    ISO_FAIL(ISO_E_UNSUPPORTED, "this program was built without CUDA (make CUDA=1)");
}

#endif
