#include "chunk/tensors.h"

#include <assert.h>

/* --- set-up --- */

static void init_range(tide_tensors *t, tide_chunk first, tide_chunk last)
{
    for (tide_chunk chunk = first; chunk <= last; chunk++)
        t->counts[chunk].in[TIDE_TENSOR_FREE] = ++t->counts[chunk].all;
}

static void init_counts(tide_tensors *t)
{
    for (uint32_t i = 0; i < tide_layout_params(t->layout); i++) {
        tide_param_record *param = &t->params[i];
        tide_layout_param_chunks(t->layout, i, &param->first, &param->last);
        init_range(t, param->first, param->last);
    }
    for (uint32_t i = 0; i < tide_layout_activations(t->layout); i++)
        for (uint32_t part = 0; part < tide_layout_activation(t->layout, i)->parts; part++) {
            tide_chunk first, last;
            tide_layout_activation_chunks(t->layout, i, part, &first, &last);
            init_range(t, first, last);
        }
}

tide_status tide_tensors_create(tide_tensors *tensors, const tide_layout *layout, tide_places *places)
{
    const uint32_t params = tide_layout_params(layout);
    tide_tensors *t = tensors;
    *t = (tide_tensors){.layout = layout, .places = places};
    t->params = tide_arrays_add(&t->arrays, params, sizeof *t->params);
    t->counts = tide_arrays_add(&t->arrays, tide_layout_chunk_count(layout), sizeof *t->counts);
    t->part_states = tide_arrays_add(&t->arrays, tide_layout_parts(layout), sizeof *t->part_states);
    if (t->arrays.lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for the states of %u params", params);
    init_counts(tensors);
    return TIDE_OK;
}

void tide_tensors_destroy(tide_tensors *tensors)
{
    tide_arrays_free(&tensors->arrays);
    *tensors = (tide_tensors){.params = NULL};
}

/* --- states --- */

#define TO(state) (1u << TIDE_TENSOR_##state)

/* The transitions of the figure in tensors.h: bit s of row r is set if a tensor may go from state r to state
 * s. */
static const unsigned char transitions[TIDE_TENSOR_STATE_COUNT] = {
    [TIDE_TENSOR_FREE] = TO(COMPUTE) | TO(HOLD) | TO(HOLD_AFTER_BWD),
    [TIDE_TENSOR_COMPUTE] = TO(FREE) | TO(HOLD) | TO(HOLD_AFTER_FWD) | TO(HOLD_AFTER_BWD),
    [TIDE_TENSOR_HOLD] = TO(FREE) | TO(COMPUTE) | TO(HOLD_AFTER_BWD),
    [TIDE_TENSOR_HOLD_AFTER_FWD] = TO(COMPUTE) | TO(HOLD) | TO(HOLD_AFTER_BWD),
    [TIDE_TENSOR_HOLD_AFTER_BWD] = TO(HOLD),
};

bool tide_tensor_may(tide_tensor_state from, tide_tensor_state to)
{
    assert((unsigned)from < TIDE_TENSOR_STATE_COUNT && (unsigned)to < TIDE_TENSOR_STATE_COUNT);
    return transitions[from] >> to & 1u;
}

static bool has_live(const tide_tensors *t, tide_chunk chunk)
{
    return t->counts[chunk].in[TIDE_TENSOR_FREE] < t->counts[chunk].all;
}

bool tide_tensors_all_closed(const tide_tensors *tensors, tide_chunk param_chunk)
{
    const tide_tensor_counts *counts = &tensors->counts[param_chunk];
    assert(counts->all > 0);
    return counts->in[TIDE_TENSOR_HOLD_AFTER_BWD] == counts->all;
}

static void move_counts(tide_tensors *t, tide_chunk chunk, tide_tensor_state from, tide_tensor_state to)
{
    tide_tensor_counts *counts = &t->counts[chunk];
    assert(counts->in[from] > 0 && tide_tensor_may(from, to));
    counts->in[from]--;
    counts->in[to]++;
    if (from == TIDE_TENSOR_HOLD_AFTER_BWD ||
        to == TIDE_TENSOR_HOLD_AFTER_BWD) /* the chunk's gradients may be complete */
        tide_places_notify(t->places, chunk, TIDE_SUBSCRIBERS_ALL);
    if (from == TIDE_TENSOR_FREE || to == TIDE_TENSOR_FREE)
        tide_places_set_live(t->places, chunk, has_live(t, chunk));
}

void tide_tensors_set_param(tide_tensors *tensors, uint32_t param, tide_tensor_state to)
{
    tide_param_record *record = &tensors->params[param];
    assert(param < tide_layout_params(tensors->layout) && to != TIDE_TENSOR_FREE);
    for (tide_chunk chunk = record->first; chunk <= record->last; chunk++)
        move_counts(tensors, chunk, record->state, to);
    record->state = to;
}

static uint8_t *part_state(const tide_tensors *t, uint32_t tensor, uint32_t part)
{
    const tide_named *activation = tide_layout_activation(t->layout, tensor);
    assert(part < activation->parts);
    return &t->part_states[activation->first_part + part];
}

tide_tensor_state tide_tensors_part(const tide_tensors *tensors, uint32_t tensor, uint32_t part)
{
    return (tide_tensor_state)*part_state(tensors, tensor, part);
}

void tide_tensors_set_part(tide_tensors *tensors, uint32_t tensor, uint32_t part, tide_tensor_state to)
{
    const tide_tensor_state from = tide_tensors_part(tensors, tensor, part);
    tide_chunk first, last;
    assert(to <= TIDE_TENSOR_HOLD);
    tide_layout_activation_chunks(tensors->layout, tensor, part, &first, &last);
    for (tide_chunk chunk = first; chunk <= last; chunk++)
        move_counts(tensors, chunk, from, to);
    *part_state(tensors, tensor, part) = (uint8_t)to;
}

void tide_tensors_note_content(tide_tensors *tensors, tide_chunk chunk)
{
    const tide_space space = tide_layout_chunk_space(tensors->layout, chunk);
    if (space == TIDE_SPACE_ACTIVATION)
        return;
    if (space != TIDE_SPACE_PARAM) {
        tide_places_set_live(tensors->places, chunk, true);
        return;
    }
    for (uint32_t i = 0; i < tide_layout_chunk_params(tensors->layout, chunk); i++)
        if (tensors->params[tide_layout_chunk_param(tensors->layout, chunk, i)].state == TIDE_TENSOR_FREE)
            tide_tensors_set_param(tensors, tide_layout_chunk_param(tensors->layout, chunk, i),
                                   TIDE_TENSOR_HOLD);
}

/* --- gradients --- */

void tide_tensors_take_gradient(tide_tensors *tensors, uint32_t param, uint64_t step, bool made)
{
    tide_param_record *record = &tensors->params[param];
    assert(param < tide_layout_params(tensors->layout));
    assert(record->gradient_step < step && record->open_chunks == 0);
    record->has_gradient = made;
    record->gradient_step = step;
    record->open_chunks = record->last - record->first + 1;
    for (tide_chunk chunk = record->first; chunk <= record->last; chunk++)
        tide_places_notify(tensors->places, chunk, TIDE_SUBSCRIBERS_ALL);
}

uint32_t tide_tensors_take_zeros(tide_tensors *tensors, uint64_t step)
{
    uint32_t zeros = 0;
    for (uint32_t p = 0; p < tide_layout_params(tensors->layout); p++) {
        if (tensors->params[p].gradient_step == step ||
            tide_description_is_frozen(tide_layout_description(tensors->layout), p))
            continue;
        zeros++;
        tide_tensors_take_gradient(tensors, p, step, false);
        tide_tensors_set_param(tensors, p, TIDE_TENSOR_HOLD_AFTER_BWD);
    }
    return zeros;
}

bool tide_tensors_is_complete(const tide_tensors *tensors, tide_chunk param_chunk, uint64_t step)
{
    assert(param_chunk < tide_layout_space_chunks(tensors->layout, TIDE_SPACE_PARAM));
    if (!tide_tensors_all_closed(tensors, param_chunk))
        return false;
    for (uint32_t i = 0; i < tide_layout_chunk_params(tensors->layout, param_chunk); i++)
        if (tensors->params[tide_layout_chunk_param(tensors->layout, param_chunk, i)].gradient_step != step)
            return false;
    return true;
}

bool tide_tensors_has_gradient(const tide_tensors *tensors, tide_chunk param_chunk, uint64_t step)
{
    assert(param_chunk < tide_layout_space_chunks(tensors->layout, TIDE_SPACE_PARAM));
    for (uint32_t i = 0; i < tide_layout_chunk_params(tensors->layout, param_chunk); i++) {
        const tide_param_record *param =
            &tensors->params[tide_layout_chunk_param(tensors->layout, param_chunk, i)];
        if (param->has_gradient && param->gradient_step == step)
            return true;
    }
    return false;
}

void tide_tensors_settle(tide_tensors *tensors, tide_chunk param_chunk, uint64_t step)
{
    assert(param_chunk < tide_layout_space_chunks(tensors->layout, TIDE_SPACE_PARAM));
    for (uint32_t i = 0; i < tide_layout_chunk_params(tensors->layout, param_chunk); i++) {
        const uint32_t p = tide_layout_chunk_param(tensors->layout, param_chunk, i);
        tide_param_record *param = &tensors->params[p];
        assert(param->open_chunks <= param->last - param->first + 1);
        if (param->open_chunks == 0 || param->gradient_step != step || --param->open_chunks > 0)
            continue;
        param->has_gradient = false;
        if (param->state == TIDE_TENSOR_HOLD_AFTER_BWD)
            tide_tensors_set_param(tensors, p, TIDE_TENSOR_HOLD);
    }
}

void tide_tensors_forget_gradients(tide_tensors *tensors)
{
    for (uint32_t p = 0; p < tide_layout_params(tensors->layout); p++) {
        tensors->params[p].has_gradient = false;
        tensors->params[p].open_chunks = 0;
    }
}

/* --- the end of a step --- */

void tide_tensors_rest(tide_tensors *tensors)
{
    for (uint32_t p = 0; p < tide_layout_params(tensors->layout); p++) {
        const tide_tensor_state state = tensors->params[p].state;
        const bool resting = state == TIDE_TENSOR_FREE || state == TIDE_TENSOR_HOLD;
        if (!resting && (state != TIDE_TENSOR_HOLD_AFTER_BWD || tensors->params[p].open_chunks == 0))
            tide_tensors_set_param(tensors, p, TIDE_TENSOR_HOLD);
    }
}

void tide_tensors_free_activations(tide_tensors *tensors)
{
    for (uint32_t tensor = 0; tensor < tide_layout_activations(tensors->layout); tensor++)
        for (uint32_t part = 0; part < tide_layout_activation(tensors->layout, tensor)->parts; part++)
            if (tide_tensors_part(tensors, tensor, part) != TIDE_TENSOR_FREE)
                tide_tensors_set_part(tensors, tensor, part, TIDE_TENSOR_FREE);
}

bool tide_tensors_is_valid(const tide_tensors *tensors)
{
    for (tide_chunk chunk = 0; chunk < tensors->places->chunk_count; chunk++) {
        const tide_place *place = tide_place_of(tensors->places, chunk);
        if (tensors->counts[chunk].all > 0 && has_live(tensors, chunk) != place->live)
            return false;
        /* an op that uses a tensor must have pinned the chunk */
        if (tensors->counts[chunk].in[TIDE_TENSOR_COMPUTE] && place->pins[TIDE_TIER_DEVICE] == 0)
            return false;
    }
    return true;
}
