/* SPDX-License-Identifier: MIT
 * fake_cudart.c - a CUDA runtime without a GPU, whose faults tests choose: linked in place of the real one.
 *
 * Memory is the host's, kernels do nothing, so nothing that runs here can pass the self-check: a program with
 * this runtime must always end with an error that has a name. ISO_FAKE_CUDA says which one it meets:
 *   no-driver, no-device       nothing to open
 *   busy                       another process has the GPU for itself
 *   arch                       no image of the program runs on the chip
 *   nomem:N                    the N-th device allocation does not fit
 *   host-nomem:N               the same for pinned memory
 *   lost:N                     the device is lost at the N-th launch, and stays so
 *   kernel:NAME                the program has no image of kernels whose name holds NAME
 *   old                        the chip is sm_75
 *   none (or unset)            an sm_90 that computes nothing: wrong kernels */
#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What nvcc's generated code calls; not in a header for C. */
void **__cudaRegisterFatBinary(void *bin);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid,
                            void *bid, dim3 *block, dim3 *grid, int *warp);
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int ext, size_t size, int constant,
                       int global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t smem, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *smem, void *stream);
cudaError_t __cudaGetKernel(void **kernel, const void *host);
cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **args, size_t smem, cudaStream_t stream);

/* --- faults ---------------------------------------------------------------------------------------------- */

/* Is this the fault? *arg: what follows the colon, "" without one. */
static bool fault(const char *name, const char **arg)
{
    const char *f = getenv("ISO_FAKE_CUDA");
    const size_t n = strlen(name);
    if (f == NULL || strncmp(f, name, n) != 0 || (f[n] != '\0' && f[n] != ':')) return false;
    *arg = f[n] == ':' ? f + n + 1 : "";
    return true;
}

/* The N-th call with this counter. */
static bool nth(const char *name, unsigned long *calls)
{
    const char *arg = NULL;
    return fault(name, &arg) && ++*calls >= strtoul(arg, NULL, 10);
}

static bool lost;
static cudaError_t last;

static cudaError_t answer(cudaError_t e)
{
    if (lost && e == cudaSuccess) e = cudaErrorLaunchFailure;
    if (e != cudaSuccess) last = e;
    return e;
}

static const struct { cudaError_t e; const char *name, *text; } errors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

static size_t entry_of(cudaError_t e)
{
    size_t i = sizeof(errors) / sizeof(errors[0]) - 1;
    while (i > 0 && errors[i].e != e) i--;
    return i;
}

const char *cudaGetErrorName(cudaError_t e) { return errors[entry_of(e)].name; }
const char *cudaGetErrorString(cudaError_t e) { return errors[entry_of(e)].text; }
cudaError_t cudaPeekAtLastError(void) { return lost ? cudaErrorLaunchFailure : last; }

cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = cudaPeekAtLastError();
    last = cudaSuccess;
    return e;
}

/* --- the device ------------------------------------------------------------------------------------------- */

cudaError_t cudaGetDeviceCount(int *n)
{
    const char *arg = NULL;
    *n = 1;
    if (fault("no-driver", &arg)) return answer(cudaErrorInsufficientDriver);
    if (fault("no-device", &arg)) return answer(cudaErrorNoDevice);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    const char *arg = NULL;
    (void)device;
    memset(p, 0, sizeof(*p));
    (void)snprintf(p->name, sizeof(p->name), "Fake GPU");
    p->major = fault("old", &arg) ? 7 : 9;
    p->minor = p->major == 7 ? 5 : 0;
    p->multiProcessorCount = 4;
    p->sharedMemPerBlockOptin = 227 * 1024;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    const char *arg = NULL;
    (void)device;
    return answer(fault("busy", &arg) ? cudaErrorDevicesUnavailable : cudaSuccess);
}

/* --- memory --------------------------------------------------------------------------------------------------- */

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    *free_bytes = (size_t)123 << 20;
    *total = (size_t)1 << 30;
    return answer(cudaSuccess);
}

static cudaError_t take(void **p, size_t n, const char *name, unsigned long *calls)
{
    if (nth(name, calls)) return answer(cudaErrorMemoryAllocation);
    *p = calloc(1, n);
    return answer(*p ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaMalloc(void **p, size_t n)
{
    static unsigned long calls;
    return take(p, n, "nomem", &calls);
}

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags)
{
    static unsigned long calls;
    (void)flags;
    return take(p, n, "host-nomem", &calls);
}

cudaError_t cudaFree(void *p) { free(p); return answer(cudaSuccess); }
cudaError_t cudaFreeHost(void *p) { free(p); return answer(cudaSuccess); }

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind, (void)stream;
    if (!lost) memcpy(to, from, n);
    return answer(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t n, cudaStream_t stream)
{
    (void)stream;
    if (!lost) memset(p, value, n);
    return answer(cudaSuccess);
}

cudaError_t cudaMemset2DAsync(void *p, size_t pitch, int value, size_t width, size_t height, cudaStream_t stream)
{
    (void)stream;
    for (size_t i = 0; i < height && !lost; i++) memset((char *)p + i * pitch, value, width);
    return answer(cudaSuccess);
}

/* --- streams, events, graphs: everything is done at once -------------------------------------------------------- */

static int something; /* what every handle points to */
#define HANDLE(p) (*(p) = (void *)&something, answer(cudaSuccess))
#define DONE(a, b) { (void)(a), (void)(b); return answer(cudaSuccess); }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) { (void)flags; return HANDLE(s); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int p) { (void)flags, (void)p; return HANDLE(s); }
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = *greatest = 0; return answer(cudaSuccess); }
cudaError_t cudaStreamDestroy(cudaStream_t s) DONE(s, 0)
cudaError_t cudaStreamQuery(cudaStream_t s) DONE(s, 0)
cudaError_t cudaStreamSynchronize(cudaStream_t s) DONE(s, 0)
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) { (void)flags; DONE(s, e) }
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode m) DONE(s, m)
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *g) { (void)s; return HANDLE(g); }
cudaError_t cudaEventCreate(cudaEvent_t *e) { return HANDLE(e); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) { (void)flags; return HANDLE(e); }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) DONE(e, s)
cudaError_t cudaEventQuery(cudaEvent_t e) DONE(e, 0)
cudaError_t cudaEventSynchronize(cudaEvent_t e) DONE(e, 0)
cudaError_t cudaEventDestroy(cudaEvent_t e) DONE(e, 0)
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t a, cudaEvent_t b) { (void)a, (void)b; *ms = 0; return answer(cudaSuccess); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long f) { (void)g, (void)f; return HANDLE(x); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s) DONE(x, s)
cudaError_t cudaGraphDestroy(cudaGraph_t g) DONE(g, 0)
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x) DONE(x, 0)

/* --- kernels -------------------------------------------------------------------------------------------------------- */

static struct { const void *host; const char *name; } kernels[4096];
static size_t n_kernels;

void **__cudaRegisterFatBinary(void *bin) { (void)bin; return (void **)&something; }
void __cudaRegisterFatBinaryEnd(void **handle) { (void)handle; }
void __cudaUnregisterFatBinary(void **handle) { (void)handle; }

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int limit, void *tid,
                            void *bid, dim3 *block, dim3 *grid, int *warp)
{
    (void)handle, (void)device, (void)limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    if (n_kernels == sizeof(kernels) / sizeof(kernels[0])) abort();
    kernels[n_kernels].host = host;
    kernels[n_kernels++].name = name;
}

void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int ext, size_t size, int constant,
                       int global)
{
    (void)handle, (void)host, (void)address, (void)name, (void)ext, (void)size, (void)constant, (void)global;
}

static cudaError_t found(const void *host)
{
    const char *arg = NULL;
    if (fault("arch", &arg)) return answer(cudaErrorNoKernelImageForDevice);
    if (!fault("kernel", &arg)) return answer(cudaSuccess);
    for (size_t i = 0; i < n_kernels; i++) {
        if (kernels[i].host == host && strstr(kernels[i].name, arg)) return answer(cudaErrorNoKernelImageForDevice);
    }
    return answer(cudaSuccess);
}

static cudaError_t launch(const void *host)
{
    static unsigned long calls;
    if (nth("lost", &calls)) lost = true;
    return found(host);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t smem, void *stream)
{
    (void)grid, (void)block, (void)smem, (void)stream;
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *smem, void *stream)
{
    *grid = *block = (dim3){1, 1, 1};
    *smem = 0;
    *(void **)stream = NULL;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(void **kernel, const void *host)
{
    *kernel = (void *)(uintptr_t)host;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(void *kernel, dim3 grid, dim3 block, void **args, size_t smem, cudaStream_t stream)
{
    (void)grid, (void)block, (void)args, (void)smem, (void)stream;
    return launch(kernel);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *host, void **args)
{
    (void)config, (void)args;
    return launch(host);
}

cudaError_t cudaFuncSetAttribute(const void *host, enum cudaFuncAttribute attr, int value)
{
    (void)attr, (void)value;
    return found(host);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *host)
{
    memset(a, 0, sizeof(*a));
    a->binaryVersion = 90;
    return found(host);
}

/* Of the driver, only tensor maps are asked for. */
static int encode(void) { return 0; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn, unsigned version, unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *status)
{
    (void)symbol, (void)version, (void)flags;
    *(int (**)(void))fn = encode;
    *status = cudaDriverEntryPointSuccess;
    return answer(cudaSuccess);
}
