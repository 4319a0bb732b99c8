/* Prints the man pages and completions of an imaginary program: it has a command with subcommands,
 * operands, an option of one letter, a choice with a number, and texts full of characters that roff and
 * shells treat as their own. The build links it with tools/pages/ in place of tidepool's list of commands.
 *
 * usage: strange_pages man [COMMAND] | bash | zsh      prints what `tidepool --generate` would print for
 * that program */
#include "tools/pages/pages.h"

static const tide_option options[] = {{.name = "--version", .kind = TIDE_OPTION_FLAG, .help = "print it"}};

static const tide_option_table table = {
    .command = "tidepool",
    .summary = "usage: tidepool COMMAND [OPTIONS]\n\nIs strange.",
    .options = options,
    .count = 1,
};

static const tide_option show_options[] = {
    {.name = "FILE", .kind = TIDE_OPTION_TEXT, .operand = true, .help = "a file"},
    {.name = "--quick", .kind = TIDE_OPTION_FLAG, .help = "it's 100% \"quick\", [really]: $HOME `pwd` \\n"},
    {.name = "--how",
     .kind = TIDE_OPTION_CHOICE,
     .metavar = "slow|well",
     .help = "$(touch hurt); 'quoted' & <so> on"},
    {.name = "--again", .kind = TIDE_OPTION_TEXTS, .metavar = "FILE", .help = ".so on. 'tis so"},
};

static const tide_option_table show_table = {
    .command = "tidepool odd show",
    .title = "shows: what's [odd]",
    .summary = "usage: tidepool odd show [OPTIONS] FILE\n\nShows: what's odd. And more\nin a second line.",
    .options = show_options,
    .count = sizeof show_options / sizeof show_options[0],
};

static const tide_option write_options[] = {
    {.name = "FILE", .kind = TIDE_OPTION_TEXT, .operand = true, .help = "a file"},
    {.name = "-o", .kind = TIDE_OPTION_TEXT, .metavar = "FILE", .required = true, .help = "where to"},
    {.name = "--in", .kind = TIDE_OPTION_TEXT, .metavar = "DIR", .help = "a folder"},
};

static const tide_option_table write_table = {
    .command = "tidepool odd write",
    .title = "writes",
    .summary = "usage: tidepool odd write -o FILE FILE\n\nWrites.",
    .options = write_options,
    .count = sizeof write_options / sizeof write_options[0],
};

static const tide_option_table *const program_tables[] = {&table}, *const odd_tables[] = {&show_table,
                                                                                          &write_table};

const tide_page tide_program_page = {
    .name = "", .title = "is strange", .tables = program_tables, .table_count = 1};

static const tide_page odd_page = {
    .name = "odd",
    .title = "what's odd: [all] of it",
    .tables = odd_tables,
    .table_count = 2,
    .description = "First.\n\n.SH is no title, 'nor this; --how and `a -b \\c` are bold, see\ntidepool(1).",
    .statuses = "0\tdone\n3\tit's odd",
    .examples = "So:\n\n    tidepool odd show 'x y' \\\n        --how well\n\n    .tidepool odd",
};

const tide_page *const tide_pages[] = {&tide_program_page, &odd_page};
const size_t tide_page_count = 2;

int main(int count, char **words)
{
    return count > 1 && tide_pages_generate(words[1], count > 2 ? words[2] : "", stdout) ? 0 : 2;
}
