/* Bytes of the region in and out, through a buffer on the host of two halves.
 *
 * Owns the halves and who used them last. Works on the caller's thread, without the lock; calls launch, order, monitor and the
 * device.
 */
#ifndef TIDE_POOL_STAGING_H
#define TIDE_POOL_STAGING_H

#include "src/pool/launch.h"
#include "src/pool/monitor.h"

typedef struct tide_staging {
    const tide_ground *ground;
    tide_monitor *monitor;
    tide_order *order;
    const tide_launcher *launcher;
    char *halves[2]; /* [fixed] used in turn by writes; reads take the first */
    uint32_t objects[2];
    uint64_t numbers[2]; /* pieces of the compute stream: the last write of each */
    uint32_t next;
} tide_staging;

/* NO_MEMORY, BUDGET. The device's close frees it. */
tide_status tide_staging_create(tide_staging *staging);
/* In order with kernels. */
tide_status tide_staging_write(tide_staging *staging, char *region, const char *source, size_t bytes);
tide_status tide_staging_read(tide_staging *staging, char *target, const char *region, size_t bytes);

#endif
