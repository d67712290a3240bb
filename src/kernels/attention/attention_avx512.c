/* SPDX-License-Identifier: MIT
 * attention_avx512.c - attention for AVX-512 without VNNI. */
#include "kernels/attention/attention_avx512_body.h"

#define V_DOT(acc, a, b) _mm512_add_epi32((acc), _mm512_madd_epi16((a), (b)))
#include "kernels/attention/attention_x86_body.h"

#define ATTENTION_SUFFIX avx512
#include "kernels/attention/attention_body.h"
