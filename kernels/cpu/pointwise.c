/* Elementwise kernels: add, GELU, zero, copy, cast, round.
 *
 * These kernels are bound by memory, so each makes one pass over its operands. A task is a run of
 * RUN_ELEMENTS elements, and no element depends on another, so any thread count gives the same bits.
 *
 * GELU's 1/2 (1 + tanh u) is the logistic function s of 2u, computed as 1 / (1 + e^-2u): one exponential, and
 * full relative accuracy where 1 + tanh u cancels. Its derivative needs s (1 - s), where 1 - s is e^-2u s,
 * uncancelled too.
 */
#include "base/align.h"
#include "base/team.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/variant.h"

enum { RUN_ELEMENTS = 4096, BYTES_PER_ELEMENT = 16 }; /* zero and copy count 16 bytes as an element */

static size_t run_count(size_t elements)
{
    return tide_ceil_div(elements, RUN_ELEMENTS);
}

static size_t run_end(size_t run, size_t elements)
{
    return (run + 1) * RUN_ELEMENTS < elements ? (run + 1) * RUN_ELEMENTS : elements;
}

/* ---- add ---- */

LANES_INLINE void add_run(const tide_add_args *args, size_t begin, size_t end, tide_dtype dtype)
{
    for (size_t i = begin; i < end; i += LANES) {
        const lanes sum = lanes_load_until(args->a, i, end, dtype) + lanes_load_until(args->b, i, end, dtype);
        lanes_store_until(args->out, i, end, sum, dtype);
    }
}

static void add_task(const void *arguments, size_t run)
{
    const tide_add_args *args = arguments;
    BY_DTYPE(args->dtype, add_run, args, run * RUN_ELEMENTS, run_end(run, args->elements));
}

tide_status VARIANT(add)(void *stream, const void *arguments)
{
    const tide_add_args *args = arguments;
    (void)stream;
    assert(args->elements == 0 || (args->a && args->b && args->out));
    tide_team_run(run_count(args->elements), args->elements, add_task, args);
    return TIDE_OK;
}

/* ---- GELU ---- */

static const float gelu_slope = 1.5957691216f; /* 2 sqrt(2 / pi) */
static const float gelu_cubic = 0.044715f;

/* e^-2u for u = sqrt(2/pi) (x + 0.044715 x^3). */
LANES_INLINE lanes gelu_exp(lanes x, lanes square)
{
    return lanes_exp(-gelu_slope * x * lanes_fma(square, lanes_all(gelu_cubic), lanes_all(1.0f)));
}

LANES_INLINE void gelu_run(const tide_gelu_args *args, size_t begin, size_t end, tide_dtype dtype)
{
    for (size_t i = begin; i < end; i += LANES) {
        const lanes x = lanes_load_until(args->in, i, end, dtype);
        lanes_store_until(args->out, i, end, x / (1.0f + gelu_exp(x, x * x)), dtype);
    }
}

static void gelu_task(const void *arguments, size_t run)
{
    const tide_gelu_args *args = arguments;
    BY_DTYPE(args->dtype, gelu_run, args, run * RUN_ELEMENTS, run_end(run, args->elements));
}

tide_status VARIANT(gelu)(void *stream, const void *arguments)
{
    const tide_gelu_args *args = arguments;
    (void)stream;
    assert(args->elements == 0 || (args->in && args->out));
    tide_team_run(run_count(args->elements), args->elements, gelu_task, args);
    return TIDE_OK;
}

LANES_INLINE void gelu_backward_run(const tide_gelu_backward_args *args, size_t begin, size_t end,
                                    tide_dtype dtype)
{
    for (size_t i = begin; i < end; i += LANES) {
        const lanes x = lanes_load_until(args->in, i, end, dtype);
        const lanes dout = lanes_load_until(args->dout, i, end, dtype);
        const lanes square = x * x;
        const lanes e = gelu_exp(x, square);
        const lanes s = 1.0f / (1.0f + e);
        const lanes inner = gelu_slope * lanes_fma(square, lanes_all(3 * gelu_cubic), lanes_all(1.0f));
        const lanes derivative = lanes_fma(x * s * (e * s), inner, s);
        lanes_store_until(args->din, i, end, dout * derivative, dtype);
    }
}

static void gelu_backward_task(const void *arguments, size_t run)
{
    const tide_gelu_backward_args *args = arguments;
    BY_DTYPE(args->dtype, gelu_backward_run, args, run * RUN_ELEMENTS, run_end(run, args->elements));
}

tide_status VARIANT(gelu_backward)(void *stream, const void *arguments)
{
    const tide_gelu_backward_args *args = arguments;
    (void)stream;
    assert(args->elements == 0 || (args->in && args->dout && args->din));
    tide_team_run(run_count(args->elements), args->elements, gelu_backward_task, args);
    return TIDE_OK;
}

/* ---- zero, copy, cast, round ---- */

enum { RUN_BYTES = RUN_ELEMENTS * BYTES_PER_ELEMENT };

static size_t run_bytes(size_t run, size_t bytes)
{
    const size_t left = bytes - run * RUN_BYTES;
    return left < RUN_BYTES ? left : RUN_BYTES;
}

static void zero_task(const void *arguments, size_t run)
{
    const tide_zero_args *args = arguments;
    memset((char *)args->data + run * RUN_BYTES, 0, run_bytes(run, args->bytes));
}

tide_status VARIANT(zero)(void *stream, const void *arguments)
{
    const tide_zero_args *args = arguments;
    const size_t elements = args->bytes / BYTES_PER_ELEMENT;
    (void)stream;
    assert(args->bytes == 0 || args->data);
    tide_team_run(tide_ceil_div(args->bytes, RUN_BYTES), elements, zero_task, args);
    return TIDE_OK;
}

static void copy_task(const void *arguments, size_t run)
{
    const tide_copy_args *args = arguments;
    memcpy((char *)args->out + run * RUN_BYTES, (const char *)args->in + run * RUN_BYTES,
           run_bytes(run, args->bytes));
}

tide_status VARIANT(copy)(void *stream, const void *arguments)
{
    const tide_copy_args *args = arguments;
    const size_t elements = args->bytes / BYTES_PER_ELEMENT;
    (void)stream;
    assert(args->bytes == 0 || (args->in && args->out));
    tide_team_run(tide_ceil_div(args->bytes, RUN_BYTES), elements, copy_task, args);
    return TIDE_OK;
}

LANES_INLINE void cast_run(const void *in, void *out, size_t begin, size_t end, tide_dtype in_dtype,
                           tide_dtype out_dtype)
{
    for (size_t i = begin; i < end; i += LANES)
        lanes_store_until(out, i, end, lanes_load_until(in, i, end, in_dtype), out_dtype);
}

LANES_INLINE void cast_to(const tide_cast_args *args, size_t begin, size_t end, tide_dtype out_dtype)
{
    if (args->in_dtype == TIDE_DTYPE_BF16)
        cast_run(args->in, args->out, begin, end, TIDE_DTYPE_BF16, out_dtype);
    else if (args->in_dtype == TIDE_DTYPE_FP16)
        cast_run(args->in, args->out, begin, end, TIDE_DTYPE_FP16, out_dtype);
    else
        cast_run(args->in, args->out, begin, end, TIDE_DTYPE_FP32, out_dtype);
}

static void cast_task(const void *arguments, size_t run)
{
    const tide_cast_args *args = arguments;
    BY_DTYPE(args->out_dtype, cast_to, args, run * RUN_ELEMENTS, run_end(run, args->elements));
}

tide_status VARIANT(cast)(void *stream, const void *arguments)
{
    const tide_cast_args *args = arguments;
    (void)stream;
    assert(args->elements == 0 || (args->in && args->out));
    tide_team_run(run_count(args->elements), args->elements, cast_task, args);
    return TIDE_OK;
}

/* Rounds through a 16-bit copy on the stack. */
LANES_INLINE void round_run(float *data, size_t begin, size_t end, tide_dtype dtype)
{
    float rounded[RUN_ELEMENTS];
    if (dtype == TIDE_DTYPE_FP32)
        return;
    cast_run(data + begin, rounded, 0, end - begin, TIDE_DTYPE_FP32, dtype);
    cast_run(rounded, data + begin, 0, end - begin, dtype, TIDE_DTYPE_FP32);
}

static void round_task(const void *arguments, size_t run)
{
    const tide_round_args *args = arguments;
    BY_DTYPE(args->dtype, round_run, args->data, run * RUN_ELEMENTS, run_end(run, args->elements));
}

tide_status VARIANT(round)(void *stream, const void *arguments)
{
    const tide_round_args *args = arguments;
    (void)stream;
    assert(args->elements == 0 || args->data);
    tide_team_run(run_count(args->elements), args->elements, round_task, args);
    return TIDE_OK;
}
