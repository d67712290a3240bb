/* SPDX-License-Identifier: MIT
 * attention_avx2.c - attention for AVX2: 4 rows x 2 vectors of sums fill the 16 registers. */
#include "kernels/shared/vec_avx2.h"

#define LANES 8
#define TILE_COLS 2
#define VI __m256i
#define V(op) _mm256_##op
#define V_LOAD(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define V_STORE(p, v) _mm256_storeu_si256((__m256i *)(void *)(p), (v))
#define V_AND(a, b) _mm256_and_si256((a), (b))
#define V_OR(a, b) _mm256_or_si256((a), (b))
#define V_ZERO _mm256_setzero_si256()
#define V_GATHER(p, step) gather_16((p), (step))
#define V_DOT(acc, a, b) _mm256_add_epi32((acc), _mm256_madd_epi16((a), (b)))

static inline __m256i gather_16(const uint8_t *p, size_t step)
{
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)p);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(p + step));
    return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
}

#include "kernels/attention/attention_x86_body.h"

#define ATTENTION_SUFFIX avx2
#include "kernels/attention/attention_body.h"
