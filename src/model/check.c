/* SPDX-License-Identifier: MIT
 * check.c - proves that the numbers of a tensor lie in the domain of exact-1.
 *
 * Infinite or NaN never flows: every scale, min, float weight, norm weight and bias is finite and
 * below 2^100. An f16 is bad when its exponent is 31, an E8M0 scale above 227.
 * Source: the specification of exact-1, section 1.
 */
#include <stdbool.h>

#include "arith/prim.h"
#include "base/buf.h"
#include "model/model.h"

static bool bad_f16(const uint8_t *p)
{
    return (iso_get_u16(p) & 0x7c00u) == 0x7c00u;
}

static bool bad_bf16(const uint8_t *p)
{
    return ((uint32_t)(iso_get_u16(p) & 0x7fffu) << 16) >= ISO_BITS_2P100;
}

static bool bad_f32(const uint8_t *p)
{
    return (iso_get_u32(p) & ISO_ABS_MASK) >= ISO_BITS_2P100;
}

/* Where the f16 fields of a block are; 255 ends the list. */
static const uint8_t f16_at[ISO_TYPE_COUNT][2] = {
    [ISO_TYPE_F32] = {255, 255},   [ISO_TYPE_F16] = {0, 255},   [ISO_TYPE_BF16] = {255, 255},
    [ISO_TYPE_Q4_0] = {0, 255},    [ISO_TYPE_Q4_1] = {0, 2},    [ISO_TYPE_Q5_0] = {0, 255},
    [ISO_TYPE_Q5_1] = {0, 2},      [ISO_TYPE_Q8_0] = {0, 255},  [ISO_TYPE_IQ4_NL] = {0, 255},
    [ISO_TYPE_Q4_K] = {0, 2},      [ISO_TYPE_Q5_K] = {0, 2},    [ISO_TYPE_Q6_K] = {208, 255},
    [ISO_TYPE_MXFP4] = {255, 255}, [ISO_TYPE_NVFP4] = {255, 255},
};

static bool bad_block(enum iso_type t, const uint8_t *p)
{
    switch (t) {
    case ISO_TYPE_F32: return bad_f32(p);
    case ISO_TYPE_BF16: return bad_bf16(p);
    case ISO_TYPE_MXFP4: return p[0] > 227;
    case ISO_TYPE_NVFP4: return false; /* every byte is a finite scale */
    default: break;
    }
    const uint8_t *at = f16_at[t];
    return bad_f16(p + at[0]) || (at[1] != 255 && bad_f16(p + at[1]));
}

enum iso_err iso_tensor_check(const struct iso_gguf_tensor *t, size_t first_row, size_t last_row)
{
    const struct iso_type_info *info = iso_type_info(t->type);
    const size_t row_bytes = iso_type_row_bytes(t->type, (size_t)t->dims[0]);
    const size_t n_blocks = row_bytes / info->block_bytes;
    for (size_t r = first_row; r < last_row; r++) {
        const uint8_t *p = t->data + r * row_bytes;
        bool bad = false;
        for (size_t i = 0; i < n_blocks; i++) bad |= bad_block(t->type, p + i * info->block_bytes);
        if (bad) {
            ISO_FAIL(ISO_E_FORMAT,
                     "tensor %s, row %zu: a %s scale or value is infinite, not a number or >= 2^100",
                     t->name, r, info->name);
        }
    }
    return ISO_OK;
}
