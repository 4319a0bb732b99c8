/* Every family compared with transformers (tests/golden/make_family_golden.py): the loss, each tensor's
 * gradient, and twenty training steps. A last test compares gradients with finite differences of tidepool's
 * own loss, independent of transformers. */
#include "src/train/trainer_internal.h"
#include "tests/model/family_fixture.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"
#include "tests/support/test_trainer_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static family_golden golden;

/* Ways to make a step, which must not change the result. A batch has eight sequences. */
static const struct way {
    const char *name;
    bool recompute;
    uint32_t micro_batch_sequences;
} ways[] = {{"kept, one micro-batch", false, 8},
            {"recomputed, micro-batches of 2", true, 2},
            {"kept, micro-batches of 1", false, 1}};

/* The cases after the first 13 combine features of those; each makes its twenty steps in only one of the
 * ways. */
enum { WAYS = sizeof ways / sizeof ways[0], RUN_IN_ALL_WAYS = 13 };

/* --- loss and gradients --- */

static double norm_of(const float *values, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += (double)values[i] * values[i];
    return sqrt(sum);
}

static double distance(const float *values, const float *truth, uint64_t count)
{
    double sum = 0;
    for (uint64_t i = 0; i < count; i++)
        sum += pow((double)values[i] - truth[i], 2);
    return sqrt(sum);
}

/* Each tensor's gradient by its norm. The largest error measured is 2.2e-6, of qwen2's key bias, and 1e-6 of
 * all others. Most of the key bias's gradient cancels: without the rotation of keys by their position the
 * bias would only shift all scores, which a softmax ignores. GPT-2's keys are not rotated, but their bias is
 * only a third of a tensor here (test_gpt2.c checks it alone). */
static void check_gradients(const family_fixture *r, const char *way)
{
    for (size_t i = 0; i < r->of->tensors; i++) {
        tide_model_tensor tensor;
        tide_model_tensor_describe(&r->of->config, i, &tensor);
        const float *truth = r->of->gradients[i];
        const double error =
            distance(family_fixture_gradient(r, i), truth, tensor.elements) / norm_of(truth, tensor.elements);
        if (!(error < 1e-5))
            fail_msg("%s, %s: gradient of %s is off by %.3g", r->of->name, way, tensor.name, error);
    }
}

static void check_step(const family_case *of, const struct way *way)
{
    family_fixture r;
    family_fixture_open(&r, of, way->recompute, way->micro_batch_sequences, 1);
    const double evaluated = family_fixture_evaluate(&r), loss = family_fixture_step(&r);
    assert_memory_equal(&evaluated, &loss, sizeof loss);
    if (!(fabs(loss / of->losses[0] - 1) < 1e-6)) /* measured: 8e-9 */
        fail_msg("%s, %s: loss %.9g, transformers' %.9g", of->name, way->name, loss, of->losses[0]);
    check_gradients(&r, way->name);
    family_fixture_close(&r);
}

static void loss_and_gradients_are_transformers(void **state)
{
    for (unsigned i = 0; i < FAMILY_CASES * WAYS; i += test_thin(4))
        check_step(&golden.cases[i / WAYS], &ways[i % WAYS]);
}

/* --- twenty steps --- */

/* Write the batch's sequences, all of which are in every batch, so that shuffling does not matter, and one
 * more for validation. */
static void write_data(const family_case *of, const char *path)
{
    const uint32_t batch = FAMILY_SEQUENCES * of->seq_len;
    int32_t *tokens = calloc(batch + of->seq_len + 1, sizeof *tokens);
    assert_non_null(tokens);
    family_case_tokens(of, tokens);
    shard_write(path, tokens, batch + of->seq_len + 1);
    free(tokens);
}

static void set_values(tide_trainer *trainer, const family_case *of)
{
    for (size_t i = 0; i < of->tensors; i++) {
        tide_model_tensor tensor;
        tide_model_tensor_describe(&of->config, i, &tensor);
        float *values = malloc(tensor.elements * sizeof *values);
        assert_non_null(values);
        family_case_values(of, i, values);
        assert_ok(tide_decoder_values_set(trainer->model, i, TIDE_VALUE_MASTER, 0, tensor.elements, values));
        free(values);
    }
}

static tide_trainer *open_run(const family_case *of, const struct way *way)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s.bin", folder, of->name);
    write_data(of, path);
    tide_trainer_options options = small_options(path, TIDE_DTYPE_FP32);
    options.model = of->config;
    options.hyper.schedule.steps = FAMILY_STEPS;
    options.hyper.schedule.warmup_steps = FAMILY_WARMUP;
    options.hyper.schedule.lr = 1e-2;
    options.seq_len = of->seq_len;
    options.global_batch_tokens = FAMILY_SEQUENCES * of->seq_len;
    options.micro_batch_sequences = way->micro_batch_sequences;
    options.pool.threads = 1; /* a second thread slows so small a model down */
    options.recompute = way->recompute ? TIDE_RECOMPUTE_ALL : TIDE_RECOMPUTE_NONE;
    tide_trainer *trainer;
    assert_ok(tide_trainer_create(&options, &trainer));
    set_values(trainer, of);
    return trainer;
}

/* Measured: losses differ by 3.4e-7, norms by 3.1e-6. Ten times as much would be more than rounding. */
static void check_run(const family_case *of, const struct way *way)
{
    tide_trainer *trainer = open_run(of, way);
    for (int step = 0; step < FAMILY_STEPS; step++) {
        const double loss = of->losses[step], norm = of->norms[step];
        tide_trainer_report report;
        assert_ok(tide_trainer_step(trainer, &report));
        if (!(fabs(report.loss / loss - 1) < 5e-6))
            fail_msg("%s, %s, step %d: loss %.9g, transformers' %.9g", of->name, way->name, step + 1,
                     report.loss, loss);
        if (!(fabs(report.gradient_norm / norm - 1) < 3e-5))
            fail_msg("%s, %s, step %d: norm %.9g, transformers' %.9g", of->name, way->name, step + 1,
                     report.gradient_norm, norm);
    }
    tide_trainer_destroy(trainer);
}

static void twenty_steps_are_transformers(void **state)
{
    unsigned runs = 0;
    for (unsigned i = 0; i < FAMILY_CASES * WAYS; i++)
        if ((i / WAYS < RUN_IN_ALL_WAYS || i % WAYS == i / WAYS % WAYS) && runs++ % test_thin(4) == 0)
            check_run(&golden.cases[i / WAYS], &ways[i % WAYS]);
}

/* --- finite differences --- */

static double loss_at(family_fixture *r, size_t tensor, uint64_t element, double moved)
{
    const float value = r->values[tensor][element];
    family_fixture_set(r, tensor, element, (float)(value + moved));
    const double loss = family_fixture_evaluate(r);
    family_fixture_set(r, tensor, element, value);
    return loss;
}

static double difference(family_fixture *r, size_t tensor, uint64_t element, double step)
{
    return (loss_at(r, tensor, element, step) - loss_at(r, tensor, element, -step)) / (2 * step);
}

/* The derivative of the loss by one element, from central differences over a step and over half of it. Their
 * errors grow with the square of the step; the combination cancels these. The step is almost as large as the
 * values, because the loss is fp32. */
static double slope(family_fixture *r, size_t tensor, uint64_t element)
{
    const double step = 1.0 / 16;
    return (4 * difference(r, tensor, element, step / 2) - difference(r, tensor, element, step)) / 3;
}

/* Measured: 3.1e-4 of the steepest. */
static void check_slope(family_fixture *r, size_t index, uint64_t element, double steepest)
{
    const double is = family_fixture_gradient(r, index)[element], right = slope(r, index, element);
    tide_model_tensor tensor;
    tide_model_tensor_describe(&r->of->config, index, &tensor);
    if (!(fabs(is - right) < 1e-3 * steepest))
        fail_msg("%s[%llu]: gradient %.6g, the loss rises by %.6g", tensor.name, (unsigned long long)element,
                 is, right);
}

/* Check the element with the steepest gradient and a few others. */
static void check_slopes(family_fixture *r, size_t index)
{
    tide_model_tensor tensor;
    tide_model_tensor_describe(&r->of->config, index, &tensor);
    const float *gradient = family_fixture_gradient(r, index);
    uint64_t steepest = 0;
    for (uint64_t i = 0; i < tensor.elements; i++)
        if (fabsf(gradient[i]) > fabsf(gradient[steepest]))
            steepest = i;
    const uint64_t elements[] = {steepest, 0, tensor.elements / 3, tensor.elements - 1};
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
        check_slope(r, index, elements[i], fabs((double)gradient[steepest]));
}

/* The model qwen3-odd has all kinds of tensors except biases of the MLP: norms of query and key heads, biases
 * of attention, and a head of its own. Three query heads attend to one key head. */
static void gradients_are_slopes_of_the_loss(void **state)
{
    family_fixture r;
    family_fixture_open(&r, family_golden_find(&golden, "qwen3-odd"), true, 2, 1);
    family_fixture_step(&r);
    for (size_t i = 0; i < r.of->tensors; i += test_thin(3))
        check_slopes(&r, i);
    family_fixture_close(&r);
}

/* --- set-up --- */

static int set_up(void **state)
{
    family_golden_load(&golden);
    return fixture_set_up(state);
}

static int tear_down(void **state)
{
    family_golden_free(&golden);
    return fixture_tear_down(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss_and_gradients_are_transformers),
        cmocka_unit_test(twenty_steps_are_transformers),
        cmocka_unit_test(gradients_are_slopes_of_the_loss),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
