/* SPDX-License-Identifier: MIT
 * matmul_tile_metal.metal - products with several rows of codes on 8x8 simdgroup matrices.
 *
 * A threadgroup makes 8 or 32 activation rows x 64 weight rows; each of its four simdgroups owns 16 weight rows
 * and unpacks them for itself, the codes are shared. Columns come 32 at a time. Small integers travel as floats:
 * every sum that the hardware can form is exact (metal_blocks.h), whatever its order, so a matrix product is the
 * integer product. It goes through threadgroup memory to the lanes that own the outputs, where the pinned chain
 * runs in registers: lane l owns weight row l % 16 and activation rows l / 16, l / 16 + 2, ...
 *
 * Matrices lie in threadgroup memory as 8x8 pieces, so that a piece is 64 floats side by side.
 */
#include "kernels/matmul/matmul_chain_metal.h"

#define OWN_ROWS 16  /* weight rows of a simdgroup */
#define SIMDGROUPS (ISO_METAL_MATMUL_THREADS / 32)
#define PIECE 64     /* floats of an 8x8 piece */
#define K_PIECES 4   /* pieces of 32 columns */

static_assert(ISO_METAL_MATMUL_TILE_ROWS == OWN_ROWS * SIMDGROUPS, "a simdgroup per 16 rows");

/* The chains of a lane's N outputs, all of one weight row. group() begins 32 columns, add() takes their sum s of
 * output i as an exact float, value() gives p of the block. */
template <typename W, uint N, typename FORM> struct tile_chain;

template <typename W, uint N> struct tile_chain<W, N, form_block> {
    float p[N], d, m;
    void begin()
    {
        METAL_UNROLL
        for (uint i = 0; i < N; i++) p[i] = 0.0f;
    }
    void group(const device uchar *row, uint g, float)
    {
        d = W::d(row, g);
        m = W::m(row, g);
    }
    void add(uint, uint i, float sum, int sum32)
    {
        p[i] = metal::fma(d, sum, p[i]);
        if (W::MIN) p[i] = metal::fma(m, (float)sum32, p[i]);
    }
    float value(uint i, const device uchar *, uint) const { return p[i]; }
};

template <typename W, uint N> struct tile_chain<W, N, form_super> {
    int a[N], m[N], sub[2], mi;
    void begin()
    {
        METAL_UNROLL
        for (uint i = 0; i < N; i++) {
            a[i] = 0;
            m[i] = 0;
        }
    }
    void group(const device uchar *row, uint g, float)
    {
        sub[0] = W::sub(row, g, 0);
        sub[1] = W::sub(row, g, W::SUMS - 1);
        mi = W::mi(row, g);
    }
    void add(uint s, uint i, float sum, int sum32)
    {
        a[i] += sub[s] * (int)sum;
        if (W::MIN) m[i] += mi * sum32;
    }
    float value(uint i, const device uchar *row, uint block) const
    {
        return super_p(a[i], m[i], W::d(row, block), W::dmin(row, block), W::MIN);
    }
};

template <typename W, uint N> struct tile_chain<W, N, form_nvfp4> {
    long a[N];
    int sub[2];
    void begin()
    {
        METAL_UNROLL
        for (uint i = 0; i < N; i++) a[i] = 0;
    }
    void group(const device uchar *row, uint g, float)
    {
        sub[0] = W::sub(row, g, 0);
        sub[1] = W::sub(row, g, 1);
    }
    void add(uint s, uint i, float sum, int) { a[i] += (long)sub[s] * (long)(int)sum; }
    float value(uint i, const device uchar *, uint) const { return nvfp4_p(a[i]); }
};

template <typename W, uint N> struct tile_chain<W, N, form_float> {
    float p[N], high[N], d;
    void begin()
    {
        METAL_UNROLL
        for (uint i = 0; i < N; i++) p[i] = 0.0f;
    }
    void group(const device uchar *, uint, float scale) { d = scale; }
    void add(uint s, uint i, float sum, int)
    {
        if (s == 0) high[i] = sum;
        else p[i] = metal::fma(d, planes_f32(high[i], sum), p[i]);
    }
    float value(uint i, const device uchar *, uint) const { return p[i]; }
};

/* Sixteen integers of a row: lane l unpacks part l / 16 of row l % 16. Returns d of a Float type, which needs
 * the other part's largest magnitude too; all lanes of the simdgroup call. */
template <typename W, typename FORM> struct tile_columns {
    static float load(thread int *c, const device uchar *row, uint g, uint part)
    {
        W::columns(c, row, g, part);
        return 0.0f;
    }
    static float integer(int c, uint) { return (float)c; }
    enum { PLANES = 1 };
};

template <typename W> struct tile_columns<W, form_float> {
    static float load(thread int *c, const device uchar *row, uint g, uint part)
    {
        float v[16];
        W::values(v, row, g, part);
        const uint top = block_float_top(v);
        return block_float_codes(c, v, metal::max(top, metal::simd_shuffle_xor(top, (ushort)16)));
    }
    static float integer(int c, uint plane) { return (float)(plane == 0 ? c >> 8 : c & 255); }
    enum { PLANES = 2 };
};

struct tile_place {
    uint group, tile; /* of the grid */
    uint simd, lane;
};

/* The codes of columns 32g.. of 8 * TA activation rows, and their sums; rows that the step does not have are 0. */
template <uint TA>
static inline void tile_stage_codes(threadgroup float *codes, threadgroup int *sums, constant iso_metal_matmul &a,
                                    const device short *code, const device int *sum32, tile_place at, uint g)
{
    const uint thread_index = at.simd * 32 + at.lane;
    for (uint i = thread_index; i < TA * 64; i += ISO_METAL_MATMUL_THREADS) { /* four codes each */
        const uint t = i / 8, k = i % 8 * 4, row = at.tile * TA * 8 + t;
        threadgroup float *to = codes + (t / 8 * K_PIECES + k / 8) * PIECE + t % 8 * 8 + k % 8;
        const bool none = row >= a.n_act;
        const short4 v = *(const device short4 *)(code + (ulong)(none ? 0 : row) * a.stride + 32 * g + k);
        to[0] = none ? 0.0f : (float)v.x;
        to[1] = none ? 0.0f : (float)v.y;
        to[2] = none ? 0.0f : (float)v.z;
        to[3] = none ? 0.0f : (float)v.w;
    }
    if (thread_index >= TA * 8) return;
    const uint row = at.tile * TA * 8 + thread_index;
    sums[thread_index] = row < a.n_act ? sum32[row * (a.stride / 32) + g] : 0;
}

/* A lane's sixteen integers into the simdgroup's weights: pieces [K_PIECES][2 of 8 rows], columns down. */
template <typename C>
static inline void tile_stage_weights(threadgroup float *w, const thread int *c, uint plane, uint lane)
{
    const uint r = lane % OWN_ROWS, part = lane / OWN_ROWS;
    METAL_UNROLL
    for (uint i = 0; i < 16; i++) {
        const uint k = 16 * part + i;
        w[(k / 8 * 2 + r / 8) * PIECE + k % 8 * 8 + r % 8] = C::integer(c[i], plane);
    }
}

/* The products of k pieces [first, last) into sums: pieces [TA][2]. */
template <uint TA>
static inline void tile_multiply(threadgroup float *sums, const threadgroup float *codes, const threadgroup float *w,
                                 uint first, uint last)
{
    metal::simdgroup_float8x8 sum[TA][2];
    METAL_UNROLL
    for (uint t = 0; t < TA; t++) {
        sum[t][0] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        sum[t][1] = metal::make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    for (uint k = first; k < last; k++) {
        metal::simdgroup_float8x8 left, right[2];
        metal::simdgroup_load(right[0], w + 2 * k * PIECE, 8);
        metal::simdgroup_load(right[1], w + (2 * k + 1) * PIECE, 8);
        METAL_UNROLL
        for (uint t = 0; t < TA; t++) {
            metal::simdgroup_load(left, codes + (t * K_PIECES + k) * PIECE, 8);
            metal::simdgroup_multiply_accumulate(sum[t][0], left, right[0], sum[t][0]);
            metal::simdgroup_multiply_accumulate(sum[t][1], left, right[1], sum[t][1]);
        }
    }
    METAL_UNROLL
    for (uint t = 0; t < TA; t++) {
        metal::simdgroup_store(sum[t][0], sums + 2 * t * PIECE, 8);
        metal::simdgroup_store(sum[t][1], sums + (2 * t + 1) * PIECE, 8);
    }
}

/* Threadgroup memory, in floats; ISO_METAL_MATMUL_TILE_BYTES is its size. */
template <uint TA> struct tile_shared {
    threadgroup float *codes; /* pieces [TA][K_PIECES] */
    threadgroup float *w;     /* this simdgroup's */
    threadgroup float *sums;  /* this simdgroup's */
    threadgroup int *code_sums;
    tile_shared(threadgroup float *p, uint simd)
        : codes(p), w(p + TA * K_PIECES * PIECE + simd * OWN_ROWS * 32),
          sums(p + (TA * K_PIECES + 8 * SIMDGROUPS) * PIECE + simd * 2 * TA * PIECE),
          code_sums((threadgroup int *)(p + (TA * K_PIECES + (8 + 2 * TA) * SIMDGROUPS) * PIECE))
    {
    }
};

/* One group of columns: stages, multiplies, and hands each sum to the chain of its output. */
template <typename W, uint TA, typename CHAIN>
static inline void tile_group(thread CHAIN &chain, thread const tile_shared<TA> &shared, constant iso_metal_matmul &a,
                              const device short *code, const device int *sum32, const device uchar *row, tile_place at,
                              uint g)
{
    typedef tile_columns<W, typename W::FORM> columns;
    const uint r = at.lane % OWN_ROWS, part = at.lane / OWN_ROWS;
    int c[16];
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup); /* the last group is done with the codes */
    tile_stage_codes<TA>(shared.codes, shared.code_sums, a, code, sum32, at, g);
    const float d = columns::load(c, row, g, part);
    tile_stage_weights<columns>(shared.w, c, 0, at.lane);
    chain.group(row, g, d);
    metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    METAL_UNROLL
    for (uint s = 0; s < W::SUMS; s++) {
        const uint parts = (uint)W::SUMS / (uint)columns::PLANES; /* sums of fewer columns, or of another plane */
        if (columns::PLANES == 2 && s == 1) {
            tile_stage_weights<columns>(shared.w, c, 1, at.lane);
            metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
        }
        const uint first = parts == 2 ? s * (K_PIECES / 2) : 0;
        tile_multiply<TA>(shared.sums, shared.codes, shared.w, first, first + K_PIECES / parts);
        metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
        METAL_UNROLL
        for (uint i = 0; i < 4 * TA; i++) {
            const uint t = part + 2 * i;
            const float sum = shared.sums[(t / 8 * 2 + r / 8) * PIECE + t % 8 * 8 + r % 8];
            chain.add(s, i, sum, shared.code_sums[t]);
        }
        metal::simdgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
}

template <typename W, uint TA>
static inline void matmul_tile(constant iso_metal_matmul &a, const device short *code, const device float *scale,
                               const device int *sum32, const device uchar *weights, const device float *bias,
                               device float *y, threadgroup float *memory, tile_place at)
{
    const uint n_groups = a.n_cols / 32, n_blocks = a.stride / 256;
    const uint own = at.group * ISO_METAL_MATMUL_TILE_ROWS + at.simd * OWN_ROWS + at.lane % OWN_ROWS;
    const uint first_act = at.tile * TA * 8 + at.lane / OWN_ROWS;
    /* A row that the matrix does not have is read as its last one and not stored. */
    const device uchar *row = weights + (ulong)metal::min(own, a.n_rows - 1) * a.row_bytes;
    const tile_shared<TA> shared(memory, at.simd);
    tile_chain<W, 4 * TA, typename W::FORM> chain;
    float out[4 * TA];
    METAL_UNROLL
    for (uint i = 0; i < 4 * TA; i++) out[i] = 0.0f;
    for (uint block = 0; block < n_blocks; block++) {
        chain.begin();
        const uint end = metal::min(8 * block + 8, n_groups);
        for (uint g = 8 * block; g < end; g++) tile_group<W, TA>(chain, shared, a, code, sum32, row, at, g);
        METAL_UNROLL
        for (uint i = 0; i < 4 * TA; i++) {
            const uint t = metal::min(first_act + 2 * i, a.n_act - 1);
            out[i] = metal::fma(scale[t * n_blocks + block], chain.value(i, row, block), out[i]);
        }
    }
    METAL_UNROLL
    for (uint i = 0; i < 4 * TA; i++) {
        const uint t = first_act + 2 * i;
        if (t < a.n_act && own < a.n_rows) y[(ulong)t * a.n_rows + own] = finish_y(out[i], a, bias, own);
    }
}

#define KERNEL_OF(NAME, T, TA)                                                                                       \
    kernel void NAME##T(constant iso_metal_matmul &a [[buffer(0)]], const device short *code [[buffer(1)]],          \
                        const device float *scale [[buffer(2)]], const device int *sum32 [[buffer(3)]],              \
                        const device uchar *weights [[buffer(4)]], const device float *bias [[buffer(5)]],           \
                        device float *y [[buffer(6)]], threadgroup float *shared [[threadgroup(0)]],                 \
                        uint3 group [[threadgroup_position_in_grid]], uint simd [[simdgroup_index_in_threadgroup]],  \
                        uint lane [[thread_index_in_simdgroup]])                                                     \
    {                                                                                                                \
        const tile_place at = {group.x, group.y, simd, lane};                                                        \
        matmul_tile<weight_##T, TA>(a, code, scale, sum32, weights, bias, y, shared, at);                            \
    }
#define KERNEL_8(T) KERNEL_OF(iso_matmul_tile8_, T, 1)
#define KERNEL_32(T) KERNEL_OF(iso_matmul_tile32_, T, 4)
METAL_WEIGHT_TYPES(KERNEL_8)
METAL_WEIGHT_TYPES(KERNEL_32)
#undef KERNEL_8
#undef KERNEL_32
#undef KERNEL_OF
#undef OWN_ROWS
#undef SIMDGROUPS
#undef PIECE
#undef K_PIECES
