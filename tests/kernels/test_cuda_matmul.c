/* The GPU's matmuls (kernels/cuda/matmul.c) on a fake cuBLASLt that computes on the CPU and checks its
 * arguments. Tests what test_kernels_matmul.c can't observe: the queries and calls to the library,
 * alignments, plans, failures. The kernels for GELU and for the cast are the GPU's own, run on the CPU. */
#include "tests/kernels/matmul_case.h"
#include "tests/support/assert_ok.h"

#include <cublasLt.h>

static int begin(void **state)
{
    fake_cublaslt_start();
    return matmul_open() ? 0 : -1;
}

static int end(void **state)
{
    return matmul_close(0);
}

static size_t prepared(const tide_matmul_args *args)
{
    size_t bytes = 12345;
    const tide_status status = tide_cuda_matmul_prepare(args, &bytes);
    if (status != TIDE_OK)
        fail_msg("%s: %s", tide_status_name(status), tide_message());
    return bytes;
}

static const tide_matmul_args small = {.m = 6, .n = 16, .k = 5, .lda = 5, .ldb = 16, .ldc = 16};

/* A dense product of random matrices, none padded or transposed. */
static product dense_product(size_t m, size_t n, size_t k, tide_dtype in_dtype, tide_dtype out_dtype,
                             bool has_bias)
{
    return product_make((product_shape){m, n, k},
                        &(manner){.has_bias = has_bias, .in_dtype = in_dtype, .out_dtype = out_dtype});
}

static product product_with_gelu(size_t n, tide_dtype dtype)
{
    return product_make(
        (product_shape){11, n, 40},
        &(manner){.has_bias = true, .in_dtype = dtype, .out_dtype = dtype, .gelu = TIDE_MATMUL_GELU_FORWARD});
}

static void for_each_dtype(void (*check)(tide_dtype dtype))
{
    check(TIDE_DTYPE_FP32);
    check(TIDE_DTYPE_BF16);
    check(TIDE_DTYPE_FP16);
}

static void check_rounded_once(tide_dtype dtype)
{
    product p = dense_product(9, 24, 700, dtype, dtype, true);
    product_run(&p);
    assert_close(p.c, p.expected, 9 * 24, 1e-6);
    product_free(&p);
}

static void a_sum_in_parts_is_rounded_once(void **state)
{
    for_each_dtype(check_rounded_once);
}

static void a_sum_in_parts_has_the_same_bits_at_every_launch(void **state)
{
    product p = dense_product(9, 24, 700, TIDE_DTYPE_FP32, TIDE_DTYPE_FP32, false);
    product_run(&p);
    assert_true(p.args.workspace_bytes > 0);
    buffer first = buffer_copy(p.c);
    for (int i = 0; i < 5; i++) {
        run_kernel(tide_cuda_matmul, &p.args);
        assert_same_bits(p.c, first);
    }
    buffer_free(first);
    product_free(&p);
}

static void check_widened(tide_dtype dtype)
{
    product p = dense_product(7, 17, 200, dtype, TIDE_DTYPE_FP32, true);
    product_run(&p);
    assert_close(p.c, p.expected, 7 * 17, 1e-6);
    product_free(&p);
}

static void a_narrow_bias_is_added_to_a_wide_result(void **state)
{
    check_widened(TIDE_DTYPE_BF16);
    check_widened(TIDE_DTYPE_FP16);
}

/* Operands begin at rows whose addresses are less aligned than the matrix: the fake fails if an address is
 * less aligned than the plan promised to cuBLASLt. */
static void operands_may_begin_at_any_row(void **state)
{
    product p = dense_product(9, 20, 30, TIDE_DTYPE_BF16, TIDE_DTYPE_BF16, false);
    p.args.m = 8;
    p.args.a = (const tide_bf16 *)p.a.data + 30;
    p.args.c = (tide_bf16 *)p.c.data + 20;
    product_run(&p);
    buffer rows = {.data = (tide_bf16 *)p.c.data + 20, .bytes = 8 * 20 * 2, .dtype = TIDE_DTYPE_BF16};
    assert_close(rows, p.expected + 20, 8 * 20, 1e-6);
    product_free(&p);
}

/* ---- GELU as a kernel of its own ---- */

enum { TAKEN, NOT_SUPPORTED, NONE_FOUND };

/* Where GELU is a kernel of its own, it reads the rounded product, so the reference rounds the product
 * too. */
static void check_apart(tide_dtype dtype, size_t n, int declined)
{
    uint64_t queries, matmuls, with_gelu;
    product p = product_with_gelu(n, dtype);
    fake_cublaslt_start();
    fake_cublaslt_decline_gelu(declined);
    product_run(&p);
    fake_cublaslt_counts(&queries, &matmuls, &with_gelu);
    assert_int_equal(matmuls, 1);
    assert_int_equal(with_gelu, 0);
    assert_close(p.gelu_in, p.expected, 11 * n, 1e-6);
    for (size_t i = 0; i < 11 * n; i++)
        p.expected[i] = gelu_of(buffer_get(p.gelu_in, i));
    assert_close(p.c, p.expected, 11 * n, 1e-6);
    product_free(&p);
    tide_cuda_matmul_close();
    assert_int_equal(tide_cuda_matmul_open(), TIDE_OK);
}

static void check_declined(tide_dtype dtype)
{
    check_apart(dtype, 32, NOT_SUPPORTED);
    check_apart(dtype, 32, NONE_FOUND);
    /* GELU epilogues do not take rows of this width. */
    check_apart(dtype, 33, TAKEN);
}

static void a_product_whose_gelu_the_library_declines_has_it_apart(void **state)
{
    for_each_dtype(check_declined);
}

static void gelu_is_apart_in_fp32(void **state)
{
    check_apart(TIDE_DTYPE_FP32, 32, TAKEN);
}

static void a_product_takes_gelu_along_where_the_library_does(void **state)
{
    uint64_t queries, matmuls, with_gelu;
    product p = product_with_gelu(32, TIDE_DTYPE_BF16);
    product_run(&p);
    fake_cublaslt_counts(&queries, &matmuls, &with_gelu);
    assert_int_equal(queries, 1);
    assert_int_equal(with_gelu, 1);
    product_free(&p);
}

/* ---- plans ---- */

static void a_shape_is_prepared_once_and_launches_ask_nothing(void **state)
{
    uint64_t queries, matmuls, with_gelu;
    product p = dense_product(6, 16, 5, TIDE_DTYPE_FP32, TIDE_DTYPE_FP32, false);
    product_run(&p);
    assert_int_equal(prepared(&p.args), p.args.workspace_bytes);
    for (int i = 0; i < 4; i++)
        run_kernel(tide_cuda_matmul, &p.args);
    fake_cublaslt_counts(&queries, &matmuls, &with_gelu);
    assert_int_equal(queries, 1);
    assert_int_equal(matmuls, 5);
    product_free(&p);
}

/* More shapes than the table of plans has buckets: each shape still finds its plan. */
static void every_shape_keeps_its_own_plan(void **state)
{
    enum { SHAPES = 200 };
    uint64_t queries, matmuls, with_gelu;
    for (int round = 0; round < 2; round++)
        for (size_t n = 1; n <= SHAPES; n++)
            prepared(&(tide_matmul_args){.m = 3, .n = n, .k = 4, .lda = 4, .ldb = n, .ldc = n});
    fake_cublaslt_counts(&queries, &matmuls, &with_gelu);
    assert_int_equal(queries, SHAPES);
}

static void an_unprepared_shape_is_refused_by_name(void **state)
{
    product p = dense_product(6, 16, 5, TIDE_DTYPE_FP32, TIDE_DTYPE_FP32, false);
    tide_matmul_args other = p.args;
    other.transpose_a = true;
    other.lda = 6;
    prepared(&other);
    assert_int_equal(tide_cuda_matmul(NULL, &p.args), TIDE_ERROR_STATE);
    assert_non_null(strstr(tide_message(), "6 x 16 x 5"));
    product_free(&p);
}

static void a_workspace_too_small_is_refused(void **state)
{
    product p = dense_product(7, 17, 200, TIDE_DTYPE_BF16, TIDE_DTYPE_FP32, true);
    product_run(&p);
    p.args.workspace_bytes--;
    assert_int_equal(tide_cuda_matmul(NULL, &p.args), TIDE_ERROR_ARGUMENT);
    product_free(&p);
}

static void nothing_can_be_prepared_before_the_gpu_is_ready(void **state)
{
    size_t bytes = 12345;
    tide_cuda_matmul_close();
    assert_int_equal(tide_cuda_matmul_prepare(&small, &bytes), TIDE_ERROR_STATE);
    assert_int_equal(bytes, 12345);
}

static void a_shape_against_gelus_rules_is_refused_by_name(void **state)
{
    tide_matmul_args good = small;
    good.gelu = TIDE_MATMUL_GELU_BACKWARD;
    prepared(&good);
    tide_matmul_args bad[5] = {good, good, good, good, good};
    const char *faults[5] = {"ldc equal to n", "the inputs' type", "not added to", "no bias", "no such way"};
    bad[0].ldc = 24;
    bad[1].in_dtype = TIDE_DTYPE_BF16;
    bad[2].accumulate = true;
    bad[3].has_bias = true;
    bad[4].gelu = (tide_matmul_gelu)7;
    for (size_t i = 0; i < 5; i++) {
        size_t bytes = 12345;
        assert_int_equal(tide_cuda_matmul_prepare(&bad[i], &bytes), TIDE_ERROR_ARGUMENT);
        assert_non_null(strstr(tide_message(), faults[i]));
        assert_int_equal(bytes, 12345);
    }
}

/* ---- faults ---- */

/* Lets the N-th call to the library fail, for every N, and checks that prepare returns a clear status,
 * leaves nothing behind, and succeeds afterwards. With `untold`, a failure to read an attribute of a
 * candidate is no error: prepare succeeds. */
static void check_failing_prepare(const tide_matmul_args *shape, cublasStatus_t fault, tide_status expected,
                                  bool untold)
{
    uint64_t calls = 0, reads = 0;
    for (bool failed = true; failed; calls++) {
        size_t bytes = 12345;
        const size_t live = fake_cublaslt_live();
        fake_cublaslt_fail(calls + 1, (int)fault);
        const tide_status status = tide_cuda_matmul_prepare(shape, &bytes);
        failed = fake_cublaslt_has_failed();
        reads += fake_cublaslt_failed_reading();
        const bool refused = failed && !(untold && fake_cublaslt_failed_reading());
        assert_int_equal(status, refused ? expected : TIDE_OK);
        if (refused) {
            assert_int_equal(fake_cublaslt_live(), live);
            assert_int_equal(bytes, 12345);
            assert_non_null(strstr(tide_message(), cublasLtGetStatusName(fault)));
            assert_non_null(strstr(tide_message(), "6 x 16 x 5"));
        } else if (failed) {
            /* Prepare succeeded: discard its plan, so that the next round prepares again. */
            tide_cuda_matmul_close();
            assert_int_equal(tide_cuda_matmul_open(), TIDE_OK);
        }
    }
    assert_true(calls > 20);
    assert_int_equal(reads, 5);
}

static void a_failing_call_of_prepare_leaves_nothing_behind(void **state)
{
    tide_matmul_args shape = small;
    shape.in_dtype = shape.out_dtype = TIDE_DTYPE_BF16;
    shape.has_bias = true;
    shape.gelu = TIDE_MATMUL_GELU_FORWARD;
    check_failing_prepare(&shape, CUBLAS_STATUS_INTERNAL_ERROR, TIDE_ERROR_DEVICE, false);
    shape.has_bias = false;
    check_failing_prepare(&shape, CUBLAS_STATUS_ALLOC_FAILED, TIDE_ERROR_NO_MEMORY, false);
    shape.gelu = TIDE_MATMUL_GELU_NONE;
    check_failing_prepare(&shape, CUBLAS_STATUS_NOT_SUPPORTED, TIDE_ERROR_UNSUPPORTED, true);
}

static void a_failing_launch_says_which_and_the_next_one_runs(void **state)
{
    product p = dense_product(6, 16, 5, TIDE_DTYPE_FP32, TIDE_DTYPE_FP32, true);
    product_run(&p);
    /* Call 1 sets the pointer to the bias, call 2 multiplies. */
    for (uint64_t call = 1; call <= 2; call++) {
        fake_cublaslt_fail(call, CUBLAS_STATUS_EXECUTION_FAILED);
        assert_int_equal(tide_cuda_matmul(NULL, &p.args), TIDE_ERROR_DEVICE);
        assert_non_null(strstr(tide_message(), "6 x 16 x 5"));
        run_kernel(tide_cuda_matmul, &p.args);
    }
    assert_close(p.c, p.expected, 6 * 16, 1e-6);
    product_free(&p);
}

static void a_library_that_does_not_start_can_be_started_again(void **state)
{
    tide_cuda_matmul_close();
    fake_cublaslt_fail(1, CUBLAS_STATUS_ALLOC_FAILED);
    assert_int_equal(tide_cuda_matmul_open(), TIDE_ERROR_NO_MEMORY);
    assert_non_null(strstr(tide_message(), "CUBLAS_STATUS_ALLOC_FAILED"));
    assert_int_equal(tide_cuda_matmul_open(), TIDE_OK);
    prepared(&small);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_sum_in_parts_is_rounded_once),
        TEST(a_sum_in_parts_has_the_same_bits_at_every_launch),
        TEST(a_narrow_bias_is_added_to_a_wide_result),
        TEST(operands_may_begin_at_any_row),
        TEST(a_product_whose_gelu_the_library_declines_has_it_apart),
        TEST(gelu_is_apart_in_fp32),
        TEST(a_product_takes_gelu_along_where_the_library_does),
        TEST(a_shape_is_prepared_once_and_launches_ask_nothing),
        TEST(every_shape_keeps_its_own_plan),
        TEST(an_unprepared_shape_is_refused_by_name),
        TEST(a_workspace_too_small_is_refused),
        TEST(nothing_can_be_prepared_before_the_gpu_is_ready),
        TEST(a_shape_against_gelus_rules_is_refused_by_name),
        TEST(a_failing_call_of_prepare_leaves_nothing_behind),
        TEST(a_failing_launch_says_which_and_the_next_one_runs),
        TEST(a_library_that_does_not_start_can_be_started_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
