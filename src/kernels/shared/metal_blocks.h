/* SPDX-License-Identifier: MIT
 * metal_blocks.h - weights of every type in file layout as small integers, sixteen columns at a time.
 *
 * For Metal kernels. weight_<TYPE> describes a type; a row is named by a pointer to its first byte in the
 * file, g counts groups of 32 columns from the row's start, part is 0 or 1 in a group, b counts blocks of 256.
 *   FORM        how the float chain runs: section 5 of the specification of exact-1
 *   SUMS        exact sums that a group needs, see "Exactness"
 *   MIN         whether the type has mins
 *   columns()   the integers of sixteen columns
 * Other members belong to the form, see there. Rows are only as aligned as their type: blocks of 18, 22, 34
 * and 210 bytes are read by 16-bit words, those of 17 by bytes, the others by 32-bit words (the file's
 * alignment is at least 8).
 *
 * Exactness. Kernels multiply these integers with codes as floats and add them in any order: with |code| <= 2047
 * the magnitudes of all products of one sum add to less than 2^24, so every partial sum is an integer that f32
 * holds. SUM_OK below proves it for each type; a type whose integers are too wide for a whole group has two sums.
 * Sources: section 4 of the specification; OCP Microscaling Formats 1.0; layouts: format/types.h.
 */
#ifndef ISO_KERNELS_SHARED_METAL_BLOCKS_H
#define ISO_KERNELS_SHARED_METAL_BLOCKS_H

#include "arith/prim.h"

#if defined(__clang__)
#define METAL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define METAL_UNROLL
#endif

#define METAL_CODE_MAX 2047
/* n products of integers up to w and codes: every sum of some of them is exact in f32. */
#define SUM_OK(n, w) static_assert((n) * (w) * METAL_CODE_MAX < (1 << 24), "a sum must be exact in f32")

/* Forms. Block: d(), m() of a group. */
struct form_block {};
/* Superblock: sub(s) of a group for sum s, mi() of a group, d(), dmin() of a block. Eight lanes can share a block
 * without reading a byte twice: lane t takes four runs of eight columns, run i from column run(t, i) on; lane()
 * gives their integers [32] and the sub-scale [4] of each run. */
struct form_super {};
/* NVFP4: sub(s) is the scale of sixteen columns in units of 2^-9. */
struct form_nvfp4 {};
/* Float: values() in place of columns(); block_float_codes() makes integers of 16 bits of them. */
struct form_float {};

static inline uint block_byte_at(const device uchar *p)
{
    return p[0];
}

static inline uint block_half_at(const device uchar *p)
{
    return *(const device ushort *)p;
}

static inline uint block_word_at(const device uchar *p)
{
    return *(const device uint *)p;
}

static inline float block_f16_at(const device uchar *p)
{
    return iso_f16(*(const device ushort *)p);
}

/* --- loads of sixteen bytes by the widest word that the layout allows ------------------------------------ */

struct block_bytes16 {
    uint w[4];
};

static inline block_bytes16 block_load_words(const device uchar *p)
{
    const device uint *q = (const device uint *)p;
    return block_bytes16{{q[0], q[1], q[2], q[3]}};
}

static inline block_bytes16 block_load_halves(const device uchar *p)
{
    const device ushort *q = (const device ushort *)p;
    block_bytes16 x;
    METAL_UNROLL
    for (uint i = 0; i < 4; i++) x.w[i] = (uint)q[2 * i] | (uint)q[2 * i + 1] << 16;
    return x;
}

static inline block_bytes16 block_load_bytes(const device uchar *p)
{
    block_bytes16 x;
    METAL_UNROLL
    for (uint i = 0; i < 4; i++) {
        x.w[i] = (uint)p[4 * i] | (uint)p[4 * i + 1] << 8 | (uint)p[4 * i + 2] << 16 | (uint)p[4 * i + 3] << 24;
    }
    return x;
}

/* Nibbles of sixteen bytes, the low ones (part 0) or the high ones, minus offset. */
static inline void block_nibbles(thread int *c, block_bytes16 x, uint part, int offset)
{
    METAL_UNROLL
    for (uint i = 0; i < 16; i++) c[i] = (int)(x.w[i / 4] >> (8 * (i % 4) + 4 * part) & 15u) - offset;
}

/* The same with a fifth bit each: bit i of high. */
static inline void block_nibbles5(thread int *c, block_bytes16 x, uint part, uint high, int offset)
{
    block_nibbles(c, x, part, offset);
    METAL_UNROLL
    for (uint i = 0; i < 16; i++) c[i] += (int)((high >> i & 1u) << 4);
}

/* Twice the value of an E2M1 nibble. */
static inline int block_e2m1_twice(uint nibble)
{
    const uint e = nibble >> 1 & 3u, man = nibble & 1u;
    const int magnitude = e != 0 ? (int)((2u + man) << (e - 1u)) : (int)man;
    return (nibble & 8u) != 0 ? -magnitude : magnitude;
}

/* IQ4_NL: the levels of its grid, four bytes a word, lowest first. */
static inline int block_iq4nl_level(uint nibble)
{
    const uint low = (nibble & 4u) != 0 ? 0xf6eaddcfu : 0xbfad9881u;
    const uint high = (nibble & 4u) != 0 ? 0x71594535u : 0x26190d01u;
    const uint word = (nibble & 8u) != 0 ? high : low;
    return (int)(word << (24u - 8u * (nibble & 3u))) >> 24;
}

/* --- Block types ----------------------------------------------------------------------------------------- */

struct weight_Q4_0 {
    typedef form_block FORM;
    enum { SUMS = 1, MIN = 0, BYTES = 18 };
    SUM_OK(32, 8);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        block_nibbles(c, block_load_halves(row + g * BYTES + 2), part, 8);
    }
    static float d(const device uchar *row, uint g) { return block_f16_at(row + g * BYTES); }
    static float m(const device uchar *, uint) { return 0.0f; }
};

struct weight_Q4_1 {
    typedef form_block FORM;
    enum { SUMS = 1, MIN = 1, BYTES = 20 };
    SUM_OK(32, 15);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        block_nibbles(c, block_load_words(row + g * BYTES + 4), part, 0);
    }
    static float d(const device uchar *row, uint g) { return block_f16_at(row + g * BYTES); }
    static float m(const device uchar *row, uint g) { return block_f16_at(row + g * BYTES + 2); }
};

struct weight_Q5_0 {
    typedef form_block FORM;
    enum { SUMS = 1, MIN = 0, BYTES = 22 };
    SUM_OK(32, 16);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        const device uchar *b = row + g * BYTES;
        block_nibbles5(c, block_load_halves(b + 6), part, block_half_at(b + 2 + 2 * part), 16);
    }
    static float d(const device uchar *row, uint g) { return block_f16_at(row + g * BYTES); }
    static float m(const device uchar *, uint) { return 0.0f; }
};

struct weight_Q5_1 {
    typedef form_block FORM;
    enum { SUMS = 1, MIN = 1, BYTES = 24 };
    SUM_OK(32, 31);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        const device uchar *b = row + g * BYTES;
        block_nibbles5(c, block_load_words(b + 8), part, block_half_at(b + 4 + 2 * part), 0);
    }
    static float d(const device uchar *row, uint g) { return block_f16_at(row + g * BYTES); }
    static float m(const device uchar *row, uint g) { return block_f16_at(row + g * BYTES + 2); }
};

struct weight_Q8_0 {
    typedef form_block FORM;
    enum { SUMS = 1, MIN = 0, BYTES = 34 };
    SUM_OK(32, 128);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        const block_bytes16 x = block_load_halves(row + g * BYTES + 2 + 16 * part);
        METAL_UNROLL
        for (uint i = 0; i < 16; i++) c[i] = (int)(x.w[i / 4] << (24 - 8 * (i % 4))) >> 24;
    }
    static float d(const device uchar *row, uint g) { return block_f16_at(row + g * BYTES); }
    static float m(const device uchar *, uint) { return 0.0f; }
};

struct weight_IQ4_NL {
    typedef form_block FORM;
    enum { SUMS = 1, MIN = 0, BYTES = 18 };
    SUM_OK(32, 127);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        block_nibbles(c, block_load_halves(row + g * BYTES + 2), part, 0);
        METAL_UNROLL
        for (uint i = 0; i < 16; i++) c[i] = block_iq4nl_level((uint)c[i]);
    }
    static float d(const device uchar *row, uint g) { return block_f16_at(row + g * BYTES); }
    static float m(const device uchar *, uint) { return 0.0f; }
};

struct weight_MXFP4 {
    typedef form_block FORM;
    enum { SUMS = 1, MIN = 0, BYTES = 17 };
    SUM_OK(32, 12);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        block_nibbles(c, block_load_bytes(row + g * BYTES + 1), part, 0);
        METAL_UNROLL
        for (uint i = 0; i < 16; i++) c[i] = block_e2m1_twice((uint)c[i]);
    }
    static float d(const device uchar *row, uint g) /* 2^(e-128) */
    {
        const uint e = block_byte_at(row + g * BYTES);
        return e < 64u ? 0.0f : ISO_AS_F32((e - 1u) << 23);
    }
    static float m(const device uchar *, uint) { return 0.0f; }
};

/* --- Superblock types ------------------------------------------------------------------------------------ */

/* Q4_K and Q5_K begin alike: d dmin, then 6-bit scales and mins of eight groups in 12 bytes s. */
static inline int block_scale6(const device uchar *s, uint j)
{
    return (int)(j < 4u ? s[j] & 63u : (s[j + 4u] & 15u) | (uint)(s[j - 4u] >> 6) << 4);
}

static inline int block_min6(const device uchar *s, uint j)
{
    return (int)(j < 4u ? s[j + 4u] & 63u : (uint)(s[j + 4u] >> 4) | (uint)(s[j] >> 6) << 4);
}

/* Lane t has sixteen bytes of nibbles: low ones are columns of group t / 2 * 2, high ones of the next group. */
static inline uint block_run_k(uint t, uint i)
{
    return t / 2 * 64 + i / 2 * 32 + t % 2 * 16 + i % 2 * 8;
}

static inline void block_subs_k(thread int *sub, const device uchar *b, uint t)
{
    sub[0] = sub[1] = block_scale6(b + 4, t / 2 * 2);
    sub[2] = sub[3] = block_scale6(b + 4, t / 2 * 2 + 1);
}

struct weight_Q4_K {
    typedef form_super FORM;
    enum { SUMS = 1, MIN = 1, BYTES = 144 };
    SUM_OK(32, 15);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        const device uchar *b = row + g / 8 * BYTES;
        block_nibbles(c, block_load_words(b + 16 + 32 * (g % 8 / 2) + 16 * part), g % 2, 0);
    }
    static uint run(uint t, uint i) { return block_run_k(t, i); }
    static void lane(thread int *c, thread int *sub, const device uchar *b, uint t)
    {
        const block_bytes16 x = block_load_words(b + 16 + 16 * t);
        block_nibbles(c, x, 0, 0);
        block_nibbles(c + 16, x, 1, 0);
        block_subs_k(sub, b, t);
    }
    static int sub(const device uchar *row, uint g, uint) { return block_scale6(row + g / 8 * BYTES + 4, g % 8); }
    static int mi(const device uchar *row, uint g) { return block_min6(row + g / 8 * BYTES + 4, g % 8); }
    static float d(const device uchar *row, uint b) { return block_f16_at(row + b * BYTES); }
    static float dmin(const device uchar *row, uint b) { return block_f16_at(row + b * BYTES + 2); }
};

struct weight_Q5_K {
    typedef form_super FORM;
    enum { SUMS = 1, MIN = 1, BYTES = 176 };
    SUM_OK(32, 31);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        const device uchar *b = row + g / 8 * BYTES;
        const block_bytes16 high = block_load_words(b + 16 + 16 * part);
        block_nibbles(c, block_load_words(b + 48 + 32 * (g % 8 / 2) + 16 * part), g % 2, 0);
        METAL_UNROLL
        for (uint i = 0; i < 16; i++) c[i] += (int)((high.w[i / 4] >> (8 * (i % 4) + g % 8) & 1u) << 4);
    }
    static uint run(uint t, uint i) { return block_run_k(t, i); }
    static void lane(thread int *c, thread int *sub, const device uchar *b, uint t)
    {
        const block_bytes16 x = block_load_words(b + 48 + 16 * t), high = block_load_words(b + 16 + t % 2 * 16);
        block_nibbles(c, x, 0, 0);
        block_nibbles(c + 16, x, 1, 0);
        METAL_UNROLL
        for (uint i = 0; i < 16; i++) {
            const uint bits = high.w[i / 4] >> (8 * (i % 4) + t / 2 * 2);
            c[i] += (int)((bits & 1u) << 4);
            c[16 + i] += (int)((bits >> 1 & 1u) << 4);
        }
        block_subs_k(sub, b, t);
    }
    static int sub(const device uchar *row, uint g, uint) { return block_scale6(row + g / 8 * BYTES + 4, g % 8); }
    static int mi(const device uchar *row, uint g) { return block_min6(row + g / 8 * BYTES + 4, g % 8); }
    static float d(const device uchar *row, uint b) { return block_f16_at(row + b * BYTES); }
    static float dmin(const device uchar *row, uint b) { return block_f16_at(row + b * BYTES + 2); }
};

/* ql[128] qh[64] scales[16] d; two halves of 128 values, each four groups that share bytes. */
struct weight_Q6_K {
    typedef form_super FORM;
    enum { SUMS = 2, MIN = 0, BYTES = 210 };
    SUM_OK(16, 32);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        const device uchar *b = row + g / 8 * BYTES;
        const uint upper = g % 8 / 4, j = g % 4;
        const block_bytes16 high = block_load_halves(b + 128 + 32 * upper + 16 * part);
        block_nibbles(c, block_load_halves(b + 64 * upper + 32 * (j % 2) + 16 * part), j / 2, 32);
        METAL_UNROLL
        for (uint i = 0; i < 16; i++) c[i] += (int)((high.w[i / 4] >> (8 * (i % 4) + 2 * j) & 3u) << 4);
    }
    static uint run(uint t, uint i) { return t / 4 * 128 + i * 32 + t % 4 * 8; }
    static void lane(thread int *c, thread int *sub, const device uchar *b, uint t)
    {
        const device uchar *ql = b + t / 4 * 64 + t % 4 * 8, *qh = b + 128 + t / 4 * 32 + t % 4 * 8;
        const device uchar *sc = b + 192 + t / 4 * 8 + t % 4 / 2;
        METAL_UNROLL
        for (uint i = 0; i < 4; i++) { /* run i: its low bits are a nibble of ql + i % 2 * 32 */
            METAL_UNROLL
            for (uint k = 0; k < 8; k += 2) {
                const uint low = block_half_at(ql + i % 2 * 32 + k) >> (i / 2 * 4);
                const uint high = block_half_at(qh + k) >> (i * 2);
                c[8 * i + k] = (int)((low & 15u) | (high & 3u) << 4) - 32;
                c[8 * i + k + 1] = (int)((low >> 8 & 15u) | (high >> 8 & 3u) << 4) - 32;
            }
            sub[i] = (int)(block_byte_at(sc + 2 * i) << 24) >> 24;
        }
    }
    static int sub(const device uchar *row, uint g, uint s)
    {
        return (int)(block_byte_at(row + g / 8 * BYTES + 192 + g % 8 * 2 + s) << 24) >> 24;
    }
    static int mi(const device uchar *, uint) { return 0; }
    static float d(const device uchar *row, uint b) { return block_f16_at(row + b * BYTES + 208); }
    static float dmin(const device uchar *, uint) { return 0.0f; }
};

/* --- NVFP4 ----------------------------------------------------------------------------------------------- */

/* Blocks of 64: four scale bytes, then 8 bytes a sixteen: low nibbles are its columns 0-7. */
struct weight_NVFP4 {
    typedef form_nvfp4 FORM;
    enum { SUMS = 2, MIN = 0, BYTES = 36 };
    SUM_OK(16, 12);
    static void columns(thread int *c, const device uchar *row, uint g, uint part)
    {
        const device uchar *q = row + g / 2 * BYTES + 4 + 8 * (g % 2 * 2 + part);
        const uint w[2] = {block_word_at(q), block_word_at(q + 4)};
        METAL_UNROLL
        for (uint i = 0; i < 16; i++) c[i] = block_e2m1_twice(w[i % 8 / 4] >> (8 * (i % 4) + 4 * (i / 8)) & 15u);
    }
    /* UE4M3 in units of 2^-9, below 2^18; bit 7 is ignored, 0x7f is 0. */
    static int sub(const device uchar *row, uint g, uint s)
    {
        const uint byte = block_byte_at(row + g / 2 * BYTES + g % 2 * 2 + s) & 0x7fu;
        const uint e = byte >> 3, man = byte & 7u;
        if (byte == 0x7fu) return 0;
        return (int)(e != 0 ? (8u + man) << (e - 1u) : man);
    }
};

/* --- Float types ----------------------------------------------------------------------------------------- */

/* Codes of 16 bits go in two planes, c = 256 * (c >> 8) + (c & 255). */
SUM_OK(32, 128);
SUM_OK(32, 255);

struct weight_F32 {
    typedef form_float FORM;
    enum { SUMS = 2, MIN = 0 };
    static void values(thread float *v, const device uchar *row, uint g, uint part)
    {
        const device float *p = (const device float *)row + 32 * g + 16 * part;
        METAL_UNROLL
        for (uint i = 0; i < 16; i++) v[i] = p[i];
    }
};

struct weight_F16 {
    typedef form_float FORM;
    enum { SUMS = 2, MIN = 0 };
    static void values(thread float *v, const device uchar *row, uint g, uint part)
    {
        const device uint *p = (const device uint *)row + 16 * g + 8 * part;
        METAL_UNROLL
        for (uint i = 0; i < 8; i++) {
            const uint w = p[i];
            v[2 * i] = iso_f16((ushort)(w & 0xffffu));
            v[2 * i + 1] = iso_f16((ushort)(w >> 16));
        }
    }
};

struct weight_BF16 {
    typedef form_float FORM;
    enum { SUMS = 2, MIN = 0 };
    static void values(thread float *v, const device uchar *row, uint g, uint part)
    {
        const device uint *p = (const device uint *)row + 16 * g + 8 * part;
        METAL_UNROLL
        for (uint i = 0; i < 8; i++) {
            const uint w = p[i];
            v[2 * i] = ISO_AS_F32(w << 16);
            v[2 * i + 1] = ISO_AS_F32(w & 0xffff0000u);
        }
    }
};

/* Largest magnitude of sixteen values, as bits. */
static inline uint block_float_top(const thread float *v)
{
    uint top = 0;
    METAL_UNROLL
    for (uint i = 0; i < 16; i++) top = metal::max(top, iso_abs_bits(v[i]));
    return top;
}

/* Section 4, Float: codes of sixteen of 32 values whose largest magnitude is top; returns d. */
static inline float block_float_codes(thread int *c, const thread float *v, uint top)
{
    const bool none = top < ISO_BITS_2M26;
    const float a = ISO_AS_F32(none ? 0x3f800000u : top);
    const float r = iso_rcp(a);
    const float inv = none ? 0.0f : r * 32767.0f;
    METAL_UNROLL
    for (uint i = 0; i < 16; i++) {
        const float x = v[i] * inv;
        c[i] = metal::clamp(iso_round_i32(x), -32767, 32767);
    }
    return none ? 0.0f : a * (1.0f / 32767.0f);
}

/* For one kernel per type. */
#define METAL_WEIGHT_TYPES(X)                                                                              \
    X(F32) X(F16) X(BF16) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_NL) X(MXFP4) X(NVFP4)

#endif
