/* The option table of `tidepool generate`, and the rest of its man page. */
#include "tools/generate/generate_options.h"
#include "tools/page.h"
#include "tools/train/run_options.h"

#define AT(field) offsetof(tide_generate_settings, field)

/* clang-format off */ /* one entry a paragraph */
static const tide_option options[] = {
    {.help = "model and prompt"},
    {.name = "--model", .kind = TIDE_OPTION_TEXT, .offset = AT(model), .metavar = "DIR",
     .value_help = "none; this or --checkpoint is needed",
     .help = "a Hugging Face folder (config.json, safetensors) of a GPT-2, Llama, Mistral, Qwen2 or Qwen3"},
    {.name = "--checkpoint", .kind = TIDE_OPTION_TEXT, .offset = AT(checkpoint), .metavar = "DIR",
     .value_help = "none",
     .help = "a folder of checkpoints, of which the newest counts, or one of them (DIR/step-N)"},
    {.name = "--prompt-ids", .kind = TIDE_OPTION_TEXT, .offset = AT(prompt_ids), .metavar = "FILE",
     .required = true,
     .help = "the prompt's token ids, decimal numbers with white space between them; - is standard input"},
    {.name = "--tokens", .kind = TIDE_OPTION_COUNT32, .offset = AT(tokens), .metavar = "N", .least = 1,
     .most = 16777216, .value = "256",
     .help = "the most tokens to make; fewer where the model ends its text or its context is full"},
    {.name = "--temperature", .kind = TIDE_OPTION_REAL, .offset = AT(temperature), .metavar = "T",
     .most = 1000, .value = "0",
     .help = "0: always the likeliest token; above: draw one, the more freely the higher"},
    {.name = "--top-k", .kind = TIDE_OPTION_COUNT32, .offset = AT(top_k), .metavar = "K", .most = 16777216,
     .value = "0", .help = "draw among the K likeliest tokens; 0: among all"},
    {.name = "--seed", .kind = TIDE_OPTION_COUNT, .offset = AT(seed), .metavar = "N",
     .most = 9007199254740992.0, .value = "1", .help = "of the draws: the same seed gives the same text"},

    {.help = "memory and device"},
    {.name = "--dtype", .kind = TIDE_OPTION_CHOICE, .offset = AT(dtype), .metavar = "auto|bf16|fp16|fp32",
     .value = "auto", .help = "of params, keys and values; auto: a checkpoint's own, of a folder bf16"},
    {.name = "--device", .kind = TIDE_OPTION_TEXT, .offset = AT(device), .metavar = "auto|host|cuda:N",
     .value = "auto", .help = "auto: the first GPU that can be used, else host, the emulated device"},
    TIDE_RUN_DEVICE_MEMORY(AT(device_memory_bytes)),
    TIDE_RUN_HOST_MEMORY(AT(host_memory_bytes)),
    TIDE_RUN_CHUNK_SIZE(AT(chunk_bytes)),
    {.name = "--threads", .kind = TIDE_OPTION_COUNT32, .offset = AT(threads), .metavar = "N", .least = 1,
     .most = 1024, .value_help = "one a core", .help = "of kernels on the host"},
    {.name = "--report", .kind = TIDE_OPTION_FLAG, .offset = AT(report),
     .help = "tell on standard error where every byte is, and afterwards how fast tokens were made"},
};
/* clang-format on */

const tide_option_table tide_generate_table = {
    .command = "tidepool generate",
    .summary = "usage: tidepool generate --model DIR|--checkpoint DIR --prompt-ids FILE [OPTIONS]\n\n"
               "Continues a prompt of token ids, within hard budgets of device and host memory.",
    .options = options,
    .count = sizeof options / sizeof options[0],
};

static const tide_option_table *const tables[] = {&tide_generate_table};

const tide_page tide_generate_page = {
    .name = "generate",
    .title = "continue a prompt with a trained model, token by token",
    .tables = tables,
    .table_count = 1,
    .description =
        "Standard output gets the ids of the new tokens, one a line, each as soon as it is made. A text ends "
        "at an end token of the model (eos_token_id of its generation_config.json and config.json; it is "
        "printed too), after --tokens tokens, or where the context is full. A checkpoint has the end tokens "
        "of "
        "the folder that its run began with.\n\n"
        "A token costs its own computation alone: keys and values of all tokens before it are kept, in "
        "device "
        "memory, with space for the prompt and --tokens more. Params take 2 bytes each, 4 in fp32. Where the "
        "device budget does not hold them they move through it for every token, chunk by chunk; budgets and "
        "the chunk size change no token. Another --dtype or number of threads may, where two tokens are "
        "about "
        "equally likely.\n\n"
        "Of a model with a sliding window only texts that fit into it are made.",
    .statuses =
        "0\tdone\n"
        "1\ta file is damaged, or is not there, or another failure; one line on standard error tells "
        "it\n"
        "2\ta command line or a prompt that makes no sense; one line on standard error says what would",
    .environment = "TIDEPOOL_MODULES\ta folder in which the CUDA module, libtidepool_cuda.so, is looked for "
                   "first",
    .examples = "    tidepool generate --model my-model --prompt-ids prompt.txt\n\n"
                "A model larger than the memory that it gets, with a text drawn at random:\n\n"
                "    tidepool generate --checkpoint run --prompt-ids prompt.txt --device-memory 1GiB "
                "--temperature 0.8",
};
