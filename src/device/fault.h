/* SPDX-License-Identifier: MIT
 * fault.h - the first value outside the domain, as one word that kernels can write, and as an error.
 */
#ifndef ISO_DEVICE_FAULT_H
#define ISO_DEVICE_FAULT_H

#include "device/device.h"

/* Layer and tensor (enum iso_tensor) of the value; 0 is none. */
#define ISO_FAULT(layer, tensor) (1u + (uint32_t)(layer) * ISO_TENSOR_COUNT + (uint32_t)(tensor))

/* ISO_OK for 0, else ISO_E_NUMERIC that names layer and tensor. */
static inline enum iso_err iso_fault_status(uint32_t fault)
{
    static const char *const name[ISO_TENSOR_COUNT] = {"attn_norm", "q",       "k",           "v",     "attn_out",
                                                       "ffn_norm",  "ffn_act", "result_norm", "logits"};
    if (fault == 0) return ISO_OK;
    const uint32_t tensor = (fault - 1) % ISO_TENSOR_COUNT, layer = (fault - 1) / ISO_TENSOR_COUNT;
    if (tensor >= ISO_TENSOR_RESULT_NORM) {
        ISO_FAIL(ISO_E_NUMERIC, "%s: a value is infinite, not a number or too large", name[tensor]);
    }
    ISO_FAIL(ISO_E_NUMERIC, "layer %u, %s: a value is infinite, not a number or too large", layer, name[tensor]);
}

#endif
