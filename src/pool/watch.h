/* What predictions ask of a pool beside the public header: to hear of every command, and to play on another machine. */
#ifndef TIDE_POOL_WATCH_H
#define TIDE_POOL_WATCH_H

#include "offload/device.h"
#include "tidepool/pool.h"

/* Tell `watch` of every command that ends, and wait, on the streams' threads; NULL: nobody any more. The pool is sealed and
 * nothing runs. */
void tide_pool_watch(tide_pool *pool, tide_device_observer watch, void *context);

/* Let a sealed pool on the null device play on this machine from now on (tide_device_null_imitate). STATE: it is on another. */
TIDE_NODISCARD tide_status tide_pool_imitate(tide_pool *pool, const tide_device_options *machine);

#endif
