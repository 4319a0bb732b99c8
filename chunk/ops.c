#include "chunk/ops.h"

#include <assert.h>
#include <string.h>

/* --- chunk sets --- */

/* Add the chunks of a range to the set, except those that are in it already. */
static void add_range(tide_ops *ops, tide_chunk first, tide_chunk last)
{
    assert(first <= last && last < tide_layout_chunk_count(ops->layout));
    for (tide_chunk chunk = first; chunk <= last; chunk++) {
        if (ops->seen[chunk] == ops->stamp)
            continue;
        ops->seen[chunk] = ops->stamp;
        ops->set.list[ops->set.count++] = chunk;
    }
}

/* Copy the set that was built to `set`, and empty it. */
static void take_set(tide_ops *ops, tide_chunk_set *set)
{
    assert(ops->set.count <= tide_layout_chunk_count(ops->layout));
    set->count = ops->set.count;
    set->list = tide_arrays_add(&ops->arrays, set->count, sizeof *set->list);
    if (set->list && set->count > 0)
        memcpy(set->list, ops->set.list, set->count * sizeof *set->list);
    ops->set.count = 0;
    ops->stamp++;
}

static void fill_reads(tide_ops *ops, tide_op_record *op)
{
    op->reads = tide_arrays_add(&ops->arrays, op->chunks.count, sizeof *op->reads);
    for (uint32_t i = 0; i < op->param_count && !ops->arrays.lacks; i++) {
        tide_chunk first, last;
        tide_layout_param_chunks(ops->layout, op->params[i].tensor, &first, &last);
        for (uint32_t k = 0; k < op->chunks.count && op->params[i].access & TIDE_ACCESS_READ; k++)
            op->reads[k] = op->reads[k] || (op->chunks.list[k] >= first && op->chunks.list[k] <= last);
    }
}

static void fill_sets(tide_ops *ops, tide_op_record *op)
{
    tide_chunk first, last;
    for (uint32_t i = 0; i < op->param_count; i++) {
        tide_layout_param_chunks(ops->layout, op->params[i].tensor, &first, &last);
        add_range(ops, first, last);
    }
    take_set(ops, &op->chunks);
    op->modifies = tide_arrays_add(&ops->arrays, op->chunks.count, sizeof *op->modifies);
    if (tide_layout_shard(ops->layout).ranks > 1)
        fill_reads(ops, op);
    op->slice_chunks = tide_arrays_add(&ops->arrays, op->slices, sizeof *op->slice_chunks);
    for (uint32_t slice = 0; slice < op->slices && !ops->arrays.lacks; slice++) {
        for (uint32_t i = 0; i < op->activation_count; i++) {
            tide_layout_activation_chunks(ops->layout, op->activations[i].tensor, slice, &first, &last);
            add_range(ops, first, last);
        }
        take_set(ops, &op->slice_chunks[slice]);
    }
}

/* --- creation --- */

static void add_modified(tide_op_record *op, tide_chunk first, tide_chunk last)
{
    for (uint32_t i = 0; i < op->chunks.count; i++)
        op->modifies[i] = op->modifies[i] || (op->chunks.list[i] >= first && op->chunks.list[i] <= last);
}

void tide_ops_find_modified(tide_ops *ops)
{
    for (tide_op op = 0; op < ops->count; op++)
        for (uint32_t i = 0; i < ops->records[op].param_count; i++) {
            const uint32_t param = ops->records[op].params[i].tensor;
            tide_chunk first, last;
            tide_layout_param_chunks(ops->layout, param, &first, &last);
            if (tide_gradients_may_close(&ops->gradients, op, param))
                add_modified(&ops->records[op], first, last);
        }
}

static void fill_records(tide_ops *ops, const tide_op_description *described)
{
    for (tide_op op = 0; op < ops->count && !ops->arrays.lacks; op++) {
        const tide_op_description *it = &described[op];
        ops->records[op] = (tide_op_record){.name = it->name,
                                            .pass = it->pass,
                                            .params = it->params,
                                            .param_count = it->param_count,
                                            .activations = it->activations,
                                            .activation_count = it->activation_count,
                                            .slices = it->slices};
        fill_sets(ops, &ops->records[op]);
    }
}

tide_status tide_ops_create(tide_ops *ops, const tide_layout *layout)
{
    const tide_description *description = tide_layout_description(layout);
    const uint32_t chunks = tide_layout_chunk_count(layout);
    *ops = (tide_ops){.layout = layout, .stamp = 1, .count = description->op_count};
    ops->seen = tide_arrays_add(&ops->arrays, chunks, sizeof *ops->seen);
    ops->set.list = tide_arrays_add(&ops->arrays, chunks, sizeof *ops->set.list);
    ops->records = tide_arrays_add(&ops->arrays, ops->count, sizeof *ops->records);
    if (!ops->arrays.lacks)
        fill_records(ops, description->ops);
    if (!ops->arrays.lacks)
        tide_gradients_create(&ops->gradients, layout, ops->records, ops->count, &ops->arrays);
    if (ops->arrays.lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for %u ops on %u chunks and %u params",
                         ops->count, chunks, tide_layout_params(layout));
    return TIDE_OK;
}

void tide_ops_destroy(tide_ops *ops)
{
    tide_arrays_free(&ops->arrays);
    *ops = (tide_ops){.count = 0};
}

/* --- queries --- */

uint32_t tide_ops_largest(const tide_ops *ops, tide_op *op)
{
    uint32_t most = 0;
    *op = 0;
    for (tide_op i = 0; i < ops->count; i++) {
        const tide_op_record *record = &ops->records[i];
        uint32_t largest_slice = 0;
        for (uint32_t slice = 0; slice < record->slices; slice++)
            if (record->slice_chunks[slice].count > largest_slice)
                largest_slice = record->slice_chunks[slice].count;
        if (record->chunks.count + largest_slice <= most)
            continue;
        *op = i;
        most = record->chunks.count + largest_slice;
    }
    return most;
}

void tide_ops_totals(const tide_ops *ops, uint32_t *schedule_steps, uint32_t *uses)
{
    *schedule_steps = *uses = 0;
    for (tide_op op = 0; op < ops->count; op++) {
        const tide_op_record *record = &ops->records[op];
        *schedule_steps += 1 + record->slices;
        *uses += record->chunks.count;
        for (uint32_t slice = 0; slice < record->slices; slice++)
            *uses += record->slice_chunks[slice].count;
    }
}

const tide_chunk_set *tide_ops_step_chunks(const tide_ops *ops, tide_schedule_step schedule_step)
{
    assert(schedule_step.op < ops->count);
    const tide_op_record *op = &ops->records[schedule_step.op];
    assert(schedule_step.slice == TIDE_SLICE_NONE || schedule_step.slice < op->slices);
    return schedule_step.slice == TIDE_SLICE_NONE ? &op->chunks : &op->slice_chunks[schedule_step.slice];
}
