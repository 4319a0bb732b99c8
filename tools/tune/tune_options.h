/* The command line of `tidepool tune`: a run as for `tidepool train`, and options of the search. */
#ifndef TIDE_TOOLS_TUNE_OPTIONS_H
#define TIDE_TOOLS_TUNE_OPTIONS_H

#include "src/perf/tune.h"
#include "tools/train/train_options.h"

typedef struct tide_tune_settings {
    tide_train_settings run;
    const char *machine;
    uint64_t ram_bytes; /* 0: not given */
    uint32_t confirm, confirm_steps;
    const char *plot; /* NULL: no plot */
    bool json;
} tide_tune_settings;

extern const tide_option_table tide_tune_table;

/* Read the command line and check each option against the others. ARGUMENT: the message is complete. */
TIDE_NODISCARD tide_status tide_tune_settings_parse(int count, char *const *arguments,
                                                    tide_tune_settings *settings);

/* Write the `tidepool train` command for a candidate: those of the `arguments` that describe the run, quoted
 * for a shell, then the candidate's choice. Adds "--data PATH" if they name no data, and, if `with_budgets`,
 * the candidate's budgets, because the defaults may differ on the machine that trains. */
void tide_tune_command_write(int count, char *const *arguments, const tide_candidate *candidate,
                             bool with_budgets, FILE *out);

#endif
