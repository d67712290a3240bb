/* SPDX-License-Identifier: MIT
 * matmul.c - picks the variant of the matrix product and sizes its panel and scratch. */
#include "kernels/matmul/matmul.h"

#include "base/mem.h"
#include "kernels/matmul/matmul_layout.h"
#include "kernels/shared/cpu.h"

#define X(suffix, need) extern const struct iso_matmul_kernels iso_matmul_kernels_##suffix;
#include "kernels/matmul/matmul.def"
#undef X

struct variant {
    const struct iso_matmul_kernels *kernels;
    unsigned need; /* enum iso_cpu_flag */
};

static const struct variant variants[] = {
#define X(suffix, need) {&iso_matmul_kernels_##suffix, need},
#include "kernels/matmul/matmul.def"
#undef X
};

const struct iso_matmul_kernels *iso_matmul_select(unsigned flags)
{
    const struct iso_matmul_kernels *best = variants[0].kernels;
    for (size_t i = 1; i < ISO_COUNT(variants); i++) {
        if ((flags & variants[i].need) == variants[i].need) best = variants[i].kernels;
    }
    return best;
}

size_t iso_gemm_panel_bytes(size_t n_act, size_t n_cols)
{
    return layout_n_tiles(n_act) * layout_n_blocks(n_cols) * PANEL_BLOCK_BYTES;
}

size_t iso_matmul_scratch_bytes(size_t n_act, size_t n_cols)
{
    return ISO_MAX(layout_gemv_bytes(n_cols), layout_gemm_bytes(n_act, n_cols));
}
