/* SPDX-License-Identifier: MIT
 * attention_vnni.c - attention for AVX-512 with VNNI: vpdpwssd multiplies and adds in one. */
#include "kernels/attention/attention_avx512_body.h"

#define V_DOT(acc, a, b) _mm512_dpwssd_epi32((acc), (a), (b))
#include "kernels/attention/attention_x86_body.h"

#define ATTENTION_SUFFIX vnni
#include "kernels/attention/attention_body.h"
