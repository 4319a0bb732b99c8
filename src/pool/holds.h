/* What the open op holds: the region, its params' chunks, and behind them its slice's. Launches declare them.
 *
 * Owns the two tables. Works on the caller's thread, changes with the lock. Reads the manager's residency; calls order and
 * tracer, and the device's guard.
 */
#ifndef TIDE_POOL_HOLDS_H
#define TIDE_POOL_HOLDS_H

#include "src/pool/monitor.h"
#include "src/pool/order.h"
#include "src/pool/tracer.h"

typedef struct tide_holds {
    const tide_ground *ground;
    tide_order *order;
    const tide_tracer *tracer;
    const tide_manager *manager;
    tide_access *accesses; /* [fixed] the tables */
    tide_chunk *chunks;    /* [fixed] behind each access; TIDE_CHUNK_NONE: the region */
    uint32_t capacity;     /* [fixed] */
    uint32_t count;
    uint32_t param_count; /* of those, the region and the params */
} tide_holds;

/* Room for what the largest op holds. NO_MEMORY, leaving what destroy frees. */
tide_status tide_holds_create(tide_holds *holds, uint32_t capacity);
void tide_holds_destroy(tide_holds *holds);

/* --- [lock] --- */

/* An op begins: the region. */
static inline void tide_holds_begin(tide_holds *holds)
{
    assert(tide_monitor_is_held(NULL));
    holds->chunks[0] = TIDE_CHUNK_NONE;
    holds->accesses[0] = tide_writes(TIDE_OBJECT_REGION, holds->ground->region_object);
    holds->count = holds->param_count = 1;
}
/* And chunks from `first` to `last`, which are on the device and pinned. Whom the op's work must follow, whoever used their
 * slots, is added to `needs`. */
void tide_holds_add(tide_holds *holds, tide_chunk first, tide_chunk last, bool write, tide_needs *needs);
/* The compute stream is done with the holds from `from` on: close the work so far; mark their slots with it. The table
 * stays. */
tide_status tide_holds_release(const tide_holds *holds, uint32_t from);

/* For options.guard: let chunks of the holds from `from` to `to` be used, or not any more. Without the lock: these are many
 * commands. */
tide_status tide_holds_guard(const tide_holds *holds, uint32_t from, uint32_t to, bool accessible);
/* Is the chunk held already, for as much as this? Params that lie in one chunk follow each other. */
static inline bool tide_holds_has_last(const tide_holds *holds, tide_chunk chunk, bool write)
{
    return holds->chunks[holds->count - 1] == chunk && (!write || holds->accesses[holds->count - 1].write);
}

bool tide_holds_is_valid(const tide_holds *holds);

#endif
