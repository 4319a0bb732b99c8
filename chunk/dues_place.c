/* Placement of updates: see dues.h. */
#include "chunk/dues.h"

#include <assert.h>
#include <string.h>

enum {
    SPARE_SLOTS = 1,
    PLACEMENT_STEPS = 16, /* updates change sides only by so large a part of all at once */
};

uint32_t tide_dues_task_slots(const tide_layout *layout)
{
    uint32_t slots = 0;
    for (int space = TIDE_SPACE_PARAM; space <= TIDE_SPACE_VARIANCE; space++)
        slots += tide_layout_space_chunks(layout, (tide_space)space) > 0;
    assert(slots >= 2);
    return slots;
}

static uint32_t states_a_part(const tide_dues *dues)
{
    return tide_dues_task_slots(dues->layout) - 1;
}

/* Chunks whose state the host has room for, with a copy of each. */
static uint32_t host_updates_max(const tide_dues *dues)
{
    return dues->slots[TIDE_TIER_HOST] / (states_a_part(dues) * tide_layout_parts_per_chunk(dues->layout) + 1);
}

/* Chunks whose update the device would end at the same time as the host the others, but no fewer than the host has no room
 * for. Not known yet: all. */
static uint32_t balanced_updates(const tide_dues *dues)
{
    const uint32_t chunks = tide_layout_space_chunks(dues->layout, TIDE_SPACE_PARAM);
    const double host = dues->seconds[TIDE_TIER_HOST], device = dues->seconds[TIDE_TIER_DEVICE];
    if (!(host > 0 && device > 0))
        return chunks;
    const uint32_t balanced = (uint32_t)(chunks * (host / (host + device)) + 0.5);
    assert(balanced <= chunks);
    const uint32_t elsewhere = host_updates_max(dues);
    return balanced + elsewhere < chunks ? chunks - elsewhere : balanced;
}

static void place(tide_dues *dues)
{
    const uint32_t chunks = tide_layout_space_chunks(dues->layout, TIDE_SPACE_PARAM);
    const uint32_t others = chunks + tide_layout_space_chunks(dues->layout, TIDE_SPACE_CHECKPOINT) + SPARE_SLOTS;
    const uint32_t device = dues->slots[TIDE_TIER_DEVICE];
    uint32_t margin = device > others ? device - others : 0, wanted = balanced_updates(dues);
    dues->balanced = wanted;
    for (tide_chunk i = 0; i < chunks; i++) {
        const uint32_t slots = states_a_part(dues) * dues->chunks[i].parts;
        const bool fits = dues->placement == TIDE_PLACEMENT_AUTO && slots <= margin && wanted > 0;
        margin = fits ? margin - slots : 0;
        wanted -= fits;
        dues->wanted_on_device[i] = fits || dues->placement == TIDE_PLACEMENT_DEVICE;
    }
}

void tide_dues_seal(tide_dues *dues, const uint32_t slots[TIDE_TIER_COUNT], tide_placement placement)
{
    assert(dues->count == 0 && slots[TIDE_TIER_DEVICE] > 0 && slots[TIDE_TIER_HOST] > 0);
    assert((unsigned)placement <= TIDE_PLACEMENT_DEVICE);
    memcpy(dues->slots, slots, sizeof dues->slots);
    dues->placement = placement;
    place(dues);
    memcpy(dues->on_device, dues->wanted_on_device,
           tide_layout_space_chunks(dues->layout, TIDE_SPACE_PARAM) * sizeof *dues->on_device);
}

void tide_dues_set_seconds(tide_dues *dues, double host_seconds, double device_seconds)
{
    assert(host_seconds >= 0 && device_seconds >= 0);
    dues->seconds[TIDE_TIER_HOST] = host_seconds;
    dues->seconds[TIDE_TIER_DEVICE] = device_seconds;
    const uint32_t chunks = tide_layout_space_chunks(dues->layout, TIDE_SPACE_PARAM);
    const uint32_t wanted = balanced_updates(dues), had = dues->balanced;
    const uint32_t moved = wanted > had ? wanted - had : had - wanted;
    if (dues->placement == TIDE_PLACEMENT_AUTO && moved * PLACEMENT_STEPS >= chunks)
        place(dues);
}

uint32_t tide_dues_state_slots(const tide_dues *dues)
{
    uint32_t on_device = 0, in_all = 0;
    for (tide_chunk chunk = 0; tide_dues_is_param_chunk(dues, chunk); chunk++) {
        const uint32_t states = states_a_part(dues) * dues->chunks[chunk].parts;
        in_all += states;
        on_device += dues->on_device[chunk] && dues->placement == TIDE_PLACEMENT_AUTO ? states : 0;
    }
    assert(on_device <= in_all);
    const uint32_t room = dues->slots[TIDE_TIER_HOST];
    const uint32_t off_host = in_all - on_device > room ? in_all - on_device - room : 0;
    return on_device + off_host;
}
