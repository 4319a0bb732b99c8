/* See ops.h. */
#include "chunk/ops.h"

#include "chunk/array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

tide_status tide_ops_create(tide_ops *ops, const tide_layout *layout)
{
    *ops = (tide_ops){.layout = layout};
    ops->seen = calloc(tide_layout_chunk_count(layout), sizeof *ops->seen);
    if (!ops->seen)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for a table of %u chunks",
                         tide_layout_chunk_count(layout));
    return tide_gradients_create(&ops->gradients, layout);
}

static void record_free(tide_op_record *op)
{
    free(op->name);
    free(op->params);
    free(op->checkpoints);
    free(op->chunks);
    free(op->modifies);
    free(op->slice_chunks);
    free(op->slice_first);
}

void tide_ops_destroy(tide_ops *ops)
{
    for (uint32_t i = 0; i < ops->count; i++)
        record_free(&ops->records[i]);
    free(ops->records);
    free(ops->seen);
    tide_gradients_destroy(&ops->gradients);
    *ops = (tide_ops){.count = 0};
}

/* --- checks --- */

static tide_status fail_use(const tide_op_description *d, const char *tensor, const char *what)
{
    return tide_fail(TIDE_ERROR_ARGUMENT, "op %s, %s: %s", d->name, tensor, what);
}

static bool is_named_before(const tide_use *uses, uint32_t i)
{
    for (uint32_t k = 0; k < i; k++)
        if (uses[k].tensor == uses[i].tensor)
            return true;
    return false;
}

static tide_status check_param_use(const tide_layout *layout, const tide_op_description *d, uint32_t i)
{
    const tide_use *use = &d->params[i];
    if (use->tensor >= tide_layout_params(layout))
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: there is no param %u", d->name, use->tensor);
    const char *name = tide_layout_param_name(layout, use->tensor);
    if (is_named_before(d->params, i))
        return fail_use(d, name, "named twice");
    if (use->access == 0 || use->access & ~(unsigned)(TIDE_ACCESS_READ | TIDE_ACCESS_GRAD))
        return fail_use(d, name, "a param's access is READ, GRAD or both");
    if (use->access & TIDE_ACCESS_GRAD && d->pass == TIDE_PASS_FORWARD)
        return fail_use(d, name, "a forward op makes no gradient");
    return TIDE_OK;
}

static tide_status check_checkpoint_use(const tide_layout *layout, const tide_op_description *d, uint32_t i)
{
    const tide_use *use = &d->checkpoints[i];
    if (use->tensor >= tide_layout_checkpoints(layout))
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: there is no checkpoint %u", d->name, use->tensor);
    const char *name = tide_layout_checkpoint_name(layout, use->tensor);
    if (is_named_before(d->checkpoints, i))
        return fail_use(d, name, "named twice");
    if (!(use->access & (TIDE_ACCESS_READ | TIDE_ACCESS_WRITE)) || use->access & TIDE_ACCESS_GRAD ||
        use->access > (TIDE_ACCESS_READ | TIDE_ACCESS_WRITE | TIDE_ACCESS_LAST))
        return fail_use(d, name, "a checkpoint's access is READ, WRITE or both, and LAST");
    if (tide_layout_checkpoint_parts(layout, use->tensor) != d->slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s has %u slices, but checkpoint %s has %u parts", d->name,
                         d->slices, name, tide_layout_checkpoint_parts(layout, use->tensor));
    return TIDE_OK;
}

/* Each once, so there are no more of them than tensors: a count that is wrong makes nobody read beyond the array. */
static tide_status check_array(const tide_op_description *d, const char *what, const tide_use *uses,
                               uint32_t count, uint32_t tensors)
{
    if (count > 0 && !uses)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: %s is NULL, %u are counted", d->name, what, count);
    if (count > tensors)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: %u %s, of which there are %u", d->name, count, what,
                         tensors);
    return TIDE_OK;
}

tide_status tide_op_check(const tide_layout *layout, const tide_op_description *d)
{
    if (!d->name || !*d->name)
        return tide_fail(TIDE_ERROR_ARGUMENT, "an op needs a name");
    if ((unsigned)d->pass > TIDE_PASS_BOTH)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: pass %d is unknown", d->name, (int)d->pass);
    if (d->checkpoint_count == 0 && d->slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s has %u slices of no checkpoint", d->name, d->slices);
    tide_status status = check_array(d, "params", d->params, d->param_count, tide_layout_params(layout));
    if (status == TIDE_OK)
        status = check_array(d, "checkpoints", d->checkpoints, d->checkpoint_count,
                             tide_layout_checkpoints(layout));
    for (uint32_t i = 0; i < d->param_count && status == TIDE_OK; i++)
        status = check_param_use(layout, d, i);
    for (uint32_t i = 0; i < d->checkpoint_count && status == TIDE_OK; i++)
        status = check_checkpoint_use(layout, d, i);
    return status;
}

/* --- chunk sets --- */

/* Append the chunks of a range that are not yet in the set of the current stamp; only count if `set` is NULL.
 */
static uint32_t add_range(tide_ops *ops, tide_chunk *set, uint32_t count, tide_chunk first, tide_chunk last)
{
    assert(first <= last && last < tide_layout_chunk_count(ops->layout));
    for (tide_chunk chunk = first; chunk <= last; chunk++) {
        if (ops->seen[chunk] == ops->seen_stamp)
            continue;
        ops->seen[chunk] = ops->seen_stamp;
        if (set)
            set[count] = chunk;
        count++;
    }
    return count;
}

static uint32_t param_set(tide_ops *ops, const tide_op_description *d, tide_chunk *set)
{
    uint32_t count = 0;
    ops->seen_stamp++;
    for (uint32_t i = 0; i < d->param_count; i++) {
        tide_chunk first, last;
        tide_layout_param_chunks(ops->layout, d->params[i].tensor, &first, &last);
        count = add_range(ops, set, count, first, last);
    }
    return count;
}

static uint32_t slice_set(tide_ops *ops, const tide_op_description *d, uint32_t slice, tide_chunk *set)
{
    uint32_t count = 0;
    ops->seen_stamp++;
    for (uint32_t i = 0; i < d->checkpoint_count; i++) {
        tide_chunk first, last;
        tide_layout_checkpoint_chunks(ops->layout, d->checkpoints[i].tensor, slice, &first, &last);
        count = add_range(ops, set, count, first, last);
    }
    return count;
}

/* malloc that tells "nothing wanted" from "nothing left". */
static void *allocate(size_t count, size_t bytes)
{
    return calloc(count ? count : 1, bytes);
}

static void *copy_of(const void *source, size_t count, size_t bytes)
{
    void *copy = allocate(count, bytes);
    if (copy && count)
        memcpy(copy, source, count * bytes);
    return copy;
}

static bool fill_sets(tide_ops *ops, const tide_op_description *d, tide_op_record *op)
{
    op->chunk_count = param_set(ops, d, NULL);
    op->chunks = allocate(op->chunk_count, sizeof *op->chunks);
    op->modifies = allocate(op->chunk_count, sizeof *op->modifies);
    op->slice_first = allocate(d->slices + 1u, sizeof *op->slice_first);
    if (!op->chunks || !op->modifies || !op->slice_first)
        return false;
    param_set(ops, d, op->chunks);
    for (uint32_t slice = 0; slice < d->slices; slice++) {
        uint32_t count = slice_set(ops, d, slice, NULL);
        op->slice_first[slice + 1] = op->slice_first[slice] + count;
        op->largest_slice = count > op->largest_slice ? count : op->largest_slice;
    }
    assert(op->largest_slice <= op->slice_first[d->slices]);
    op->slice_chunks = allocate(op->slice_first[d->slices], sizeof *op->slice_chunks);
    if (!op->slice_chunks)
        return false;
    for (uint32_t slice = 0; slice < d->slices; slice++)
        slice_set(ops, d, slice, op->slice_chunks + op->slice_first[slice]);
    return true;
}

static bool fill_record(tide_ops *ops, const tide_op_description *d, tide_op_record *op)
{
    *op = (tide_op_record){.pass = d->pass,
                           .param_count = d->param_count,
                           .checkpoint_count = d->checkpoint_count,
                           .slices = d->slices};
    op->name = strdup(d->name);
    op->params = copy_of(d->params, d->param_count, sizeof *d->params);
    op->checkpoints = copy_of(d->checkpoints, d->checkpoint_count, sizeof *d->checkpoints);
    return op->name && op->params && op->checkpoints && fill_sets(ops, d, op);
}

tide_status tide_ops_add(tide_ops *ops, const tide_op_description *description, tide_op *op)
{
    tide_status status = tide_op_check(ops->layout, description);
    if (status != TIDE_OK)
        return status;
    if (!tide_array_grow((void **)&ops->records, ops->count, &ops->capacity, sizeof *ops->records))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "op %s: no memory for its record", description->name);
    tide_op_record record;
    if (!fill_record(ops, description, &record)) {
        record_free(&record);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "op %s: no memory for its chunks", description->name);
    }
    *op = ops->count++;
    ops->records[*op] = record;
    tide_gradients_add_op(&ops->gradients, ops->records, ops->count);
    return TIDE_OK;
}

static void add_modified(tide_op_record *op, tide_chunk first, tide_chunk last)
{
    for (uint32_t i = 0; i < op->chunk_count; i++)
        op->modifies[i] = op->modifies[i] || (op->chunks[i] >= first && op->chunks[i] <= last);
}

void tide_ops_seal(tide_ops *ops)
{
    assert(ops->gradients.op_count == ops->count);
    for (tide_op op = 0; op < ops->count; op++)
        for (uint32_t i = 0; i < ops->records[op].param_count; i++) {
            const uint32_t param = ops->records[op].params[i].tensor;
            tide_chunk first, last;
            tide_layout_param_chunks(ops->layout, param, &first, &last);
            if (tide_gradients_may_close(&ops->gradients, op, param))
                add_modified(&ops->records[op], first, last);
        }
}

/* --- queries --- */

uint32_t tide_ops_largest(const tide_ops *ops, tide_op *op)
{
    uint32_t most = 0;
    *op = 0;
    for (tide_op i = 0; i < ops->count; i++) {
        const uint32_t chunks = ops->records[i].chunk_count + ops->records[i].largest_slice;
        if (chunks <= most)
            continue;
        *op = i;
        most = chunks;
    }
    return most;
}

void tide_ops_totals(const tide_ops *ops, uint32_t *moments, uint32_t *uses)
{
    *moments = *uses = 0;
    for (tide_op op = 0; op < ops->count; op++) {
        const tide_op_record *record = &ops->records[op];
        *moments += 1 + record->slices;
        *uses += record->chunk_count + record->slice_first[record->slices];
    }
}

const tide_chunk *tide_ops_moment_chunks(const tide_ops *ops, tide_moment moment, uint32_t *count)
{
    assert(moment.op < ops->count);
    const tide_op_record *op = &ops->records[moment.op];
    if (moment.slice == TIDE_SLICE_NONE) {
        *count = op->chunk_count;
        return op->chunks;
    }
    assert(moment.slice < op->slices);
    *count = op->slice_first[moment.slice + 1] - op->slice_first[moment.slice];
    return op->slice_chunks + op->slice_first[moment.slice];
}
