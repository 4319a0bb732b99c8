/* Slots and budgets: plan.c says how they are chosen. */
#ifndef TIDE_POOL_PLAN_H
#define TIDE_POOL_PLAN_H

#include "src/pool/context.h"

/* Compute budgets and slots from the context's options, factory and packing. BUDGET, if `refuse`, where a budget is
 * too small or larger than what is available. */
TIDE_NODISCARD tide_status tide_plan_make(const tide_pool_context *context, bool refuse,
                                          tide_pool_plan *plan);

/* The largest default budgets beside so much free memory (0: no limit, UINT64_MAX). `available_bytes` is what the
 * device has of its own, UINT64_MAX if it shares the host's memory. */
uint64_t tide_plan_device_most(uint64_t free_memory_bytes, uint64_t available_bytes);
uint64_t tide_plan_host_most(uint64_t free_memory_bytes, uint64_t available_bytes, uint64_t device_bytes);

#endif
