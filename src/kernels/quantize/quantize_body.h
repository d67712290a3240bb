/* SPDX-License-Identifier: MIT
 * quantize_body.h - the text of the operations that make codes, compiled once per instruction set.
 *
 * Plain C in fixed loops of 256 and 32, which gcc and clang turn into whole vectors. Every lane
 * does the same fixed sequence of operations and the sums are of integers, so lanes change no bit.
 * Source: the specification of exact-1, sections 3, 6 and 11.
 */
#include <string.h>

#include "arith/prim.h"
#include "kernels/quantize/quantize.h"
#include "kernels/shared/codes.h"
#include "kernels/shared/rms.h"

#define N_SUMS (ISO_CODE_BLOCK / ISO_CODE_SUM)

/* Largest magnitude of one block as bits: integers have no order that a NaN could upset. */
static inline uint32_t block_max(const float *restrict x)
{
    uint32_t m = 0;
    for (size_t i = 0; i < ISO_CODE_BLOCK; i++) {
        const uint32_t b = iso_abs_bits(x[i]);
        m = b > m ? b : m;
    }
    return m;
}

/* The codes of one block and their sums. inv 0 gives zeros for any finite x. */
static inline void
block_codes(int16_t *restrict code, int32_t *restrict sum32, const float *restrict x, float inv)
{
    for (size_t j = 0; j < N_SUMS; j++) {
        int32_t sum = 0;
        for (size_t i = 0; i < ISO_CODE_SUM; i++) {
            const int32_t r = iso_round_i32(x[j * ISO_CODE_SUM + i] * inv);
            const int32_t top = r > ISO_CODE_MAX ? ISO_CODE_MAX : r;
            const int32_t q = top < -ISO_CODE_MAX ? -ISO_CODE_MAX : top;
            code[j * ISO_CODE_SUM + i] = (int16_t)q;
            sum += q;
        }
        sum32[j] = sum;
    }
}

/* Block b of a row from 256 values; a short last block is padded with zeros. A block outside the
 * domain gets zeros too, so that what an error leaves behind is the same everywhere. */
static inline uint32_t
block_quantize(const struct iso_code_row *out, size_t b, const float *restrict x)
{
    int16_t *code = out->code + b * ISO_CODE_BLOCK;
    int32_t *sum32 = out->sum32 + b * N_SUMS;
    const uint32_t m = block_max(x);
    if (m < ISO_BITS_2M28 || m >= ISO_BITS_2P100) {
        out->scale[b] = 0.0f;
        memset(code, 0, ISO_CODE_BLOCK * sizeof(*code));
        memset(sum32, 0, N_SUMS * sizeof(*sum32));
        return m;
    }
    const float top = ISO_AS_F32(m);
    const float inv = iso_rcp(top) * 2047.0f;
    out->scale[b] = top * (1.0f / 2047.0f);
    block_codes(code, sum32, x, inv);
    return m;
}

static inline uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Blocks in ascending order: MAKE(v, at, len) fills v [len] from element at; constant 256 for whole
 * blocks, so that its loop has a known length. Defines the running maximum m. */
#define FOR_BLOCKS(out, tap, n, MAKE)                                                              \
    uint32_t m = 0;                                                                                \
    size_t at = 0;                                                                                 \
    float v[ISO_CODE_BLOCK] __attribute__((aligned(64)));                                          \
    for (; at + ISO_CODE_BLOCK <= (n); at += ISO_CODE_BLOCK) {                                     \
        MAKE(v, at, ISO_CODE_BLOCK);                                                               \
        if (tap) memcpy((tap) + at, v, sizeof(v));                                                 \
        m = larger(m, block_quantize((out), at / ISO_CODE_BLOCK, v));                              \
    }                                                                                              \
    if (at < (n)) {                                                                                \
        memset(v, 0, sizeof(v));                                                                   \
        MAKE(v, at, (n)-at);                                                                       \
        if (tap) memcpy((tap) + at, v, ((n)-at) * sizeof(*v));                                     \
        m = larger(m, block_quantize((out), at / ISO_CODE_BLOCK, v));                              \
    }

static uint32_t quantize(const struct iso_code_row *out, const float *restrict x, size_t n)
{
    uint32_t m = 0;
    size_t at = 0;
    for (; at + ISO_CODE_BLOCK <= n; at += ISO_CODE_BLOCK) {
        m = larger(m, block_quantize(out, at / ISO_CODE_BLOCK, x + at));
    }
    if (at < n) {
        float v[ISO_CODE_BLOCK] __attribute__((aligned(64))) = {0.0f};
        memcpy(v, x + at, (n - at) * sizeof(*v));
        m = larger(m, block_quantize(out, at / ISO_CODE_BLOCK, v));
    }
    return m;
}

/* One loop per formula; `len` is the constant 256 or the rest of a row. */
#define MAKE_NORM(v, at, len)                                                                      \
    for (size_t i = 0; i < (len); i++) (v)[i] = iso_guard((x[(at) + i] * r) * w[(at) + i])
#define MAKE_NORM_PLAIN(v, at, len)                                                                \
    for (size_t i = 0; i < (len); i++) (v)[i] = iso_guard(x[(at) + i] * r)
#define MAKE_GATE(v, at, len)                                                                      \
    for (size_t i = 0; i < (len); i++) (v)[i] = iso_guard(o[(at) + i] * iso_sigmoid(gate[(at) + i]))
#define MAKE_SWIGLU(v, at, len)                                                                    \
    for (size_t i = 0; i < (len); i++) (v)[i] = iso_swiglu(z[(at) + i], up[(at) + i])
#define MAKE_GEGLU(v, at, len)                                                                     \
    for (size_t i = 0; i < (len); i++) (v)[i] = iso_geglu(z[(at) + i], up[(at) + i])

static uint32_t norm_quantize_weighted(const struct iso_code_row *out,
                                       float *restrict tap,
                                       const float *restrict x,
                                       const float *restrict w,
                                       float r,
                                       size_t n)
{
    FOR_BLOCKS(out, tap, n, MAKE_NORM)
    return m;
}

static uint32_t norm_quantize_plain(
    const struct iso_code_row *out, float *restrict tap, const float *restrict x, float r, size_t n)
{
    FOR_BLOCKS(out, tap, n, MAKE_NORM_PLAIN)
    return m;
}

static uint32_t norm_quantize(const struct iso_code_row *out,
                              float *restrict tap,
                              const float *restrict x,
                              const float *restrict w,
                              float eps,
                              float inv_n,
                              size_t n)
{
    const float r = rms_factor(x, eps, inv_n, n);
    if (w) return norm_quantize_weighted(out, tap, x, w, r, n);
    return norm_quantize_plain(out, tap, x, r, n);
}

static uint32_t gate_quantize(const struct iso_code_row *out,
                              float *restrict tap,
                              const float *restrict o,
                              const float *restrict gate,
                              size_t n)
{
    FOR_BLOCKS(out, tap, n, MAKE_GATE)
    return m;
}

static uint32_t swiglu_quantize(const struct iso_code_row *out,
                                float *restrict tap,
                                const float *restrict z,
                                const float *restrict up,
                                size_t n)
{
    FOR_BLOCKS(out, tap, n, MAKE_SWIGLU)
    return m;
}

static uint32_t geglu_quantize(const struct iso_code_row *out,
                               float *restrict tap,
                               const float *restrict z,
                               const float *restrict up,
                               size_t n)
{
    FOR_BLOCKS(out, tap, n, MAKE_GEGLU)
    return m;
}

static uint32_t glu_quantize(const struct iso_code_row *out,
                             float *restrict tap,
                             const float *restrict z,
                             const float *restrict up,
                             enum iso_glu kind,
                             size_t n)
{
    if (kind == ISO_GLU_GEGLU) return geglu_quantize(out, tap, z, up, n);
    return swiglu_quantize(out, tap, z, up, n);
}
