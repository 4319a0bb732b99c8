/* What `tidepool plan` tells, for people and as one line of JSON with the same facts. */
#ifndef TIDE_TOOLS_PLAN_PRINT_H
#define TIDE_TOOLS_PLAN_PRINT_H

#include "tools/plan/plan_advice.h"

#include <stdio.h>

/* A run on a machine, and all that was found out about it. */
typedef struct tide_plan {
    const tide_trainer_options *options;
    const tide_machine_profile *profile;
    const char *device; /* of this machine; "" of another */
    const char *no_gpu; /* why it is the host; "" otherwise */
    bool fits;
    char refusal[1024]; /* if not */
    tide_performance performance;
    bool has_free_batch;
    uint64_t free_batch;                     /* 0: none */
    tide_proposal proposals[TIDE_PROPOSALS]; /* changes, or ways out */
    uint32_t proposal_count;
} tide_plan;

/* Model, machine, and bytes. INTERNAL where they do not add up (train_report.h). */
TIDE_NODISCARD tide_status tide_plan_print_memory(const tide_plan *plan, FILE *out);
void tide_plan_print_time(const tide_plan *plan, FILE *out);
/* The rest: the batch in which offloading costs nothing, and proposals. */
void tide_plan_print_advice(const tide_plan *plan, FILE *out);
/* In place of all three. */
void tide_plan_print_refusal(const tide_plan *plan, FILE *out);

/* Of --compare: a line each, below a head. `refusal` NULL: it fits. */
void tide_plan_print_row_head(FILE *out);
void tide_plan_print_row(const char *name, const tide_performance *performance, const char *refusal,
                         FILE *out);

/* INTERNAL: the line is too long. */
TIDE_NODISCARD tide_status tide_plan_print_json(const tide_plan *plan, FILE *out);

#endif
