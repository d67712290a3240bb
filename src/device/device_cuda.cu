/* SPDX-License-Identifier: MIT
 * device_cuda.cu - a CUDA GPU as a device: opening, memory, transfers, proof.
 *
 * Everything runs on one stream, so transfers and operations are in order without events; only pages that
 * leave beside a step have a stream of their own (device_copy_cuda.cu). The first CUDA failure is kept and
 * every later call is refused with it: a lost device stays lost, and nothing falls back to the CPU.
 */
#include "device/device_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "base/digest.h"
#include "base/pool.h"
#include "device/program_image.h"
#include "device/self_check.h"
}

static struct iso_cuda_device *cuda_of(struct iso_device *dev)
{
    return (struct iso_cuda_device *)dev;
}

/* --- failures -------------------------------------------------------------------------------------- */

bool iso_cuda_ok(struct iso_cuda_device *d, cudaError_t e, const char *file, int line, const char *what)
{
    if (e == cudaSuccess) return true;
    (void)cudaGetLastError(); /* one that is not sticky must not show up again */
    if (d->err != ISO_OK) return false;
    d->err = e == cudaErrorMemoryAllocation ? ISO_E_NOMEM : ISO_E_GPU;
    (void)iso_err_raise(d->err, file, line, "%s: %s (%s, %.100s)", d->chip_name, cudaGetErrorString(e),
                        cudaGetErrorName(e), what);
    (void)snprintf(d->detail, sizeof(d->detail), "%s", iso_err_detail());
    return false;
}

enum iso_err iso_cuda_status(struct iso_cuda_device *d)
{
    return d->err == ISO_OK ? ISO_OK : iso_err_adopt(d->err, d->detail);
}

/* An allocation that does not fit is an answer, not a broken device. */
static enum iso_err allocate(struct iso_cuda_device *d, uint8_t **p, size_t len, const char *what)
{
    const cudaError_t e = cudaMalloc((void **)p, len ? len : 1);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        size_t free_bytes = 0, total = 0;
        (void)cudaMemGetInfo(&free_bytes, &total);
        ISO_FAIL(ISO_E_NOMEM, "%s: %zu bytes of GPU memory, %zu of %zu are free", what, len, free_bytes, total);
    }
    ISO_CUDA_OK(d, e);
    return iso_cuda_status(d);
}

/* --- memory ------------------------------------------------------------------------------------------ */

static enum iso_err new_buffer(struct iso_cuda_device *d, uint32_t *index)
{
    ISO_TRY(iso_cuda_status(d));
    if (d->n_buffers + 1 >= ISO_CUDA_BUFFERS) {
        ISO_FAIL(ISO_E_LIMIT, "more than %d device buffers", ISO_CUDA_BUFFERS - 1);
    }
    *index = ++d->n_buffers;
    (void)cudaSetDevice(d->ordinal);
    return ISO_OK;
}

static void release(struct iso_cuda_buffer *b)
{
    (void)cudaFree(b->p);
    if (b->mirror) (void)cudaFreeHost(b->mirror);
    *b = {};
}

bool iso_cuda_mirror(struct iso_cuda_device *d, struct iso_cuda_buffer *b, size_t len)
{
    if (len <= b->mirror_len) return true;
    if (b->mirror) {
        if (iso_cuda_wait(d) != ISO_OK) return false; /* a copy into it may be under way */
        iso_cuda_graphs_drop(d);
        (void)cudaFreeHost(b->mirror);
        b->mirror = NULL;
        b->mirror_len = 0;
    }
    if (!ISO_CUDA_OK(d, cudaHostAlloc((void **)&b->mirror, len, cudaHostAllocMapped))) return false;
    memset(b->mirror, 0, len);
    b->mirror_len = len;
    return true;
}

static enum iso_err cuda_alloc(struct iso_device *dev, size_t len, enum iso_mem kind, const char *what,
                               uint32_t *buffer)
{
    struct iso_cuda_device *d = cuda_of(dev);
    uint32_t i = 0;
    ISO_TRY(new_buffer(d, &i));
    struct iso_cuda_buffer *b = &d->buffer[i];
    len = (len + 15) / 16 * 16;
    ISO_TRY(allocate(d, &b->p, len, what));
    b->len = len;
    b->kind = kind;
    ISO_CUDA_OK(d, cudaMemsetAsync(b->p, 0, len, d->stream));
    if (kind == ISO_MEM_HOST) (void)iso_cuda_mirror(d, b, len);
    *buffer = i;
    return iso_cuda_status(d);
}

static void cuda_free(struct iso_device *dev, uint32_t buffer)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    iso_cuda_graphs_drop(d);
    release(&d->buffer[buffer]);
}

static enum iso_err cuda_map(struct iso_device *dev, const void *p, size_t len, uint32_t *buffer)
{
    struct iso_cuda_device *d = cuda_of(dev);
    uint32_t i = 0;
    ISO_TRY(new_buffer(d, &i));
    ISO_TRY(allocate(d, &d->buffer[i].p, len, "weights"));
    d->buffer[i].len = len;
    ISO_CUDA_OK(d, cudaMemcpyAsync(d->buffer[i].p, p, len, cudaMemcpyHostToDevice, d->stream));
    *buffer = i;
    return iso_cuda_status(d);
}

/* The file's rows become cells in a buffer of their own; the uploaded bytes are given back. */
static enum iso_err cuda_weight(struct iso_device *dev, struct iso_weight *w)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    struct iso_cuda_buffer *b = &d->buffer[w->data.buffer];
    const size_t len = iso_cuda_cells_bytes(w->type, w->n_rows, w->n_cols);
    uint8_t *cells = NULL;
    ISO_TRY(allocate(d, &cells, len, "weights"));
    iso_cuda_pack(cells, b->p + w->data.offset, w->type, w->n_rows, w->n_cols, w->row_bytes, d->stream);
    ISO_CUDA_OK(d, cudaGetLastError());
    ISO_CUDA_OK(d, cudaStreamSynchronize(d->stream));
    (void)cudaFree(b->p);
    b->p = cells;
    b->len = len;
    w->data.offset = 0;
    w->row_bytes = 0;
    return iso_cuda_status(d);
}

static enum iso_err cuda_upload(struct iso_device *dev, struct iso_span dst, const void *src, size_t len)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    if (d->err == ISO_OK && len > 0) {
        ISO_CUDA_OK(d, cudaMemcpyAsync(iso_cuda_at(d, dst), src, len, cudaMemcpyHostToDevice, d->stream));
        ISO_CUDA_OK(d, cudaStreamSynchronize(d->stream));
        struct iso_cuda_buffer *b = &d->buffer[dst.buffer];
        if (b->kind == ISO_MEM_HOST) memcpy(b->mirror + dst.offset, src, len);
    }
    return iso_cuda_status(d);
}

static enum iso_err cuda_download(struct iso_device *dev, void *dst, struct iso_span src, size_t len)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    if (d->err == ISO_OK && len > 0) {
        ISO_CUDA_OK(d, cudaMemcpyAsync(dst, iso_cuda_at(d, src), len, cudaMemcpyDeviceToHost, d->stream));
        ISO_CUDA_OK(d, cudaStreamSynchronize(d->stream));
    }
    return iso_cuda_status(d);
}

static void cuda_zero(struct iso_device *dev, struct iso_span at, size_t len, size_t stride, size_t n)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    uint8_t *p = (uint8_t *)iso_cuda_at(d, at);
    const size_t once = stride <= INT32_MAX ? n : 1; /* a pitch has 31 bits */
    for (size_t i = 0; i < n && d->err == ISO_OK; i += once) {
        ISO_CUDA_OK(d, cudaMemset2DAsync(p + i * stride, once > 1 ? stride : len, 0, len, once, d->stream));
    }
}

static void cuda_copy(struct iso_device *dev, struct iso_span dst, struct iso_span src, size_t len)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    if (d->err != ISO_OK) return;
    ISO_CUDA_OK(d, cudaMemcpyAsync(iso_cuda_at(d, dst), iso_cuda_at(d, src), len, cudaMemcpyDeviceToDevice, d->stream));
}

static void *cuda_host(struct iso_device *dev, struct iso_span at)
{
    const struct iso_cuda_buffer *b = &cuda_of(dev)->buffer[at.buffer];
    return at.buffer && b->mirror ? b->mirror + at.offset : NULL;
}

bool iso_cuda_scratch(struct iso_cuda_device *d, size_t len)
{
    if (len <= d->scratch_len) return true;
    if (iso_cuda_wait(d) != ISO_OK) return false;
    iso_cuda_graphs_drop(d);
    (void)cudaFree(d->scratch);
    d->scratch = NULL;
    d->scratch_len = 0;
    if (!ISO_CUDA_OK(d, cudaMalloc((void **)&d->scratch, len))) return false;
    d->scratch_len = len;
    return true;
}

/* Scratch grows to what steps need; here only what is sure to be needed, so that a plan shows it and
 * no step allocates. Unpacked weights: whole rows of 128 at the widest, at least SCRATCH_MIN. */
#define SCRATCH_MIN ((size_t)384 << 20) /* unpacked planes of the largest matrices of 8B to 30B models */

static enum iso_err cuda_reserve(struct iso_device *dev, const struct iso_device_limits *limits,
                                 uint64_t *scratch_bytes)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    const size_t narrow = (size_t)limits->max_cols * 128 * 4 + (1 << 20);
    ISO_TRY(iso_cuda_status(d));
    if (!iso_cuda_scratch(d, ISO_MAX(narrow, SCRATCH_MIN))) return iso_cuda_status(d);
    *scratch_bytes = d->scratch_len;
    return ISO_OK;
}

static size_t cuda_codes_bytes(const struct iso_device *dev, size_t n_rows, size_t n)
{
    (void)dev;
    return iso_cuda_codes_bytes(n_rows, n);
}

/* --- proof and names -------------------------------------------------------------------------------- */

static __global__ void probe_kernel(void);

/* The images that the driver chose for this chip: the probe's architecture is that of all kernels, since
 * every file is compiled for the same list. */
static void cuda_identity(struct iso_device *dev, struct iso_digest *out)
{
    const struct iso_cuda_device *d = cuda_of(dev);
    cudaFuncAttributes chosen = {};
    (void)cudaSetDevice(d->ordinal);
    const bool known = cudaFuncGetAttributes(&chosen, probe_kernel) == cudaSuccess;
    iso_gpu_kernels_digest(out, d->level, known ? (uint32_t)chosen.binaryVersion : 0);
}

static const char *cuda_level(const struct iso_device *dev)
{
    return ((const struct iso_cuda_device *)dev)->level;
}

static unsigned cuda_threads(const struct iso_device *dev)
{
    (void)dev;
    return 1; /* one thread records */
}

static void cuda_parallel(struct iso_device *dev, void (*fn)(void *, unsigned, unsigned), void *arg)
{
    (void)dev;
    iso_pool_run_once(fn, arg);
}

/* --- open and close ---------------------------------------------------------------------------------- */

static void cuda_close(struct iso_device *dev)
{
    struct iso_cuda_device *d = cuda_of(dev);
    (void)cudaSetDevice(d->ordinal);
    if (d->stream) (void)cudaStreamSynchronize(d->stream);
    iso_cuda_copies_deinit(d);
    iso_cuda_queue_deinit(d);
    for (size_t i = 0; i <= d->n_buffers; i++) release(&d->buffer[i]);
    (void)cudaFree(d->scratch);
    (void)cudaFree(d->fault);
    if (d->fault_host) (void)cudaFreeHost(d->fault_host);
    if (d->stream) (void)cudaStreamDestroy(d->stream);
    (void)pthread_mutex_destroy(&d->copies.lock);
    free(d);
}

static const struct iso_device_vt *cuda_vt(void)
{
    static struct iso_device_vt vt = {};
    vt.name = "cuda";
    vt.close = cuda_close;
    vt.reserve = cuda_reserve;
    vt.alloc = cuda_alloc;
    vt.free = cuda_free;
    vt.map = cuda_map;
    vt.weight = cuda_weight;
    vt.upload = cuda_upload;
    vt.download = cuda_download;
    vt.zero = cuda_zero;
    vt.copy = cuda_copy;
    vt.host = cuda_host;
    vt.begin = iso_cuda_begin;
    vt.sync = iso_cuda_sync;
    vt.end = iso_cuda_end;
    vt.self_check = iso_device_self_check;
    vt.identity = cuda_identity;
    vt.level = cuda_level;
    vt.threads = cuda_threads;
    vt.codes_bytes = cuda_codes_bytes;
    vt.parallel = cuda_parallel;
    iso_cuda_record_ops(&vt);
    iso_cuda_copy_slots(&vt);
    return &vt;
}

/* No kernel of this build runs on the chip when the smallest one cannot be found for it. */
static __global__ void probe_kernel(void)
{
}

static enum iso_err choose_level(struct iso_cuda_device *d, const struct cudaDeviceProp *p, const char *isa)
{
    const bool any = isa == NULL || strcmp(isa, "auto") == 0;
    const bool hopper = p->major == 9 && p->minor == 0;
    if (!any && strcmp(isa, "sm90") != 0 && strcmp(isa, "generic") != 0) {
        ISO_FAIL(ISO_E_ARG, "instruction set '%s' of cuda: auto, sm90, generic", isa);
    }
    if (!any && strcmp(isa, "sm90") == 0 && !hopper) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "sm90: this machine has no such GPU: %s is sm_%d%d", p->name, p->major, p->minor);
    }
    if (p->major < 8) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "%s is sm_%d%d: sm_80 is the oldest that has kernels", p->name, p->major, p->minor);
    }
    cudaFuncAttributes found;
    const cudaError_t e = cudaFuncGetAttributes(&found, probe_kernel);
    if (e != cudaSuccess) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "this build has no kernels for %s (sm_%d%d): %s; build with GENCODE for it",
                 p->name, p->major, p->minor, cudaGetErrorString(e));
    }
    d->chip.wgmma = hopper && (any || strcmp(isa, "sm90") == 0);
    d->chip.bulk = p->major >= 9 && (any || strcmp(isa, "sm90") == 0);
    (void)snprintf(d->level, sizeof(d->level), "%s", d->chip.wgmma ? "sm90" : "generic");
    return ISO_OK;
}

static enum iso_err open_into(struct iso_cuda_device *d, const char *isa)
{
    int n = 0;
    const cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess || n == 0) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "no CUDA GPU: %s", e == cudaSuccess ? "none found" : cudaGetErrorString(e));
    }
    struct cudaDeviceProp p;
    ISO_CUDA_OK(d, cudaGetDeviceProperties(&p, d->ordinal));
    ISO_TRY(iso_cuda_status(d));
    (void)snprintf(d->chip_name, sizeof(d->chip_name), "%s", p.name);
    ISO_CUDA_OK(d, cudaSetDevice(d->ordinal));
    ISO_TRY(iso_cuda_status(d));
    ISO_TRY(choose_level(d, &p, isa));
    d->chip.n_sm = (uint32_t)p.multiProcessorCount;
    d->chip.smem_block = (uint32_t)p.sharedMemPerBlockOptin;
    ISO_CUDA_OK(d, cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking));
    ISO_CUDA_OK(d, cudaMalloc((void **)&d->fault, sizeof(*d->fault)));
    ISO_CUDA_OK(d, cudaHostAlloc((void **)&d->fault_host, sizeof(*d->fault_host), cudaHostAllocMapped));
    ISO_TRY(iso_cuda_status(d));
    ISO_CUDA_OK(d, cudaMemsetAsync(d->fault, 0, sizeof(*d->fault), d->stream));
    *d->fault_host = 0;
    (void)iso_cuda_queue_init(d);
    return iso_cuda_copies_init(d);
}

extern "C" enum iso_err iso_device_cuda_open(struct iso_device **out, const char *isa)
{
    struct iso_cuda_device *d = (struct iso_cuda_device *)iso_xalloc(1, sizeof(*d));
    d->dev.vt = cuda_vt();
    (void)pthread_mutex_init(&d->copies.lock, NULL);
    (void)snprintf(d->chip_name, sizeof(d->chip_name), "GPU");
    const enum iso_err err = open_into(d, isa);
    if (err != ISO_OK) {
        char detail[512];
        (void)snprintf(detail, sizeof(detail), "%s", iso_err_detail());
        cuda_close(&d->dev);
        return iso_err_adopt(err, detail);
    }
    *out = &d->dev;
    return ISO_OK;
}
