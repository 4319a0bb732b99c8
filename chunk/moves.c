#include "chunk/moves.h"

#include <assert.h>

/* --- open commands --- */

void tide_moves_init(tide_moves *moves, const tide_layout *layout, tide_places *places,
                     tide_manager_counters *counters)
{
    *moves = (tide_moves){
        .layout = layout, .places = places, .counters = counters, .free_count = TIDE_OPEN_COMMANDS_MAX};
    for (uint32_t i = 0; i < TIDE_OPEN_COMMANDS_MAX; i++) {
        moves->open[i].id = TIDE_OPEN_COMMANDS_MAX + i;
        moves->free[i] = TIDE_OPEN_COMMANDS_MAX - 1 - i;
    }
}

void tide_moves_issue(tide_moves *moves, tide_command *command)
{
    assert(moves->free_count > 0);
    assert((unsigned)command->kind <= TIDE_COMMAND_COLLECTIVE &&
           (unsigned)command->reason <= TIDE_REASON_PROMOTE);
    const uint32_t at = moves->free[--moves->free_count];
    command->id = moves->open[at].id;
    moves->open[at] = *command;
}

const tide_command *tide_moves_find(const tide_moves *moves, uint32_t id)
{
    const tide_command *open = &moves->open[id % TIDE_OPEN_COMMANDS_MAX];
    assert(open->id == id);
    return open;
}

void tide_moves_close(tide_moves *moves, uint32_t id)
{
    const uint32_t at = id % TIDE_OPEN_COMMANDS_MAX;
    assert(moves->open[at].id == id && moves->free_count < TIDE_OPEN_COMMANDS_MAX);
    moves->open[at].id += TIDE_OPEN_COMMANDS_MAX;
    moves->free[moves->free_count++] = at;
}

/* --- moves --- */

/* Issue the command of a move, whose slots are taken already. */
static void begin(tide_moves *moves, const tide_place *place, tide_command *command)
{
    command->device_slot = place->slot[TIDE_TIER_DEVICE];
    command->host_slot = place->slot[TIDE_TIER_HOST];
    tide_places_open(moves->places, command->chunk);
    tide_moves_issue(moves, command);
}

void tide_moves_fetch(tide_moves *moves, tide_chunk chunk, tide_reason reason, tide_command *command)
{
    const tide_place *place = tide_place_of(moves->places, chunk);
    assert(!place->busy && !tide_place_has(place, TIDE_TIER_DEVICE));
    const bool copy = place->live && tide_place_has(place, TIDE_TIER_HOST), in_place = place->stale;
    assert(tide_places_has_slot_for(moves->places, chunk) && (copy || !in_place));
    const bool zero = !copy && tide_layout_chunk_space(moves->layout, chunk) != TIDE_SPACE_ACTIVATION;
    if (!in_place)
        (void)tide_places_take(moves->places, chunk, TIDE_TIER_DEVICE);
    moves->promotions_open += reason == TIDE_REASON_PROMOTE;
    *command = (tide_command){.kind = TIDE_COMMAND_FETCH,
                              .reason = reason,
                              .chunk = chunk,
                              .copy = copy,
                              .in_place = in_place,
                              .zero = zero};
    begin(moves, place, command);
}

void tide_moves_out(tide_moves *moves, tide_command_kind kind, tide_chunk chunk, bool copy,
                    tide_reason reason, tide_command *command)
{
    const tide_place *place = tide_place_of(moves->places, chunk);
    const bool evict = kind == TIDE_COMMAND_EVICT;
    assert(evict || (kind == TIDE_COMMAND_WRITE_BACK && copy && !place->busy));
    assert(!evict || tide_place_is_movable(place) || (tide_place_is_reclaimable(place) && !copy));
    assert(!copy || (tide_place_is_dirty(place) && tide_places_free(moves->places, TIDE_TIER_HOST) > 0));
    if (copy)
        (void)tide_places_take(moves->places, chunk, TIDE_TIER_HOST);
    moves->evictions_open += evict;
    *command = (tide_command){.kind = kind, .reason = reason, .chunk = chunk, .copy = copy};
    begin(moves, place, command);
}

/* --- done --- */

static void count(tide_manager_counters *counters, const tide_command *command)
{
    const bool evict = command->kind == TIDE_COMMAND_EVICT, fetch = command->kind == TIDE_COMMAND_FETCH;
    counters->evictions += evict;
    counters->clean_drops += evict && !command->copy;
    counters->write_backs += command->kind == TIDE_COMMAND_WRITE_BACK;
    counters->demand_fetches += fetch && command->reason == TIDE_REASON_DEMAND;
    counters->prefetches += fetch && command->reason == TIDE_REASON_PREFETCH;
    counters->promotions += fetch && command->reason == TIDE_REASON_PROMOTE;
}

static void finish_fetch(tide_moves *moves, const tide_command *command, bool ok)
{
    assert(moves->promotions_open > 0 || command->reason != TIDE_REASON_PROMOTE);
    moves->promotions_open -= command->reason == TIDE_REASON_PROMOTE;
    if (ok) {
        tide_places_set_valid(moves->places, command->chunk, TIDE_TIER_DEVICE);
        tide_places_unmark(moves->places, command->chunk, TIDE_MARK_KEPT);
    } else if (!command->in_place) {
        tide_places_release(moves->places, command->chunk, TIDE_TIER_DEVICE);
    }
}

static void finish_out(tide_moves *moves, const tide_command *command, bool ok)
{
    const bool evict = command->kind == TIDE_COMMAND_EVICT;
    assert(moves->evictions_open > 0 || !evict);
    moves->evictions_open -= evict;
    if (ok && command->copy)
        tide_places_set_valid(moves->places, command->chunk, TIDE_TIER_HOST);
    if (!ok || !evict)
        return;
    tide_places_unmark(moves->places, command->chunk, TIDE_MARK_KEPT);
    tide_places_release(moves->places, command->chunk, TIDE_TIER_DEVICE);
}

void tide_moves_finish(tide_moves *moves, const tide_command *command, bool ok)
{
    assert((unsigned)command->kind <= TIDE_COMMAND_WRITE_BACK);
    assert(tide_place_of(moves->places, command->chunk)->slot[TIDE_TIER_DEVICE] == command->device_slot);
    assert(tide_place_of(moves->places, command->chunk)->slot[TIDE_TIER_HOST] == command->host_slot);
    tide_places_close(moves->places, command->chunk);
    if (command->kind == TIDE_COMMAND_FETCH)
        finish_fetch(moves, command, ok);
    else
        finish_out(moves, command, ok);
    if (ok)
        count(moves->counters, command);
    tide_places_tidy_host(moves->places, command->chunk);
}
