/* See request.h. */
#include "chunk/request.h"

#include <assert.h>
#include <stdlib.h>

tide_status tide_request_create(tide_request *request, const tide_ops *ops, tide_leaving *leaving,
                                tide_tasks *tasks)
{
    tide_op op;
    const uint32_t most = tide_ops_largest(ops, &op);
    *request = (tide_request){.ops = ops,
                              .places = tasks->places,
                              .tensors = tasks->tensors,
                              .dues = tasks->dues,
                              .moves = tasks->moves,
                              .future = leaving->future,
                              .victims = tasks->victims,
                              .leaving = leaving,
                              .tasks = tasks,
                              .slice = TIDE_SLICE_NONE};
    request->pins = calloc(most + 1u, sizeof *request->pins);
    if (!request->pins)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %u pins", most);
    return TIDE_OK;
}

void tide_request_destroy(tide_request *request)
{
    free(request->pins);
    request->pins = NULL;
}

/* --- pins --- */

static void request_chunks(tide_request *r, const tide_chunk *chunks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        assert(!(tide_place_of(r->places, chunks[i])->marks & TIDE_MARK_REQUESTED));
        r->pins[r->pin_count++] = chunks[i];
        tide_places_mark(r->places, chunks[i], TIDE_MARK_REQUESTED | TIDE_MARK_FIRST);
    }
    tide_leaving_let_stay(r->leaving, chunks, count);
    r->ready = false;
}

/* Take back pins and marks of the request's chunks from `from` on. */
static void release_chunks(tide_request *r, uint32_t from)
{
    for (uint32_t i = from; i < r->pin_count; i++) {
        tide_places_unmark(r->places, r->pins[i], TIDE_MARK_REQUESTED | TIDE_MARK_FIRST);
        if (i < r->pinned_count)
            tide_places_unpin(r->places, r->pins[i], TIDE_TIER_DEVICE);
    }
    r->pin_count = from;
    if (r->pinned_count > from)
        r->pinned_count = from;
}

/* The device copy is about to change. */
static void drop_host_copy(tide_request *r, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(r->places, chunk);
    assert(place->pins[TIDE_TIER_DEVICE] > 0);
    if (place->slot[TIDE_TIER_HOST] != TIDE_SLOT_NONE)
        tide_places_release(r->places, chunk, TIDE_TIER_HOST);
}

static void start_op(tide_request *r, const tide_op_record *op)
{
    for (uint32_t i = 0; i < op->param_count; i++)
        tide_tensors_set_param(r->tensors, op->params[i].tensor, TIDE_TENSOR_COMPUTE);
    for (uint32_t i = 0; i < op->chunk_count; i++)
        if (op->modifies[i])
            drop_host_copy(r, op->chunks[i]);
}

static void start_slice(tide_request *r, const tide_op_record *op)
{
    for (uint32_t i = 0; i < op->checkpoint_count; i++) {
        const tide_use *use = &op->checkpoints[i];
        tide_chunk first, last;
        tide_tensors_set_part(r->tensors, use->tensor, r->slice, TIDE_TENSOR_COMPUTE);
        tide_layout_checkpoint_chunks(r->ops->layout, use->tensor, r->slice, &first, &last);
        for (tide_chunk chunk = first; use->access & TIDE_ACCESS_WRITE && chunk <= last; chunk++)
            drop_host_copy(r, chunk);
    }
}

bool tide_request_try_pin(tide_request *request)
{
    if (!request->open || request->ready)
        return false;
    for (uint32_t i = request->pinned_count; i < request->pin_count; i++) {
        const tide_chunk chunk = request->pins[i];
        if (!tide_place_is_resident(tide_place_of(request->places, chunk)) ||
            tide_dues_has(request->dues, chunk))
            return false;
    }
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
    request->open = true;
    request->op = op;
    request->slice = TIDE_SLICE_NONE;
    request_chunks(request, record->chunks, record->chunk_count);
    request->param_pins = request->pin_count;
    request->param_use = tide_future_planned_use(request->future);
}

/* What a slice overwrites whole is dead from now on, so that nobody copies it. */
static void forget_overwritten(tide_request *r, const tide_op_record *op)
{
    for (uint32_t i = 0; i < op->checkpoint_count; i++) {
        const tide_use *use = &op->checkpoints[i];
        if (!(use->access & TIDE_ACCESS_READ) &&
            tide_tensors_part(r->tensors, use->tensor, r->slice) != TIDE_TENSOR_FREE)
            tide_tensors_set_part(r->tensors, use->tensor, r->slice, TIDE_TENSOR_FREE);
    }
}

void tide_request_open_slice(tide_request *request, uint32_t slice)
{
    uint32_t count;
    assert(request->open && request->ready && request->slice == TIDE_SLICE_NONE);
    request->slice = slice;
    forget_overwritten(request, &request->ops->records[request->op]);
    const tide_moment moment = {.op = request->op, .slice = slice};
    const tide_chunk *chunks = tide_ops_moment_chunks(request->ops, moment, &count);
    request_chunks(request, chunks, count);
    request->slice_use = tide_future_planned_use(request->future);
}

void tide_request_end_slice(tide_request *request, uint64_t ends)
{
    const tide_op_record *op = &request->ops->records[request->op];
    if (request->slice == TIDE_SLICE_NONE)
        return;
    const uint32_t count = request->pin_count - request->param_pins;
    release_chunks(request, request->param_pins);
    for (uint32_t i = 0; i < op->checkpoint_count; i++)
        tide_tensors_set_part(request->tensors, op->checkpoints[i].tensor, request->slice,
                              tide_state_after_slice(&op->checkpoints[i]));
    request->slice = TIDE_SLICE_NONE;
    tide_leaving_use_ended(request->leaving, request->pins + request->param_pins, count, request->slice_use,
                           ends);
}

void tide_request_close(tide_request *request)
{
    assert(request->slice == TIDE_SLICE_NONE);
    release_chunks(request, 0);
    request->open = request->ready = false;
}

void tide_request_give_up(tide_request *request)
{
    request->slice = TIDE_SLICE_NONE;
    tide_request_close(request);
}

/* --- next --- */

bool tide_request_waits_for_due(const tide_request *request)
{
    for (uint32_t i = request->pinned_count; i < request->pin_count; i++)
        if (tide_dues_has(request->dues, request->pins[i]))
            return true;
    return false;
}

uint32_t tide_request_reserved(const tide_request *request)
{
    uint32_t slots = 0;
    for (uint32_t i = request->pinned_count; i < request->pin_count; i++)
        slots += tide_place_of(request->places, request->pins[i])->slot[TIDE_TIER_DEVICE] == TIDE_SLOT_NONE;
    return slots;
}

/* Fetch the first requested chunk that is missing, owes nothing, and has a slot. */
static bool fetch_with_slot(tide_request *r, tide_command *command)
{
    for (uint32_t i = r->pinned_count; i < r->pin_count; i++) {
        const tide_place *place = tide_place_of(r->places, r->pins[i]);
        if (place->busy || place->valid[TIDE_TIER_DEVICE] || tide_dues_has(r->dues, r->pins[i]) ||
            !tide_places_has_slot_for(r->places, r->pins[i]))
            continue;
        tide_moves_fetch(r->moves, r->pins[i], TIDE_REASON_DEMAND, command);
        return true;
    }
    return false;
}

/* What owes nothing is fetched. `*blocked`: some chunk has no slot, nor one coming. */
static bool fetch_missing(tide_request *r, bool *blocked, tide_command *command)
{
    *blocked = false;
    if (fetch_with_slot(r, command))
        return true;
    const uint32_t missing = tide_request_reserved(r);
    *blocked = missing > 0;
    if (missing <= r->moves->evictions_open)
        return false;
    const tide_victim_rule rule = {.spared = TIDE_MARK_REQUESTED};
    return tide_leaving_next_slot(r->leaving, false, command) ||
           tide_victims_evict_spent(r->victims, rule, TIDE_REASON_DEMAND, command) ||
           tide_leaving_next_slot(r->leaving, true, command) ||
           tide_victims_evict(r->victims, rule, TIDE_REASON_DEMAND, command);
}

bool tide_request_next(tide_request *request, tide_turn *turn, tide_command *command)
{
    if (!request->open || request->ready)
        return false;
    if (!turn->request_yields) {
        bool blocked;
        const bool found = fetch_missing(request, &blocked, command);
        turn->gathers = turn->prefetches = !blocked;
        return found;
    }
    if (tide_tasks_next_ready(request->tasks, true, command) ||
        tide_tasks_next_gather(request->tasks, turn, true, command))
        return true;
    /* What an update on the device gathers slots for is not taken from it. */
    const bool slots_are_free = request->tasks->gather[TIDE_TIER_DEVICE].count == 0;
    turn->gathers = false;
    turn->prefetches = slots_are_free;
    return slots_are_free && fetch_with_slot(request, command);
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
