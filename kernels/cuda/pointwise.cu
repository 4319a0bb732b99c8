/* Elementwise kernels: add, GELU, SwiGLU, zero, copy, cast, round.
 *
 * These kernels are bound by memory, so each makes one pass over its operands in accesses of 16 bytes. A
 * thread computes a "unit", as many successive elements as 16 bytes hold of the narrowest type used; then
 * the unit that lies as many units further on as the grid has threads; and so on. If a pointer is not a
 * multiple of 16, and in an incomplete last unit, it accesses single elements; no element depends on
 * another, so the results are the same. With 256 threads per block and 8 blocks per SM, add has 64 KiB of
 * loads in flight on each SM: enough for 4.8 TB/s on 132 SMs at a latency of one microsecond.
 *
 * zero and copy accept any address. They use words of 16 bytes or, if the two addresses of a copy differ
 * modulo 16, of 4 or 1; single bytes before the first whole word and after the last.
 *
 * GELU is computed as on the CPU: 1/2 (1 + tanh u) is 1 / (1 + e^-2u), which avoids cancellation. For 16-bit
 * types the code uses the GPU's fast exponential and quotient (relative error at most 1e-5, while rounding to
 * bf16 makes 4e-3, to fp16 5e-4): with the accurate ones the kernel would be bound by arithmetic instead of
 * memory.
 *
 * A thread of SwiGLU takes a pack of gate and the pack of up at the same columns; in backward it reads both,
 * and dout, before it writes their gradients to the same places. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/share.h"

enum { THREADS = 256, GRID_MAX_BLOCKS = 2048 };

/* The number of blocks for `units` units of work; at least 1. */
static unsigned grid_for(size_t units)
{
    const size_t blocks = (units + THREADS - 1) / THREADS;
    return blocks == 0 ? 1 : (unsigned)(blocks > GRID_MAX_BLOCKS ? (size_t)GRID_MAX_BLOCKS : blocks);
}

static __device__ __forceinline__ size_t thread_of_grid(void)
{
    return (size_t)blockIdx.x * THREADS + threadIdx.x;
}

static __device__ __forceinline__ size_t threads_of_grid(void)
{
    return (size_t)gridDim.x * THREADS;
}

static bool is_aligned(const void *a, const void *b, const void *c)
{
    return ((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 16 == 0;
}

/* ---- units of N elements ---- */

/* Elements of a unit if the kernel uses types T and U. */
template <typename T, typename U> struct unit {
    enum {
        elements = (int)T::per_16_bytes > (int)U::per_16_bytes ? (int)T::per_16_bytes : (int)U::per_16_bytes
    };
};

/* to[0, N) = from[begin, begin + N), zeros from `end` on. `whole`: in accesses of 16 bytes. */
template <typename T, unsigned N>
static __device__ __forceinline__ void unit_load(float *to, const typename T::stored *from, size_t begin,
                                                 size_t end, bool whole)
{
#pragma unroll
    for (unsigned part = 0; part < N; part += T::per_16_bytes) {
        const tide_cuda_vector<T> pack = whole ? pack_load<T, true>(from, begin + part, end)
                                               : pack_load<T, false>(from, begin + part, end);
#pragma unroll
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            to[part + e] = T::load(pack.element[e]);
    }
}

/* to[begin, begin + N) = from[0, N); nothing is written from `end` on. */
template <typename T, unsigned N>
static __device__ __forceinline__ void unit_store(typename T::stored *to, const float *from, size_t begin,
                                                  size_t end, bool whole)
{
#pragma unroll
    for (unsigned part = 0; part < N; part += T::per_16_bytes) {
        tide_cuda_vector<T> pack;
#pragma unroll
        for (unsigned e = 0; e < T::per_16_bytes; e++)
            pack.element[e] = T::store(from[part + e]);
        if (whole)
            pack_store<T, true>(to, begin + part, end, pack);
        else
            pack_store<T, false>(to, begin + part, end, pack);
    }
}

/* ---- GELU ---- */

/* e^x and a / b, accurate or fast as a type needs them. */
struct accurate {
    static __device__ __forceinline__ float exponential(float x)
    {
        return expf(x);
    }
    static __device__ __forceinline__ float quotient(float a, float b)
    {
        return a / b;
    }
};
struct quick {
    static __device__ __forceinline__ float exponential(float x)
    {
        return __expf(x);
    }
    static __device__ __forceinline__ float quotient(float a, float b)
    {
        return __fdividef(a, b);
    }
};
template <typename T> struct arithmetic : quick {
};
template <> struct arithmetic<tide_cuda_fp32> : accurate {
};

#define GELU_SLOPE 1.5957691216f /* 2 sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f
#define GELU_LARGEST                                                                                         \
    80.0f /* e^80 is 5.5e34; the GPU's fast quotient gives 0 for divisors over 2^126 = 8.5e37 */

/* e^-2u for u = sqrt(2/pi) (x + 0.044715 x^3), limited to finite values so that quotients do not become
 * NaN. */
template <typename T> static __device__ __forceinline__ float gelu_exponential(float x)
{
    const float twice_u = GELU_SLOPE * x * fmaf(x * x, GELU_CUBIC, 1.0f);
    return arithmetic<T>::exponential(fminf(-twice_u, GELU_LARGEST));
}

template <typename T> struct gelu_forward {
    static __device__ __forceinline__ float of(float x, float)
    {
        return arithmetic<T>::quotient(x, 1.0f + gelu_exponential<T>(x));
    }
};

/* With s = 1 / (1 + e): gelu' = s + x s (1 - s) (2u)', where 1 - s is e s. */
template <typename T> struct gelu_gradient {
    static __device__ __forceinline__ float of(float x, float dout)
    {
        const float e = gelu_exponential<T>(x);
        const float s = arithmetic<T>::quotient(1.0f, 1.0f + e);
        const float inner = GELU_SLOPE * fmaf(x * x, 3.0f * GELU_CUBIC, 1.0f);
        return dout * fmaf(x * s * (e * s), inner, s);
    }
};

template <typename T> struct sum {
    static __device__ __forceinline__ float of(float a, float b)
    {
        return a + b;
    }
};

/* ---- out = F(a, b), all of one type; b may be NULL ---- */

template <typename T, typename F>
static __global__ void __launch_bounds__(THREADS)
    map_kernel(const typename T::stored *a, const typename T::stored *b, typename T::stored *out,
               size_t elements, bool aligned)
{
    enum { N = T::per_16_bytes };
    for (size_t begin = thread_of_grid() * N; begin < elements; begin += threads_of_grid() * N) {
        const bool whole = aligned && begin + N <= elements;
        float x[N], y[N] = {};
        unit_load<T, N>(x, a, begin, elements, whole);
        if (b)
            unit_load<T, N>(y, b, begin, elements, whole);
#pragma unroll
        for (unsigned e = 0; e < N; e++)
            x[e] = F::of(x[e], y[e]);
        unit_store<T, N>(out, x, begin, elements, whole);
    }
}

template <typename T, typename F>
static tide_status map_launch(const char *label, void *stream, const void *a, const void *b, void *out,
                              size_t elements)
{
    typedef typename T::stored stored;
    if (elements == 0)
        return TIDE_OK;
    assert(a && out);
    return TIDE_CUDA_LAUNCH(
        label, (map_kernel<T, F>), grid_for((elements + T::per_16_bytes - 1) / T::per_16_bytes), THREADS,
        stream, (const stored *)a, (const stored *)b, (stored *)out, elements, is_aligned(a, b, out));
}

template <typename T> static tide_status add_launch(void *stream, const tide_add_args *args)
{
    return map_launch<T, sum<T>>("add", stream, args->a, args->b, args->out, args->elements);
}

tide_status tide_cuda_add(void *stream, const void *arguments)
{
    const tide_add_args *args = (const tide_add_args *)arguments;
    return TIDE_CUDA_BY_DTYPE(args->dtype, add_launch, stream, args);
}

template <typename T> static tide_status gelu_launch(void *stream, const tide_gelu_args *args)
{
    return map_launch<T, gelu_forward<T>>("gelu", stream, args->in, NULL, args->out, args->elements);
}

tide_status tide_cuda_gelu(void *stream, const void *arguments)
{
    const tide_gelu_args *args = (const tide_gelu_args *)arguments;
    return TIDE_CUDA_BY_DTYPE(args->dtype, gelu_launch, stream, args);
}

template <typename T>
static tide_status gelu_backward_launch(void *stream, const tide_gelu_backward_args *args)
{
    return map_launch<T, gelu_gradient<T>>("gelu_backward", stream, args->in, args->dout, args->din,
                                           args->elements);
}

tide_status tide_cuda_gelu_backward(void *stream, const void *arguments)
{
    const tide_gelu_backward_args *args = (const tide_gelu_backward_args *)arguments;
    return TIDE_CUDA_BY_DTYPE(args->dtype, gelu_backward_launch, stream, args);
}

/* ---- SwiGLU ---- */

/* The logistic function of x, s = 1 / (1 + e^-x), and 1 - s, without cancellation: computed from e^-|x|,
 * which never overflows. */
template <typename T> struct logistic {
    float s, rest;

    static __device__ __forceinline__ logistic of(float x)
    {
        const float e = arithmetic<T>::exponential(-fabsf(x));
        const float large = arithmetic<T>::quotient(1.0f, 1.0f + e), small = e * large;
        return x > 0.0f ? logistic{large, small} : logistic{small, large};
    }
};

template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(SHARE_THREADS)
    swiglu_kernel(const typename T::stored *__restrict__ in, typename T::stored *out, row_share share,
                  size_t width)
{
    row_share_each(share, [&](size_t row, unsigned unit) {
        const size_t begin = (size_t)unit * T::per_16_bytes;
        const typename T::stored *const gates = in + row * 2 * width;
        const tide_cuda_vector<T> gate = pack_load<T, WHOLE>(gates, begin, width);
        const tide_cuda_vector<T> up = pack_load<T, WHOLE>(gates + width, begin, width);
        tide_cuda_vector<T> result;
#pragma unroll
        for (unsigned e = 0; e < T::per_16_bytes; e++) {
            const float x = T::load(gate.element[e]);
            result.element[e] = T::store(x * logistic<T>::of(x).s * T::load(up.element[e]));
        }
        pack_store<T, WHOLE>(out + row * width, begin, width, result);
    });
}

template <typename T, bool WHOLE> static tide_status swiglu_launch(void *stream, const tide_swiglu_args *args)
{
    const row_share share = row_share_of(args->rows, pack_count<T>(args->width));
    return TIDE_CUDA_LAUNCH("swiglu", (swiglu_kernel<T, WHOLE>), row_share_blocks(share), SHARE_THREADS,
                            stream, (const typename T::stored *)args->in, (typename T::stored *)args->out,
                            share, args->width);
}

template <typename T> static tide_status swiglu(void *stream, const tide_swiglu_args *args)
{
    const bool whole =
        pack_whole_rows<T>(args->in, args->width) && pack_whole_rows<T>(args->out, args->width);
    return whole ? swiglu_launch<T, true>(stream, args) : swiglu_launch<T, false>(stream, args);
}

tide_status tide_cuda_swiglu(void *stream, const void *arguments)
{
    const tide_swiglu_args *args = (const tide_swiglu_args *)arguments;
    if (args->rows * args->width == 0)
        return TIDE_OK;
    assert(args->in && args->out);
    return TIDE_CUDA_BY_DTYPE(args->dtype, swiglu, stream, args);
}

/* silu'(x) = s (1 + x (1 - s)). */
template <typename T, bool WHOLE>
static __global__ void __launch_bounds__(SHARE_THREADS)
    swiglu_backward_kernel(const typename T::stored *in, const typename T::stored *__restrict__ dout,
                           typename T::stored *din, row_share share, size_t width)
{
    row_share_each(share, [&](size_t row, unsigned unit) {
        const size_t begin = (size_t)unit * T::per_16_bytes;
        const typename T::stored *const gates = in + row * 2 * width;
        typename T::stored *const to = din + row * 2 * width;
        tide_cuda_vector<T> gate = pack_load<T, WHOLE>(gates, begin, width);
        tide_cuda_vector<T> up = pack_load<T, WHOLE>(gates + width, begin, width);
        const tide_cuda_vector<T> gradient = pack_load<T, WHOLE>(dout + row * width, begin, width);
#pragma unroll
        for (unsigned e = 0; e < T::per_16_bytes; e++) {
            const float x = T::load(gate.element[e]), dy = T::load(gradient.element[e]);
            const logistic<T> of_x = logistic<T>::of(x);
            gate.element[e] = T::store(dy * T::load(up.element[e]) * (of_x.s * fmaf(x, of_x.rest, 1.0f)));
            up.element[e] = T::store(dy * (x * of_x.s));
        }
        pack_store<T, WHOLE>(to, begin, width, gate);
        pack_store<T, WHOLE>(to + width, begin, width, up);
    });
}

template <typename T, bool WHOLE>
static tide_status swiglu_backward_launch(void *stream, const tide_swiglu_backward_args *args)
{
    const row_share share = row_share_of(args->rows, pack_count<T>(args->width));
    return TIDE_CUDA_LAUNCH("swiglu_backward", (swiglu_backward_kernel<T, WHOLE>), row_share_blocks(share),
                            SHARE_THREADS, stream, (const typename T::stored *)args->in,
                            (const typename T::stored *)args->dout, (typename T::stored *)args->din, share,
                            args->width);
}

template <typename T> static tide_status swiglu_backward(void *stream, const tide_swiglu_backward_args *args)
{
    const bool whole = pack_whole_rows<T>(args->in, args->width) &&
                       pack_whole_rows<T>(args->dout, args->width) &&
                       pack_whole_rows<T>(args->din, args->width);
    return whole ? swiglu_backward_launch<T, true>(stream, args)
                 : swiglu_backward_launch<T, false>(stream, args);
}

tide_status tide_cuda_swiglu_backward(void *stream, const void *arguments)
{
    const tide_swiglu_backward_args *args = (const tide_swiglu_backward_args *)arguments;
    if (args->rows * args->width == 0)
        return TIDE_OK;
    assert(args->in && args->dout && args->din);
    return TIDE_CUDA_BY_DTYPE(args->dtype, swiglu_backward, stream, args);
}

/* ---- out = in in another type ---- */

template <typename From, typename To>
static __global__ void __launch_bounds__(THREADS)
    cast_kernel(const typename From::stored *in, typename To::stored *out, size_t elements, bool aligned)
{
    enum { N = unit<From, To>::elements };
    for (size_t begin = thread_of_grid() * N; begin < elements; begin += threads_of_grid() * N) {
        const bool whole = aligned && begin + N <= elements;
        float x[N];
        unit_load<From, N>(x, in, begin, elements, whole);
        unit_store<To, N>(out, x, begin, elements, whole);
    }
}

template <typename From, typename To> static tide_status cast_launch(void *stream, const tide_cast_args *args)
{
    enum { N = unit<From, To>::elements };
    if (args->elements == 0)
        return TIDE_OK;
    assert(args->in && args->out);
    return TIDE_CUDA_LAUNCH("cast", (cast_kernel<From, To>), grid_for((args->elements + N - 1) / N), THREADS,
                            stream, (const typename From::stored *)args->in, (typename To::stored *)args->out,
                            args->elements, is_aligned(args->in, args->out, NULL));
}

template <typename From> static tide_status cast_from(void *stream, const tide_cast_args *args)
{
    switch (args->out_dtype) {
    case TIDE_DTYPE_BF16:
        return cast_launch<From, tide_cuda_bf16>(stream, args);
    case TIDE_DTYPE_FP16:
        return cast_launch<From, tide_cuda_fp16>(stream, args);
    default:
        return cast_launch<From, tide_cuda_fp32>(stream, args);
    }
}

tide_status tide_cuda_cast(void *stream, const void *arguments)
{
    const tide_cast_args *args = (const tide_cast_args *)arguments;
    return TIDE_CUDA_BY_DTYPE(args->in_dtype, cast_from, stream, args);
}

/* The fp32 number that T stores for x. */
template <typename T> struct rounded {
    static __device__ __forceinline__ float of(float x, float)
    {
        return T::load(T::store(x));
    }
};

template <typename T> static tide_status round_launch(void *stream, const tide_round_args *args)
{
    return map_launch<tide_cuda_fp32, rounded<T>>("round", stream, args->data, NULL, args->data,
                                                  args->elements);
}

tide_status tide_cuda_round(void *stream, const void *arguments)
{
    const tide_round_args *args = (const tide_round_args *)arguments;
    return TIDE_CUDA_BY_DTYPE(args->dtype, round_launch, stream, args);
}

/* ---- bytes at any address ---- */

/* out[0, bytes) = in, or zeros if `in` is NULL, in words of type W. out + head and in + head are multiples of
 * W's size. */
template <typename W>
static __global__ void __launch_bounds__(THREADS)
    bytes_kernel(const unsigned char *in, unsigned char *out, size_t bytes, size_t head)
{
    const size_t words = (bytes - head) / sizeof(W), tail = head + words * sizeof(W);
    const size_t first = thread_of_grid();
    const W *from = (const W *)(in + (in ? head : 0));
    W *to = (W *)(out + head);
    for (size_t i = first; i < words; i += threads_of_grid())
        to[i] = in ? from[i] : W();
    if (first < head)
        out[first] = in ? in[first] : 0;
    if (first < bytes - tail)
        out[tail + first] = in ? in[tail + first] : 0;
}

template <typename W>
static tide_status bytes_launch(const char *label, void *stream, const void *in, void *out, size_t bytes)
{
    const size_t before = (0 - (uintptr_t)out) % sizeof(W);
    /* The first threads of the grid write these bytes, which are fewer than a word. */
    const size_t head = before < bytes ? before : bytes;
    static_assert(sizeof(W) <= THREADS, "a grid of one block has a thread for each odd byte");
    if (bytes == 0)
        return TIDE_OK;
    assert(out);
    return TIDE_CUDA_LAUNCH(label, (bytes_kernel<W>), grid_for((bytes - head) / sizeof(W)), THREADS, stream,
                            (const unsigned char *)in, (unsigned char *)out, bytes, head);
}

tide_status tide_cuda_zero(void *stream, const void *arguments)
{
    const tide_zero_args *args = (const tide_zero_args *)arguments;
    return bytes_launch<uint4>("zero", stream, NULL, args->data, args->bytes);
}

tide_status tide_cuda_copy(void *stream, const void *arguments)
{
    const tide_copy_args *args = (const tide_copy_args *)arguments;
    const uintptr_t apart = (uintptr_t)args->in - (uintptr_t)args->out;
    assert(args->bytes == 0 || args->in);
    if (apart % sizeof(uint4) == 0)
        return bytes_launch<uint4>("copy", stream, args->in, args->out, args->bytes);
    if (apart % sizeof(uint32_t) == 0)
        return bytes_launch<uint32_t>("copy", stream, args->in, args->out, args->bytes);
    return bytes_launch<unsigned char>("copy", stream, args->in, args->out, args->bytes);
}
