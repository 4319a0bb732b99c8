/* Common definitions of all CUDA kernel files: launches, shared memory, reading and writing elements.
 *
 * The same sources are compiled twice. nvcc makes the module's code. In the tests g++ compiles them with
 * `-include tests/gpu/cuda_on_cpu.h`, which defines CUDA's words for the CPU (a fiber for each thread, one
 * block at a time), so that tests can check a kernel on every machine. For this the sources must use macros
 * for three things:
 *
 *   TIDE_CUDA_LAUNCH("gelu", (gelu_kernel<T>), grid, block, stream, arguments...)   instead of <<< >>>
 *   TIDE_CUDA_SHARED(float, sums, 32);    an array in shared memory, instead of __shared__; on the
 *                                         CPU sums[i] is checked against the array's length, and the array is
 *                                         filled with poison when a block begins
 *   TIDE_CUDA_BARRIER()                   instead of __syncthreads()
 *
 * A block has 48 KB of such arrays. A kernel that needs more requests one further array at the launch:
 *
 *   tide_cuda_may_ask(kernel<T>, bytes)   can a block have so much beside the kernel's arrays on this GPU?
 *   TIDE_CUDA_LAUNCH_ASKING("gelu", (gelu_kernel<T>), grid, block, bytes, stream, arguments...)
 *   TIDE_CUDA_SHARED_ASKED(uint4, held);  that array, with the same name and type in every kernel of a file
 *
 * A pointer into shared memory, such as a device function's parameter, has the type tide_cuda_shared<float>,
 * so that it stays checked on the CPU. tide_cuda_shared_load<uint4>(sums, i) and tide_cuda_shared_store(sums,
 * i, value) access 16 bytes (or 4, or 8) at once; i counts elements of the array, and the address must be a
 * multiple of the vector's size.
 *
 * Warp shuffles and votes are CUDA's own words with the full mask; the emulation has them.
 *
 * Rules for kernels: every thread of a block reaches every barrier, every lane every shuffle; no float
 * atomics; the order of a sum depends only on sizes, so that results have the same bits on every run;
 * accesses of 16 bytes if addresses allow it; the grid may depend on the GPU only if the result does not
 * depend on the grid.
 */
#ifndef TIDEPOOL_KERNELS_CUDA_LAUNCH_H
#define TIDEPOOL_KERNELS_CUDA_LAUNCH_H

#include "base/fp16.h"
#include "kernels/cuda/launchers.h"

#if defined(__CUDACC__)

#include <cuda_runtime.h>

#define TIDE_CUDA_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define TIDE_CUDA_BARRIER()                 __syncthreads()
#define TIDE_CUDA_SHARED_ASKED(type, name)  extern __shared__ __align__(16) type name[]
#define TIDE_CUDA_LAUNCH(label, kernel, grid, block, stream, ...)                                            \
    TIDE_CUDA_LAUNCH_ASKING(label, kernel, grid, block, 0, stream, __VA_ARGS__)
#define TIDE_CUDA_LAUNCH_ASKING(label, kernel, grid, block, bytes, stream, ...)                              \
    (TIDE_CUDA_UNPACK kernel<<<grid, block, bytes, (cudaStream_t)(stream)>>>(__VA_ARGS__),                   \
     tide_cuda_launched(label, (int)cudaGetLastError()))
#define TIDE_CUDA_UNPACK(...) __VA_ARGS__

template <typename Kernel> static inline bool tide_cuda_may_ask(Kernel *kernel, size_t bytes)
{
    const size_t arrays_bytes = 1024; /* upper bound of the kernel's other arrays */
    int device = 0, most = 0;
    const bool may =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) == cudaSuccess &&
        bytes + arrays_bytes <= (size_t)most &&
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes) ==
            cudaSuccess &&
        cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared) == cudaSuccess;
    /* Clear the error, so that the launch without this array does not report it. */
    const cudaError_t forgotten = may ? cudaSuccess : cudaGetLastError();
    (void)forgotten;
    return may;
}

template <typename E> using tide_cuda_shared = E *;

template <typename V, typename E>
__device__ __forceinline__ V tide_cuda_shared_load(const E *from, size_t index)
{
    return *reinterpret_cast<const V *>(from + index);
}
template <typename V, typename E>
__device__ __forceinline__ void tide_cuda_shared_store(E *to, size_t index, const V &value)
{
    *reinterpret_cast<V *>(to + index) = value;
}

#endif /* otherwise tests/gpu/cuda_on_cpu.h defines these */

/* --- elements --- */

/* How a dtype is stored and converted to fp32 and back (nearest, ties to even: the CPU's bits). On a GPU the
 * conversions are instructions, which round as bf16.h and fp16.h do; a NaN's payload is kept if those files
 * keep it. */
struct tide_cuda_fp32 {
    typedef float stored;
    enum { per_16_bytes = 4 };
    static __device__ __forceinline__ float load(stored value)
    {
        return value;
    }
    static __device__ __forceinline__ stored store(float value)
    {
        return value;
    }
};
struct tide_cuda_bf16 {
    typedef tide_bf16 stored;
    enum { per_16_bytes = 8 };
    static __device__ __forceinline__ float load(stored value)
    {
        return tide_bf16_to_float(value);
    }
    static __device__ __forceinline__ stored store(float value)
    {
#if defined(__CUDA_ARCH__)
        stored nearest;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(nearest) : "f"(value));
        return value == value ? nearest : (stored)(__float_as_uint(value) >> 16 | 0x40u);
#else
        return tide_bf16_from_float(value);
#endif
    }
};
struct tide_cuda_fp16 {
    typedef tide_fp16 stored;
    enum { per_16_bytes = 8 };
    static __device__ __forceinline__ float load(stored value)
    {
#if defined(__CUDA_ARCH__)
        float same;
        asm("cvt.f32.f16 %0, %1;" : "=f"(same) : "h"(value));
        const uint32_t sign = (value & 0x8000u) << 16, rest = (value & 0x7fffu) << 13;
        return (value & 0x7fffu) > 0x7c00u ? __uint_as_float(sign | rest | 0x7fc00000u) : same;
#else
        return tide_fp16_to_float(value);
#endif
    }
    static __device__ __forceinline__ stored store(float value)
    {
#if defined(__CUDA_ARCH__)
        stored nearest;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(nearest) : "f"(value));
        return nearest;
#else
        return tide_fp16_from_float(value);
#endif
    }
};

/* Call function<element type>(...) for a run-time dtype; the value is its status. */
#define TIDE_CUDA_BY_DTYPE(dtype, function, ...)                                                             \
    ((dtype) == TIDE_DTYPE_BF16   ? function<tide_cuda_bf16>(__VA_ARGS__)                                    \
     : (dtype) == TIDE_DTYPE_FP16 ? function<tide_cuda_fp16>(__VA_ARGS__)                                    \
                                  : function<tide_cuda_fp32>(__VA_ARGS__))

/* 16 bytes of elements, accessed at once. The address is a multiple of 16. */
template <typename T> struct alignas(16) tide_cuda_vector {
    typename T::stored element[T::per_16_bytes];
};

#endif
