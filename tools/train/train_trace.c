#include "tools/train/train_trace.h"

#include "kernels/kernels.h"
#include "tide_config.h"
#include "tools/tune/choice_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SETTINGS_MAX = 32, NUMBER_BYTES = 32 };

typedef struct settings_list {
    tide_trace_setting settings[SETTINGS_MAX];
    char numbers[SETTINGS_MAX][NUMBER_BYTES];
    uint32_t count;
} settings_list;

static void add(settings_list *list, const char *name, const char *value)
{
    assert(list->count < SETTINGS_MAX);
    list->settings[list->count++] = (tide_trace_setting){name, value};
}

static void add_count(settings_list *list, const char *name, uint64_t value)
{
    char *text = list->numbers[list->count];
    snprintf(text, NUMBER_BYTES, "%" PRIu64, value);
    add(list, name, text);
}

static void add_real(settings_list *list, const char *name, double value)
{
    char *text = list->numbers[list->count];
    snprintf(text, NUMBER_BYTES, "%.9g", value);
    add(list, name, text);
}

static void add_switch(settings_list *list, const char *name, bool value)
{
    add(list, name, value ? "on" : "off");
}

/* The settings that the trace's head records, under the names of the options. */
static void fill(settings_list *list, const tide_train_settings *from, const tide_trainer_options *options,
                 const tide_trainer *trainer, const char *freeze)
{
    const tide_trainer_plan *plan = tide_trainer_plan_get(trainer);
    const tide_hyperparameters *hyper = &tide_trainer_state(trainer)->hyper;
    add(list, "model", options->model.name);
    add(list, "data", options->data != NULL ? options->data : "");
    add_count(list, "params", plan->params);
    add_count(list, "seq-len", plan->seq_len);
    add_count(list, "batch-tokens", plan->global_batch_tokens);
    add_count(list, "micro-batch", plan->micro_batch_sequences);
    add_count(list, "sum-groups", plan->sum_groups);
    add(list, "reduce", tide_dtype_name(plan->reduce_dtype));
    add_count(list, "steps", hyper->schedule.steps);
    add_count(list, "seed", options->seed);
    add(list, "schedule", tide_lr_shape_name(hyper->schedule.shape));
    add_real(list, "lr", hyper->schedule.lr);
    add_real(list, "min-lr", hyper->schedule.lr_min);
    add_count(list, "decay-steps", hyper->schedule.decay_steps);
    add_real(list, "weight-decay", hyper->weight_decay);
    add_real(list, "beta1", hyper->beta1);
    add_real(list, "beta2", hyper->beta2);
    add_real(list, "eps", hyper->epsilon);
    add_real(list, "clip", hyper->clip);
    add(list, "freeze", freeze);
    add(list, "recompute", tide_recompute_word(options->recompute));
    add_count(list, "recomputed-blocks", plan->recomputed_blocks);
    add_switch(list, "prefetch", options->pool.prefetch);
    add(list, "optimizer", tide_placement_word(options->pool.placement));
    add_count(list, "device-available", plan->device_available_bytes); /* 0: no limit */
    add_count(list, "threads", options->pool.threads);
    add_switch(list, "checks", from->checks);
    add_count(list, "delays", from->delays);
    add_switch(list, "resume", from->resume);
}

tide_status tide_train_trace_open(const tide_train_settings *settings, tide_trace **trace)
{
    const tide_trace_options options = {.ring_events = TIDE_TRACE_RING_EVENTS,
                                        .keep_steps = tide_train_settings_trace_steps(settings),
                                        .waits = tide_train_settings_predict(settings)};
    return settings->trace == NULL ? TIDE_OK : tide_trace_open(settings->trace, &options, trace);
}

tide_status tide_train_trace_begin(tide_trace *trace, const tide_train_settings *settings,
                                   const tide_trainer_options *options, tide_trainer *trainer,
                                   const char *freeze, const char *machine, uint64_t run)
{
    const tide_trainer_plan *plan = tide_trainer_plan_get(trainer);
    settings_list list = {.count = 0};
    fill(&list, settings, options, trainer, freeze);
    const tide_trace_head head = {.version = TIDE_VERSION,
                                  .settings = list.settings,
                                  .setting_count = list.count,
                                  .pool = tide_trainer_pool(trainer),
                                  .options = &options->pool,
                                  .plan = &plan->pool,
                                  .steps_before = tide_trainer_state(trainer)->step,
                                  .run = run,
                                  .machine = machine != NULL ? machine : tide_kernels_cpu_info()->processor};
    return tide_trace_begin(trace, &head);
}
