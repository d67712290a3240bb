/* SPDX-License-Identifier: MIT
 * metal_gpu_darwin.m - the seam metal_gpu.h on a Mac: Metal calls and nothing else.
 *
 * NOT RUN ON HARDWARE YET: written from Apple's documentation and checked only for syntax, against the
 * declarations in tests/metal_stubs. `make check-metal` on a Mac is the missing proof (docs/metal.md).
 *
 * Manual reference counting (-fno-objc-arc): Objective-C objects live in a plain C structure. What a
 * message returns autoreleased is retained inside a pool of its own, so a thread without a pool, which
 * the engine's is, collects nothing.
 */
#import <Foundation/Foundation.h>
#import <Metal/Metal.h>
#include <dispatch/dispatch.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "device/metal_gpu.h"

#define PIPELINES 1024 /* most kernels with their constants */
#define BUFFERS 16384  /* one per tensor of the largest model, and a few */
#define SIMD_WIDTH 32  /* threads of a simdgroup on every GPU that this backend serves */

struct iso_metal_gpu {
    id<MTLDevice> device;
    id<MTLCommandQueue> queue;
    id<MTLLibrary> library;
    id<MTLComputePipelineState> pipeline[PIPELINES]; /* [0] is none */
    uint32_t n_pipelines;
    id<MTLBuffer> buffer[BUFFERS]; /* [0] is none */
    uint32_t n_buffers;
    id<MTLCommandBuffer> commands;           /* what is being recorded, or nil */
    id<MTLComputeCommandEncoder> encoder;
    dispatch_semaphore_t done;
    bool serial;
    bool lost;        /* a commit failed or hung: the GPU may still use every object */
    enum iso_err err; /* the first failure while recording, or that of the lost device */
    char detail[512];
    struct iso_metal_info info;
};

/* --- failures ------------------------------------------------------------------------------------------- */

static const char *text_of(NSError *error)
{
    NSString *s = error != nil ? [error localizedDescription] : nil;
    const char *utf8 = s != nil ? [s UTF8String] : NULL;
    return utf8 != NULL ? utf8 : "no description";
}

/* Keeps the first failure: the next commit returns it. */
static void keep(struct iso_metal_gpu *gpu, enum iso_err err)
{
    if (gpu->err != ISO_OK) return;
    gpu->err = err;
    (void)snprintf(gpu->detail, sizeof(gpu->detail), "%s", iso_err_detail());
}

static void note(struct iso_metal_gpu *gpu, int line, const char *what)
{
    keep(gpu, iso_err_raise(ISO_E_GPU, __FILE__, line, "%s: %s", gpu->info.name, what));
}

/* --- open and close ------------------------------------------------------------------------------------- */

/* Safe math: no re-association, infinities and NaN as they are. Contraction is switched off in the
 * source itself, which all kernels begin with. */
static void choose_math(MTLCompileOptions *options)
{
#if defined(__MAC_OS_X_VERSION_MAX_ALLOWED) && __MAC_OS_X_VERSION_MAX_ALLOWED >= 150000
    if (@available(macOS 15.0, *)) {
        options.mathMode = MTLMathModeSafe;
        options.mathFloatingPointFunctions = MTLMathFloatingPointFunctionsPrecise;
        return;
    }
#endif
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wdeprecated-declarations"
    options.fastMathEnabled = NO;
#pragma clang diagnostic pop
}

static enum iso_err compile(struct iso_metal_gpu *gpu, const char *source, size_t len)
{
    NSString *text = [[NSString alloc] initWithBytes:source length:len encoding:NSUTF8StringEncoding];
    if (text == nil) ISO_FAIL(ISO_E_GPU, "the kernels' source is not UTF-8");
    MTLCompileOptions *options = [[MTLCompileOptions alloc] init];
    choose_math(options);
    NSError *error = nil;
    gpu->library = [gpu->device newLibraryWithSource:text options:options error:&error];
    [options release];
    [text release];
    /* A library with warnings comes with an error object too: only a missing library is a failure. */
    if (gpu->library == nil) ISO_FAIL(ISO_E_GPU, "%s: the Metal compiler says: %s", gpu->info.name, text_of(error));
    return ISO_OK;
}

static void fill_info(struct iso_metal_gpu *gpu)
{
    const char *name = [[gpu->device name] UTF8String];
    (void)snprintf(gpu->info.name, sizeof(gpu->info.name), "%s", name != NULL ? name : "Metal GPU");
    gpu->info.emulated = false;
    gpu->info.memory = gpu->device.recommendedMaxWorkingSetSize;
    gpu->info.group_threads = (uint32_t)gpu->device.maxThreadsPerThreadgroup.width;
    gpu->info.group_bytes = (uint32_t)gpu->device.maxThreadgroupMemoryLength;
}

static enum iso_err open_into(struct iso_metal_gpu *gpu, const char *source, size_t len)
{
    gpu->device = MTLCreateSystemDefaultDevice(); /* returned owned */
    if (gpu->device == nil) ISO_FAIL(ISO_E_UNSUPPORTED, "this machine has no Metal GPU");
    fill_info(gpu);
    /* Pages and weights are shared with the host, and kernels rely on simdgroups of 32 threads. */
    if (!gpu->device.hasUnifiedMemory || ![gpu->device supportsFamily:MTLGPUFamilyApple7]) {
        ISO_FAIL(ISO_E_UNSUPPORTED, "%s: the kernels need an Apple GPU of M1 or later", gpu->info.name);
    }
    gpu->queue = [gpu->device newCommandQueue];
    gpu->done = dispatch_semaphore_create(0);
    if (gpu->queue == nil || gpu->done == NULL) ISO_FAIL(ISO_E_GPU, "%s: no command queue", gpu->info.name);
    return compile(gpu, source, len);
}

enum iso_err iso_metal_gpu_open(struct iso_metal_gpu **out, const char *source, size_t len, bool serial)
{
    struct iso_metal_gpu *gpu = iso_xalloc(1, sizeof(*gpu));
    gpu->serial = serial;
    enum iso_err err = ISO_OK;
    @autoreleasepool {
        err = open_into(gpu, source, len);
    }
    if (err != ISO_OK) {
        char detail[512];
        (void)snprintf(detail, sizeof(detail), "%s", iso_err_detail());
        iso_metal_gpu_close(gpu);
        return iso_err_adopt(err, detail);
    }
    *out = gpu;
    return ISO_OK;
}

static void drop_recording(struct iso_metal_gpu *gpu)
{
    if (gpu->encoder != nil) [gpu->encoder endEncoding];
    [gpu->encoder release]; /* a message to nil does nothing */
    [gpu->commands release];
    gpu->encoder = nil;
    gpu->commands = nil;
}

void iso_metal_gpu_close(struct iso_metal_gpu *gpu)
{
    if (gpu == NULL) return;
    @autoreleasepool {
        if (!gpu->lost) { /* else left to the end of the process: the GPU may still touch them */
            drop_recording(gpu);
            for (uint32_t i = 1; i <= gpu->n_buffers; i++) [gpu->buffer[i] release];
            for (uint32_t i = 1; i <= gpu->n_pipelines; i++) [gpu->pipeline[i] release];
            [gpu->library release];
            [gpu->queue release];
            [gpu->device release];
            if (gpu->done != NULL) dispatch_release(gpu->done);
        }
    }
    free(gpu);
}

const struct iso_metal_info *iso_metal_gpu_info(const struct iso_metal_gpu *gpu)
{
    return &gpu->info;
}

/* --- pipelines ------------------------------------------------------------------------------------------ */

static id<MTLFunction> specialise(struct iso_metal_gpu *gpu, const char *function,
                                  const struct iso_metal_constant *constants, size_t n, NSError **error)
{
    MTLFunctionConstantValues *values = [[MTLFunctionConstantValues alloc] init];
    for (size_t i = 0; i < n; i++) {
        const bool flag = constants[i].value != 0;
        const uint32_t word = constants[i].value;
        if (constants[i].type == ISO_METAL_BOOL) {
            [values setConstantValue:&flag type:MTLDataTypeBool atIndex:constants[i].index];
        } else {
            [values setConstantValue:&word type:MTLDataTypeUInt atIndex:constants[i].index];
        }
    }
    NSString *name = [[NSString alloc] initWithUTF8String:function];
    id<MTLFunction> f = [gpu->library newFunctionWithName:name constantValues:values error:error];
    [name release];
    [values release];
    return f;
}

static enum iso_err new_pipeline(struct iso_metal_gpu *gpu, const char *function,
                                 const struct iso_metal_constant *constants, size_t n, uint32_t *pipeline,
                                 uint32_t *width)
{
    NSError *error = nil;
    if (gpu->n_pipelines + 1 >= PIPELINES) ISO_FAIL(ISO_E_LIMIT, "%s: more than %d kernels", function, PIPELINES - 1);
    id<MTLFunction> f = specialise(gpu, function, constants, n, &error);
    if (f == nil) ISO_FAIL(ISO_E_GPU, "%s: kernel %s: %s", gpu->info.name, function, text_of(error));
    error = nil;
    id<MTLComputePipelineState> state = [gpu->device newComputePipelineStateWithFunction:f error:&error];
    [f release];
    if (state == nil) ISO_FAIL(ISO_E_GPU, "%s: kernel %s: %s", gpu->info.name, function, text_of(error));
    if (state.threadExecutionWidth != SIMD_WIDTH) {
        const unsigned got = (unsigned)state.threadExecutionWidth;
        [state release];
        ISO_FAIL(ISO_E_UNSUPPORTED, "%s: kernel %s runs in simdgroups of %u threads, not %d", gpu->info.name, function,
                 got, SIMD_WIDTH);
    }
    gpu->pipeline[++gpu->n_pipelines] = state;
    *pipeline = gpu->n_pipelines;
    *width = (uint32_t)state.maxTotalThreadsPerThreadgroup;
    return ISO_OK;
}

enum iso_err iso_metal_gpu_pipeline(struct iso_metal_gpu *gpu, const char *function,
                                    const struct iso_metal_constant *constants, size_t n, uint32_t *pipeline,
                                    uint32_t *width)
{
    enum iso_err err = ISO_OK;
    @autoreleasepool {
        err = new_pipeline(gpu, function, constants, n, pipeline, width);
    }
    return err;
}

/* --- memory --------------------------------------------------------------------------------------------- */

/* Takes b. */
static enum iso_err add_buffer(struct iso_metal_gpu *gpu, id<MTLBuffer> b, uint32_t *buffer)
{
    if (gpu->n_buffers + 1 >= BUFFERS) {
        [b release];
        ISO_FAIL(ISO_E_LIMIT, "more than %d Metal buffers", BUFFERS - 1);
    }
    gpu->buffer[++gpu->n_buffers] = b; /* indices are not used again */
    *buffer = gpu->n_buffers;
    return ISO_OK;
}

enum iso_err iso_metal_gpu_alloc(struct iso_metal_gpu *gpu, size_t len, uint32_t *buffer, void **host)
{
    const size_t want = len > 0 ? len : 16;
    if (want > gpu->device.maxBufferLength) {
        ISO_FAIL(ISO_E_NOMEM, "%s: a buffer of %zu bytes, the largest has %zu", gpu->info.name, want,
                 (size_t)gpu->device.maxBufferLength);
    }
    id<MTLBuffer> b = [gpu->device newBufferWithLength:want options:MTLResourceStorageModeShared];
    if (b == nil) ISO_FAIL(ISO_E_NOMEM, "%s: no buffer of %zu bytes", gpu->info.name, want);
    void *p = [b contents];
    ISO_TRY(add_buffer(gpu, b, buffer));
    memset(p, 0, want); /* new buffers are zeroed in practice; the contract does not rest on that */
    *host = p;
    return ISO_OK;
}

enum iso_err iso_metal_gpu_wrap(struct iso_metal_gpu *gpu, const void *p, size_t len, uint32_t *buffer)
{
    if (len > gpu->device.maxBufferLength) {
        ISO_FAIL(ISO_E_NOMEM, "%s: a tensor of %zu bytes, the largest buffer has %zu", gpu->info.name, len,
                 (size_t)gpu->device.maxBufferLength);
    }
    id<MTLBuffer> b = [gpu->device newBufferWithBytesNoCopy:(void *)(uintptr_t)p
                                                     length:len
                                                    options:MTLResourceStorageModeShared
                                                deallocator:nil];
    if (b == nil) ISO_FAIL(ISO_E_GPU, "%s: %zu mapped bytes at %p were refused", gpu->info.name, len, p);
    return add_buffer(gpu, b, buffer);
}

void iso_metal_gpu_free(struct iso_metal_gpu *gpu, uint32_t buffer)
{
    if (gpu->lost) return; /* the GPU may still use it */
    [gpu->buffer[buffer] release];
    gpu->buffer[buffer] = nil;
}

/* --- a step --------------------------------------------------------------------------------------------- */

/* Command buffers do not retain what they use: buffers outlive the commit, which waits. */
static bool recording(struct iso_metal_gpu *gpu)
{
    if (gpu->encoder != nil) return true;
    @autoreleasepool {
        gpu->commands = [[gpu->queue commandBufferWithUnretainedReferences] retain];
        const MTLDispatchType type = gpu->serial ? MTLDispatchTypeSerial : MTLDispatchTypeConcurrent;
        gpu->encoder = [[gpu->commands computeCommandEncoderWithDispatchType:type] retain];
    }
    if (gpu->encoder == nil) note(gpu, __LINE__, "no command encoder");
    return gpu->encoder != nil;
}

void iso_metal_gpu_dispatch(struct iso_metal_gpu *gpu, const struct iso_metal_dispatch *d)
{
    if (gpu->err != ISO_OK || !recording(gpu)) return;
    id<MTLComputeCommandEncoder> e = gpu->encoder;
    [e setComputePipelineState:gpu->pipeline[d->pipeline]];
    [e setBytes:d->args length:d->args_len atIndex:0];
    for (size_t i = 0; i < d->n_bind; i++) {
        if (d->bind[i].buffer == 0) continue; /* the kernel was specialised not to look */
        [e setBuffer:gpu->buffer[d->bind[i].buffer] offset:d->bind[i].offset atIndex:i + 1];
    }
    if (d->threadgroup_bytes > 0) [e setThreadgroupMemoryLength:d->threadgroup_bytes atIndex:0];
    [e dispatchThreadgroups:MTLSizeMake(d->groups[0], d->groups[1], d->groups[2])
        threadsPerThreadgroup:MTLSizeMake(d->group_threads, 1, 1)];
}

void iso_metal_gpu_barrier(struct iso_metal_gpu *gpu, const uint32_t *buffers, size_t n)
{
    id<MTLResource> named[ISO_METAL_BINDINGS];
    if (gpu->err != ISO_OK || gpu->encoder == nil || gpu->serial) return; /* serial dispatches wait anyway */
    for (size_t i = 0; i < n;) {
        size_t k = 0;
        for (; k < ISO_METAL_BINDINGS && i < n; i++) named[k++] = gpu->buffer[buffers[i]];
        [gpu->encoder memoryBarrierWithResources:named count:k];
    }
}

/* Waits for the recorded commands. */
static enum iso_err run(struct iso_metal_gpu *gpu, uint32_t limit_ms)
{
    dispatch_semaphore_t done = gpu->done;
    [gpu->encoder endEncoding];
    [gpu->commands addCompletedHandler:^(id<MTLCommandBuffer> finished) {
      (void)finished;
      (void)dispatch_semaphore_signal(done);
    }];
    [gpu->commands commit];
    const dispatch_time_t until = dispatch_time(DISPATCH_TIME_NOW, (int64_t)limit_ms * (int64_t)NSEC_PER_MSEC);
    if (dispatch_semaphore_wait(done, until) != 0) {
        ISO_FAIL(ISO_E_TIMEOUT, "%s did not finish a step in %u ms", gpu->info.name, limit_ms);
    }
    if (gpu->commands.status != MTLCommandBufferStatusCompleted) {
        ISO_FAIL(ISO_E_GPU, "%s: command buffer failed (status %d): %s", gpu->info.name, (int)gpu->commands.status,
                 text_of(gpu->commands.error));
    }
    return ISO_OK;
}

enum iso_err iso_metal_gpu_commit(struct iso_metal_gpu *gpu, uint32_t limit_ms)
{
    if (gpu->err != ISO_OK) return iso_err_adopt(gpu->err, gpu->detail);
    if (gpu->encoder == nil) return ISO_OK;
    enum iso_err err = ISO_OK;
    @autoreleasepool {
        err = run(gpu, limit_ms);
        if (err == ISO_OK) {
            [gpu->encoder release];
            [gpu->commands release];
        }
    }
    if (err != ISO_OK) { /* final: the objects stay, see iso_metal_gpu_close() */
        keep(gpu, err);
        gpu->lost = true;
    }
    gpu->encoder = nil;
    gpu->commands = nil;
    return err;
}
