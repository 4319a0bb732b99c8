/* Prefetch: walk along the recorded schedule from the cursor on, wrapping into the next step, and bring in
 * what is not on the device, in order of use. For a missing chunk, needed in `ahead` moments:
 *
 *   1. it goes into a free device slot;
 *   2. a slot is about to be free (an eviction is open): it will go there, look at the next one;
 *   3. a victim that is needed later than in `ahead` moments leaves;
 *   4. there is none: the walk ends, everything after is needed later still.
 *
 * The slices to come of the open op are the first moments ahead, so nothing needed later takes their slots. A
 * CHECKPOINT chunk without content is brought in like any other, without a copy: its next use is a WRITE,
 * which needs a mapped slot as much, and a mapping costs time too.
 *
 * The walk remembers how many moments ahead are all on the device, and that it had nothing to do, until
 * something happens. So next() costs next to nothing when nothing is to be done.
 */
#include "chunk/manager_internal.h"

#include <assert.h>

typedef enum walk_result { WALK_PRESENT, WALK_COMING, WALK_MOVED, WALK_ENDED } walk_result;

static walk_result bring_in(tide_manager *m, tide_chunk chunk, uint32_t ahead, uint32_t *coming,
                            tide_command *command)
{
    const tide_place *place = &m->places.chunks[chunk];
    if (tide_place_is_resident(place) || tide_manager_has_work(m, chunk) || tide_manager_must_leave(m, chunk))
        return WALK_PRESENT; /* with work, or soon: whoever finishes it sends the walk back */
    if (place->busy)
        return WALK_COMING;
    assert(!(m->marks[chunk] & TIDE_MARK_REQUESTED) || !m->request.ready);
    if (m->places.tier[TIDE_TIER_DEVICE].free_count > 0) {
        tide_manager_fetch(m, chunk, TIDE_REASON_PREFETCH, command);
        return WALK_MOVED;
    }
    if (*coming > 0) {
        --*coming;
        return WALK_COMING;
    }
    tide_victim_rule rule = {.spared = TIDE_MARK_GATHER_DEVICE | TIDE_MARK_REQUESTED,
                             .spared_duplicates = TIDE_MARK_GATHER_HOST,
                             .farther_than = ahead,
                             .bounded = true};
    return tide_manager_evict_victim(m, rule, TIDE_REASON_PREFETCH, command) ? WALK_MOVED : WALK_ENDED;
}

static bool walk(tide_manager *m, uint32_t length, tide_command *command)
{
    uint32_t coming = m->evictions_open;
    bool unbroken = true;
    for (uint32_t ahead = m->prefetch_ahead; ahead < length; ahead++) {
        uint32_t count;
        const tide_chunk *chunks = tide_schedule_ahead(&m->schedule, ahead, &count);
        for (uint32_t i = 0; i < count; i++) {
            walk_result result = bring_in(m, chunks[i], ahead, &coming, command);
            if (result == WALK_MOVED || result == WALK_ENDED)
                return result == WALK_MOVED;
            unbroken &= result == WALK_PRESENT;
        }
        if (unbroken)
            m->prefetch_ahead = ahead + 1;
    }
    return false;
}

bool tide_manager_next_prefetch(tide_manager *manager, tide_command *command)
{
    const tide_recording *recording = tide_schedule_active(&manager->schedule);
    assert(!manager->request.open || manager->request.ready || manager->request.pin_count > 0);
    if (!manager->options.prefetch || !recording || manager->prefetch_idle || manager->host_request.count)
        return false;
    if (walk(manager, recording->length, command))
        return true;
    manager->prefetch_idle = true;
    return false;
}
