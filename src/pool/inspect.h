/* Calls beside the public header, for the rest of src/: the inside of a pool for the trace's tables, and its
 * device for predictions.
 */
#ifndef TIDE_POOL_INSPECT_H
#define TIDE_POOL_INSPECT_H

#include "offload/device.h"
#include "src/pool/packing.h"
#include "tidepool/pool.h"

/* Where everything lies; owned by the pool. */
const tide_packing *tide_pool_packing(const tide_pool *pool);
/* Send options.trace, if set, an event for every chunk that is anywhere. Caller's thread. */
void tide_pool_trace_chunks(const tide_pool *pool);

/* How long create took to pin the host slots; all 0 on a device that pins nothing. */
tide_pinning_times tide_pool_pinning(const tide_pool *pool);

/* Call `watch` for every command and wait that ends, on the streams' threads; NULL: stop. Nothing may run. */
void tide_pool_watch(tide_pool *pool, tide_device_observer watch, void *context);
/* Let a pool on the null device play on this machine from now on (tide_device_null_imitate). STATE on another
 * device. */
TIDE_NODISCARD tide_status tide_pool_imitate(tide_pool *pool, const tide_device_options *machine);

#endif
