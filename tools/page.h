/* A command's documentation besides its options: its line in `tidepool --help`, and its man page.
 *
 * `tidepool --generate` (pages/) makes the man page and the shells' completions from this struct and the
 * option tables. The texts are plain. An empty line ends a paragraph. A line that begins with four blanks is
 * a command, shown unchanged; a line with a tab is an item of a list, "TERM\tMEANING". Options ("--device"),
 * `words in backquotes` and other pages ("tidepool(1)") are made bold. The texts do not repeat the option
 * tables.
 */
#ifndef TIDE_TOOLS_PAGE_H
#define TIDE_TOOLS_PAGE_H

#include "tools/options.h"

#include <stddef.h>

typedef struct tide_page {
    const char *name;                       /* the command's, "train"; "" for the program */
    const char *title;                      /* the command's purpose in a phrase */
    const tide_option_table *const *tables; /* one table, or one for each subcommand */
    size_t table_count;
    const char *description; /* shown after the table's summary; this and the texts below may be NULL */
    const char *statuses;
    const char *environment;
    const char *files;
    const char *examples;
} tide_page;

extern const tide_page tide_program_page, tide_plan_page, tide_tune_page, tide_train_page, tide_trace_page,
    tide_checkpoint_page, tide_export_page, tide_generate_page, tide_info_page;

/* All pages, the program's first. */
extern const tide_page *const tide_pages[];
extern const size_t tide_page_count;

#endif
