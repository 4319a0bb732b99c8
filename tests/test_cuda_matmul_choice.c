/* Which of cuBLASLt's candidates a product takes (kernels/cuda/matmul_choice.h): the rule alone, over a table; then plans and
 * products on a cuBLASLt that answers what the test says. */
#include "tests/test_kernels.h"

#include "kernels/cuda/launchers.h"
#include "kernels/cuda/matmul_plan.h"
#include "tests/fake_cublaslt.h"

enum { SUCCESS = CUBLAS_STATUS_SUCCESS, DECLINED = CUBLAS_STATUS_NOT_SUPPORTED };
enum {
    NONE = CUBLASLT_REDUCTION_SCHEME_NONE,
    INPLACE = CUBLASLT_REDUCTION_SCHEME_INPLACE,
    FP32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
    OUTPUT = CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE,
    UNTOLD = TIDE_CUDA_MATMUL_UNKNOWN
};
#define MIB ((size_t)1 << 20)

/* ---- the rule ---- */

typedef struct rule_case {
    const char *says;
    size_t k;
    int expected;
    int count;
    struct {
        int splits, reduction;
        float waves;
        int state;
        size_t workspace_bytes;
    } candidates[TIDE_CUDA_MATMUL_CANDIDATES];
} rule_case;

static const rule_case cases[] = {
    {"nothing was found", 65536, -1, 0, {{0}}},
    {"one, whatever it is", 65536, 0, 1, {{1, NONE, 0.1f, SUCCESS, 0}}},
    {"a first answer that fills the GPU",
     65536,
     0,
     2,
     {{1, NONE, 3.9f, SUCCESS, 0}, {4, FP32, 8.0f, SUCCESS, 0}}},
    {"few tiles: the split one", 65536, 1, 2, {{1, NONE, 0.14f, SUCCESS, 0}, {4, FP32, 0.55f, SUCCESS, 0}}},
    {"just over a wave", 65536, 1, 2, {{1, NONE, 1.09f, SUCCESS, 0}, {3, FP32, 3.27f, SUCCESS, 0}}},
    {"a hundredth over a wave is a wave",
     65536,
     0,
     2,
     {{1, NONE, 1.005f, SUCCESS, 0}, {2, FP32, 2.0f, SUCCESS, 0}}},
    {"little to gain", 65536, 0, 2, {{1, NONE, 0.81f, SUCCESS, 0}, {2, FP32, 1.0f, SUCCESS, 0}}},
    {"one that fills no better", 65536, 0, 2, {{1, NONE, 0.69f, SUCCESS, 0}, {3, FP32, 2.07f, SUCCESS, 0}}},
    {"of split ones the one that fills enough",
     65536,
     2,
     4,
     {{1, NONE, 0.14f, SUCCESS, 0},
      {2, FP32, 0.27f, SUCCESS, 0},
      {6, FP32, 0.82f, SUCCESS, 0},
      {7, FP32, 0.95f, SUCCESS, 0}}},
    {"no unsplit one behind the first",
     65536,
     2,
     3,
     {{1, NONE, 0.14f, SUCCESS, 0}, {1, NONE, 0.98f, SUCCESS, 0}, {4, FP32, 0.55f, SUCCESS, 0}}},
    {"a first answer that splits too little",
     65536,
     1,
     2,
     {{2, FP32, 0.27f, SUCCESS, 0}, {8, FP32, 0.96f, SUCCESS, 0}}},
    {"parts that are too short", 8191, 0, 2, {{1, NONE, 0.14f, SUCCESS, 0}, {4, FP32, 0.55f, SUCCESS, 0}}},
    {"parts that are just long enough",
     8192,
     1,
     2,
     {{1, NONE, 0.14f, SUCCESS, 0}, {4, FP32, 0.55f, SUCCESS, 0}}},
    {"waves of the first are unknown",
     65536,
     0,
     2,
     {{1, NONE, 0.0f, SUCCESS, 0}, {4, FP32, 0.55f, SUCCESS, 0}}},
    {"waves of the first are no number",
     65536,
     0,
     2,
     {{1, NONE, NAN, SUCCESS, 0}, {4, FP32, 0.55f, SUCCESS, 0}}},
    {"waves of the split one are unknown",
     65536,
     0,
     2,
     {{1, NONE, 0.1f, SUCCESS, 0}, {4, FP32, 0.0f, SUCCESS, 0}}},
    {"waves without end", 65536, 0, 2, {{1, NONE, 0.1f, SUCCESS, 0}, {4, FP32, INFINITY, SUCCESS, 0}}},
    {"waves without end, first", 65536, 0, 2, {{1, NONE, INFINITY, SUCCESS, 0}, {4, FP32, 0.5f, SUCCESS, 0}}},
    {"a sum in one part", 65536, 0, 2, {{1, NONE, 0.1f, SUCCESS, 0}, {1, FP32, 0.9f, SUCCESS, 0}}},
    {"splits that are unknown",
     65536,
     0,
     2,
     {{1, NONE, 0.1f, SUCCESS, 0}, {UNTOLD, UNTOLD, 0.9f, SUCCESS, 0}}},
    {"a first answer that says nothing",
     65536,
     0,
     2,
     {{UNTOLD, UNTOLD, 0.0f, SUCCESS, 0}, {4, FP32, 0.9f, SUCCESS, 0}}},
    {"a split one that does not say how it joins",
     65536,
     0,
     2,
     {{1, NONE, 0.1f, SUCCESS, 0}, {4, NONE, 0.9f, SUCCESS, 0}}},
    {"a declined first", 65536, 1, 2, {{0, 0, 0.0f, DECLINED, 0}, {1, NONE, 0.1f, SUCCESS, 0}}},
    {"a declined split one", 65536, 0, 2, {{1, NONE, 0.1f, SUCCESS, 0}, {4, FP32, 0.9f, DECLINED, 0}}},
    {"in-place sums, first", 65536, 1, 2, {{4, INPLACE, 0.9f, SUCCESS, 0}, {1, NONE, 0.1f, SUCCESS, 0}}},
    {"in-place sums, behind", 65536, 0, 2, {{1, NONE, 0.1f, SUCCESS, 0}, {4, INPLACE, 0.9f, SUCCESS, 0}}},
    {"parts in the result's type, first",
     65536,
     1,
     2,
     {{4, OUTPUT, 0.9f, SUCCESS, 0}, {1, NONE, 0.1f, SUCCESS, 0}}},
    {"parts in the result's type, behind",
     65536,
     0,
     2,
     {{1, NONE, 0.1f, SUCCESS, 0}, {4, OUTPUT, 0.9f, SUCCESS, 0}}},
    {"several ways at once",
     65536,
     1,
     2,
     {{4, INPLACE | FP32, 0.9f, SUCCESS, 0}, {1, NONE, 0.1f, SUCCESS, 0}}},
    {"sums in one part, which join nothing, whatever they say: in place",
     65536,
     0,
     2,
     {{1, INPLACE, 0.9f, SUCCESS, 0}, {1, NONE, 0.1f, SUCCESS, 0}}},
    {"sums in no parts, which join nothing, whatever they say: in the result's type",
     65536,
     0,
     2,
     {{0, OUTPUT, 0.9f, SUCCESS, 0}, {1, NONE, 0.1f, SUCCESS, 0}}},
    {"in-place sums in parts that are unknown",
     65536,
     1,
     2,
     {{UNTOLD, INPLACE, 0.9f, SUCCESS, 0}, {1, NONE, 0.1f, SUCCESS, 0}}},
    {"parts that are unknown, in the result's type",
     65536,
     1,
     2,
     {{UNTOLD, OUTPUT, 0.9f, SUCCESS, 0}, {1, NONE, 0.1f, SUCCESS, 0}}},
    {"only forbidden ones", 65536, -1, 2, {{4, INPLACE, 0.9f, SUCCESS, 0}, {4, OUTPUT, 0.9f, SUCCESS, 0}}},
    {"all the workspace", 65536, 1, 2, {{1, NONE, 0.1f, SUCCESS, 0}, {4, FP32, 0.4f, SUCCESS, 32 * MIB}}},
    {"too much workspace",
     65536,
     0,
     2,
     {{1, NONE, 0.1f, SUCCESS, 0}, {4, FP32, 0.4f, SUCCESS, 32 * MIB + 1}}},
};

/* Not added to C, the same takes the first that is allowed. */
static void check_not_added(const char *says, const tide_cuda_matmul_candidate *candidates, int count,
                            size_t k)
{
    const int chosen = tide_cuda_matmul_choose(candidates, count, k, false);
    int first = 0;
    while (first < count && !tide_cuda_matmul_candidate_is_allowed(&candidates[first]))
        first++;
    if (chosen != (first < count ? first : -1))
        fail_msg("%s, not added to C: %d", says, chosen);
}

static void the_rule_takes_the_first_that_fills_the_gpu(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tide_cuda_matmul_candidate candidates[TIDE_CUDA_MATMUL_CANDIDATES];
        for (int c = 0; c < cases[i].count; c++)
            candidates[c] =
                (tide_cuda_matmul_candidate){.state = (cublasStatus_t)cases[i].candidates[c].state,
                                             .splits = cases[i].candidates[c].splits,
                                             .reduction = cases[i].candidates[c].reduction,
                                             .waves = cases[i].candidates[c].waves,
                                             .workspace_bytes = cases[i].candidates[c].workspace_bytes};
        const int chosen = tide_cuda_matmul_choose(candidates, cases[i].count, cases[i].k, true);
        if (chosen != cases[i].expected)
            fail_msg("%s: %d, not %d", cases[i].says, chosen, cases[i].expected);
        check_not_added(cases[i].says, candidates, cases[i].count, cases[i].k);
    }
}

static void common_tiles_have_names(void **state)
{
    (void)state;
    assert_string_equal(tide_cuda_matmul_tile_name(CUBLASLT_MATMUL_TILE_128x256), "128x256");
    assert_string_equal(tide_cuda_matmul_tile_name(CUBLASLT_MATMUL_TILE_UNDEFINED), "");
    assert_string_equal(tide_cuda_matmul_tile_name(UNTOLD), "");
    assert_string_equal(tide_cuda_matmul_tile_name(10000), "");
}

/* ---- plans ---- */

static int begin(void **state)
{
    (void)state;
    fake_cublaslt_start();
    return tide_cuda_matmul_open() == TIDE_OK ? 0 : -1;
}

static int end(void **state)
{
    char text[256];
    (void)state;
    tide_cuda_matmul_close();
    if (fake_cublaslt_misuse(text, sizeof text) > 0)
        print_error("misuse of cuBLASLt: %s\n", text);
    return fake_cublaslt_misuse(text, sizeof text) == 0 && fake_cublaslt_live() == 0 ? 0 : -1;
}

/* The gradient of a small weight: few numbers, long sums. */
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

/* As a library that is asked about it may answer: what the rule takes is the fifth. */
static const fake_cublaslt_candidate answers[] = {
    {.state = DECLINED},
    {.algorithm = 20, .splits = 4, .reduction = OUTPUT, .waves = 0.9f},
    {.algorithm = 21,
     .tile = CUBLASLT_MATMUL_TILE_128x256,
     .stages = 36,
     .splits = 1,
     .waves = 0.2f,
     .workspace_bytes = 512},
    {.algorithm = 22, .splits = 4, .reduction = INPLACE, .waves = 0.9f},
    {.algorithm = 23, .splits = 4, .reduction = FP32, .waves = 0.8f},
    {.algorithm = 24, .splits = 2, .reduction = FP32, .waves = 0.4f},
    {.algorithm = 25, .splits = 4, .reduction = FP32, .waves = 0.8f, .workspace_bytes = 33 * MIB},
    {.state = DECLINED},
    {.algorithm = 26, .splits = 4, .reduction = FP32, .waves = 1.0f}, /* more than are asked for */
};
enum { ANSWERS = sizeof answers / sizeof answers[0], FIRST_ALLOWED = 2, TAKEN = 4 };

static void offer_all(void)
{
    fake_cublaslt_offer(answers, ANSWERS);
}

/* Prepared and run, with operands at an address of its own; the algorithm that ran. */
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
    buffer_free(workspace);
    buffer_free(b);
    buffer_free(a);
    return made;
}

static void a_product_runs_the_candidate_that_the_rule_takes(void **state)
{
    (void)state;
    offer_all();
    outcome run = gradient_run(0);
    assert_int_equal(run.algorithm, answers[TAKEN].algorithm);
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

/* The head's input gradient has a long sum, too; a product with a bias might have few rows. */
static void a_product_that_is_not_added_to_c_runs_the_librarys_first(void **state)
{
    cublasLtHandle_t library;
    tide_cuda_matmul_plan *plan;
    tide_matmul_args shapes[2] = {gradient, gradient};
    (void)state;
    offer_all();
    shapes[0].accumulate = shapes[1].accumulate = false;
    shapes[1].out_dtype = TIDE_DTYPE_BF16;
    assert_int_equal(cublasLtCreate(&library), CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tide_cuda_matmul_plan_create(library, &shapes[i], &plan), TIDE_OK);
        assert_int_equal(plan->chosen, FIRST_ALLOWED);
        tide_cuda_matmul_plan_destroy(plan);
    }
    assert_int_equal(cublasLtDestroy(library), CUBLAS_STATUS_SUCCESS);
}

/* The parts' sum would be rounded before the bias is added. */
static void a_narrow_product_with_a_bias_is_not_split(void **state)
{
    static const fake_cublaslt_candidate split_first[] = {{.splits = 4, .reduction = FP32, .waves = 1.0f},
                                                          {.splits = 1, .waves = 0.2f}};
    cublasLtHandle_t library;
    tide_cuda_matmul_plan *plan;
    tide_matmul_args shape = gradient;
    (void)state;
    fake_cublaslt_offer(split_first, 2);
    shape.accumulate = false;
    assert_int_equal(cublasLtCreate(&library), CUBLAS_STATUS_SUCCESS);
    for (int i = 0; i < 4; i++) {
        shape.has_bias = i & 1;
        shape.out_dtype = i & 2 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32;
        assert_int_equal(tide_cuda_matmul_plan_create(library, &shape, &plan), TIDE_OK);
        assert_int_equal(plan->chosen, i == 3);
        tide_cuda_matmul_plan_destroy(plan);
    }
    assert_int_equal(cublasLtDestroy(library), CUBLAS_STATUS_SUCCESS);
}

/* Of each shape: k is the same, so that all answers stand for any of them. */
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
    (void)state;
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

static void few_answers_are_enough(void **state)
{
    (void)state;
    for (size_t count = FIRST_ALLOWED + 1; count <= ANSWERS; count++) {
        tide_cuda_matmul_close();
        assert_int_equal(tide_cuda_matmul_open(), TIDE_OK);
        fake_cublaslt_offer(answers, count);
        outcome run = gradient_run(0);
        assert_int_equal(run.algorithm, answers[count <= TAKEN ? FIRST_ALLOWED : TAKEN].algorithm);
        buffer_free(run.c);
    }
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
    (void)state;
    const fake_cublaslt_candidate broken = {.state = CUBLAS_STATUS_INTERNAL_ERROR};
    check_refused(answers, 0, TIDE_ERROR_UNSUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED");
    check_refused(answers, FIRST_ALLOWED, TIDE_ERROR_UNSUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED");
    check_refused(&answers[3], 1, TIDE_ERROR_UNSUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED");
    check_refused(&answers[6], 1, TIDE_ERROR_UNSUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED");
    check_refused(&broken, 1, TIDE_ERROR_DEVICE, "CUBLAS_STATUS_INTERNAL_ERROR");
}

/* As kernels may that are newer than the attributes: each left out in turn, then all. */
static void a_library_that_tells_less_gets_its_first_answer(void **state)
{
    (void)state;
    const uint32_t splits = 1u << CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                   reduction = 1u << CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME;
    const uint32_t tile = 1u << CUBLASLT_ALGO_CONFIG_TILE_ID | 1u << CUBLASLT_ALGO_CONFIG_STAGES_ID;
    const uint32_t untold[] = {splits, reduction, tile,
                               splits | reduction | tile | 1u << CUBLASLT_ALGO_CONFIG_ID};
    for (size_t i = 0; i < sizeof untold / sizeof untold[0]; i++) {
        fake_cublaslt_candidate told[2] = {answers[FIRST_ALLOWED], answers[TAKEN]};
        told[0].untold = told[1].untold = untold[i];
        fake_cublaslt_offer(told, 2);
        tide_cuda_matmul_close();
        assert_int_equal(tide_cuda_matmul_open(), TIDE_OK);
        outcome run = gradient_run(0);
        assert_int_equal(run.algorithm, answers[untold[i] == tile ? TAKEN : FIRST_ALLOWED].algorithm);
        buffer_free(run.c);
    }
}

static void gelu_comes_apart_where_no_answer_with_it_is_allowed(void **state)
{
    (void)state;
    uint64_t queries, products, with_gelu;
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
    fake_cublaslt_counts(&queries, &products, &with_gelu);
    assert_int_equal(queries, 2);
}

/* What the benchmark does. */
static void a_plan_can_be_told_to_take_another_candidate(void **state)
{
    (void)state;
    cublasLtHandle_t library;
    tide_cuda_matmul_plan *plan;
    offer_all();
    assert_int_equal(cublasLtCreate(&library), CUBLAS_STATUS_SUCCESS);
    assert_int_equal(tide_cuda_matmul_plan_create(library, &gradient, &plan), TIDE_OK);
    assert_int_equal(plan->candidate_count, TIDE_CUDA_MATMUL_CANDIDATES);
    assert_int_equal(plan->chosen, TAKEN);
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
    assert_int_equal(cublasLtDestroy(library), CUBLAS_STATUS_SUCCESS);
    buffer buffers[] = {a, b, c, workspace};
    for (size_t i = 0; i < 4; i++)
        buffer_free(buffers[i]);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rule_takes_the_first_that_fills_the_gpu),
        cmocka_unit_test(common_tiles_have_names),
        TEST(a_product_runs_the_candidate_that_the_rule_takes),
        TEST(a_product_that_is_not_added_to_c_runs_the_librarys_first),
        TEST(a_narrow_product_with_a_bias_is_not_split),
        TEST(a_shape_has_one_choice_whatever_was_prepared_before_and_wherever_it_lies),
        TEST(few_answers_are_enough),
        TEST(without_an_answer_that_is_allowed_a_shape_is_refused),
        TEST(a_library_that_tells_less_gets_its_first_answer),
        TEST(gelu_comes_apart_where_no_answer_with_it_is_allowed),
        TEST(a_plan_can_be_told_to_take_another_candidate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
