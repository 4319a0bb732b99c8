/* The GPT-2 model compared with PyTorch's gradients, with finite differences in float64, and with an
 * independent forward pass. An update callback records every gradient and leaves the weights unchanged.
 *
 * Tolerance for bf16. A bf16 number has 8 significant bits with the leading one, so neighbours above 1 are
 * 2^-7 apart, and rounding to the nearest errs by at most 2^-8 of the value: 0.39%, or 0.166% root mean
 * square for numbers spread evenly by their logarithm. Weights are rounded once. An activation or its
 * gradient is rounded about 10 times in a block and 5 times in the head, forward and again backward. 50
 * independent roundings give 0.00166 x sqrt(50) = 1.2% of a gradient's norm. The largest error measured is
 * 1.05%, and the bound is 2%. A wrong factor or a missing term gives tens of percent.
 */
#include "src/data/random.h"
#include "src/model/decoder_internal.h"
#include "src/pool/internal.h"
#include "tests/model/gpt2_fixture.h"
#include "tests/model/test_gpt2_float64.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* --- comparison --- */

static double norm_of(const float *values, uint64_t first, uint64_t count, uint64_t stride, uint64_t run)
{
    double sum = 0;
    for (uint64_t i = first; i < count; i += stride) {
        for (uint64_t j = i; j < i + run; j++)
            sum += (double)values[j] * values[j];
    }
    return sqrt(sum);
}

/* ||values - truth|| / ||truth||, over runs of `run` elements that begin every `stride` elements from
 * `first` on. */
static double relative_error(const float *values, const float *truth, uint64_t first, uint64_t count,
                             uint64_t stride, uint64_t run)
{
    double sum = 0;
    for (uint64_t i = first; i < count; i += stride) {
        for (uint64_t j = i; j < i + run; j++)
            sum += ((double)values[j] - truth[j]) * ((double)values[j] - truth[j]);
    }
    return sqrt(sum) / norm_of(truth, first, count, stride, run);
}

static void check_part(const char *name, double error, double tolerance)
{
    if (!(error < tolerance))
        fail_msg("%s: relative error %.3g, at most %.3g is right", name, error, tolerance);
}

/* The key's bias shifts all scores of a query by the same amount, which a softmax ignores. Its true gradient
 * is thus zero, and the computed one must be small compared with the norm of the whole bias's gradient. */
static void check_qkv_bias(const gpt2_fixture *r, const char *name, size_t index, const float *truth,
                           double tolerance)
{
    const uint64_t width = r->config.width;
    const float *gradient = r->gradients[index];
    check_part(name, relative_error(gradient, truth, 0, 3 * width, 2 * width, width), tolerance);
    const double key = norm_of(gradient, width, 2 * width, width, width);
    check_part("key bias", key / norm_of(truth, 0, 3 * width, 3 * width, 3 * width), tolerance);
}

static void check_gradients(const gpt2_fixture *r, float *const *truth, double tolerance)
{
    for (size_t i = 0; i < GOLDEN_PARAMS; i++) {
        tide_model_param param;
        tide_model_param_describe(&r->config, i, &param);
        const uint64_t count = r->elements[i];
        if (param.role == TIDE_ROLE_QKV_BIAS)
            check_qkv_bias(r, param.name, i, truth[i], tolerance);
        else
            check_part(param.name, relative_error(r->gradients[i], truth[i], 0, count, count, count),
                       tolerance);
    }
}

/* --- tests --- */

static void fp32_loss_and_gradients_are_pytorchs(void **state)
{
    gpt2_golden golden;
    golden_load(&golden);
    gpt2_fixture r;
    gpt2_fixture_open(&r, TIDE_DTYPE_FP32, false, 2);
    const double loss = gpt2_fixture_step(&r);
    assert_true(fabs(loss - golden.track.losses[0]) < 1e-6);
    check_gradients(&r, golden.gradients, 1e-5);
    gpt2_fixture_close(&r);
    golden_free(&golden);
}

static void bf16_loss_and_gradients_are_pytorchs_within_rounding(void **state)
{
    gpt2_golden golden;
    golden_load(&golden);
    gpt2_fixture r;
    gpt2_fixture_open(&r, TIDE_DTYPE_BF16, true, 4);
    const double loss = gpt2_fixture_step(&r);
    assert_true(fabs(loss - golden.track.losses[0]) < 0.01);
    check_gradients(&r, golden.gradients, 0.02);
    gpt2_fixture_close(&r);
    golden_free(&golden);
}

/* fp16 has three more significant bits than bf16, so the bounds are an eighth. Measured: 0.16%. */
static void fp16_loss_and_gradients_are_pytorchs_within_rounding(void **state)
{
    gpt2_golden golden;
    golden_load(&golden);
    gpt2_fixture r;
    gpt2_fixture_open(&r, TIDE_DTYPE_FP16, true, 4);
    const double loss = gpt2_fixture_step(&r);
    assert_true(fabs(loss - golden.track.losses[0]) < 0.01 / 8);
    check_gradients(&r, golden.gradients, 0.02 / 8);
    gpt2_fixture_close(&r);
    golden_free(&golden);
}

/* All gradients of a step, tensor after tensor. */
static float *copy_gradients(const gpt2_fixture *r, uint64_t *count)
{
    *count = 0;
    for (size_t i = 0; i < GOLDEN_PARAMS; i++)
        *count += r->elements[i];
    float *all = malloc(*count * sizeof *all);
    assert_non_null(all);
    uint64_t at = 0;
    for (size_t i = 0; i < GOLDEN_PARAMS; at += r->elements[i++])
        memcpy(all + at, r->gradients[i], r->elements[i] * sizeof *all);
    return all;
}

/* Make a step with two tables of kernels or settings of recompute: loss and gradients must be equal in all
 * bits. */
static void the_same_bits(tide_dtype dtype, const tide_kernels *const tables[2], const bool recompute[2])
{
    float *gradients[2];
    double losses[2];
    uint64_t count = 0;
    for (int i = 0; i < 2; i++) {
        gpt2_fixture r;
        gpt2_fixture_open_on(&r, tables[i], dtype, recompute[i], 2);
        losses[i] = gpt2_fixture_step(&r);
        gradients[i] = copy_gradients(&r, &count);
        gpt2_fixture_close(&r);
    }
    assert_memory_equal(&losses[0], &losses[1], sizeof losses[0]);
    assert_memory_equal(gradients[0], gradients[1], count * sizeof(float));
    free(gradients[0]);
    free(gradients[1]);
}

static void recompute_changes_no_bit(void **state)
{
    const tide_kernels *tables[2] = {tide_kernels_cpu(), tide_kernels_cpu()};
    the_same_bits(TIDE_DTYPE_FP32, tables, (const bool[2]){false, true});
    the_same_bits(TIDE_DTYPE_BF16, tables, (const bool[2]){false, true});
    the_same_bits(TIDE_DTYPE_FP16, tables, (const bool[2]){false, true});
}

static void a_step_repeated_gives_the_same_bits(void **state)
{
    gpt2_fixture r;
    gpt2_fixture_open(&r, TIDE_DTYPE_BF16, false, 2);
    uint64_t count = 0;
    const double first_loss = gpt2_fixture_step(&r);
    float *first = copy_gradients(&r, &count);
    const double second_loss = gpt2_fixture_step(&r);
    float *second = copy_gradients(&r, &count);
    assert_memory_equal(&first_loss, &second_loss, sizeof first_loss);
    assert_memory_equal(first, second, count * sizeof *first);
    free(first);
    free(second);
    gpt2_fixture_close(&r);
}

static void evaluation_gives_the_bits_of_the_training_loss(void **state)
{
    gpt2_fixture r;
    gpt2_fixture_open(&r, TIDE_DTYPE_BF16, false, 2);
    const double before = gpt2_fixture_evaluate(&r), trained = gpt2_fixture_step(&r),
                 after = gpt2_fixture_evaluate(&r);
    assert_memory_equal(&before, &trained, sizeof before);
    assert_memory_equal(&after, &trained, sizeof after);
    gpt2_fixture_close(&r);
}

/* --- GELU inside matmuls --- */

static tide_matmul_args without_gelu(const tide_matmul_args *args)
{
    tide_matmul_args separate = *args;
    separate.gelu = TIDE_MATMUL_GELU_NONE;
    separate.gelu_in = NULL;
    if (args->gelu == TIDE_MATMUL_GELU_FORWARD)
        separate.c = args->gelu_in;
    return separate;
}

static tide_status fused_prepare(const tide_matmul_args *shape, size_t *workspace_bytes)
{
    const tide_matmul_args separate = without_gelu(shape);
    return tide_kernels_cpu()->matmul_prepare(&separate, workspace_bytes);
}

/* A matmul with GELU, as promised by fuses_gelu, made of the CPU's separate kernels and thus with the same
 * bits. */
static tide_status fused_matmul(void *stream, const void *arguments)
{
    const tide_matmul_args *args = arguments;
    const tide_matmul_args separate = without_gelu(args);
    const size_t elements = args->m * args->n;
    const tide_gelu_args forward = {
        .in = args->gelu_in, .out = args->c, .elements = elements, .dtype = args->out_dtype};
    const tide_gelu_backward_args backward = {
        .in = args->gelu_in, .dout = args->c, .din = args->c, .elements = elements, .dtype = args->out_dtype};
    const tide_status status = tide_kernels_cpu()->matmul(stream, &separate);
    if (status != TIDE_OK || args->gelu == TIDE_MATMUL_GELU_NONE)
        return status;
    return args->gelu == TIDE_MATMUL_GELU_FORWARD ? tide_kernels_cpu()->gelu(stream, &forward)
                                                  : tide_kernels_cpu()->gelu_backward(stream, &backward);
}

static tide_status refused_gelu(void *stream, const void *arguments)
{
    (void)stream;
    (void)arguments;
    return tide_fail(TIDE_ERROR_STATE, "a GELU of its own where products take it along");
}

static void gelu_inside_matmuls_is_the_same_step(void **state)
{
    tide_kernels fusing = *tide_kernels_cpu();
    fusing.fuses_gelu = true;
    fusing.matmul_prepare = fused_prepare;
    fusing.matmul = fused_matmul;
    fusing.gelu = fusing.gelu_backward = refused_gelu;
    const tide_kernels *tables[2] = {tide_kernels_cpu(), &fusing};
    the_same_bits(TIDE_DTYPE_BF16, tables, (const bool[2]){false, false});
    the_same_bits(TIDE_DTYPE_FP32, tables, (const bool[2]){true, true});
}

/* --- gradient accumulators --- */

/* Counts the kernels of a step: matmuls that write a weight's gradient and that add to one, and launches
 * that write zeros. */
static struct {
    size_t written, added, zero_launches;
    uint64_t zero_bytes;
} counted;

static tide_status counted_matmul(void *stream, const void *arguments)
{
    const tide_matmul_args *args = arguments;
    counted.added += args->accumulate;
    counted.written += args->transpose_a && !args->accumulate;
    return tide_kernels_cpu()->matmul(stream, arguments);
}

static tide_status counted_zero(void *stream, const void *arguments)
{
    counted.zero_launches++;
    counted.zero_bytes += ((const tide_zero_args *)arguments)->bytes;
    return tide_kernels_cpu()->zero(stream, arguments);
}

static void weight_gradients_of_products_are_overwritten_and_never_zeroed(void **state)
{
    tide_kernels counting = *tide_kernels_cpu();
    counting.matmul = counted_matmul;
    counting.zero = counted_zero;
    gpt2_fixture r;
    gpt2_fixture_open_on(&r, &counting, TIDE_DTYPE_BF16, true, 1);
    r.pool->context.kernels = &counting;
    memset(&counted, 0, sizeof counted);
    gpt2_fixture_step(&r);
    /* Four weights per layer, and the embedding of tokens, which is also the head: the first micro-batch
     * writes each gradient, the others add to it. */
    const size_t weights = 4 * r.config.layers + 1;
    assert_int_equal(counted.written, weights);
    assert_int_equal(counted.added, (GOLDEN_SEQUENCES - 1) * weights);
    /* Zeros for blocks of the norm, and one launch per op: of each layer, of the head's norm and of the
     * positions. */
    assert_int_equal(counted.zero_launches, 1 + r.config.layers + 2);
    const uint64_t layer =
        13 * (uint64_t)r.config.width * sizeof(float); /* two norms have 4 widths, the biases 3 + 1 + 4 + 1 */
    const uint64_t ends = (2 + (uint64_t)r.config.context) * r.config.width * sizeof(float);
    assert_in_range(counted.zero_bytes, r.config.layers * layer + ends,
                    r.config.layers * layer + ends + 8192);
    gpt2_fixture_close(&r);
}

/* A process that trains half of the global batch computes half of its mean loss and gradient. */
static void learned_tokens_of_the_global_batch_divide_loss_and_gradients(void **state)
{
    gpt2_fixture r;
    float *whole[GOLDEN_PARAMS];
    gpt2_fixture_open(&r, TIDE_DTYPE_FP32, false, 1);
    const double loss = gpt2_fixture_step(&r);
    for (size_t i = 0; i < GOLDEN_PARAMS; i++) {
        whole[i] = malloc(r.memory_elements[i] * sizeof *whole[i]);
        assert_non_null(whole[i]);
        memcpy(whole[i], r.gradients[i], r.memory_elements[i] * sizeof *whole[i]);
    }
    r.batch.learned *= 2;
    assert_true(gpt2_fixture_step(&r) == loss / 2);
    for (size_t i = 0; i < GOLDEN_PARAMS; i++) {
        for (uint64_t j = 0; j < r.memory_elements[i]; j++)
            assert_true(2 * r.gradients[i][j] == whole[i][j]);
        free(whole[i]);
    }
    gpt2_fixture_close(&r);
}

/* --- finite differences --- */

/* With this vocabulary nearly half of wte's rows in memory are padding, which the float64 model does not
 * have. */
enum { DIRECTION_SEED = 7, ODD_VOCABULARY = 65 };

static void to_float64(const gpt2_fixture *r, double *params[GOLDEN_PARAMS])
{
    for (size_t i = 0; i < GOLDEN_PARAMS; i++) {
        params[i] = malloc(r->elements[i] * sizeof(double));
        assert_non_null(params[i]);
        for (uint64_t j = 0; j < r->elements[i]; j++)
            params[i][j] = r->values[i][j];
    }
}

static void free_float64(double *params[GOLDEN_PARAMS])
{
    for (size_t i = 0; i < GOLDEN_PARAMS; i++)
        free(params[i]);
}

static double loss_moved(const gpt2_fixture *r, double *params[GOLDEN_PARAMS], size_t index,
                         const float *direction, double distance)
{
    double *values = params[index];
    for (uint64_t j = 0; j < r->elements[index]; j++)
        values[j] = r->values[index][j] + distance * direction[j];
    const double loss = float64_gpt2_loss(&r->config, params, r->tokens, r->tokens + 1, GOLDEN_SEQUENCES,
                                          GOLDEN_SEQ_LEN, NULL);
    for (uint64_t j = 0; j < r->elements[index]; j++)
        values[j] = r->values[index][j];
    return loss;
}

static double tensor_norm(const gpt2_fixture *r, size_t index, const float *values)
{
    return norm_of(values, 0, r->elements[index], r->elements[index], r->elements[index]);
}

/* The derivative of the loss along a direction, from a central difference over 1e-4 in each direction. */
static double slope_along(const gpt2_fixture *r, double *params[GOLDEN_PARAMS], size_t index,
                          const float *direction)
{
    const double distance = 1e-4 / tensor_norm(r, index, direction);
    return (loss_moved(r, params, index, direction, distance) -
            loss_moved(r, params, index, direction, -distance)) /
           (2 * distance);
}

/* Along the gradient itself the loss must rise by the squared norm of the gradient per unit. This detects a
 * wrong factor, but not missing parts of the gradient, since the direction has no component along them. */
static double error_along_gradient(const gpt2_fixture *r, double *params[GOLDEN_PARAMS], size_t index)
{
    const double norm = tensor_norm(r, index, r->gradients[index]);
    const double slope = slope_along(r, params, index, r->gradients[index]);
    return fabs(slope - norm * norm) / (norm * norm);
}

/* Along a random direction the loss must rise by gradient x direction per unit. The direction has normally
 * distributed elements, from a fixed seed, and is independent of the gradient. An error e in the gradient,
 * also a missing part, changes the product by e x direction, which is normally distributed with deviation
 * ||e||. So the error is divided by the gradient's norm, with PyTorch's tolerance of 1e-5. Measured: at most
 * 1.4e-6, from fp32 rounding and from the finite difference. */
static double error_along_random(const gpt2_fixture *r, double *params[GOLDEN_PARAMS], size_t index)
{
    const uint64_t count = r->elements[index];
    const float *gradient = r->gradients[index];
    float *direction = malloc(count * sizeof *direction);
    assert_non_null(direction);
    tide_random_normals(DIRECTION_SEED, TIDE_RANDOM_USE_TEST, (uint32_t)index, 0, count, 1, direction);
    double expected = 0;
    for (uint64_t i = 0; i < count; i++)
        expected += (double)gradient[i] * direction[i];
    const double slope = slope_along(r, params, index, direction);
    free(direction);
    return fabs(slope - expected) / tensor_norm(r, index, gradient);
}

static void gradients_agree_with_finite_differences_in_float64(void **state)
{
    gpt2_fixture r;
    gpt2_fixture_open_small(&r, tide_kernels_cpu(), TIDE_DTYPE_FP32, true, ODD_VOCABULARY);
    gpt2_fixture_step(&r);
    double *params[GOLDEN_PARAMS];
    to_float64(&r, params);
    for (size_t i = 0; i < GOLDEN_PARAMS; i += test_thin(5)) {
        tide_model_param param;
        tide_model_param_describe(&r.config, i, &param);
        check_part(param.name, error_along_gradient(&r, params, i), 1e-5);
        check_part(param.name, error_along_random(&r, params, i), 1e-5);
    }
    free_float64(params);
    gpt2_fixture_close(&r);
}

/* Checks the check: a gradient that lacks every eighth element must pass along itself, and fail along the
 * random direction (measured: errors from 0.045 on). */
static void finite_differences_see_what_a_gradient_lacks(void **state)
{
    gpt2_fixture r;
    gpt2_fixture_open_small(&r, tide_kernels_cpu(), TIDE_DTYPE_FP32, true, ODD_VOCABULARY);
    gpt2_fixture_step(&r);
    double *params[GOLDEN_PARAMS];
    to_float64(&r, params);
    for (size_t i = 0; i < GOLDEN_PARAMS; i += test_thin(5)) {
        for (uint64_t j = 0; j < r.elements[i]; j += 8)
            r.gradients[i][j] = 0;
        assert_true(error_along_gradient(&r, params, i) < 1e-5);
        assert_true(error_along_random(&r, params, i) > 0.01);
    }
    free_float64(params);
    gpt2_fixture_close(&r);
}

/* --- logits --- */

static void check_logits(const float *logits, const double *truth, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        assert_true(fabs(logits[i] - truth[i]) < 1e-5);
}

static void logits_of_a_position_know_only_what_is_before_it(void **state)
{
    enum { POSITION = 11 };
    gpt2_fixture r;
    gpt2_fixture_open_small(&r, tide_kernels_cpu(), TIDE_DTYPE_FP32, false, ODD_VOCABULARY);
    const uint32_t vocabulary = r.config.vocab_size;
    double *params[GOLDEN_PARAMS];
    to_float64(&r, params);
    double *truth = malloc((size_t)GOLDEN_SEQ_LEN * vocabulary * sizeof *truth);
    float *logits = malloc(vocabulary * sizeof *logits);
    assert_true(truth && logits);
    float64_gpt2_loss(&r.config, params, r.tokens, r.tokens + 1, 1, GOLDEN_SEQ_LEN, truth);

    memset(r.tokens + POSITION + 1, 0, (GOLDEN_SEQ_LEN - POSITION - 1) * sizeof r.tokens[0]);
    ok(tide_step_begin(r.pool, &(tide_step_options){.training = false}));
    ok(tide_decoder_logits(r.model, r.tokens, POSITION, logits));
    ok(tide_step_end(r.pool));
    check_logits(logits, truth + (size_t)POSITION * vocabulary, vocabulary);
    free(truth);
    free(logits);
    free_float64(params);
    gpt2_fixture_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp32_loss_and_gradients_are_pytorchs),
        cmocka_unit_test(bf16_loss_and_gradients_are_pytorchs_within_rounding),
        cmocka_unit_test(fp16_loss_and_gradients_are_pytorchs_within_rounding),
        cmocka_unit_test(recompute_changes_no_bit),
        cmocka_unit_test(a_step_repeated_gives_the_same_bits),
        cmocka_unit_test(evaluation_gives_the_bits_of_the_training_loss),
        cmocka_unit_test(gelu_inside_matmuls_is_the_same_step),
        cmocka_unit_test(weight_gradients_of_products_are_overwritten_and_never_zeroed),
        cmocka_unit_test(learned_tokens_of_the_global_batch_divide_loss_and_gradients),
        cmocka_unit_test(gradients_agree_with_finite_differences_in_float64),
        cmocka_unit_test(finite_differences_see_what_a_gradient_lacks),
        cmocka_unit_test(logits_of_a_position_know_only_what_is_before_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
