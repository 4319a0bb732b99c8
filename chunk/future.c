/* See future.h. */
#include "chunk/future.h"

#include <assert.h>
#include <stdlib.h>

enum {
    SPARE_SLOTS_MAX = 2,
    TIGHT_ONE_IN = 16, /* planned fetches that may be tight before a slot is spared */
};

/* --- memory --- */

static tide_status create_plan(tide_step_plan *step, uint32_t chunks, const tide_schedule *schedule)
{
    const uint32_t uses = schedule->use_capacity, moments = schedule->moment_capacity;
    step->trace.uses = malloc(uses * sizeof *step->trace.uses);
    if (!step->trace.uses)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for plans of %u uses of %u chunks", uses,
                         chunks);
    return tide_planner_create(chunks, uses > moments ? uses : moments, &step->planner);
}

tide_status tide_future_create(tide_future *future, const tide_ops *ops, const tide_dues *dues,
                               uint32_t device_slots, uint32_t least_slots, bool prefetch)
{
    const uint32_t chunks = tide_layout_chunk_count(ops->layout);
    assert(least_slots > 0 && least_slots <= device_slots);
    uint32_t moments, uses;
    *future = (tide_future){.ops = ops,
                            .dues = dues,
                            .prefetch = prefetch,
                            .device_slots = device_slots,
                            .least_slots = least_slots};
    tide_ops_totals(ops, &moments, &uses);
    tide_status status =
        tide_schedule_create(&future->schedule, chunks, moments, uses, tide_ops_moment_chunks, ops);
    if (status == TIDE_OK)
        status = tide_trace_maker_create(&future->tracer, ops, dues);
    for (int kind = 0; kind < TIDE_SCHEDULE_KINDS && status == TIDE_OK; kind++)
        status = create_plan(&future->plans[kind], chunks, &future->schedule);
    const uint32_t states = tide_dues_task_slots(ops->layout) - 1;
    future->spread = 1 + states * tide_layout_parts_per_chunk(ops->layout);
    uint64_t never_first = (uint64_t)future->schedule.use_capacity * future->spread;
    if (never_first <
        2 * (uint64_t)chunks) /* without a recording: room to tell what was used last (victims.h) */
        never_first = 2 * (uint64_t)chunks;
    if (never_first > UINT32_MAX - chunks)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "manager: a step of %u uses of %u chunks is too long", uses,
                         chunks);
    future->never_first = (uint32_t)never_first;
    return status;
}

void tide_future_destroy(tide_future *future)
{
    for (int kind = 0; kind < TIDE_SCHEDULE_KINDS; kind++) {
        free(future->plans[kind].trace.uses);
        tide_planner_destroy(future->plans[kind].planner);
    }
    tide_trace_maker_destroy(&future->tracer);
    tide_schedule_destroy(&future->schedule);
    *future = (tide_future){.ops = NULL};
}

/* --- planning --- */

/* The fewest bytes are moved when all slots are planned with. Where much of that would have to be fetched at the last moment
 * (a pass that runs round and round lets go what it has just used), a spare slot or two are worth more. */
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
    const uint32_t states = tide_dues_state_slots(f->dues), least = f->least_slots;
    assert(kind < TIDE_SCHEDULE_KINDS && recording->valid);
    tide_trace_maker_make(&f->tracer, recording, kind == TIDE_SCHEDULE_TRAINING, &step->trace);
    step->plan =
        plan_with_spares(f, step, f->device_slots > states + least ? f->device_slots - states : least);
    assert(step->plan->use_count == step->trace.use_count);
    step->recorded = recording->number;
    step->placements = f->dues->placements;
    f->planned++;
}

static void plan_what_is_new(tide_future *f)
{
    for (uint32_t kind = 0; kind < TIDE_SCHEDULE_KINDS; kind++) {
        const tide_recording *recording = &f->schedule.recordings[kind];
        tide_step_plan *step = &f->plans[kind];
        if (!recording->valid)
            step->plan = NULL;
        else if (!step->plan || step->recorded != recording->number ||
                 step->placements != f->dues->placements)
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

void tide_future_moment(tide_future *future, tide_op op, uint32_t slice)
{
    assert(op < future->ops->count && (slice == TIDE_SLICE_NONE || slice < future->ops->records[op].slices));
    if (!tide_schedule_advance(&future->schedule, (tide_moment){.op = op, .slice = slice}))
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
    const uint32_t from = future->active ? future->active->moment_first[future->schedule.cursor] : 0;
    assert(from <= future->never_first / future->spread);
    return (tide_horizon){.from = from * future->spread, .never = future->never_first};
}

static uint32_t key_of(const tide_future *f, uint32_t use, uint32_t which, tide_chunk chunk)
{
    assert(use == TIDE_USE_NONE || use < f->schedule.use_capacity);
    assert(which < f->spread);
    return use == TIDE_USE_NONE ? tide_future_never_key(f, chunk) : use * f->spread + which;
}

uint32_t tide_future_use_key(const tide_future *future, tide_chunk chunk)
{
    return key_of(future, tide_schedule_next(&future->schedule, chunk), 0, chunk);
}

/* Which of its PARAM chunk's states it is, from 1. */
static uint32_t state_number(const tide_layout *layout, tide_chunk chunk)
{
    const uint32_t parts = tide_layout_parts_per_chunk(layout);
    const uint32_t space = (uint32_t)tide_layout_chunk_space(layout, chunk) - TIDE_SPACE_MASTER;
    assert(space < TIDE_SPACE_CHECKPOINT - TIDE_SPACE_MASTER);
    return 1 + space * parts + tide_layout_chunk_index(layout, chunk) % parts;
}

static bool is_state(const tide_layout *layout, tide_chunk chunk)
{
    const tide_space space = tide_layout_chunk_space(layout, chunk);
    return space != TIDE_SPACE_PARAM && space != TIDE_SPACE_CHECKPOINT;
}

uint32_t tide_future_worth_key(const tide_future *future, tide_chunk chunk)
{
    assert(future->active);
    const tide_dues *dues = future->dues;
    if (!is_state(future->ops->layout, chunk))
        return tide_dues_must_leave(dues, chunk) ? tide_future_never_key(future, chunk)
                                                 : tide_future_use_key(future, chunk);
    const tide_chunk param_chunk = tide_dues_param_chunk(dues, chunk);
    if (!dues->on_device[param_chunk])
        return tide_future_never_key(future, chunk);
    const uint32_t use = tide_dues_has(dues, param_chunk)
                             ? tide_schedule_next(&future->schedule, param_chunk)
                             : tide_schedule_last(&future->schedule, param_chunk);
    return key_of(future, use, state_number(future->ops->layout, chunk), chunk);
}

uint32_t tide_future_worth_distance(const tide_future *future, tide_chunk chunk)
{
    const tide_schedule *schedule = &future->schedule;
    const uint32_t key = tide_future_worth_key(future, chunk);
    if (key >= future->never_first)
        return tide_schedule_never(schedule);
    if (!is_state(future->ops->layout, chunk))
        return tide_schedule_distance(schedule, chunk);
    const tide_chunk param_chunk = tide_dues_param_chunk(future->dues, chunk);
    return tide_dues_has(future->dues, param_chunk) ? tide_schedule_distance(schedule, param_chunk)
                                                    : tide_schedule_last_distance(schedule, param_chunk);
}
