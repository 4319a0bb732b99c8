/* See trace.h. */
#include "chunk/trace.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

tide_status tide_trace_maker_create(tide_trace_maker *tracer, const tide_ops *ops, const tide_dues *dues)
{
    const uint32_t chunks = tide_layout_chunk_count(ops->layout);
    const uint32_t parts = dues->tensors->part_first[tide_layout_checkpoints(ops->layout)];
    *tracer = (tide_trace_maker){.layout = ops->layout, .ops = ops, .dues = dues};
    tracer->live_parts = calloc(chunks, sizeof *tracer->live_parts);
    tracer->part_live = calloc(parts + 1u, sizeof *tracer->part_live);
    tracer->seen = calloc(chunks, sizeof *tracer->seen);
    if (!tracer->live_parts || !tracer->part_live || !tracer->seen)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory to trace %u chunks", chunks);
    return TIDE_OK;
}

void tide_trace_maker_destroy(tide_trace_maker *tracer)
{
    free(tracer->live_parts);
    free(tracer->part_live);
    free(tracer->seen);
    *tracer = (tide_trace_maker){.ops = NULL};
}

static void add_use(tide_use_trace *trace, uint32_t moment, tide_chunk chunk, uint32_t flags, uint32_t held_moments)
{
    assert(moment < trace->moment_count && chunk < trace->chunk_count);
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

static void trace_params(const tide_trace_maker *t, const tide_recording *recording, uint32_t moment, bool training,
                         tide_use_trace *trace)
{
    const tide_op_record *op = &t->ops->records[recording->moments[moment].op];
    const uint32_t held = slices_after(recording, moment);
    for (uint32_t i = 0; i < op->chunk_count; i++)
        add_use(trace, moment, op->chunks[i], training && op->modifies[i] ? TIDE_TRACE_MODIFIES : 0, held);
}

/* The chunk's use among those of the moment that began with `first`. */
static tide_trace_use *find_use(tide_use_trace *trace, uint32_t first, tide_chunk chunk)
{
    uint32_t use = first;
    while (use < trace->use_count && trace->uses[use].chunk != chunk)
        use++;
    assert(use < trace->use_count);
    return &trace->uses[use];
}

/* A part of a CHECKPOINT tensor gets or loses its content. */
static void set_part_live(tide_trace_maker *t, uint32_t tensor, uint32_t part, bool live)
{
    uint8_t *was = &t->part_live[t->dues->tensors->part_first[tensor] + part];
    tide_chunk first, last;
    if (*was == live)
        return;
    *was = live;
    tide_layout_checkpoint_chunks(t->layout, tensor, part, &first, &last);
    assert(live || t->live_parts[first] > 0);
    for (tide_chunk chunk = first; chunk <= last; chunk++)
        t->live_parts[chunk] += live ? 1u : UINT32_MAX;
}

static void trace_slice(tide_trace_maker *t, tide_moment moment, uint32_t number, tide_use_trace *trace)
{
    const tide_op_record *op = &t->ops->records[moment.op];
    const uint32_t first_use = trace->use_count;
    for (uint32_t i = op->slice_first[moment.slice]; i < op->slice_first[moment.slice + 1]; i++)
        add_use(trace, number, op->slice_chunks[i], 0, 0);
    for (uint32_t i = 0; i < op->checkpoint_count; i++)
        if (!(op->checkpoints[i].access & TIDE_ACCESS_READ)) /* written whole: what it held is dead */
            set_part_live(t, op->checkpoints[i].tensor, moment.slice, false);
    for (uint32_t use = first_use; use < trace->use_count; use++)
        trace->uses[use].flags |= t->live_parts[trace->uses[use].chunk] == 0 ? TIDE_TRACE_CREATES : 0;
    for (uint32_t i = 0; i < op->checkpoint_count; i++) {
        const tide_use *use = &op->checkpoints[i];
        tide_chunk first, last;
        set_part_live(t, use->tensor, moment.slice, true);
        tide_layout_checkpoint_chunks(t->layout, use->tensor, moment.slice, &first, &last);
        for (tide_chunk chunk = first; use->access & TIDE_ACCESS_WRITE && chunk <= last; chunk++)
            find_use(trace, first_use, chunk)->flags |= TIDE_TRACE_MODIFIES;
    }
    for (uint32_t i = 0; i < op->checkpoint_count; i++)
        if (op->checkpoints[i].access & TIDE_ACCESS_LAST)
            set_part_live(t, op->checkpoints[i].tensor, moment.slice, false);
    for (uint32_t use = first_use; use < trace->use_count; use++)
        trace->uses[use].flags |= t->live_parts[trace->uses[use].chunk] == 0 ? TIDE_TRACE_ENDS : 0;
}

/* After its last use in a step a checkpoint is dead, and a param is updated. */
static void trace_last_uses(tide_trace_maker *t, bool training, tide_use_trace *trace)
{
    memset(t->seen, 0, trace->chunk_count * sizeof *t->seen);
    for (uint32_t i = trace->use_count; i-- > 0;) {
        tide_trace_use *use = &trace->uses[i];
        if (t->seen[use->chunk])
            continue;
        t->seen[use->chunk] = true;
        if (!tide_dues_is_param_chunk(t->dues, use->chunk))
            use->flags |= TIDE_TRACE_ENDS;
        else if (training)
            use->flags |= t->dues->on_device[use->chunk] ? TIDE_TRACE_MODIFIES
                                                         : TIDE_TRACE_MODIFIES | TIDE_TRACE_LEAVES;
    }
}

void tide_trace_maker_make(tide_trace_maker *tracer, const tide_recording *recording, bool training, tide_use_trace *trace)
{
    trace->moment_count = recording->length;
    trace->chunk_count = tide_layout_chunk_count(tracer->layout);
    trace->use_count = 0;
    memset(tracer->live_parts, 0, trace->chunk_count * sizeof *tracer->live_parts);
    memset(tracer->part_live, 0, tracer->dues->tensors->part_first[tide_layout_checkpoints(tracer->layout)]);
    for (uint32_t moment = 0; moment < recording->length; moment++) {
        assert(recording->moment_first[moment] == trace->use_count);
        if (recording->moments[moment].slice == TIDE_SLICE_NONE)
            trace_params(tracer, recording, moment, training, trace);
        else
            trace_slice(tracer, recording->moments[moment], moment, trace);
    }
    assert(trace->use_count == recording->moment_first[recording->length]);
    trace_last_uses(tracer, training, trace);
}
