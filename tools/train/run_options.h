/* Entries of option tables that `tidepool train`, `plan` and `tune` share, so that each has one help text.
 * The parameter `at` is the offset of the member that gets the option's value. */
#ifndef TIDE_TOOLS_RUN_OPTIONS_H
#define TIDE_TOOLS_RUN_OPTIONS_H

/* Bounds of the sizes that a user may give; the upper one is more than any machine has. */
#define TIDE_SIZE_LEAST 1.0
#define TIDE_SIZE_MOST  1152921504606846976.0 /* 1024 PiB */

#define TIDE_PRESETS                                                                                         \
    "gpt2-nano, gpt2, gpt2-medium, gpt2-large, gpt2-xl, gpt-1t, llama-nano, llama-3.2-1b, "                  \
    "llama-3.1-8b, llama-3.1-70b, qwen2.5-7b, qwen3-8b, qwen3-32b"

#define TIDE_RUN_DATA_FORMAT(at)                                                                             \
    {                                                                                                        \
        .name = "--data-format", .kind = TIDE_OPTION_CHOICE, .offset = (at), .metavar = "auto|u16|u32",      \
        .value = "auto",                                                                                     \
        .help = "auto: a *.bin or what begins as one is a shard in llm.c's formats, all else text; u16, "    \
                "u32: tokens without a header, as "                                                          \
                "nanoGPT's *.bin"                                                                            \
    }

#define TIDE_RUN_SEQ_LEN(at)                                                                                 \
    {                                                                                                        \
        .name = "--seq-len", .kind = TIDE_OPTION_COUNT32, .offset = (at), .metavar = "N", .least = 1,        \
        .most = 16777216,                                                                                    \
        .value_help = "the model's context, at most its sliding window; of a folder at most 4096",           \
        .help = "tokens of a sequence"                                                                       \
    }

#define TIDE_RUN_VOCAB_SIZE(at)                                                                              \
    {                                                                                                        \
        .name = "--vocab-size", .kind = TIDE_OPTION_COUNT32, .offset = (at), .metavar = "N", .least = 1,     \
        .most = 16777216, .value_help = "the model's",                                                       \
        .help = "vocabulary of the model; every token must be below it"                                      \
    }

#define TIDE_RUN_DTYPE(at)                                                                                   \
    {                                                                                                        \
        .name = "--dtype", .kind = TIDE_OPTION_CHOICE, .offset = (at), .metavar = "bf16|fp16|fp32",          \
        .value = "bf16", .help = "of params and activations; masters and moments are always fp32"            \
    }

#define TIDE_RUN_BATCH_TOKENS(at)                                                                            \
    {                                                                                                        \
        .name = "--batch-tokens", .kind = TIDE_OPTION_COUNT, .offset = (at), .metavar = "N", .least = 1,     \
        .most = 1e12, .value_help = "8 sequences",                                                           \
        .help = "tokens of a step, a multiple of the sequence length"                                        \
    }

#define TIDE_RUN_MICRO_BATCH(at)                                                                             \
    {                                                                                                        \
        .name = "--micro-batch", .kind = TIDE_OPTION_COUNT32, .offset = (at), .metavar = "SEQUENCES",        \
        .least = 1, .most = 1e9, .value_help = "as many as divide the batch, up to 512 tokens",              \
        .help = "sequences computed at once; divides the batch"                                              \
    }

/* `otherwise`, a string: their default, if it is not just 1 or fp32. */
#define TIDE_RUN_SUM_GROUPS(at, otherwise)                                                                   \
    {                                                                                                        \
        .name = "--sum-groups", .kind = TIDE_OPTION_COUNT32, .offset = (at), .metavar = "N", .least = 1,     \
        .most = TIDE_SUM_GROUPS_MAX, .value_help = otherwise "1",                                            \
        .help = "sum each gradient in N groups of micro-batches, and the N sums as a tree: as N processes "  \
                "do; divides the micro-batches"                                                              \
    }

#define TIDE_RUN_REDUCE(at, otherwise)                                                                       \
    {                                                                                                        \
        .name = "--reduce", .kind = TIDE_OPTION_CHOICE, .offset = (at), .metavar = "auto|fp32|bf16",         \
        .value = "auto",                                                                                     \
        .help =                                                                                              \
            "type to which each sum group's sum is rounded before they are added; auto: " otherwise "fp32"   \
    }

#define TIDE_RUN_CLIP(at)                                                                                    \
    {                                                                                                        \
        .name = "--clip", .kind = TIDE_OPTION_REAL, .offset = (at), .metavar = "X", .most = 1e9,             \
        .value = "1.0",                                                                                      \
        .help = "global gradient norm to clip to; 0: no clipping, updates run during backward"               \
    }

#define TIDE_RUN_FREEZE(at)                                                                                  \
    {                                                                                                        \
        .name = "--freeze", .kind = TIDE_OPTION_TEXTS, .offset = (at), .metavar = "GLOB",                    \
        .value_help = "none",                                                                                \
        .help = "do not train tensors of such names, as in 'h.[0-9].*': 2 bytes each instead of 14, no "     \
                "gradients"                                                                                  \
    }

#define TIDE_RUN_RECOMPUTE(at)                                                                               \
    {                                                                                                        \
        .name = "--recompute", .kind = TIDE_OPTION_CHOICE, .offset = (at), .metavar = "auto|none|all",       \
        .value = "auto", .help = "blocks whose activations backward computes again; never changes a bit"     \
    }

#define TIDE_RUN_DEVICE_MEMORY(at)                                                                           \
    {                                                                                                        \
        .name = "--device-memory", .kind = TIDE_OPTION_SIZE, .offset = (at), .metavar = "SIZE",              \
        .least = TIDE_SIZE_LEAST, .most = TIDE_SIZE_MOST,                                                    \
        .value_help = "what the run needs, at most what a GPU has free; host: 25% of free memory or the "    \
                      "least that works",                                                                    \
        .help = "hard budget of device memory"                                                               \
    }

#define TIDE_RUN_HOST_MEMORY(at)                                                                             \
    {                                                                                                        \
        .name = "--host-memory", .kind = TIDE_OPTION_SIZE, .offset = (at), .metavar = "SIZE",                \
        .least = TIDE_SIZE_LEAST, .most = TIDE_SIZE_MOST,                                                    \
        .value_help = "what the run needs, at most 80% of memory free or not in use yet; host: of what the " \
                      "device budget leaves free",                                                           \
        .help = "hard budget of host memory for model data; for a GPU it is pinned"                          \
    }

#define TIDE_RUN_CHUNK_SIZE(at)                                                                              \
    {                                                                                                        \
        .name = "--chunk-size", .kind = TIDE_OPTION_SIZE, .offset = (at), .metavar = "SIZE",                 \
        .least = 262144, .most = 1073741824, .value = "64MiB",                                               \
        .help = "unit of every move; a power of two, on a GPU 2MiB or more"                                  \
    }

#define TIDE_RUN_PREFETCH(at)                                                                                \
    {                                                                                                        \
        .name = "--prefetch", .kind = TIDE_OPTION_SWITCH, .offset = (at), .value = "on",                     \
        .help = "fetch chunks before their ops ask for them"                                                 \
    }

#define TIDE_RUN_OPTIMIZER_PLACEMENT(at)                                                                     \
    {                                                                                                        \
        .name = "--optimizer-placement", .kind = TIDE_OPTION_CHOICE, .offset = (at),                         \
        .metavar = "auto|host|device", .value = "auto",                                                      \
        .help = "where the optimizer runs; never changes a bit"                                              \
    }

#define TIDE_RUN_LINK_BANDWIDTH(at)                                                                          \
    {                                                                                                        \
        .name = "--link-bandwidth", .kind = TIDE_OPTION_RATE, .offset = (at), .metavar = "SIZE/s",           \
        .least = 1000, .most = TIDE_SIZE_MOST, .value_help = "no limit",                                     \
        .help = "copies of the emulated device are at most so fast, each way, to imitate PCIe; auto takes "  \
                "that device then"                                                                           \
    }

#define TIDE_RUN_THREADS(at)                                                                                 \
    {                                                                                                        \
        .name = "--threads", .kind = TIDE_OPTION_COUNT32, .offset = (at), .metavar = "N", .least = 1,        \
        .most = 1024, .value_help = "one a core; optimizer beside a GPU: two fewer",                         \
        .help = "of kernels and of the optimizer on the host"                                                \
    }

#define TIDE_RUN_MODEL(at)                                                                                   \
    {                                                                                                        \
        .name = "--model", .kind = TIDE_OPTION_TEXT, .offset = (at), .metavar = "NAME|PATH",                 \
        .required = true, .words = TIDE_PRESETS,                                                             \
        .help = TIDE_PRESETS ", or a Hugging Face folder (config.json, safetensors) of a GPT-2, Llama, "     \
                             "Mistral, Qwen2 or Qwen3 to begin "                                             \
                             "with; of a config.json by itself the sizes count, and initial values"          \
    }

#define TIDE_MACHINES "rtx3090, rtx4090, rtx5090, a100-40, a100-80, h100, h200"

#define TIDE_RUN_MACHINE(at)                                                                                 \
    {                                                                                                        \
        .name = "--machine", .kind = TIDE_OPTION_TEXT, .offset = (at), .metavar = "this|FILE|PRESET",        \
        .value = "this", .words = "this, " TIDE_MACHINES,                                                    \
        .help = "this: measured once, for some ten seconds, and kept; a file of such a measurement; or by "  \
                "published figures " TIDE_MACHINES ", behind them +pcie4, +pcie5, +1-socket, +2-sockets"     \
    }

#define TIDE_RUN_RAM(at)                                                                                     \
    {                                                                                                        \
        .name = "--ram", .kind = TIDE_OPTION_SIZE, .offset = (at), .metavar = "SIZE",                        \
        .least = TIDE_SIZE_LEAST, .most = TIDE_SIZE_MOST,                                                    \
        .value_help = "this machine's free memory; of another: what its file says, or what the run needs",   \
        .help = "memory of the machine, of which a run takes 80% where no --host-memory is given"            \
    }

/* The entries that describe a run to `tidepool plan` and `tidepool tune`. `at` is the offset of a
 * tide_train_settings in their own settings. */
#define TIDE_RUN_AT(at, field) ((at) + offsetof(tide_train_settings, field))

#define TIDE_PLANNED_STEP(at)                                                                                \
    TIDE_RUN_SEQ_LEN(TIDE_RUN_AT(at, trainer.seq_len)), TIDE_RUN_VOCAB_SIZE(TIDE_RUN_AT(at, vocab_size)),    \
        TIDE_RUN_DTYPE(TIDE_RUN_AT(at, dtype)),                                                              \
        TIDE_RUN_BATCH_TOKENS(TIDE_RUN_AT(at, trainer.global_batch_tokens)),                                 \
        TIDE_RUN_MICRO_BATCH(TIDE_RUN_AT(at, trainer.micro_batch_sequences)),                                \
        TIDE_RUN_SUM_GROUPS(TIDE_RUN_AT(at, trainer.sum_groups), ""),                                        \
        TIDE_RUN_REDUCE(TIDE_RUN_AT(at, trainer.reduce), ""),                                                \
        TIDE_RUN_CLIP(TIDE_RUN_AT(at, trainer.hyper.clip)), TIDE_RUN_FREEZE(TIDE_RUN_AT(at, freeze))

#define TIDE_PLANNED_DEVICE(at)                                                                              \
    {.name = "--device",                                                                                     \
     .kind = TIDE_OPTION_TEXT,                                                                               \
     .offset = TIDE_RUN_AT(at, device),                                                                      \
     .metavar = "auto|host|cuda:N",                                                                          \
     .value = "auto",                                                                                        \
     .help = "of this machine; auto: the first GPU that can be used, else host, the emulated device"},       \
        TIDE_RUN_DEVICE_MEMORY(TIDE_RUN_AT(at, trainer.pool.device_memory_bytes)),                           \
        TIDE_RUN_HOST_MEMORY(TIDE_RUN_AT(at, trainer.pool.host_memory_bytes)),                               \
        TIDE_RUN_LINK_BANDWIDTH(TIDE_RUN_AT(at, trainer.pool.link_bytes_per_second)),                        \
        TIDE_RUN_THREADS(TIDE_RUN_AT(at, trainer.pool.threads))

#define TIDE_PLANNED_CHOICE(at)                                                                              \
    TIDE_RUN_CHUNK_SIZE(TIDE_RUN_AT(at, trainer.pool.chunk_bytes)),                                          \
        TIDE_RUN_RECOMPUTE(TIDE_RUN_AT(at, trainer.recompute)),                                              \
        TIDE_RUN_OPTIMIZER_PLACEMENT(TIDE_RUN_AT(at, trainer.pool.placement)),                               \
        TIDE_RUN_PREFETCH(TIDE_RUN_AT(at, trainer.pool.prefetch))

#endif
