#include "chunk/watch.h"

#include "chunk/manager_internal.h"

#include <assert.h>

/* --- chunks --- */

static tide_stand device_stand(const tide_place *place)
{
    if (place->stale)
        return place->busy && !tide_place_has(place, TIDE_TIER_HOST) ? TIDE_STAND_EVICTING : TIDE_STAND_STALE;
    if (place->slot[TIDE_TIER_DEVICE] == TIDE_SLOT_NONE)
        return TIDE_STAND_NONE;
    if (!tide_place_has(place, TIDE_TIER_DEVICE))
        return place->live && !place->busy ? TIDE_STAND_NONE : TIDE_STAND_COMING;
    return place->busy && place->pins[TIDE_TIER_DEVICE] == 0 ? TIDE_STAND_EVICTING : TIDE_STAND_THERE;
}

static tide_stand host_stand(const tide_place *place)
{
    if (place->slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE)
        return TIDE_STAND_NONE;
    return tide_place_has(place, TIDE_TIER_HOST) ? TIDE_STAND_THERE : TIDE_STAND_COMING;
}

static tide_content content_of(const tide_manager *m, tide_chunk chunk)
{
    const tide_tensor_counts *counts = &m->tensors.counts[chunk];
    const uint32_t closed = counts->in[TIDE_TENSOR_HOLD_AFTER_BWD];
    const tide_space space = tide_layout_chunk_space(m->layout, chunk);
    if (!tide_place_of(&m->places, chunk)->live)
        return TIDE_CONTENT_NOTHING;
    if (space != TIDE_SPACE_PARAM)
        return space == TIDE_SPACE_STATE ? TIDE_CONTENT_STATE : TIDE_CONTENT_ACTIVATIONS;
    return closed == 0             ? TIDE_CONTENT_PARAMS
           : closed == counts->all ? TIDE_CONTENT_GRADIENTS
                                   : TIDE_CONTENT_BOTH;
}

bool tide_manager_changed_chunk(tide_manager *manager, tide_chunk *chunk, tide_chunk_view *view)
{
    const tide_chunk changed = tide_places_next_changed(&manager->places, TIDE_SUBSCRIBER_OUTSIDE);
    if (changed == TIDE_CHUNK_NONE)
        return false;
    const tide_place *place = tide_place_of(&manager->places, changed);
    const bool is_param = tide_layout_chunk_space(manager->layout, changed) == TIDE_SPACE_PARAM;
    *chunk = changed;
    *view = (tide_chunk_view){.device = device_stand(place),
                              .host = host_stand(place),
                              .device_slot = place->slot[TIDE_TIER_DEVICE],
                              .host_slot = place->slot[TIDE_TIER_HOST],
                              .content = content_of(manager, changed),
                              .closed = manager->tensors.counts[changed].in[TIDE_TENSOR_HOLD_AFTER_BWD],
                              .pinned = place->pins[TIDE_TIER_DEVICE] + place->pins[TIDE_TIER_HOST] > 0,
                              .pending = is_param && tide_pending_has(&manager->pending, changed)};
    return true;
}

void tide_manager_changed_all(tide_manager *manager)
{
    tide_places_notify_all(&manager->places, TIDE_SUBSCRIBER_OUTSIDE);
}

bool tide_manager_has_gradient(const tide_manager *manager, uint32_t param)
{
    assert(param < tide_layout_params(manager->layout));
    return manager->tensors.params[param].has_gradient;
}

/* --- the request --- */

bool tide_manager_lacks(tide_manager *manager, uint32_t *i, tide_chunk *chunk, tide_request_wait *wait)
{
    const tide_request *request = &manager->request;
    if (!request->open || request->ready)
        return false;
    for (uint32_t pin = request->pinned_count + *i; pin < request->pin_count; pin++) {
        const tide_place *place = tide_place_of(&manager->places, request->pins[pin]);
        const bool pending = tide_pending_has(&manager->pending, request->pins[pin]);
        const bool there = tide_place_is_resident(place) && !pending;
        if (there && !tide_request_lacks_group(request, pin))
            continue;
        *i = pin + 1 - request->pinned_count;
        *chunk = request->pins[pin];
        *wait = there                                             ? TIDE_REQUEST_PEERS
                : pending                                         ? TIDE_REQUEST_PENDING
                : place->slot[TIDE_TIER_DEVICE] == TIDE_SLOT_NONE ? TIDE_REQUEST_SLOT
                                                                  : TIDE_REQUEST_MOVE;
        return true;
    }
    return false;
}

uint32_t tide_manager_requested(const tide_manager *manager)
{
    const tide_request *request = &manager->request;
    return request->slice == TIDE_SLICE_NONE ? request->param_pins : request->pin_count - request->param_pins;
}

bool tide_manager_follows(const tide_manager *manager)
{
    return manager->future.schedule.mode == TIDE_SCHEDULE_FOLLOWING;
}

/* --- plans --- */

bool tide_manager_plan_get(const tide_manager *manager, bool training, tide_manager_plan *plan)
{
    const tide_step_plan *step =
        &manager->future.plans[training ? TIDE_SCHEDULE_TRAINING : TIDE_SCHEDULE_FORWARD];
    if (step->plan == NULL)
        return false;
    *plan = (tide_manager_plan){
        .number = step->number, .copies_in = step->plan->copies_in, .copies_out = step->plan->copies_out};
    return true;
}

void tide_manager_plan_least(const tide_manager *manager, bool training, tide_manager_plan *plan)
{
    const tide_step_plan *step =
        &manager->future.plans[training ? TIDE_SCHEDULE_TRAINING : TIDE_SCHEDULE_FORWARD];
    assert(manager->least != NULL && step->plan != NULL && step->number == plan->number);
    tide_least_find(manager->least, &step->trace, step->slots, &plan->least_in, &plan->least_out);
}

tide_status tide_manager_watch(tide_manager *manager)
{
    const tide_schedule *schedule = &manager->future.schedule;
    assert(manager->least == NULL);
    return tide_least_create(tide_layout_chunk_count(manager->layout), schedule->use_capacity,
                             schedule->schedule_step_capacity, &manager->least);
}
