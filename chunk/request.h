/* The request of the open op and its open slice: brings their chunks to the device, and pins them from when
 * all are ready until the end.
 *
 * All chunks of a request are pinned together, when all are resident and none has a pending update or
 * restore. Then its tensors become COMPUTE, and the chunks that the op will change lose their host copies,
 * which would become invalid. An op changes a PARAM chunk only if its end rounds a gradient into it, and an
 * ACTIVATION chunk only with WRITE.
 *
 * With several ranks an op's chunk is ready only when the members of its group stand in a frame, if the op
 * reads the group, and the op only when no op before it closes gradients (collectives.h).
 *
 * The request keeps sets of the chunks that are not ready, and looks again only at chunks that have changed.
 *
 * Owns the open op's pins. Calls ops, places, tensors, pending, moves, future, victims, eviction_queue,
 * tasks, and asks collectives.
 */
#ifndef TIDE_CHUNK_REQUEST_H
#define TIDE_CHUNK_REQUEST_H

#include "chunk/collectives.h"
#include "chunk/eviction_queue.h"

typedef struct tide_request {
    const tide_ops *ops;
    tide_places *places;
    tide_tensors *tensors;
    const tide_pending *pending;
    tide_eviction_queue *eviction_queue;
    tide_tasks *tasks;
    const tide_collectives *collectives; /* NULL with one rank */
    bool open;
    bool ready;
    tide_op op;
    uint32_t slice;      /* TIDE_SLICE_NONE: no slice is open */
    uint32_t param_pins; /* pins [0, param_pins) are for the op's params, the rest for the open slice */
    uint32_t pin_count;
    /* how many are really pinned: 0, param_pins or pin_count, as all of a request are pinned at once */
    uint32_t pinned_count;
    tide_chunk *pins;
    bool tracked;        /* the next four fields are up to date, for pins from pinned_count on */
    uint32_t slotless;   /* how many pins have no device slot */
    uint8_t *lacks;      /* for each pin: bit i is set if it is in set i */
    uint32_t *position;  /* for each chunk: the number of its pin in this or an earlier request */
    tide_bitset sets[6]; /* sets of pins (request.c) */
    uint64_t *words;
    /* number in the plan of the first use of the open op, and of the open slice; TIDE_USE_NONE: not
     * planned */
    uint32_t param_use, slice_use;
} tide_request;

/* Create a closed request. `collectives` is NULL with one rank. NO_MEMORY. A zeroed request may be destroyed,
 * too. */
tide_status tide_request_create(tide_request *request, const tide_ops *ops,
                                tide_eviction_queue *eviction_queue, tide_tasks *tasks,
                                const tide_collectives *collectives);
void tide_request_destroy(tide_request *request);

/* Open an op, after tide_future_schedule_step was called for it. No op may be open. */
void tide_request_open(tide_request *request, tide_op op);
/* Open a slice of the ready op, after tide_future_schedule_step was called for it. No slice may be open.
 * Content that the slice overwrites without reading becomes dead. */
void tide_request_open_slice(tide_request *request, uint32_t slice);
/* Pin all chunks of the open op or slice if each is on the device, no command on it is open and nothing is
 * pending for it. False if that is not so, or if they are pinned already. */
bool tide_request_try_pin(tide_request *request);
/* Make the next command for a request that is not ready; false if there is none at present. Forbids in `turn`
 * what would delay the request:
 *
 *   - if a requested chunk has a pending update or restore, that comes first. Meanwhile the other requested
 *     chunks are fetched into free slots, host updates whose chunks are all there run, and prefetch may use
 *     slots that the request will not need
 *   - otherwise each missing chunk is fetched into a free slot. If there are too few, chunks that the plan
 *     evicts anyway are evicted, then victims, but no more than slots are lacking; until then nothing else
 *     may take slots */
bool tide_request_next(tide_request *request, tide_turn *turn, tide_command *command);
/* If a slice is open, release its chunks and give its parts their next states. `ends` as in
 * tide_eviction_queue_use_ended. */
void tide_request_end_slice(tide_request *request, uint64_t ends);
/* Release all chunks and close the op. The caller changes the tensors' states. */
void tide_request_close(tide_request *request);

/* Does the request wait for an update or a restore of one of its chunks? Meanwhile that task may take the
 * request's slots. */
bool tide_request_waits_for_pending(tide_request *request);
/* Does the request wait for a collective to be issued? */
bool tide_request_waits_for_peers(tide_request *request);
/* Does this pin's chunk wait for the gather of its group? */
bool tide_request_lacks_group(const tide_request *request, uint32_t pin);
/* A chunk because of which the request, which must not be ready, waits for `wait`. */
tide_chunk tide_request_lacking(tide_request *request, tide_request_wait wait);
/* The number of device slots that the request still needs. */
uint32_t tide_request_reserved(tide_request *request);
/* The state of an activation part after a slice that has used it like this. */
static inline tide_tensor_state tide_state_after_slice(const tide_use *use)
{
    return use->access & TIDE_ACCESS_LAST ? TIDE_TENSOR_FREE : TIDE_TENSOR_HOLD;
}

bool tide_request_is_valid(const tide_request *request, bool deep);

#endif
