/* The machine that a plan is for: this one, measured and kept, or another's file, or published figures. */
#ifndef TIDE_TOOLS_PLAN_MACHINE_H
#define TIDE_TOOLS_PLAN_MACHINE_H

#include "src/perf/machine_profile.h"
#include "tools/train/train_options.h"

typedef struct tide_plan_machine {
    tide_machine_profile profile;
    bool is_this;
    char device[16];                            /* of this machine; "" of another */
    char path[TIDE_MACHINE_PROFILE_PATH_BYTES]; /* of the file; "" without one */
    char no_gpu[512];                           /* why "auto" took the host; "" otherwise */
} tide_plan_machine;

/* `name`: "this", a file, or a preset; of this machine the device that `run` means, as it trains. What is measured, and what could not be
 * measured or kept, is told on stderr; kernels of the run that `options` describe are measured with it. ARGUMENT, statuses of
 * measuring and reading, and of this machine, before anything is measured, what refuses the run whatever its memory. */
TIDE_NODISCARD tide_status tide_plan_machine_find(const char *name, const tide_train_settings *run,
                                                  const tide_trainer_options *options,
                                                  tide_plan_machine *machine);
/* What default budgets of a run on it are shares of: `ram_bytes` where given, else what is free here, or what the file says. */
void tide_plan_machine_memory(const tide_plan_machine *machine, uint64_t ram_bytes,
                              tide_trainer_options *options);
void tide_plan_machine_free(tide_plan_machine *machine);

#endif
