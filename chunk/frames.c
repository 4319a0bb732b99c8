#include "chunk/frames.h"

#include "base/minmax.h"

#include <assert.h>
#include <string.h>

/* A recording has space for this many times all ops of the description, as in schedule.c. */
enum { STEP_SPARE_FACTOR = 2 };

/* --- set-up --- */

static uint32_t reads_of(const tide_op_record *op)
{
    uint32_t reads = 0;
    for (uint32_t i = 0; i < op->chunks.count; i++)
        reads += op->reads[i];
    return reads;
}

uint32_t tide_frames_needed(const tide_ops *ops, bool ahead)
{
    const uint32_t groups = tide_layout_space_chunks(ops->layout, TIDE_SPACE_PARAM);
    uint32_t most = 0;
    for (tide_op op = 0; op < ops->count; op++)
        most = tide_max_u32(most, reads_of(&ops->records[op]));
    return tide_min_u32(ahead ? 2 * most : most, groups);
}

static void allocate(tide_frames *f)
{
    f->mapped = tide_arrays_add(&f->arrays, f->count, sizeof *f->mapped);
    f->groups = tide_arrays_add(&f->arrays, f->group_count, sizeof *f->groups);
    for (int kind = 0; kind < 2; kind++) {
        tide_op_recording *recording = &f->recordings[kind];
        recording->ops = tide_arrays_add(&f->arrays, f->op_capacity, sizeof *recording->ops);
        recording->first = tide_arrays_add(&f->arrays, f->group_count + 1u, sizeof *recording->first);
        recording->reads = tide_arrays_add(&f->arrays, f->read_capacity, sizeof *recording->reads);
    }
}

tide_status tide_frames_create(tide_frames *frames, const tide_ops *ops, tide_roll *roll, uint32_t count,
                               bool ahead)
{
    uint32_t reads = 0;
    for (tide_op op = 0; op < ops->count; op++)
        reads += reads_of(&ops->records[op]);
    *frames = (tide_frames){.ops = ops,
                            .roll = roll,
                            .ahead = ahead,
                            .count = count,
                            .group_count = tide_layout_space_chunks(ops->layout, TIDE_SPACE_PARAM),
                            .op_capacity = STEP_SPARE_FACTOR * ops->count + 1,
                            .read_capacity = STEP_SPARE_FACTOR * reads + 1};
    assert(count >= tide_frames_needed(ops, ahead));
    allocate(frames);
    if (frames->arrays.lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %u frames of %u groups", count,
                         frames->group_count);
    for (uint32_t frame = 0; frame < count; frame++)
        frames->mapped[frame] = TIDE_CHUNK_NONE;
    for (tide_chunk group = 0; group < frames->group_count; group++)
        frames->groups[group] =
            (tide_group){.frame = TIDE_FRAME_NONE, .trained = tide_layout_pieces(ops->layout, group) > 0};
    return TIDE_OK;
}

void tide_frames_destroy(tide_frames *frames)
{
    tide_arrays_free(&frames->arrays);
    *frames = (tide_frames){.count = 0};
}

bool tide_frames_has(const tide_frames *frames, tide_chunk chunk)
{
    assert(chunk < frames->group_count);
    const tide_group *group = &frames->groups[chunk];
    return group->placed && group->gather < frames->roll->issued;
}

/* --- recordings --- */

/* Sort the reads by group, a counting sort as in schedule.c. False if there are more than fit. */
static bool build_index(const tide_frames *f, tide_op_recording *recording)
{
    memset(recording->first, 0, (f->group_count + 1u) * sizeof *recording->first);
    for (uint32_t n = 0; n < recording->length; n++) {
        const tide_op_record *op = &f->ops->records[recording->ops[n]];
        for (uint32_t i = 0; i < op->chunks.count; i++)
            recording->first[op->chunks.list[i] + 1] += op->reads[i];
    }
    for (tide_chunk group = 0; group < f->group_count; group++)
        recording->first[group + 1] += recording->first[group];
    if (recording->first[f->group_count] > f->read_capacity)
        return false;
    for (uint32_t n = 0; n < recording->length; n++) {
        const tide_op_record *op = &f->ops->records[recording->ops[n]];
        for (uint32_t i = 0; i < op->chunks.count; i++)
            if (op->reads[i])
                recording->reads[recording->first[op->chunks.list[i]]++] = n;
    }
    for (tide_chunk group = f->group_count; group > 0; group--)
        recording->first[group] = recording->first[group - 1];
    recording->first[0] = 0;
    return true;
}

/* The step is not like its recording from here on: record the rest of it. */
static void differ(tide_frames *f, tide_op_recording *recording)
{
    assert(recording->valid && f->follows);
    recording->valid = f->follows = false;
    recording->length = f->begun;
    f->records = true;
}

static void advance(tide_frames *f, tide_op op)
{
    tide_op_recording *recording = &f->recordings[f->training];
    if (f->follows && (f->begun == recording->length || recording->ops[f->begun] != op))
        differ(f, recording);
    if (f->records && recording->length == f->op_capacity)
        f->records = false; /* the step is too long */
    if (f->records)
        recording->ops[recording->length++] = op;
    f->begun++;
}

/* The op that the recording expects next; TIDE_OP_NONE: it is not known. */
static tide_op next_op(const tide_frames *f)
{
    const tide_op_recording *recording = &f->recordings[f->training];
    return f->follows && f->begun < recording->length ? recording->ops[f->begun] : TIDE_OP_NONE;
}

/* --- choices --- */

/* How far off the group's next read is: as an op's number in the recording, in which ops of the next step
 * follow those of this one. Without a recording less for a group read later. */
static uint64_t distance_of(const tide_frames *f, tide_chunk chunk)
{
    const tide_group *group = &f->groups[chunk];
    const tide_op_recording *recording = &f->recordings[f->training];
    if (!f->follows)
        return f->begins - group->last_read;
    const uint32_t first = recording->first[chunk], end = recording->first[chunk + 1];
    uint32_t low = first, high = end;
    while (low < high) { /* binary search for the first read by an op that has not begun */
        const uint32_t middle = low + (high - low) / 2;
        if (recording->reads[middle] < f->begun)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < end)
        return recording->reads[low];
    const bool ends = first == end || (f->training && group->trained);
    return ends ? UINT64_MAX : (uint64_t)recording->length + recording->reads[first];
}

/* The frame for a group that is in none: an empty one, else one of a group that need not stay. */
static uint32_t choose(const tide_frames *f)
{
    uint32_t chosen = TIDE_FRAME_NONE;
    bool chosen_placed = true;
    uint64_t farthest = 0;
    for (uint32_t frame = 0; frame < f->count; frame++) {
        const tide_chunk mapped = f->mapped[frame];
        if (mapped == TIDE_CHUNK_NONE)
            return frame;
        const tide_group *group = &f->groups[mapped];
        if (group->wanted == f->choices || (group->placed && !chosen_placed))
            continue;
        const uint64_t distance = distance_of(f, mapped);
        if (chosen != TIDE_FRAME_NONE && group->placed == chosen_placed && distance <= farthest)
            continue;
        chosen = frame;
        chosen_placed = group->placed;
        farthest = distance;
    }
    assert(chosen != TIDE_FRAME_NONE);
    return chosen;
}

static void gather(tide_frames *f, tide_chunk chunk)
{
    tide_group *group = &f->groups[chunk];
    const uint32_t frame = group->frame != TIDE_FRAME_NONE ? group->frame : choose(f);
    const tide_chunk replaced = f->mapped[frame];
    if (replaced != TIDE_CHUNK_NONE)
        f->groups[replaced].placed = false;
    if (replaced != TIDE_CHUNK_NONE && replaced != chunk)
        f->groups[replaced].frame = TIDE_FRAME_NONE;
    f->mapped[frame] = chunk;
    group->frame = frame;
    group->placed = true;
    group->gather = tide_roll_append(
        f->roll, &(tide_collective){
                     .kind = TIDE_COLLECTIVE_GATHER, .group = chunk, .replaced = replaced, .frame = frame});
}

static void want(tide_frames *f, tide_op op)
{
    const tide_op_record *record = &f->ops->records[op];
    for (uint32_t i = 0; i < record->chunks.count; i++)
        if (record->reads[i])
            f->groups[record->chunks.list[i]].wanted = f->choices;
}

/* Append the gathers of the groups that the op reads and that are in no frame. They replace none that the
 * open op reads (TIDE_OP_NONE: no other op is open). */
static void gather_for(tide_frames *f, tide_op op, tide_op open)
{
    const tide_op_record *record = &f->ops->records[op];
    f->choices++;
    want(f, op);
    if (open != TIDE_OP_NONE)
        want(f, open);
    for (uint32_t i = 0; i < record->chunks.count; i++)
        if (record->reads[i] && !f->groups[record->chunks.list[i]].placed)
            gather(f, record->chunks.list[i]);
}

/* --- events --- */

void tide_frames_step_begin(tide_frames *frames, bool training)
{
    tide_op_recording *recording = &frames->recordings[training];
    frames->training = training;
    frames->begun = 0;
    frames->follows = recording->valid;
    frames->records = !recording->valid;
    if (!recording->valid)
        recording->length = 0;
    const tide_op next = next_op(frames);
    if (frames->ahead && next != TIDE_OP_NONE)
        gather_for(frames, next, TIDE_OP_NONE);
}

void tide_frames_begin(tide_frames *frames, tide_op op)
{
    const tide_op_record *record = &frames->ops->records[op];
    advance(frames, op);
    frames->begins++;
    gather_for(frames, op, TIDE_OP_NONE);
    for (uint32_t i = 0; i < record->chunks.count; i++)
        if (record->reads[i])
            frames->groups[record->chunks.list[i]].last_read = frames->begins;
    const tide_op next = next_op(frames);
    if (frames->ahead && next != TIDE_OP_NONE)
        gather_for(frames, next, op);
}

void tide_frames_forget(tide_frames *frames)
{
    for (uint32_t frame = 0; frame < frames->count; frame++)
        if (frames->mapped[frame] != TIDE_CHUNK_NONE)
            frames->groups[frames->mapped[frame]].placed = false;
}

void tide_frames_step_end(tide_frames *frames)
{
    tide_op_recording *recording = &frames->recordings[frames->training];
    if (frames->follows && frames->begun < recording->length)
        differ(frames, recording);
    if (frames->records)
        recording->valid = recording->length > 0 && build_index(frames, recording);
    for (uint32_t frame = 0; frame < frames->count && frames->training; frame++) {
        const tide_chunk mapped = frames->mapped[frame];
        if (mapped != TIDE_CHUNK_NONE && frames->groups[mapped].trained)
            frames->groups[mapped].placed = false;
    }
}

bool tide_frames_is_valid(const tide_frames *frames)
{
    uint32_t mapped = 0;
    for (uint32_t frame = 0; frame < frames->count; frame++) {
        const tide_chunk group = frames->mapped[frame];
        mapped += group != TIDE_CHUNK_NONE;
        if (group != TIDE_CHUNK_NONE && frames->groups[group].frame != frame)
            return false;
    }
    for (tide_chunk group = 0; group < frames->group_count; group++) {
        const tide_group *it = &frames->groups[group];
        mapped -= it->frame != TIDE_FRAME_NONE;
        if (it->placed && (it->frame == TIDE_FRAME_NONE || it->gather >= frames->roll->appended))
            return false;
    }
    return mapped == 0;
}
