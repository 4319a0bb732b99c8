/* What `tidepool tune --json` tells. */
#ifndef TIDE_TOOLS_TUNE_JSON_H
#define TIDE_TOOLS_TUNE_JSON_H

#include "tools/plan/plan_advice.h"
#include "tools/plan/plan_machine.h"
#include "tools/tune/tune_confirm.h"

#include <stdio.h>

/* All that a search found. `candidates` and `confirmed` are [count], the best prediction first; what does not fit comes last. */
typedef struct tide_tuned {
    const char *model;
    const tide_plan_machine *machine;
    bool stopped; /* by a signal */
    const tide_candidate *candidates;
    const tide_confirmed *confirmed;
    uint32_t count, best;
    const char *command;         /* that trains as `best` does; NULL: nothing fits */
    const tide_proposal *others; /* what would be faster and changes numerics */
    uint32_t other_count;
} tide_tuned;

/* One line. NO_MEMORY; INTERNAL: it is too long. */
TIDE_NODISCARD tide_status tide_tune_print_json(const tide_tuned *tuned, FILE *out);

#endif
