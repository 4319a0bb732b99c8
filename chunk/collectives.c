#include "chunk/collectives.h"

#include <assert.h>

/* At most the gathers of three ops wait in the roll: of an op that was expected when the step began, or
 * beside another op, and did not come; of the open op; and of the one expected next. */
enum { GATHERING_OPS = 3, OTHERS = 2 /* the REDUCE of the op that closes, and a NORM */ };

uint32_t tide_roll_capacity(const tide_ops *ops)
{
    return GATHERING_OPS * tide_frames_needed(ops, false) + TIDE_EARLY_REDUCES_MAX + OTHERS;
}

tide_status tide_collectives_create(tide_collectives *collectives, const tide_ops *ops, tide_tasks *tasks,
                                    uint32_t frames, bool ahead)
{
    tide_collectives *c = collectives;
    *c = (tide_collectives){.ops = ops,
                            .places = tasks->places,
                            .moves = tasks->moves,
                            .pending = tasks->pending,
                            .tasks = tasks,
                            .marked = TIDE_CHUNK_NONE,
                            .closing = TIDE_OP_NONE};
    tide_roll_create(&c->roll, tide_roll_capacity(ops), &c->arrays);
    if (c->arrays.lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %u collectives", c->roll.capacity);
    return tide_frames_create(&c->frames, ops, &c->roll, frames, ahead);
}

void tide_collectives_destroy(tide_collectives *collectives)
{
    tide_frames_destroy(&collectives->frames);
    tide_arrays_free(&collectives->arrays);
    *collectives = (tide_collectives){.ops = NULL};
}

/* --- reduces --- */

bool tide_collectives_reduce(tide_collectives *collectives, tide_op op, uint32_t param, uint64_t first,
                             uint64_t count)
{
    if (collectives->early_reduces == TIDE_EARLY_REDUCES_MAX)
        return false;
    collectives->early_reduces++;
    (void)tide_roll_append(
        &collectives->roll,
        &(tide_collective){
            .kind = TIDE_COLLECTIVE_REDUCE, .op = op, .param = param, .first = first, .count = count});
    return true;
}

/* Pin or unpin the chunks that the op's end modifies. */
static void hold(tide_collectives *c, tide_op op, bool pinned)
{
    const tide_op_record *record = &c->ops->records[op];
    for (uint32_t i = 0; i < record->chunks.count; i++) {
        if (record->modifies[i] && pinned)
            tide_places_pin(c->places, record->chunks.list[i], TIDE_TIER_DEVICE);
        else if (record->modifies[i])
            tide_places_unpin(c->places, record->chunks.list[i], TIDE_TIER_DEVICE);
    }
}

void tide_collectives_close(tide_collectives *collectives, tide_op op, uint32_t first_use)
{
    assert(collectives->closing == TIDE_OP_NONE);
    collectives->closing = op;
    collectives->closing_use = first_use;
    hold(collectives, op, true);
    (void)tide_roll_append(
        &collectives->roll,
        &(tide_collective){.kind = TIDE_COLLECTIVE_REDUCE, .op = op, .param = TIDE_PARAM_NONE});
}

void tide_collectives_closed(tide_collectives *collectives)
{
    assert(collectives->closing != TIDE_OP_NONE);
    hold(collectives, collectives->closing, false);
    collectives->closing = TIDE_OP_NONE;
}

/* --- the head --- */

static bool may_gather(const tide_collectives *c, tide_chunk chunk)
{
    return tide_place_is_resident(tide_place_of(c->places, chunk)) && !tide_pending_has(c->pending, chunk);
}

bool tide_collectives_next(tide_collectives *collectives, tide_command *command)
{
    tide_collectives *c = collectives;
    const tide_collective *head = tide_roll_head(&c->roll);
    const bool gathers = head != NULL && head->kind == TIDE_COLLECTIVE_GATHER;
    if (head == NULL || c->running || (gathers && !may_gather(c, head->group)))
        return false;
    *command = (tide_command){.kind = TIDE_COMMAND_COLLECTIVE,
                              .chunk = gathers ? head->group : TIDE_CHUNK_NONE,
                              .device_slot = TIDE_SLOT_NONE,
                              .host_slot = TIDE_SLOT_NONE,
                              .collective = *head};
    if (gathers) {
        command->device_slot = tide_place_of(c->places, head->group)->slot[TIDE_TIER_DEVICE];
        tide_places_pin(c->places, head->group, TIDE_TIER_DEVICE);
    }
    tide_moves_issue(c->moves, command);
    c->running = true;
    return true;
}

/* Mark the head's chunk, so that the update for which the head waits comes first. */
static void mark(tide_collectives *c, tide_chunk chunk)
{
    if (!(tide_place_of(c->places, chunk)->marks & TIDE_MARK_FIRST))
        tide_places_mark(c->places, chunk, TIDE_MARK_FIRST);
    c->marked = chunk;
}

static void unmark(tide_collectives *c)
{
    /* a request that needs the chunk has marked it, too, and clears the mark itself */
    if (c->marked != TIDE_CHUNK_NONE && !(tide_place_of(c->places, c->marked)->marks & TIDE_MARK_REQUESTED))
        tide_places_unmark(c->places, c->marked, TIDE_MARK_FIRST);
    c->marked = TIDE_CHUNK_NONE;
}

/* Evict a chunk for the head's: one that no request or device task needs or, if the request waits for the
 * head, any that is not pinned. */
static bool make_space(tide_collectives *c, bool blocks, tide_command *command)
{
    const tide_reason reason = blocks ? TIDE_REASON_DEMAND : TIDE_REASON_PREFETCH;
    tide_victim_rule rule = {.spared = TIDE_MARK_REQUESTED | (blocks ? 0 : TIDE_MARK_ASSEMBLE_DEVICE)};
    if (c->moves->evictions_open > 0)
        return false;
    if (tide_victims_evict(c->tasks->victims, rule, reason, command))
        return true;
    rule.spared = 0;
    return blocks && tide_victims_evict(c->tasks->victims, rule, reason, command);
}

bool tide_collectives_bring(tide_collectives *collectives, tide_turn *turn, bool blocks,
                            tide_command *command)
{
    tide_collectives *c = collectives;
    const tide_collective *head = tide_roll_head(&c->roll);
    if (head == NULL || head->kind != TIDE_COLLECTIVE_GATHER || c->running)
        return false;
    const tide_chunk chunk = head->group;
    const tide_place *place = tide_place_of(c->places, chunk);
    if (place->marks & TIDE_MARK_REQUESTED)
        return false;
    if (tide_pending_has(c->pending, chunk)) {
        tide_turn taken = *turn;
        taken.request_yields |= blocks;
        mark(c, chunk);
        return tide_tasks_next_ready(c->tasks, true, command) ||
               tide_tasks_next_assembly(c->tasks, &taken, true, command);
    }
    if (place->busy || tide_place_has(place, TIDE_TIER_DEVICE))
        return false;
    if (tide_places_has_slot_for(c->places, chunk)) {
        tide_moves_fetch(c->moves, chunk, blocks ? TIDE_REASON_DEMAND : TIDE_REASON_PREFETCH, command);
        return true;
    }
    turn->prefetches = false;
    return make_space(c, blocks, command);
}

bool tide_collectives_needs_slots(const tide_collectives *collectives)
{
    const tide_collective *head = tide_roll_head(&collectives->roll);
    return head != NULL && head->kind == TIDE_COLLECTIVE_GATHER && !collectives->running &&
           tide_pending_has(collectives->pending, head->group) &&
           collectives->tasks->assembling[TIDE_TIER_DEVICE].chunk == head->group &&
           collectives->tasks->assembling[TIDE_TIER_DEVICE].task_count > 0;
}

void tide_collectives_finish(tide_collectives *collectives, bool ok)
{
    const tide_collective *head = tide_roll_head(&collectives->roll);
    assert(collectives->running && head != NULL);
    collectives->running = false;
    if (head->kind == TIDE_COLLECTIVE_GATHER)
        tide_places_unpin(collectives->places, head->group, TIDE_TIER_DEVICE);
    if (!ok)
        return;
    collectives->early_reduces -= head->kind == TIDE_COLLECTIVE_REDUCE && head->param != TIDE_PARAM_NONE;
    unmark(collectives);
    tide_roll_pop(&collectives->roll);
}

void tide_collectives_stop(tide_collectives *collectives)
{
    assert(!collectives->running);
    if (collectives->closing != TIDE_OP_NONE)
        tide_collectives_closed(collectives);
    unmark(collectives);
    tide_roll_clear(&collectives->roll);
    tide_frames_forget(&collectives->frames);
    collectives->early_reduces = 0;
    collectives->stopped = true;
}
