/* The output of `tidepool tune --json`. */
#ifndef TIDE_TOOLS_TUNE_JSON_H
#define TIDE_TOOLS_TUNE_JSON_H

#include "tools/plan/plan_machine.h"
#include "tools/plan/proposal_text.h"
#include "tools/tune/tune_confirm.h"

#include <stdio.h>

/* The results of a search. `candidates` and `confirmed` are [count], the best prediction first; choices that
 * do not fit come last. */
typedef struct tide_tuned {
    const char *model;
    const tide_plan_machine *machine;
    bool stopped; /* by a signal */
    const tide_candidate *candidates;
    const tide_confirmed *confirmed;
    uint32_t count, best;
    const char *command;         /* the command that trains with `best`; NULL: no choice fits */
    const tide_proposal *others; /* changes that are faster but alter the training's results */
    uint32_t other_count;
} tide_tuned;

/* Print the results as one line of JSON. NO_MEMORY; INTERNAL: the line is too long. */
TIDE_NODISCARD tide_status tide_tune_print_json(const tide_tuned *tuned, FILE *out);

#endif
