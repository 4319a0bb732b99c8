/* The option table of `tidepool checkpoint`, and the rest of its man page. */
#include "tools/checkpoint/checkpoint_options.h"
#include "tools/page.h"

static const tide_option options[] = {
    {.name = "DIR",
     .kind = TIDE_OPTION_TEXT,
     .operand = true,
     .required = true,
     .offset = offsetof(tide_checkpoint_settings, dir),
     .help = "a folder of checkpoints (tidepool train --checkpoint DIR), or one of them"},
    {.name = "--step",
     .kind = TIDE_OPTION_COUNT,
     .offset = offsetof(tide_checkpoint_settings, step),
     .metavar = "N",
     .least = 1,
     .most = 1e18,
     .value_help = "the newest",
     .help = "look at step-N of the folder"},
    {.name = "--quick",
     .kind = TIDE_OPTION_FLAG,
     .offset = offsetof(tide_checkpoint_settings, quick),
     .help = "compare sizes, and read no file but the manifest: a flipped bit goes unseen"},
    {.name = "--json",
     .kind = TIDE_OPTION_FLAG,
     .offset = offsetof(tide_checkpoint_settings, json),
     .help = "one line of JSON"},
};

const tide_option_table tide_checkpoint_table = {
    .command = "tidepool checkpoint",
    .summary = "usage: tidepool checkpoint DIR [--step N] [--quick] [--json]\n\nLists the checkpoints in a "
               "folder, and tells "
               "what is in one of them and whether it is whole.",
    .options = options,
    .count = sizeof options / sizeof options[0],
};

static const tide_option_table *const tables[] = {&tide_checkpoint_table};

const tide_page tide_checkpoint_page = {
    .name = "checkpoint",
    .title = "what is in a checkpoint, and whether it is whole",
    .tables = tables,
    .table_count = 1,
    .description = "Of each checkpoint in the folder the manifest and the sizes of the files are compared; "
                   "of the newest, or of the one "
                   "that --step names, every byte is read for its checksum. Where that one is damaged and an "
                   "earlier one is whole, the "
                   "last line is the command that goes on from there. Nothing is changed.",
    .statuses = "0\tall that was looked at is whole\n"
                "1\ta checkpoint is damaged, each damaged file is told of; or there is none; or another "
                "failure. One line on "
                "standard error tells the first\n"
                "2\ta command line that makes no sense; one line on standard error says what would",
    .examples = "    tidepool checkpoint run\n\n"
                "Is an older one whole?\n\n"
                "    tidepool checkpoint run --step 200",
};
