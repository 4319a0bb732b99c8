#include "chunk/schedule.h"

#include <assert.h>
#include <string.h>

/* Recordings have space for this many times all ops of the description: a step may run each op twice, for
 * two losses, say. */
enum { STEP_SPARE_FACTOR = 2 };

static void allocate(tide_schedule *s, tide_recording *recording)
{
    recording->schedule_steps =
        tide_arrays_add(&s->arrays, s->schedule_step_capacity, sizeof *recording->schedule_steps);
    recording->schedule_step_first =
        tide_arrays_add(&s->arrays, s->schedule_step_capacity + 1u, sizeof *recording->schedule_step_first);
    recording->schedule_step_of =
        tide_arrays_add(&s->arrays, s->use_capacity, sizeof *recording->schedule_step_of);
    recording->uses = tide_arrays_add(&s->arrays, s->use_capacity, sizeof *recording->uses);
    recording->first = tide_arrays_add(&s->arrays, s->chunk_count + 1u, sizeof *recording->first);
}

tide_status tide_schedule_create(tide_schedule *schedule, const tide_ops *ops)
{
    uint32_t schedule_steps, uses;
    tide_ops_totals(ops, &schedule_steps, &uses);
    *schedule = (tide_schedule){.ops = ops,
                                .chunk_count = tide_layout_chunk_count(ops->layout),
                                .schedule_step_capacity = STEP_SPARE_FACTOR * schedule_steps + 1,
                                .use_capacity = STEP_SPARE_FACTOR * uses + 1};
    for (int kind = 0; kind < TIDE_SCHEDULE_KINDS; kind++)
        allocate(schedule, &schedule->recordings[kind]);
    if (!schedule->arrays.lacks)
        return TIDE_OK;
    tide_schedule_destroy(schedule);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for a recording of %u schedule steps",
                     STEP_SPARE_FACTOR * schedule_steps + 1);
}

void tide_schedule_destroy(tide_schedule *schedule)
{
    tide_arrays_free(&schedule->arrays);
    *schedule = (tide_schedule){.cursor = 0};
}

static void count_uses(const tide_schedule *schedule, tide_recording *recording)
{
    memset(recording->first, 0, (schedule->chunk_count + 1) * sizeof *recording->first);
    for (uint32_t m = 0; m < recording->length; m++) {
        const tide_chunk_set *set = tide_ops_step_chunks(schedule->ops, recording->schedule_steps[m]);
        for (uint32_t i = 0; i < set->count; i++)
            recording->first[set->list[i] + 1]++;
    }
    for (uint32_t c = 0; c < schedule->chunk_count; c++)
        recording->first[c + 1] += recording->first[c];
}

/* Sort the uses by chunk (a counting sort, stable, so in the order of schedule steps). During the sort
 * first[c] is the index at which the next use of chunk c is put; after the sort that is where chunk c + 1
 * begins, so the array is shifted by one. */
static bool build_index(const tide_schedule *schedule, tide_recording *recording)
{
    count_uses(schedule, recording);
    if (recording->first[schedule->chunk_count] > schedule->use_capacity)
        return false;
    uint32_t number = 0;
    for (uint32_t m = 0; m < recording->length; m++) {
        const tide_chunk_set *set = tide_ops_step_chunks(schedule->ops, recording->schedule_steps[m]);
        recording->schedule_step_first[m] = number;
        for (uint32_t i = 0; i < set->count; i++) {
            recording->uses[recording->first[set->list[i]]++] = number;
            recording->schedule_step_of[number++] = m;
        }
    }
    recording->schedule_step_first[recording->length] = number;
    assert(number == recording->first[schedule->chunk_count]);
    for (uint32_t c = schedule->chunk_count; c > 0; c--)
        recording->first[c] = recording->first[c - 1];
    recording->first[0] = 0;
    recording->number++;
    return true;
}

void tide_schedule_begin(tide_schedule *schedule, bool training)
{
    assert(schedule->mode == TIDE_SCHEDULE_BETWEEN);
    assert(schedule->cursor == 0);
    schedule->kind = training ? TIDE_SCHEDULE_TRAINING : TIDE_SCHEDULE_FORWARD;
    tide_recording *recording = &schedule->recordings[schedule->kind];
    schedule->cursor = 0;
    schedule->mode = recording->valid ? TIDE_SCHEDULE_FOLLOWING : TIDE_SCHEDULE_RECORDING;
    if (!recording->valid)
        recording->length = 0;
}

static void record(tide_schedule *schedule, tide_recording *recording, tide_schedule_step schedule_step)
{
    assert(!recording->valid);
    assert(recording->length == schedule->cursor && recording->length <= schedule->schedule_step_capacity);
    if (recording->length == schedule->schedule_step_capacity) {
        schedule->mode = TIDE_SCHEDULE_LOST;
        return;
    }
    recording->schedule_steps[recording->length++] = schedule_step;
}

/* Cut a recording at the cursor, since the open step differs from it there. */
static void truncate_recording(tide_schedule *schedule, tide_recording *recording)
{
    assert(schedule->cursor <= recording->length);
    assert(recording->valid && schedule->mode == TIDE_SCHEDULE_FOLLOWING);
    recording->valid = false;
    recording->length = schedule->cursor;
    schedule->mode = TIDE_SCHEDULE_RECORDING;
}

bool tide_schedule_advance(tide_schedule *schedule, tide_schedule_step schedule_step)
{
    assert(schedule->mode != TIDE_SCHEDULE_BETWEEN);
    tide_recording *recording = &schedule->recordings[schedule->kind];
    bool differs = false;
    if (schedule->mode == TIDE_SCHEDULE_FOLLOWING) {
        const tide_schedule_step *expected = &recording->schedule_steps[schedule->cursor];
        differs = schedule->cursor == recording->length || expected->op != schedule_step.op ||
                  expected->slice != schedule_step.slice;
        if (differs)
            truncate_recording(schedule, recording);
    }
    if (schedule->mode == TIDE_SCHEDULE_RECORDING)
        record(schedule, recording, schedule_step);
    schedule->cursor++;
    assert(schedule->mode == TIDE_SCHEDULE_LOST || schedule->cursor <= recording->length);
    return differs;
}

bool tide_schedule_end(tide_schedule *schedule)
{
    assert(schedule->mode != TIDE_SCHEDULE_BETWEEN);
    tide_recording *recording = &schedule->recordings[schedule->kind];
    bool shorter = schedule->mode == TIDE_SCHEDULE_FOLLOWING && schedule->cursor < recording->length;
    if (shorter)
        truncate_recording(schedule, recording);
    if (schedule->mode == TIDE_SCHEDULE_RECORDING)
        recording->valid = recording->length > 0 && build_index(schedule, recording);
    schedule->mode = TIDE_SCHEDULE_BETWEEN;
    schedule->cursor = 0;
    return shorter;
}

void tide_schedule_abort(tide_schedule *schedule)
{
    assert(schedule->mode != TIDE_SCHEDULE_BETWEEN);
    schedule->mode = TIDE_SCHEDULE_BETWEEN;
    schedule->cursor = 0;
}

const tide_recording *tide_schedule_active(const tide_schedule *schedule)
{
    const tide_recording *training = &schedule->recordings[TIDE_SCHEDULE_TRAINING];
    const tide_recording *forward = &schedule->recordings[TIDE_SCHEDULE_FORWARD];
    if (schedule->mode == TIDE_SCHEDULE_FOLLOWING)
        return &schedule->recordings[schedule->kind];
    if (schedule->mode != TIDE_SCHEDULE_BETWEEN)
        return NULL;
    return training->valid ? training : forward->valid ? forward : NULL;
}

/* The uses of a chunk: [*first, *end) of the `uses` of the active recording. */
static const tide_recording *uses_of(const tide_schedule *schedule, tide_chunk chunk, uint32_t *first,
                                     uint32_t *end)
{
    const tide_recording *recording = tide_schedule_active(schedule);
    assert(recording && recording->valid && chunk < schedule->chunk_count);
    *first = recording->first[chunk];
    *end = recording->first[chunk + 1];
    return recording;
}

uint32_t tide_schedule_next(const tide_schedule *schedule, tide_chunk chunk)
{
    uint32_t first, end;
    const tide_recording *recording = uses_of(schedule, chunk, &first, &end);
    const uint32_t from = recording->schedule_step_first[schedule->cursor];
    uint32_t low = first, high = end;
    while (low < high) { /* binary search for the first use at or after the cursor */
        const uint32_t middle = low + (high - low) / 2;
        if (recording->uses[middle] < from)
            low = middle + 1;
        else
            high = middle;
    }
    assert(low == end || recording->uses[low] >= from);
    return first == end ? TIDE_USE_NONE : recording->uses[low < end ? low : first];
}

uint32_t tide_schedule_last(const tide_schedule *schedule, tide_chunk chunk)
{
    uint32_t first, end;
    const tide_recording *recording = uses_of(schedule, chunk, &first, &end);
    return first == end ? TIDE_USE_NONE : recording->uses[end - 1];
}

uint32_t tide_schedule_distance(const tide_schedule *schedule, uint32_t use)
{
    const tide_recording *recording = tide_schedule_active(schedule);
    assert(recording && recording->valid && schedule->cursor <= recording->length);
    if (use == TIDE_USE_NONE)
        return 2 * recording->length;
    assert(use < recording->schedule_step_first[recording->length]);
    const uint32_t schedule_step = recording->schedule_step_of[use];
    return schedule_step >= schedule->cursor ? schedule_step - schedule->cursor
                                             : schedule_step + recording->length - schedule->cursor;
}
