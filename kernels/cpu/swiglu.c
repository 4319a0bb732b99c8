/* SwiGLU's gate. silu(x) = x s with s = 1 / (1 + e^-x); its derivative is s + x s (1 - s). The code computes
 * 1 - s as e^-x s, without cancellation. */
#include "base/team.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/variant.h"

LANES_INLINE void gate_row(const tide_swiglu_args *args, size_t row, tide_dtype dtype)
{
    const size_t width = args->width, gate = 2 * width * row, up = gate + width, out = width * row;
    for (size_t i = 0; i < width; i += LANES) {
        const lanes x = lanes_load_until(args->in, gate + i, up, dtype);
        const lanes y = lanes_load_until(args->in, up + i, up + width, dtype);
        lanes_store_until(args->out, out + i, out + width, x / (1.0f + lanes_exp(-x)) * y, dtype);
    }
}

static void gate_task(const void *arguments, size_t row)
{
    const tide_swiglu_args *args = arguments;
    BY_DTYPE(args->dtype, gate_row, args, row);
}

tide_status VARIANT(swiglu)(void *stream, const void *arguments)
{
    const tide_swiglu_args *args = arguments;
    (void)stream;
    assert(args->rows * args->width == 0 || (args->in && args->out));
    tide_team_run(args->rows, args->rows * args->width, gate_task, args);
    return TIDE_OK;
}

LANES_INLINE void gate_backward_row(const tide_swiglu_backward_args *args, size_t row, tide_dtype dtype)
{
    const size_t width = args->width, gate = 2 * width * row, up = gate + width, out = width * row;
    for (size_t i = 0; i < width; i += LANES) {
        const lanes x = lanes_load_until(args->in, gate + i, up, dtype);
        const lanes y = lanes_load_until(args->in, up + i, up + width, dtype);
        const lanes dout = lanes_load_until(args->dout, out + i, out + width, dtype);
        const lanes e = lanes_exp(-x), s = 1.0f / (1.0f + e);
        const lanes derivative = lanes_fma(x * s, e * s, s);
        lanes_store_until(args->din, gate + i, up, dout * y * derivative, dtype);
        lanes_store_until(args->din, up + i, up + width, dout * (x * s), dtype);
    }
}

static void gate_backward_task(const void *arguments, size_t row)
{
    const tide_swiglu_backward_args *args = arguments;
    BY_DTYPE(args->dtype, gate_backward_row, args, row);
}

tide_status VARIANT(swiglu_backward)(void *stream, const void *arguments)
{
    const tide_swiglu_backward_args *args = arguments;
    (void)stream;
    assert(args->rows * args->width == 0 || (args->in && args->dout && args->din));
    tide_team_run(args->rows, args->rows * args->width, gate_backward_task, args);
    return TIDE_OK;
}
