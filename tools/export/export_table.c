/* The option table of `tidepool export`, and the rest of its man page. */
#include "tools/export/export_options.h"
#include "tools/page.h"

static const tide_option options[] = {
    {.name = "--checkpoint",
     .kind = TIDE_OPTION_TEXT,
     .offset = offsetof(tide_export_settings, checkpoint),
     .metavar = "DIR",
     .required = true,
     .help = "a folder of checkpoints, of which the newest counts, or one of them (DIR/step-N)"},
    {.name = "--out",
     .kind = TIDE_OPTION_TEXT,
     .offset = offsetof(tide_export_settings, out),
     .metavar = "DIR",
     .required = true,
     .help = "the folder to make; it must not be there"},
    {.name = "--dtype",
     .kind = TIDE_OPTION_CHOICE,
     .offset = offsetof(tide_export_settings, dtype),
     .metavar = "run|bf16|fp16|fp32",
     .value = "run",
     .help = "of the weights: as they were trained with (run), or another; rounded once"},
    {.name = "--max-shard-size",
     .kind = TIDE_OPTION_SIZE,
     .offset = offsetof(tide_export_settings, max_shard_bytes),
     .metavar = "SIZE",
     .least = 1,
     .most = 1152921504606846976.0,
     .value = TIDE_EXPORT_SHARD_TEXT,
     .help = "of a file's values; a larger tensor has a file of its own"},
};

const tide_option_table tide_export_table = {
    .command = "tidepool export",
    .summary =
        "usage: tidepool export --checkpoint DIR --out DIR [OPTIONS]\n\nWrites a checkpoint's model as a "
        "Hugging Face folder, which transformers, vLLM and llama.cpp's converter read.",
    .options = options,
    .count = sizeof options / sizeof options[0],
};

static const tide_option_table *const tables[] = {&tide_export_table};

const tide_page tide_export_page = {
    .name = "export",
    .title = "a checkpoint's model as a Hugging Face folder",
    .tables = tables,
    .table_count = 1,
    .description =
        "The folder holds config.json, the weights as safetensors, in one file or in shards with "
        "an index, and "
        "the tokenizer's and generation's files of the folder that the run began with "
        "(tidepool train --model DIR), which it keeps in the folder of its checkpoints under the "
        "name `tidepool-origin`. "
        "It is there whole or not at all. Every byte of the weights is checked first. SIGINT and "
        "SIGTERM end the command with status 1 and leave nothing; what is killed leaves OUT.tmp-PID, "
        "which the next export to OUT removes.",
    .statuses = "0\tdone\n"
                "1\tthe checkpoint is damaged, or there is none, or another failure; one line on standard "
                "error tells it\n"
                "2\ta command line that makes no sense, or an output that is there already; one line on "
                "standard error says "
                "what would",
    .examples = "    tidepool export --checkpoint run --out my-model\n\n"
                "An older checkpoint, in fp32:\n\n"
                "    tidepool export --checkpoint run/step-200 --out my-model --dtype fp32",
};
