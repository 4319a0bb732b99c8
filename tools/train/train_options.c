/* `tidepool train`'s command line: checks between options, and the trainer's options made from them. */
#include "tools/train/train_options.h"
#include "tools/train/rank_place.h"

#include "src/checkpoint/loss_scale.h"

#include <stdlib.h>
#include <string.h>

enum { DELAY_MAX_US = 200, EVAL_EVERY_DEFAULT = 100 };

static const tide_option_table *const table = &tide_train_table;

void tide_train_help(FILE *out)
{
    tide_options_help(table, out);
}

bool tide_train_settings_predict(const tide_train_settings *settings)
{
    return strcmp(settings->device, "null") == 0;
}

static bool was_given(const bool *given, const char *name)
{
    return tide_options_given(table, given, name);
}

static bool device_is_known(const char *device)
{
    uint32_t ordinal;
    return strcmp(device, "auto") == 0 || strcmp(device, "host") == 0 || strcmp(device, "null") == 0 ||
           tide_module_cuda_ordinal(device, &ordinal) == TIDE_OK;
}

/* The first option given that only the emulated device can fulfil; NULL: none. */
static const char *emulated_only(const tide_train_settings *settings)
{
    if (settings->checks)
        return "--checks on";
    if (settings->delays != 0)
        return "--delays";
    if (settings->ranks > 1)
        return "--ranks";
    return settings->trainer.pool.link_bytes_per_second > 0 ? "--link-bandwidth" : NULL;
}

void tide_train_settings_device(const tide_train_settings *settings,
                                char name[TIDE_DEVICE_FACTORY_NAME_BYTES],
                                char reason[TIDE_DEVICE_FACTORY_REASON_BYTES])
{
    const char *emulated = emulated_only(settings);
    reason[0] = '\0';
    if (strcmp(settings->device, "auto") != 0) {
        snprintf(name, TIDE_DEVICE_FACTORY_NAME_BYTES, "%s", settings->device);
    } else if (emulated != NULL) {
        snprintf(name, TIDE_DEVICE_FACTORY_NAME_BYTES, "host");
        snprintf(reason, TIDE_DEVICE_FACTORY_REASON_BYTES, "a GPU can't do %s", emulated);
    } else {
        tide_device_factory_choose(settings->trainer.pool.chunk_bytes, name, reason);
    }
}

/* Refuses an option that makes sense only together with another one. */
static tide_status needs_check(const bool *given, const char *option, const char *needed)
{
    if (was_given(given, option) && !was_given(given, needed))
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: %s needs %s", option, needed);
    return TIDE_OK;
}

static tide_status device_check(const tide_train_settings *settings, const bool *given)
{
    static const char *const null_only[] = {"--machine", "--ram"};
    if (!device_is_known(settings->device))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tidepool train: --device %s: must be one of auto, host, null, cuda:N",
                         settings->device);
    bool predict = tide_train_settings_predict(settings);
    for (size_t i = 0; i < sizeof null_only / sizeof null_only[0]; i++)
        if (!predict && was_given(given, null_only[i]))
            return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: %s needs --device null", null_only[i]);
    const char *emulated = emulated_only(settings);
    if (predict && (settings->checks || was_given(given, "--delays")))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tidepool train: %s needs --device host: the null device computes nothing",
                         settings->checks ? "--checks on" : "--delays");
    if (emulated != NULL && strncmp(settings->device, "cuda:", strlen("cuda:")) == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: %s needs --device host: a GPU can't do that",
                         emulated);
    if (predict || settings->trainer.data != NULL)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "tidepool train: --data PATH is required (a text file or token shards)");
}

static tide_dtype dtype_of(const tide_train_settings *settings)
{
    static const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32};
    return dtypes[settings->dtype];
}

/* Sets *scale to the fixed loss scale; 0: dynamic, or no loss scale in this dtype. */
static tide_status loss_scale_of(const tide_train_settings *settings, double *scale)
{
    const char *text = settings->loss_scale;
    *scale = 0;
    if (text != NULL && dtype_of(settings) != TIDE_DTYPE_FP16)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: --loss-scale needs --dtype fp16");
    if (text == NULL || strcmp(text, "dynamic") == 0)
        return TIDE_OK;
    if (strspn(text, "0123456789") == strlen(text))
        *scale = strtod(text, NULL);
    if (tide_loss_scale_is_valid(*scale))
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "tidepool train: --loss-scale %s: must be dynamic or a power of two from %.0f to %.0f",
                     text, TIDE_LOSS_SCALE_LEAST, TIDE_LOSS_SCALE_MOST);
}

enum { TRACE_STEPS_MOST = 1000000 };

uint64_t tide_train_settings_trace_steps(const tide_train_settings *settings)
{
    return strcmp(settings->trace_steps, "all") == 0 ? 0 : strtoull(settings->trace_steps, NULL, 10);
}

static tide_status trace_steps_check(const char *text)
{
    const bool is_number = text[0] != '\0' && strspn(text, "0123456789") == strlen(text) && strlen(text) <= 7;
    const uint64_t steps = is_number ? strtoull(text, NULL, 10) : 0;
    if (strcmp(text, "all") == 0 || (steps >= 1 && steps <= TRACE_STEPS_MOST))
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "tidepool train: --trace-steps %s: must be all or a number from 1 to %d", text,
                     TRACE_STEPS_MOST);
}

static tide_status ranks_check(const tide_train_settings *settings, const bool *given)
{
    const tide_ranks_options *ranks = &settings->trainer.pool.ranks;
    if (ranks->zero_stage > 0)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "tidepool train: --zero-stage %u is not built yet; 0, in which every rank has all, is",
            ranks->zero_stage);
    static const char *const of_ranks[] = {"--collective-timeout", "--log-dir", "--network-bandwidth"};
    for (size_t i = 0; i < sizeof of_ranks / sizeof of_ranks[0]; i++)
        if (settings->ranks == 1 && was_given(given, of_ranks[i]))
            return tide_fail(
                TIDE_ERROR_ARGUMENT,
                "tidepool train: %s is for several ranks: --ranks, torchrun, mpirun or srun start them",
                of_ranks[i]);
    if (settings->ranks == 1)
        return TIDE_OK;
    if (tide_train_settings_predict(settings))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tidepool train: --ranks needs --device host: the null device computes nothing");
    if (settings->automatic)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: --auto chooses for one rank, without --ranks");
    return TIDE_OK;
}

static tide_status settings_check(const tide_train_settings *settings, const bool *given)
{
    double scale;
    tide_status status = device_check(settings, given);
    if (status == TIDE_OK)
        status = loss_scale_of(settings, &scale);
    if (status == TIDE_OK)
        status = needs_check(given, "--eval-data", "--data");
    if (status == TIDE_OK)
        status = needs_check(given, "--data-format", "--data");
    if (status == TIDE_OK)
        status = needs_check(given, "--packing", "--data");
    if (status == TIDE_OK)
        status = needs_check(given, "--long", "--data");
    if (status == TIDE_OK)
        status = needs_check(given, "--any-tokenizer", "--data");
    if (status == TIDE_OK && was_given(given, "--long") && settings->trainer.packing == TIDE_DATA_PACKING_OFF)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tidepool train: --long is for packing, and --packing off does none");
    if (status == TIDE_OK)
        status = needs_check(given, "--epochs", "--data");
    if (status == TIDE_OK && was_given(given, "--epochs") && was_given(given, "--steps"))
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: --epochs and --steps both say where the run "
                                              "ends: give one of them");
    if (status == TIDE_OK)
        status = needs_check(given, "--keep-best", "--checkpoint");
    if (status == TIDE_OK && settings->keep_best && settings->eval_every == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: --keep-best needs validation losses, and "
                                              "--eval-every 0 computes none");
    if (status == TIDE_OK)
        status = needs_check(given, "--save-every", "--checkpoint");
    if (status == TIDE_OK)
        status = needs_check(given, "--resume", "--checkpoint");
    if (status == TIDE_OK)
        status = needs_check(given, "--new-data", "--resume-from");
    if (status == TIDE_OK && settings->resume && settings->trainer.resume_from != NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tidepool train: --resume takes the newest checkpoint and --resume-from the one "
                         "that it names: give one of them");
    if (status == TIDE_OK && settings->export != NULL && tide_train_settings_predict(settings))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tidepool train: --export needs a device that computes, not null");
    if (status == TIDE_OK && settings->automatic && tide_train_settings_predict(settings))
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "tidepool train: --auto needs a device that computes, not null; tidepool tune predicts");
    if (status == TIDE_OK)
        status = ranks_check(settings, given);
    if (status == TIDE_OK)
        status = needs_check(given, "--keep", "--checkpoint");
    if (status == TIDE_OK)
        status = needs_check(given, "--save-patience", "--checkpoint");
    if (status == TIDE_OK)
        status = needs_check(given, "--save", "--checkpoint");
    if (status == TIDE_OK)
        status = needs_check(given, "--trace-steps", "--trace");
    if (status == TIDE_OK)
        status = trace_steps_check(settings->trace_steps);
    if (status == TIDE_OK &&
        (settings->trainer.pool.chunk_bytes & (settings->trainer.pool.chunk_bytes - 1)) != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: --chunk-size: %llu bytes is no power of two",
                         (unsigned long long)settings->trainer.pool.chunk_bytes);
    return status;
}

void tide_train_settings_default(tide_train_settings *settings)
{
    *settings = (tide_train_settings){0};
    tide_trainer_options_default(&settings->trainer);
    tide_options_default(table, settings);
}

tide_choice_kept tide_train_settings_given(const tide_option_table *of, const bool *given)
{
    return (tide_choice_kept){.chunk = tide_options_given(of, given, "--chunk-size"),
                              .recompute = tide_options_given(of, given, "--recompute"),
                              .placement = tide_options_given(of, given, "--optimizer-placement"),
                              .prefetch = tide_options_given(of, given, "--prefetch")};
}

tide_status tide_train_settings_find_weights(tide_train_settings *settings)
{
    return tide_model_is_preset(settings->model)
               ? TIDE_OK
               : tide_model_is_folder(settings->model, &settings->from_weights);
}

/* If the run starts from a trained model, sets the usual fine-tuning values of options that were not
 * given. */
static tide_status weights_defaults(tide_train_settings *settings, const bool given[TIDE_OPTIONS_MAX])
{
    const tide_status status = tide_train_settings_find_weights(settings);
    if (status != TIDE_OK || !settings->from_weights)
        return status;
    if (!was_given(given, "--lr"))
        settings->trainer.hyper.schedule.lr = 1e-5;
    if (!was_given(given, "--weight-decay"))
        settings->trainer.hyper.weight_decay = 0;
    if (!was_given(given, "--sample"))
        settings->sample = 0;
    return TIDE_OK;
}

/* If another launcher has started this process, it says how many ranks there are, unless --ranks 1 asks for a
 * run of this process alone. Only a launcher's ranks use --master and --port. */
static tide_status ranks_find(tide_train_settings *settings, const bool *given)
{
    tide_rank_place place;
    if (was_given(given, "--ranks") && settings->ranks == 1)
        return TIDE_OK;
    const tide_status status =
        tide_rank_place_find(tide_rank_variable, NULL, settings->master, settings->port, &place);
    const bool unused = was_given(given, "--master") || was_given(given, "--port");
    if (status == TIDE_OK && place.launcher == NULL && unused)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tidepool train: %s is for ranks that torchrun, mpirun or srun start; those of "
                         "--ranks are all on this machine",
                         was_given(given, "--master") ? "--master" : "--port");
    if (status != TIDE_OK || place.ranks == 1)
        return status;
    if (was_given(given, "--ranks") && place.ranks != settings->ranks)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: --ranks %u, but %s has started %u",
                         settings->ranks, place.launcher, place.ranks);
    settings->ranks = place.ranks;
    return TIDE_OK;
}

tide_status tide_train_settings_parse(int count, char *const *arguments, tide_train_settings *settings)
{
    bool given[TIDE_OPTIONS_MAX] = {false};
    tide_train_settings parsed;
    tide_train_settings_default(&parsed);
    tide_status status = tide_options_parse(table, count, arguments, &parsed, given);
    if (status != TIDE_OK)
        return status;
    parsed.given = tide_train_settings_given(table, given);
    if (!was_given(given, "--eval-every"))
        parsed.eval_every = parsed.trainer.epochs > 0 ? TIDE_TRAIN_EVAL_EPOCHS : EVAL_EVERY_DEFAULT;
    status = ranks_find(&parsed, given);
    if (status == TIDE_OK)
        status = weights_defaults(&parsed, given);
    if (status == TIDE_OK)
        status = settings_check(&parsed, given);
    if (status == TIDE_OK)
        *settings = parsed;
    return status;
}

tide_status tide_train_settings_plan_check(const tide_train_settings *settings, const char *command)
{
    uint32_t ordinal;
    const char *device = settings->device;
    const bool is_gpu = tide_module_cuda_ordinal(device, &ordinal) == TIDE_OK;
    if (strcmp(device, "auto") != 0 && strcmp(device, "host") != 0 && !is_gpu)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: --device %s: must be one of auto, host, cuda:N", command,
                         device);
    if (is_gpu && settings->trainer.pool.link_bytes_per_second > 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: --link-bandwidth needs --device host: a GPU can't do that",
                         command);
    if ((settings->trainer.pool.chunk_bytes & (settings->trainer.pool.chunk_bytes - 1)) != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: --chunk-size: %llu bytes is no power of two", command,
                         (unsigned long long)settings->trainer.pool.chunk_bytes);
    return TIDE_OK;
}

static tide_status model_open(const tide_train_settings *settings, tide_model_config *model)
{
    tide_status status = tide_model_config_open(settings->model, model);
    if (status != TIDE_OK || settings->vocab_size == 0)
        return status;
    model->vocab_size = settings->vocab_size;
    return tide_model_config_check(model, "--vocab-size");
}

tide_status tide_train_settings_apply(const tide_train_settings *settings, const char *device,
                                      tide_trainer_options *result)
{
    const bool predict = tide_train_settings_predict(settings);
    tide_trainer_options filled = settings->trainer;
    tide_status status = model_open(settings, &filled.model);
    if (status == TIDE_OK)
        status = loss_scale_of(settings, &filled.hyper.loss_scale_fixed);
    if (status != TIDE_OK)
        return status;
    filled.dtype = dtype_of(settings);
    filled.drops_long = settings->long_documents != 0;
    filled.freeze = settings->freeze.items;
    filled.freeze_count = settings->freeze.count;
    filled.resume_dir = settings->resume && !predict ? settings->checkpoint : NULL;
    if (predict)
        filled.resume_from = NULL;
    filled.save_weights_only = settings->save != 0;
    filled.weights = settings->from_weights ? settings->model : NULL;
    filled.pool.device = device;
    filled.pool.predict = settings->metrics != NULL && !predict; /* the null device is a prediction itself */
    filled.pool.checks.hazard_check = settings->checks;
    filled.pool.checks.guard = settings->checks && settings->ranks == 1;
    filled.pool.checks.fault_handler = settings->checks;
    filled.pool.checks.delay_seed = settings->delays;
    filled.pool.checks.delay_max_us = settings->delays != 0 ? DELAY_MAX_US : 0;
    *result = filled;
    return TIDE_OK;
}
