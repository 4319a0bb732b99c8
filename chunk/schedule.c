/* The recorded schedule: see schedule.h. */
#include "chunk/schedule.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Room for a step that runs every registered op twice: gradients of two losses, say. */
enum { STEP_SPARE_FACTOR = 2 };

static tide_status recording_create(tide_recording *recording, const tide_schedule *schedule)
{
    recording->moments = malloc(schedule->moment_capacity * sizeof *recording->moments);
    recording->uses = malloc(schedule->use_capacity * sizeof *recording->uses);
    recording->first = malloc((schedule->chunk_count + 1) * sizeof *recording->first);
    recording->numbers = malloc(schedule->use_capacity * sizeof *recording->numbers);
    recording->moment_first = malloc((schedule->moment_capacity + 1) * sizeof *recording->moment_first);
    if (!recording->moments || !recording->uses || !recording->first || !recording->numbers ||
        !recording->moment_first)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for a recording of %u moments",
                         schedule->moment_capacity);
    return TIDE_OK;
}

tide_status tide_schedule_create(tide_schedule *schedule, uint32_t chunk_count, uint32_t moments,
                                 uint32_t uses, tide_moment_chunks chunks_of, const void *owner)
{
    memset(schedule, 0, sizeof *schedule);
    schedule->chunk_count = chunk_count;
    schedule->moment_capacity = STEP_SPARE_FACTOR * moments + 1;
    schedule->use_capacity = STEP_SPARE_FACTOR * uses + 1;
    schedule->chunks_of = chunks_of;
    schedule->owner = owner;
    for (int kind = 0; kind < TIDE_SCHEDULE_KINDS; kind++) {
        tide_status status = recording_create(&schedule->recordings[kind], schedule);
        if (status != TIDE_OK) {
            tide_schedule_destroy(schedule);
            return status;
        }
    }
    return TIDE_OK;
}

void tide_schedule_destroy(tide_schedule *schedule)
{
    for (int kind = 0; kind < TIDE_SCHEDULE_KINDS; kind++) {
        free(schedule->recordings[kind].moments);
        free(schedule->recordings[kind].uses);
        free(schedule->recordings[kind].first);
        free(schedule->recordings[kind].numbers);
        free(schedule->recordings[kind].moment_first);
    }
    memset(schedule, 0, sizeof *schedule);
}

static const tide_chunk *moment_chunks(const tide_schedule *schedule, tide_moment moment, uint32_t *count)
{
    return schedule->chunks_of(schedule->owner, moment, count);
}

static void count_uses(const tide_schedule *schedule, tide_recording *recording)
{
    memset(recording->first, 0, (schedule->chunk_count + 1) * sizeof *recording->first);
    for (uint32_t m = 0; m < recording->length; m++) {
        uint32_t count;
        const tide_chunk *chunks = moment_chunks(schedule, recording->moments[m], &count);
        for (uint32_t i = 0; i < count; i++)
            recording->first[chunks[i] + 1]++;
    }
    for (uint32_t c = 0; c < schedule->chunk_count; c++)
        recording->first[c + 1] += recording->first[c];
}

/* Sort the uses by chunk (a counting sort, stable in the moments). first[c] serves as chunk c's fill
 * position, so it ends as the next chunk's beginning and is shifted back. */
static bool build_index(const tide_schedule *schedule, tide_recording *recording)
{
    count_uses(schedule, recording);
    if (recording->first[schedule->chunk_count] > schedule->use_capacity)
        return false;
    uint32_t number = 0;
    for (uint32_t m = 0; m < recording->length; m++) {
        uint32_t count;
        const tide_chunk *chunks = moment_chunks(schedule, recording->moments[m], &count);
        recording->moment_first[m] = number;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t at = recording->first[chunks[i]]++;
            recording->uses[at] = m;
            recording->numbers[at] = number++;
        }
    }
    recording->moment_first[recording->length] = number;
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

static void record(tide_schedule *schedule, tide_recording *recording, tide_moment moment)
{
    assert(!recording->valid);
    assert(recording->length == schedule->cursor && recording->length <= schedule->moment_capacity);
    if (recording->length == schedule->moment_capacity) {
        schedule->mode = TIDE_SCHEDULE_LOST;
        return;
    }
    recording->moments[recording->length++] = moment;
}

/* From the cursor on the recording is no longer true. */
static void truncate_recording(tide_schedule *schedule, tide_recording *recording)
{
    assert(schedule->cursor <= recording->length);
    assert(recording->valid && schedule->mode == TIDE_SCHEDULE_FOLLOWING);
    recording->valid = false;
    recording->length = schedule->cursor;
    schedule->mode = TIDE_SCHEDULE_RECORDING;
}

bool tide_schedule_advance(tide_schedule *schedule, tide_moment moment)
{
    assert(schedule->mode != TIDE_SCHEDULE_BETWEEN);
    tide_recording *recording = &schedule->recordings[schedule->kind];
    bool differs = false;
    if (schedule->mode == TIDE_SCHEDULE_FOLLOWING) {
        const tide_moment *expected = &recording->moments[schedule->cursor];
        differs = schedule->cursor == recording->length || expected->op != moment.op ||
                  expected->slice != moment.slice;
        if (differs)
            truncate_recording(schedule, recording);
    }
    if (schedule->mode == TIDE_SCHEDULE_RECORDING)
        record(schedule, recording, moment);
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

uint32_t tide_schedule_never(const tide_schedule *schedule)
{
    const tide_recording *recording = tide_schedule_active(schedule);
    assert(recording && recording->valid);
    return 2 * recording->length;
}

/* From the cursor to moment `use`, in this step or the next. */
static uint32_t moments_until(const tide_schedule *schedule, const tide_recording *recording, uint32_t use)
{
    assert(use < recording->length);
    assert(schedule->cursor <= recording->length);
    return use >= schedule->cursor ? use - schedule->cursor : use + recording->length - schedule->cursor;
}

/* Where in `uses` the chunk's next use is; it has one. */
static uint32_t find_next(const tide_schedule *schedule, const tide_recording *recording, tide_chunk chunk)
{
    const uint32_t end = recording->first[chunk + 1];
    uint32_t low = recording->first[chunk], high = end;
    assert(low < end);
    while (low < high) { /* the first use at or after the cursor */
        const uint32_t middle = low + (high - low) / 2;
        if (recording->uses[middle] < schedule->cursor)
            low = middle + 1;
        else
            high = middle;
    }
    assert(low == end || recording->uses[low] >= schedule->cursor);
    return low < end ? low : recording->first[chunk];
}

static const tide_recording *recording_of(const tide_schedule *schedule, tide_chunk chunk, bool *is_used)
{
    const tide_recording *recording = tide_schedule_active(schedule);
    assert(recording && recording->valid && chunk < schedule->chunk_count);
    *is_used = recording->first[chunk] < recording->first[chunk + 1];
    return recording;
}

uint32_t tide_schedule_distance(const tide_schedule *schedule, tide_chunk chunk)
{
    bool is_used;
    const tide_recording *recording = recording_of(schedule, chunk, &is_used);
    if (!is_used)
        return tide_schedule_never(schedule);
    return moments_until(schedule, recording, recording->uses[find_next(schedule, recording, chunk)]);
}

uint32_t tide_schedule_last_distance(const tide_schedule *schedule, tide_chunk chunk)
{
    bool is_used;
    const tide_recording *recording = recording_of(schedule, chunk, &is_used);
    if (!is_used)
        return tide_schedule_never(schedule);
    return moments_until(schedule, recording, recording->uses[recording->first[chunk + 1] - 1]);
}

uint32_t tide_schedule_next(const tide_schedule *schedule, tide_chunk chunk)
{
    bool is_used;
    const tide_recording *recording = recording_of(schedule, chunk, &is_used);
    return is_used ? recording->numbers[find_next(schedule, recording, chunk)] : TIDE_USE_NONE;
}

uint32_t tide_schedule_last(const tide_schedule *schedule, tide_chunk chunk)
{
    bool is_used;
    const tide_recording *recording = recording_of(schedule, chunk, &is_used);
    return is_used ? recording->numbers[recording->first[chunk + 1] - 1] : TIDE_USE_NONE;
}
