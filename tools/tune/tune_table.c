/* The option table of `tidepool tune`, and the rest of its man page. */
#include "tools/page.h"
#include "tools/train/run_options.h"
#include "tools/tune/tune_options.h"

#define AT(field) offsetof(tide_tune_settings, field)
#define RUN       AT(run)

/* clang-format off */ /* one entry a paragraph */
static const tide_option options[] = {
    {.help = "the run, as of tidepool train"},
    TIDE_RUN_MODEL(TIDE_RUN_AT(RUN, model)),
    {.name = "--data", .kind = TIDE_OPTION_TEXT, .offset = TIDE_RUN_AT(RUN, trainer.data), .metavar = "PATH", .value_help = "tokens are made up",
     .help = "what the steps that confirm train on, as of tidepool train"},
    TIDE_RUN_DATA_FORMAT(TIDE_RUN_AT(RUN, trainer.data_encoding)),
    TIDE_PLANNED_STEP(RUN),
    TIDE_PLANNED_DEVICE(RUN),

    {.help = "what is searched; one that is given stays as it is"},
    TIDE_PLANNED_CHOICE(RUN),

    {.help = "the search"},
    TIDE_RUN_MACHINE(AT(machine)),
    TIDE_RUN_RAM(AT(ram_bytes)),
    {.name = "--confirm", .kind = TIDE_OPTION_COUNT32, .offset = AT(confirm), .metavar = "N", .most = 20, .value = "3",
     .help = "so many of the best predictions are confirmed by real steps on the device; 0: none. Nothing is kept of them"},
    {.name = "--confirm-steps", .kind = TIDE_OPTION_COUNT32, .offset = AT(confirm_steps), .metavar = "N", .least = 1, .most = 1000,
     .value = "4", .help = "real steps each, after two that are not counted"},
    {.name = "--plot", .kind = TIDE_OPTION_TEXT, .offset = AT(plot), .metavar = "FILE.svg", .value_help = "none",
     .help = "draw step time and stall against chunk size"},
    {.name = "--json", .kind = TIDE_OPTION_FLAG, .offset = AT(json), .help = "one line of JSON: every choice, the best, its command"},
};
/* clang-format on */

const tide_option_table tide_tune_table = {
    .command = "tidepool tune",
    .summary = "usage: tidepool tune --model NAME|PATH [--data PATH] [OPTIONS]\n\n"
               "Searches how to run best what never changes a bit, and confirms it by real steps.",
    .options = options,
    .count = sizeof options / sizeof options[0],
};

static const tide_option_table *const tables[] = {&tide_tune_table};

const tide_page tide_tune_page = {
    .name = "tune",
    .title = "find the best chunk size, recompute, prefetch and optimizer placement",
    .tables = tables,
    .table_count = 1,
    .description =
        "Chunk sizes of 1 MiB to 512 MiB are predicted, as tidepool-plan(1) predicts, then for the best of "
        "them recompute, "
        "the optimizer's place and prefetch. None of these changes a bit of what is trained. The best few "
        "are confirmed "
        "by a few real steps each, on the device and within the budgets of the run, which is made anew for "
        "each: nothing is "
        "trained, and no file is touched but that of --plot.\n\n"
        "It prints a table, the command that trains so, and apart from them what would be faster and "
        "changes numerics: "
        "batches, micro-batches, no clipping. That is never chosen.\n\n"
        "On a terminal a bar shows how far the search is. SIGINT and SIGTERM end it with the best so far.\n\n"
        "`tidepool train --auto` does the same without real steps, and trains.",
    .statuses = "0\tdone, or ended by a signal with the best so far\n"
                "1\tnothing fits, or a failure; one line on standard error tells it\n"
                "2\ta command line that makes no sense; one line on standard error says what would",
    .environment = "XDG_CACHE_HOME\twhere measured machines are kept; see tidepool-plan(1)",
    .examples = "    tidepool tune --model gpt2 --data book.txt --device-memory 600MiB\n\n"
                "By prediction alone, with a picture:\n\n"
                "    tidepool tune --model gpt2 --device-memory 600MiB --confirm 0 --plot chunks.svg",
};
