/* Rows are numbered in order of lines, and a row names only rows of earlier lines; except ops, which name
 * activations, whose table comes later: trace_model.c checks those when all lines are read.
 */
#include "src/trace/trace_rows.h"

#include "src/trace/trace_fields.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PARTS_MAX = 1 << 20 };

static uint64_t count(tide_trace_reader *reader, const char *name)
{
    return tide_scan_count(&reader->scan, name, TIDE_SCAN_COUNT_MAX);
}

static uint32_t small(tide_trace_reader *reader, const char *name)
{
    return (uint32_t)tide_scan_count(&reader->scan, name, UINT32_MAX - 1);
}

static double seconds(tide_trace_reader *reader, const char *name)
{
    double value = tide_scan_real(&reader->scan, name);
    if (!(value >= 0))
        tide_scan_refuse(&reader->scan, "\"%s\" must be a number from 0 on", name);
    return value;
}

/* ---- the first line ---- */

/* False: the file is no trace, or of another format, and the line is refused. */
static bool format_check(tide_trace_reader *reader, tide_scanned first)
{
    tide_trace_scan *scan = &reader->scan;
    const bool is_format_1 = tide_scanned_is(first, "format");
    if (scan->status != TIDE_OK || (!is_format_1 && !tide_scanned_is(first, "trace"))) {
        scan->status = TIDE_OK;
        tide_scan_refuse(scan, "not a trace: its first line would begin with {\"trace\":%d",
                         TIDE_TRACE_FORMAT);
        return false;
    }
    const uint64_t format = is_format_1 ? 1 : count(reader, "trace");
    if (scan->status == TIDE_OK && format < TIDE_TRACE_FORMAT)
        tide_scan_refuse(scan,
                         "a trace of format %" PRIu64 ", made by an older tidepool (this one reads "
                         "format %d): train again with --trace",
                         format, TIDE_TRACE_FORMAT);
    else if (scan->status == TIDE_OK && format > TIDE_TRACE_FORMAT)
        tide_scan_refuse(scan,
                         "a trace of format %" PRIu64 ", made by a newer tidepool (this one reads "
                         "format %d)",
                         format, TIDE_TRACE_FORMAT);
    scan->kind = "trace";
    return scan->status == TIDE_OK;
}

void tide_trace_read_first(tide_trace_reader *reader)
{
    tide_trace_model *model = reader->model;
    tide_trace_scan *scan = &reader->scan;
    if (!format_check(reader, tide_scan_first(scan)))
        return;
    model->version = tide_scan_text(&reader->scan, "tidepool");
    model->rank = small(reader, "rank");
    model->ranks = small(reader, "ranks");
    if (model->ranks > 1)
        model->run = count(reader, "run");
    model->device = tide_scan_text(&reader->scan, "device");
    model->dtype = (tide_dtype)tide_scan_word(scan, "dtype", tide_trace_dtype_word);
    model->chunk_bytes = count(reader, "chunk_bytes");
    model->device_slots = small(reader, "device_slots");
    model->host_slots = small(reader, "host_slots");
    model->device_memory_bytes = count(reader, "device_memory_bytes");
    model->host_memory_bytes = count(reader, "host_memory_bytes");
    model->region_bytes = count(reader, "region_bytes");
    model->trace_steps = count(reader, "trace_steps");
    tide_scan_end(scan);
    if (scan->status == TIDE_OK && model->rank >= model->ranks)
        tide_scan_refuse(scan, "\"rank\" is %" PRIu32 " of %" PRIu32 " ranks", model->rank, model->ranks);
    reader->has_begun = true;
}

/* ---- tables ---- */

static void setting_read(tide_trace_reader *reader)
{
    tide_trace_model *model = reader->model;
    tide_traced_pair row;
    row.name = tide_scan_text(&reader->scan, "name");
    row.value = tide_scan_text(&reader->scan, "value");
    tide_scan_end(&reader->scan);
    if (tide_scan_reserve(&reader->scan, &model->settings, model->setting_count, sizeof row))
        model->settings[model->setting_count++] = row;
}

static void machine_read(tide_trace_reader *reader)
{
    tide_traced_machine *row = &reader->model->machine;
    tide_trace_scan *scan = &reader->scan;
    row->name = tide_scan_text(&reader->scan, "name");
    row->cores = small(reader, "cores");
    row->memory_bytes = count(reader, "memory_bytes");
    row->flops_per_second = tide_scan_real(scan, "flops_per_second");
    row->device_bytes_per_second = tide_scan_real(scan, "device_bytes_per_second");
    row->host_bytes_per_second = tide_scan_real(scan, "host_bytes_per_second");
    row->link_bytes_per_second = tide_scan_real(scan, "link_bytes_per_second");
    row->map_ns = count(reader, "map_ns");
    row->unmap_ns = count(reader, "unmap_ns");
    tide_scan_end(scan);
}

/* Read the row's own number, which must be the number of rows before it. */
static void row_number(tide_trace_reader *reader, const char *name, uint32_t rows)
{
    uint32_t number = small(reader, name);
    if (reader->scan.status == TIDE_OK && number != rows)
        tide_scan_refuse(&reader->scan, "\"%s\" is %" PRIu32 ", but the row is number %" PRIu32, name, number,
                         rows);
}

static void param_read(tide_trace_reader *reader)
{
    tide_trace_model *model = reader->model;
    tide_trace_scan *scan = &reader->scan;
    tide_traced_param row = {0};
    row_number(reader, "param", model->param_count);
    row.name = tide_scan_text(&reader->scan, "name");
    row.elements = count(reader, "elements");
    row.frozen = tide_scan_bool(scan, "frozen");
    row.decays = tide_scan_bool(scan, "decays");
    tide_scan_list_begin(scan, "planes");
    while (tide_scan_list_goes_on(scan)) {
        uint32_t bytes = small(reader, NULL);
        if (row.plane_count == TIDE_STATE_PLANES_MAX)
            tide_scan_refuse(scan, "\"planes\" are more than %d", TIDE_STATE_PLANES_MAX);
        else
            row.planes[row.plane_count++] = bytes;
    }
    tide_scan_end(scan);
    if (tide_scan_reserve(&reader->scan, &model->params, model->param_count, sizeof row))
        model->params[model->param_count++] = row;
}

/* Copy a list's items to memory that lives as long as the model. NULL: there are none. */
static const void *list_keep(tide_trace_reader *reader, const void *items, size_t bytes)
{
    if (reader->scan.status != TIDE_OK || bytes == 0)
        return NULL;
    void *kept = tide_arrays_add(reader->scan.memory, bytes, 1);
    if (kept == NULL)
        tide_scan_no_memory(&reader->scan);
    else
        memcpy(kept, items, bytes);
    return kept;
}

static void segment_check(tide_trace_reader *reader, const tide_traced_segment *segment)
{
    uint64_t elements = reader->model->params[segment->param].elements;
    if (segment->elements > elements || segment->first_element > elements - segment->elements)
        tide_scan_refuse(&reader->scan,
                         "param %" PRIu32 " has %" PRIu64 " elements, not %" PRIu64 " from %" PRIu64,
                         segment->param, elements, segment->elements, segment->first_element);
}

static void segments_read(tide_trace_reader *reader, tide_traced_chunk *row)
{
    tide_trace_scan *scan = &reader->scan;
    tide_traced_segment *segments = NULL;
    tide_scan_list_begin(scan, "params");
    while (tide_scan_list_goes_on(scan)) {
        tide_traced_segment segment = {0};
        tide_scan_list_begin(scan, NULL);
        segment.param = tide_scan_number(&reader->scan, NULL, reader->model->param_count, "params");
        segment.first_element = count(reader, NULL);
        segment.elements = count(reader, NULL);
        if (tide_scan_list_goes_on(scan))
            tide_scan_refuse(scan, "\"params\" has lists of three numbers");
        if (scan->status == TIDE_OK)
            segment_check(reader, &segment);
        if (tide_scan_reserve(&reader->scan, &segments, row->param_count, sizeof segment))
            segments[row->param_count++] = segment;
    }
    row->params = list_keep(reader, segments, row->param_count * sizeof *segments);
    free(segments);
}

static void of_read(tide_trace_reader *reader, tide_traced_chunk *row)
{
    tide_trace_scan *scan = &reader->scan;
    uint32_t *of = NULL;
    tide_scan_list_begin(scan, "of");
    while (tide_scan_list_goes_on(scan)) {
        uint32_t chunk =
            tide_scan_number(&reader->scan, NULL, reader->model->chunk_count, "chunks before this one");
        if (scan->status == TIDE_OK && reader->model->chunks[chunk].space != TIDE_SPACE_PARAM)
            tide_scan_refuse(scan, "\"of\" names chunk %" PRIu32 ", which is no param chunk", chunk);
        if (tide_scan_reserve(&reader->scan, &of, row->of_count, sizeof chunk))
            of[row->of_count++] = chunk;
    }
    row->of = list_keep(reader, of, row->of_count * sizeof *of);
    free(of);
}

/* Refuse chunks that are not in order of spaces and of their numbers inside a space, or do not fit their
 * space. */
static void chunk_check(tide_trace_reader *reader, const tide_traced_chunk *row)
{
    const tide_trace_model *model = reader->model;
    const tide_traced_chunk *before = model->chunk_count > 0 ? &model->chunks[model->chunk_count - 1] : NULL;
    bool first = before == NULL || before->space != row->space;
    uint32_t index = first ? 0 : before->index + 1;
    if (reader->scan.status != TIDE_OK)
        return;
    if (before != NULL && before->space > row->space)
        tide_scan_refuse(&reader->scan,
                         "a %s chunk comes behind a %s chunk; the order is param, state, activation",
                         tide_trace_space_word(row->space), tide_trace_space_word(before->space));
    else if (row->index != index)
        tide_scan_refuse(&reader->scan, "\"index\" is %" PRIu32 ", but it is the %s space's number %" PRIu32,
                         row->index, tide_trace_space_word(row->space), index);
    else if (row->bytes > model->chunk_bytes)
        tide_scan_refuse(&reader->scan, "\"bytes\" is %" PRIu64 ", but a chunk has %" PRIu64, row->bytes,
                         model->chunk_bytes);
    else if (row->param_count > 0 && row->space != TIDE_SPACE_PARAM)
        tide_scan_refuse(&reader->scan, "\"params\" must be empty for a %s chunk",
                         tide_trace_space_word(row->space));
    else if (row->of_count > 0 && row->space != TIDE_SPACE_STATE)
        tide_scan_refuse(&reader->scan, "\"of\" must be empty for a %s chunk",
                         tide_trace_space_word(row->space));
}

static void chunk_read(tide_trace_reader *reader)
{
    tide_trace_model *model = reader->model;
    tide_traced_chunk row = {0};
    row_number(reader, "chunk", model->chunk_count);
    row.space = (tide_space)tide_scan_word(&reader->scan, "space", tide_trace_space_word);
    row.index = small(reader, "index");
    row.bytes = count(reader, "bytes");
    segments_read(reader, &row);
    of_read(reader, &row);
    tide_scan_end(&reader->scan);
    chunk_check(reader, &row);
    if (tide_scan_reserve(&reader->scan, &model->chunks, model->chunk_count, sizeof row))
        model->chunks[model->chunk_count++] = row;
}

static const tide_traced_use *uses_read(tide_trace_reader *reader, const char *name, uint32_t tensors,
                                        uint32_t access_max, uint32_t *use_count)
{
    tide_trace_scan *scan = &reader->scan;
    tide_traced_use *uses = NULL;
    tide_scan_list_begin(scan, name);
    while (tide_scan_list_goes_on(scan)) {
        tide_traced_use use = {0};
        tide_scan_list_begin(scan, NULL);
        use.tensor = tide_scan_number(&reader->scan, NULL, tensors, name);
        use.access = (uint32_t)tide_scan_count(scan, NULL, access_max);
        if (tide_scan_list_goes_on(scan))
            tide_scan_refuse(scan, "\"%s\" has lists of two numbers", name);
        if (tide_scan_reserve(&reader->scan, &uses, *use_count, sizeof use))
            uses[(*use_count)++] = use;
    }
    const tide_traced_use *kept = list_keep(reader, uses, *use_count * sizeof *uses);
    free(uses);
    return kept;
}

static void op_read(tide_trace_reader *reader)
{
    tide_trace_model *model = reader->model;
    tide_trace_scan *scan = &reader->scan;
    tide_traced_op row = {0};
    row_number(reader, "op", model->op_count);
    row.name = tide_scan_text(&reader->scan, "name");
    row.pass = (tide_pass)tide_scan_word(scan, "pass", tide_trace_pass_word);
    row.slices = (uint32_t)tide_scan_count(scan, "slices", PARTS_MAX);
    row.workspace_bytes = count(reader, "workspace_bytes");
    row.params = uses_read(reader, "params", model->param_count,
                           TIDE_ACCESS_READ | TIDE_ACCESS_GRAD | TIDE_ACCESS_OVERWRITE, &row.param_count);
    row.activations = uses_read(reader, "activations", UINT32_MAX, 15, &row.activation_count);
    tide_scan_end(scan);
    for (uint32_t i = 0; i < row.activation_count && scan->status == TIDE_OK; i++)
        if (row.activations[i].tensor >= reader->activations_used) {
            reader->activations_used = row.activations[i].tensor + 1;
            reader->activations_used_line = scan->line;
        }
    if (tide_scan_reserve(&reader->scan, &model->ops, model->op_count, sizeof row))
        model->ops[model->op_count++] = row;
}

static void activation_read(tide_trace_reader *reader)
{
    tide_trace_model *model = reader->model;
    tide_traced_activation row = {0};
    row_number(reader, "activation", model->activation_count);
    row.name = tide_scan_text(&reader->scan, "name");
    row.parts = (uint32_t)tide_scan_count(&reader->scan, "parts", PARTS_MAX);
    row.part_bytes = tide_scan_count(&reader->scan, "part_bytes", UINT64_C(1) << 50);
    row.offset_bytes = tide_scan_count(&reader->scan, "offset_bytes", UINT64_C(1) << 62);
    tide_scan_end(&reader->scan);
    if (tide_scan_reserve(&reader->scan, &model->activations, model->activation_count, sizeof row))
        model->activations[model->activation_count++] = row;
}

static const char *table_word(uint32_t table)
{
    static const char *const words[] = {"setting", "machine", "param", "chunk", "op", "activation"};
    return table < sizeof words / sizeof words[0] ? words[table] : NULL;
}

void tide_trace_read_table(tide_trace_reader *reader)
{
    static void (*const reads[])(tide_trace_reader *) = {setting_read, machine_read, param_read,
                                                         chunk_read,   op_read,      activation_read};
    uint32_t table = tide_scan_word(&reader->scan, "table", table_word);
    if (reader->scan.status != TIDE_OK)
        return;
    reader->scan.name = table_word(table);
    reads[table](reader);
}

/* ---- a step ---- */

/* The index of the step's pass; UINT32_MAX: the trace does not have it. */
static uint32_t pass_of(const tide_trace_model *model, uint64_t step)
{
    for (uint32_t i = model->pass_count; i-- > 0;)
        if (model->passes[i].training && model->passes[i].number == step && !model->passes[i].given_up)
            return i;
    return UINT32_MAX;
}

static void step_take(tide_trace_reader *reader, tide_traced_step *row)
{
    tide_trace_model *model = reader->model;
    row->pass = pass_of(model, row->step);
    row->is_whole = row->pass != UINT32_MAX && row->pass >= reader->passes_before_drop;
    while (model->step_count > 0 && model->steps[model->step_count - 1].step >= row->step)
        model->step_count--;
    if (tide_scan_reserve(&reader->scan, &model->steps, model->step_count, sizeof *row))
        model->steps[model->step_count++] = *row;
}

/* Lines of metrics before version 3 have no stalls for peers. */
static void stalls_read(tide_trace_reader *reader, uint64_t version, tide_traced_step *row)
{
    char name[32];
    row->stall_seconds = seconds(reader, "stall_seconds");
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++) {
        if (cause == TIDE_STALL_PEER && version < 3)
            continue;
        (void)snprintf(name, sizeof name, "stall_%s_seconds", tide_stall_cause_name((tide_stall_cause)cause));
        row->stall_seconds_by[cause] = seconds(reader, name);
    }
}

void tide_trace_read_step(tide_trace_reader *reader)
{
    tide_trace_scan *scan = &reader->scan;
    tide_traced_step row = {0};
    row.step = count(reader, "step");
    const uint64_t version = count(reader, "version");
    row.loss = tide_scan_real(scan, "loss");
    (void)tide_scan_real(scan, "grad_norm");
    (void)tide_scan_real(scan, "lr");
    (void)tide_scan_real(scan, "loss_scale");
    row.tokens = count(reader, "tokens");
    if (version > 1)
        (void)count(reader, "learned_tokens");
    row.step_seconds = seconds(reader, "step_seconds");
    (void)tide_scan_real(scan, "tokens_per_second");
    row.compute_seconds = seconds(reader, "compute_seconds");
    stalls_read(reader, version, &row);
    row.predicted_step_seconds = tide_scan_real(scan, "predicted_step_seconds");
    (void)tide_scan_real(scan, "predicted_stall_seconds");
    row.h2d_bytes = count(reader, "h2d_bytes");
    row.d2h_bytes = count(reader, "d2h_bytes");
    (void)count(reader, "collective_bytes");
    row.evictions = count(reader, "evictions");
    row.demand_fetches = count(reader, "demand_fetches");
    row.prefetches = count(reader, "prefetches");
    row.adam_host_seconds = seconds(reader, "adam_host_seconds");
    row.adam_device_seconds = seconds(reader, "adam_device_seconds");
    row.device_bytes_peak = count(reader, "device_bytes_peak");
    row.host_bytes_peak = count(reader, "host_bytes_peak");
    row.skipped = tide_scan_count(scan, "skipped", 1) == 1;
    if (version > 2 && reader->model->ranks > 1) {
        row.slowest_rank = tide_scan_number(scan, "slowest_rank", reader->model->ranks, "ranks");
        row.slowest_seconds = seconds(reader, "slowest_step_seconds");
    }
    tide_scan_end(scan);
    if (scan->status == TIDE_OK)
        step_take(reader, &row);
}
