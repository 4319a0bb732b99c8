#include "chunk/future.h"

#include <assert.h>
#include <string.h>

enum {
    SPARE_SLOTS_MAX = 2,
    TIGHT_ONE_IN = 16, /* plan with a slot less if more than 1/16 of fetches are tight (planner.h) */
};

/* --- memory --- */

tide_status tide_future_create(tide_future *future, const tide_ops *ops, const tide_pending *pending,
                               uint32_t device_slots, uint32_t least_slots, bool prefetch)
{
    const uint32_t chunks = tide_layout_chunk_count(ops->layout);
    assert(least_slots > 0 && least_slots <= device_slots);
    *future = (tide_future){.ops = ops,
                            .pending = pending,
                            .prefetch = prefetch,
                            .device_slots = device_slots,
                            .least_slots = least_slots};
    tide_status status = tide_schedule_create(&future->schedule, ops);
    if (status != TIDE_OK)
        return status;
    const uint32_t uses = future->schedule.use_capacity,
                   schedule_steps = future->schedule.schedule_step_capacity;
    future->live_parts = tide_arrays_add(&future->arrays, chunks, sizeof *future->live_parts);
    future->part_live =
        tide_arrays_add(&future->arrays, tide_layout_parts(ops->layout), sizeof *future->part_live);
    for (int kind = 0; kind < TIDE_SCHEDULE_KINDS && status == TIDE_OK; kind++) {
        future->plans[kind].trace.uses = tide_arrays_add(&future->arrays, uses, sizeof(tide_trace_use));
        status = tide_planner_create(chunks, uses > schedule_steps ? uses : schedule_steps,
                                     &future->plans[kind].planner);
    }
    if (future->arrays.lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for plans of %u uses of %u chunks", uses,
                         chunks);
    future->spread = 1 + tide_layout_pieces_most(ops->layout);
    uint64_t never_first = (uint64_t)uses * future->spread;
    /* without a recording, a key comes from the number of the last use (victims.c) */
    if (never_first < 2 * (uint64_t)chunks)
        never_first = 2 * (uint64_t)chunks;
    if (never_first > UINT32_MAX - chunks)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "manager: a step of %u uses of %u chunks is too long",
                         uses / 2, chunks);
    future->never_first = (uint32_t)never_first;
    return status;
}

void tide_future_destroy(tide_future *future)
{
    for (int kind = 0; kind < TIDE_SCHEDULE_KINDS; kind++)
        tide_planner_destroy(future->plans[kind].planner);
    tide_arrays_free(&future->arrays);
    tide_schedule_destroy(&future->schedule);
    *future = (tide_future){.ops = NULL};
}

/* --- the trace --- */

/* The number of slices that follow an op in the recording; the op holds its params until the last of them
 * ends. */
static uint32_t slices_after(const tide_recording *recording, uint32_t schedule_step)
{
    uint32_t end = schedule_step + 1;
    while (end < recording->length && recording->schedule_steps[end].slice != TIDE_SLICE_NONE)
        end++;
    return end - schedule_step - 1;
}

/* Set whether a part of an ACTIVATION tensor has content from this place in the trace on. */
static void set_part_live(tide_future *f, uint32_t tensor, uint32_t part, bool live)
{
    uint8_t *was = &f->part_live[tide_layout_activation(f->ops->layout, tensor)->first_part + part];
    tide_chunk first, last;
    if (*was == live)
        return;
    *was = live;
    tide_layout_activation_chunks(f->ops->layout, tensor, part, &first, &last);
    assert(live || f->live_parts[first] > 0);
    for (tide_chunk chunk = first; chunk <= last; chunk++)
        f->live_parts[chunk] += live ? 1u : UINT32_MAX;
}

/* Set the flag in the uses whose chunks have no content at this place in the trace. */
static void flag_dead(const tide_future *f, tide_trace_use *uses, uint32_t count, uint32_t flag)
{
    for (uint32_t i = 0; i < count; i++)
        uses[i].flags |= f->live_parts[uses[i].chunk] == 0 ? flag : 0;
}

static void trace_slice(tide_future *f, tide_schedule_step schedule_step, tide_trace_use *uses,
                        uint32_t count)
{
    const tide_op_record *op = &f->ops->records[schedule_step.op];
    for (uint32_t i = 0; i < op->activation_count; i++)
        /* the op overwrites the part, so its old content is dead */
        if (!(op->activations[i].access & TIDE_ACCESS_READ))
            set_part_live(f, op->activations[i].tensor, schedule_step.slice, false);
    flag_dead(f, uses, count, TIDE_TRACE_CREATES);
    for (uint32_t i = 0; i < op->activation_count; i++) {
        const tide_use *use = &op->activations[i];
        tide_chunk first, last;
        set_part_live(f, use->tensor, schedule_step.slice, true);
        tide_layout_activation_chunks(f->ops->layout, use->tensor, schedule_step.slice, &first, &last);
        for (uint32_t k = 0; use->access & TIDE_ACCESS_WRITE && k < count; k++)
            uses[k].flags |= uses[k].chunk >= first && uses[k].chunk <= last ? TIDE_TRACE_MODIFIES : 0;
    }
    for (uint32_t i = 0; i < op->activation_count; i++)
        if (op->activations[i].access & TIDE_ACCESS_LAST)
            set_part_live(f, op->activations[i].tensor, schedule_step.slice, false);
    flag_dead(f, uses, count, TIDE_TRACE_ENDS);
}

/* Add the uses of one schedule step to the trace. */
static void trace_schedule_step(tide_future *f, const tide_recording *recording, uint32_t number,
                                bool training, tide_use_trace *trace)
{
    const tide_schedule_step schedule_step = recording->schedule_steps[number];
    const tide_chunk_set *set = tide_ops_step_chunks(f->ops, schedule_step);
    const bool is_op = schedule_step.slice == TIDE_SLICE_NONE;
    const uint32_t held = is_op ? slices_after(recording, number) : 0;
    tide_trace_use *uses = trace->uses + trace->use_count;
    assert(recording->schedule_step_first[number] == trace->use_count);
    for (uint32_t i = 0; i < set->count; i++) {
        const bool modifies = is_op && training && f->ops->records[schedule_step.op].modifies[i];
        uses[i] = (tide_trace_use){.schedule_step = number,
                                   .chunk = set->list[i],
                                   .flags = modifies ? TIDE_TRACE_MODIFIES : 0,
                                   .held_schedule_steps = held};
    }
    trace->use_count += set->count;
    if (!is_op)
        trace_slice(f, schedule_step, uses, set->count);
}

/* After its last use in a step an activation is dead, and a param that is not frozen is updated: give these
 * uses their flags. */
static void trace_last_uses(const tide_future *f, const tide_recording *recording, bool training,
                            tide_use_trace *trace)
{
    for (tide_chunk chunk = 0; chunk < trace->chunk_count; chunk++) {
        if (recording->first[chunk] == recording->first[chunk + 1])
            continue;
        tide_trace_use *use = &trace->uses[recording->uses[recording->first[chunk + 1] - 1]];
        assert(use->chunk == chunk);
        if (!tide_pending_is_param_chunk(f->pending, chunk))
            use->flags |= TIDE_TRACE_ENDS;
        else if (training && f->pending->chunks[chunk].pieces > 0)
            use->flags |=
                f->pending->on_device[chunk] ? TIDE_TRACE_MODIFIES : TIDE_TRACE_MODIFIES | TIDE_TRACE_LEAVES;
    }
}

/* Make the trace of a recording; its uses have the same numbers as in the recording. */
static void make_trace(tide_future *f, const tide_recording *recording, bool training, tide_use_trace *trace)
{
    trace->schedule_step_count = recording->length;
    trace->chunk_count = tide_layout_chunk_count(f->ops->layout);
    trace->use_count = 0;
    memset(f->live_parts, 0, trace->chunk_count * sizeof *f->live_parts);
    memset(f->part_live, 0, tide_layout_parts(f->ops->layout));
    for (uint32_t schedule_step = 0; schedule_step < recording->length; schedule_step++)
        trace_schedule_step(f, recording, schedule_step, training, trace);
    assert(trace->use_count == recording->schedule_step_first[recording->length]);
    trace_last_uses(f, recording, training, trace);
}

/* --- planning --- */

/* Make a plan that leaves up to a few of the slots spare. A plan for all slots copies the fewest bytes. But
 * if many of its fetches get a slot only just before their use, as in a pass that evicts the chunk that it
 * has just used, compute waits for them; then a plan for one or two slots less takes less time. */
static const tide_plan *plan_with_spares(const tide_future *f, tide_step_plan *step, uint32_t slots)
{
    assert(slots >= f->least_slots);
    for (uint32_t spare = 0;; spare++) {
        const tide_plan *made = tide_planner_build(step->planner, &step->trace, slots - spare);
        const uint32_t tight = tide_planner_tight_fetches(step->planner, spare);
        if (!f->prefetch || spare == SPARE_SLOTS_MAX || slots - spare == f->least_slots ||
            (uint64_t)tight * TIGHT_ONE_IN <= made->fetch_count)
            return made;
    }
}

static void plan(tide_future *f, uint32_t kind)
{
    tide_step_plan *step = &f->plans[kind];
    const tide_recording *recording = &f->schedule.recordings[kind];
    const uint32_t states = tide_pending_state_slots(f->pending), least = f->least_slots;
    assert(kind < TIDE_SCHEDULE_KINDS && recording->valid);
    make_trace(f, recording, kind == TIDE_SCHEDULE_TRAINING, &step->trace);
    step->slots = f->device_slots > states + least ? f->device_slots - states : least;
    step->plan = plan_with_spares(f, step, step->slots);
    assert(step->plan->use_count == step->trace.use_count);
    step->recorded = recording->number;
    step->placements = f->pending->placements;
    step->number = ++f->planned;
}

static void plan_what_is_new(tide_future *f)
{
    for (uint32_t kind = 0; kind < TIDE_SCHEDULE_KINDS; kind++) {
        const tide_recording *recording = &f->schedule.recordings[kind];
        tide_step_plan *step = &f->plans[kind];
        if (!recording->valid)
            step->plan = NULL;
        else if (!step->plan || step->recorded != recording->number ||
                 step->placements != f->pending->placements)
            plan(f, kind);
    }
}

/* --- the step as it comes --- */

static void note_recording(tide_future *f)
{
    const tide_recording *active = tide_schedule_active(&f->schedule);
    const uint32_t number = active ? active->number : 0;
    f->epoch += active != f->active || number != f->active_number;
    f->active = active;
    f->active_number = number;
}

void tide_future_step_begin(tide_future *future, bool training)
{
    tide_schedule_begin(&future->schedule, training);
    note_recording(future);
}

void tide_future_schedule_step(tide_future *future, tide_op op, uint32_t slice)
{
    assert(op < future->ops->count && (slice == TIDE_SLICE_NONE || slice < future->ops->records[op].slices));
    if (!tide_schedule_advance(&future->schedule, (tide_schedule_step){.op = op, .slice = slice}))
        return;
    future->re_recordings++;
    note_recording(future);
}

void tide_future_step_end(tide_future *future)
{
    future->re_recordings += tide_schedule_end(&future->schedule);
    future->rounds++;
    note_recording(future);
    plan_what_is_new(future);
}

void tide_future_step_abort(tide_future *future)
{
    tide_schedule_abort(&future->schedule);
    note_recording(future);
    future->epoch++;
}

/* --- what comes next --- */

uint32_t tide_future_keys(const tide_future *future)
{
    return future->never_first + tide_layout_chunk_count(future->ops->layout);
}

uint32_t tide_future_never_key(const tide_future *future, tide_chunk chunk)
{
    assert(chunk < tide_layout_chunk_count(future->ops->layout));
    return future->never_first + chunk;
}

tide_horizon tide_future_horizon(const tide_future *future)
{
    assert(!future->active || future->schedule.cursor <= future->active->length);
    const uint32_t from = future->active ? future->active->schedule_step_first[future->schedule.cursor] : 0;
    assert(from <= future->never_first / future->spread);
    return (tide_horizon){.from = from * future->spread, .never = future->never_first};
}

/* The use of a PARAM chunk at which the device next needs the chunk's state; TIDE_USE_NONE: it never does. */
static uint32_t state_use(const tide_future *f, tide_chunk param_chunk)
{
    if (!f->pending->on_device[param_chunk])
        return TIDE_USE_NONE;
    return tide_pending_has(f->pending, param_chunk) ? tide_schedule_next(&f->schedule, param_chunk)
                                                     : tide_schedule_last(&f->schedule, param_chunk);
}

/* The next use for which the device needs a chunk's present content (tide_future_worth_key). For a STATE
 * chunk it is a use of one of its PARAM chunks, to which this sets *owner. */
static uint32_t worth_use(const tide_future *f, tide_chunk chunk, tide_chunk *owner)
{
    tide_chunk last;
    uint32_t use = TIDE_USE_NONE;
    assert(f->active);
    if (tide_layout_chunk_space(f->ops->layout, chunk) != TIDE_SPACE_STATE)
        return tide_pending_must_leave(f->pending, chunk) ? TIDE_USE_NONE
                                                          : tide_schedule_next(&f->schedule, chunk);
    tide_layout_state_owners(f->ops->layout, chunk, owner, &last);
    for (tide_chunk other = *owner; other <= last; other++) {
        const uint32_t others = state_use(f, other);
        if (tide_schedule_distance(&f->schedule, others) >= tide_schedule_distance(&f->schedule, use))
            continue;
        use = others;
        *owner = other;
    }
    return use;
}

/* The key for a use of: the used chunk (`which` 0), or its STATE chunk number `which` from 1 on. */
static uint32_t key_of(const tide_future *f, uint32_t use, uint32_t which, tide_chunk chunk)
{
    assert(which < f->spread && (use == TIDE_USE_NONE || use < f->schedule.use_capacity));
    return use == TIDE_USE_NONE ? tide_future_never_key(f, chunk) : use * f->spread + which;
}

uint32_t tide_future_use_key(const tide_future *future, tide_chunk chunk)
{
    return key_of(future, tide_schedule_next(&future->schedule, chunk), 0, chunk);
}

uint32_t tide_future_worth_key(const tide_future *future, tide_chunk chunk)
{
    const tide_layout *layout = future->ops->layout;
    tide_chunk owner = TIDE_CHUNK_NONE;
    const uint32_t use = worth_use(future, chunk, &owner);
    uint32_t which = 0;
    if (owner != TIDE_CHUNK_NONE)
        which = 1 + chunk - tide_layout_piece(layout, owner, 0).state_chunk;
    return key_of(future, use, which, chunk);
}

uint32_t tide_future_worth_distance(const tide_future *future, tide_chunk chunk)
{
    tide_chunk owner;
    return tide_schedule_distance(&future->schedule, worth_use(future, chunk, &owner));
}
