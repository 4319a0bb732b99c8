/* The open op: its chunks on the device, pinned from ready to end.
 *
 * A request is pinned whole or not at all, when all its chunks are resident and none of them has a pending
 * update or restore. Then its tensors become COMPUTE, and the chunks that it will change lose their host
 * copies (manager.h: a copy in the other tier is invalid once this tier's is modified; only ops that round a
 * gradient into a chunk modify PARAM chunks, only WRITE modifies ACTIVATION chunks).
 *
 * The request counts the chunks that it lacks, and looks again only at chunks that changed.
 *
 * Owns the open op's pins. Calls ops, places, tensors, pending, moves, future, victims, eviction_queue,
 * tasks.
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
    uint32_t slice;      /* TIDE_SLICE_NONE: no slice is open */
    uint32_t param_pins; /* pins [0, param_pins) are for the op's params, the others for the open slice */
    uint32_t pin_count;
    /* pins that hold: 0, param_pins or pin_count, since all of a request are pinned at once */
    uint32_t pinned_count;
    tide_chunk *pins;
    bool tracked;        /* whether the next four fields are up to date for the pins from pinned_count on */
    uint32_t slotless;   /* pins that have no device slot */
    uint8_t *lacks;      /* for each pin: the sets that it is in */
    uint32_t *position;  /* for each chunk: the number of its pin, now or in an earlier request */
    tide_bitset sets[5]; /* sets of pins (request.c) */
    uint64_t *words;
    /* the first uses of the open op and of the open slice in the plan; TIDE_USE_NONE: not planned */
    uint32_t param_use, slice_use;
} tide_request;

/* Create a request that is not open. NO_MEMORY. A zeroed one may be destroyed, too. */
tide_status tide_request_create(tide_request *request, const tide_ops *ops,
                                tide_eviction_queue *eviction_queue, tide_tasks *tasks);
void tide_request_destroy(tide_request *request);

/* Open the op that tide_future_schedule_step has just named. No op may be open. */
void tide_request_open(tide_request *request, tide_op op);
/* Open a slice of the ready op, which tide_future_schedule_step has just named. No slice may be open. Content
 * that the slice overwrites as a whole is dead from now on. */
void tide_request_open_slice(tide_request *request, uint32_t slice);
/* Pin the open op or slice if all its chunks are on the device, at rest, and have nothing pending. False if
 * they are not, or were pinned before. */
bool tide_request_try_pin(tide_request *request);
/* The next command for a request that is not ready. It narrows `turn` to the work that may be done beside it:
 *
 *   - a requested chunk has a pending update or restore: that comes first. Meanwhile the other requested
 *     chunks are fetched into free slots, other updates on the host whose chunks are there go on, and
 *     prefetch uses slots beyond those that the request will take
 *   - else every chunk that is missing is fetched into a free slot; or a chunk that is to leave anyway, or
 *     else a victim, is evicted, never more of them than slots are still missing; while a missing chunk has
 *     no slot coming, nothing else takes slots */
bool tide_request_next(tide_request *request, tide_turn *turn, tide_command *command);
/* Release the open slice, if one is: its parts get their next states. `ends` as
 * tide_eviction_queue_use_ended. */
void tide_request_end_slice(tide_request *request, uint64_t ends);
/* Release all pins and close the op. The caller changes the tensors' states. */
void tide_request_close(tide_request *request);

/* Does the request wait for an update or a restore of one of its chunks? Until that is done its task may take
 * the request's chunks. */
bool tide_request_waits_for_pending(tide_request *request);
/* A chunk of the request, which must not be ready, that waits for this. */
tide_chunk tide_request_lacking(tide_request *request, tide_request_wait wait);
/* The number of device slots that the request will still take. */
uint32_t tide_request_reserved(tide_request *request);
/* An activation part's state after a slice with this use of it. */
static inline tide_tensor_state tide_state_after_slice(const tide_use *use)
{
    return use->access & TIDE_ACCESS_LAST ? TIDE_TENSOR_FREE : TIDE_TENSOR_HOLD;
}

bool tide_request_is_valid(const tide_request *request, bool deep);

#endif
