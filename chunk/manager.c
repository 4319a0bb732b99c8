/* The manager: set-up, needs, seal, queries, validity. The policy is in the other manager_*.c files.
 *
 * The least slots, and why they are enough (manager_slots.c has the moves):
 *
 *   device   the largest op, because its params' chunks and one slice's are pinned together. A device update's
 *            chunks are not pinned while they are being gathered, so it waits for the op to end instead.
 *   host     a host task's chunks. Nothing else is ever pinned there.
 *   total    every chunk, and one. With no command open every chunk holds at most one slot it needs, so some
 *            slot is free or holds a second copy that may be dropped at once. That slot is where the next chunk
 *            goes: device to host (evict), host to device (fetch, then the host slot is the spare one), or host
 *            to device to make room (spill).
 */
#include "chunk/manager_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPARE_SLOTS = 1,
    PLACEMENT_STEPS = 16, /* updates change sides only by so large a part of all at once */
};

/* --- creation --- */

static void init_params(tide_manager *m)
{
    for (uint32_t i = 0; i < tide_layout_params(m->layout); i++) {
        tide_param_record *param = &m->params[i];
        tide_layout_param_chunks(m->layout, i, TIDE_SPACE_PARAM, &param->first, &param->last);
        for (tide_chunk chunk = param->first; chunk <= param->last; chunk++)
            m->counts[chunk].in[TIDE_TENSOR_FREE]++;
    }
}

static void init_checkpoints(tide_manager *m)
{
    for (uint32_t i = 0; i < tide_layout_checkpoints(m->layout); i++)
        for (uint32_t part = 0; part < tide_layout_checkpoint_parts(m->layout, i); part++) {
            tide_chunk first, last;
            tide_layout_checkpoint_chunks(m->layout, i, part, &first, &last);
            for (tide_chunk chunk = first; chunk <= last; chunk++)
                m->counts[chunk].in[TIDE_TENSOR_FREE]++;
        }
}

static bool allocate_tables(tide_manager *m)
{
    const tide_layout *layout = m->layout;
    uint32_t chunks = tide_layout_chunk_count(layout), tensors = tide_layout_checkpoints(layout);
    uint32_t param_chunks = tide_layout_space_chunks(layout, TIDE_SPACE_PARAM);
    m->part_first = calloc(tensors + 1u, sizeof *m->part_first);
    if (!m->part_first)
        return false;
    for (uint32_t i = 0; i < tensors; i++)
        m->part_first[i + 1] = m->part_first[i] + tide_layout_checkpoint_parts(layout, i);
    m->part_states = calloc(m->part_first[tensors] + 1u, sizeof *m->part_states);
    m->params = calloc(tide_layout_params(layout), sizeof *m->params);
    m->counts = calloc(chunks, sizeof *m->counts);
    m->seen = calloc(chunks, sizeof *m->seen);
    m->marks = calloc(chunks, sizeof *m->marks);
    m->works = calloc(param_chunks, sizeof *m->works);
    m->update_on_device = calloc(param_chunks, sizeof *m->update_on_device);
    m->update_wanted_on_device = calloc(param_chunks, sizeof *m->update_wanted_on_device);
    m->open = calloc(TIDE_OPEN_COMMANDS_MAX, sizeof *m->open);
    m->open_free = calloc(TIDE_OPEN_COMMANDS_MAX, sizeof *m->open_free);
    return m->part_states && m->params && m->counts && m->seen && m->marks && m->works &&
           m->update_on_device && m->update_wanted_on_device && m->open && m->open_free;
}

tide_status tide_manager_create(const tide_layout *layout, tide_manager **manager)
{
    for (uint32_t i = 0; i < tide_layout_space_chunks(layout, TIDE_SPACE_PARAM); i++)
        if (!tide_layout_is_local(layout, i))
            return tide_fail(TIDE_ERROR_UNSUPPORTED, "manager: chunk %u belongs to another rank", i);
    tide_manager *m = calloc(1, sizeof *m);
    if (!m)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %zu bytes", sizeof *m);
    m->layout = layout;
    if (!allocate_tables(m) || tide_gradients_create(&m->gradients, layout) != TIDE_OK) {
        tide_manager_destroy(m);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for tables of %u chunks",
                         tide_layout_chunk_count(layout));
    }
    init_params(m);
    init_checkpoints(m);
    for (uint32_t i = 0; i < TIDE_OPEN_COMMANDS_MAX; i++)
        m->open_free[m->open_free_count++] = TIDE_OPEN_COMMANDS_MAX - 1 - i;
    *manager = m;
    return TIDE_OK;
}

void tide_manager_destroy(tide_manager *manager)
{
    if (!manager)
        return;
    for (uint32_t i = 0; i < manager->op_count; i++)
        tide_op_record_free(&manager->ops[i]);
    tide_gradients_destroy(&manager->gradients);
    tide_places_destroy(&manager->places);
    tide_schedule_destroy(&manager->schedule);
    tide_manager_plans_destroy(manager);
    free(manager->ops);
    free(manager->part_first);
    free(manager->part_states);
    free(manager->params);
    free(manager->counts);
    free(manager->seen);
    free(manager->marks);
    free(manager->works);
    free(manager->update_on_device);
    free(manager->update_wanted_on_device);
    free(manager->open);
    free(manager->open_free);
    free(manager->request.pins);
    free(manager);
}

/* --- needs and seal --- */

uint32_t tide_manager_task_slots(const tide_manager *manager)
{
    uint32_t slots = 0;
    for (int space = TIDE_SPACE_PARAM; space <= TIDE_SPACE_VARIANCE; space++)
        slots += tide_layout_space_chunks(manager->layout, (tide_space)space) > 0;
    assert(slots <= TIDE_TASK_CHUNKS_MAX);
    return slots;
}

void tide_manager_needs(const tide_manager *manager, tide_placement placement, tide_slot_needs *needs)
{
    *needs = (tide_slot_needs){.host_slots = tide_manager_task_slots(manager),
                               .total_slots = tide_layout_chunk_count(manager->layout) + SPARE_SLOTS};
    for (tide_op op = 0; op < manager->op_count; op++) {
        uint32_t slots = manager->ops[op].chunk_count + manager->ops[op].largest_slice;
        if (slots > needs->largest_op_slots) {
            needs->largest_op = op;
            needs->largest_op_slots = slots;
        }
    }
    needs->device_slots = needs->largest_op_slots > 0 ? needs->largest_op_slots : 1;
    if (placement == TIDE_PLACEMENT_DEVICE && needs->device_slots < tide_manager_task_slots(manager))
        needs->device_slots = tide_manager_task_slots(manager);
}

static tide_status check_slots(const tide_manager *m, const tide_manager_options *o)
{
    tide_slot_needs needs;
    tide_manager_needs(m, o->placement, &needs);
    if (o->device_slots < needs.device_slots)
        return tide_fail(
            TIDE_ERROR_BUDGET,
            "op %s needs %u chunks on the device at once, there are %u device slots, %u are needed",
            m->op_count ? m->ops[needs.largest_op].name : "(none)", needs.largest_op_slots, o->device_slots,
            needs.device_slots);
    if (o->host_slots < needs.host_slots)
        return tide_fail(TIDE_ERROR_BUDGET, "an update on the host needs %u host slots, there are %u",
                         needs.host_slots, o->host_slots);
    if ((uint64_t)o->device_slots + o->host_slots < needs.total_slots)
        return tide_fail(TIDE_ERROR_BUDGET,
                         "%u chunks need %u slots, there are %u on the device and %u on the host",
                         needs.total_slots - SPARE_SLOTS, needs.total_slots, o->device_slots, o->host_slots);
    return TIDE_OK;
}

static uint32_t count_parts(const tide_manager *m, tide_chunk chunk)
{
    uint32_t parts = 0;
    while (parts < tide_layout_parts_per_chunk(m->layout) &&
           tide_layout_state_chunk(m->layout, chunk, TIDE_SPACE_MASTER, parts) != TIDE_CHUNK_NONE)
        parts++;
    return parts;
}

/* Chunks whose state the host has room for, with a copy of each. */
static uint32_t host_updates_max(const tide_manager *m)
{
    return m->options.host_slots /
           ((tide_manager_task_slots(m) - 1) * tide_layout_parts_per_chunk(m->layout) + 1);
}

/* Chunks whose update the device would end at the same time as the host the others, but no fewer than the host has no room
 * for. Not known yet: all. */
static uint32_t balanced_updates(const tide_manager *m)
{
    const uint32_t chunks = tide_layout_space_chunks(m->layout, TIDE_SPACE_PARAM);
    const double host = m->update_seconds[TIDE_TIER_HOST], device = m->update_seconds[TIDE_TIER_DEVICE];
    if (!(host > 0 && device > 0))
        return chunks;
    const uint32_t balanced = (uint32_t)(chunks * (host / (host + device)) + 0.5);
    const uint32_t elsewhere = host_updates_max(m);
    return balanced + elsewhere < chunks ? chunks - elsewhere : balanced;
}

/* AUTO: as many chunks' state as fits where nothing else wants to be, and as lets both sides end together. The first
 * chunks: their gradients come last and they are wanted first, so theirs is the update that nothing else hides. */
void tide_manager_place_updates(tide_manager *m)
{
    const uint32_t chunks = tide_layout_space_chunks(m->layout, TIDE_SPACE_PARAM);
    const uint32_t others = chunks + tide_layout_space_chunks(m->layout, TIDE_SPACE_CHECKPOINT) + SPARE_SLOTS;
    uint32_t margin = m->options.device_slots > others ? m->options.device_slots - others : 0;
    uint32_t wanted = balanced_updates(m);
    for (tide_chunk i = 0; i < chunks; i++) {
        const uint32_t slots = (tide_manager_task_slots(m) - 1) * m->works[i].parts;
        const bool fits = m->options.placement == TIDE_PLACEMENT_AUTO && slots <= margin && wanted > 0;
        margin = fits ? margin - slots : 0;
        wanted -= fits;
        m->update_wanted_on_device[i] = fits || m->options.placement == TIDE_PLACEMENT_DEVICE;
    }
}

void tide_manager_set_update_seconds(tide_manager *manager, double host_seconds, double device_seconds)
{
    assert(manager->sealed);
    manager->update_seconds[TIDE_TIER_HOST] = host_seconds;
    manager->update_seconds[TIDE_TIER_DEVICE] = device_seconds;
    const uint32_t chunks = tide_layout_space_chunks(manager->layout, TIDE_SPACE_PARAM);
    const uint32_t wanted = balanced_updates(manager), had = manager->updates_balanced;
    const uint32_t moved = wanted > had ? wanted - had : had - wanted;
    if (manager->options.placement != TIDE_PLACEMENT_AUTO || moved * PLACEMENT_STEPS < chunks)
        return;
    manager->updates_balanced = wanted;
    tide_manager_place_updates(manager);
}

static tide_status create_schedule(tide_manager *m)
{
    uint32_t moments = 0, uses = 0;
    for (tide_op op = 0; op < m->op_count; op++) {
        moments += 1 + m->ops[op].slices;
        uses += m->ops[op].chunk_count + m->ops[op].slice_first[m->ops[op].slices];
    }
    return tide_schedule_create(&m->schedule, tide_layout_chunk_count(m->layout), moments, uses,
                                tide_manager_moment_chunks, m);
}

tide_status tide_manager_seal(tide_manager *manager, const tide_manager_options *options)
{
    if (manager->sealed)
        return tide_fail(TIDE_ERROR_STATE, "manager: sealed twice");
    tide_status status = check_slots(manager, options);
    if (status != TIDE_OK)
        return status;
    const uint32_t slots[TIDE_TIER_COUNT] = {options->device_slots, options->host_slots};
    tide_slot_needs needs;
    tide_manager_needs(manager, options->placement, &needs);
    tide_chunk *pins = calloc(needs.largest_op_slots + 1u, sizeof *pins);
    if (!pins)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %u pins", needs.largest_op_slots);
    status = tide_places_create(&manager->places, tide_layout_chunk_count(manager->layout), slots);
    if (status != TIDE_OK)
        goto undo_pins;
    status = create_schedule(manager);
    if (status != TIDE_OK)
        goto undo_places;
    status = tide_manager_plans_create(manager);
    if (status != TIDE_OK)
        goto undo_schedule;
    manager->request.pins = pins;
    manager->options = *options;
    manager->sealed = true;
    tide_manager_fix_modified(manager);
    for (tide_chunk chunk = 0; tide_manager_is_param_chunk(manager, chunk); chunk++)
        manager->works[chunk].parts = count_parts(manager, chunk);
    manager->updates_balanced = balanced_updates(manager);
    tide_manager_place_updates(manager);
    memcpy(manager->update_on_device, manager->update_wanted_on_device,
           tide_layout_space_chunks(manager->layout, TIDE_SPACE_PARAM) * sizeof *manager->update_on_device);
    tide_manager_changed(manager);
    return TIDE_OK;

undo_schedule:
    tide_schedule_destroy(&manager->schedule);
undo_places:
    tide_places_destroy(&manager->places);
undo_pins:
    free(pins);
    return status;
}

/* --- tensor states --- */

static void move_counts(tide_manager *m, tide_chunk chunk, tide_tensor_state from, tide_tensor_state to)
{
    tide_tensor_counts_move(&m->counts[chunk], from, to);
    if (from == TIDE_TENSOR_FREE || to == TIDE_TENSOR_FREE)
        tide_places_set_live(&m->places, chunk, tide_tensor_counts_live(&m->counts[chunk]) > 0);
}

void tide_manager_set_param_state(tide_manager *manager, uint32_t param, tide_tensor_state to)
{
    tide_param_record *record = &manager->params[param];
    assert(tide_tensor_may(record->state, to));
    for (tide_chunk chunk = record->first; chunk <= record->last; chunk++)
        move_counts(manager, chunk, record->state, to);
    record->state = to;
}

tide_tensor_state tide_manager_part_state(const tide_manager *manager, uint32_t tensor, uint32_t part)
{
    assert(part < tide_layout_checkpoint_parts(manager->layout, tensor));
    return (tide_tensor_state)manager->part_states[manager->part_first[tensor] + part];
}

void tide_manager_set_part_state(tide_manager *manager, uint32_t tensor, uint32_t part, tide_tensor_state to)
{
    tide_tensor_state from = tide_manager_part_state(manager, tensor, part);
    tide_chunk first, last;
    assert(tide_tensor_may(from, to));
    tide_layout_checkpoint_chunks(manager->layout, tensor, part, &first, &last);
    for (tide_chunk chunk = first; chunk <= last; chunk++)
        move_counts(manager, chunk, from, to);
    manager->part_states[manager->part_first[tensor] + part] = (uint8_t)to;
}

/* --- queries --- */

tide_gradients *tide_manager_gradients(tide_manager *manager)
{
    return &manager->gradients;
}

bool tide_manager_param_has_gradient(const tide_manager *manager, uint32_t param)
{
    assert(param < tide_layout_params(manager->layout));
    return manager->params[param].has_gradient;
}

bool tide_manager_param_is_zero_gradient(const tide_manager *manager, uint32_t param)
{
    assert(param < tide_layout_params(manager->layout));
    return manager->params[param].zero_gradient;
}

tide_tensor_state tide_manager_param_state(const tide_manager *manager, uint32_t param)
{
    assert(param < tide_layout_params(manager->layout));
    return manager->params[param].state;
}

tide_tensor_state tide_manager_checkpoint_state(const tide_manager *manager, uint32_t tensor, uint32_t part)
{
    return tide_manager_part_state(manager, tensor, part);
}

bool tide_manager_updates_on_device(const tide_manager *manager, tide_chunk param_chunk)
{
    assert(manager->sealed && tide_manager_is_param_chunk(manager, param_chunk));
    return manager->update_on_device[param_chunk];
}

const tide_chunk *tide_manager_pins(const tide_manager *manager, uint32_t *count)
{
    *count = manager->request.open ? manager->request.pin_count : 0;
    return manager->request.pins;
}

static tide_chunk_state chunk_state(const tide_manager *m, tide_chunk chunk)
{
    const tide_place *place = &m->places.chunks[chunk];
    tide_space space = tide_layout_chunk_space(m->layout, chunk);
    if (space == TIDE_SPACE_PARAM && m->works[chunk].running)
        return TIDE_CHUNK_UPDATING;
    if (space == TIDE_SPACE_PARAM || space == TIDE_SPACE_CHECKPOINT)
        return tide_tensor_counts_state(&m->counts[chunk]);
    if (place->pins[TIDE_TIER_DEVICE] || place->pins[TIDE_TIER_HOST])
        return TIDE_CHUNK_UPDATING;
    return place->live ? TIDE_CHUNK_HOLD : TIDE_CHUNK_FREE;
}

void tide_manager_residency(const tide_manager *manager, tide_chunk chunk, tide_residency *residency)
{
    assert(manager->sealed && chunk < manager->places.chunk_count);
    const tide_place *place = &manager->places.chunks[chunk];
    *residency = (tide_residency){.state = chunk_state(manager, chunk),
                                  .device_slot = place->slot[TIDE_TIER_DEVICE],
                                  .host_slot = place->slot[TIDE_TIER_HOST],
                                  .device_valid = place->valid[TIDE_TIER_DEVICE],
                                  .host_valid = place->valid[TIDE_TIER_HOST],
                                  .pinned = place->pins[TIDE_TIER_DEVICE] || place->pins[TIDE_TIER_HOST]};
}

void tide_manager_counters_get(const tide_manager *manager, tide_manager_counters *counters)
{
    *counters = manager->counters;
}

/* --- validity --- */

void tide_manager_check_deeply(tide_manager *manager, bool on)
{
    manager->deep_checks = on;
}

void tide_manager_changed(tide_manager *manager)
{
    manager->idle = false;
    manager->prefetch_idle = false;
    assert(tide_manager_is_valid(manager, manager->deep_checks));
}

static bool counts_agree(const tide_manager *m)
{
    for (tide_chunk chunk = 0; chunk < m->places.chunk_count; chunk++) {
        tide_space space = tide_layout_chunk_space(m->layout, chunk);
        bool has_tensors = space == TIDE_SPACE_PARAM || space == TIDE_SPACE_CHECKPOINT;
        if (has_tensors && (tide_tensor_counts_live(&m->counts[chunk]) > 0) != m->places.chunks[chunk].live)
            return false;
        /* A tensor in use by an op means that the op holds the chunk. */
        if (m->counts[chunk].in[TIDE_TENSOR_COMPUTE] && m->places.chunks[chunk].pins[TIDE_TIER_DEVICE] == 0)
            return false;
    }
    return true;
}

static bool works_agree(const tide_manager *m)
{
    uint32_t works = 0, parts = 0;
    for (tide_chunk chunk = 0; chunk < tide_layout_space_chunks(m->layout, TIDE_SPACE_PARAM); chunk++) {
        const tide_work *work = &m->works[chunk];
        if (work->kind == TIDE_WORK_NONE)
            continue;
        if (chunk < m->work_first || work->part >= work->parts)
            return false;
        works++;
        parts += work->parts - work->part;
    }
    return works == m->work_count && parts == m->parts_open;
}

static bool pins_agree(const tide_manager *m)
{
    for (uint32_t i = 0; i < m->request.pinned_count; i++) {
        const tide_place *place = &m->places.chunks[m->request.pins[i]];
        if (!tide_place_is_resident(place) || place->pins[TIDE_TIER_DEVICE] == 0)
            return false;
    }
    return true;
}

bool tide_manager_is_valid(const tide_manager *manager, bool deep)
{
    const tide_request *request = &manager->request;
    if (!tide_places_is_valid(&manager->places, deep))
        return false;
    if (request->pinned_count > request->pin_count ||
        (request->ready && request->pinned_count != request->pin_count))
        return false;
    if (request->open && !manager->step_open)
        return false;
    return !deep || (counts_agree(manager) && works_agree(manager) && pins_agree(manager) &&
                     tide_gradients_is_valid(&manager->gradients));
}
