/* Kernels that run tile.h's three instructions as attention's kernels do, and the plain code with the same
 * results: one warp multiplies, loads and copies; a grid converts whole ranges of numbers.
 * gpu_tile_on_cpu.cc compiles this file for the CPU: there it tests the emulated instructions and the test
 * itself. */
#include "kernels/cuda/tile.h"

extern "C" {
#include "tests/gpu/gpu_tile.h"
}

/* Calls the function for one of the two dtypes that a GPU's instructions support. */
#define BY_NARROW(function, stream, args)                                                                    \
    ((args)->dtype == TIDE_DTYPE_BF16 ? function<tide_cuda_bf16>(stream, args)                               \
                                      : function<tide_cuda_fp16>(stream, args))

/* ---- the product ---- */

template <typename T> __global__ void multiply_kernel(gpu_tile_product *it)
{
    const int lane = tide_lane();
    tide_pair<T> a[4], b[2];
    float by_instruction[4], by_reference[4];
    for (int i = 0; i < 2; i++)
        b[i] = tide_pair<T>::of(it->b[lane][i][0], it->b[lane][i][1]);
    for (int i = 0; i < 4; i++) {
        a[i] = tide_pair<T>::of(it->a[lane][i][0], it->a[lane][i][1]);
        by_instruction[i] = by_reference[i] = it->c[lane][i];
    }
    tide_multiply(by_instruction, a, b[0], b[1]);
    tide_multiply_reference(by_reference, a, b[0], b[1]);
    for (int i = 0; i < 4; i++) {
        it->by_instruction[lane][i] = by_instruction[i];
        it->by_reference[lane][i] = by_reference[i];
    }
}

template <typename T> static tide_status multiply(void *stream, const gpu_tile_args *args)
{
    return TIDE_CUDA_LAUNCH("tile product", (multiply_kernel<T>), dim3(1), dim3(TIDE_WARP), stream,
                            (gpu_tile_product *)args->data);
}

/* ---- loading four matrices ---- */

template <typename T, bool TRANSPOSED>
static __device__ __forceinline__ void load_both(gpu_tile_matrices *it, tide_tile<T> tile, int lane)
{
    tide_pair<T> by_instruction[4], by_reference[4];
    tide_load_matrices<T, TRANSPOSED>(by_instruction, tile, it->own[lane]);
    tide_load_matrices_reference<T, TRANSPOSED>(by_reference, tile, it->own[lane]);
    for (int i = 0; i < 4; i++) {
        it->by_instruction[TRANSPOSED][lane][i] = by_instruction[i].bits;
        it->by_reference[TRANSPOSED][lane][i] = by_reference[i].bits;
    }
}

template <typename T> __global__ void load_kernel(gpu_tile_matrices *it)
{
    TIDE_CUDA_SHARED(typename T::stored, tile, GPU_TILE_NUMBERS);
    const int lane = tide_lane();
    for (int i = lane; i < GPU_TILE_NUMBERS; i += TIDE_WARP)
        tile[i] = it->tile[i];
    TIDE_CUDA_BARRIER();
    load_both<T, false>(it, tile, lane);
    load_both<T, true>(it, tile, lane);
}

template <typename T> static tide_status load(void *stream, const gpu_tile_args *args)
{
    return TIDE_CUDA_LAUNCH("tile matrices", (load_kernel<T>), dim3(1), dim3(TIDE_WARP), stream,
                            (gpu_tile_matrices *)args->data);
}

/* ---- asynchronous copies ---- */

template <typename T> __global__ void copy_kernel(gpu_tile_copies *it)
{
    TIDE_CUDA_SHARED(typename T::stored, tile, GPU_TILE_NUMBERS);
    const int lane = tide_lane(), own = lane * GPU_TILE_GRANULE;
    tide_async_copies<T> copies{tile};
    for (int i = lane; i < GPU_TILE_NUMBERS; i += TIDE_WARP)
        tile[i] = it->tile[i];
    TIDE_CUDA_BARRIER();
    for (int group = 0; group < 2; group++) {
        copies.copy(it->at[group][lane], &it->from[group][own], it->inside[group][lane]);
        copies.commit();
    }
    copies.template wait<1>();
    TIDE_CUDA_BARRIER();
    for (int i = 0; i < GPU_TILE_GRANULE; i++)
        it->early[own + i] = tile[it->at[0][lane] + i];
    copies.template wait<0>();
    TIDE_CUDA_BARRIER();
    for (int i = lane; i < GPU_TILE_NUMBERS; i += TIDE_WARP)
        it->tile[i] = tile[i];
}

template <typename T> static tide_status copy(void *stream, const gpu_tile_args *args)
{
    return TIDE_CUDA_LAUNCH("tile copies", (copy_kernel<T>), dim3(1), dim3(TIDE_WARP), stream,
                            (gpu_tile_copies *)args->data);
}

/* ---- conversions ---- */

static __device__ __forceinline__ tide_bf16 down_reference(tide_cuda_bf16, float value)
{
    return tide_bf16_from_float(value);
}
static __device__ __forceinline__ tide_fp16 down_reference(tide_cuda_fp16, float value)
{
    return tide_fp16_from_float(value);
}
static __device__ __forceinline__ float up_reference(tide_cuda_bf16, tide_bf16 value)
{
    return tide_bf16_to_float(value);
}
static __device__ __forceinline__ float up_reference(tide_cuda_fp16, tide_fp16 value)
{
    return tide_fp16_to_float(value);
}

template <typename T>
static __device__ __forceinline__ bool same_number(typename T::stored a, typename T::stored b)
{
    const float number = up_reference(T(), a), other = up_reference(T(), b);
    return a == b || (number != number && other != other);
}

static __device__ __forceinline__ float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static __device__ __forceinline__ uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static __device__ __forceinline__ void wrong(gpu_tile_conversions *it, uint32_t *count, uint32_t bits)
{
    atomicAdd(count, 1u);
    /* One wrong number is kept; which one does not matter. */
    it->an_example = bits;
}

enum { CONVERT_THREADS = 256, CONVERT_EACH = 256 };

template <typename T> __global__ void convert_kernel(gpu_tile_conversions *it, uint32_t first)
{
    const uint32_t begin = first + (blockIdx.x * CONVERT_THREADS + threadIdx.x) * CONVERT_EACH;
    for (uint32_t bits = begin; bits != begin + CONVERT_EACH; bits++) {
        const float value = float_of(bits), other = float_of(bits ^ 0x80000001u);
        const typename T::stored expected = down_reference(T(), value), beside = down_reference(T(), other);
        const uint32_t pair = tide_pack(T(), value, other);
        if (T::store(value) != expected)
            wrong(it, &it->wrong_down, bits);
        if (!same_number<T>((typename T::stored)(pair & 0xffffu), expected) ||
            !same_number<T>((typename T::stored)(pair >> 16), beside))
            wrong(it, &it->wrong_pairs, bits);
        const float up = T::load((typename T::stored)bits),
                    number = up_reference(T(), (typename T::stored)bits);
        if (bits_of(up) != bits_of(number) && (up == up || number == number))
            wrong(it, &it->wrong_up, bits & 0xffffu);
    }
}

template <typename T> static tide_status convert(void *stream, const gpu_tile_args *args)
{
    return TIDE_CUDA_LAUNCH("conversions", (convert_kernel<T>),
                            dim3(args->count / (CONVERT_THREADS * CONVERT_EACH)), dim3(CONVERT_THREADS),
                            stream, (gpu_tile_conversions *)args->data, args->first);
}

/* ---- the interface ---- */

tide_status gpu_tile_multiply(void *stream, const void *arguments)
{
    return TIDE_CUDA_BY_DTYPE(((const gpu_tile_args *)arguments)->dtype, multiply, stream,
                              (const gpu_tile_args *)arguments);
}

tide_status gpu_tile_load(void *stream, const void *arguments)
{
    return BY_NARROW(load, stream, (const gpu_tile_args *)arguments);
}

tide_status gpu_tile_copy(void *stream, const void *arguments)
{
    return BY_NARROW(copy, stream, (const gpu_tile_args *)arguments);
}

tide_status gpu_tile_convert(void *stream, const void *arguments)
{
    return BY_NARROW(convert, stream, (const gpu_tile_args *)arguments);
}
