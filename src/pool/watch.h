/* Calls for predictions beside the public header: to observe every command, and to play on another
 * machine. */
#ifndef TIDE_POOL_WATCH_H
#define TIDE_POOL_WATCH_H

#include "offload/device.h"
#include "tidepool/pool.h"

/* Call `watch` for every command and wait that ends, on the streams' threads; NULL: stop. The pool must be
 * sealed and nothing may run. */
void tide_pool_watch(tide_pool *pool, tide_device_observer watch, void *context);

/* Let a sealed pool on the null device play on this machine from now on (tide_device_null_imitate). STATE on
 * another device. */
TIDE_NODISCARD tide_status tide_pool_imitate(tide_pool *pool, const tide_device_options *machine);

#endif
