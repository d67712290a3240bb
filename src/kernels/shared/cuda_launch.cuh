/* SPDX-License-Identifier: MIT
 * cuda_launch.cuh - starts kernels so that the next one may begin while the one before drains.
 */
#ifndef ISO_KERNELS_SHARED_CUDA_LAUNCH_CUH
#define ISO_KERNELS_SHARED_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stddef.h>

/* Launches kernel<<<grid, block, smem, stream>>>(args...) with programmatic stream serialisation, which
 * chips before sm_90 ignore. Every kernel that is launched so calls grid_wait() before it touches what
 * others write. A failure stays with the runtime until cudaGetLastError(). */
template <typename... P, typename... A>
static void launch(void (*kernel)(P...), dim3 grid, dim3 block, size_t smem, cudaStream_t stream,
                   A... args)
{
    cudaLaunchAttribute attr = {};
    attr.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attr.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem;
    config.stream = stream;
    config.attrs = &attr;
    config.numAttrs = 1;
    (void)cudaLaunchKernelEx(&config, kernel, P(args)...);
}

/* Lets a kernel use more than the 48 KiB of shared memory that every kernel may. */
template <typename K> static void allow_smem(K *kernel, size_t bytes)
{
    if (bytes > 32 * 1024) { /* the limit of 48 KiB counts static shared memory too */
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    }
}

#endif
