/* Chooses how many slots each tier has, and the default budgets; plan.c has the rules. */
#ifndef TIDE_POOL_PLAN_H
#define TIDE_POOL_PLAN_H

#include "src/pool/context.h"

/* Compute budgets and slots from the context's options, factory and packing. With `refuse`, BUDGET if a
 * budget is too small or larger than the memory available; without, the plan is made all the same. */
TIDE_NODISCARD tide_status tide_plan_make(const tide_pool_context *context, bool refuse,
                                          tide_pool_plan *plan);

/* --- several ranks (plan_ranks.c) --- */

/* The device slots of a frame; 0: there are none. */
uint64_t tide_plan_frame_slots(const tide_pool_context *context);
/* The fewest frames with which ranks with this layout and needs can run as the options say. */
uint64_t tide_plan_least_frames(const tide_pool_context *context, const tide_layout *layout,
                                const tide_slot_needs *needs);
/* Share device slots out. First gathers run ahead if that is possible; then the rank's own chunks that ops
 * use get slots, up to `used` of them; then frames; then optimizer state, up to `full` slots of its own. */
void tide_plan_share_out(const tide_pool_context *context, uint64_t slots, uint64_t used, uint64_t full,
                         tide_pool_plan *plan);
/* Set the bytes that a step moves between ranks. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_plan_collectives(const tide_pool_context *context, tide_pool_plan *plan);

/* Upper bounds of the default budgets of device and host, given the host's free memory (0: unknown; then
 * UINT64_MAX, no bound). `available_bytes`: the device's own memory, UINT64_MAX if it shares the host's. */
uint64_t tide_plan_device_most(uint64_t free_memory_bytes, uint64_t available_bytes);
uint64_t tide_plan_host_most(uint64_t free_memory_bytes, uint64_t available_bytes, uint64_t device_bytes);

#endif
