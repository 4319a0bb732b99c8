/* The machine that a plan is for: this one, measured once and stored in a file; another one, from its file;
 * or a preset with published figures. */
#ifndef TIDE_TOOLS_PLAN_MACHINE_H
#define TIDE_TOOLS_PLAN_MACHINE_H

#include "src/perf/machine_profile.h"
#include "tools/train/train_options.h"

typedef struct tide_plan_machine {
    tide_machine_profile profile;
    bool is_this;
    char device[16];                            /* on this machine; "" for another */
    char path[TIDE_MACHINE_PROFILE_PATH_BYTES]; /* the profile's file; "": none */
    char no_gpu[512];                           /* why --device auto chose the host; "" otherwise */
} tide_plan_machine;

/* Find a machine. `name` is "this", a file, or a preset. "this" means this machine with the device that `run`
 * would train on, and the kernels of the run that `options` describe are measured with it. Prints on stderr
 * what is measured, and what could not be measured or stored. ARGUMENT; statuses of measuring and reading;
 * for this machine, before anything is measured, the statuses of a run that is not possible with any
 * memory. */
TIDE_NODISCARD tide_status tide_plan_machine_find(const char *name, const tide_train_settings *run,
                                                  const tide_trainer_options *options,
                                                  tide_plan_machine *machine);
/* Sets options->free_memory_bytes, of which default budgets are shares: `ram_bytes` if not 0, else the free
 * memory of this machine or the memory in the profile's file. */
void tide_plan_machine_memory(const tide_plan_machine *machine, uint64_t ram_bytes,
                              tide_trainer_options *options);
void tide_plan_machine_free(tide_plan_machine *machine);

#endif
