/* The struct of the manager with all its objects, for the manager's files and the tests. README.md shows
 * which object calls which. The manager itself owns only these: which step is open, whether the last step's
 * updates wait for release or skip, whether the link is busy, and whether anything has changed since next()
 * returned no command. */
#ifndef TIDE_CHUNK_MANAGER_INTERNAL_H
#define TIDE_CHUNK_MANAGER_INTERNAL_H

#include "chunk/least.h"
#include "chunk/manager.h"
#include "chunk/prefetch.h"
#include "chunk/request.h"

typedef enum tide_step_phase {
    TIDE_PHASE_BETWEEN = 0,
    TIDE_PHASE_FORWARD, /* a forward-only pass is open */
    TIDE_PHASE_TRAINING,
    TIDE_PHASE_RELEASE_PENDING, /* a step has ended; its updates are neither released nor skipped */
} tide_step_phase;

struct tide_manager {
    const tide_layout *layout;
    tide_ops ops;
    tide_places places;
    tide_tensors tensors;
    tide_pending pending;
    tide_moves moves;
    tide_future future;
    tide_victims victims;
    tide_eviction_queue eviction_queue;
    tide_tasks tasks;
    tide_collectives collectives; /* zeroed with one rank */
    tide_request request;
    tide_prefetch prefetch;
    tide_least *least; /* NULL before tide_manager_watch */

    bool deep_checks; /* walk every structure at every mutation; for tests */
    tide_step_phase phase;
    bool updates_wait;      /* whether the open training step's updates wait for release */
    uint64_t step;          /* number of the last step begun, of either kind */
    bool in_busy, out_busy; /* the link to the device, to the host is busy */
    bool idle;              /* next() returned no command, and nothing has changed since */
    tide_manager_counters counters;
};

static inline bool tide_manager_step_is_open(const tide_manager *manager)
{
    return manager->phase == TIDE_PHASE_FORWARD || manager->phase == TIDE_PHASE_TRAINING;
}

/* Check the invariants of every object, and those between objects. */
bool tide_manager_is_valid(const tide_manager *manager);

static inline bool tide_manager_has_peers(const tide_manager *manager)
{
    return tide_layout_shard(manager->layout).ranks > 1;
}

/* Call when the REDUCE of the op that closes has been issued: the second part of that op's end. */
void tide_manager_op_closed(tide_manager *manager);
/* Call after every change, so that next() looks for commands again. Asserts validity. */
void tide_manager_changed(tide_manager *manager);

#endif
