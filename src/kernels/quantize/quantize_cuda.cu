/* SPDX-License-Identifier: MIT
 * quantize_cuda.cu - codes of 256 values by one warp: eight values per lane, four lanes per sum.
 */
#include "kernels/quantize/quantize_cuda.h"

#include "kernels/quantize/quantize.h"
#include "kernels/shared/cuda_launch.cuh"
#include "kernels/shared/cuda_prim.cuh"

#define LANE_VALUES 8

/* Four codes as bytes of each plane. */
static __device__ __forceinline__ void four_planes(uint32_t &hi, uint32_t &lo, uint32_t &mid,
                                                   const int32_t *c)
{
    hi = lo = mid = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t h = c[i] >> 6, l = c[i] & 63;
        hi |= (uint32_t)(h & 255) << (8 * i);
        lo |= (uint32_t)l << (8 * i);
        mid |= (uint32_t)((h + l) & 255) << (8 * i);
    }
}

/* Two integers as f16. */
static __device__ __forceinline__ uint32_t two_halves(int32_t low, int32_t high)
{
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"((float)high), "f"((float)low));
    return r;
}

/* The lane's sum of 8 codes becomes sums of 32 and of 256; see cuda_codes.h. */
static __device__ __forceinline__ void store_sums(const struct iso_cuda_codes &c, uint32_t row, uint32_t b, int32_t sum)
{
    const uint32_t lane = threadIdx.x % WARP;
    const size_t at = (size_t)row * (c.stride / 256) + b;
#pragma unroll
    for (int i = 1; i < 4; i *= 2) sum += __shfl_xor_sync(FULL_MASK, sum, i);
    int32_t total = sum;
#pragma unroll
    for (int i = 4; i < WARP; i *= 2) total += __shfl_xor_sync(FULL_MASK, total, i);
    if (lane % 4 == 0) {
        const size_t to = ((size_t)b * c.sum_rows + row) * 8 + lane / 4;
        const int32_t high = sum / 2048 * 2048;
        const uint32_t parts = two_halves(high, sum - high);
        c.sum32[at * 8 + lane / 4] = sum;
        c.sum_hi[to] = (uint16_t)parts;
        c.sum_lo[to] = (uint16_t)(parts >> 16);
    }
    if (lane == 0) c.total[at] = (float)(32 * total);
}

/* The warp's 256 values (zeros beyond the row) become block b of a row of codes. */
static __device__ __forceinline__ void store_block(const struct iso_cuda_quantize &q, uint32_t row, uint32_t b,
                                                   const float *v)
{
    const uint32_t lane = threadIdx.x % WARP;
    uint32_t m = 0;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) m = max(m, iso_abs_bits(v[i]));
    m = warp_max(m);
    const bool none = m < ISO_BITS_2M28 || m >= ISO_BITS_2P100;
    const float top = ISO_AS_F32(none ? 0x3f800000u : m);
    const float inv = iso_rcp(top) * 2047.0f;
    int32_t c[LANE_VALUES], sum = 0;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) {
        const int32_t r = iso_round_i32(v[i] * inv);
        c[i] = none ? 0 : min(max(r, -2047), 2047);
        sum += c[i];
    }
    store_sums(q.codes, row, b, sum);
    uint2 hi, lo, mid;
    four_planes(hi.x, lo.x, mid.x, c);
    four_planes(hi.y, lo.y, mid.y, c + 4);
    const size_t at = (size_t)row * q.codes.stride + b * 256 + lane * LANE_VALUES;
    *(uint2 *)(q.codes.hi + at) = hi;
    *(uint2 *)(q.codes.lo + at) = lo;
    *(uint2 *)(q.codes.mid + at) = mid;
    *(uint4 *)(q.codes.wide + at) = make_uint4(two_halves(c[0], c[1]), two_halves(c[2], c[3]), two_halves(c[4], c[5]), two_halves(c[6], c[7]));
    if (lane != 0) return;
    q.codes.scale[at / 256] = none ? 0.0f : top * (1.0f / 2047.0f);
    if (m >= ISO_BITS_2P100) fault(q.fault, q.fault_code);
}

static __device__ __forceinline__ void load8(float *v, const float *p)
{
    const float4 a = ((const float4 *)p)[0], b = ((const float4 *)p)[1];
    v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
    v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

static __device__ __forceinline__ void store8(float *p, const float *v)
{
    ((float4 *)p)[0] = make_float4(v[0], v[1], v[2], v[3]);
    ((float4 *)p)[1] = make_float4(v[4], v[5], v[6], v[7]);
}

/* x += y or x += norm(y) for the block's row; ends with a barrier. */
static __device__ void add_row(float *x, const struct iso_cuda_norm_source &s, uint32_t row, uint32_t n,
                               float *shared)
{
    const float *y = s.y + (size_t)row * n;
    float r = 1.0f;
    if (s.y_norm) r = block_rms_factor(y, n, s.y_eps, s.inv_n, shared);
    for (uint32_t i = threadIdx.x; i < n; i += ROW_THREADS) {
        float v = y[i];
        if (s.y_norm) v = iso_guard(s.y_weight ? (v * r) * s.y_weight[i] : v * r);
        x[i] = x[i] + v;
    }
    __syncthreads();
}

static __global__ void __launch_bounds__(ROW_THREADS)
    norm_quantize_kernel(const __grid_constant__ struct iso_cuda_quantize q,
                         const __grid_constant__ struct iso_cuda_norm_source s)
{
    __shared__ float shared[ROW_THREADS];
    grid_wait();
    grid_trigger();
    const uint32_t row = blockIdx.x, n = q.n;
    float *x = s.x + (size_t)(s.index ? s.index[row] : row) * n;
    if (s.y) add_row(x, s, row, n, shared);
    const float r = block_rms_factor(x, n, s.eps, s.inv_n, shared);
    const uint32_t n_blocks = q.codes.stride / 256, lane = threadIdx.x % WARP;
    for (uint32_t b = threadIdx.x / WARP; b < n_blocks; b += ROW_THREADS / WARP) {
        const uint32_t i = b * 256 + lane * LANE_VALUES;
        float v[LANE_VALUES] = {0, 0, 0, 0, 0, 0, 0, 0}, w[LANE_VALUES];
        if (i < n) {
            load8(v, x + i);
            if (s.weight) load8(w, s.weight + i);
#pragma unroll
            for (int k = 0; k < LANE_VALUES; k++) {
                v[k] = iso_guard(s.weight ? (v[k] * r) * w[k] : v[k] * r);
            }
            if (q.tap) store8(q.tap + (size_t)row * n + i, v);
        }
        store_block(q, row, b, v);
    }
}

/* --- few rows: the whole row in registers and shared memory ------------------------------------------- */

#define WIDE_THREADS 1024
#define WIDE_VALUES 8                          /* per thread: rows of up to 8,192 values */
#define WIDE_MAX (WIDE_THREADS * WIDE_VALUES)
#define FEW_ROWS 64                            /* more rows fill the chip with small blocks */

/* The factor of the RMS norm of x [n] in shared memory; sums [256] is scratch. The sequence of section 6:
 * 256 threads are its lanes. All threads get the factor. */
static __device__ __forceinline__ float wide_factor(const float *x, uint32_t n, float eps, float inv_n, float *sums)
{
    const uint32_t t = threadIdx.x;
    if (t < ROW_THREADS) {
        float l = 0.0f;
#pragma unroll 8
        for (uint32_t i = t; i < n; i += ROW_THREADS) l = fmaf(x[i], x[i], l);
        sums[t] = l;
    }
    __syncthreads();
    if (t < WARP) {
        float l[8];
#pragma unroll
        for (int k = 0; k < 8; k++) l[k] = sums[t + 32 * k];
#pragma unroll
        for (int s = 4; s >= 1; s /= 2) {
#pragma unroll
            for (int k = 0; k < s; k++) l[k] = l[k] + l[k + s];
        }
        float v = l[0];
#pragma unroll
        for (int s = 16; s >= 1; s /= 2) v = v + __shfl_down_sync(FULL_MASK, v, s);
        if (t == 0) sums[0] = v;
    }
    __syncthreads();
    const float sum = sums[0];
    if (!(sum < 0x1p120f)) { /* as block_rms_factor(); never on the way of an ordinary row */
        uint32_t m = 0;
        for (uint32_t i = t % WARP; i < n; i += WARP) m = max(m, iso_abs_bits(x[i]));
        if (warp_max(m) >= BITS_2P60) return ISO_AS_F32(0x7f800000u);
    }
    const float mean = sum * inv_n;
    return iso_rsqrt(mean + eps);
}

/* v[k] of thread t is element t + 1024 * k of the row. */
static __device__ __forceinline__ void wide_load(float *v, const float *p, uint32_t n)
{
#pragma unroll
    for (int k = 0; k < WIDE_VALUES; k++) {
        const uint32_t i = threadIdx.x + k * WIDE_THREADS;
        v[k] = i < n ? p[i] : 0.0f;
    }
}

static __device__ __forceinline__ void wide_store(float *p, const float *v, uint32_t n)
{
#pragma unroll
    for (int k = 0; k < WIDE_VALUES; k++) {
        const uint32_t i = threadIdx.x + k * WIDE_THREADS;
        if (i < n) p[i] = v[k];
    }
}

static __global__ void __launch_bounds__(WIDE_THREADS)
    wide_norm_quantize_kernel(const __grid_constant__ struct iso_cuda_quantize q,
                              const __grid_constant__ struct iso_cuda_norm_source s)
{
    extern __shared__ __align__(16) float row_values[]; /* [stride], then [256] */
    float *sums = row_values + q.codes.stride;
    const uint32_t row = blockIdx.x, n = q.n, lane = threadIdx.x % WARP;
    float w[WIDE_VALUES], yw[WIDE_VALUES], x[WIDE_VALUES], y[WIDE_VALUES];
    /* Weights do not depend on what ran before. */
    if (s.weight) wide_load(w, s.weight, n);
    if (s.y && s.y_norm && s.y_weight) wide_load(yw, s.y_weight, n);
    grid_wait();
    grid_trigger();
    float *at = s.x + (size_t)(s.index ? s.index[row] : row) * n;
    wide_load(x, at, n);
    if (s.y) {
        wide_load(y, s.y + (size_t)row * n, n);
        if (s.y_norm) {
            wide_store(row_values, y, n);
            __syncthreads();
            const float r = wide_factor(row_values, n, s.y_eps, s.inv_n, sums);
#pragma unroll
            for (int k = 0; k < WIDE_VALUES; k++) y[k] = iso_guard(s.y_weight ? (y[k] * r) * yw[k] : y[k] * r);
            __syncthreads();
        }
#pragma unroll
        for (int k = 0; k < WIDE_VALUES; k++) x[k] = x[k] + y[k];
        wide_store(at, x, n);
    }
    wide_store(row_values, x, n);
    __syncthreads();
    const float r = wide_factor(row_values, n, s.eps, s.inv_n, sums);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < WIDE_VALUES; k++) x[k] = iso_guard(s.weight ? (x[k] * r) * w[k] : x[k] * r);
    wide_store(row_values, x, n);
    if (q.tap) wide_store(q.tap + (size_t)row * n, x, n);
    for (uint32_t i = n + threadIdx.x; i < q.codes.stride; i += WIDE_THREADS) row_values[i] = 0.0f;
    __syncthreads();
    for (uint32_t b = threadIdx.x / WARP; b < q.codes.stride / 256; b += WIDE_THREADS / WARP) {
        float v[LANE_VALUES];
        load8(v, row_values + b * 256 + lane * LANE_VALUES);
        store_block(q, row, b, v);
    }
}

extern "C" void iso_cuda_norm_quantize(const struct iso_cuda_quantize *q, const struct iso_cuda_norm_source *s,
                                       struct CUstream_st *stream)
{
    const size_t bytes = (q->codes.stride + ROW_THREADS) * sizeof(float);
    if (q->n <= WIDE_MAX && q->n_rows <= FEW_ROWS && bytes <= 48 * 1024) {
        launch(wide_norm_quantize_kernel, q->n_rows, WIDE_THREADS, bytes, stream, *q, *s);
    } else {
        launch(norm_quantize_kernel, q->n_rows, ROW_THREADS, 0, stream, *q, *s);
    }
}

enum form { PLAIN, GATE, SWIGLU, GEGLU };

template <int FORM> static __device__ __forceinline__ float formed(float x, float other)
{
    if (FORM == GATE) return iso_guard(x * iso_sigmoid(other));
    if (FORM == SWIGLU) return iso_swiglu(x, other);
    if (FORM == GEGLU) return iso_geglu(x, other);
    return x;
}

/* A warp per 256 values of any row. */
template <int FORM>
static __global__ void __launch_bounds__(256) quantize_kernel(const __grid_constant__ struct iso_cuda_quantize q,
                                                              const float *x, const float *other)
{
    grid_wait();
    grid_trigger();
    const uint32_t n_blocks = q.codes.stride / 256, lane = threadIdx.x % WARP;
    const uint32_t item = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (item >= n_blocks * q.n_rows) return;
    const uint32_t row = item / n_blocks, b = item % n_blocks;
    const uint32_t i = b * 256 + lane * LANE_VALUES;
    float v[LANE_VALUES] = {0, 0, 0, 0, 0, 0, 0, 0}, o[LANE_VALUES] = {0, 0, 0, 0, 0, 0, 0, 0};
    if (i < q.n) {
        const size_t at = (size_t)row * q.n + i;
        load8(v, x + at);
        if (FORM != PLAIN) load8(o, other + at);
#pragma unroll
        for (int k = 0; k < LANE_VALUES; k++) v[k] = formed<FORM>(v[k], o[k]);
        if (FORM != PLAIN && q.tap) store8(q.tap + at, v);
    }
    store_block(q, row, b, v);
}

extern "C" void iso_cuda_quantize(const struct iso_cuda_quantize *q, const float *x, const float *gate,
                                  const float *up, uint32_t glu, struct CUstream_st *stream)
{
    const uint32_t items = q->codes.stride / 256 * q->n_rows;
    const dim3 grid((items + 7) / 8), block(256);
    if (up && glu == ISO_GLU_GEGLU) launch(quantize_kernel<GEGLU>, grid, block, 0, stream, *q, x, up);
    else if (up) launch(quantize_kernel<SWIGLU>, grid, block, 0, stream, *q, x, up);
    else if (gate) launch(quantize_kernel<GATE>, grid, block, 0, stream, *q, x, gate);
    else launch(quantize_kernel<PLAIN>, grid, block, 0, stream, *q, x, (const float *)NULL);
}
