/* See ops.h. */
#include "chunk/ops.h"

#include "base/array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

tide_status tide_ops_create(tide_ops *ops, const tide_layout *layout)
{
    const uint32_t chunks = tide_layout_chunk_count(layout);
    *ops = (tide_ops){.layout = layout, .stamp = 1};
    ops->seen = tide_arrays_add(&ops->arrays, chunks, sizeof *ops->seen);
    ops->set.list = tide_arrays_add(&ops->arrays, chunks, sizeof *ops->set.list);
    tide_gradients_create(&ops->gradients, layout, &ops->arrays);
    if (ops->arrays.lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory for ops on %u chunks and %u params",
                         chunks, tide_layout_params(layout));
    return TIDE_OK;
}

void tide_ops_destroy(tide_ops *ops)
{
    free(ops->records);
    tide_arrays_free(&ops->arrays);
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
    const char *name = tide_layout_param(layout, use->tensor)->name;
    if (is_named_before(d->params, i))
        return fail_use(d, name, "named twice");
    const uint32_t access = use->access & ~(unsigned)TIDE_ACCESS_OVERWRITE;
    if (access == 0 || access & ~(unsigned)(TIDE_ACCESS_READ | TIDE_ACCESS_GRAD) ||
        (access != use->access && !(access & TIDE_ACCESS_GRAD)))
        return fail_use(d, name, "a param's access is READ, GRAD or both, and OVERWRITE beside GRAD");
    if (use->access & TIDE_ACCESS_GRAD && d->pass == TIDE_PASS_FORWARD)
        return fail_use(d, name, "a forward op makes no gradient");
    if (use->access & TIDE_ACCESS_GRAD && tide_layout_param_is_frozen(layout, use->tensor))
        return fail_use(d, name, "it is frozen, and has no gradient");
    return TIDE_OK;
}

static tide_status check_activation_use(const tide_layout *layout, const tide_op_description *d, uint32_t i)
{
    const tide_use *use = &d->activations[i];
    if (use->tensor >= tide_layout_activations(layout))
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: there is no activation %u", d->name, use->tensor);
    const char *name = tide_layout_activation(layout, use->tensor)->name;
    const uint32_t parts = tide_layout_activation(layout, use->tensor)->parts;
    if (is_named_before(d->activations, i))
        return fail_use(d, name, "named twice");
    if (!(use->access & (TIDE_ACCESS_READ | TIDE_ACCESS_WRITE)) || use->access & TIDE_ACCESS_GRAD ||
        use->access > (TIDE_ACCESS_READ | TIDE_ACCESS_WRITE | TIDE_ACCESS_LAST))
        return fail_use(d, name, "an activation's access is READ, WRITE or both, and LAST");
    if (parts != d->slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s has %u slices, but activation %s has %u parts", d->name,
                         d->slices, name, parts);
    return TIDE_OK;
}

/* Check the length of an op's array of uses. No tensor may be in it twice, so it is no longer than there are
 * tensors; with a wrong count this check fails before anything reads beyond the array. */
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
    if (d->activation_count == 0 && d->slices)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s has %u slices of no activation", d->name, d->slices);
    tide_status status = check_array(d, "params", d->params, d->param_count, tide_layout_params(layout));
    if (status == TIDE_OK)
        status = check_array(d, "activations", d->activations, d->activation_count,
                             tide_layout_activations(layout));
    for (uint32_t i = 0; i < d->param_count && status == TIDE_OK; i++)
        status = check_param_use(layout, d, i);
    for (uint32_t i = 0; i < d->activation_count && status == TIDE_OK; i++)
        status = check_activation_use(layout, d, i);
    return status;
}

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

/* Copies an array into memory that the ops own. NULL: there was no memory. */
static void *copy_of(tide_ops *ops, const void *source, size_t count, size_t bytes)
{
    void *copy = tide_arrays_add(&ops->arrays, count, bytes);
    if (copy && count)
        memcpy(copy, source, count * bytes);
    return copy;
}

/* Copies the set being built to `to`, and empties it. */
static void take_set(tide_ops *ops, tide_chunk_set *set)
{
    assert(ops->set.count <= tide_layout_chunk_count(ops->layout));
    set->count = ops->set.count;
    set->list = copy_of(ops, ops->set.list, set->count, sizeof *set->list);
    ops->set.count = 0;
    ops->stamp++;
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
    op->slice_chunks = tide_arrays_add(&ops->arrays, op->slices, sizeof *op->slice_chunks);
    for (uint32_t slice = 0; slice < op->slices && !ops->arrays.lacks; slice++) {
        for (uint32_t i = 0; i < op->activation_count; i++) {
            tide_layout_activation_chunks(ops->layout, op->activations[i].tensor, slice, &first, &last);
            add_range(ops, first, last);
        }
        take_set(ops, &op->slice_chunks[slice]);
    }
}

tide_status tide_ops_add(tide_ops *ops, const tide_op_description *d, tide_op *op)
{
    assert(ops->set.count == 0 && ops->gradients.op_count == ops->count);
    const tide_status status = tide_op_check(ops->layout, d);
    if (status != TIDE_OK)
        return status;
    if (!tide_array_grow(&ops->records, ops->count, sizeof *ops->records))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "op %s: no memory for its record", d->name);
    tide_gradients_take_ops(&ops->gradients, ops->records, ops->count);
    tide_op_record *record = &ops->records[ops->count];
    ops->arrays.lacks = false;
    *record = (tide_op_record){.name = copy_of(ops, d->name, strlen(d->name) + 1, 1),
                               .pass = d->pass,
                               .params = copy_of(ops, d->params, d->param_count, sizeof *d->params),
                               .param_count = d->param_count,
                               .activations =
                                   copy_of(ops, d->activations, d->activation_count, sizeof *d->activations),
                               .activation_count = d->activation_count,
                               .slices = d->slices};
    if (!ops->arrays.lacks)
        fill_sets(ops, record);
    if (ops->arrays.lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "op %s: no memory for its uses and chunks", d->name);
    *op = ops->count++;
    tide_gradients_take_ops(&ops->gradients, ops->records, ops->count);
    return TIDE_OK;
}

static void add_modified(tide_op_record *op, tide_chunk first, tide_chunk last)
{
    for (uint32_t i = 0; i < op->chunks.count; i++)
        op->modifies[i] = op->modifies[i] || (op->chunks.list[i] >= first && op->chunks.list[i] <= last);
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
