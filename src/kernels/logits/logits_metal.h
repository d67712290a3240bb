/* SPDX-License-Identifier: MIT
 * logits_metal.h - how a host starts scale and soft-cap of logits on Metal; read by C and by the Metal compiler.
 *
 * Kernel "iso_logits"; the bits are those of logits.h. Dispatch: groups {ceil(n / ISO_METAL_LOGITS_THREADS),
 * rows, 1}, ISO_METAL_LOGITS_THREADS threads, no threadgroup memory, no function constants. Needed for every
 * model, also without scale and cap: it finds a logit outside the domain.
 */
#ifndef ISO_KERNELS_LOGITS_METAL_H
#define ISO_KERNELS_LOGITS_METAL_H

#if defined(__METAL_VERSION__)
#include "arith/lang.h"
#else
#include <assert.h>
#include <stdint.h>
#endif

/* [[buffer(0)]] */
struct iso_metal_logits {
    uint32_t n; /* logits of a row */
    uint32_t has_scale;
    float scale;
    float cap;     /* 0: none */
    float inv_cap; /* f32(1/cap) */
    uint32_t fault_code; /* noted when a magnitude is 2^100 or more, before or behind the cap */
};
static_assert(sizeof(struct iso_metal_logits) == 24, "shared with GPU code");

/* Places behind the argument structure, [[buffer(1 + i)]]. */
enum iso_metal_logits_binding {
    ISO_METAL_LOGITS_L,     /* f32 [rows][n], in place */
    ISO_METAL_LOGITS_FAULT, /* the fault word of kernels/shared/metal_prim.h */
    ISO_METAL_LOGITS_BINDINGS
};

#define ISO_METAL_LOGITS_THREADS 256

#endif
