/* Shows a manager's chunks, requests and plans to observers (trace and telemetry). No call here changes a
 * decision of the manager. */
#ifndef TIDE_CHUNK_WATCH_H
#define TIDE_CHUNK_WATCH_H

#include "chunk/manager.h"

typedef struct tide_chunk_view {
    tide_stand device, host;
    uint32_t device_slot, host_slot; /* TIDE_SLOT_NONE: none */
    tide_content content;
    uint32_t closed; /* of a PARAM chunk: how many of its params' gradients are complete */
    bool pinned;     /* an op or a task holds it */
    bool pending;    /* an update or a restore of the chunk is pending */
} tide_chunk_view;

/* Return the next chunk that has changed since this call last returned it, and its state; false: there is
 * none. A chunk may be returned although its state is the same. */
bool tide_manager_changed_chunk(tide_manager *manager, tide_chunk *chunk, tide_chunk_view *view);
/* Let tide_manager_changed_chunk return every chunk once more. */
void tide_manager_changed_all(tide_manager *manager);
/* Does the param's place hold its gradient? */
bool tide_manager_has_gradient(const tide_manager *manager, uint32_t param);
/* List the chunks that keep the open request from being ready, one per call, each with the reason why it is
 * not ready. Begin with *i = 0; false: there are no more. */
bool tide_manager_lacks(tide_manager *manager, uint32_t *i, tide_chunk *chunk, tide_request_wait *wait);
/* How many chunks the open request has (the open op's params, or its open slice). */
uint32_t tide_manager_requested(const tide_manager *manager);
/* Is a step open that has followed the recording so far? */
bool tide_manager_follows(const tide_manager *manager);

/* The plan for training steps, or for forward-only passes; false if there is none. */
typedef struct tide_manager_plan {
    uint64_t number;                /* counts plans: 1 for the first */
    uint64_t copies_in, copies_out; /* chunks copied per step */
    uint64_t least_in, least_out;   /* lower bounds on them (least.h); 0 before tide_manager_plan_least */
} tide_manager_plan;

bool tide_manager_plan_get(const tide_manager *manager, bool training, tide_manager_plan *plan);
/* Set least_in and least_out of a plan that tide_manager_plan_get returned; least.h says how long that takes.
 * Call tide_manager_watch before. */
void tide_manager_plan_least(const tide_manager *manager, bool training, tide_manager_plan *plan);
/* Allocate the memory that tide_manager_plan_least needs. NO_MEMORY. */
tide_status tide_manager_watch(tide_manager *manager);

#endif
