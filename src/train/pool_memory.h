/* The host's free memory, of which a pool's default budgets are shares. */
#ifndef TIDE_TRAIN_POOL_MEMORY_H
#define TIDE_TRAIN_POOL_MEMORY_H

#include "src/pool/device_factory.h"

/* Set pool->free_memory_bytes to the system's free memory unless it has a value. Sets it to 0 if no default
 * budget needs it: those that do (the host's, and the device's if both share one memory) are given, or a null
 * device imitates none. UNSUPPORTED: the system does not report its free memory. */
TIDE_NODISCARD tide_status tide_pool_memory_find(const tide_device_factory *factory, bool imitates,
                                                 tide_pool_options *pool);

#endif
