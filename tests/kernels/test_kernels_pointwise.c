/* Kernels that compute each element on its own: GELU, SwiGLU, casts to bf16. Results are compared with
 * float64. (Add, zero, copy and all casts: test_kernels_bits.c.) */
#include "tests/kernels/test_kernels.h"
#include "tests/support/test_thin.h"

/* Sizes near vector widths, near the run of elements that one task computes, and large enough for several
 * threads. */
static const size_t sizes[] = {0, 1, 3, 15, 16, 17, 255, 4096, 4097, 33333};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

/* GELU by x / (1 + e^-2u), which equals x (1 + tanh u) / 2 but does not cancel for large negative u. */
static double gelu_reference(double x)
{
    return x / (1.0 + exp(-2.0 * sqrt(2.0 / acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

static void gelu_matches_float64_to_relative_accuracy(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SIZES; s++) {
        const size_t n = sizes[s];
        buffer in = buffer_random(n, dtype, 8.0), out = buffer_of(n, dtype);
        run_kernel(kernels->gelu, &(tide_gelu_args){in.data, out.data, n, dtype});
        for (size_t i = 0; i < n; i++) {
            const double expected = gelu_reference(buffer_get(in, i));
            assert_close((buffer){(char *)out.data + i * tide_dtype_bytes(dtype), 0, dtype}, &expected, 1,
                         1e-5);
        }
        assert_true(n < 100 || buffer_get(out, 0) != buffer_get(out, 1));
        buffers_free(in, out);
    }
}

static void gelu_backward_matches_finite_differences(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < SIZES; s++) {
        const size_t n = sizes[s];
        buffer in = buffer_random(n, dtype, 6.0), dout = buffer_random(n, dtype, 1.0),
               din = buffer_of(n, dtype);
        double *expected = malloc((n + 1) * sizeof *expected);
        for (size_t i = 0; i < n; i++) {
            const double x = buffer_get(in, i), step = 1e-5;
            const double slope = (gelu_reference(x + step) - gelu_reference(x - step)) / (2 * step);
            expected[i] = buffer_get(dout, i) * slope;
        }
        run_kernel(kernels->gelu_backward,
                   &(tide_gelu_backward_args){in.data, dout.data, din.data, n, dtype});
        /* Few elements may all be small, and the tolerance is relative to the largest. */
        assert_close(din, expected, n, n < 100 ? 1e-5 : 1e-6);
        run_kernel(kernels->gelu_backward,
                   &(tide_gelu_backward_args){in.data, dout.data, dout.data, n, dtype});
        assert_same_bits(dout, din);
        free(expected);
        buffers_free(in, dout, din);
    }
}

static void gelu_keeps_nan_and_saturates_without_making_one(const tide_kernels *kernels, tide_dtype dtype)
{
    const double values[6] = {(double)NAN, (double)INFINITY, -30.0, 1e4, -1e4, -0.0};
    buffer in = buffer_of(6, dtype), one = buffer_of(6, dtype), out = buffer_of(6, dtype),
           din = buffer_of(6, dtype);
    for (size_t i = 0; i < 6; i++) {
        buffer_set(in, i, values[i]);
        buffer_set(one, i, 1.0);
    }
    run_kernel(kernels->gelu, &(tide_gelu_args){in.data, out.data, 6, dtype});
    run_kernel(kernels->gelu_backward, &(tide_gelu_backward_args){in.data, one.data, din.data, 6, dtype});
    assert_true(isnan(buffer_get(out, 0)) && isnan(buffer_get(din, 0)));
    assert_true(isinf(buffer_get(out, 1)));
    assert_true(fabs(buffer_get(out, 2)) < 1e-30 && fabs(buffer_get(din, 2)) < 1e-30);
    assert_true(buffer_get(out, 3) == buffer_get(in, 3) && buffer_get(din, 3) == 1.0);
    assert_true(fabs(buffer_get(out, 4)) < 1e-20 && fabs(buffer_get(din, 4)) < 1e-20);
    assert_true(buffer_get(out, 5) == 0.0 && buffer_get(din, 5) == 0.5);
    buffers_free(in, one, out, din);
}

/* ---- SwiGLU ---- */

typedef struct gate_shape {
    size_t rows, width;
} gate_shape;

/* Shapes whose rows of gate, or of up, begin at a multiple of a vector, and others; the last have more rows
 * than the GPU's grid, and rows longer than the grid is wide. */
static const gate_shape gate_shapes[] = {{0, 8},   {1, 1},    {3, 15},    {5, 16},    {2, 17},    {40, 3},
                                         {7, 255}, {3, 4097}, {33, 1000}, {66001, 3}, {2, 700001}};
enum { GATE_SHAPES = sizeof gate_shapes / sizeof gate_shapes[0], SMALL_GATE_SHAPES = GATE_SHAPES - 2 };

static double silu_reference(double x)
{
    return x / (1.0 + exp(-x));
}

static void swiglu_matches_float64_to_relative_accuracy(const tide_kernels *kernels, tide_dtype dtype)
{
    for (size_t s = 0; s < (test_large() ? GATE_SHAPES : SMALL_GATE_SHAPES); s++) {
        const size_t rows = gate_shapes[s].rows, width = gate_shapes[s].width;
        buffer in = buffer_random(rows * 2 * width, dtype, 8.0), out = buffer_of(rows * width, dtype);
        run_kernel(kernels->swiglu, &(tide_swiglu_args){in.data, out.data, rows, width, dtype});
        for (size_t i = 0; i < rows * width; i++) {
            const size_t gate = i / width * 2 * width + i % width;
            const double expected = silu_reference(buffer_get(in, gate)) * buffer_get(in, gate + width);
            assert_near(out, i, expected, rows * width > 100000 ? 1e-4 : 1e-5 * fabs(expected));
        }
        buffers_free(in, out);
    }
}

static void swiglu_backward_matches_finite_differences_and_works_in_place(const tide_kernels *kernels,
                                                                          tide_dtype dtype)
{
    for (size_t s = 0; s < (test_large() ? GATE_SHAPES : SMALL_GATE_SHAPES); s++) {
        const size_t rows = gate_shapes[s].rows, width = gate_shapes[s].width;
        buffer in = buffer_random(rows * 2 * width, dtype, 6.0), din = buffer_of(rows * 2 * width, dtype);
        buffer dout = buffer_random(rows * width, dtype, 1.0);
        double *expected = malloc((rows * 2 * width + 1) * sizeof *expected);
        for (size_t i = 0; i < rows * width; i++) {
            const size_t gate = i / width * 2 * width + i % width, up = gate + width;
            const double x = buffer_get(in, gate), g = buffer_get(dout, i), step = 1e-5;
            const double slope = (silu_reference(x + step) - silu_reference(x - step)) / (2 * step);
            expected[gate] = g * buffer_get(in, up) * slope;
            expected[up] = g * silu_reference(x);
        }
        tide_swiglu_backward_args args = {in.data, dout.data, din.data, rows, width, dtype};
        run_kernel(kernels->swiglu_backward, &args);
        assert_close(din, expected, rows * 2 * width,
                     rows * width < 100 || rows * width > 100000 ? 1e-5 : 2e-6);
        args.din = in.data;
        run_kernel(kernels->swiglu_backward, &args);
        assert_same_bits(in, din);
        free(expected);
        buffers_free(in, dout, din);
    }
}

/* Gates of NaN, infinity, large numbers of both signs and zero; `up` is 2 but for one NaN. */
static void swiglu_keeps_nan_and_saturates_without_making_one(const tide_kernels *kernels, tide_dtype dtype)
{
    enum { WIDTH = 9 };
    const double gates[WIDTH] = {(double)NAN, (double)INFINITY, 100.0, -100.0, 1e4, -1e4, -0.0, 1.0, 1.0};
    buffer in = buffer_of(2 * WIDTH, dtype), dout = buffer_of(WIDTH, dtype), out = buffer_of(WIDTH, dtype);
    buffer din = buffer_of(2 * WIDTH, dtype);
    for (size_t i = 0; i < WIDTH; i++) {
        buffer_set(in, i, gates[i]);
        buffer_set(in, WIDTH + i, i == 7 ? (double)NAN : 2.0);
        buffer_set(dout, i, 1.0);
    }
    run_kernel(kernels->swiglu, &(tide_swiglu_args){in.data, out.data, 1, WIDTH, dtype});
    run_kernel(kernels->swiglu_backward,
               &(tide_swiglu_backward_args){in.data, dout.data, din.data, 1, WIDTH, dtype});
    assert_true(isnan(buffer_get(out, 0)) && isnan(buffer_get(din, 0)) && isnan(buffer_get(din, WIDTH)));
    assert_true(isinf(buffer_get(out, 1)) && isinf(buffer_get(din, WIDTH + 1)));
    /* Large positive gates: silu(x) is x and its derivative 1. */
    for (size_t i = 2; i <= 4; i += 2) {
        assert_true(buffer_get(out, i) == 2.0 * buffer_get(in, i));
        assert_true(buffer_get(din, i) == 2.0 && buffer_get(din, WIDTH + i) == buffer_get(in, i));
    }
    /* Large negative gates: silu(x) and its derivative are almost 0. */
    for (size_t i = 3; i <= 5; i += 2) {
        assert_true(fabs(buffer_get(out, i)) < 1e-30 && fabs(buffer_get(din, i)) < 1e-30);
        assert_true(fabs(buffer_get(din, WIDTH + i)) < 1e-30);
    }
    assert_true(buffer_get(out, 6) == 0.0 && buffer_get(din, 6) == 1.0 && buffer_get(din, WIDTH + 6) == 0.0);
    assert_true(isnan(buffer_get(out, 7)) && isnan(buffer_get(din, 7)));
    assert_near(din, WIDTH + 7, silu_reference(1.0), 1e-5);
    assert_near(out, 8, 2.0 * silu_reference(1.0), 1e-5);
    buffers_free(in, dout, out, din);
}

#if TEST_ON_CPU

enum { ROWS = 301, WIDTH = 333 };

typedef struct gate_case {
    buffer in, dout, out, din;
} gate_case;

static void run_gate(const void *of)
{
    const gate_case *c = of;
    const tide_kernels *kernels = tide_kernels_cpu();
    run_kernel(kernels->swiglu, &(tide_swiglu_args){c->in.data, c->out.data, ROWS, WIDTH, TIDE_DTYPE_BF16});
    run_kernel(kernels->swiglu_backward, &(tide_swiglu_backward_args){c->in.data, c->dout.data, c->din.data,
                                                                      ROWS, WIDTH, TIDE_DTYPE_BF16});
}

static void swiglu_keeps_its_bits_for_any_thread_count(void **state)
{
    const gate_case c = {.in = buffer_random(ROWS * 2 * WIDTH, TIDE_DTYPE_BF16, 3.0),
                         .dout = buffer_random(ROWS * WIDTH, TIDE_DTYPE_BF16, 1.0),
                         .out = buffer_of(ROWS * WIDTH, TIDE_DTYPE_BF16),
                         .din = buffer_of(ROWS * 2 * WIDTH, TIDE_DTYPE_BF16)};
    check_thread_counts(run_gate, &c, (const buffer[]){c.out, c.din}, 2);
    buffers_free(c.in, c.dout, c.out, c.din);
}

#endif

/* ---- types ---- */

/* Finds the bf16 nearest to an fp32 by comparing distances, unlike the kernels, which add to the bits. */
static float nearest_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const float below = tide_bf16_to_float((tide_bf16)(bits >> 16));
    const float above = tide_bf16_to_float((tide_bf16)((bits >> 16) + 1));
    /* The step above the largest bf16 is 2^128, which the format calls infinity. */
    const double up = isinf(above) ? copysign(ldexp(1.0, 128), (double)value) : (double)above;
    const double to_below = fabs((double)value - (double)below), to_above = fabs(up - (double)value);
    if (to_below == to_above)
        return (bits >> 16) % 2 == 0 ? below : above;
    return to_below < to_above ? below : above;
}

static void cast_rounds_to_nearest_even_and_keeps_nan_and_denormals(const tide_kernels *kernels,
                                                                    tide_dtype dtype)
{
    (void)dtype;
    enum { COUNT = 20000 };
    buffer in = buffer_of(COUNT, TIDE_DTYPE_FP32), out = buffer_of(COUNT, TIDE_DTYPE_BF16);
    buffer back = buffer_of(COUNT, TIDE_DTYPE_FP32);
    /* every exponent, both signs, ties and their neighbours */
    for (uint32_t i = 0; i < COUNT; i++) {
        const uint32_t low[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
        const uint32_t bits = (i / 6 * 19u) << 16 | low[i % 6];
        memcpy((float *)in.data + i, &bits, sizeof bits);
    }
    run_kernel(kernels->cast, &(tide_cast_args){in.data, out.data, COUNT, TIDE_DTYPE_FP32, TIDE_DTYPE_BF16});
    run_kernel(kernels->cast,
               &(tide_cast_args){out.data, back.data, COUNT, TIDE_DTYPE_BF16, TIDE_DTYPE_FP32});
    for (size_t i = 0; i < COUNT; i++) {
        const float value = ((float *)in.data)[i], rounded = ((float *)back.data)[i];
        if (isnan(value))
            assert_true(isnan(rounded));
        else
            assert_true(rounded == (isinf(value) ? value : nearest_bf16(value)));
    }
    buffers_free(in, out, back);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        each_configuration(gelu_matches_float64_to_relative_accuracy),
        each_configuration(gelu_backward_matches_finite_differences),
        each_configuration(gelu_keeps_nan_and_saturates_without_making_one),
        each_configuration(swiglu_matches_float64_to_relative_accuracy),
        each_configuration(swiglu_backward_matches_finite_differences_and_works_in_place),
        each_configuration(swiglu_keeps_nan_and_saturates_without_making_one),
#if TEST_ON_CPU
        cmocka_unit_test(swiglu_keeps_its_bits_for_any_thread_count),
#endif
        each_configuration(cast_rounds_to_nearest_even_and_keeps_nan_and_denormals),
    };
    return RUN_KERNEL_TESTS(tests);
}
