/* The choice among the candidates that cuBLASLt offers for a product (kernels/cuda/matmul_choice.h). A
 * table of candidates says which are allowed; then plans and matmuls run on a fake cuBLASLt that offers
 * the candidates that the test lists. */
#include "tests/kernels/matmul_case.h"
#include "tests/support/assert_ok.h"

#include "kernels/cuda/matmul_plan.h"

enum { DECLINED = CUBLAS_STATUS_NOT_SUPPORTED };
enum {
    NONE = CUBLASLT_REDUCTION_SCHEME_NONE,
    INPLACE = CUBLASLT_REDUCTION_SCHEME_INPLACE,
    FP32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
    OUTPUT = CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE,
    UNTOLD = TIDE_CUDA_MATMUL_UNKNOWN
};
#define MIB ((size_t)1 << 20)

/* ---- candidates ---- */

static const struct {
    const char *says;
    bool allowed;
    tide_cuda_matmul_candidate candidate;
} cases[] = {
    {"a sum in one part", true, {.splits = 1, .reduction = NONE}},
    {"a declined one", false, {.state = CUBLAS_STATUS_NOT_SUPPORTED, .splits = 1}},
    {"parts joined in fp32", true, {.splits = 4, .reduction = FP32}},
    {"parts joined in place", false, {.splits = 4, .reduction = INPLACE}},
    {"parts joined in the result's type", false, {.splits = 4, .reduction = OUTPUT}},
    {"parts joined in several ways at once", false, {.splits = 4, .reduction = INPLACE | FP32}},
    {"parts that are not joined", true, {.splits = 4, .reduction = NONE}},
    {"parts joined in a way that is unknown", true, {.splits = 4, .reduction = UNTOLD}},
    {"one part, which needs no joining, in place", true, {.splits = 1, .reduction = INPLACE}},
    {"no parts, which need no joining, in the result's type", true, {.splits = 0, .reduction = OUTPUT}},
    {"parts that are unknown", true, {.splits = UNTOLD, .reduction = UNTOLD}},
    {"parts that are unknown, in place", false, {.splits = UNTOLD, .reduction = INPLACE}},
    {"parts that are unknown, in the result's type", false, {.splits = UNTOLD, .reduction = OUTPUT}},
    {"all the workspace", true, {.splits = 4, .reduction = FP32, .workspace_bytes = 32 * MIB}},
    {"too much workspace", false, {.splits = 4, .reduction = FP32, .workspace_bytes = 32 * MIB + 1}},
};

static void a_candidate_is_allowed_by_its_workspace_and_how_it_joins_parts(void **state)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (tide_cuda_matmul_candidate_is_allowed(&cases[i].candidate) != cases[i].allowed)
            fail_msg("%s: %s", cases[i].says, cases[i].allowed ? "refused" : "allowed");
}

static void common_tiles_have_names(void **state)
{
    assert_string_equal(tide_cuda_matmul_tile_name(CUBLASLT_MATMUL_TILE_128x256), "128x256");
    assert_string_equal(tide_cuda_matmul_tile_name(CUBLASLT_MATMUL_TILE_UNDEFINED), "");
    assert_string_equal(tide_cuda_matmul_tile_name(UNTOLD), "");
    assert_string_equal(tide_cuda_matmul_tile_name(10000), "");
}

/* ---- plans ---- */

static cublasLtHandle_t library; /* of the plans that a test makes itself */

static int begin(void **state)
{
    fake_cublaslt_start();
    return matmul_open() && cublasLtCreate(&library) == CUBLAS_STATUS_SUCCESS ? 0 : -1;
}

static int end(void **state)
{
    return matmul_close(cublasLtDestroy(library) == CUBLAS_STATUS_SUCCESS ? 0 : -1);
}

static tide_cuda_matmul_plan *plan_of(const tide_matmul_args *args)
{
    tide_cuda_matmul_plan *made;
    assert_int_equal(tide_cuda_matmul_plan_create(library, args, &made), TIDE_OK);
    return made;
}

/* The gradient of a small weight: few elements, each a long sum. */
enum { M = 8, N = 16, K = 8192 };
static const tide_matmul_args gradient = {.m = M,
                                          .n = N,
                                          .k = K,
                                          .lda = M,
                                          .ldb = N,
                                          .ldc = N,
                                          .in_dtype = TIDE_DTYPE_BF16,
                                          .out_dtype = TIDE_DTYPE_FP32,
                                          .transpose_a = true,
                                          .accumulate = true};

/* A list of candidates as cuBLASLt may offer it, allowed ones and others. */
static const fake_cublaslt_candidate answers[] = {
    {.state = DECLINED},
    {.algorithm = 20, .splits = 4, .reduction = OUTPUT},
    {.algorithm = 21, .tile = CUBLASLT_MATMUL_TILE_128x256, .stages = 36, .splits = 4, .reduction = FP32},
    {.algorithm = 22, .splits = 4, .reduction = INPLACE},
    {.algorithm = 23, .splits = 1, .workspace_bytes = 512},
    {.algorithm = 24, .splits = 2, .reduction = FP32},
    {.algorithm = 25, .splits = 4, .reduction = FP32, .workspace_bytes = 33 * MIB},
    {.state = DECLINED},
    /* one candidate more than the plan asks for */
    {.algorithm = 26, .splits = 4, .reduction = FP32},
};
enum { ANSWERS = sizeof answers / sizeof answers[0], FIRST_ALLOWED = 2 };

static void offer_all(void)
{
    fake_cublaslt_offer(answers, ANSWERS);
}

/* Result of a product prepared and run with operands at fresh addresses: its workspace, the algorithm that
 * ran, and C. */
typedef struct outcome {
    size_t workspace_bytes;
    int algorithm;
    buffer c;
} outcome;

static outcome gradient_run(size_t rows_further)
{
    buffer a = buffer_of((K + rows_further) * M, TIDE_DTYPE_BF16), b = buffer_of(K * N, TIDE_DTYPE_BF16);
    outcome made = {.c = buffer_of(M * N, TIDE_DTYPE_FP32)};
    tide_matmul_args args = gradient;
    for (size_t i = 0; i < (size_t)K * M; i++)
        buffer_set(a, rows_further * M + i, (double)(i * 37 % 101) / 101 - 0.5);
    for (size_t i = 0; i < (size_t)K * N; i++)
        buffer_set(b, i, (double)(i * 53 % 103) / 103 - 0.5);
    for (size_t i = 0; i < M * N; i++)
        buffer_set(made.c, i, (double)i);
    args.a = (const tide_bf16 *)a.data + rows_further * M;
    args.b = b.data;
    args.c = made.c.data;
    assert_int_equal(tide_cuda_matmul_prepare(&args, &args.workspace_bytes), TIDE_OK);
    buffer workspace = buffer_bytes(args.workspace_bytes);
    args.workspace = workspace.data;
    run_kernel(tide_cuda_matmul, &args);
    made.workspace_bytes = args.workspace_bytes;
    made.algorithm = fake_cublaslt_last_algorithm();
    buffers_free(workspace, b, a);
    return made;
}

static void a_product_runs_the_first_candidate_that_is_allowed(void **state)
{
    offer_all();
    outcome run = gradient_run(0);
    assert_int_equal(run.algorithm, answers[FIRST_ALLOWED].algorithm);
    assert_int_equal(run.workspace_bytes, 4 * M * N * sizeof(float));
    assert_int_equal(fake_cublaslt_most_wanted(), TIDE_CUDA_MATMUL_CANDIDATES);
    double sums[M * N];
    for (size_t i = 0; i < M * N; i++) {
        sums[i] = (double)i;
        for (size_t q = 0; q < K; q++) {
            const float x = tide_bf16_to_float(
                tide_bf16_from_float((float)((double)((q * M + i / N) * 37 % 101) / 101 - 0.5)));
            const float y = tide_bf16_to_float(
                tide_bf16_from_float((float)((double)((q * N + i % N) * 53 % 103) / 103 - 0.5)));
            sums[i] += (double)x * y;
        }
    }
    assert_close(run.c, sums, M * N, 1e-5);
    buffer_free(run.c);
}

/* A split product would be rounded to the output's type before the bias is added. */
static void a_narrow_product_with_a_bias_is_not_split(void **state)
{
    static const fake_cublaslt_candidate split_first[] = {{.splits = 4, .reduction = FP32}, {.splits = 1}};
    tide_matmul_args shape = gradient;
    fake_cublaslt_offer(split_first, 2);
    shape.accumulate = false;
    for (int i = 0; i < 4; i++) {
        shape.has_bias = i & 1;
        shape.out_dtype = i & 2 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32;
        tide_cuda_matmul_plan *plan = plan_of(&shape);
        assert_int_equal(plan->chosen, i == 3);
        tide_cuda_matmul_plan_destroy(plan);
    }
}

/* Prepares a product of this m and n and returns its workspace's bytes. k stays the same, so the same
 * candidates fit every shape. */
static size_t prepared(size_t m, size_t n)
{
    tide_matmul_args args = gradient;
    size_t bytes = 12345;
    args.m = args.lda = m;
    args.n = args.ldb = args.ldc = n;
    assert_int_equal(tide_cuda_matmul_prepare(&args, &bytes), TIDE_OK);
    return bytes;
}

static void a_shape_has_one_choice_whatever_was_prepared_before_and_wherever_it_lies(void **state)
{
    offer_all();
    outcome first = gradient_run(0);
    for (size_t round = 1; round <= 4; round++) {
        tide_cuda_matmul_close();
        assert_int_equal(tide_cuda_matmul_open(), TIDE_OK);
        for (size_t n = 1; n < 3 * round; n++)
            prepared(n % 5 + 1, n);
        outcome again = gradient_run(16 * round);
        assert_int_equal(again.algorithm, first.algorithm);
        assert_int_equal(again.workspace_bytes, first.workspace_bytes);
        assert_same_bits(again.c, first.c);
        buffer_free(again.c);
    }
    buffer_free(first.c);
}

static void check_refused(const fake_cublaslt_candidate *offered, size_t count, tide_status expected,
                          const char *says)
{
    size_t bytes = 12345;
    fake_cublaslt_offer(offered, count);
    const size_t live = fake_cublaslt_live();
    assert_int_equal(tide_cuda_matmul_prepare(&gradient, &bytes), expected);
    assert_non_null(strstr(tide_message(), "8 x 16 x 8192"));
    assert_non_null(strstr(tide_message(), says));
    assert_int_equal(bytes, 12345);
    assert_int_equal(fake_cublaslt_live(), live);
}

static void without_an_answer_that_is_allowed_a_shape_is_refused(void **state)
{
    const fake_cublaslt_candidate broken = {.state = CUBLAS_STATUS_INTERNAL_ERROR};
    check_refused(answers, 0, TIDE_ERROR_UNSUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED");
    check_refused(answers, FIRST_ALLOWED, TIDE_ERROR_UNSUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED");
    check_refused(&answers[3], 1, TIDE_ERROR_UNSUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED");
    check_refused(&answers[6], 1, TIDE_ERROR_UNSUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED");
    check_refused(&broken, 1, TIDE_ERROR_DEVICE, "CUBLAS_STATUS_INTERNAL_ERROR");
}

/* A kernel of cuBLASLt may have no value of an attribute because it is newer than the attribute's list of
 * values. */
static void what_the_library_does_not_tell_is_unknown(void **state)
{
    fake_cublaslt_candidate silent = answers[FIRST_ALLOWED];
    silent.untold = UINT32_MAX;
    fake_cublaslt_offer(&silent, 1);
    tide_cuda_matmul_plan *plan = plan_of(&gradient);
    const tide_cuda_matmul_candidate *taken = &plan->candidates[plan->chosen];
    const int32_t said[] = {taken->algorithm, taken->tile, taken->stages, taken->splits, taken->reduction};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++)
        assert_int_equal(said[i], UNTOLD);
    tide_cuda_matmul_plan_destroy(plan);
}

static void gelu_comes_apart_where_no_answer_with_it_is_allowed(void **state)
{
    uint64_t queries, matmuls, with_gelu;
    size_t bytes;
    const tide_matmul_args up = {.m = M,
                                 .n = N,
                                 .k = 64,
                                 .lda = 64,
                                 .ldb = N,
                                 .ldc = N,
                                 .in_dtype = TIDE_DTYPE_BF16,
                                 .out_dtype = TIDE_DTYPE_BF16,
                                 .gelu = TIDE_MATMUL_GELU_FORWARD};
    fake_cublaslt_offer(&answers[1], 1);
    assert_int_equal(tide_cuda_matmul_prepare(&up, &bytes), TIDE_ERROR_UNSUPPORTED);
    fake_cublaslt_counts(&queries, &matmuls, &with_gelu);
    assert_int_equal(queries, 2);
}

/* For odd shapes the library offers candidates that round the product before they add the bias: those without
 * a tile, and algorithm 56. */
static void gelu_with_a_bias_comes_apart_where_every_answer_rounds_before_it(void **state)
{
    static const fake_cublaslt_candidate any[] = {
        {.algorithm = 16, .splits = 1},
        {.algorithm = 56, .tile = CUBLASLT_MATMUL_TILE_32x128, .splits = 1},
        {.algorithm = 66, .tile = CUBLASLT_MATMUL_TILE_64x64, .splits = 1}};
    tide_matmul_args up = gradient;
    up.accumulate = false;
    up.out_dtype = TIDE_DTYPE_BF16;
    up.gelu = TIDE_MATMUL_GELU_FORWARD;
    for (int i = 0; i < 4; i++) {
        up.has_bias = i & 1;
        fake_cublaslt_offer(i < 2 ? any : &any[2], i < 2 ? 2 : 1);
        tide_cuda_matmul_plan *plan = plan_of(&up);
        assert_int_equal(plan->gelu_apart, i == 1);
        tide_cuda_matmul_plan_destroy(plan);
    }
}

/* tests/bench/gpu/bench_gpu_matmuls.c times the candidates in this way. */
static void a_plan_can_be_told_to_take_another_candidate(void **state)
{
    offer_all();
    tide_cuda_matmul_plan *plan = plan_of(&gradient);
    assert_int_equal(plan->candidate_count, TIDE_CUDA_MATMUL_CANDIDATES);
    assert_int_equal(plan->chosen, FIRST_ALLOWED);
    assert_int_equal(plan->candidates[FIRST_ALLOWED].tile, CUBLASLT_MATMUL_TILE_128x256);
    assert_int_equal(plan->candidates[FIRST_ALLOWED].stages, 36);
    buffer a = buffer_random(K * M, TIDE_DTYPE_BF16, 1.0), b = buffer_random(K * N, TIDE_DTYPE_BF16, 1.0);
    buffer c = buffer_random(M * N, TIDE_DTYPE_FP32, 1.0), workspace = buffer_bytes(MIB);
    tide_matmul_args args = gradient;
    args.a = a.data, args.b = b.data, args.c = c.data, args.workspace = workspace.data;
    for (int i = 0; i < plan->candidate_count; i++) {
        if (!tide_cuda_matmul_candidate_is_allowed(&plan->candidates[i]))
            continue;
        tide_cuda_matmul_plan_take(plan, i);
        assert_int_equal(plan->library_bytes, plan->candidates[i].workspace_bytes);
        assert_int_equal(tide_cuda_matmul_plan_run(library, plan, &args, NULL), TIDE_OK);
        assert_int_equal(fake_cublaslt_last_algorithm(), answers[i].algorithm);
    }
    tide_cuda_matmul_plan_destroy(plan);
    buffers_free(a, b, c, workspace);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_candidate_is_allowed_by_its_workspace_and_how_it_joins_parts),
        cmocka_unit_test(common_tiles_have_names),
        TEST(a_product_runs_the_first_candidate_that_is_allowed),
        TEST(a_narrow_product_with_a_bias_is_not_split),
        TEST(a_shape_has_one_choice_whatever_was_prepared_before_and_wherever_it_lies),
        TEST(without_an_answer_that_is_allowed_a_shape_is_refused),
        TEST(what_the_library_does_not_tell_is_unknown),
        TEST(gelu_comes_apart_where_no_answer_with_it_is_allowed),
        TEST(gelu_with_a_bias_comes_apart_where_every_answer_rounds_before_it),
        TEST(a_plan_can_be_told_to_take_another_candidate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
