#include "chunk/request.h"

#include <assert.h>
#include <stdlib.h>

/* The sets of pins. A pin is one chunk of the request. */
enum {
    LACKING = 0, /* the chunk is not ready: not on the device, or with an open command, or PENDING */
    PENDING,
    SLOTLESS, /* the chunk has no device slot */
    MISSING,  /* the chunk can be fetched into a free slot */
    IN_PLACE, /* the chunk can be fetched into the slot that it has */
    APART,    /* the members of the chunk's group are in no frame */
    SETS,
};

tide_status tide_request_create(tide_request *request, const tide_ops *ops,
                                tide_eviction_queue *eviction_queue, tide_tasks *tasks,
                                const tide_collectives *collectives)
{
    tide_op op;
    const uint32_t most = tide_ops_largest(ops, &op);
    *request = (tide_request){.ops = ops,
                              .places = tasks->places,
                              .tensors = tasks->tensors,
                              .pending = tasks->pending,
                              .eviction_queue = eviction_queue,
                              .tasks = tasks,
                              .collectives = collectives,
                              .slice = TIDE_SLICE_NONE};
    request->pins = calloc(most + 1u, sizeof *request->pins);
    request->lacks = calloc(most + 1u, sizeof *request->lacks);
    request->position = calloc(request->places->chunk_count, sizeof *request->position);
    _Static_assert(sizeof request->sets / sizeof request->sets[0] == SETS, "a set each");
    request->words = tide_bitsets_create(request->sets, SETS, most);
    if (!request->pins || !request->lacks || !request->position || !request->words)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %u pins", most);
    return TIDE_OK;
}

void tide_request_destroy(tide_request *request)
{
    free(request->pins);
    free(request->lacks);
    free(request->position);
    free(request->words);
    *request = (tide_request){.open = false};
}

/* --- chunks that the request lacks --- */

bool tide_request_lacks_group(const tide_request *request, uint32_t pin)
{
    return request->collectives != NULL && pin < request->param_pins &&
           request->ops->records[request->op].reads[pin] &&
           !tide_frames_has(&request->collectives->frames, request->pins[pin]);
}

/* The sets to which a pin belongs: bit i for set i. */
static uint32_t lacks_of(const tide_request *r, uint32_t pin)
{
    const tide_chunk chunk = r->pins[pin];
    const tide_place *place = tide_place_of(r->places, chunk);
    const bool pending = tide_pending_has(r->pending, chunk), rests = tide_place_is_resident(place);
    const bool slotless = place->slot[TIDE_TIER_DEVICE] == TIDE_SLOT_NONE;
    const bool missing = !pending && !place->busy && !tide_place_has(place, TIDE_TIER_DEVICE);
    return (uint32_t)(!rests || pending) << LACKING | (uint32_t)pending << PENDING |
           (uint32_t)slotless << SLOTLESS | (uint32_t)missing << (place->stale ? IN_PLACE : MISSING) |
           (uint32_t)tide_request_lacks_group(r, pin) << APART;
}

static void sort(tide_request *r, uint32_t pin)
{
    assert(pin >= r->pinned_count && pin < r->pin_count);
    const uint32_t was = r->lacks[pin], is = lacks_of(r, pin);
    tide_bitsets_move(r->sets, pin, was, is);
    r->slotless += (is >> SLOTLESS & 1u) - (was >> SLOTLESS & 1u);
    assert(r->slotless <= r->pin_count - r->pinned_count);
    r->lacks[pin] = (uint8_t)is;
}

static void track(tide_request *r)
{
    while (tide_places_next_changed(r->places, TIDE_SUBSCRIBER_REQUEST) != TIDE_CHUNK_NONE)
        ;
    for (int set = 0; set < SETS; set++)
        tide_bitset_clear(&r->sets[set]);
    r->slotless = 0;
    r->tracked = true;
    for (uint32_t pin = r->pinned_count; pin < r->pin_count; pin++) {
        r->lacks[pin] = 0;
        r->position[r->pins[pin]] = pin;
        sort(r, pin);
    }
}

static void look_again(tide_request *r)
{
    tide_chunk chunk;
    if (!r->tracked)
        track(r);
    while ((chunk = tide_places_next_changed(r->places, TIDE_SUBSCRIBER_REQUEST)) != TIDE_CHUNK_NONE) {
        const uint32_t pin = r->position[chunk];
        if (pin >= r->pinned_count && pin < r->pin_count && r->pins[pin] == chunk)
            sort(r, pin);
    }
}

static bool is_waiting(const tide_request *r)
{
    return r->open && !r->ready;
}

bool tide_request_waits_for_pending(tide_request *request)
{
    if (!is_waiting(request))
        return false;
    look_again(request);
    return !tide_bitset_is_empty(&request->sets[PENDING]);
}

static bool waits_for_close(const tide_request *r)
{
    return r->collectives != NULL && r->collectives->closing != TIDE_OP_NONE;
}

bool tide_request_waits_for_peers(tide_request *request)
{
    if (!is_waiting(request))
        return false;
    look_again(request);
    return waits_for_close(request) || !tide_bitset_is_empty(&request->sets[APART]);
}

tide_chunk tide_request_lacking(tide_request *request, tide_request_wait wait)
{
    static const int sets[] = {[TIDE_REQUEST_PENDING] = PENDING,
                               [TIDE_REQUEST_SLOT] = SLOTLESS,
                               [TIDE_REQUEST_MOVE] = LACKING,
                               [TIDE_REQUEST_PEERS] = APART};
    const int set = sets[wait];
    look_again(request);
    const uint32_t pin = tide_bitset_from(&request->sets[set], 0);
    return pin == TIDE_USE_NONE ? TIDE_CHUNK_NONE : request->pins[pin];
}

uint32_t tide_request_reserved(tide_request *request)
{
    if (!is_waiting(request))
        return 0;
    look_again(request);
    return request->slotless;
}

/* --- pins --- */

static void request_chunks(tide_request *r, const tide_chunk *chunks, uint32_t count)
{
    assert(r->pinned_count == r->pin_count);
    uint32_t marks = 0;
    for (uint32_t i = 0; i < count; i++) {
        const tide_place *place = tide_place_of(r->places, chunks[i]);
        assert(!(place->marks & TIDE_MARK_REQUESTED));
        r->pins[r->pin_count++] = chunks[i];
        marks |= place->marks;
        tide_places_request(r->places, chunks[i], true);
    }
    if (marks & TIDE_MARKS_QUEUED)
        tide_eviction_queue_let_stay(r->eviction_queue, chunks, count);
    r->ready = r->tracked = false;
}

/* Unpin the request's chunks from pin number `from` on, and clear their marks. */
static void release_chunks(tide_request *r, uint32_t from)
{
    assert(from <= r->pin_count && r->pinned_count <= r->pin_count);
    for (uint32_t i = from; i < r->pin_count; i++) {
        tide_places_request(r->places, r->pins[i], false);
        if (i < r->pinned_count)
            tide_places_unpin(r->places, r->pins[i], TIDE_TIER_DEVICE);
    }
    r->pin_count = from;
    if (r->pinned_count > from)
        r->pinned_count = from;
}

/* Drop the chunk's host copy, because the op will change the device copy. */
static void drop_host_copy(tide_request *r, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(r->places, chunk);
    assert(place->pins[TIDE_TIER_DEVICE] > 0 && tide_place_is_resident(place));
    if (place->slot[TIDE_TIER_HOST] != TIDE_SLOT_NONE)
        tide_places_release(r->places, chunk, TIDE_TIER_HOST);
}

static void start_op(tide_request *r, const tide_op_record *op)
{
    for (uint32_t i = 0; i < op->param_count; i++)
        tide_tensors_set_param(r->tensors, op->params[i].tensor, TIDE_TENSOR_COMPUTE);
    for (uint32_t i = 0; i < op->chunks.count; i++)
        if (op->modifies[i])
            drop_host_copy(r, op->chunks.list[i]);
}

static void start_slice(tide_request *r, const tide_op_record *op)
{
    for (uint32_t i = 0; i < op->activation_count; i++) {
        const tide_use *use = &op->activations[i];
        tide_chunk first, last;
        tide_tensors_set_part(r->tensors, use->tensor, r->slice, TIDE_TENSOR_COMPUTE);
        tide_layout_activation_chunks(r->ops->layout, use->tensor, r->slice, &first, &last);
        for (tide_chunk chunk = first; use->access & TIDE_ACCESS_WRITE && chunk <= last; chunk++)
            drop_host_copy(r, chunk);
    }
}

/* Can all chunks be pinned: is each on the device, without an open command, with nothing pending, and with
 * the members of its group? */
static bool is_complete(tide_request *r)
{
    if (waits_for_close(r))
        return false;
    if (r->tracked) {
        look_again(r);
        return tide_bitset_is_empty(&r->sets[LACKING]) && tide_bitset_is_empty(&r->sets[APART]);
    }
    for (uint32_t i = r->pinned_count; i < r->pin_count; i++)
        if (!tide_place_is_resident(tide_place_of(r->places, r->pins[i])) ||
            tide_pending_has(r->pending, r->pins[i]) || tide_request_lacks_group(r, i))
            return false;
    return true;
}

bool tide_request_try_pin(tide_request *request)
{
    if (!is_waiting(request) || !is_complete(request))
        return false;
    for (uint32_t i = request->pinned_count; i < request->pin_count; i++)
        tide_places_pin(request->places, request->pins[i], TIDE_TIER_DEVICE);
    request->pinned_count = request->pin_count;
    request->ready = true;
    if (request->slice == TIDE_SLICE_NONE)
        start_op(request, &request->ops->records[request->op]);
    else
        start_slice(request, &request->ops->records[request->op]);
    return true;
}

/* --- open and close --- */

void tide_request_open(tide_request *request, tide_op op)
{
    const tide_op_record *record = &request->ops->records[op];
    assert(!request->open && request->pin_count == 0 && request->pinned_count == 0);
    assert(!request->ready && op < request->ops->count);
    request->open = true;
    request->op = op;
    request->slice = TIDE_SLICE_NONE;
    request_chunks(request, record->chunks.list, record->chunks.count);
    request->param_pins = request->pin_count;
    request->param_use = tide_future_planned_use(request->eviction_queue->future);
}

/* Set parts that the slice overwrites without reading to FREE, so that no move copies their old content. */
static void forget_overwritten(tide_request *r, const tide_op_record *op)
{
    for (uint32_t i = 0; i < op->activation_count; i++) {
        const tide_use *use = &op->activations[i];
        if (!(use->access & TIDE_ACCESS_READ) &&
            tide_tensors_part(r->tensors, use->tensor, r->slice) != TIDE_TENSOR_FREE)
            tide_tensors_set_part(r->tensors, use->tensor, r->slice, TIDE_TENSOR_FREE);
    }
}

void tide_request_open_slice(tide_request *request, uint32_t slice)
{
    assert(request->open && request->ready && request->slice == TIDE_SLICE_NONE);
    assert(request->pin_count == request->param_pins && slice < request->ops->records[request->op].slices);
    request->slice = slice;
    forget_overwritten(request, &request->ops->records[request->op]);
    const tide_schedule_step schedule_step = {.op = request->op, .slice = slice};
    const tide_chunk_set *set = tide_ops_step_chunks(request->ops, schedule_step);
    request_chunks(request, set->list, set->count);
    request->slice_use = tide_future_planned_use(request->eviction_queue->future);
}

void tide_request_end_slice(tide_request *request, uint64_t ends)
{
    const tide_op_record *op = &request->ops->records[request->op];
    if (request->slice == TIDE_SLICE_NONE)
        return;
    assert(request->open && request->ready && request->pin_count >= request->param_pins);
    const uint32_t count = request->pin_count - request->param_pins;
    release_chunks(request, request->param_pins);
    for (uint32_t i = 0; i < op->activation_count; i++)
        tide_tensors_set_part(request->tensors, op->activations[i].tensor, request->slice,
                              tide_state_after_slice(&op->activations[i]));
    request->slice = TIDE_SLICE_NONE;
    tide_eviction_queue_use_ended(request->eviction_queue, request->pins + request->param_pins, count,
                                  request->slice_use, ends);
}

void tide_request_close(tide_request *request)
{
    release_chunks(request, 0);
    request->slice = TIDE_SLICE_NONE;
    request->open = request->ready = false;
}

/* --- next --- */

/* Make a fetch of the first requested chunk that is missing, has nothing pending, and has kept a slot or can
 * get a free one. */
static bool fetch_with_slot(tide_request *r, tide_command *command)
{
    look_again(r);
    const bool free = tide_places_free(r->places, TIDE_TIER_DEVICE) > 0;
    const uint32_t in_place = tide_bitset_from(&r->sets[IN_PLACE], 0),
                   missing = free ? tide_bitset_from(&r->sets[MISSING], 0) : TIDE_USE_NONE;
    const uint32_t pin = in_place < missing ? in_place : missing;
    if (pin == TIDE_USE_NONE)
        return false;
    assert(pin >= r->pinned_count && pin < r->pin_count && !tide_pending_has(r->pending, r->pins[pin]));
    tide_moves_fetch(r->tasks->moves, r->pins[pin], TIDE_REASON_DEMAND, command);
    return true;
}

bool tide_request_next(tide_request *request, tide_turn *turn, tide_command *command)
{
    const tide_victim_rule rule = {.spared = TIDE_MARK_REQUESTED};
    if (!is_waiting(request))
        return false;
    assert(request->tracked && turn->request_yields == !tide_bitset_is_empty(&request->sets[PENDING]));
    if (turn->request_yields) {
        if (tide_tasks_next_ready(request->tasks, true, command) ||
            tide_tasks_next_assembly(request->tasks, turn, true, command))
            return true;
        /* While a device task is being assembled, the request leaves it the slots. */
        turn->assembles = false;
        turn->prefetches = request->tasks->assembling[TIDE_TIER_DEVICE].task_count == 0;
        return turn->prefetches && fetch_with_slot(request, command);
    }
    if (fetch_with_slot(request, command))
        return true;
    const uint32_t missing = tide_request_reserved(request);
    turn->assembles = turn->prefetches = missing == 0;
    if (missing <= request->tasks->moves->evictions_open)
        return false;
    return tide_eviction_queue_next(request->eviction_queue, TIDE_MARK_EVICTING, false, command) ||
           tide_victims_evict_reclaimable(request->tasks->victims, rule, TIDE_REASON_DEMAND, command) ||
           tide_eviction_queue_next(request->eviction_queue, TIDE_MARK_EVICTING, true, command) ||
           tide_victims_evict(request->tasks->victims, rule, TIDE_REASON_DEMAND, command);
}

bool tide_request_is_valid(const tide_request *request, bool deep)
{
    if (request->pinned_count > request->pin_count ||
        (request->ready && (!request->open || request->pinned_count != request->pin_count)))
        return false;
    for (uint32_t i = 0; deep && i < request->pinned_count; i++) {
        const tide_place *place = tide_place_of(request->places, request->pins[i]);
        if (!tide_place_is_resident(place) || place->pins[TIDE_TIER_DEVICE] == 0)
            return false;
    }
    return true;
}
