/* The open op: its chunks on the device, pinned from ready to end.
 *
 * A request is pinned whole or not at all, when all its chunks are resident and nothing of them is pending. Then its tensors
 * become COMPUTE and the host copies of what it will change are given up (manager.h: a copy in the other tier is invalid once
 * this tier's is modified; only ops that round a gradient into a chunk modify PARAM chunks, only WRITE modifies ACTIVATION
 * chunks).
 *
 * What its chunks lack is counted, and looked at again only where a chunk changed.
 *
 * Owns the open op's pins. Calls ops, places, tensors, pending, moves, future, victims, eviction_queue, tasks.
 */
#ifndef TIDE_CHUNK_REQUEST_H
#define TIDE_CHUNK_REQUEST_H

#include "chunk/eviction_queue.h"
#include "chunk/tasks.h"

typedef struct tide_request {
    const tide_ops *ops;
    tide_places *places;
    tide_tensors *tensors;
    const tide_pending *pending;
    tide_eviction_queue *eviction_queue;
    tide_tasks *tasks;
    bool open;
    bool ready;
    tide_op op;
    uint32_t slice;      /* TIDE_SLICE_NONE: none is open */
    uint32_t param_pins; /* pins [0, param_pins) are its params', the rest the open slice's */
    uint32_t pin_count;
    uint32_t pinned_count; /* all of one request are pinned at once: 0, param_pins or pin_count */
    tide_chunk *pins;
    bool tracked;        /* what its pins lack, from pinned_count on, is known: */
    uint32_t slotless;   /* pins that have no device slot */
    uint8_t *lacks;      /* per pin: which of the sets it is in */
    uint32_t *position;  /* per chunk: which pin it is, or was */
    tide_bitset sets[5]; /* of pins: request.c */
    uint64_t *words;
    uint32_t param_use,
        slice_use; /* first uses of the open op and slice in the plan; TIDE_USE_NONE: not planned */
} tide_request;

/* None open. NO_MEMORY. Zeroed ones may be destroyed, too. */
tide_status tide_request_create(tide_request *request, const tide_ops *ops,
                                tide_eviction_queue *eviction_queue, tide_tasks *tasks);
void tide_request_destroy(tide_request *request);

/* Open the op, whose turn has come (tide_future_schedule_step); no other is. */
void tide_request_open(tide_request *request, tide_op op);
/* Open a slice of the ready op, whose turn has come; none is open. What it overwrites whole is dead from now on. */
void tide_request_open_slice(tide_request *request, uint32_t slice);
/* Pin what is open if all of it is on the device, at rest, and nothing of it is pending. False if it is not, or was already. */
bool tide_request_try_pin(tide_request *request);
/* The next command for a request that is not ready; `turn` is narrowed to what may be done beside it:
 *
 *   - a requested chunk has a pending update or restore: that comes first. Meanwhile what is requested and not pending is
 *     fetched into free slots, other updates on the host whose chunks are there go on, and what is to come is fetched into
 *     slots beyond those the request will take
 *   - else every chunk that is missing is fetched into a free slot, or what is to leave anyway or else a victim is evicted,
 *     never more than slots are still missing; while one of them has no slot coming, nothing else takes slots */
bool tide_request_next(tide_request *request, tide_turn *turn, tide_command *command);
/* Release the open slice, if one is: its parts get their next states. `ends` as tide_eviction_queue_use_ended. */
void tide_request_end_slice(tide_request *request, uint64_t ends);
/* Release all pins. The op is open no more; states are the caller's to change. */
void tide_request_close(tide_request *request);

/* Does it wait for an update or a restore of one of its chunks? Until then its chunks are fair game for that task. */
bool tide_request_waits_for_pending(tide_request *request);
/* A chunk of it, which is not ready, that waits so. */
tide_chunk tide_request_lacking(tide_request *request, tide_request_wait wait);
/* Device slots that it will still take. */
uint32_t tide_request_reserved(tide_request *request);
/* An activation part's state after a slice that uses it so. */
static inline tide_tensor_state tide_state_after_slice(const tide_use *use)
{
    return use->access & TIDE_ACCESS_LAST ? TIDE_TENSOR_FREE : TIDE_TENSOR_HOLD;
}

bool tide_request_is_valid(const tide_request *request, bool deep);

#endif
