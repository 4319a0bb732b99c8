/* What a command says beside its options: a line in `tidepool --help`, and a man page.
 *
 * `tidepool --generate` (pages/) makes of this and the tables of options the page, and what shells complete.
 * Its texts are plain. A paragraph ends at an empty line. A line that begins with four blanks is a command, shown as
 * it stands; one with a tab is an item of a list, "TERM\tMEANING". Options ("--device"), `words in backquotes` and
 * other pages ("tidepool(1)") are made bold. No text says what a table says.
 */
#ifndef TIDE_TOOLS_PAGE_H
#define TIDE_TOOLS_PAGE_H

#include "tools/options.h"

#include <stddef.h>

typedef struct tide_page {
    const char *name;                       /* of the command, "train"; "" for the program */
    const char *title;                      /* what it does, in a phrase */
    const tide_option_table *const *tables; /* one; of a command with commands of its own, one each */
    size_t table_count;
    const char *description; /* behind the summary of the table; NULL or a text, as are the next */
    const char *statuses;
    const char *environment;
    const char *files;
    const char *examples;
} tide_page;

extern const tide_page tide_program_page, tide_plan_page, tide_tune_page, tide_train_page, tide_trace_page,
    tide_checkpoint_page, tide_export_page, tide_info_page;

/* All of them, the program's first. */
extern const tide_page *const tide_pages[];
extern const size_t tide_page_count;

#endif
