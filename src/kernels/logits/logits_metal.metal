/* SPDX-License-Identifier: MIT
 * logits_metal.metal - scale and soft-cap of logits, element by element.
 *
 * Source: the specification of exact-1, section 11.
 */
#include "kernels/logits/logits_metal.h"
#include "kernels/shared/metal_prim.h"

kernel void iso_logits(constant iso_metal_logits &a [[buffer(0)]], device float *l [[buffer(1)]],
                       device atomic_uint *fault [[buffer(2)]], uint3 group [[threadgroup_position_in_grid]],
                       uint thread_index [[thread_index_in_threadgroup]])
{
    const uint i = group.x * ISO_METAL_LOGITS_THREADS + thread_index;
    if (i >= a.n) return;
    device float *at = l + (ulong)group.y * a.n + i;
    float x = *at;
    if (a.has_scale != 0) x = x * a.scale;
    uint m = iso_abs_bits(x); /* before the cap as well: tanh makes a finite number of an infinite one */
    if (a.cap != 0.0f) {
        x = iso_softcap(x, a.cap, a.inv_cap);
        m = metal::max(m, iso_abs_bits(x));
    }
    if (m >= ISO_BITS_2P100) metal_fault(fault, a.fault_code);
    *at = x;
}
