/* The output of `tidepool plan`: text, or one line of JSON with the same facts. */
#ifndef TIDE_TOOLS_PLAN_PRINT_H
#define TIDE_TOOLS_PLAN_PRINT_H

#include "tools/plan/proposal_text.h"

#include <stdio.h>

/* A run on a machine, and the predictions for it. */
typedef struct tide_plan {
    const tide_trainer_options *options;
    const tide_machine_profile *profile;
    const char *device; /* on this machine; "" for another */
    const char *no_gpu; /* why --device auto chose the host; "" otherwise */
    bool fits;
    char refusal[1024]; /* the reason, if it does not fit */
    tide_performance performance;
    bool has_free_batch;
    uint64_t free_batch; /* tokens from which offloading costs nothing; 0: none */
    /* changes that make the run faster or, if it does not fit, make it fit */
    tide_proposal proposals[TIDE_PROPOSALS];
    uint32_t proposal_count;
} tide_plan;

/* Print model, machine, and the table of bytes. INTERNAL if they do not add up (train_report.h). */
TIDE_NODISCARD tide_status tide_plan_print_memory(const tide_plan *plan, FILE *out);
/* Print, with several ranks, how they divide the model and the bytes that a step moves between them. */
void tide_plan_print_ranks(const tide_plan *plan, FILE *out);
void tide_plan_print_time(const tide_plan *plan, FILE *out);
/* Print the batch from which offloading costs nothing, and the proposals. */
void tide_plan_print_advice(const tide_plan *plan, FILE *out);
/* Print, for a run that does not fit, the reason and the ways out. Replaces the three calls above. */
void tide_plan_print_refusal(const tide_plan *plan, FILE *out);

/* Print the table of --compare: a head, then a line for each budget. `refusal` is NULL if the run fits. */
void tide_plan_print_row_head(FILE *out);
void tide_plan_print_row(const char *name, const tide_performance *performance, const char *refusal,
                         FILE *out);

/* Print the plan as one line of JSON. INTERNAL: the line is too long. */
TIDE_NODISCARD tide_status tide_plan_print_json(const tide_plan *plan, FILE *out);

#endif
