/* Matrix products: the ones of the table of kernels (by oneDNN where the build has it) and the CPU's
 * built-in one. */
#include "tests/kernels/matmul_case.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

/* In the square shape a transposed operand has the same sizes and leading dimension as one that is not. */
static const product_shape shapes[] = {{1, 1, 1},      {1, 17, 5},    {1, 150, 70}, {7, 1, 3},
                                       {5, 33, 1},     {24, 24, 24},  {64, 48, 32}, {130, 257, 70},
                                       {33, 300, 513}, {129, 16, 260}};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* The tolerance: a sum of k products in fp32 errs by about 2^-24 of its largest partial sum, at worst k
 * times. The products are up to 1, also where they cancel. */
static void check_result(const product *p)
{
    const size_t elements = p->args.m * p->args.ldc;
    double largest = 0.0;
    for (size_t i = 0; i < elements; i++)
        largest = fmax(largest, fabs(p->expected[i]));
    assert_close(p->c, p->expected, elements, (2e-7 + 1e-8 * (double)p->args.k) / fmin(largest, 1.0));
}

static void check_table(product_shape s, const manner *how)
{
    product p = product_make(s, how);
    product_run(&p);
    check_result(&p);
    product_free(&p);
}

#if TEST_ON_CPU
static void check_built_in(product_shape s, const manner *how)
{
    for (tide_cpu_isa isa = TIDE_CPU_ISA_PORTABLE; isa < TIDE_CPU_ISA_COUNT; isa++) {
        const tide_cpu_variant *variant = tide_cpu_variant_get(isa);
        if (!variant)
            continue;
        product p = product_make(s, how);
        product_give_workspace(&p, variant->blocked_workspace_bytes());
        run_kernel(variant->blocked, &p.args);
        check_result(&p);
        product_free(&p);
    }
}

#endif

/* Calls check for every shape and manner: those in which GPT-2 multiplies, and more. Under a sanitizer it
 * checks a sixth of them with one thread and another sixth with three. */
static void for_each_manner(void (*check)(product_shape s, const manner *how), int threads)
{
    const size_t thin = test_thin(6);
    const struct {
        tide_dtype in, out;
    } types[] = {{TIDE_DTYPE_FP32, TIDE_DTYPE_FP32},
                 {TIDE_DTYPE_BF16, TIDE_DTYPE_FP32},
                 {TIDE_DTYPE_BF16, TIDE_DTYPE_BF16},
                 {TIDE_DTYPE_FP16, TIDE_DTYPE_FP32},
                 {TIDE_DTYPE_FP16, TIDE_DTYPE_FP16}};
    for (size_t s = 0; s < SHAPES; s++)
        for (size_t type = 0; type < sizeof types / sizeof types[0]; type++)
            for (unsigned flags = 0; flags < 16; flags++) {
                if ((s + type + (unsigned)(__builtin_popcount(flags) + threads / 2)) % thin != 0)
                    continue;
                /* The CPU's code for fp16 is that for bf16, so a quarter of the flags is enough. */
                if (TEST_ON_CPU && types[type].in == TIDE_DTYPE_FP16 && (s + flags) % 4 != 0)
                    continue;
                const manner how = {.transpose_a = flags & 1,
                                    .transpose_b = flags & 2,
                                    .has_bias = (flags & 12) == 4,
                                    .accumulate = (flags & 12) == 8 && types[type].out == TIDE_DTYPE_FP32,
                                    .in_dtype = types[type].in,
                                    .out_dtype = types[type].out,
                                    .padding = (flags & 12) == 12 ? 5 : 0};
                check(shapes[s], &how);
            }
}

static void the_tables_product_matches_float64(void **state)
{
    for (int threads = 1; threads <= TEST_MOST_THREADS; threads += 2) {
        tide_kernels_cpu_configure(threads);
        for_each_manner(check_table, threads);
    }
}

#if TEST_ON_CPU
static void the_built_in_product_matches_float64_on_every_instruction_set(void **state)
{
    for (int threads = 1; threads <= 3; threads += 2) {
        tide_kernels_cpu_configure(threads);
        for_each_manner(check_built_in, threads);
    }
}

#endif

/* Repeats a product with operands at other addresses and compares the bits. */
static void a_repeated_product_has_the_same_bits(void **state)
{
    const manner how = {.transpose_a = true, .in_dtype = TIDE_DTYPE_BF16, .out_dtype = TIDE_DTYPE_FP32};
    for (int threads = 1; threads <= TEST_MOST_THREADS; threads++) {
        tide_kernels_cpu_configure(threads);
        product p = product_make((product_shape){200, 300, 400}, &how);
        product_run(&p);
        buffer a = buffer_copy(p.a), b = buffer_copy(p.b), c = buffer_of(200 * 300, TIDE_DTYPE_FP32);
        tide_matmul_args again = p.args;
        again.a = a.data;
        again.b = b.data;
        again.c = c.data;
        run_kernel(test_table()->matmul, &again);
        assert_same_bits(c, p.c);
        buffers_free(a, b, c);
        product_free(&p);
    }
}

/* Callers rely on this: a gradient's first contribution may be written, or added to zeros. */
static void a_product_that_is_written_has_the_bits_of_one_that_is_added_to_zeros(void **state)
{
    const tide_kernels *kernels = test_table();
    const product_shape of[] = {{200, 300, 400}, {256, 64, 1500}, {24, 24, 24}, {130, 257, 70}, {1, 17, 5}};
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        for (tide_dtype dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16; dtype++) {
            const manner how = {.transpose_a = true, .in_dtype = dtype, .out_dtype = TIDE_DTYPE_FP32};
            tide_kernels_cpu_configure(1 + (int)(i % TEST_MOST_THREADS));
            product p = product_make(of[i], &how);
            buffer zeros = buffer_of(of[i].m * of[i].n, TIDE_DTYPE_FP32);
            memset(zeros.data, 0, of[i].m * of[i].n * sizeof(float));
            tide_matmul_args added = p.args;
            added.c = zeros.data;
            added.accumulate = true;
            size_t bytes = 0, added_bytes = 0;
            assert_int_equal(kernels->matmul_prepare(&p.args, &bytes), TIDE_OK);
            assert_int_equal(kernels->matmul_prepare(&added, &added_bytes), TIDE_OK);
            product_give_workspace(&p, bytes > added_bytes ? bytes : added_bytes);
            added.workspace = p.args.workspace;
            added.workspace_bytes = p.args.workspace_bytes;
            run_kernel(kernels->matmul, &p.args);
            run_kernel(kernels->matmul, &added);
            assert_same_bits(zeros, p.c);
            buffer_free(zeros);
            product_free(&p);
        }
}

#if TEST_ON_CPU
static void run_built_in(const void *of)
{
    run_kernel(tide_cpu_variant_best()->blocked, &((const product *)of)->args);
}

static void the_built_in_product_has_the_same_bits_for_any_thread_count(void **state)
{
    const manner how = {.transpose_b = true, .has_bias = true, .in_dtype = TIDE_DTYPE_BF16};
    product p = product_make((product_shape){300, 600, 700}, &how);
    tide_kernels_cpu_configure(5);
    product_give_workspace(&p, tide_cpu_variant_best()->blocked_workspace_bytes());
    check_thread_counts(run_built_in, &p, &p.c, 1);
    product_free(&p);
}

#endif

/* ---- fused GELU ---- */

#if !TEST_ON_CPU
static double gelu_slope(double x)
{
    const double inner = 0.79788456080286535588 * (x + 0.044715 * x * x * x), t = tanh(inner);
    return (1 + t) / 2 + x / 2 * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
}

/* A product rounds gelu_in once. GELU may be computed from the rounded product, or the product may be
 * rounded before it is multiplied by the slope (at most 1.13): the tolerance allows a second rounding, of
 * a value as large as the largest. */
static void check_gelu(product_shape s, const manner *how)
{
    const size_t elements = s.m * s.n;
    const double rounding = how->out_dtype == TIDE_DTYPE_FP32   ? 2e-6
                            : how->out_dtype == TIDE_DTYPE_BF16 ? 1.5 / 256
                                                                : 1.5 / 2048;
    product p = product_make(s, how);
    product_run(&p);
    if (how->gelu == TIDE_MATMUL_GELU_FORWARD)
        assert_close(p.gelu_in, p.expected, elements, 1e-5);
    for (size_t i = 0; i < elements; i++)
        p.expected[i] = how->gelu == TIDE_MATMUL_GELU_FORWARD
                            ? gelu_of(p.expected[i])
                            : p.expected[i] * gelu_slope(buffer_get(p.gelu_in, i));
    assert_close(p.c, p.expected, elements, rounding);
    product_free(&p);
}

static void gelu_taken_along_matches_float64(void **state)
{
    static const product_shape gelu_shapes[] = {
        {1, 8, 1}, {24, 32, 24}, {7, 33, 5}, {130, 264, 70}, {33, 40, 513}};
    for (size_t s = 0; s < sizeof gelu_shapes / sizeof gelu_shapes[0]; s++)
        for (tide_dtype dtype = TIDE_DTYPE_FP32; dtype <= TIDE_DTYPE_FP16; dtype++)
            for (unsigned flags = 0; flags < 8; flags++) {
                if ((s + (size_t)dtype + flags) % test_thin(7) != 0)
                    continue;
                manner how = {.transpose_a = flags & 1,
                              .transpose_b = flags & 2,
                              .has_bias = flags & 4,
                              .in_dtype = dtype,
                              .out_dtype = dtype,
                              .gelu = TIDE_MATMUL_GELU_FORWARD};
                check_gelu(gelu_shapes[s], &how);
                how.has_bias = false;
                how.gelu = TIDE_MATMUL_GELU_BACKWARD;
                check_gelu(gelu_shapes[s], &how);
            }
}
#endif

/* ---- refusals ---- */

#if TEST_ON_CPU
static const manner fp32_manner = {.in_dtype = TIDE_DTYPE_FP32, .out_dtype = TIDE_DTYPE_FP32};
#endif

static void a_shape_against_the_rules_is_refused_by_name(void **state)
{
    const tide_matmul_args good = {.m = 3, .n = 4, .k = 5, .lda = 5, .ldb = 4, .ldc = 4};
    tide_matmul_args bad[6] = {good, good, good, good, good, good};
    const char *faults[6] = {"empty", "lda", "ldb", "ldc", "bf16", "added"};
    bad[0].k = 0;
    bad[1].lda = 4;
    bad[2].ldb = 3;
    bad[3].ldc = 3;
    bad[4].out_dtype = TIDE_DTYPE_BF16;
    bad[5].accumulate = bad[5].has_bias = true;
    for (size_t i = 0; i < 6; i++) {
        size_t bytes = 12345;
        assert_int_equal(test_table()->matmul_prepare(&bad[i], &bytes), TIDE_ERROR_ARGUMENT);
        assert_non_null(strstr(tide_message(), faults[i]));
        assert_int_equal(bytes, 12345);
    }
}

#if TEST_ON_CPU
static void a_table_that_does_not_fuse_gelu_refuses_it(void **state)
{
    size_t bytes = 12345;
    const tide_matmul_args fused = {
        .m = 8, .n = 8, .k = 8, .lda = 8, .ldb = 8, .ldc = 8, .gelu = TIDE_MATMUL_GELU_FORWARD};
    assert_false(tide_kernels_cpu()->fuses_gelu);
    assert_int_equal(tide_kernels_cpu()->matmul_prepare(&fused, &bytes), TIDE_ERROR_ARGUMENT);
    assert_non_null(strstr(tide_message(), "GELU"));
    assert_int_equal(bytes, 12345);
}

#if TIDE_HAVE_ONEDNN
static void a_product_must_be_prepared_since_the_threads_were_set(void **state)
{
    const tide_kernels *kernels = tide_kernels_cpu();
    product p = product_make((product_shape){9, 9, 9}, &fp32_manner);
    tide_kernels_cpu_configure(2);
    assert_int_equal(kernels->matmul(NULL, &p.args), TIDE_ERROR_STATE);
    product_run(&p);
    check_result(&p);
    tide_kernels_cpu_configure(2);
    assert_int_equal(kernels->matmul(NULL, &p.args), TIDE_ERROR_STATE);
    assert_non_null(strstr(tide_message(), "9 x 9 x 9"));
    product_free(&p);
}
#endif

static void a_workspace_too_small_is_refused(void **state)
{
    const tide_cpu_variant *variant = tide_cpu_variant_best();
    product p = product_make((product_shape){9, 9, 9}, &fp32_manner);
    product_give_workspace(&p, variant->blocked_workspace_bytes() - 1);
    assert_int_equal(variant->blocked(NULL, &p.args), TIDE_ERROR_ARGUMENT);
    product_free(&p);
}

static void the_machine_is_described(void **state)
{
    const tide_cpu_info *info = tide_kernels_cpu_info();
    print_message("%s: kernels %s, products %s on %s, bf16 %s\n", info->processor, info->instructions,
                  info->matmul, info->matmul_isa,
                  info->bf16_native    ? "native"
                  : info->bf16_matmuls ? "emulated"
                                       : "through fp32");
    assert_true(strlen(info->processor) > 0);
    assert_string_equal(tide_kernels_cpu()->name + strlen("cpu "), info->instructions);
    assert_true(strcmp(info->matmul, "built-in") == 0 ||
                (TIDE_HAVE_ONEDNN && strncmp(info->matmul, "oneDNN", 6) == 0));
    assert_true(info->bf16_matmuls || !info->bf16_native);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_tables_product_matches_float64),
        cmocka_unit_test(a_repeated_product_has_the_same_bits),
        cmocka_unit_test(a_product_that_is_written_has_the_bits_of_one_that_is_added_to_zeros),
        cmocka_unit_test(a_shape_against_the_rules_is_refused_by_name),
#if !TEST_ON_CPU
        cmocka_unit_test(gelu_taken_along_matches_float64),
#endif
#if TEST_ON_CPU
        cmocka_unit_test(the_built_in_product_matches_float64_on_every_instruction_set),
        cmocka_unit_test(the_built_in_product_has_the_same_bits_for_any_thread_count),
        cmocka_unit_test(a_table_that_does_not_fuse_gelu_refuses_it),
#if TIDE_HAVE_ONEDNN
        cmocka_unit_test(a_product_must_be_prepared_since_the_threads_were_set),
#endif
        cmocka_unit_test(a_workspace_too_small_is_refused),
        cmocka_unit_test(the_machine_is_described),
#endif
    };
    return RUN_MATMUL_TESTS(tests);
}
