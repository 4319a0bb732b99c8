/* Everything on the device at once: the other side of the benchmark that asks what the manager costs.
 *
 * Chunks are fetched in order and pinned one by one; there is a slot for each, so nothing has to leave. While
 * all are pinned their contents change without the manager knowing when, so a pinned chunk's device copy is
 * its only one and it counts as having content.
 */
#include "chunk/manager_internal.h"

#include <assert.h>

static uint32_t chunk_count(const tide_manager *m)
{
    return tide_layout_chunk_count(m->layout);
}

tide_status tide_manager_pin_all(tide_manager *manager)
{
    if (manager->step_open || manager->request.open || manager->host_request.count || manager->parts_open ||
        manager->pin_all)
        return tide_fail(TIDE_ERROR_STATE, "pin all: a step, a request or an update is open");
    if (manager->options.device_slots < chunk_count(manager))
        return tide_fail(TIDE_ERROR_BUDGET, "pin all: %u chunks, the device has %u slots",
                         chunk_count(manager), manager->options.device_slots);
    manager->pin_all = true;
    manager->pin_all_next = 0;
    tide_manager_changed(manager);
    return TIDE_OK;
}

bool tide_manager_all_pinned(const tide_manager *manager)
{
    return manager->pin_all && manager->pin_all_next == chunk_count(manager);
}

static void note_content(tide_manager *m, tide_chunk chunk)
{
    const tide_space space = tide_layout_chunk_space(m->layout, chunk);
    if (space == TIDE_SPACE_CHECKPOINT)
        return;
    if (space != TIDE_SPACE_PARAM) {
        tide_places_set_live(&m->places, chunk, true);
        return;
    }
    for (uint32_t i = 0; i < tide_layout_chunk_segments(m->layout, chunk); i++) {
        const uint32_t param = tide_layout_chunk_segment(m->layout, chunk, i).param;
        if (m->params[param].state == TIDE_TENSOR_FREE)
            tide_manager_set_param_state(m, param, TIDE_TENSOR_HOLD);
    }
}

static void pin(tide_manager *m, tide_chunk chunk)
{
    note_content(m, chunk);
    tide_places_pin(&m->places, chunk, TIDE_TIER_DEVICE);
    if (m->places.chunks[chunk].slot[TIDE_TIER_HOST] != TIDE_SLOT_NONE)
        tide_places_release(&m->places, chunk, TIDE_TIER_HOST);
    m->pin_all_next++;
}

bool tide_manager_next_pin_all(tide_manager *manager, tide_command *command)
{
    while (manager->pin_all_next < chunk_count(manager)) {
        const tide_chunk chunk = manager->pin_all_next;
        const tide_place *place = &manager->places.chunks[chunk];
        if (place->busy)
            return false;
        if (!place->valid[TIDE_TIER_DEVICE]) {
            assert(tide_manager_has_slot_for(manager, chunk));
            tide_manager_fetch(manager, chunk, TIDE_REASON_DEMAND, command);
            return true;
        }
        pin(manager, chunk);
    }
    return false;
}

tide_status tide_manager_unpin_all(tide_manager *manager)
{
    if (!tide_manager_all_pinned(manager))
        return tide_fail(TIDE_ERROR_STATE, "unpin all: not everything is pinned");
    for (tide_chunk chunk = 0; chunk < chunk_count(manager); chunk++)
        tide_places_unpin(&manager->places, chunk, TIDE_TIER_DEVICE);
    manager->pin_all = false;
    tide_manager_changed(manager);
    return TIDE_OK;
}
