/* The table of `tidepool train`: names, kinds, ranges, defaults and help in one place. */
#include "tools/train_options.h"

#include "src/state/loss_scale.h"

#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(tide_train_settings, field)

/* Bounds of sizes: below a byte and beyond any machine. */
#define SIZE_LEAST 1.0
#define SIZE_MOST  1152921504606846976.0 /* 1024 PiB */

/* clang-format off */ /* one entry a paragraph */
static const tide_option options[] = {
    {.help = "model and data"},
    {.name = "--model", .kind = TIDE_OPTION_TEXT, .offset = AT(model), .metavar = "NAME|FILE",
     .required = true,
     .help = "gpt2-nano, gpt2, gpt2-medium, gpt2-large, gpt2-xl, or a Hugging Face config.json of type gpt2"},
    {.name = "--data", .kind = TIDE_OPTION_TEXT, .offset = AT(data), .metavar = "PATH",
     .value_help = "none; needed unless --device null",
     .help = "a text file (its bytes are the tokens), a shard in llm.c's format, or a folder of shards (*.bin)"},
    {.name = "--seq-len", .kind = TIDE_OPTION_COUNT, .offset = AT(seq_len), .metavar = "N", .least = 1,
     .most = 1048576, .value_help = "the model's context",
     .help = "tokens of a sequence"},
    {.name = "--vocab-size", .kind = TIDE_OPTION_COUNT, .offset = AT(vocab_size), .metavar = "N",
     .least = 1, .most = 16777216, .value_help = "the model's",
     .help = "vocabulary of the model; every token must be below it"},
    {.name = "--dtype", .kind = TIDE_OPTION_CHOICE, .offset = AT(dtype), .metavar = "bf16|fp16|fp32",
     .value = "bf16",
     .help = "of params and activations; masters and moments are always fp32"},
    {.name = "--seed", .kind = TIDE_OPTION_COUNT, .offset = AT(seed), .metavar = "N",
     .most = 9007199254740992.0, .value = "1",
     .help = "of initial values, data order and samples"},

    {.help = "training"},
    {.name = "--steps", .kind = TIDE_OPTION_COUNT, .offset = AT(steps), .metavar = "N", .least = 1,
     .most = 1e12, .value = "1000",
     .help = "where the run and its schedule end"},
    {.name = "--batch-tokens", .kind = TIDE_OPTION_COUNT, .offset = AT(batch_tokens), .metavar = "N",
     .least = 1, .most = 1e12, .value_help = "8 sequences",
     .help = "tokens of a step, a multiple of the sequence length"},
    {.name = "--micro-batch", .kind = TIDE_OPTION_COUNT, .offset = AT(micro_batch), .metavar = "SEQUENCES",
     .least = 1, .most = 1e9, .value_help = "as many as divide the batch, up to 1024 tokens",
     .help = "sequences computed at once; divides the batch"},
    {.name = "--lr", .kind = TIDE_OPTION_REAL, .offset = AT(lr), .metavar = "X", .most = 1000,
     .value = "6e-4",
     .help = "learning rate after warm-up; a cosine takes it down to a tenth"},
    {.name = "--warmup", .kind = TIDE_OPTION_COUNT, .offset = AT(warmup), .metavar = "N", .most = 1e12,
     .value_help = "a tenth of the steps, at most 100",
     .help = "steps of linear warm-up"},
    {.name = "--weight-decay", .kind = TIDE_OPTION_REAL, .offset = AT(weight_decay), .metavar = "X",
     .most = 1000, .value = "0.1",
     .help = "decoupled, on matrices and embeddings only"},
    {.name = "--clip", .kind = TIDE_OPTION_REAL, .offset = AT(clip), .metavar = "X", .most = 1e9,
     .value = "1.0",
     .help = "global gradient norm to clip to; 0: no clipping, updates run during backward"},
    {.name = "--loss-scale", .kind = TIDE_OPTION_TEXT, .offset = AT(loss_scale), .metavar = "dynamic|N",
     .value_help = "dynamic with fp16, none with other dtypes",
     .help = "multiply the loss' gradient by it; dynamic: from 65536 on, half after an overflow, twice after 2000 steps"},
    {.name = "--freeze", .kind = TIDE_OPTION_TEXTS, .offset = AT(freeze), .metavar = "GLOB",
     .value_help = "none",
     .help = "do not train params of such names, as in 'h.[0-9].*': 2 bytes each instead of 14, no gradients"},
    {.name = "--recompute", .kind = TIDE_OPTION_CHOICE, .offset = AT(recompute), .metavar = "auto|none|all",
     .value = "auto",
     .help = "blocks whose activations backward computes again; never changes a bit"},

    {.help = "memory and device"},
    {.name = "--device", .kind = TIDE_OPTION_TEXT, .offset = AT(device), .metavar = "auto|host|null|cuda:N",
     .value = "auto",
     .help = "auto: the first GPU that can be used, else host, the emulated device; null: predict, compute nothing"},
    {.name = "--device-memory", .kind = TIDE_OPTION_SIZE, .offset = AT(device_memory_bytes),
     .metavar = "SIZE", .least = SIZE_LEAST, .most = SIZE_MOST,
     .value_help = "what the run needs, at most what a GPU has free; host: 25% of free memory or the least that works",
     .help = "hard budget of device memory"},
    {.name = "--host-memory", .kind = TIDE_OPTION_SIZE, .offset = AT(host_memory_bytes), .metavar = "SIZE",
     .least = SIZE_LEAST, .most = SIZE_MOST,
     .value_help = "what the run needs, at most 80% of memory free or not in use yet; host: of what the device budget leaves free",
     .help = "hard budget of host memory for model data; for a GPU it is pinned"},
    {.name = "--chunk-size", .kind = TIDE_OPTION_SIZE, .offset = AT(chunk_bytes), .metavar = "SIZE",
     .least = 262144, .most = 1073741824, .value = "64MiB",
     .help = "unit of every move; a power of two, on a GPU 2MiB or more"},
    {.name = "--prefetch", .kind = TIDE_OPTION_SWITCH, .offset = AT(prefetch), .value = "on",
     .help = "fetch chunks before their ops ask for them"},
    {.name = "--optimizer-placement", .kind = TIDE_OPTION_CHOICE, .offset = AT(placement),
     .metavar = "auto|host|device", .value = "auto",
     .help = "where the optimizer runs; never changes a bit"},
    {.name = "--link-bandwidth", .kind = TIDE_OPTION_RATE, .offset = AT(link_bytes_per_second),
     .metavar = "SIZE/s", .least = 1000, .most = SIZE_MOST, .value_help = "no limit; null: as measured",
     .help = "host device: slow copies down to this, each way, to imitate PCIe"},
    {.name = "--threads", .kind = TIDE_OPTION_COUNT, .offset = AT(threads), .metavar = "N", .least = 1,
     .most = 1024, .value_help = "one a core; optimizer beside a GPU: two fewer",
     .help = "of kernels and of the optimizer on the host"},

    {.help = "output"},
    {.name = "--metrics", .kind = TIDE_OPTION_TEXT, .offset = AT(metrics), .metavar = "FILE",
     .help = "write a JSON line a step; with --resume it is continued"},
    {.name = "--trace", .kind = TIDE_OPTION_TEXT, .offset = AT(trace), .metavar = "FILE",
     .help = "write what happens to every chunk as JSON lines"},
    {.name = "--checkpoint", .kind = TIDE_OPTION_TEXT, .offset = AT(checkpoint), .metavar = "DIR",
     .help = "save here at the end and on SIGINT or SIGTERM"},
    {.name = "--save-every", .kind = TIDE_OPTION_COUNT, .offset = AT(save_every), .metavar = "N",
     .least = 1, .most = 1e12, .value_help = "at the end only",
     .help = "save every N steps"},
    {.name = "--keep", .kind = TIDE_OPTION_COUNT, .offset = AT(keep), .metavar = "K", .most = 1000000,
     .value = "2",
     .help = "how many checkpoints stay; 0: all"},
    {.name = "--resume", .kind = TIDE_OPTION_FLAG, .offset = AT(resume),
     .help = "continue from the newest checkpoint in --checkpoint, if there is one"},
    {.name = "--eval-every", .kind = TIDE_OPTION_COUNT, .offset = AT(eval_every), .metavar = "N",
     .most = 1e12, .value = "100",
     .help = "validation loss every N steps and at the end; 0: never"},
    {.name = "--sample", .kind = TIDE_OPTION_COUNT, .offset = AT(sample), .metavar = "N", .most = 1000000,
     .value = "64",
     .help = "tokens of text to make at the end; 0: none"},

    {.help = "--device null: the machine to predict for"},
    {.name = "--machine-flops", .kind = TIDE_OPTION_REAL, .offset = AT(machine_flops), .metavar = "X",
     .least = 1, .most = 1e21, .value_help = "as measured here",
     .help = "floating-point operations a second"},
    {.name = "--machine-device-rate", .kind = TIDE_OPTION_RATE, .offset = AT(machine_device_rate),
     .metavar = "SIZE/s", .least = 1, .most = SIZE_MOST, .value_help = "as measured here",
     .help = "bandwidth of device memory"},
    {.name = "--machine-host-rate", .kind = TIDE_OPTION_RATE, .offset = AT(machine_host_rate),
     .metavar = "SIZE/s", .least = 1, .most = SIZE_MOST, .value_help = "as measured here",
     .help = "bandwidth of host memory"},
    {.name = "--machine-map-us", .kind = TIDE_OPTION_COUNT, .offset = AT(machine_map_us), .metavar = "N",
     .most = 1e9, .value_help = "as measured here",
     .help = "microseconds to map a chunk"},

    {.help = "checks (host device), for debugging; they cost time"},
    {.name = "--checks", .kind = TIDE_OPTION_SWITCH, .offset = AT(checks), .value = "off",
     .help = "prove every ordering between streams, make a use after eviction fault, name the chunk in a fault"},
    {.name = "--delays", .kind = TIDE_OPTION_COUNT, .offset = AT(delays), .metavar = "SEED", .least = 1,
     .most = 9007199254740992.0, .value_help = "none",
     .help = "stretch every stream at random"},
};
/* clang-format on */

enum { OPTION_COUNT = sizeof options / sizeof options[0], DELAY_MAX_US = 200 };

static const tide_option_table table = {
    .command = "tidepool train",
    .summary =
        "usage: tidepool train --model NAME|FILE --data PATH [OPTIONS]\n\n"
        "Trains a GPT-2 within hard budgets of device and host memory. Sizes: 64MiB, 8GiB, 500MB or bytes.",
    .options = options,
    .count = OPTION_COUNT,
};

void tide_train_help(FILE *out)
{
    tide_options_help(&table, out);
}

bool tide_train_settings_predict(const tide_train_settings *settings)
{
    return strcmp(settings->device, "null") == 0;
}

static bool was_given(const bool *given, const char *name)
{
    for (size_t i = 0; i < OPTION_COUNT; i++)
        if (options[i].name != NULL && strcmp(options[i].name, name) == 0)
            return given[i];
    return false;
}

static bool device_is_known(const char *device)
{
    uint32_t ordinal;
    return strcmp(device, "auto") == 0 || strcmp(device, "host") == 0 || strcmp(device, "null") == 0 ||
           tide_module_cuda_ordinal(device, &ordinal) == TIDE_OK;
}

/* What was asked for that only the emulated device has; NULL if nothing. */
static const char *emulated_only(const tide_train_settings *settings)
{
    if (settings->checks)
        return "--checks on";
    if (settings->delays != 0)
        return "--delays";
    return settings->link_bytes_per_second > 0 ? "--link-bandwidth" : NULL;
}

void tide_train_settings_device(const tide_train_settings *settings, char name[TIDE_TARGET_NAME_BYTES],
                                char reason[TIDE_TARGET_REASON_BYTES])
{
    const char *emulated = emulated_only(settings);
    reason[0] = '\0';
    if (strcmp(settings->device, "auto") != 0) {
        snprintf(name, TIDE_TARGET_NAME_BYTES, "%s", settings->device);
    } else if (emulated != NULL) {
        snprintf(name, TIDE_TARGET_NAME_BYTES, "host");
        snprintf(reason, TIDE_TARGET_REASON_BYTES, "a GPU can't do %s", emulated);
    } else {
        tide_target_choose(settings->chunk_bytes, name, reason);
    }
}

/* What only makes sense beside another option. */
static tide_status needs_check(const bool *given, const char *option, const char *needed)
{
    if (was_given(given, option) && !was_given(given, needed))
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: %s needs %s", option, needed);
    return TIDE_OK;
}

static tide_status device_check(const tide_train_settings *settings, const bool *given)
{
    static const char *const null_only[] = {"--machine-flops", "--machine-device-rate", "--machine-host-rate",
                                            "--machine-map-us"};
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
    if (predict || settings->data != NULL)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "tidepool train: --data PATH is required (a text file or token shards)");
}

static tide_dtype dtype_of(const tide_train_settings *settings)
{
    static const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32};
    return dtypes[settings->dtype];
}

/* 0: dynamic, or none where the dtype has none. */
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

static tide_status settings_check(const tide_train_settings *settings, const bool *given)
{
    double scale;
    tide_status status = device_check(settings, given);
    if (status == TIDE_OK)
        status = loss_scale_of(settings, &scale);
    if (status == TIDE_OK)
        status = needs_check(given, "--save-every", "--checkpoint");
    if (status == TIDE_OK)
        status = needs_check(given, "--resume", "--checkpoint");
    if (status == TIDE_OK)
        status = needs_check(given, "--keep", "--checkpoint");
    if (status == TIDE_OK && (settings->chunk_bytes & (settings->chunk_bytes - 1)) != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool train: --chunk-size: %llu bytes is no power of two",
                         (unsigned long long)settings->chunk_bytes);
    return status;
}

tide_status tide_train_settings_parse(int count, char *const *arguments, tide_train_settings *settings)
{
    bool given[OPTION_COUNT] = {false};
    tide_train_settings parsed = {0};
    tide_status status = tide_options_parse(&table, count, arguments, &parsed, given);
    if (status != TIDE_OK)
        return status;
    parsed.warmup_given = was_given(given, "--warmup");
    parsed.machine_map_given = was_given(given, "--machine-map-us");
    parsed.machine_given = was_given(given, "--machine-flops") && was_given(given, "--machine-device-rate") &&
                           was_given(given, "--machine-host-rate") && parsed.machine_map_given &&
                           was_given(given, "--link-bandwidth");
    status = settings_check(&parsed, given);
    if (status == TIDE_OK)
        *settings = parsed;
    return status;
}

static tide_status model_open(const tide_train_settings *settings, tide_gpt2_config *model)
{
    tide_status status = tide_gpt2_config_open(settings->model, model);
    if (status != TIDE_OK || settings->vocab_size == 0)
        return status;
    model->vocab_size = (uint32_t)settings->vocab_size;
    return tide_gpt2_config_check(model, "--vocab-size");
}

static void pool_options_fill(const tide_train_settings *settings, const char *device,
                              tide_pool_options *pool)
{
    static const tide_placement placements[] = {TIDE_PLACEMENT_AUTO, TIDE_PLACEMENT_HOST,
                                                TIDE_PLACEMENT_DEVICE};
    pool->device = device;
    pool->device_memory_bytes = settings->device_memory_bytes;
    pool->host_memory_bytes = settings->host_memory_bytes;
    pool->chunk_bytes = settings->chunk_bytes;
    pool->dtype = dtype_of(settings);
    pool->prefetch = settings->prefetch;
    pool->predict =
        settings->metrics != NULL && !tide_train_settings_predict(settings); /* null: it is one itself */
    pool->placement = placements[settings->placement];
    pool->link_bytes_per_second = settings->link_bytes_per_second;
    pool->threads = (uint32_t)settings->threads;
    pool->hazard_check = settings->checks;
    pool->guard = settings->checks;
    pool->fault_handler = settings->checks;
    pool->delay_seed = settings->delays;
    pool->delay_max_us = settings->delays != 0 ? DELAY_MAX_US : 0;
}

tide_status tide_train_settings_apply(const tide_train_settings *settings, const char *device,
                                      tide_trainer_options *result)
{
    static const tide_recompute recomputes[] = {TIDE_RECOMPUTE_AUTO, TIDE_RECOMPUTE_NONE, TIDE_RECOMPUTE_ALL};
    tide_trainer_options filled;
    tide_trainer_options_default(&filled);
    tide_status status = model_open(settings, &filled.model);
    if (status == TIDE_OK)
        status = loss_scale_of(settings, &filled.loss_scale);
    if (status != TIDE_OK)
        return status;
    filled.data = settings->data;
    filled.steps = settings->steps;
    filled.batch_tokens = settings->batch_tokens;
    filled.seq_len = (uint32_t)settings->seq_len;
    filled.micro_batch_sequences = (uint32_t)settings->micro_batch;
    filled.lr = settings->lr;
    filled.weight_decay = settings->weight_decay;
    filled.clip = settings->clip;
    filled.warmup_steps = settings->warmup_given ? settings->warmup : TIDE_TRAINER_WARMUP_DEFAULT;
    filled.seed = settings->seed;
    filled.recompute = recomputes[settings->recompute];
    filled.freeze = settings->freeze.items;
    filled.freeze_count = settings->freeze.count;
    filled.resume_dir =
        settings->resume && !tide_train_settings_predict(settings) ? settings->checkpoint : NULL;
    pool_options_fill(settings, device, &filled.pool);
    *result = filled;
    return TIDE_OK;
}
