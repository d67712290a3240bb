/* SPDX-License-Identifier: MIT
 * cuda_cells.cuh - weights in GPU memory: cells of 32 rows x 256 columns, the file's bytes reordered.
 *
 * A warp works on a cell with one row per lane: every load is 32 lanes x 16 bytes side by side, a
 * lane walks its row in ascending columns and keeps the pinned f32 chain in a register. A cell has the
 * bytes of the file for its values, nothing is converted: per row first the codes of its blocks, then
 * high bits, then scales ("lane bytes"), cut into pieces of 16 that lie side by side for the 32 rows;
 * what is left over (2 bytes of Q6_K, 8 of MXFP4) follows in pieces of that size. Rows and columns that
 * the matrix does not have are zero bytes: scale 0, and their activations are zero.
 *
 *   cell (g, s) of rows 32g.., columns 256s..: data + (g * n_super + s) * 32 * lane_bytes
 *
 * Source: layouts of the file: ggml/src/ggml-common.h.
 */
#ifndef ISO_KERNELS_SHARED_CUDA_CELLS_CUH
#define ISO_KERNELS_SHARED_CUDA_CELLS_CUH

#include <stdint.h>

#include "arith/prim.h"
#include "format/types.h"

#define CELL_ROWS 32
#define CELL_COLS 256

/* Bytes of one row of a cell. */
static inline __host__ __device__ constexpr uint32_t cell_lane_bytes(int type)
{
    return type == ISO_TYPE_F32      ? 1024
           : type == ISO_TYPE_F16    ? 512
           : type == ISO_TYPE_BF16   ? 512
           : type == ISO_TYPE_Q4_0   ? 144
           : type == ISO_TYPE_Q4_1   ? 160
           : type == ISO_TYPE_Q5_0   ? 176
           : type == ISO_TYPE_Q5_1   ? 192
           : type == ISO_TYPE_Q8_0   ? 272
           : type == ISO_TYPE_Q4_K   ? 144
           : type == ISO_TYPE_Q5_K   ? 176
           : type == ISO_TYPE_Q6_K   ? 210
           : type == ISO_TYPE_IQ4_NL ? 144
           : type == ISO_TYPE_MXFP4  ? 136
                                     : 144; /* NVFP4 */
}

/* Byte i of a lane's bytes within the cell. */
static __host__ __device__ __forceinline__ uint32_t cell_byte(uint32_t lane_bytes, uint32_t lane,
                                                              uint32_t i)
{
    const uint32_t whole = lane_bytes / 16;
    if (i < whole * 16) return i / 16 * (16 * CELL_ROWS) + lane * 16 + i % 16;
    return whole * 16 * CELL_ROWS + lane * (lane_bytes % 16) + (i - whole * 16);
}

/* Fields of a file block that are gathered: codes, high bits, scales. */
struct cell_fields {
    uint32_t block_values, block_bytes;
    uint32_t at[3], len[3]; /* offset in the block and bytes; len 0: none */
};

static inline __host__ __device__ constexpr struct cell_fields cell_fields_of(int type)
{
    return type == ISO_TYPE_Q4_0 || type == ISO_TYPE_IQ4_NL
               ? cell_fields{32, 18, {2, 0, 0}, {16, 0, 2}}
           : type == ISO_TYPE_Q4_1  ? cell_fields{32, 20, {4, 0, 0}, {16, 0, 4}}
           : type == ISO_TYPE_Q5_0  ? cell_fields{32, 22, {6, 2, 0}, {16, 4, 2}}
           : type == ISO_TYPE_Q5_1  ? cell_fields{32, 24, {8, 4, 0}, {16, 4, 4}}
           : type == ISO_TYPE_Q8_0  ? cell_fields{32, 34, {2, 0, 0}, {32, 0, 2}}
           : type == ISO_TYPE_MXFP4 ? cell_fields{32, 17, {1, 0, 0}, {16, 0, 1}}
           : type == ISO_TYPE_NVFP4 ? cell_fields{64, 36, {4, 0, 0}, {32, 0, 4}}
           : type == ISO_TYPE_Q4_K  ? cell_fields{256, 144, {0, 0, 0}, {144, 0, 0}}
           : type == ISO_TYPE_Q5_K  ? cell_fields{256, 176, {0, 0, 0}, {176, 0, 0}}
           : type == ISO_TYPE_Q6_K  ? cell_fields{256, 210, {0, 0, 0}, {210, 0, 0}}
           : type == ISO_TYPE_F32   ? cell_fields{1, 4, {0, 0, 0}, {4, 0, 0}}
                                    : cell_fields{1, 2, {0, 0, 0}, {2, 0, 0}};
}

/* Where byte i of the lane bytes comes from: offset in the file's bytes of these 256 values. */
static __host__ __device__ __forceinline__ uint32_t cell_source(const struct cell_fields *f, uint32_t i)
{
    const uint32_t n_blocks = CELL_COLS / f->block_values;
    uint32_t k = 0;
    while (k < 2 && i >= n_blocks * f->len[k]) i -= n_blocks * f->len[k++];
    return i / f->len[k] * f->block_bytes + f->at[k] + i % f->len[k];
}

/* --- decoding on the device --------------------------------------------------------------------- */
#if defined(__CUDACC__)

/* Sixteen signed levels in four words, read by nibbles. */
struct level_table {
    uint32_t w[4];
};

static __device__ __forceinline__ struct level_table iq4nl_table(void)
{
    /* -127 -104 -83 -65 | -49 -35 -22 -10 | 1 13 25 38 | 53 69 89 113 */
    return {{0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u}};
}

static __device__ __forceinline__ struct level_table e2m1_table(void)
{
    /* 0 1 2 3 | 4 6 8 12 | 0 -1 -2 -3 | -4 -6 -8 -12 */
    return {{0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu}};
}

/* The levels of four nibbles of s (bits 0-15), one per byte. */
static __device__ __forceinline__ uint32_t four_levels(const struct level_table &t, uint32_t s)
{
    const uint32_t low3 = s & 0x7777u;
    const uint32_t a = __byte_perm(t.w[0], t.w[1], low3);
    const uint32_t b = __byte_perm(t.w[2], t.w[3], low3);
    return __byte_perm(a, b, 0x3210u | ((s >> 1) & 0x4444u));
}

/* Eight nibbles of q: low nibbles' levels in lo, high nibbles' in hi. */
static __device__ __forceinline__ void eight_levels(uint32_t &lo, uint32_t &hi,
                                                    const struct level_table &t, uint32_t q)
{
    const uint32_t v0 = four_levels(t, q), v1 = four_levels(t, q >> 16);
    lo = __byte_perm(v0, v1, 0x6420u);
    hi = __byte_perm(v0, v1, 0x7531u);
}

/* Bits 0-3 of b, one per byte, at bit 4. */
static __device__ __forceinline__ uint32_t spread_bits4(uint32_t b)
{
    return (((b & 15u) * 0x00204081u) & 0x01010101u) << 4;
}

static __device__ __forceinline__ int32_t ue4m3_units(uint32_t byte)
{
    const int32_t e = (int32_t)(byte >> 3 & 15), man = (int32_t)(byte & 7);
    if ((byte & 0x7f) == 0x7f) return 0;
    return e ? (8 + man) << (e - 1) : man;
}

static __device__ __forceinline__ float mxfp4_scale(uint32_t e)
{
    return e < 64 ? 0.0f : ISO_AS_F32((e - 1u) << 23); /* 2^(e-128) */
}

static __device__ __forceinline__ uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

static __device__ __forceinline__ uint16_t half_of(const uint4 &v, int i)
{
    return (uint16_t)(word_of(v, i / 2) >> (i % 2 * 16));
}

/* A piece of a lane. S: the cell lies in shared memory; else it is streamed: each byte is read once. */
template <bool S> static __device__ __forceinline__ uint4 load16(const uint8_t *cell, int lane, int piece)
{
    const uint4 *p = (const uint4 *)cell + piece * CELL_ROWS + lane;
    return S ? *p : __ldcs(p);
}

/* A lane's bytes of a cell in registers; words(w, j) gives the 32 codes of columns 32j.. as bytes.
 * OFFSET is what the codes of the file are too high by: code = byte - OFFSET. All indices are constants
 * after unrolling. */
template <int T> struct cell;

struct cell_nibbles { /* common part of the types with 16 bytes of nibbles per 32 */
    uint4 q[8];
    template <bool S = false> __device__ __forceinline__ void load_codes(const uint8_t *c, int lane)
    {
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = load16<S>(c, lane, i);
    }
    __device__ __forceinline__ void nibbles(uint32_t w[8], int j) const
    {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            w[k] = word_of(q[j], k) & 0x0f0f0f0fu;
            w[4 + k] = word_of(q[j], k) >> 4 & 0x0f0f0f0fu;
        }
    }
    __device__ __forceinline__ void levels(uint32_t w[8], int j, const struct level_table &t) const
    {
#pragma unroll
        for (int k = 0; k < 4; k++) eight_levels(w[k], w[4 + k], t, word_of(q[j], k));
    }
};

template <> struct cell<ISO_TYPE_Q4_0> : cell_nibbles {
    static constexpr int OFFSET = 8;
    static constexpr bool MIN = false;
    uint4 s;
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int lane)
    {
        load_codes<S>(c, lane);
        s = load16<S>(c, lane, 8);
    }
    __device__ __forceinline__ void words(uint32_t w[8], int j) const { nibbles(w, j); }
    __device__ __forceinline__ float d(int j) const { return iso_f16(half_of(s, j)); }
    __device__ __forceinline__ float m(int) const { return 0.0f; }
};

template <> struct cell<ISO_TYPE_IQ4_NL> : cell<ISO_TYPE_Q4_0> {
    static constexpr int OFFSET = 0;
    __device__ __forceinline__ void words(uint32_t w[8], int j) const { levels(w, j, iq4nl_table()); }
};

template <> struct cell<ISO_TYPE_Q4_1> : cell_nibbles {
    static constexpr int OFFSET = 0;
    static constexpr bool MIN = true;
    uint4 s[2];
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int lane)
    {
        load_codes<S>(c, lane);
        s[0] = load16<S>(c, lane, 8);
        s[1] = load16<S>(c, lane, 9);
    }
    __device__ __forceinline__ void words(uint32_t w[8], int j) const { nibbles(w, j); }
    __device__ __forceinline__ float d(int j) const { return iso_f16(half_of(s[j / 4], j % 4 * 2)); }
    __device__ __forceinline__ float m(int j) const { return iso_f16(half_of(s[j / 4], j % 4 * 2 + 1)); }
};

struct cell_fifth : cell_nibbles { /* and a word of fifth bits per 32 */
    uint4 h[2];
    template <bool S = false> __device__ __forceinline__ void load_fifth(const uint8_t *c, int lane)
    {
        load_codes<S>(c, lane);
        h[0] = load16<S>(c, lane, 8);
        h[1] = load16<S>(c, lane, 9);
    }
    __device__ __forceinline__ void words(uint32_t w[8], int j) const
    {
        const uint32_t b = word_of(h[j / 4], j % 4);
        nibbles(w, j);
#pragma unroll
        for (int k = 0; k < 8; k++) w[k] |= spread_bits4(b >> (4 * k));
    }
};

template <> struct cell<ISO_TYPE_Q5_0> : cell_fifth {
    static constexpr int OFFSET = 16;
    static constexpr bool MIN = false;
    uint4 s;
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int lane)
    {
        load_fifth<S>(c, lane);
        s = load16<S>(c, lane, 10);
    }
    __device__ __forceinline__ float d(int j) const { return iso_f16(half_of(s, j)); }
    __device__ __forceinline__ float m(int) const { return 0.0f; }
};

template <> struct cell<ISO_TYPE_Q5_1> : cell_fifth {
    static constexpr int OFFSET = 0;
    static constexpr bool MIN = true;
    uint4 s[2];
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int lane)
    {
        load_fifth<S>(c, lane);
        s[0] = load16<S>(c, lane, 10);
        s[1] = load16<S>(c, lane, 11);
    }
    __device__ __forceinline__ float d(int j) const { return iso_f16(half_of(s[j / 4], j % 4 * 2)); }
    __device__ __forceinline__ float m(int j) const { return iso_f16(half_of(s[j / 4], j % 4 * 2 + 1)); }
};

template <> struct cell<ISO_TYPE_Q8_0> {
    static constexpr int OFFSET = 0;
    static constexpr bool MIN = false;
    uint4 q[16], s;
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int lane)
    {
#pragma unroll
        for (int i = 0; i < 16; i++) q[i] = load16<S>(c, lane, i);
        s = load16<S>(c, lane, 16);
    }
    __device__ __forceinline__ void words(uint32_t w[8], int j) const
    {
#pragma unroll
        for (int k = 0; k < 8; k++) w[k] = word_of(q[2 * j + k / 4], k % 4);
    }
    __device__ __forceinline__ float d(int j) const { return iso_f16(half_of(s, j)); }
    __device__ __forceinline__ float m(int) const { return 0.0f; }
};

template <> struct cell<ISO_TYPE_MXFP4> : cell_nibbles {
    static constexpr int OFFSET = 0;
    static constexpr bool MIN = false;
    uint2 s;
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int lane)
    {
        load_codes<S>(c, lane);
        const uint2 *p = (const uint2 *)(c + 8 * 16 * CELL_ROWS) + lane;
        s = S ? *p : __ldcs(p);
    }
    __device__ __forceinline__ void words(uint32_t w[8], int j) const { levels(w, j, e2m1_table()); }
    __device__ __forceinline__ float d(int j) const
    {
        return mxfp4_scale((j < 4 ? s.x : s.y) >> (j % 4 * 8) & 255u);
    }
    __device__ __forceinline__ float m(int) const { return 0.0f; }
};

/* Q4_K and Q5_K: scale(j) and min(j) are the six-bit integers of columns 32j... */
struct cell_k {
    uint4 head; /* d dmin, 12 bytes of sub-scales and mins */
    __device__ __forceinline__ float d(void) const { return iso_f16(half_of(head, 0)); }
    __device__ __forceinline__ float dmin(void) const { return iso_f16(half_of(head, 1)); }
    __device__ __forceinline__ uint32_t scales(int half) const /* four bytes */
    {
        if (half == 0) return head.y & 0x3f3f3f3fu;
        return (head.w & 0x0f0f0f0fu) | (head.y >> 2 & 0x30303030u);
    }
    __device__ __forceinline__ uint32_t mins(int half) const
    {
        if (half == 0) return head.z & 0x3f3f3f3fu;
        return (head.w >> 4 & 0x0f0f0f0fu) | (head.z >> 2 & 0x30303030u);
    }
    __device__ __forceinline__ int32_t scale(int j) const
    {
        return (int32_t)(scales(j / 4) >> (j % 4 * 8) & 255u);
    }
    __device__ __forceinline__ int32_t min(int j) const
    {
        return (int32_t)(mins(j / 4) >> (j % 4 * 8) & 255u);
    }
};

template <> struct cell<ISO_TYPE_Q4_K> : cell_k {
    uint4 q[8];
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int lane)
    {
        head = load16<S>(c, lane, 0);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = load16<S>(c, lane, 1 + i);
    }
    __device__ __forceinline__ void words(uint32_t w[8], int j) const
    {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            w[k] = word_of(q[j / 2 * 2 + k / 4], k % 4) >> (j % 2 * 4) & 0x0f0f0f0fu;
        }
    }
};

template <> struct cell<ISO_TYPE_Q5_K> : cell_k {
    uint4 h[2], q[8];
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int lane)
    {
        head = load16<S>(c, lane, 0);
        h[0] = load16<S>(c, lane, 1);
        h[1] = load16<S>(c, lane, 2);
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = load16<S>(c, lane, 3 + i);
    }
    __device__ __forceinline__ void words(uint32_t w[8], int j) const
    {
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint32_t high = (word_of(h[k / 4], k % 4) >> j & 0x01010101u) << 4;
            w[k] = (word_of(q[j / 2 * 2 + k / 4], k % 4) >> (j % 2 * 4) & 0x0f0f0f0fu) | high;
        }
    }
};

/* Q6_K: words() gives 4 * (code - 32), which fits a signed byte: the six bits shifted up by two, top
 * bit flipped. scale(i) belongs to columns 16i... */
template <> struct cell<ISO_TYPE_Q6_K> {
    uint4 ql[8], qh[4], sc;
    uint16_t half;
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int lane)
    {
#pragma unroll
        for (int i = 0; i < 8; i++) ql[i] = load16<S>(c, lane, i);
#pragma unroll
        for (int i = 0; i < 4; i++) qh[i] = load16<S>(c, lane, 8 + i);
        sc = load16<S>(c, lane, 12);
        const uint16_t *p = (const uint16_t *)(c + 13 * 16 * CELL_ROWS) + lane;
        half = S ? *p : __ldcs(p);
    }
    __device__ __forceinline__ void words(uint32_t w[8], int j) const
    {
        const int h = j / 4, row = j % 4;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const uint32_t l = word_of(ql[4 * h + 2 * (row % 2) + k / 4], k % 4) >> (row / 2 * 4);
            const uint32_t u = word_of(qh[2 * h + k / 4], k % 4) >> (2 * row);
            w[k] = ((l & 0x0f0f0f0fu) << 2 | (u & 0x03030303u) << 6) ^ 0x80808080u;
        }
    }
    __device__ __forceinline__ float d(void) const { return iso_f16(half); }
    __device__ __forceinline__ int32_t scale(int i) const
    {
        return (int32_t)(int8_t)(word_of(sc, i / 4) >> (i % 4 * 8));
    }
};

/* NVFP4: words() gives 2 * e2m1 in column order; units(i) is the scale of columns 16i.. in 2^-9. */
template <> struct cell<ISO_TYPE_NVFP4> {
    uint4 q[8], s;
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int lane)
    {
#pragma unroll
        for (int i = 0; i < 8; i++) q[i] = load16<S>(c, lane, i);
        s = load16<S>(c, lane, 8);
    }
    __device__ __forceinline__ void words(uint32_t w[8], int j) const
    {
        const struct level_table t = e2m1_table();
#pragma unroll
        for (int k = 0; k < 2; k++) { /* a sixteen: 8 bytes, low nibbles first */
            eight_levels(w[4 * k], w[4 * k + 2], t, word_of(q[j], 2 * k));
            eight_levels(w[4 * k + 1], w[4 * k + 3], t, word_of(q[j], 2 * k + 1));
        }
    }
    __device__ __forceinline__ int32_t units(int i) const
    {
        return ue4m3_units(word_of(s, i / 4) >> (i % 4 * 8) & 255u);
    }
};

/* Float types are too wide for registers: values(v, j) loads 32 of them, so the cell must stay where it
 * is until the last one. */
template <int T> struct cell_float {
    const uint8_t *at;
    int lane;
    bool shared;
    template <bool S = false> __device__ __forceinline__ void load(const uint8_t *c, int l)
    {
        at = c;
        lane = l;
        shared = S;
    }
    __device__ __forceinline__ void values(float v[32], int j) const
    {
        constexpr int PIECES = T == ISO_TYPE_F32 ? 8 : 4;
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            const uint4 p = shared ? load16<true>(at, lane, j * PIECES + i) : load16<false>(at, lane, j * PIECES + i);
#pragma unroll
            for (int k = 0; k < 32 / PIECES; k++) {
                float &x = v[i * (32 / PIECES) + k];
                if (T == ISO_TYPE_F32) x = ISO_AS_F32(word_of(p, k % 4));
                else if (T == ISO_TYPE_F16) x = iso_f16(half_of(p, k));
                else x = iso_bf16(half_of(p, k));
            }
        }
    }
    /* Codes of 16 bits and their scale, section 4. */
    __device__ __forceinline__ float codes(int32_t c[32], int j) const
    {
        float v[32];
        values(v, j);
        uint32_t top = 0;
#pragma unroll
        for (int i = 0; i < 32; i++) top = max(top, iso_abs_bits(v[i]));
        const bool none = top < ISO_BITS_2M26;
        const float a = ISO_AS_F32(none ? 0x3f800000u : top);
        const float inv = none ? 0.0f : iso_rcp(a) * 32767.0f;
#pragma unroll
        for (int i = 0; i < 32; i++) c[i] = min(max(iso_round_i32(v[i] * inv), -32767), 32767);
        return none ? 0.0f : a * (1.0f / 32767.0f);
    }
};
template <> struct cell<ISO_TYPE_F32> : cell_float<ISO_TYPE_F32> {};
template <> struct cell<ISO_TYPE_F16> : cell_float<ISO_TYPE_F16> {};
template <> struct cell<ISO_TYPE_BF16> : cell_float<ISO_TYPE_BF16> {};

#endif /* __CUDACC__ */

#endif
