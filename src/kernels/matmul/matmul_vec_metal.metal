/* SPDX-License-Identifier: MIT
 * matmul_vec_metal.metal - products with one row of codes: each weight byte is read once.
 *
 * A simdgroup owns four weight rows and walks their columns 1,024 at a time; a lane makes the exact sums of 32
 * columns, the codes of which it keeps for all four rows. Sums and scales go to threadgroup memory;
 * then lane 4r + q runs the chain inside block q of row r, and the four lanes of a row together run the chain
 * over blocks, in ascending order. Which lane makes a sum cannot be seen in the result; the chains have one order.
 */
#include "kernels/matmul/matmul_chain_metal.h"

#define ROWS 4          /* weight rows of a simdgroup */
#define LANES 32        /* of a simdgroup */
#define PASS_BLOCKS 4   /* blocks of 256 columns in flight: 8 lanes each */
#define PLACE (ROWS * LANES)

static_assert(ISO_METAL_MATMUL_VEC_ROWS == ROWS * ISO_METAL_MATMUL_THREADS / LANES, "four simdgroups");
static_assert(ISO_METAL_MATMUL_VEC_BYTES == 3 * PLACE * 4 * ISO_METAL_MATMUL_THREADS / LANES, "three words a sum");

/* Eight products; see metal_blocks.h for why the order is free. */
static inline float vec_dot8(const thread int *w, const thread float *code)
{
    float even = 0.0f, odd = 0.0f;
    METAL_UNROLL
    for (uint i = 0; i < 8; i += 2) {
        even = metal::fma((float)w[i], code[i], even);
        odd = metal::fma((float)w[i + 1], code[i + 1], odd);
    }
    return even + odd;
}

static inline float vec_dot16(const thread int *w, const thread float *code)
{
    return vec_dot8(w, code) + vec_dot8(w + 8, code + 8);
}

template <typename W>
static inline float vec_dot_part(const device uchar *row, uint g, uint part, const thread float *code)
{
    int w[16];
    W::columns(w, row, g, part);
    return vec_dot16(w, code + 16 * part);
}

/* One group of one row: its sums and scales into words at[0], at[PLACE], at[2 * PLACE]. sum32: of the codes. */
template <typename W>
static inline void vec_stage(threadgroup uint *at, form_block, const device uchar *row, uint g,
                             const thread float *code, int)
{
    const float low = vec_dot_part<W>(row, g, 0, code);
    const float high = vec_dot_part<W>(row, g, 1, code);
    at[0] = ISO_AS_U32(low + high);
    at[PLACE] = ISO_AS_U32(W::d(row, g));
    if (W::MIN) at[2 * PLACE] = ISO_AS_U32(W::m(row, g));
}

template <typename W>
static inline void vec_stage(threadgroup uint *at, form_super, const device uchar *row, uint g,
                             const thread float *code, int sum32)
{
    int w[32], sub[4], a = 0;
    W::lane(w, sub, row + g / 8 * W::BYTES, g % 8);
    METAL_UNROLL
    for (uint i = 0; i < 4; i++) a += sub[i] * (int)vec_dot8(w + 8 * i, code + 8 * i);
    at[0] = (uint)a;
    if (W::MIN) at[PLACE] = (uint)(W::mi(row, g) * sum32);
}

template <typename W>
static inline void vec_stage(threadgroup uint *at, form_nvfp4, const device uchar *row, uint g,
                             const thread float *code, int)
{
    const long low = (long)(int)vec_dot_part<W>(row, g, 0, code);
    const long high = (long)(int)vec_dot_part<W>(row, g, 1, code);
    const long sum = low * (long)W::sub(row, g, 0) + high * (long)W::sub(row, g, 1);
    at[0] = (uint)(sum & 0xffffffffl);
    at[PLACE] = (uint)(sum >> 32 & 0xffffffffl);
}

template <typename W>
static inline void vec_stage(threadgroup uint *at, form_float, const device uchar *row, uint g,
                             const thread float *code, int)
{
    float v[2][16];
    W::values(v[0], row, g, 0);
    W::values(v[1], row, g, 1);
    const uint top = metal::max(block_float_top(v[0]), block_float_top(v[1]));
    float high = 0.0f, low = 0.0f, d = 0.0f;
    METAL_UNROLL
    for (uint part = 0; part < 2; part++) {
        int c[16], plane[16];
        d = block_float_codes(c, v[part], top);
        METAL_UNROLL
        for (uint i = 0; i < 16; i++) plane[i] = c[i] >> 8;
        high = high + vec_dot16(plane, code + 16 * part);
        METAL_UNROLL
        for (uint i = 0; i < 16; i++) plane[i] = c[i] & 255;
        low = low + vec_dot16(plane, code + 16 * part);
    }
    at[0] = ISO_AS_U32(planes_f32(high, low));
    at[PLACE] = ISO_AS_U32(d);
}

/* p of one block of n groups from what its lanes staged at at[0..n). sum32: of the block's codes. */
template <typename W>
static inline float vec_chain(form_block, const threadgroup uint *at, uint n, const device int *sum32,
                              const device uchar *, uint)
{
    float p = 0.0f;
    for (uint j = 0; j < n; j++) {
        p = metal::fma(ISO_AS_F32(at[PLACE + j]), ISO_AS_F32(at[j]), p);
        if (W::MIN) p = metal::fma(ISO_AS_F32(at[2 * PLACE + j]), (float)sum32[j], p);
    }
    return p;
}

template <typename W>
static inline float vec_chain(form_float, const threadgroup uint *at, uint n, const device int *,
                              const device uchar *, uint)
{
    float p = 0.0f;
    for (uint j = 0; j < n; j++) p = metal::fma(ISO_AS_F32(at[PLACE + j]), ISO_AS_F32(at[j]), p);
    return p;
}

template <typename W>
static inline float vec_chain(form_super, const threadgroup uint *at, uint n, const device int *,
                              const device uchar *row, uint block)
{
    int a = 0, m = 0;
    for (uint j = 0; j < n; j++) {
        a += (int)at[j];
        if (W::MIN) m += (int)at[PLACE + j];
    }
    return super_p(a, m, W::d(row, block), W::dmin(row, block), W::MIN);
}

template <typename W>
static inline float vec_chain(form_nvfp4, const threadgroup uint *at, uint n, const device int *,
                              const device uchar *, uint)
{
    long a = 0;
    for (uint j = 0; j < n; j++) a += (long)(int)at[PLACE + j] * 4294967296l + (long)at[j];
    return nvfp4_p(a);
}

/* Where run i of eight columns of lane t lies in a block of 256: a group of the file's order, or as the type's
 * lane() wants it. */
template <typename W, typename FORM> struct vec_runs {
    static uint at(uint t, uint i) { return 32 * t + 8 * i; }
};
template <typename W> struct vec_runs<W, form_super> {
    static uint at(uint t, uint i) { return W::run(t, i); }
};

/* A lane's codes of a block as floats. */
template <typename W> static inline void vec_codes(thread float *c, const device short *code, uint t)
{
    METAL_UNROLL
    for (uint i = 0; i < 8; i++) {
        const uint column = vec_runs<W, typename W::FORM>::at(t, i / 2) + i % 2 * 4;
        const short4 v = *(const device short4 *)(code + column);
        c[4 * i] = (float)v.x;
        c[4 * i + 1] = (float)v.y;
        c[4 * i + 2] = (float)v.z;
        c[4 * i + 3] = (float)v.w;
    }
}

struct vec_place {
    uint group, act; /* of the grid */
    uint simd, lane;
};

template <typename W>
static inline void matmul_vec(constant iso_metal_matmul &a, const device short *code, const device float *scale,
                              const device int *sum32, const device uchar *weights, const device float *bias,
                              device float *y, threadgroup uint *shared, vec_place at)
{
    const uint n_groups = a.n_cols / 32, n_blocks = a.stride / 256, last = a.n_rows - 1;
    const uint first_row = (at.group * (ISO_METAL_MATMUL_THREADS / LANES) + at.simd) * ROWS;
    const uint r = at.lane / PASS_BLOCKS % ROWS, q = at.lane % PASS_BLOCKS; /* of the chain; lanes 16-31 repeat it */
    const device uchar *own = weights + (ulong)metal::min(first_row + r, last) * a.row_bytes;
    threadgroup uint *staged = shared + at.simd * 3 * PLACE;
    code += (ulong)at.act * a.stride;
    scale += at.act * n_blocks;
    sum32 += at.act * (a.stride / 32);
    float out = 0.0f;
    for (uint first = 0; first < n_groups; first += LANES) {
        const uint g = first + at.lane;
        if (g < n_groups) {
            float c[32];
            vec_codes<W>(c, code + g / 8 * 256, g % 8);
            METAL_UNROLL /* so that the bytes of all four rows are on their way */
            for (uint i = 0; i < ROWS; i++) {
                const device uchar *row = weights + (ulong)metal::min(first_row + i, last) * a.row_bytes;
                vec_stage<W>(staged + i * LANES + at.lane, typename W::FORM(), row, g, c, sum32[g]);
            }
        }
        metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
        const uint block = first / 8 + q;
        float p = 0.0f, s = 0.0f;
        if (block < n_blocks) {
            const uint n = metal::min(8u, n_groups - 8 * block);
            p = vec_chain<W>(typename W::FORM(), staged + r * LANES + 8 * q, n, sum32 + 8 * block, own, block);
            s = scale[block];
        }
        for (uint i = 0; i < PASS_BLOCKS; i++) {
            const ushort from = (ushort)(at.lane - q + i);
            const float ps = metal::simd_shuffle(p, from), ss = metal::simd_shuffle(s, from);
            if (first / 8 + i < n_blocks) out = metal::fma(ss, ps, out);
        }
        metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
    const uint row = first_row + r;
    if (at.lane >= ROWS * PASS_BLOCKS || q != 0 || row > last) return;
    y[(ulong)at.act * a.n_rows + row] = finish_y(out, a, bias, row);
}

#define KERNEL(T)                                                                                                    \
    kernel void iso_matmul_vec_##T(constant iso_metal_matmul &a [[buffer(0)]], const device short *code [[buffer(1)]], \
                                   const device float *scale [[buffer(2)]], const device int *sum32 [[buffer(3)]],   \
                                   const device uchar *weights [[buffer(4)]], const device float *bias [[buffer(5)]], \
                                   device float *y [[buffer(6)]], threadgroup uint *shared [[threadgroup(0)]],       \
                                   uint3 group [[threadgroup_position_in_grid]],                                     \
                                   uint simd [[simdgroup_index_in_threadgroup]],                                     \
                                   uint lane [[thread_index_in_simdgroup]])                                          \
    {                                                                                                                \
        const vec_place at = {group.x, group.y, simd, lane};                                                         \
        matmul_vec<weight_##T>(a, code, scale, sum32, weights, bias, y, shared, at);                                 \
    }
METAL_WEIGHT_TYPES(KERNEL)
#undef KERNEL
#undef ROWS
#undef LANES
#undef PASS_BLOCKS
#undef PLACE
