/* SPDX-License-Identifier: MIT
 * matmul_planes_cuda.cu - packing file rows into cells, unpacking cells to planes, and the driver of
 * the product with many rows.
 */
#include "kernels/matmul/matmul_planes_cuda.cuh"
#include "kernels/matmul/matmul_product_cuda.cuh"
#include "kernels/shared/cuda_launch.cuh"
#include "kernels/shared/cuda_prim.cuh"

/* --- packing: once per matrix, at load ---------------------------------------------------------- */

static uint32_t super_count(uint32_t n_cols)
{
    return (n_cols + CELL_COLS - 1) / CELL_COLS;
}

static uint32_t group_count(uint32_t n_rows)
{
    return (n_rows + CELL_ROWS - 1) / CELL_ROWS;
}

extern "C" size_t iso_cuda_cells_bytes(uint32_t type, uint32_t n_rows, uint32_t n_cols)
{
    return (size_t)group_count(n_rows) * super_count(n_cols) * CELL_ROWS * cell_lane_bytes((int)type);
}

struct pack_args {
    uint8_t *cells;
    const uint8_t *rows;
    uint64_t row_bytes;
    uint32_t n_rows, n_super, lane_bytes;
    struct cell_fields fields;
};

/* One block per cell; a thread moves bytes of all rows in turn. */
static __global__ void pack_kernel(const __grid_constant__ struct pack_args a)
{
    grid_wait();
    grid_trigger();
    const uint32_t group = blockIdx.x / a.n_super, super = blockIdx.x % a.n_super;
    uint8_t *cell = a.cells + (size_t)blockIdx.x * CELL_ROWS * a.lane_bytes;
    const uint64_t first = (uint64_t)super * a.lane_bytes; /* of the row's bytes: same size in file and cell */
    for (uint32_t i = threadIdx.x; i < a.lane_bytes; i += blockDim.x) {
        const uint64_t from = first + cell_source(&a.fields, i);
        for (uint32_t l = 0; l < CELL_ROWS; l++) {
            const uint32_t row = group * CELL_ROWS + l;
            const bool in = row < a.n_rows && from < a.row_bytes;
            cell[cell_byte(a.lane_bytes, l, i)] = in ? a.rows[row * a.row_bytes + from] : 0;
        }
    }
}

extern "C" void iso_cuda_pack(uint8_t *cells, const uint8_t *rows, uint32_t type, uint32_t n_rows,
                              uint32_t n_cols, uint64_t row_bytes, struct CUstream_st *stream)
{
    struct pack_args a = {cells, rows, row_bytes, n_rows, super_count(n_cols),
                          cell_lane_bytes((int)type), cell_fields_of((int)type)};
    launch(pack_kernel, group_count(n_rows) * a.n_super, 256, 0, stream, a);
}

/* --- unpacking ----------------------------------------------------------------------------------- */

/* 32 weights as words of the planes. */
struct plane_words {
    uint32_t p[3][8];
};

/* code * sub-scale of unsigned codes, two products per multiplication. */
static __device__ __forceinline__ void split_unsigned(struct plane_words &o, int k, uint32_t w, uint32_t sc)
{
    const uint32_t even = (w & 0x00ff00ffu) * sc, odd = (w >> 8 & 0x00ff00ffu) * sc;
    const uint32_t hi = (even >> 6 & 0x00ff00ffu) | (odd >> 6 & 0x00ff00ffu) << 8;
    const uint32_t lo = (even & 0x003f003fu) | (odd & 0x003f003fu) << 8;
    o.p[0][k] = hi;
    o.p[1][k] = lo;
    o.p[2][k] = hi + lo;
}

static __device__ __forceinline__ void split_signed(struct plane_words &o, int k, const int32_t v[4])
{
    uint32_t hi = 0, lo = 0, mid = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t h = v[i] >> 6, l = v[i] & 63;
        hi |= (uint32_t)(h & 255) << (8 * i);
        lo |= (uint32_t)l << (8 * i);
        mid |= (uint32_t)((h + l) & 255) << (8 * i);
    }
    o.p[0][k] = hi;
    o.p[1][k] = lo;
    o.p[2][k] = mid;
}

static __device__ __forceinline__ int32_t signed_byte(uint32_t w, int i)
{
    return (int32_t)(int8_t)(w >> (8 * i));
}

/* Smallest exponent of the nonzero scales of a superblock of NVFP4: units = small integer << it. */
static __device__ __forceinline__ int32_t nvfp4_shift(const cell<ISO_TYPE_NVFP4> &c)
{
    int32_t shift = 15;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint32_t byte = word_of(c.s, i / 4) >> (i % 4 * 8) & 0x7f;
        const int32_t e = (int32_t)(byte >> 3);
        const bool zero = byte == 0 || byte == 0x7f;
        if (!zero) shift = min(shift, e ? e - 1 : 0);
    }
    return shift == 15 ? 0 : shift;
}

template <int T>
static __device__ __forceinline__ void words_of(struct plane_words &o, const cell<T> &c, int j, int32_t shift,
                                                bool &fits)
{
    uint32_t w[8];
    c.words(w, j);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if constexpr (T == ISO_TYPE_Q4_K || T == ISO_TYPE_Q5_K) {
            split_unsigned(o, k, w[k], (uint32_t)c.scale(j));
        } else if constexpr (T == ISO_TYPE_Q6_K) {
            const int32_t sc = c.scale(2 * j + k / 4);
            int32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = (signed_byte(w[k], i) >> 2) * sc;
            split_signed(o, k, v);
        } else if constexpr (T == ISO_TYPE_NVFP4) {
            const int32_t sc = c.units(2 * j + k / 4) >> shift;
            int32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = signed_byte(w[k], i) * sc;
                if (abs(v[i]) > 4096) fits = false;
                v[i] = fits ? v[i] : 0;
            }
            split_signed(o, k, v);
        } else {
            /* unsigned codes below 32 less OFFSET, byte by byte without carries; others are signed already */
            constexpr uint32_t LESS = (0x80u - cell<T>::OFFSET) * 0x01010101u;
            o.p[0][k] = cell<T>::OFFSET ? (w[k] + LESS) ^ 0x80808080u : w[k];
        }
    }
}

/* --- the same in f16 ------------------------------------------------------------------------------- */

/* Bytes 2i and 2i+1 as f16, less BIAS. */
template <uint32_t BIAS> static __device__ __forceinline__ uint32_t two_f16(uint32_t bytes, int i)
{
    const uint32_t above = __byte_perm(bytes, F16X2_1024, i ? 0x7372 : 0x7170);
    return sub_f16x2(above, F16X2_1024 + BIAS * 0x10001u);
}

/* 32 weights of HALF forms: o [16]. */
template <int T> static __device__ __forceinline__ void half_words(uint32_t *o, const cell<T> &c, int j)
{
    constexpr uint32_t LESS = (0x80u - cell<T>::OFFSET) * 0x01010101u;
    uint32_t w[8];
    c.words(w, j);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        const uint32_t biased = cell<T>::OFFSET ? w[k] + LESS : w[k] ^ 0x80808080u;
        o[2 * k] = two_f16<128>(biased, 0);
        o[2 * k + 1] = two_f16<128>(biased, 1);
    }
}

/* Float types: codes of 16 bits; returns their scale. */
template <int T> static __device__ __forceinline__ float float_words(struct plane_words &o, const cell<T> &c, int j)
{
    int32_t code[32];
    const float d = c.codes(code, j);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        uint32_t hi = 0, lo = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            hi |= (uint32_t)(code[4 * k + i] >> 8 & 255) << (8 * i);
            lo |= (uint32_t)(code[4 * k + i] & 255) << (8 * i);
        }
        o.p[0][k] = hi;
        o.p[1][k] = lo;
    }
    return d;
}

/* Lanes hold rows, memory wants rows of 128 bytes: half a cell is turned in shared memory. Lanes that
 * wrote 16 bytes of a row of their own each ran at a fifth of this speed (H200). Rows are 16 bytes apart
 * from a multiple of 128, so that neither side has bank conflicts. */
#define TURN_ROW 144
#define TURN_PLANE (CELL_ROWS * TURN_ROW)

template <int N> static __device__ __forceinline__ void turn_planes(unsigned char *turn, int j, const struct plane_words &o)
{
    unsigned char *at = turn + threadIdx.x % WARP * TURN_ROW + j % 4 * 32;
#pragma unroll
    for (int p = 0; p < N; p++) {
        uint4 *to = (uint4 *)(at + p * TURN_PLANE);
        to[0] = make_uint4(o.p[p][0], o.p[p][1], o.p[p][2], o.p[p][3]);
        to[1] = make_uint4(o.p[p][4], o.p[p][5], o.p[p][6], o.p[p][7]);
    }
}

static __device__ __forceinline__ void turn_half(unsigned char *turn, int j, const uint32_t *o)
{
    uint4 *to = (uint4 *)(turn + threadIdx.x % WARP * TURN_ROW + j % 2 * 64);
#pragma unroll
    for (int i = 0; i < 4; i++) to[i] = make_uint4(o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]);
}

/* 128 bytes of 32 rows from shared memory to the planes; at: byte of the first one. */
template <int N>
static __device__ __forceinline__ void store_planes(const struct weight_planes &w, size_t at, size_t row_bytes,
                                                    const unsigned char *turn)
{
    const uint32_t lane = threadIdx.x % WARP;
    __syncwarp();
#pragma unroll
    for (int p = 0; p < N; p++) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t row = 4 * i + lane / 8, piece = lane % 8 * 16;
            *(uint4 *)(w.plane[p] + at + row * row_bytes + piece) =
                *(const uint4 *)(turn + p * TURN_PLANE + row * TURN_ROW + piece);
        }
    }
    __syncwarp();
}

/* One cell: row of the slice, superblock. */
template <int T, bool F16>
static __device__ __forceinline__ void unpack_lane(const struct weight_planes &w, const cell<T> &c, uint32_t row,
                                                   uint32_t super, unsigned char *turn)
{
    constexpr plane_form FORM = form_of(T); /* both forms have the same side */
    const size_t at = (size_t)(row - threadIdx.x % WARP) * w.stride + super * CELL_COLS;
    float *side = (float *)(w.side + ((size_t)super * (w.n_rows / SIDE_ROWS) + row / SIDE_ROWS) * side_bytes(FORM)) +
                  (F16 ? half_place(row % SIDE_ROWS) : row % SIDE_ROWS);
    int32_t shift = 0;
    bool fits = true;
    if constexpr (T == ISO_TYPE_NVFP4) shift = nvfp4_shift(c);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        if constexpr (F16) {
            uint32_t o[16];
            half_words<T>(o, c, j);
            turn_half(turn, j, o);
            if (j % 2 == 1) store_planes<1>(w, 2 * (at + 32 * (j - 1)), 2 * (size_t)w.stride, turn);
        } else {
            struct plane_words o;
            if constexpr (FORM == FLOAT) side[j * SIDE_ROWS] = float_words<T>(o, c, j);
            else words_of<T>(o, c, j, shift, fits);
            turn_planes<plane_count(FORM)>(turn, j, o);
            if (j % 4 == 3) store_planes<plane_count(FORM)>(w, at + 32 * (j - 3), w.stride, turn);
        }
        if constexpr (FORM == BLOCK || FORM == BLOCK_MIN) side[j * SIDE_ROWS] = c.d(j);
        if constexpr (FORM == BLOCK_MIN) side[(8 + j) * SIDE_ROWS] = c.m(j);
    }
    if constexpr (FORM == SUPER_MIN) {
        side[0] = c.d();
        side[SIDE_ROWS] = -c.dmin();
        const uint32_t m0 = c.mins(0), m1 = c.mins(1);
        *(uint4 *)((uint8_t *)(side - row % SIDE_ROWS) + 1024 + row % SIDE_ROWS * 16) =
            make_uint4(two_f16<32>(m0, 0), two_f16<32>(m0, 1), two_f16<32>(m1, 0), two_f16<32>(m1, 1));
    } else if constexpr (T == ISO_TYPE_NVFP4) {
        side[0] = ISO_AS_F32((uint32_t)(127 + shift - 10) << 23);
        if (!fits) w.flags[row] = 1;
    } else if constexpr (FORM == SUPER) {
        side[0] = c.d();
    }
}

template <int T, bool F16>
static __global__ void __launch_bounds__(128) unpack_kernel(const __grid_constant__ struct weight_planes w,
                                                            const uint8_t *cells, uint32_t n_groups)
{
    extern __shared__ __align__(16) unsigned char turns[];
    const uint32_t item = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t group = item / w.n_super, super = item % w.n_super;
    cell<T> c;
    if (group < n_groups) c.load(cells + (size_t)item * CELL_ROWS * cell_lane_bytes(T), (int)lane);
    grid_wait();
    grid_trigger();
    if (group >= n_groups) return;
    unpack_lane<T, F16>(w, c, group * CELL_ROWS + lane, super,
                        turns + threadIdx.x / WARP * (F16 ? 1 : plane_count(form_of(T))) * TURN_PLANE);
}

static __global__ void clear_kernel(uint32_t *p, uint32_t n)
{
    grid_wait();
    grid_trigger();
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) p[i] = 0;
}

/* --- NVFP4 rows whose scales lie too far apart --------------------------------------------------- */

/* A warp per 32 weight rows and activation row; nothing happens unless a row is flagged. */
static __global__ void __launch_bounds__(128) redo_kernel(const __grid_constant__ struct gemm_args g,
                                                          const uint8_t *cells)
{
    grid_wait();
    grid_trigger();
    const uint32_t lane = threadIdx.x % WARP, row = blockIdx.x * CELL_ROWS + lane;
    const bool flagged = row < g.n_out && g.w.flags[row] != 0;
    if (!__any_sync(FULL_MASK, flagged)) return;
    for (uint32_t t = threadIdx.x / WARP; t < g.n_act; t += blockDim.x / WARP) {
        float y = 0.0f;
        for (uint32_t b = 0; b < g.w.n_super; b++) {
            cell<ISO_TYPE_NVFP4> c;
            c.load(cells + ((size_t)blockIdx.x * g.w.n_super + b) * CELL_ROWS * cell_lane_bytes(ISO_TYPE_NVFP4),
                   (int)lane);
            const size_t at = (size_t)t * g.a.stride + b * CELL_COLS;
            const struct acts a = {g.a.hi + at, g.a.lo + at, g.a.sum32 + at / 32, g.a.stride};
            float p[1];
            nvfp4<1>(p, c, a);
            y = fmaf(g.a.scale[at / 256], p[0], y);
        }
        if (flagged) g.y[(size_t)t * g.y_stride + row] = finish_output(g, row, y);
    }
}

/* --- driver --------------------------------------------------------------------------------------- */

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static size_t slice_bytes(plane_form form, uint32_t n_cols, uint32_t n_rows)
{
    const size_t rows = round_up(n_rows, SIDE_ROWS), stride = (size_t)super_count(n_cols) * CELL_COLS;
    return plane_bytes(form) * rows * stride + rows / SIDE_ROWS * super_count(n_cols) * side_bytes(form) +
           round_up(rows * 4, 256);
}

extern "C" size_t iso_cuda_gemm_scratch(const struct iso_cuda_matrix *w, uint32_t n_rows)
{
    const plane_form form = form_of((int)w->type);
    return max(slice_bytes(form, w->n_cols, n_rows), slice_bytes(half_form(form), w->n_cols, n_rows));
}

static struct weight_planes lay_planes(uint8_t *p, plane_form form, uint32_t n_cols, uint32_t n_rows)
{
    struct weight_planes w = {};
    w.form = form;
    w.n_rows = (uint32_t)round_up(n_rows, SIDE_ROWS);
    w.n_super = super_count(n_cols);
    w.stride = w.n_super * CELL_COLS;
    for (uint32_t i = 0; i < plane_count(w.form); i++) {
        w.plane[i] = (int8_t *)p;
        p += (size_t)w.n_rows * w.stride * (is_half(form) ? 2 : 1);
    }
    w.side = p;
    w.flags = (uint32_t *)(p + (size_t)w.n_rows / SIDE_ROWS * w.n_super * side_bytes(w.form));
    return w;
}

template <int T>
static void unpack(const struct weight_planes *w, const uint8_t *cells, uint32_t n_rows, cudaStream_t stream)
{
    const uint32_t n_groups = group_count(n_rows);
    if (T == ISO_TYPE_NVFP4) launch(clear_kernel, (w->n_rows + 255) / 256, 256, 0, stream, w->flags, w->n_rows);
    const dim3 grid((n_groups * w->n_super + 3) / 4);
    if constexpr (is_half(half_form(form_of(T)))) {
        if (is_half(w->form)) {
            launch(unpack_kernel<T, true>, grid, 128, 4 * TURN_PLANE, stream, *w, cells, n_groups);
            return;
        }
    }
    const size_t turns = 4 * plane_count(form_of(T)) * TURN_PLANE;
    allow_smem(unpack_kernel<T, false>, turns);
    launch(unpack_kernel<T, false>, grid, 128, turns, stream, *w, cells, n_groups);
}

#define CASE(T, ...)                                                                               \
    case ISO_TYPE_##T: unpack<ISO_TYPE_##T>(w, cells, n_rows, stream); break;

static void unpack_any(const struct weight_planes *w, uint32_t type, const uint8_t *cells, uint32_t n_rows,
                       cudaStream_t stream)
{
    switch (type) {
        ISO_TYPE_MAP(CASE)
    }
}

extern "C" int iso_cuda_gemm(const struct iso_cuda_codes *a, uint32_t n_act, const struct iso_cuda_matrix *m,
                              void *scratch, size_t scratch_bytes, const struct iso_cuda_chip *chip,
                              struct CUstream_st *stream)
{
    const plane_form bytes = form_of((int)m->type), form = chip->wgmma ? half_form(bytes) : bytes;
    uint32_t rows = (uint32_t)round_up(m->n_rows, SIDE_ROWS);
    while (rows > SIDE_ROWS && slice_bytes(form, m->n_cols, rows) > scratch_bytes) {
        rows = (uint32_t)round_up(rows / 2, SIDE_ROWS);
    }
    const size_t group_bytes = (size_t)super_count(m->n_cols) * CELL_ROWS * cell_lane_bytes((int)m->type);
    for (uint32_t r = 0; r < m->n_rows; r += rows) {
        const uint32_t n = min(rows, m->n_rows - r);
        const uint8_t *cells = m->cells + r / CELL_ROWS * group_bytes;
        struct gemm_args g = {};
        g.a = *a;
        g.w = lay_planes((uint8_t *)scratch, form, m->n_cols, n);
        g.bias = m->bias ? m->bias + r : NULL;
        g.y = m->y + r;
        g.n_act = n_act;
        g.n_out = n;
        g.y_stride = m->n_rows;
        g.scale = m->scale;
        g.has_scale = m->has_scale;
        unpack_any(&g.w, m->type, cells, n, stream);
        if (is_half(form)) {
            if (iso_cuda_gemm_wgmma_f16(&g, stream) != 0) return -1;
        } else if (chip->wgmma && form != FLOAT) {
            if (iso_cuda_gemm_wgmma(&g, stream) != 0) return -1;
        } else {
            iso_cuda_gemm_mma(&g, stream);
        }
        if (m->type == ISO_TYPE_NVFP4) launch(redo_kernel, group_count(n), 128, 0, stream, g, cells);
    }
    return 0;
}
