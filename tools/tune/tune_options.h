/* The command line of `tidepool tune`: a run as of `tidepool train`, and how to look for the best way to run it. */
#ifndef TIDE_TOOLS_TUNE_OPTIONS_H
#define TIDE_TOOLS_TUNE_OPTIONS_H

#include "src/perf/tune.h"
#include "tools/train/train_options.h"

typedef struct tide_tune_settings {
    tide_train_settings run;
    bool keep_chunk, keep_recompute, keep_placement, keep_prefetch; /* stand on the command line */
    const char *machine;
    uint64_t ram_bytes; /* 0: not given */
    uint64_t confirm, confirm_steps;
    const char *plot; /* NULL: none */
    bool json;
} tide_tune_settings;

extern const tide_option_table tide_tune_table;

/* Read it and check what one option says against another. ARGUMENT: the message is complete. */
TIDE_NODISCARD tide_status tide_tune_settings_parse(int count, char *const *arguments,
                                                    tide_tune_settings *settings);

/* The command that trains so: the options of `arguments` that are a run's, quoted for a shell, and the choice; "--data PATH" where they
 * name no data; with the candidate's budgets, if they would be others where it runs. */
void tide_tune_command_write(int count, char *const *arguments, const tide_candidate *candidate,
                             bool with_budgets, FILE *out);

#endif
