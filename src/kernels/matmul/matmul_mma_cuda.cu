/* SPDX-License-Identifier: MIT
 * matmul_mma_cuda.cu - products with many rows on mma.sync m16n8k32: every chip from sm_80 on, and the
 * float types everywhere.
 *
 * A block of 4 warps makes 64 activation rows x 64 weight rows; a warp 32 x 32. Columns arrive 64 at a
 * time through three buffers (cp.async). Accumulators of byte products are exact; the short f32 chain
 * runs in registers after each 32 or 256 columns.
 */
#include "kernels/matmul/matmul_planes_cuda.cuh"
#include "kernels/shared/cuda_launch.cuh"
#include "kernels/shared/cuda_prim.cuh"

#define TILE 64   /* rows of either operand per block */
#define CHUNK 64  /* columns per buffer */
#define STAGES 3
#define THREADS 128

/* One buffer: A hi, A lo, B plane 0, B plane 1; each [64 rows][64 bytes], 16-byte pieces swizzled. */
#define PLANE_BYTES (TILE * CHUNK)

static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

static __device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t piece)
{
    return row * CHUNK + ((piece ^ (row >> 1 & 3)) << 4);
}

static __device__ __forceinline__ void copy16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

static __device__ __forceinline__ void load_matrix(uint32_t r[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* d += a * b on bytes; b is unsigned when U. */
template <bool U = false>
static __device__ __forceinline__ void mma(int32_t d[4], const uint32_t a[4], const uint32_t *b)
{
    if (U) {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                     "{%0,%1,%2,%3};"
                     : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

/* What a thread owns: rows row[m][h] and columns col[n] + {0, 1} of the tile. */
struct place {
    uint32_t row[2][2], col[4];
};

/* Fragments of 32 columns: a[plane][m16], b[plane][n8][2]. */
struct fragments {
    uint32_t a[2][2][4], b[2][4][2];
};

template <int PLANES>
static __device__ __forceinline__ void load_fragments(struct fragments &f, uint32_t buffer, uint32_t step)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const uint32_t a_row = warp / 2 * 32 + lane % 16, b_row = warp % 2 * 32 + lane % 8 + lane / 16 * 8;
#pragma unroll
    for (int p = 0; p < 2; p++) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
            load_matrix(f.a[p][m], buffer + p * PLANE_BYTES + swizzled(a_row + 16 * m, 2 * step + lane / 16));
        }
    }
#pragma unroll
    for (int p = 0; p < PLANES; p++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            load_matrix(&f.b[p][2 * n][0],
                        buffer + (2 + p) * PLANE_BYTES + swizzled(b_row + 16 * n, 2 * step + (lane / 8) % 2));
        }
    }
}

/* Brings columns chunk*64.. of all planes into a buffer. Activation rows that do not exist repeat the
 * last one. */
template <int PLANES>
static __device__ __forceinline__ void fetch(const struct gemm_args &g, uint32_t buffer, uint32_t chunk)
{
    const uint32_t column = chunk * CHUNK;
#pragma unroll
    for (uint32_t i = threadIdx.x; i < TILE * 4; i += THREADS) {
        const uint32_t row = i / 4, piece = i % 4;
        const size_t a = (size_t)min(blockIdx.x * TILE + row, g.n_act - 1) * g.a.stride + column + 16 * piece;
        const size_t b = (size_t)(blockIdx.y * TILE + row) * g.w.stride + column + 16 * piece;
        const uint32_t to = buffer + swizzled(row, piece);
        copy16(to, g.a.hi + a);
        copy16(to + PLANE_BYTES, g.a.lo + a);
#pragma unroll
        for (int p = 0; p < PLANES; p++) copy16(to + (2 + p) * PLANE_BYTES, g.w.plane[p] + b);
    }
}

/* Integer sums of one 32 x 32 warp tile. */
typedef int32_t tile_sums[2][4][4];
typedef float tile_floats[2][4][4];

static __device__ __forceinline__ const uint8_t *side_of(const struct gemm_args &g, uint32_t super)
{
    const uint32_t row = blockIdx.y * TILE;
    return g.w.side +
           ((size_t)super * (g.w.n_rows / SIDE_ROWS) + row / SIDE_ROWS) * side_bytes(g.w.form);
}

/* Columns of the tile within the side block's 128. */
static __device__ __forceinline__ uint32_t side_column(const struct place &at, int n)
{
    return blockIdx.y * TILE % SIDE_ROWS + at.col[n];
}

static __device__ __forceinline__ void step_super(tile_sums hh, tile_sums cross, tile_sums ll,
                                                  const struct fragments &f)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            mma(hh[m][n], f.a[0][m], f.b[0][n]);
            mma(cross[m][n], f.a[0][m], f.b[1][n]);
            mma(cross[m][n], f.a[1][m], f.b[0][n]);
            mma(ll[m][n], f.a[1][m], f.b[1][n]);
        }
    }
}

/* M of section 5 for two neighbouring columns: eight minima, in f16 less 32, times eight sums. */
static __device__ __forceinline__ void sum_mins(int32_t mins[2], const uint4 mi[2], const int32_t *sum)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const uint32_t two = sub_f16x2(word_of(mi[k], j / 2), F16X2_1056 ^ 0x80008000u); /* 1024 + min */
            mins[k] += (int32_t)(two >> (j % 2 * 16) & 255u) * sum[j];
        }
    }
}

/* The sums of a superblock enter the chain. */
template <bool MIN>
static __device__ __forceinline__ void chain_super(tile_floats y, const struct gemm_args &g, const struct place &at,
                                                   uint32_t super, tile_sums hh, tile_sums cross, tile_sums ll)
{
    const uint8_t *side = side_of(g, super);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const uint32_t c = side_column(at, n);
        const float2 d = *(const float2 *)((const float *)side + c);
        float2 dm = make_float2(0.0f, 0.0f);
        uint4 mi[2] = {};
        if (MIN) {
            dm = *(const float2 *)((const float *)side + SIDE_ROWS + c);
            mi[0] = *(const uint4 *)(side + 1024 + 16 * c);
            mi[1] = *(const uint4 *)(side + 1024 + 16 * c + 16);
        }
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const uint32_t row = min(blockIdx.x * TILE + at.row[m][h], g.n_act - 1);
                const float s = g.a.scale[(size_t)row * g.w.n_super + super];
                int32_t mins[2] = {0, 0};
                if (MIN) sum_mins(mins, mi, g.a.sum32 + ((size_t)row * g.w.n_super + super) * 8);
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    const int i = 2 * h + k;
                    const int32_t sum = (int32_t)(((uint32_t)hh[m][n][i] << 12) + ((uint32_t)cross[m][n][i] << 6) +
                                                  (uint32_t)ll[m][n][i]);
                    float p = (k ? d.y : d.x) * (float)sum;
                    if (MIN) p = fmaf(k ? dm.y : dm.x, (float)mins[k], p);
                    y[m][n][i] = fmaf(s, p, y[m][n][i]);
                    hh[m][n][i] = cross[m][n][i] = ll[m][n][i] = 0;
                }
            }
        }
    }
}

/* 32 columns of a type with one scale per 32: their sums enter p at once. */
template <plane_form FORM>
static __device__ __forceinline__ void step_block(tile_floats p, const struct gemm_args &g, const struct place &at,
                                                  uint32_t block, const struct fragments &f)
{
    const float *side = (const float *)side_of(g, block / 8) + block % 8 * SIDE_ROWS;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const uint32_t c = side_column(at, n);
        const float2 d = *(const float2 *)(side + c);
        float2 mn = make_float2(0.0f, 0.0f);
        if (FORM == BLOCK_MIN) mn = *(const float2 *)(side + 8 * SIDE_ROWS + c);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            int32_t sum[4] = {0, 0, 0, 0}, low[4] = {0, 0, 0, 0};
            mma(sum, f.a[0][m], f.b[0][n]);
#pragma unroll
            for (int i = 0; i < 4; i++) sum[i] = (int32_t)((uint32_t)sum[i] << 6);
            mma(sum, f.a[1][m], f.b[0][n]);
            if (FORM == FLOAT) {
                mma<true>(low, f.a[0][m], f.b[1][n]);
#pragma unroll
                for (int i = 0; i < 4; i++) low[i] = (int32_t)((uint32_t)low[i] << 6);
                mma<true>(low, f.a[1][m], f.b[1][n]);
#pragma unroll
                for (int i = 0; i < 4; i++) sum[i] = (int32_t)(((uint32_t)sum[i] << 8) + (uint32_t)low[i]);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                p[m][n][i] = fmaf(i % 2 ? d.y : d.x, (float)sum[i], p[m][n][i]);
                if (FORM == BLOCK_MIN) {
                    const uint32_t row = min(blockIdx.x * TILE + at.row[m][i / 2], g.n_act - 1);
                    const int32_t s32 = g.a.sum32[(size_t)row * g.w.n_super * 8 + block];
                    p[m][n][i] = fmaf(i % 2 ? mn.y : mn.x, (float)s32, p[m][n][i]);
                }
            }
        }
    }
}

static __device__ __forceinline__ void chain_block(tile_floats y, tile_floats p, const struct gemm_args &g,
                                                   const struct place &at, uint32_t super)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t row = min(blockIdx.x * TILE + at.row[m][i / 2], g.n_act - 1);
            const float s = g.a.scale[(size_t)row * g.w.n_super + super];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                y[m][n][i] = fmaf(s, p[m][n][i], y[m][n][i]);
                p[m][n][i] = 0.0f;
            }
        }
    }
}

static __device__ __forceinline__ void store_tile(const struct gemm_args &g, const struct place &at, tile_floats y)
{
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t row = blockIdx.x * TILE + at.row[m][i / 2];
                const uint32_t col = blockIdx.y * TILE + at.col[n] + i % 2;
                if (row < g.n_act && col < g.n_out) {
                    g.y[(size_t)row * g.y_stride + col] = finish_output(g, col, y[m][n][i]);
                }
            }
        }
    }
}

static __device__ __forceinline__ struct place place_of_thread(void)
{
    const uint32_t lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    struct place at;
#pragma unroll
    for (int m = 0; m < 2; m++) {
        at.row[m][0] = warp / 2 * 32 + 16 * m + lane / 4;
        at.row[m][1] = at.row[m][0] + 8;
    }
#pragma unroll
    for (int n = 0; n < 4; n++) at.col[n] = warp % 2 * 32 + 8 * n + lane % 4 * 2;
    return at;
}

template <plane_form FORM>
static __global__ void __launch_bounds__(THREADS, 2) mma_kernel(const __grid_constant__ struct gemm_args g)
{
    constexpr bool WHOLE = FORM == SUPER || FORM == SUPER_MIN; /* sums run over 256 columns */
    constexpr int PLANES = FORM == BLOCK || FORM == BLOCK_MIN ? 1 : 2;
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t base = shared_address(shared), n_chunks = g.w.n_super * (CELL_COLS / CHUNK);
    constexpr uint32_t BUFFER = (2 + PLANES) * PLANE_BYTES;
    const struct place at = place_of_thread();
    tile_floats y = {}, p = {};
    tile_sums hh = {}, cross = {}, ll = {};
    grid_wait();
    grid_trigger();
    for (uint32_t c = 0; c < STAGES - 1; c++) {
        if (c < n_chunks) fetch<PLANES>(g, base + c * BUFFER, c);
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    for (uint32_t c = 0; c < n_chunks; c++) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();
        const uint32_t ahead = c + STAGES - 1;
        if (ahead < n_chunks) fetch<PLANES>(g, base + ahead % STAGES * BUFFER, ahead);
        asm volatile("cp.async.commit_group;" ::: "memory");
#pragma unroll
        for (uint32_t step = 0; step < CHUNK / 32; step++) {
            struct fragments f;
            load_fragments<PLANES>(f, base + c % STAGES * BUFFER, step);
            if constexpr (WHOLE) step_super(hh, cross, ll, f);
            else step_block<FORM>(p, g, at, c * (CHUNK / 32) + step, f);
        }
        if (c % (CELL_COLS / CHUNK) != CELL_COLS / CHUNK - 1) continue;
        if constexpr (WHOLE) chain_super<FORM == SUPER_MIN>(y, g, at, c / (CELL_COLS / CHUNK), hh, cross, ll);
        else chain_block(y, p, g, at, c / (CELL_COLS / CHUNK));
    }
    store_tile(g, at, y);
}

template <plane_form FORM> static void start(const struct gemm_args *g, cudaStream_t stream)
{
    constexpr int PLANES = FORM == BLOCK || FORM == BLOCK_MIN ? 1 : 2;
    const size_t bytes = (size_t)STAGES * (2 + PLANES) * PLANE_BYTES;
    allow_smem(mma_kernel<FORM>, bytes);
    const dim3 grid((g->n_act + TILE - 1) / TILE, (g->n_out + TILE - 1) / TILE);
    launch(mma_kernel<FORM>, grid, THREADS, bytes, stream, *g);
}

void iso_cuda_gemm_mma(const struct gemm_args *g, cudaStream_t stream)
{
    switch (g->w.form) {
    case SUPER: start<SUPER>(g, stream); break;
    case SUPER_MIN: start<SUPER_MIN>(g, stream); break;
    case BLOCK: start<BLOCK>(g, stream); break;
    case BLOCK_MIN: start<BLOCK_MIN>(g, stream); break;
    case FLOAT: start<FLOAT>(g, stream); break;
    }
}
