/* SPDX-License-Identifier: MIT
 * matmul_avx512.c - the matrix product for AVX-512 without VNNI. */
#include "kernels/matmul/matmul_bytes_x86.h"
#include "kernels/matmul/matmul_lanes_avx512.h"
/* The bodies use what the headers above define. */
#include "kernels/matmul/matmul_unpack_body.h"

#include "kernels/matmul/matmul_gemm_body.h"
#include "kernels/matmul/matmul_pairs_body.h"

#include "kernels/matmul/matmul_gemv_body.h"

const struct iso_matmul_kernels iso_matmul_kernels_avx512 = {
    .name = "avx512",
    .gemv = gemv_generic,
    .pack = pack,
    .gemm = gemm,
    .gemm_from = 9,
};
