#include "tools/train/train_head.h"

#include "src/pool/inspect.h"

#include "tools/plan/model_text.h"
#include "tools/train/train_report.h"
#include "tools/units.h"

enum { BYTES_VOCABULARY = 257 /* the 256 bytes and an end of text */ };

bool tide_train_gpu_find(const char *device, tide_gpu *gpu)
{
    const tide_module *module;
    uint32_t ordinal;
    return tide_module_cuda_ordinal(device, &ordinal) == TIDE_OK && tide_module_cuda(&module) == TIDE_OK &&
           module->gpu_read(ordinal, gpu) == TIDE_OK;
}

static void device_print(const tide_train_head *head, FILE *out)
{
    tide_gpu gpu;
    if (head->no_gpu[0] != '\0')
        fprintf(out, "auto takes the host: %s\n", head->no_gpu);
    if (tide_train_gpu_find(head->device, &gpu))
        fprintf(out, "%s is %s\n", head->device, gpu.name);
}

static void pinning_print(const tide_train_head *head, FILE *out)
{
    const tide_pinning_times times = tide_pool_pinning(tide_trainer_pool(head->trainer));
    tide_report_pinning(&times, out);
}

static void data_print(const tide_train_head *head, FILE *out)
{
    const tide_data *data = tide_trainer_data(head->trainer);
    if (data == NULL)
        return;
    const tide_data_counts counts = tide_data_count(data);
    tide_report_data(&counts, head->settings->trainer.data, head->settings->trainer.eval_data, out);
}

static void run_print(const tide_train_head *head, FILE *out)
{
    const tide_trainer_plan *plan = tide_trainer_plan_get(head->trainer);
    const tide_trainer_options *options = head->options;
    const tide_model_config *model = &options->model;
    char sizes[TIDE_MODEL_TEXT_BYTES], steps[TIDE_UNITS_TEXT_BYTES], tokens[TIDE_UNITS_TEXT_BYTES],
        sequences[TIDE_UNITS_TEXT_BYTES], parts[TIDE_UNITS_TEXT_BYTES];
    fprintf(out, "%s: %s\n", model->name, tide_model_text(model, sizes));
    tide_model_notes(model, out);
    fprintf(out, "device %s, %s, seed %llu; ", head->device, tide_dtype_name(options->dtype),
            (unsigned long long)options->seed);
    if (options->epochs > 0)
        fprintf(out, "%llu epoch%s, ", (unsigned long long)options->epochs, options->epochs == 1 ? "" : "s");
    fprintf(out, "%s of %s: %s of %u in %s", tide_count_noun(options->hyper.schedule.steps, "step", steps),
            tide_count_noun(plan->global_batch_tokens, "token", tokens),
            tide_count_noun(plan->global_batch_sequences, "sequence", sequences), plan->seq_len,
            tide_count_noun(plan->micro_batches, "micro-batch", parts));
    tide_report_sums(plan, out);
    fprintf(out, "\n");
    tide_report_optimizer(tide_trainer_state(head->trainer), out);
    data_print(head, out);
    if (plan->ranks > 1)
        fprintf(out, "%u ranks at ZeRO stage 0: each has all params and their state, and %u of the %s%s\n",
                plan->ranks, plan->micro_batches,
                tide_count_noun(plan->micro_batches * plan->ranks, "micro-batch", parts),
                head->threads_differ
                    ? "; their numbers of threads differ, so results may differ from one rank's in last bits"
                    : "");
    if (head->narrow->threads > 0)
        fprintf(out, "warning: rank %u has %u threads, but may use %s only\n", head->narrow->rank,
                head->narrow->threads, tide_count_noun(head->narrow->processors, "processor", parts));
    if (plan->ranks > 1 && head->settings->checks)
        fprintf(out, "--checks on: with several ranks a use after eviction does not fault\n");
    if (head->freeze[0] != '\0')
        fprintf(out, "frozen: tensors named %s\n", head->freeze);
    const tide_train_settings *settings = head->settings;
    const char *folder = settings->checkpoint != NULL ? settings->checkpoint : settings->trainer.resume_from;
    if (tide_train_settings_predict(settings) && folder != NULL)
        fprintf(out, "the null device computes nothing: nothing is resumed from or saved to %s\n", folder);
    if (settings->from_weights && tide_trainer_computes(head->trainer) &&
        !tide_trainer_resumed_get(head->trainer)->resumed)
        fprintf(out, "begins with the weights in %s\n", options->weights);
    if (settings->from_weights && tide_trainer_data_format(head->trainer) == TIDE_DATA_FORMAT_BYTES &&
        model->vocab_size > BYTES_VOCABULARY)
        fprintf(
            out,
            "%s is taken as bytes, which are not this model's tokens: to build on what it knows, train on "
            "shards of ids\n",
            settings->trainer.data);
}

static void resumed_print(const tide_train_head *head, FILE *out)
{
    const tide_trainer_resumed *resumed = tide_trainer_resumed_get(head->trainer);
    if (!(head->settings->resume || head->settings->trainer.resume_from) ||
        tide_train_settings_predict(head->settings))
        return;
    if (!resumed->resumed) {
        fprintf(out, "no checkpoint in %s yet: starting at step 1\n", head->settings->checkpoint);
        return;
    }
    fprintf(out, "resumed from %s\n", resumed->from.path);
    if (head->settings->trainer.new_data)
        fprintf(out, "new data: the order of %s begins with step %llu\n", head->settings->trainer.data,
                (unsigned long long)resumed->from.step + 1);
    for (unsigned i = 0; i < resumed->changes.count; i++)
        fprintf(out, "changed since: %s\n", resumed->changes.lines[i]);
}

void tide_train_head_print(const tide_train_head *head, FILE *out)
{
    device_print(head, out);
    pinning_print(head, out);
    run_print(head, out);
    resumed_print(head, out);
}
