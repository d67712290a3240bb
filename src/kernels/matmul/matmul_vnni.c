/* SPDX-License-Identifier: MIT
 * matmul_vnni.c - the matrix product for AVX-512 with VNNI.
 *
 * Tiled: vpdpwssd on i16. Vector: vpdpbusd on bytes, an activation code being 16 * hi + lo, with
 * sixteen weight rows in the lanes, so that the f32 chains need no reduction. The sixteen rows are
 * read from the file's layout once for up to eight activation rows.
 */
#include "kernels/matmul/matmul_bytes_x86.h"
#include "kernels/matmul/matmul_lanes_avx512.h"
/* The bodies use what the headers above define. */
#include "kernels/matmul/matmul_unpack_body.h"

#include "kernels/matmul/matmul_gemm_body.h"
#include "kernels/matmul/matmul_pairs_body.h"

#include "kernels/matmul/matmul_gemv_body.h"

#include "kernels/matmul/matmul_vnni_gemv_body.h"

const struct iso_matmul_kernels iso_matmul_kernels_vnni = {
    .name = "vnni",
    .gemv = gemv_vnni,
    .pack = pack,
    .gemm = gemm,
    .gemm_from = 17, /* Q4_1: 25; Q4_K: 25; Q6_K: 12; float types: 7 */
};
