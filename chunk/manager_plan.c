/* The plan at work: a trace made from the recorded schedule, and what the manager does along the plan made from it.
 *
 *   at a step's end   if the recording or the placement of updates is new, a trace is made and planned (planner.h)
 *   at a use's end    a chunk that the plan lets go is queued; next() evicts it at once, so that its copy out begins as
 *                     early as it can. One whose gradients are complete and whose update is on the host is copied out,
 *                     too; if the plan lets it keep its slot, that stays mapped for the updated values
 *   meanwhile         planned fetches, in order of need, each into a free slot or its own (the walk)
 *
 * The walk. A planned fetch may take a slot only if every planned fetch needed sooner has, or can still have, one. Some
 * of those cannot begin: their chunk has still to be used, or is on its way out, or owes its update. A free slot is set
 * aside for each of them that does not wait in its own.
 *
 *   fetches in order of need   a      b          c       d
 *                              there  to leave   owes    missing     3 slots free: 2 are set aside, d takes the third
 *
 * So nothing fetched ahead has ever to make room for something needed sooner, which would move it twice.
 *
 * Whatever is not as planned (another order of ops, a host request between steps, a slot lent to a task) costs a fetch on
 * demand with a victim of the general rule (manager_slots.c), and the plan goes on from there: it says only what to do
 * at a use and for a use, so it is right again as soon as the uses are. The walk remembers how many of its fetches are
 * there, until something leaves that it had not planned.
 */
#include "chunk/manager_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    SPARE_SLOTS_MAX = 2,
    TIGHT_ONE_IN = 16, /* planned fetches that may be tight before a slot is spared */
    LATER_MAX = 1024,  /* planned fetches that cannot begin yet, passed in one walk */
};

/* --- memory --- */

tide_status tide_manager_plans_create(tide_manager *manager)
{
    const uint32_t chunks = tide_layout_chunk_count(manager->layout), uses = manager->schedule.use_capacity;
    manager->leaving.next = calloc(chunks, sizeof *manager->leaving.next);
    manager->leaving.ends = calloc(chunks, sizeof *manager->leaving.ends);
    manager->ends_passed = UINT64_MAX;
    manager->live_parts = calloc(chunks, sizeof *manager->live_parts);
    manager->part_live = calloc(manager->part_first[tide_layout_checkpoints(manager->layout)] + 1u, 1);
    bool complete =
        manager->leaving.next && manager->leaving.ends && manager->live_parts && manager->part_live;
    for (int kind = 0; kind < TIDE_SCHEDULE_KINDS && complete; kind++) {
        tide_step_plan *step = &manager->plans[kind];
        step->trace.uses = malloc(uses * sizeof *step->trace.uses);
        step->first_use = malloc((manager->schedule.moment_capacity + 1u) * sizeof *step->first_use);
        complete =
            step->trace.uses && step->first_use &&
            tide_planner_create(
                chunks, uses > manager->schedule.moment_capacity ? uses : manager->schedule.moment_capacity,
                &step->planner) == TIDE_OK;
    }
    if (complete)
        return TIDE_OK;
    tide_manager_plans_destroy(manager);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for plans of %u uses of %u chunks", uses,
                     chunks);
}

void tide_manager_plans_destroy(tide_manager *manager)
{
    for (int kind = 0; kind < TIDE_SCHEDULE_KINDS; kind++) {
        tide_step_plan *step = &manager->plans[kind];
        free(step->trace.uses);
        free(step->first_use);
        tide_planner_destroy(step->planner);
        *step = (tide_step_plan){.plan = NULL};
    }
    free(manager->leaving.next);
    free(manager->leaving.ends);
    manager->leaving.ends = NULL;
    free(manager->live_parts);
    free(manager->part_live);
    manager->leaving.next = NULL;
    manager->live_parts = NULL;
    manager->part_live = NULL;
}

/* --- the trace of a recording --- */

static void add_use(tide_use_trace *trace, uint32_t moment, tide_chunk chunk, uint32_t flags,
                    uint32_t held_moments)
{
    trace->uses[trace->use_count++] =
        (tide_trace_use){.moment = moment, .chunk = chunk, .flags = flags, .held_moments = held_moments};
}

/* An op holds its params through its slices. */
static uint32_t slices_after(const tide_recording *recording, uint32_t moment)
{
    uint32_t end = moment + 1;
    while (end < recording->length && recording->moments[end].slice != TIDE_SLICE_NONE)
        end++;
    return end - moment - 1;
}

static void trace_params(const tide_manager *m, const tide_recording *recording, uint32_t moment,
                         bool training, tide_use_trace *trace)
{
    const tide_op_record *op = &m->ops[recording->moments[moment].op];
    const uint32_t held = slices_after(recording, moment);
    for (uint32_t i = 0; i < op->chunk_count; i++)
        add_use(trace, moment, op->chunks[i], training && op->modifies[i] ? TIDE_TRACE_MODIFIES : 0, held);
}

static tide_trace_use *find_use(tide_use_trace *trace, uint32_t first, tide_chunk chunk)
{
    while (trace->uses[first].chunk != chunk)
        first++;
    assert(first < trace->use_count);
    return &trace->uses[first];
}

/* A part of a CHECKPOINT tensor gets or loses its content. */
static void set_part_live(tide_manager *m, uint32_t tensor, uint32_t part, bool live)
{
    uint8_t *was = &m->part_live[m->part_first[tensor] + part];
    tide_chunk first, last;
    if (*was == live)
        return;
    *was = live;
    tide_layout_checkpoint_chunks(m->layout, tensor, part, &first, &last);
    for (tide_chunk chunk = first; chunk <= last; chunk++)
        m->live_parts[chunk] += live ? 1u : UINT32_MAX;
}

static void trace_slice(tide_manager *m, tide_moment moment, uint32_t number, tide_use_trace *trace)
{
    const tide_op_record *op = &m->ops[moment.op];
    const uint32_t first_use = trace->use_count;
    for (uint32_t i = op->slice_first[moment.slice]; i < op->slice_first[moment.slice + 1]; i++)
        add_use(trace, number, op->slice_chunks[i], 0, 0);
    for (uint32_t i = 0; i < op->checkpoint_count; i++)
        if (!(op->checkpoints[i].access & TIDE_ACCESS_READ)) /* written whole: what it held is dead */
            set_part_live(m, op->checkpoints[i].tensor, moment.slice, false);
    for (uint32_t use = first_use; use < trace->use_count; use++)
        trace->uses[use].flags |= m->live_parts[trace->uses[use].chunk] == 0 ? TIDE_TRACE_CREATES : 0;
    for (uint32_t i = 0; i < op->checkpoint_count; i++) {
        const tide_use *use = &op->checkpoints[i];
        tide_chunk first, last;
        set_part_live(m, use->tensor, moment.slice, true);
        tide_layout_checkpoint_chunks(m->layout, use->tensor, moment.slice, &first, &last);
        for (tide_chunk chunk = first; use->access & TIDE_ACCESS_WRITE && chunk <= last; chunk++)
            find_use(trace, first_use, chunk)->flags |= TIDE_TRACE_MODIFIES;
    }
    for (uint32_t i = 0; i < op->checkpoint_count; i++)
        if (op->checkpoints[i].access & TIDE_ACCESS_LAST)
            set_part_live(m, op->checkpoints[i].tensor, moment.slice, false);
    for (uint32_t use = first_use; use < trace->use_count; use++)
        trace->uses[use].flags |= m->live_parts[trace->uses[use].chunk] == 0 ? TIDE_TRACE_ENDS : 0;
}

/* After its last use in a step a checkpoint is dead, and a param is updated. */
static void trace_last_uses(tide_manager *m, bool training, tide_use_trace *trace)
{
    m->seen_stamp++;
    for (uint32_t i = trace->use_count; i-- > 0;) {
        tide_trace_use *use = &trace->uses[i];
        if (m->seen[use->chunk] == m->seen_stamp)
            continue;
        m->seen[use->chunk] = m->seen_stamp;
        if (!tide_manager_is_param_chunk(m, use->chunk))
            use->flags |= TIDE_TRACE_ENDS;
        else if (training)
            use->flags |= m->update_on_device[use->chunk] ? TIDE_TRACE_MODIFIES
                                                          : TIDE_TRACE_MODIFIES | TIDE_TRACE_LEAVES;
    }
}

static void make_trace(tide_manager *m, uint32_t kind)
{
    const tide_recording *recording = &m->schedule.recordings[kind];
    const bool training = kind == TIDE_SCHEDULE_TRAINING;
    tide_step_plan *step = &m->plans[kind];
    tide_use_trace *trace = &step->trace;
    trace->moment_count = recording->length;
    trace->chunk_count = tide_layout_chunk_count(m->layout);
    trace->use_count = 0;
    memset(m->live_parts, 0, trace->chunk_count * sizeof *m->live_parts);
    memset(m->part_live, 0, m->part_first[tide_layout_checkpoints(m->layout)]);
    for (uint32_t moment = 0; moment < recording->length; moment++) {
        step->first_use[moment] = trace->use_count;
        if (recording->moments[moment].slice == TIDE_SLICE_NONE)
            trace_params(m, recording, moment, training, trace);
        else
            trace_slice(m, recording->moments[moment], moment, trace);
    }
    step->first_use[recording->length] = trace->use_count;
    trace_last_uses(m, training, trace);
}

/* --- planning --- */

/* Slots that optimizer state takes for good: what is updated on the device, and what the host has no room for. */
static uint32_t state_slots(const tide_manager *m)
{
    uint32_t on_device = 0, in_all = 0;
    for (tide_chunk chunk = 0; tide_manager_is_param_chunk(m, chunk); chunk++) {
        const uint32_t states = (tide_manager_task_slots(m) - 1) * m->works[chunk].parts;
        in_all += states;
        on_device += m->update_on_device[chunk] && m->options.placement == TIDE_PLACEMENT_AUTO ? states : 0;
    }
    const uint32_t room = m->options.host_slots;
    const uint32_t off_host = in_all - on_device > room ? in_all - on_device - room : 0;
    return on_device + off_host;
}

/* The fewest bytes are moved when all slots are planned with. Where much of that would have to be fetched at the last moment
 * (a pass that runs round and round lets go what it has just used), a spare slot or two are worth more. */
static const tide_plan *plan_with_spares(const tide_manager *m, tide_step_plan *step, uint32_t slots,
                                         uint32_t least)
{
    for (uint32_t spare = 0;; spare++) {
        const tide_plan *made = tide_planner_build(step->planner, &step->trace, slots - spare);
        const uint32_t tight = tide_planner_tight_fetches(step->planner, spare);
        if (!m->options.prefetch || spare == SPARE_SLOTS_MAX || slots - spare == least ||
            (uint64_t)tight * TIGHT_ONE_IN <= made->fetch_count)
            return made;
    }
}

static void plan(tide_manager *m, uint32_t kind)
{
    tide_slot_needs needs;
    tide_manager_needs(m, m->options.placement, &needs);
    const uint32_t states = state_slots(m), slots = m->options.device_slots;
    const uint32_t least = needs.device_slots;
    make_trace(m, kind);
    tide_step_plan *step = &m->plans[kind];
    step->plan = plan_with_spares(m, step, slots > states + least ? slots - states : least, least);
    step->recorded = m->schedule.recordings[kind].number;
    m->counters.plans++;
    m->walk.plan = NULL;
}

void tide_manager_plan_step(tide_manager *manager)
{
    for (uint32_t kind = 0; kind < TIDE_SCHEDULE_KINDS; kind++) {
        const tide_recording *recording = &manager->schedule.recordings[kind];
        if (!recording->valid)
            manager->plans[kind].plan = NULL;
        else if (!manager->plans[kind].plan || manager->plans[kind].recorded != recording->number ||
                 manager->placement_changed)
            plan(manager, kind);
    }
    manager->placement_changed = false;
}

const tide_use_trace *tide_manager_trace(const tide_manager *manager, bool training)
{
    const tide_step_plan *step = &manager->plans[training ? TIDE_SCHEDULE_TRAINING : TIDE_SCHEDULE_FORWARD];
    return step->plan ? &step->trace : NULL;
}

/* The plan for what the schedule now expects, NULL if there is none. */
static const tide_step_plan *active_plan(const tide_manager *m)
{
    const tide_recording *recording = tide_schedule_active(&m->schedule);
    const tide_step_plan *step = recording ? &m->plans[recording - m->schedule.recordings] : NULL;
    return step && step->plan && step->recorded == recording->number ? step : NULL;
}

uint32_t tide_manager_planned_use(const tide_manager *manager)
{
    const tide_step_plan *step = active_plan(manager);
    if (!step || manager->schedule.mode != TIDE_SCHEDULE_FOLLOWING)
        return TIDE_USE_NONE;
    assert(manager->schedule.cursor > 0);
    return step->first_use[manager->schedule.cursor - 1];
}

/* --- leaving --- */

static void enqueue(tide_manager *m, tide_chunk chunk, uint8_t marks)
{
    tide_leave_queue *queue = &m->leaving;
    const bool queued = m->marks[chunk] & TIDE_MARK_QUEUED;
    m->marks[chunk] |= TIDE_MARK_QUEUED | marks;
    if (queued)
        return;
    if (queue->count++ == 0)
        queue->head = chunk;
    else
        queue->next[queue->tail] = chunk;
    queue->tail = chunk;
}

uint32_t tide_manager_leaving(const tide_manager *manager)
{
    return manager->leaving.count;
}

static tide_chunk dequeue(tide_manager *m)
{
    tide_leave_queue *queue = &m->leaving;
    const tide_chunk chunk = queue->head;
    assert(queue->count > 0);
    queue->head = queue->next[chunk];
    queue->count--;
    m->marks[chunk] &= (uint8_t)~TIDE_MARK_QUEUED;
    return chunk;
}

void tide_manager_use_ended(tide_manager *manager, const tide_chunk *chunks, uint32_t count,
                            uint32_t first_use)
{
    const tide_step_plan *step = first_use == TIDE_USE_NONE ? NULL : active_plan(manager);
    for (uint32_t i = 0; i < count; i++) {
        assert(!step || step->trace.uses[first_use + i].chunk == chunks[i]);
        manager->leaving.ends[chunks[i]] = manager->ends;
        if (step && step->plan->leaves[first_use + i])
            enqueue(manager, chunks[i], TIDE_MARK_LEAVING);
        else if (tide_manager_must_leave(manager, chunks[i]))
            enqueue(manager, chunks[i], step ? TIDE_MARK_WRITING | TIDE_MARK_KEPT : TIDE_MARK_LEAVING);
    }
}

/* Whose host copy is not given up for one that leaves: it would only have to be made again. */
enum { SPARED_DUPLICATES = TIDE_MARK_GATHER_HOST | TIDE_MARK_LEAVING | TIDE_MARK_WRITING | TIDE_MARK_KEPT };

static bool host_slot_can_be_had(const tide_manager *m)
{
    return m->places.tier[TIDE_TIER_HOST].free_count > 0 ||
           tide_manager_find_duplicate(m, SPARED_DUPLICATES) != TIDE_CHUNK_NONE;
}

/* May it leave, or be copied out, now? False if later, or if it is wanted again, which takes its marks away. */
static bool may_leave(tide_manager *m, tide_chunk chunk, bool host_slot)
{
    const tide_place *place = &m->places.chunks[chunk];
    const bool wanted = m->marks[chunk] & TIDE_MARK_GATHER_DEVICE ||
                        (m->marks[chunk] & TIDE_MARK_REQUESTED && !tide_manager_must_leave(m, chunk));
    if (wanted || (!place->busy && !tide_place_is_movable(place))) {
        m->marks[chunk] &= (uint8_t) ~(TIDE_MARK_LEAVING | TIDE_MARK_WRITING | TIDE_MARK_KEPT);
        return false;
    }
    return !place->busy && (!tide_place_is_dirty(place) || host_slot);
}

/* What may be done for a chunk of the queue. False if nothing: it is clean, and stays. */
static bool let_go(tide_manager *m, tide_chunk chunk, tide_command *command)
{
    const bool dirty = tide_place_is_dirty(&m->places.chunks[chunk]);
    /* Before its update is let go, a chunk leaves because it is planned: the step that makes the gradient moves it. */
    const tide_reason reason = tide_manager_has_work(m, chunk) ? TIDE_REASON_UPDATE : TIDE_REASON_PREFETCH;
    const bool room = !dirty || tide_manager_free_host_slot(m, SPARED_DUPLICATES);
    assert(room);
    (void)room;
    if (m->marks[chunk] & TIDE_MARK_LEAVING)
        tide_manager_evict(m, chunk, dirty, reason, command);
    else if (dirty)
        tide_manager_write_back(m, chunk, reason, command);
    m->marks[chunk] &= (uint8_t) ~(TIDE_MARK_LEAVING | TIDE_MARK_WRITING);
    return command->chunk == chunk;
}

/* The smaller, the sooner it leaves: what costs no copy; of that whose use is over on the device, what is needed soonest,
 * but behind it what only gets a copy and can't be updated yet (the norm is not known, and no slot comes free); the rest as
 * their uses will be over. */
static uint64_t leaving_rank(const tide_manager *m, tide_chunk chunk)
{
    const uint64_t band = (uint64_t)1 << 40;
    if (!tide_place_is_dirty(&m->places.chunks[chunk]))
        return 0;
    if (m->leaving.ends[chunk] > m->ends_passed)
        return 3 * band + m->leaving.ends[chunk];
    const bool no_hurry = !(m->marks[chunk] & TIDE_MARK_LEAVING) && !tide_manager_has_work(m, chunk);
    const bool requested = m->marks[chunk] & TIDE_MARK_REQUESTED; /* its next use is the one after */
    return (no_hurry ? 2 : 1) * band + (requested ? 0 : tide_manager_next_use(m, chunk));
}

/* Of the queue, by that rank, what a mark of `marks` is on. Chunks that are wanted again, and those that nothing is left to
 * do for, drop out. TIDE_CHUNK_NONE if none may go now. */
static tide_chunk choose_leaving(tide_manager *m, uint8_t marks, bool with_copy)
{
    tide_chunk best = TIDE_CHUNK_NONE;
    uint64_t best_rank = UINT64_MAX;
    const bool host_slot = m->leaving.count > 0 && with_copy && host_slot_can_be_had(m);
    for (uint32_t left = m->leaving.count; left > 0; left--) {
        const tide_chunk chunk = dequeue(m);
        if (!(m->marks[chunk] & (TIDE_MARK_LEAVING | TIDE_MARK_WRITING)))
            continue;
        const bool now = may_leave(m, chunk, host_slot);
        if (!(m->marks[chunk] & (TIDE_MARK_LEAVING | TIDE_MARK_WRITING)))
            continue;
        enqueue(m, chunk, 0);
        const uint64_t rank = leaving_rank(m, chunk);
        if (!now || !(m->marks[chunk] & marks) || (rank > 0 && !with_copy) || rank >= best_rank)
            continue;
        best = chunk;
        best_rank = rank;
    }
    return best;
}

static bool next_leaving(tide_manager *m, uint8_t marks, bool with_copy, tide_command *command)
{
    for (;;) {
        const tide_chunk chunk = choose_leaving(m, marks, with_copy);
        if (chunk == TIDE_CHUNK_NONE)
            return false;
        command->chunk = TIDE_CHUNK_NONE;
        if (let_go(m, chunk, command))
            return true;
    }
}

bool tide_manager_next_leave(tide_manager *manager, tide_command *command)
{
    return next_leaving(manager, TIDE_MARK_LEAVING | TIDE_MARK_WRITING, !manager->out_busy, command);
}

bool tide_manager_next_slot(tide_manager *manager, bool with_copy, tide_command *command)
{
    return next_leaving(manager, TIDE_MARK_LEAVING, with_copy, command);
}

/* --- the walk --- */

typedef enum walk_result { WALK_THERE, WALK_LATER, WALK_MISSING } walk_result;

/* A planned fetch, `ahead` moments from now. */
static walk_result look_at(const tide_manager *m, tide_chunk chunk, uint32_t ahead)
{
    const tide_place *place = &m->places.chunks[chunk];
    if (tide_manager_has_work(m, chunk) || tide_manager_must_leave(m, chunk))
        return WALK_LATER; /* its update comes first */
    if (m->marks[chunk] & TIDE_MARK_REQUESTED && (place->valid[TIDE_TIER_DEVICE] || place->busy))
        return WALK_LATER; /* the open op's use comes first */
    if (!place->valid[TIDE_TIER_DEVICE])
        return place->busy ? WALK_THERE : WALK_MISSING; /* on its way in */
    if (place->busy || m->marks[chunk] & TIDE_MARK_LEAVING)
        return WALK_LATER; /* on its way out, or written back */
    return tide_schedule_distance(&m->schedule, chunk) < ahead || place->pins[TIDE_TIER_DEVICE] ? WALK_LATER
                                                                                                : WALK_THERE;
}

static uint32_t fetch_moment(const tide_step_plan *step, uint32_t fetch)
{
    return step->trace.uses[step->plan->fetches[fetch]].moment;
}

/* Where the walk begins: the first fetch for a moment that has not begun, or, after the last, the next step's first. */
static void find_walk(tide_manager *m, const tide_step_plan *step)
{
    tide_walk *walk = &m->walk;
    if (walk->plan != step->plan)
        *walk = (tide_walk){.plan = step->plan};
    while (walk->first < step->plan->fetch_count && fetch_moment(step, walk->first) < m->schedule.cursor) {
        walk->first++;
        walk->there -= walk->there > 0;
    }
}

/* Does it wait, or will it, in its own slot? */
static bool keeps_slot(const tide_manager *m, tide_chunk chunk, bool planned)
{
    const tide_place *place = &m->places.chunks[chunk];
    return place->stale || m->marks[chunk] & TIDE_MARK_KEPT || (planned && place->valid[TIDE_TIER_DEVICE]);
}

/* Into a free slot, or in its own. */
static bool may_fetch(const tide_manager *m, tide_chunk chunk, uint32_t free_slots)
{
    return free_slots > 0 || m->places.chunks[chunk].stale;
}

static bool walk(tide_manager *m, const tide_step_plan *step, tide_command *command)
{
    const uint32_t fetches = step->plan->fetch_count, length = step->trace.moment_count;
    const uint32_t free_now = m->places.tier[TIDE_TIER_DEVICE].free_count,
                   requested = tide_manager_requested_slots(m);
    uint32_t free_slots = free_now > requested ? free_now - requested : 0, stale = m->places.stale;
    uint32_t later = 0;
    bool unbroken = true;
    for (uint32_t i = m->walk.there; i < fetches && (free_slots > 0 || stale > 0) && later < LATER_MAX; i++) {
        const uint32_t at = m->walk.first + i, fetch = at < fetches ? at : at - fetches;
        const uint32_t moment = fetch_moment(step, fetch) + (at < fetches ? 0 : length);
        const uint32_t use = step->plan->fetches[fetch];
        const tide_chunk chunk = step->trace.uses[use].chunk;
        const walk_result result = look_at(m, chunk, moment - m->schedule.cursor);
        if (result == WALK_MISSING && may_fetch(m, chunk, free_slots)) {
            tide_manager_fetch(m, chunk, TIDE_REASON_PREFETCH, command);
            return true;
        }
        unbroken &= result == WALK_THERE;
        m->walk.there += unbroken;
        free_slots -=
            result != WALK_THERE && free_slots > 0 && !keeps_slot(m, chunk, step->plan->in_place[use]);
        stale -= m->places.chunks[chunk].stale && stale > 0;
        later += result == WALK_LATER;
    }
    return false;
}

bool tide_manager_may_act(const tide_manager *manager)
{
    const tide_request *request = &manager->request;
    const bool pins = manager->pin_all && !tide_manager_all_pinned(manager);
    if (manager->leaving.count || manager->work_count || manager->host_request.count || pins ||
        (request->open && !request->ready))
        return true;
    const tide_step_plan *step = active_plan(manager);
    return step && step->plan->fetch_count > 0;
}

bool tide_manager_next_prefetch(tide_manager *manager, tide_command *command)
{
    const tide_step_plan *step = active_plan(manager);
    if (!step || !manager->options.prefetch || manager->prefetch_idle || manager->host_request.count ||
        manager->in_busy)
        return false;
    find_walk(manager, step);
    if (walk(manager, step, command))
        return true;
    manager->prefetch_idle = true;
    return false;
}
