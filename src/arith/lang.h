/* SPDX-License-Identifier: MIT
 * lang.h - what the C, CUDA and Metal compilers call the same thing.
 *
 * The other headers of this folder are read by all three. They use only the names defined here,
 * fixed-width integers and float.
 */
#ifndef ISO_ARITH_LANG_H
#define ISO_ARITH_LANG_H

#if defined(__METAL_VERSION__)
#include <metal_stdlib>
#define ISO_FN static inline
#define ISO_CONSTANT constant
#define ISO_FMA(a, b, c) metal::fma((a), (b), (c))
#define ISO_AS_U32(x) as_type<uint>(x)
#define ISO_AS_F32(x) as_type<float>(x)
using metal::int8_t;
using metal::uint8_t;
using metal::int16_t;
using metal::uint16_t;
using metal::int32_t;
using metal::uint32_t;
#elif defined(__CUDACC__)
#include <stdint.h>
#define ISO_FN static __host__ __device__ __forceinline__
#define ISO_CONSTANT static const
#define ISO_FMA(a, b, c) fmaf((a), (b), (c))
#if defined(__CUDA_ARCH__)
#define ISO_AS_U32(x) __float_as_uint(x)
#define ISO_AS_F32(x) __uint_as_float(x)
#else
#include <string.h>
static inline uint32_t iso_as_u32(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
static inline float iso_as_f32(uint32_t u) { float x; memcpy(&x, &u, 4); return x; }
#define ISO_AS_U32(x) iso_as_u32(x)
#define ISO_AS_F32(x) iso_as_f32(x)
#endif
#else
#include <stdint.h>
#include <string.h>
#define ISO_FN static inline
#define ISO_CONSTANT static const
/* A truly fused multiply-add: with -mfma one instruction, else libm's fmaf, which is exact too. */
#define ISO_FMA(a, b, c) __builtin_fmaf((a), (b), (c))
static inline uint32_t iso_as_u32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof(u));
    return u;
}
static inline float iso_as_f32(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof(x));
    return x;
}
#define ISO_AS_U32(x) iso_as_u32(x)
#define ISO_AS_F32(x) iso_as_f32(x)
#endif

#endif
