/* The list of all man pages: the program's and one for each command. A new command needs a line here, a line
 * in main.c, and its name in pages/meson.build. */
#include "tools/page.h"

#include <stdbool.h>

/* The program's own options, for its man page and completions. main.c reads them without this table; every
 * command reads --help. */
static const tide_option options[] = {
    {.name = "--version", .kind = TIDE_OPTION_FLAG, .help = "print the version, and do no more"},
    {.name = "--generate",
     .kind = TIDE_OPTION_CHOICE,
     .metavar = "man|bash|zsh",
     .help = "print this page, or with a command's name behind `man` that one's; or what a shell completes"},
};

static const tide_option_table table = {
    .command = "tidepool",
    .summary = "usage: tidepool COMMAND [OPTIONS]\n\ntidepool trains models larger than GPU memory.",
    .options = options,
    .count = sizeof options / sizeof options[0],
};

static const tide_option_table *const tables[] = {&table};

const tide_page tide_program_page = {
    .name = "",
    .title = "trains models larger than GPU memory",
    .tables = tables,
    .table_count = 1,
    .description = "Parameters, gradients and optimizer state are packed into chunks of one size. The chunks "
                   "move between device and "
                   "host memory so that the device always finds what it needs. Where they are never changes "
                   "a bit of the result.",
    .statuses = "0\tdone\n"
                "1\ta failure; one line on standard error tells it\n"
                "2\ta command line that makes no sense; one line on standard error says what would",
};

const tide_page *const tide_pages[] = {
    &tide_program_page,    &tide_plan_page,   &tide_tune_page,     &tide_train_page, &tide_trace_page,
    &tide_checkpoint_page, &tide_export_page, &tide_generate_page, &tide_info_page,
};

const size_t tide_page_count = sizeof tide_pages / sizeof tide_pages[0];
