/* SPDX-License-Identifier: MIT
 * embed_metal.metal - table rows of every type to f32: a group per row, a thread per sixteen columns.
 *
 * Source: the specification of exact-1, section 4 "one element" and section 11.
 */
#include "kernels/embed/embed_metal.h"
#include "kernels/shared/metal_blocks.h"

/* v [16]: the values of part of group g of a row. */
template <typename W>
static inline void embed_values(thread float *v, form_block, const device uchar *row, uint g, uint part)
{
    int c[16];
    W::columns(c, row, g, part);
    const float d = W::d(row, g), m = W::m(row, g);
    METAL_UNROLL
    for (uint i = 0; i < 16; i++) {
        v[i] = d * (float)c[i];
        if (W::MIN) v[i] = v[i] + m;
    }
}

template <typename W>
static inline void embed_values(thread float *v, form_super, const device uchar *row, uint g, uint part)
{
    int c[16];
    W::columns(c, row, g, part);
    const int sub = W::sub(row, g, part);
    const float d = W::d(row, g / 8), dmin = W::dmin(row, g / 8), mi = (float)W::mi(row, g);
    METAL_UNROLL
    for (uint i = 0; i < 16; i++) {
        v[i] = d * (float)(c[i] * sub);
        if (W::MIN) v[i] = metal::fma(-dmin, mi, v[i]);
    }
}

template <typename W>
static inline void embed_values(thread float *v, form_nvfp4, const device uchar *row, uint g, uint part)
{
    int c[16];
    W::columns(c, row, g, part);
    const int sub = W::sub(row, g, part); /* 12 * sub is below 2^24 */
    METAL_UNROLL
    for (uint i = 0; i < 16; i++) v[i] = (float)(c[i] * sub) * 0x1p-10f;
}

template <typename W>
static inline void embed_values(thread float *v, form_float, const device uchar *row, uint g, uint part)
{
    W::values(v, row, g, part);
}

template <typename W>
static inline void embed_row(constant iso_metal_embed &a, const device uchar *row, device float *x, uint thread_index)
{
    for (uint i = thread_index; i < a.n_cols / 16; i += ISO_METAL_EMBED_THREADS) {
        float v[16];
        embed_values<W>(v, typename W::FORM(), row, i / 2, i % 2);
        METAL_UNROLL
        for (uint k = 0; k < 16; k++) {
            const float y = a.has_scale != 0 ? v[k] * a.scale : v[k];
            x[16 * i + k] = iso_guard(y);
        }
    }
}

#define KERNEL(T)                                                                                                    \
    kernel void iso_embed_##T(constant iso_metal_embed &a [[buffer(0)]], const device int *ids [[buffer(1)]],        \
                              const device uchar *table [[buffer(2)]], device float *x [[buffer(3)]],                \
                              uint3 group [[threadgroup_position_in_grid]],                                          \
                              uint thread_index [[thread_index_in_threadgroup]])                                     \
    {                                                                                                                \
        const device uchar *row = table + (ulong)(uint)ids[group.x] * a.row_bytes;                                   \
        embed_row<weight_##T>(a, row, x + (ulong)group.x * a.n_cols, thread_index);                                  \
    }
METAL_WEIGHT_TYPES(KERNEL)
#undef KERNEL
