/* Calls for the rest of src/ that the public header lacks: a plan that is refused like a pool, a pool's
 * packing and chunk states for the trace's tables, and access to its device for predictions.
 */
#ifndef TIDE_POOL_INSPECT_H
#define TIDE_POOL_INSPECT_H

#include "offload/device.h"
#include "src/pool/packing.h"
#include "tidepool/pool.h"

/* Like tide_pool_plan_make, but BUDGET, with its message, if tide_pool_create would refuse the budgets. */
TIDE_NODISCARD tide_status tide_pool_plan_check(const tide_pool_options *options,
                                                tide_description *description, tide_pool_plan *plan);

/* The layout of params, activations and region; owned by the pool. */
const tide_packing *tide_pool_packing(const tide_pool *pool);
/* Send to options.trace, if set, an event for every chunk that has a slot or values on either tier. Caller's
 * thread. */
void tide_pool_trace_chunks(const tide_pool *pool);

/* How long create took to pin the host slots; all 0 on a device that pins nothing. */
tide_pinning_times tide_pool_pinning(const tide_pool *pool);

/* Call `watch` for every command and wait that ends, on the streams' threads; NULL: stop. No command may be
 * running during this call. */
void tide_pool_watch(tide_pool *pool, tide_device_observer watch, void *context);
/* Change the machine that a pool's null device simulates (tide_device_null_imitate). STATE if the pool's
 * device is not null. */
TIDE_NODISCARD tide_status tide_pool_imitate(tide_pool *pool, const tide_device_options *machine);

#endif
