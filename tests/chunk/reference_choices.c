#include "reference_choices.h"

#include "chunk/manager_internal.h"

#include <stdio.h>
#include <string.h>

ref_counts ref_choices_made;

static char problem[256];

const char *ref_choices_problem(void)
{
    return problem;
}

/* per chunk: the number of ops that must have ended on the device before the chunk's last use is over
 * there */
static uint64_t ends_of[REF_CHUNKS_MAX];
/* Uses are numbered in the order in which they end. turn_of: per chunk the number of its last use; turns: the
 * latest number. */
static uint32_t turn_of[REF_CHUNKS_MAX], turns;

void ref_choices_begin(void)
{
    problem[0] = 0;
    memset(ends_of, 0, sizeof ends_of);
}

/* The choice that a reference rule makes. */
typedef struct choice {
    bool any, copy;
    tide_command_kind kind;
    tide_chunk chunk;
    uint32_t host_slot; /* slot that a duplicate gives up for the copy; TIDE_SLOT_NONE: any slot */
} choice;

static void compare(const char *who, const choice *wanted, bool any, const tide_command *command,
                    uint64_t *count)
{
    *count += any;
    if (problem[0] || (!wanted->any && !any))
        return;
    if (wanted->any && any && wanted->kind == command->kind && wanted->chunk == command->chunk &&
        (command->kind > TIDE_COMMAND_WRITE_BACK || command->kind == TIDE_COMMAND_FETCH ||
         wanted->copy == command->copy) &&
        (wanted->host_slot == TIDE_SLOT_NONE || wanted->host_slot == command->host_slot))
        return;
    snprintf(
        problem, sizeof problem,
        "%s: %s %s of chunk %u (copy %d to %d), by the plain rule %s %s of chunk %u (copy %d to %d)", who,
        any ? "chose" : "chose nothing:", any ? tide_command_kind_name(command->kind) : "-",
        any ? command->chunk : TIDE_CHUNK_NONE, any && command->copy, any ? (int)command->host_slot : -1,
        wanted->any ? "it is" : "it is nothing:", wanted->any ? tide_command_kind_name(wanted->kind) : "-",
        wanted->chunk, wanted->copy, (int)wanted->host_slot);
}

static void compare_numbers(const char *who, uint64_t got, uint64_t wanted, uint64_t *count)
{
    *count += got != 0;
    if (!problem[0] && got != wanted)
        snprintf(problem, sizeof problem, "%s: %llu, by the plain rule it is %llu", who,
                 (unsigned long long)got, (unsigned long long)wanted);
}

static choice nothing(void)
{
    return (choice){.chunk = TIDE_CHUNK_NONE, .host_slot = TIDE_SLOT_NONE};
}

/* --- distance of the next use --- */

/* A distance as a sort key: first the number of schedule steps, then the number of the use, then the number
 * of the STATE chunk beside its PARAM chunk. */
static uint64_t far(uint64_t schedule_steps, uint32_t use, uint32_t state)
{
    return schedule_steps << 40 | (uint64_t)use << 8 | state;
}

static uint64_t far_never(const tide_future *f, tide_chunk chunk)
{
    return far(f->active ? tide_schedule_distance(&f->schedule, TIDE_USE_NONE) : (uint64_t)1 << 23, chunk, 0);
}

static uint64_t far_next(const tide_future *f, tide_chunk chunk, uint32_t state)
{
    const uint32_t use = tide_schedule_next(&f->schedule, chunk);
    return far(tide_schedule_distance(&f->schedule, use), use, state);
}

static bool is_used(const tide_future *f, tide_chunk chunk)
{
    return f->active->first[chunk] < f->active->first[chunk + 1];
}

/* Distance of a STATE chunk's next use by the update of one of its PARAM chunks, `owner`. */
static uint64_t far_of_owner(const tide_victims *v, tide_chunk owner, tide_chunk chunk)
{
    const tide_future *f = v->future;
    if (!v->pending->on_device[owner] || !is_used(f, owner))
        return far_never(f, chunk);
    const uint32_t state = 1 + chunk - tide_layout_piece(v->layout, owner, 0).state_chunk;
    if (tide_pending_has(v->pending, owner))
        return far_next(f, owner, state);
    const uint32_t last = tide_schedule_last(&f->schedule, owner);
    return far(tide_schedule_distance(&f->schedule, last), last, state);
}

/* Distance of the next time that the chunk is useful on the device (future.h). */
static uint64_t far_worth(const tide_victims *v, tide_chunk chunk)
{
    const tide_future *f = v->future;
    tide_chunk owner, last_owner;
    if (tide_layout_chunk_space(v->layout, chunk) != TIDE_SPACE_STATE)
        return tide_pending_must_leave(v->pending, chunk) || !is_used(f, chunk) ? far_never(f, chunk)
                                                                                : far_next(f, chunk, 0);
    uint64_t nearest = far_never(f, chunk);
    tide_layout_state_owners(v->layout, chunk, &owner, &last_owner);
    for (; owner <= last_owner; owner++) {
        const uint64_t worth = far_of_owner(v, owner, chunk);
        /* of several owners whose uses are in one schedule step the first counts */
        nearest = worth >> 40 < nearest >> 40 ? worth : nearest;
    }
    return nearest;
}

/* Returns a number of a use. Where no recording tells the next uses, a chunk's last use decides; all last
 * uses up to the returned number count as equally long ago. */
static uint64_t since_of(const tide_victims *v)
{
    const uint64_t uses = v->places->uses, told_apart = v->future->never_first;
    const bool anew = v->epoch != v->future->epoch || uses - v->since > told_apart;
    return !anew ? v->since : uses > told_apart / 2 ? uses - told_apart / 2 : 0;
}

static uint64_t remoteness(const tide_victims *v, tide_chunk chunk)
{
    if (v->future->active)
        return far_worth(v, chunk);
    const uint64_t last_use = tide_place_of(v->places, chunk)->last_use;
    return last_use <= since_of(v) ? far_never(v->future, chunk) : v->places->uses - last_use;
}

/* --- victims --- */

typedef struct victims_found {
    tide_chunk dead, clean, any;
    uint64_t dead_far, clean_far, any_far;
} victims_found;

static void keep_farther(tide_chunk *best, uint64_t *best_far, tide_chunk chunk, uint64_t how_far)
{
    if (*best != TIDE_CHUNK_NONE && *best_far >= how_far)
        return;
    *best = chunk;
    *best_far = how_far;
}

static victims_found find_victims(const tide_victims *v, uint32_t spared)
{
    victims_found found = {TIDE_CHUNK_NONE, TIDE_CHUNK_NONE, TIDE_CHUNK_NONE, 0, 0, 0};
    for (tide_chunk chunk = 0; chunk < v->places->chunk_count; chunk++) {
        const tide_place *place = tide_place_of(v->places, chunk);
        if (place->marks & spared || place->busy || place->pins[TIDE_TIER_DEVICE] ||
            !(tide_place_has(place, TIDE_TIER_DEVICE) || place->stale))
            continue;
        const uint64_t how_far = remoteness(v, chunk);
        if (!place->live || place->stale) {
            keep_farther(&found.dead, &found.dead_far, chunk, how_far);
            continue;
        }
        keep_farther(&found.any, &found.any_far, chunk, how_far);
        if (tide_place_has(place, TIDE_TIER_HOST))
            keep_farther(&found.clean, &found.clean_far, chunk, how_far);
    }
    return found;
}

/* Does a queued chunk drop out of the eviction queue? It does if a request or task wants it on the device
 * again or something pins it. */
static bool stays(const tide_eviction_queue *l, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(l->places, chunk);
    return place->marks & TIDE_MARK_ASSEMBLE_DEVICE || !tide_place_has(place, TIDE_TIER_DEVICE) ||
           place->pins[TIDE_TIER_DEVICE] ||
           (place->marks & TIDE_MARK_REQUESTED && !tide_pending_must_leave(l->pending, chunk));
}

/* A chunk's marks; with an eviction queue `l`, the marks that the chunk will have when the queue next looks:
 * chunks that drop out lose the queue's marks, and chunks that have been copied out lose WRITING. */
static uint32_t marks_of(const tide_victims *v, const tide_eviction_queue *l, tide_chunk chunk)
{
    const tide_place *place = tide_place_of(v->places, chunk);
    if (!l || !(place->marks & TIDE_MARKS_QUEUED))
        return place->marks;
    if (stays(l, chunk))
        return place->marks & ~(uint32_t)(TIDE_MARKS_QUEUED | TIDE_MARK_KEPT);
    return place->busy || tide_place_is_dirty(place) ? place->marks
                                                     : place->marks & ~(uint32_t)TIDE_MARK_WRITING;
}

/* The duplicate, a chunk with a copy on both tiers, that gives its host slot up: one in use on the device or,
 * if there is none, the one whose next use is nearest. */
static tide_chunk find_duplicate(const tide_victims *v, const tide_eviction_queue *l, uint32_t spared)
{
    tide_chunk best = TIDE_CHUNK_NONE;
    uint64_t nearest = UINT64_MAX;
    bool best_used = false;
    for (tide_chunk chunk = 0; chunk < v->places->chunk_count; chunk++) {
        const tide_place *place = tide_place_of(v->places, chunk);
        if (marks_of(v, l, chunk) & spared || place->busy || place->pins[TIDE_TIER_HOST] ||
            !tide_place_has(place, TIDE_TIER_DEVICE) || !tide_place_has(place, TIDE_TIER_HOST))
            continue;
        const bool used = place->pins[TIDE_TIER_DEVICE] > 0;
        const uint64_t how_far = remoteness(v, chunk);
        if (used < best_used || (used == best_used && how_far >= nearest))
            continue;
        best = chunk;
        best_used = used;
        nearest = how_far;
    }
    return best;
}

/* Find a host slot for a copy out. False if there is none. *slot: the slot that a duplicate gives up,
 * TIDE_SLOT_NONE if one is free. */
static bool find_host_slot(const tide_victims *v, const tide_eviction_queue *l, uint32_t spared,
                           uint32_t *slot)
{
    *slot = TIDE_SLOT_NONE;
    if (tide_places_free(v->places, TIDE_TIER_HOST))
        return true;
    const tide_chunk duplicate = find_duplicate(v, l, spared);
    if (duplicate != TIDE_CHUNK_NONE)
        *slot = tide_place_of(v->places, duplicate)->slot[TIDE_TIER_HOST];
    return duplicate != TIDE_CHUNK_NONE;
}

static choice choose_reclaimable(const tide_victims *v, tide_victim_rule rule)
{
    const victims_found found = find_victims(v, rule.spared);
    choice chosen = nothing();
    chosen.any = found.dead != TIDE_CHUNK_NONE;
    chosen.kind = TIDE_COMMAND_EVICT;
    chosen.chunk = found.dead;
    return chosen;
}

static choice choose_victim(const tide_victims *v, tide_victim_rule rule)
{
    const victims_found found = find_victims(v, rule.spared);
    choice chosen = nothing();
    chosen.kind = TIDE_COMMAND_EVICT;
    chosen.chunk = found.dead != TIDE_CHUNK_NONE ? found.dead : found.any;
    const bool clean_is_far_enough = v->future->active && found.clean != TIDE_CHUNK_NONE &&
                                     (found.clean_far >> 40) * 4 >= (found.any_far >> 40) * 3;
    if (found.dead == TIDE_CHUNK_NONE && clean_is_far_enough)
        chosen.chunk = found.clean;
    chosen.copy = chosen.chunk != found.dead && chosen.chunk != found.clean;
    if (chosen.copy && !find_host_slot(v, NULL, rule.spared_duplicates, &chosen.host_slot)) {
        chosen.chunk = found.clean;
        chosen.copy = false;
    }
    chosen.any = chosen.chunk != TIDE_CHUNK_NONE;
    return chosen;
}

static bool lies_idle_on_host(const tide_place *place)
{
    return place->slot[TIDE_TIER_HOST] != TIDE_SLOT_NONE && !(place->marks & TIDE_MARK_ASSEMBLE_HOST) &&
           !place->busy && !place->pins[TIDE_TIER_HOST] && !tide_place_has(place, TIDE_TIER_DEVICE);
}

static choice choose_promotion(const tide_victims *v, const tide_turn *turn)
{
    const uint32_t spared = TIDE_MARK_ASSEMBLE_DEVICE | (turn->request_yields ? 0u : TIDE_MARK_REQUESTED);
    const bool full = tide_places_free(v->places, TIDE_TIER_DEVICE) == 0;
    choice chosen = nothing();
    tide_chunk updated = TIDE_CHUNK_NONE;
    uint64_t farthest = 0, updated_near = 0;
    if (v->moves->promotions_open)
        return chosen;
    for (tide_chunk chunk = 0; chunk < v->places->chunk_count; chunk++) {
        const tide_place *place = tide_place_of(v->places, chunk);
        if (!lies_idle_on_host(place))
            continue;
        if (place->stale && !tide_pending_has(v->pending, chunk))
            keep_farther(&updated, &updated_near, chunk, ~remoteness(v, chunk));
        else if (!full)
            keep_farther(&chosen.chunk, &farthest, chunk, remoteness(v, chunk));
    }
    if (updated != TIDE_CHUNK_NONE)
        chosen.chunk = updated;
    chosen.kind = TIDE_COMMAND_FETCH;
    chosen.any = chosen.chunk != TIDE_CHUNK_NONE;
    if (chosen.any || !full)
        return chosen;
    const victims_found found = find_victims(v, spared);
    chosen.kind = TIDE_COMMAND_EVICT;
    chosen.chunk = found.dead != TIDE_CHUNK_NONE ? found.dead : found.clean;
    chosen.any = chosen.chunk != TIDE_CHUNK_NONE && v->moves->evictions_open == 0;
    return chosen;
}

bool __real_tide_victims_evict_reclaimable(tide_victims *v, tide_victim_rule rule, tide_reason reason,
                                           tide_command *command);
bool __wrap_tide_victims_evict_reclaimable(tide_victims *v, tide_victim_rule rule, tide_reason reason,
                                           tide_command *command);
bool __wrap_tide_victims_evict_reclaimable(tide_victims *v, tide_victim_rule rule, tide_reason reason,
                                           tide_command *command)
{
    const choice wanted = choose_reclaimable(v, rule);
    const bool any = __real_tide_victims_evict_reclaimable(v, rule, reason, command);
    compare("a victim worth nothing", &wanted, any, command, &ref_choices_made.victims);
    return any;
}

bool __real_tide_victims_evict(tide_victims *v, tide_victim_rule rule, tide_reason reason,
                               tide_command *command);
bool __wrap_tide_victims_evict(tide_victims *v, tide_victim_rule rule, tide_reason reason,
                               tide_command *command);
bool __wrap_tide_victims_evict(tide_victims *v, tide_victim_rule rule, tide_reason reason,
                               tide_command *command)
{
    const choice wanted = choose_victim(v, rule);
    const bool any = __real_tide_victims_evict(v, rule, reason, command);
    compare("a victim", &wanted, any, command, &ref_choices_made.victims);
    return any;
}

bool __real_tide_victims_promote(tide_victims *v, const tide_turn *turn, tide_command *command);
bool __wrap_tide_victims_promote(tide_victims *v, const tide_turn *turn, tide_command *command);
bool __wrap_tide_victims_promote(tide_victims *v, const tide_turn *turn, tide_command *command)
{
    const choice wanted = choose_promotion(v, turn);
    const bool any = __real_tide_victims_promote(v, turn, command);
    compare("a promotion", &wanted, any, command, &ref_choices_made.promotions);
    return any;
}

/* Exactly one chunk must have given up its host slot: the one that the reference rule chose. */
static void compare_dropped(const tide_victims *v, tide_chunk wanted, uint32_t free_before, bool any)
{
    ref_choices_made.duplicates += any;
    const bool gone = wanted != TIDE_CHUNK_NONE &&
                      tide_place_of(v->places, wanted)->slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE &&
                      tide_places_free(v->places, TIDE_TIER_HOST) == free_before + 1;
    if (!problem[0] && (any != (wanted != TIDE_CHUNK_NONE) || any != gone))
        snprintf(problem, sizeof problem,
                 "a duplicate: %s, by the plain rule chunk %u gives up its host copy",
                 any ? "another" : "none", wanted);
}

bool __real_tide_victims_drop_duplicate(tide_victims *v, uint32_t spared);
bool __wrap_tide_victims_drop_duplicate(tide_victims *v, uint32_t spared);
bool __wrap_tide_victims_drop_duplicate(tide_victims *v, uint32_t spared)
{
    const tide_chunk wanted = find_duplicate(v, NULL, spared);
    const uint32_t free_before = tide_places_free(v->places, TIDE_TIER_HOST);
    const bool any = __real_tide_victims_drop_duplicate(v, spared);
    compare_dropped(v, wanted, free_before, any);
    return any;
}

bool __real_tide_victims_free_host_slot(tide_victims *v, uint32_t spared);
bool __wrap_tide_victims_free_host_slot(tide_victims *v, uint32_t spared);
bool __wrap_tide_victims_free_host_slot(tide_victims *v, uint32_t spared)
{
    const uint32_t free_before = tide_places_free(v->places, TIDE_TIER_HOST);
    const tide_chunk wanted = free_before ? TIDE_CHUNK_NONE : find_duplicate(v, NULL, spared);
    const bool any = __real_tide_victims_free_host_slot(v, spared);
    if (free_before == 0)
        compare_dropped(v, wanted, free_before, any);
    return any;
}

/* --- eviction queue --- */

/* A sort key for the order in eviction_queue.h: the class of the chunk in the high bits, then the distance
 * of its next use. */
static uint64_t eviction_rank(const tide_eviction_queue *l, tide_chunk chunk)
{
    enum { CLEAN, URGENT, OVER, OFF, LATE };
    const uint64_t band = (uint64_t)1 << 60;
    const tide_place *place = tide_place_of(l->places, chunk);
    const tide_future *f = l->future;
    const bool late = ends_of[chunk] > l->passed, writes = place->marks & TIDE_MARK_WRITING;
    const bool off = !(place->marks & TIDE_MARK_EVICTING) && !tide_pending_has(l->pending, chunk);
    const uint64_t rank = tide_place_has(place, TIDE_TIER_HOST) || !place->live ? CLEAN
                          : late                                                ? LATE
                          : place->marks & TIDE_MARK_REQUESTED                  ? URGENT
                          : off                                                 ? OFF
                                                                                : OVER;
    if (rank == LATE)
        return rank * band + (ends_of[chunk] << 33) + ((uint64_t)writes << 32) + turn_of[chunk];
    if (!f->active || !is_used(f, chunk))
        return rank * band + (f->active ? (uint64_t)1 << 33 : 0) + chunk;
    const uint32_t use = tide_schedule_next(&f->schedule, chunk);
    const uint64_t from = f->active->schedule_step_first[f->schedule.cursor],
                   uses = f->active->schedule_step_first[f->active->length];
    return rank * band + (use >= from ? use - from : use + uses - from);
}

static choice choose_eviction(const tide_eviction_queue *l, uint32_t marks, bool with_copy)
{
    const uint32_t spared = TIDE_MARK_ASSEMBLE_HOST | TIDE_MARKS_QUEUED | TIDE_MARK_KEPT;
    choice chosen = nothing();
    uint64_t best = UINT64_MAX;
    for (tide_chunk chunk = 0; chunk < l->places->chunk_count; chunk++) {
        const tide_place *place = tide_place_of(l->places, chunk);
        const bool dirty = tide_place_is_dirty(place);
        /* a chunk with WRITING that is clean was already copied out */
        if (!(place->marks & (dirty ? marks : TIDE_MARK_EVICTING)) || place->busy || stays(l, chunk) ||
            (dirty && !with_copy))
            continue;
        const uint64_t rank = eviction_rank(l, chunk);
        if (rank >= best)
            continue;
        best = rank;
        chosen.any = true;
        chosen.chunk = chunk;
        chosen.copy = dirty;
        chosen.kind = place->marks & TIDE_MARK_EVICTING ? TIDE_COMMAND_EVICT : TIDE_COMMAND_WRITE_BACK;
    }
    if (chosen.copy)
        chosen.any = find_host_slot(l->victims, l, spared, &chosen.host_slot);
    return chosen;
}

void __real_tide_eviction_queue_use_ended(tide_eviction_queue *l, const tide_chunk *chunks, uint32_t count,
                                          uint32_t first_use, uint64_t ends);
void __wrap_tide_eviction_queue_use_ended(tide_eviction_queue *l, const tide_chunk *chunks, uint32_t count,
                                          uint32_t first_use, uint64_t ends);
void __wrap_tide_eviction_queue_use_ended(tide_eviction_queue *l, const tide_chunk *chunks, uint32_t count,
                                          uint32_t first_use, uint64_t ends)
{
    for (uint32_t i = 0; i < count; i++) {
        /* UINT64_MAX: no call has said how far the device is, so all uses count as over */
        ends_of[chunks[i]] = l->passed == UINT64_MAX ? 0 : ends;
        turn_of[chunks[i]] = ++turns;
    }
    __real_tide_eviction_queue_use_ended(l, chunks, count, first_use, ends);
}

bool __real_tide_eviction_queue_next(tide_eviction_queue *l, uint32_t marks, bool with_copy,
                                     tide_command *command);
bool __wrap_tide_eviction_queue_next(tide_eviction_queue *l, uint32_t marks, bool with_copy,
                                     tide_command *command);
bool __wrap_tide_eviction_queue_next(tide_eviction_queue *l, uint32_t marks, bool with_copy,
                                     tide_command *command)
{
    const choice wanted = choose_eviction(l, marks, with_copy);
    const bool any = __real_tide_eviction_queue_next(l, marks, with_copy, command);
    compare("who leaves", &wanted, any, command, &ref_choices_made.evictions);
    return any;
}

/* --- tasks --- */

/* The chunks of a pending update's next piece, its PARAM chunk first. Returns their number. */
static uint32_t task_chunks(const tide_tasks *t, tide_chunk param_chunk,
                            tide_chunk chunks[TIDE_TASK_CHUNKS_MAX])
{
    const tide_pending_update *update = &t->pending->chunks[param_chunk];
    const uint32_t piece = update->descends ? update->pieces - 1 - update->done : update->done;
    chunks[0] = param_chunk;
    chunks[1] = tide_layout_piece(t->layout, param_chunk, piece).state_chunk;
    return 2;
}

/* Are all chunks of the next piece on the host, or do those that are missing have no content, with enough
 * slots free there? An update writes all its chunks, a restore only its PARAM chunk. A chunk that the task
 * writes must be off the device or keep its slot there (KEPT). */
static bool is_ready_on_host(const tide_tasks *t, tide_chunk param_chunk)
{
    tide_chunk chunks[TIDE_TASK_CHUNKS_MAX];
    const bool updates = t->pending->chunks[param_chunk].kind == TIDE_PENDING_UPDATE;
    const uint32_t count = task_chunks(t, param_chunk, chunks);
    uint32_t needs_zero = 0;
    for (uint32_t i = 0; i < count; i++) {
        const tide_place *place = tide_place_of(t->places, chunks[i]);
        const bool written = updates || i == 0, kept = updates && place->marks & TIDE_MARK_KEPT;
        const bool goes = tide_place_has(place, TIDE_TIER_DEVICE) && ((written && !kept) || !place->live);
        if (place->busy || goes || tide_place_is_dirty(place))
            return false;
        needs_zero += place->slot[TIDE_TIER_HOST] == TIDE_SLOT_NONE;
    }
    return needs_zero <= tide_places_free(t->places, TIDE_TIER_HOST);
}

/* Is a task pending for the chunk and not running? With `first_only` it counts only if a request waits for
 * it. */
static bool counts(const tide_tasks *t, tide_chunk chunk, bool first_only)
{
    const tide_pending_update *update = &t->pending->chunks[chunk];
    return update->kind != TIDE_PENDING_NONE && !update->running &&
           (!first_only || tide_place_of(t->places, chunk)->marks & TIDE_MARK_FIRST);
}

static choice choose_ready(const tide_tasks *t, bool first_only)
{
    choice chosen = nothing();
    for (tide_chunk chunk = 0; tide_pending_is_param_chunk(t->pending, chunk) && !chosen.any; chunk++) {
        const tide_pending_update *update = &t->pending->chunks[chunk];
        if (!counts(t, chunk, first_only) || update->on_device || !is_ready_on_host(t, chunk))
            continue;
        chosen.any = t->running[TIDE_TIER_HOST] < TIDE_OPEN_TASKS_MAX;
        chosen.chunk = chunk;
        chosen.kind = update->kind == TIDE_PENDING_UPDATE ? TIDE_COMMAND_UPDATE : TIDE_COMMAND_RESTORE;
    }
    return chosen;
}

bool __real_tide_tasks_next_ready(tide_tasks *t, bool first_only, tide_command *command);
bool __wrap_tide_tasks_next_ready(tide_tasks *t, bool first_only, tide_command *command);
bool __wrap_tide_tasks_next_ready(tide_tasks *t, bool first_only, tide_command *command)
{
    const choice wanted = choose_ready(t, first_only);
    const bool any = __real_tide_tasks_next_ready(t, first_only, command);
    compare("a task on the host", &wanted, any, command, &ref_choices_made.ready);
    return any;
}

static tide_chunk first_pending(const tide_tasks *t, tide_tier tier, bool first_only)
{
    for (tide_chunk chunk = 0; tide_pending_is_param_chunk(t->pending, chunk); chunk++)
        if (counts(t, chunk, first_only) && t->pending->chunks[chunk].on_device == (tier == TIDE_TIER_DEVICE))
            return chunk;
    return TIDE_CHUNK_NONE;
}

/* Must the task for `update` wait for the one that the other tier assembles for `other`? It must if both
 * need the same chunk and `other` has precedence: only `other` has a request that waits for it, or both are
 * equal in this and `other` is the lower chunk. */
static bool is_held_back(const tide_tasks *t, tide_chunk update, tide_chunk other, const tide_chunk *others,
                         uint32_t other_count)
{
    tide_chunk chunks[TIDE_TASK_CHUNKS_MAX];
    const uint32_t count = task_chunks(t, update, chunks);
    bool shared = false;
    for (uint32_t i = 0; i < other_count; i++)
        for (uint32_t k = 0; k < count; k++)
            shared |= others[i] == chunks[k];
    if (!shared)
        return false;
    const bool wanted = tide_place_of(t->places, update)->marks & TIDE_MARK_FIRST,
               others_wanted = tide_place_of(t->places, other)->marks & TIDE_MARK_FIRST;
    return wanted == others_wanted ? other < update : others_wanted;
}

/* Remove from the two tiers' pending updates those that a task in assembly makes wait. If the first
 * remaining one makes the second wait, remove that, too. */
static void hold_back(const tide_tasks *t, tide_chunk update[TIDE_TIER_COUNT])
{
    const int first = update[TIDE_TIER_DEVICE] < update[TIDE_TIER_HOST] ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    for (int i = 0; i < TIDE_TIER_COUNT; i++) {
        const int tier = i == 0 ? first : !first;
        const tide_command *assembling = &t->assembling[!tier];
        tide_chunk other = assembling->chunk, others[TIDE_TASK_CHUNKS_MAX];
        uint32_t count = assembling->task_count;
        for (uint32_t k = 0; k < count; k++)
            others[k] = assembling->task[k].chunk;
        if (i == 1 && update[first] != TIDE_CHUNK_NONE) {
            other = update[first];
            count = task_chunks(t, other, others);
        }
        if (update[tier] == TIDE_CHUNK_NONE || !is_held_back(t, update[tier], other, others, count))
            continue;
        update[tier] = TIDE_CHUNK_NONE;
        ref_choices_made.held_back++;
    }
}

static bool assembles_same(const tide_tasks *t)
{
    const tide_command *a = &t->assembling[TIDE_TIER_DEVICE], *b = &t->assembling[TIDE_TIER_HOST];
    for (uint32_t i = 0; i < a->task_count; i++)
        for (uint32_t k = 0; k < b->task_count; k++)
            if (a->task[i].chunk == b->task[k].chunk)
                return true;
    return false;
}

/* The command must be for the first pending update of its tier. Nothing may be assembled on a tier without
 * one, and no chunk on both tiers. */
static void compare_assembly(const tide_tasks *t, const tide_chunk update[TIDE_TIER_COUNT], bool any,
                             const tide_command *command)
{
    const tide_tier first =
        update[TIDE_TIER_DEVICE] < update[TIDE_TIER_HOST] ? TIDE_TIER_DEVICE : TIDE_TIER_HOST;
    ref_choices_made.assembles += any;
    if (problem[0])
        return;
    if (assembles_same(t))
        snprintf(problem, sizeof problem, "chunks %u and %u assemble the same chunk", t->assembling[0].chunk,
                 t->assembling[1].chunk);
    if (any && command->kind > TIDE_COMMAND_WRITE_BACK) {
        if (command->chunk != update[command->tier])
            snprintf(problem, sizeof problem,
                     "an assembled task of chunk %u, by the plain rule it is of chunk %u", command->chunk,
                     update[command->tier]);
        return;
    }
    if (update[first] != TIDE_CHUNK_NONE &&
        (t->assembling[first].task_count == 0 || t->assembling[first].chunk != update[first]))
        snprintf(problem, sizeof problem, "assembled is chunk %u, by the plain rule it is chunk %u",
                 t->assembling[first].task_count ? t->assembling[first].chunk : TIDE_CHUNK_NONE,
                 update[first]);
    else if (any && update[TIDE_TIER_DEVICE] == TIDE_CHUNK_NONE && update[TIDE_TIER_HOST] == TIDE_CHUNK_NONE)
        snprintf(problem, sizeof problem, "assembled is something, by the plain rule it is nothing");
}

bool __real_tide_tasks_next_assembly(tide_tasks *t, const tide_turn *turn, bool first_only,
                                     tide_command *command);
bool __wrap_tide_tasks_next_assembly(tide_tasks *t, const tide_turn *turn, bool first_only,
                                     tide_command *command);
bool __wrap_tide_tasks_next_assembly(tide_tasks *t, const tide_turn *turn, bool first_only,
                                     tide_command *command)
{
    tide_chunk update[TIDE_TIER_COUNT];
    for (int tier = 0; tier < TIDE_TIER_COUNT; tier++) {
        const bool waits = tier == TIDE_TIER_HOST && turn->out_busy && !first_only;
        update[tier] = t->running[tier] >= TIDE_OPEN_TASKS_MAX || waits
                           ? TIDE_CHUNK_NONE
                           : first_pending(t, (tide_tier)tier, first_only);
    }
    hold_back(t, update);
    const bool any = __real_tide_tasks_next_assembly(t, turn, first_only, command);
    compare_assembly(t, update, any, command);
    return any;
}

/* --- request --- */

static bool is_waiting(const tide_request *r)
{
    return r->open && !r->ready;
}

static uint32_t count_pending(const tide_request *r)
{
    uint32_t count = 0;
    for (uint32_t i = r->pinned_count; is_waiting(r) && i < r->pin_count; i++)
        count += tide_pending_has(r->pending, r->pins[i]);
    return count;
}

static uint32_t count_slotless(const tide_request *r)
{
    uint32_t count = 0;
    for (uint32_t i = r->pinned_count; is_waiting(r) && i < r->pin_count; i++)
        count += tide_place_of(r->places, r->pins[i])->slot[TIDE_TIER_DEVICE] == TIDE_SLOT_NONE;
    return count;
}

static bool is_complete(const tide_request *r)
{
    for (uint32_t i = r->pinned_count; i < r->pin_count; i++)
        if (!tide_place_is_resident(tide_place_of(r->places, r->pins[i])))
            return false;
    return is_waiting(r) && count_pending(r) == 0;
}

/* The first chunk that is missing, has no pending update, and can get a slot. */
static choice choose_missing(const tide_request *r)
{
    choice chosen = nothing();
    for (uint32_t i = r->pinned_count; i < r->pin_count && !chosen.any; i++) {
        const tide_place *place = tide_place_of(r->places, r->pins[i]);
        if (place->busy || tide_place_has(place, TIDE_TIER_DEVICE) ||
            tide_pending_has(r->pending, r->pins[i]) ||
            !(place->stale || tide_places_free(r->places, TIDE_TIER_DEVICE)))
            continue;
        chosen.any = true;
        chosen.kind = TIDE_COMMAND_FETCH;
        chosen.chunk = r->pins[i];
    }
    return chosen;
}

bool __real_tide_request_waits_for_pending(tide_request *r);
bool __wrap_tide_request_waits_for_pending(tide_request *r);
bool __wrap_tide_request_waits_for_pending(tide_request *r)
{
    const bool waits = __real_tide_request_waits_for_pending(r);
    compare_numbers("a request waits for pending updates", waits, count_pending(r) > 0,
                    &ref_choices_made.pins);
    return waits;
}

uint32_t __real_tide_request_reserved(tide_request *r);
uint32_t __wrap_tide_request_reserved(tide_request *r);
uint32_t __wrap_tide_request_reserved(tide_request *r)
{
    const uint32_t reserved = __real_tide_request_reserved(r);
    compare_numbers("a request's slots to come", reserved, count_slotless(r), &ref_choices_made.pins);
    return reserved;
}

bool __real_tide_request_try_pin(tide_request *r);
bool __wrap_tide_request_try_pin(tide_request *r);
bool __wrap_tide_request_try_pin(tide_request *r)
{
    const bool wanted = is_complete(r), pinned = __real_tide_request_try_pin(r);
    compare_numbers("a request is complete", pinned, wanted, &ref_choices_made.pins);
    return pinned;
}

bool __real_tide_request_next(tide_request *r, tide_turn *turn, tide_command *command);
bool __wrap_tide_request_next(tide_request *r, tide_turn *turn, tide_command *command);
bool __wrap_tide_request_next(tide_request *r, tide_turn *turn, tide_command *command)
{
    const choice wanted = is_waiting(r) ? choose_missing(r) : nothing();
    const bool yields = turn->request_yields, any = __real_tide_request_next(r, turn, command);
    const bool fetches = any && command->kind == TIDE_COMMAND_FETCH && command->reason == TIDE_REASON_DEMAND;
    if (fetches || (!yields && wanted.any))
        compare("a request's fetch", &wanted, any, command, &ref_choices_made.pins);
    return any;
}

/* --- prefetch --- */

static const tide_trace_use *fetch_use(const tide_step_plan *step, uint32_t fetch)
{
    return &step->trace.uses[step->plan->fetches[fetch]];
}

typedef enum fetch_state { THERE, LATER, MISSING } fetch_state;

/* The state of a chunk whose next planned fetch is for a use `ahead` schedule steps from now. */
static fetch_state look_at(const tide_prefetch *p, tide_chunk chunk, uint32_t ahead)
{
    const tide_place *place = tide_place_of(p->places, chunk);
    const bool there = tide_place_has(place, TIDE_TIER_DEVICE),
               requested = place->marks & TIDE_MARK_REQUESTED;
    if (tide_pending_has(p->pending, chunk) || tide_pending_must_leave(p->pending, chunk))
        return LATER;
    if (!there)
        return !place->busy ? MISSING : requested ? LATER : THERE;
    const tide_schedule *schedule = &p->future->schedule;
    const bool used_before = tide_schedule_distance(schedule, tide_schedule_next(schedule, chunk)) < ahead;
    return used_before || requested || place->busy || place->marks & TIDE_MARK_EVICTING ||
                   place->pins[TIDE_TIER_DEVICE]
               ? LATER
               : THERE;
}

/* Has this walk already come to a fetch of the chunk? Remembers that it has now. */
static bool was_met(uint64_t walk, tide_chunk chunk)
{
    static uint64_t met[REF_CHUNKS_MAX];
    const bool before = met[chunk] == walk;
    met[chunk] = walk;
    return before;
}

static uint32_t first_fetch(const tide_step_plan *step, uint32_t cursor)
{
    for (uint32_t fetch = 0; fetch < step->plan->fetch_count; fetch++)
        if (fetch_use(step, fetch)->schedule_step >= cursor)
            return fetch;
    return 0;
}

static choice choose_fetch(const tide_prefetch *p, const tide_turn *turn)
{
    const tide_step_plan *step = tide_future_plan(p->future);
    const uint32_t free_now = tide_places_free(p->places, TIDE_TIER_DEVICE),
                   cursor = p->future->schedule.cursor;
    uint32_t free_slots = free_now > turn->reserved ? free_now - turn->reserved : 0;
    choice chosen = nothing();
    if (!step || !p->future->prefetch || turn->in_busy)
        return chosen;
    static uint64_t walk;
    walk++;
    const uint32_t fetches = step->plan->fetch_count, first = first_fetch(step, cursor);
    for (uint32_t i = 0; i < fetches; i++) {
        const uint32_t fetch = (first + i) % fetches, schedule_step = fetch_use(step, fetch)->schedule_step;
        const tide_chunk chunk = fetch_use(step, fetch)->chunk;
        const tide_place *place = tide_place_of(p->places, chunk);
        const bool in_place = step->plan->in_place[step->plan->fetches[fetch]];
        if (was_met(walk, chunk)) { /* only the next fetch of a chunk can begin */
            free_slots -= !in_place && free_slots > 0;
            continue;
        }
        const fetch_state state =
            look_at(p, chunk,
                    schedule_step >= cursor ? schedule_step - cursor
                                            : schedule_step + step->trace.schedule_step_count - cursor);
        if (state == MISSING && (free_slots > 0 || place->stale)) {
            chosen.any = true;
            chosen.kind = TIDE_COMMAND_FETCH;
            chosen.chunk = chunk;
            return chosen;
        }
        const bool keeps = place->stale || place->marks & TIDE_MARK_KEPT ||
                           (in_place && tide_place_has(place, TIDE_TIER_DEVICE));
        free_slots -= state != THERE && !keeps && free_slots > 0;
    }
    return chosen;
}

bool __real_tide_prefetch_next(tide_prefetch *p, const tide_turn *turn, tide_command *command);
bool __wrap_tide_prefetch_next(tide_prefetch *p, const tide_turn *turn, tide_command *command);
bool __wrap_tide_prefetch_next(tide_prefetch *p, const tide_turn *turn, tide_command *command)
{
    const choice wanted = choose_fetch(p, turn);
    const bool any = __real_tide_prefetch_next(p, turn, command);
    compare("a fetch ahead", &wanted, any, command, &ref_choices_made.fetches);
    return any;
}
