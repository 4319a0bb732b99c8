/* Shared by the kernels' tests: the choice of the kernels to check, poisoned and guarded buffers, random
 * values, comparisons with float64 references.
 *
 * Each program is built up to three times. Without a macro it checks the CPU's kernels: each instruction
 * set, with one thread and with three. With TEST_CUDA_ON_CPU it checks the GPU's kernels, which
 * tests/gpu/cuda_on_cpu.h runs on the CPU. With TEST_CUDA it checks the GPU's kernels on a GPU, and is
 * skipped where there is none.
 *
 * The GPU's kernels never see the memory that a test works with: run_kernel() gives them copies of it, its
 * mirrors, which on a GPU lie in the GPU's memory (tests/kernels/test_mirrors.h). So every pointer that a
 * test gives a kernel must point into a buffer. The exception is a table that the launcher itself reads,
 * such as AdamW's segments: the test passes it to run_kernel_with(). Where a test compares a GPU's bits
 * with the CPU's, it runs the CPU's kernel by run_on_cpu().
 *
 * Every byte of a new buffer is 0xff, a NaN in every float type, so that an element that the kernel failed
 * to write shows. Guard bytes surround the buffer, and buffer_free() checks them, so that a write beside
 * the buffer shows too. */
#ifndef TIDEPOOL_TESTS_TEST_KERNELS_H
#define TIDEPOOL_TESTS_TEST_KERNELS_H

#include <math.h>

#include "base/fp16.h"
#include "kernels/cpu/cpu.h"
#include "tests/kernels/test_mirrors.h"
#include "tests/support/assert_ok.h"

#if TIDE_HAVE_OPENMP
#include <omp.h>
#endif
#if !TEST_ON_CPU
#include "kernels/cuda/launchers.h"
#endif

/* ---- where the kernels run ---- */

enum { TEST_SKIPPED = 77 };

#if defined(TEST_CUDA)

/* Whether the machine has a GPU. If not, prints why the program is skipped. */
static inline bool test_place_is_there(void)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        print_message("SKIP no GPU: %s\n",
                      error != cudaSuccess ? cudaGetErrorString(error) : "none is visible");
    return error == cudaSuccess && count > 0;
}

#else

static inline bool test_place_is_there(void)
{
    return true;
}

#endif

#define RUN_KERNEL_TESTS(tests)                                                                              \
    (test_place_is_there() ? cmocka_run_group_tests(tests, NULL, NULL) : TEST_SKIPPED)

/* The table of kernels that the program checks: on the CPU, that of the best instruction set. */
static inline const tide_kernels *test_table(void)
{
#if TEST_ON_CPU
    return tide_kernels_cpu();
#else
    return tide_kernels_cuda();
#endif
}

static inline void expect_run(tide_status status)
{
    if (status != TIDE_OK)
        fail_msg("%s: %s", tide_status_name(status), tide_message());
}

/* Runs a kernel of the CPU's tables, whichever kernels the program checks. */
static inline void run_on_cpu(tide_kernel kernel, const void *arguments)
{
    expect_run(kernel(NULL, arguments));
}

/* Runs a kernel that the program checks and waits for its end. `bytes` is the size of the arguments;
 * `table`, of table_bytes, is the memory that the launcher reads through a pointer in them, or NULL. */
static inline void run_kernel_with(tide_kernel kernel, const void *arguments, size_t bytes, const void *table,
                                   size_t table_bytes)
{
#if TEST_ON_CPU
    (void)bytes, (void)table, (void)table_bytes;
    run_on_cpu(kernel, arguments);
#else
    test_hand_over();
    const tide_status status = test_launch_moved(kernel, arguments, bytes, table, table_bytes);
    test_take_back();
    expect_run(status);
#endif
}

/* run_kernel(kernel, pointer to its arguments) */
#define run_kernel(kernel, ...) run_kernel_with(kernel, (__VA_ARGS__), sizeof *(__VA_ARGS__), NULL, 0)

/* Makes teams of `threads` threads, even on a machine with fewer processors. */
static inline void use_threads(int threads)
{
    tide_kernels_cpu_configure(threads);
#if TIDE_HAVE_OPENMP
    omp_set_num_threads(threads);
#endif
}

enum { TEST_DTYPES = (int)TIDE_DTYPE_FP16 + 1, TEST_MOST_THREADS = TEST_ON_CPU ? 3 : 1 };

/* Whether the test checks shape `number` of a list with this dtype. On the CPU the GPU's kernels would
 * take long for all shapes and dtypes, so there each shape is checked with one dtype, unless TIDE_TEST_ALL
 * is set (tools/campaign.sh sets it). */
static inline bool case_is_taken(size_t number, tide_dtype dtype)
{
#if defined(TEST_CUDA_ON_CPU)
    return getenv("TIDE_TEST_ALL") != NULL || (number + (size_t)dtype) % TEST_DTYPES == 0;
#else
    (void)number, (void)dtype;
    return true;
#endif
}

typedef void kernel_check(const tide_kernels *kernels, tide_dtype dtype);

/* Calls a check for every dtype and, on the CPU, for each instruction set with one thread and with three. */
static inline void for_each_configuration(void **state)
{
    kernel_check *const check = *(kernel_check **)*state;
#if TEST_ON_CPU
    for (tide_cpu_isa isa = TIDE_CPU_ISA_PORTABLE; isa < TIDE_CPU_ISA_COUNT; isa++)
        for (int threads = 1; tide_cpu_variant_get(isa) && threads <= TEST_MOST_THREADS; threads += 2) {
            use_threads(threads);
            for (tide_dtype dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16; dtype++)
                check(&tide_cpu_variant_get(isa)->kernels, dtype);
        }
#else
    for (tide_dtype dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16; dtype++)
        check(test_table(), dtype);
#endif
}

static inline struct CMUnitTest kernel_test(const char *name, kernel_check **check)
{
    return (struct CMUnitTest){.name = name, .test_func = for_each_configuration, .initial_state = check};
}

/* A kernel_check as a case of a test: for_each_configuration() calls it. */
#define each_configuration(check) kernel_test(#check, &(kernel_check *){check})

/* ---- buffers ---- */

enum { GUARD_BYTES = TIDE_ALIGNMENT_BYTES, GUARD = 0xa5, POISON = 0xff };

typedef struct buffer {
    void *data;
    size_t bytes;
    tide_dtype dtype;
} buffer;

static inline buffer buffer_bytes(size_t bytes)
{
    char *block = test_allocate(tide_align_up(bytes) + 2 * GUARD_BYTES);
    memset(block, GUARD, tide_align_up(bytes) + 2 * GUARD_BYTES);
    memset(block + GUARD_BYTES, POISON, bytes);
    return (buffer){.data = block + GUARD_BYTES, .bytes = bytes};
}

static inline buffer buffer_of(size_t elements, tide_dtype dtype)
{
    buffer made = buffer_bytes(elements * tide_dtype_bytes(dtype));
    made.dtype = dtype;
    return made;
}

static inline void buffer_check(buffer checked)
{
    const unsigned char *before = (const unsigned char *)checked.data - GUARD_BYTES;
    const unsigned char *after = (const unsigned char *)checked.data + checked.bytes;
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        assert_int_equal(before[i], GUARD);
        assert_int_equal(after[i], GUARD);
    }
}

static inline void buffer_free(buffer freed)
{
    if (freed.data == NULL)
        return;
    buffer_check(freed);
    test_release((char *)freed.data - GUARD_BYTES);
}

static inline void buffer_array_free(const buffer *freed, size_t count)
{
    for (size_t i = 0; i < count; i++)
        buffer_free(freed[i]);
}

/* Frees all buffers that it names. */
#define buffers_free(...)                                                                                    \
    buffer_array_free((const buffer[]){__VA_ARGS__}, sizeof((const buffer[]){__VA_ARGS__}) / sizeof(buffer))

static inline double buffer_get(buffer from, size_t i)
{
    if (from.dtype == TIDE_DTYPE_BF16)
        return (double)tide_bf16_to_float(((const tide_bf16 *)from.data)[i]);
    if (from.dtype == TIDE_DTYPE_FP16)
        return (double)tide_fp16_to_float(((const tide_fp16 *)from.data)[i]);
    return (double)((const float *)from.data)[i];
}

static inline void buffer_set(buffer to, size_t i, double value)
{
    if (to.dtype == TIDE_DTYPE_BF16)
        ((tide_bf16 *)to.data)[i] = tide_bf16_from_float((float)value);
    else if (to.dtype == TIDE_DTYPE_FP16)
        ((tide_fp16 *)to.data)[i] = tide_fp16_from_float((float)value);
    else
        ((float *)to.data)[i] = (float)value;
}

/* Runs layer norm's backward with a workspace; the caller leaves norm->workspace unset. */
static inline void run_layer_norm_backward(const tide_kernels *kernels,
                                           const tide_layer_norm_backward_args *norm)
{
    tide_layer_norm_backward_args args = *norm;
    const buffer workspace = buffer_bytes(kernels->layer_norm_backward_workspace_bytes(norm));
    args.workspace = workspace.data;
    args.workspace_bytes = workspace.bytes;
    run_kernel(kernels->layer_norm_backward, &args);
    buffer_free(workspace);
}

/* Runs RMS norm's backward with a workspace; the caller leaves norm->workspace unset. */
static inline void run_rms_norm_backward(const tide_kernels *kernels, const tide_rms_norm_backward_args *norm)
{
    tide_rms_norm_backward_args args = *norm;
    const buffer workspace = buffer_bytes(kernels->rms_norm_backward_workspace_bytes(norm));
    args.workspace = workspace.data;
    args.workspace_bytes = workspace.bytes;
    run_kernel(kernels->rms_norm_backward, &args);
    buffer_free(workspace);
}

/* A number uniform in [-1, 1); every run gets the same sequence. */
static inline double random_value(void)
{
    static uint64_t state = 0x9e3779b97f4a7c15u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) / 4503599627370496.0 - 1.0;
}

static inline buffer buffer_random(size_t elements, tide_dtype dtype, double scale)
{
    buffer made = buffer_of(elements, dtype);
    for (size_t i = 0; i < elements; i++)
        buffer_set(made, i, scale * random_value());
    return made;
}

static inline buffer buffer_copy(buffer from)
{
    buffer made = buffer_bytes(from.bytes);
    made.dtype = from.dtype;
    memcpy(made.data, from.data, from.bytes);
    return made;
}

/* Where the documents of the rows begin (tide_row_position): every third sequence is one document, in every
 * third each token is one, and in the others a token in four begins one, by a hash. */
static inline buffer some_starts(size_t rows, size_t sequence_length)
{
    buffer made = buffer_bytes(rows * sizeof(int32_t));
    int32_t *starts = made.data;
    for (size_t row = 0; row < rows; row++) {
        const size_t place = row % sequence_length, kind = row / sequence_length % 3;
        const bool begins =
            place == 0 || kind == 1 || (kind == 2 && ((uint32_t)row * 2654435761u) >> 30 == 0);
        starts[row] = begins ? (int32_t)place : starts[row - 1];
    }
    return made;
}

/* The buffer's values in float64; free() them. */
static inline double *buffer_values(buffer from)
{
    const size_t elements = from.bytes / tide_dtype_bytes(from.dtype);
    double *values = malloc((elements + 1) * sizeof *values);
    assert_non_null(values);
    for (size_t i = 0; i < elements; i++)
        values[i] = buffer_get(from, i);
    return values;
}

/* The largest relative rounding error of a type: bf16 keeps 8 significant bits, fp16 11. */
static inline double half_unit(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_BF16 ? 1.01 / 256 : dtype == TIDE_DTYPE_FP16 ? 1.01 / 2048 : 1e-7;
}

/* Checks that element i differs from `expected` by no more than `error` plus the rounding of its type (for
 * fp16 at least half of its smallest unit, 2^-24). */
static inline void assert_near(buffer actual, size_t i, double expected, double error)
{
    const double least = actual.dtype == TIDE_DTYPE_FP16 ? ldexp(1.01, -25) : 1e-30;
    const double value = buffer_get(actual, i);
    const double allowed = half_unit(actual.dtype) * fabs(expected) + error + least;
    if (!(fabs(value - expected) <= allowed))
        fail_msg("element %zu: %.9g, expected %.9g within %.2g", i, value, expected, allowed);
}

/* Checks that every element is near its expected value, within `tolerance` times the largest expected
 * value. */
static inline void assert_close(buffer actual, const double *expected, size_t elements, double tolerance)
{
    double largest = 0.0;
    for (size_t i = 0; i < elements; i++)
        largest = fmax(largest, fabs(expected[i]));
    for (size_t i = 0; i < elements; i++)
        assert_near(actual, i, expected[i], tolerance * largest);
}

static inline void assert_same_bits(buffer a, buffer b)
{
    assert_int_equal(a.bytes, b.bytes);
    assert_memory_equal(a.data, b.data, a.bytes);
}

#if TEST_ON_CPU

/* Calls `run` with one to five threads and checks that the results have the same bits each time. */
static inline void check_thread_counts(void (*run)(const void *of), const void *of, const buffer *results,
                                       size_t count)
{
    buffer first[8] = {{0}};
    assert_in_range(count, 1, sizeof first / sizeof first[0]);
    for (int threads = 1; threads <= 5; threads++) {
        tide_kernels_cpu_configure(threads);
        for (size_t i = 0; i < count; i++)
            memset(results[i].data, POISON, results[i].bytes);
        run(of);
        for (size_t i = 0; i < count; i++) {
            if (threads == 1)
                first[i] = buffer_copy(results[i]);
            assert_same_bits(results[i], first[i]);
        }
    }
    buffer_array_free(first, count);
}

#endif

/* ---- references in float64 ---- */

static inline double *doubles(size_t count)
{
    double *made = calloc(count + 1, sizeof *made);
    assert_non_null(made);
    return made;
}

/* The slope of a function along one of its variables, by a finite difference. */
static inline double slope_of(double (*function)(const void *of), const void *of, double *variable)
{
    const double step = 1e-4, kept = *variable;
    *variable = kept + step;
    const double above = function(of);
    *variable = kept - step;
    const double below = function(of);
    *variable = kept;
    return (above - below) / (2 * step);
}

#endif
