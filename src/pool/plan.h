/* Chooses how many slots each tier has, and the default budgets; plan.c has the rules. */
#ifndef TIDE_POOL_PLAN_H
#define TIDE_POOL_PLAN_H

#include "src/pool/context.h"

/* Compute budgets and slots from the context's options, factory and packing. With `refuse`, BUDGET if a
 * budget is too small or larger than the memory available; without, the plan is made all the same. */
TIDE_NODISCARD tide_status tide_plan_make(const tide_pool_context *context, bool refuse,
                                          tide_pool_plan *plan);

/* Upper bounds of the default budgets of device and host, given the host's free memory (0: unknown; then
 * UINT64_MAX, no bound). `available_bytes`: the device's own memory, UINT64_MAX if it shares the host's. */
uint64_t tide_plan_device_most(uint64_t free_memory_bytes, uint64_t available_bytes);
uint64_t tide_plan_host_most(uint64_t free_memory_bytes, uint64_t available_bytes, uint64_t device_bytes);

#endif
