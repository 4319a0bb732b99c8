/* Default options, the values that replace defaults, and refusals that do not depend on memory. */
#include "src/train/trainer_internal.h"

#include "base/align.h"
#include "base/minmax.h"
#include "src/checkpoint/loss_scale.h"
#include "src/pool/device_factory.h"

#include <assert.h>
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_BATCH_SEQUENCES = 8,
    DEFAULT_MICRO_BATCH_TOKENS = 512,
    DEFAULT_WARMUP_STEPS = 100,
    WEIGHTS_SEQUENCE_MOST = 4096, /* for a first try; contexts of 131072 tokens would need too much */
    DEFAULT_WARMUP_SHARE = 10,    /* 1/10 of the run */
    DEFAULT_DECAY_SHARE = 10,
};

static const double default_lr_min_share = 0.1;

void tide_trainer_options_default(tide_trainer_options *options)
{
    *options = (tide_trainer_options){
        .dtype = TIDE_DTYPE_BF16,
        .hyper = {.schedule = {.shape = TIDE_LR_COSINE,
                               .lr = 6e-4,
                               .lr_min = TIDE_TRAINER_LR_MIN_DEFAULT,
                               .warmup_steps = TIDE_TRAINER_WARMUP_DEFAULT,
                               .steps = 1000},
                  .weight_decay = 0.1,
                  .clip = 1.0,
                  .beta1 = 0.9,
                  .beta2 = 0.95,
                  .epsilon = 1e-8},
        .seed = 1,
        .recompute = TIDE_RECOMPUTE_AUTO,
        .eval_batches = 16,
    };
    const tide_status preset = tide_model_config_open("gpt2-nano", &options->model);
    assert(preset == TIDE_OK);
    (void)preset;
    tide_pool_options_default(&options->pool);
}

/* The largest number of sequences that divides each sum group's and makes no more than 512 tokens, or 1:
 * enough rows to keep matrix products busy, few enough that one micro-batch's activations stay small. */
static uint32_t default_micro_batch(uint32_t batch_sequences, uint32_t seq_len, uint32_t sum_groups)
{
    for (uint32_t sequences = batch_sequences; sequences > 1; sequences--) {
        if (batch_sequences % ((uint64_t)sequences * sum_groups) == 0 &&
            (uint64_t)sequences * seq_len <= DEFAULT_MICRO_BATCH_TOKENS)
            return sequences;
    }
    return 1;
}

static uint64_t default_warmup(uint64_t steps)
{
    return tide_min_u64(steps / DEFAULT_WARMUP_SHARE, DEFAULT_WARMUP_STEPS);
}

static tide_status resolve_sequence(tide_trainer_options *options)
{
    const uint32_t context = options->model.context, window = options->model.window;
    const uint32_t weights_most = WEIGHTS_SEQUENCE_MOST;
    if (options->seq_len == 0) {
        options->seq_len = options->weights && context > weights_most ? weights_most : context;
        if (window != 0 && options->seq_len > window)
            options->seq_len = window;
    }
    if (options->seq_len > context)
        return tide_fail(TIDE_ERROR_ARGUMENT, "sequence length %u: the model's context is %u",
                         options->seq_len, context);
    if (window != 0 && options->seq_len > window)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "sequence length %u: the model's attention has a sliding window of %u positions, only "
            "sequences of %u and less, which need none, are built",
            options->seq_len, window, window);
    return TIDE_OK;
}

uint32_t tide_trainer_ranks(const tide_trainer_options *options)
{
    return tide_max_u32(options->pool.ranks.count, tide_comm_ranks(options->pool.ranks.comm));
}

/* The default batch: 8 sequences; with several ranks the fewest micro-batches that are at least so many and
 * divide among the sum groups, and so among the ranks. */
static uint64_t default_batch(const tide_trainer_options *options)
{
    const uint32_t ranks = tide_trainer_ranks(options), least = DEFAULT_BATCH_SEQUENCES;
    if (ranks == 1)
        return (uint64_t)least * options->seq_len;
    const uint64_t given = options->micro_batch_sequences;
    const uint64_t sequences = given != 0 ? given : default_micro_batch(least, options->seq_len, 1);
    return tide_round_up(tide_ceil_div(least, sequences), options->sum_groups) * sequences * options->seq_len;
}

static tide_status resolve_batch(tide_trainer_options *options)
{
    if (options->global_batch_tokens == 0)
        options->global_batch_tokens = default_batch(options);
    const uint64_t sequences = options->global_batch_tokens / options->seq_len;
    if (options->global_batch_tokens % options->seq_len != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "batch of %llu tokens does not divide into sequences of %u; %llu would",
                         (unsigned long long)options->global_batch_tokens, options->seq_len,
                         (unsigned long long)((sequences + 1) * options->seq_len));
    if (options->global_batch_tokens > INT32_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "batch of %llu tokens: at most %d are possible",
                         (unsigned long long)options->global_batch_tokens, INT32_MAX);
    if (options->micro_batch_sequences == 0)
        options->micro_batch_sequences =
            default_micro_batch((uint32_t)sequences, options->seq_len, options->sum_groups);
    if (sequences % options->micro_batch_sequences != 0)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "batch of %llu sequences (%llu tokens) does not divide into micro-batches of %u sequences",
            (unsigned long long)sequences, (unsigned long long)options->global_batch_tokens,
            options->micro_batch_sequences);
    return TIDE_OK;
}

/* The divisor of `number` that is closest to `wanted`; of two the smaller. */
static uint64_t nearest_divisor(uint64_t number, uint64_t wanted)
{
    uint64_t below = tide_min_u64(wanted, number), above = below;
    while (number % below != 0)
        below--;
    while (above < number && number % above != 0)
        above++;
    return wanted - below <= above - tide_min_u64(wanted, above) ? below : above;
}

static tide_status resolve_sums(tide_trainer_options *options)
{
    const tide_status status = tide_trainer_adopt_sums(options);
    const uint32_t ranks = tide_trainer_ranks(options);
    options->pool.sum_groups = options->sum_groups;
    options->pool.reduce_dtype = options->reduce == TIDE_REDUCE_BF16 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32;
    if (status == TIDE_OK && ranks > 1 &&
        (options->sum_groups % ranks != 0 || !tide_is_power_of_two(options->sum_groups / ranks)))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "%u sum groups: of %u ranks each has as many, a power of two; %u would do",
                         options->sum_groups, ranks, ranks);
    return status;
}

/* Sum groups divide the micro-batches. Those of a checkpoint (not `given`) divide its own; if they do not
 * divide these, its batch is another, which is refused when it is loaded. */
static tide_status check_groups(bool given, tide_trainer_options *options)
{
    const uint64_t micro_batches =
        options->global_batch_tokens / options->seq_len / options->micro_batch_sequences;
    const uint32_t ranks = tide_trainer_ranks(options);
    if (micro_batches % ranks != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "%u ranks: the batch's %llu micro-batches of %u sequences do not divide among them; "
                         "%llu tokens would",
                         ranks, (unsigned long long)micro_batches, options->micro_batch_sequences,
                         (unsigned long long)(tide_round_up(micro_batches, ranks) *
                                              options->micro_batch_sequences * options->seq_len));
    if (micro_batches % options->sum_groups == 0)
        return TIDE_OK;
    if (!given) {
        options->sum_groups = options->pool.sum_groups = ranks;
        return TIDE_OK;
    }
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "%u sum groups: the batch's %llu micro-batches of %u sequences do not divide into so "
                     "many; %llu would do",
                     options->sum_groups, (unsigned long long)micro_batches, options->micro_batch_sequences,
                     (unsigned long long)nearest_divisor(micro_batches, options->sum_groups));
}

static tide_status check_number(const char *name, double value, bool right, const char *what)
{
    if (isfinite(value) && right)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s %g: it must be %s", name, value, what);
}

static tide_status resolve_floor(tide_lr_schedule *schedule)
{
    const bool is_constant = schedule->shape == TIDE_LR_CONSTANT;
    if (schedule->lr_min == TIDE_TRAINER_LR_MIN_DEFAULT) {
        schedule->lr_min = is_constant ? schedule->lr : schedule->lr * default_lr_min_share;
        return TIDE_OK;
    }
    if (is_constant)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "minimum learning rate %g: a constant schedule has none, leave it out",
                         schedule->lr_min);
    if (schedule->lr_min >= 0 && schedule->lr_min <= schedule->lr)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "minimum learning rate %g: it must be from 0 to the learning rate, %g", schedule->lr_min,
                     schedule->lr);
}

/* The decay comes after the warm-up, so it has at most the steps that the warm-up leaves. */
static tide_status resolve_decay(tide_lr_schedule *schedule)
{
    const uint64_t left = schedule->steps - tide_min_u64(schedule->warmup_steps, schedule->steps);
    const uint64_t share = schedule->steps / DEFAULT_DECAY_SHARE;
    if (schedule->shape != TIDE_LR_WSD) {
        if (schedule->decay_steps == 0)
            return TIDE_OK;
        return tide_fail(TIDE_ERROR_ARGUMENT, "decay of %llu steps: the schedule %s has none, wsd has",
                         (unsigned long long)schedule->decay_steps, tide_lr_shape_name(schedule->shape));
    }
    if (schedule->decay_steps == 0)
        schedule->decay_steps = tide_min_u64(share > 0 ? share : 1, left);
    if (schedule->decay_steps <= left)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "decay of %llu steps: of %llu steps %llu are left after %llu of warm-up",
                     (unsigned long long)schedule->decay_steps, (unsigned long long)schedule->steps,
                     (unsigned long long)left, (unsigned long long)schedule->warmup_steps);
}

static tide_status resolve_schedule(tide_lr_schedule *schedule)
{
    if (schedule->warmup_steps == TIDE_TRAINER_WARMUP_DEFAULT)
        schedule->warmup_steps = default_warmup(schedule->steps);
    const tide_status status = resolve_floor(schedule);
    return status == TIDE_OK ? resolve_decay(schedule) : status;
}

static tide_status check_loss_scale(const tide_trainer_options *options)
{
    if (options->hyper.loss_scale_fixed == 0)
        return TIDE_OK;
    if (options->dtype != TIDE_DTYPE_FP16)
        return tide_fail(TIDE_ERROR_ARGUMENT, "loss scale %g: only fp16 has one, the dtype is %s",
                         options->hyper.loss_scale_fixed, tide_dtype_name(options->dtype));
    return check_number("loss scale", options->hyper.loss_scale_fixed,
                        tide_loss_scale_is_valid(options->hyper.loss_scale_fixed),
                        "a power of two from 1 to 16777216, or 0 (dynamic)");
}

/* The optimizer rounds beta to fp32, where 0.99999994 is the largest number below 1. */
static bool is_beta(double value)
{
    return value >= 0 && (float)value < 1;
}

static tide_status check_numbers(const tide_trainer_options *options)
{
    const tide_hyperparameters *hyper = &options->hyper;
    tide_status status =
        check_number("learning rate", hyper->schedule.lr, hyper->schedule.lr >= 0, "0 or more");
    if (status == TIDE_OK)
        status = check_number("weight decay", hyper->weight_decay, hyper->weight_decay >= 0, "0 or more");
    if (status == TIDE_OK)
        status = check_number("clip", hyper->clip, hyper->clip >= 0, "0 (no clipping) or more");
    if (status == TIDE_OK)
        status = check_number("beta1", hyper->beta1, is_beta(hyper->beta1), "in [0, 1), as fp32 too");
    if (status == TIDE_OK)
        status = check_number("beta2", hyper->beta2, is_beta(hyper->beta2), "in [0, 1), as fp32 too");
    if (status == TIDE_OK)
        status = check_number("epsilon", hyper->epsilon, (float)hyper->epsilon > 0, "above 0, as fp32 too");
    if (status == TIDE_OK)
        status = check_loss_scale(options);
    if (status == TIDE_OK && options->pool.threads > TIDE_THREADS_MAX)
        status = tide_fail(TIDE_ERROR_ARGUMENT, "%u threads: at most %d are allowed", options->pool.threads,
                           TIDE_THREADS_MAX);
    if (status == TIDE_OK && hyper->schedule.steps == 0)
        status = tide_fail(TIDE_ERROR_ARGUMENT, "a run of 0 steps: it must be 1 or more");
    if (status == TIDE_OK && options->eval_batches == 0)
        status = tide_fail(TIDE_ERROR_ARGUMENT, "evaluations of 0 batches: it must be 1 or more");
    return status;
}

/* Mark the tensors frozen whose names match the pattern. */
static tide_status freeze(const tide_model_config *model, const char *pattern, bool *frozen)
{
    bool matches = false;
    tide_model_tensor tensor;
    for (size_t i = 0; i < tide_model_tensor_count(model); i++) {
        tide_model_tensor_describe(model, i, &tensor);
        const bool match = fnmatch(pattern, tensor.name, 0) == 0;
        frozen[i] = frozen[i] || match;
        matches = matches || match;
    }
    if (matches)
        return TIDE_OK;
    tide_model_tensor_describe(model, 0, &tensor);
    return tide_fail(TIDE_ERROR_ARGUMENT, "freeze %s: no tensor of %s has such a name (as %s)", pattern,
                     model->name, tensor.name);
}

/* Tensors that one matmul uses share a param, so either all of them must be frozen or none. */
static tide_status check_together(const tide_model_config *model, const bool *frozen)
{
    for (size_t i = 0; i < tide_model_param_count(model); i++) {
        tide_model_param param;
        tide_model_tensor one, other;
        tide_model_param_describe(model, i, &param);
        for (uint32_t t = 1; t < param.tensors; t++) {
            if (frozen[param.first_tensor + t] == frozen[param.first_tensor])
                continue;
            const bool first = frozen[param.first_tensor];
            tide_model_tensor_describe(model, param.first_tensor + (first ? 0 : t), &one);
            tide_model_tensor_describe(model, param.first_tensor + (first ? t : 0), &other);
            return tide_fail(TIDE_ERROR_ARGUMENT,
                             "freeze: %s is frozen and %s is not; one product makes both, freeze both",
                             one.name, other.name);
        }
    }
    return TIDE_OK;
}

tide_status tide_trainer_frozen(const tide_trainer_options *options, bool **frozen)
{
    const size_t tensors = tide_model_tensor_count(&options->model);
    *frozen = NULL;
    if (options->freeze_count == 0)
        return TIDE_OK;
    bool *made = calloc(tensors, sizeof *made);
    if (!made)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %zu tensors", tensors);
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < options->freeze_count && status == TIDE_OK; i++)
        status = freeze(&options->model, options->freeze[i], made);
    if (status == TIDE_OK)
        status = check_together(&options->model, made);
    if (status == TIDE_OK && memchr(made, false, tensors * sizeof *made) == NULL)
        status = tide_fail(TIDE_ERROR_ARGUMENT, "freeze: all %zu tensors are frozen, none is left to train",
                           tensors);
    if (status != TIDE_OK) {
        free(made);
        return status;
    }
    *frozen = made;
    return TIDE_OK;
}

tide_status tide_trainer_resolve(const tide_trainer_options *options, tide_trainer_options *resolved)
{
    tide_trainer_options made = *options;
    if (!made.files)
        made.files = tide_files_posix();
    tide_status status = tide_model_config_check(&made.model, made.model.name);
    if (status == TIDE_OK)
        status = check_numbers(&made);
    if (status == TIDE_OK)
        status = resolve_sequence(&made);
    if (status == TIDE_OK)
        status = resolve_sums(&made);
    if (status == TIDE_OK)
        status = resolve_batch(&made);
    if (status == TIDE_OK)
        status = check_groups(options->sum_groups != 0, &made);
    if (status == TIDE_OK)
        status = resolve_schedule(&made.hyper.schedule);
    if (status == TIDE_OK && !made.data && !made.makes_up_tokens &&
        !tide_device_factory_is_null(made.pool.device))
        status = tide_fail(TIDE_ERROR_ARGUMENT, "no data to train on (only the null device needs none)");
    if (status == TIDE_OK)
        *resolved = made;
    return status;
}
