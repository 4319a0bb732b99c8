#include "src/trace/trace_head.h"

#include "base/json_line.h"
#include "base/minmax.h"
#include "src/pool/device_factory.h"
#include "src/pool/inspect.h"
#include "src/trace/trace_fields.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct head_writer {
    const tide_trace_head *head;
    const tide_layout *layout;
    const tide_packing *packing;
    tide_json_line line;
    char *text;
    size_t capacity;
    tide_trace_put put;
    void *context;
} head_writer;

/* --- lines --- */

static tide_json_line *line_begin(head_writer *it, const char *table)
{
    tide_json_begin(&it->line, it->text, it->capacity);
    tide_json_open(&it->line, NULL, '{');
    if (table != NULL)
        tide_json_text(&it->line, "table", table);
    return &it->line;
}

static tide_status line_end(head_writer *it)
{
    tide_json_close(&it->line, '}');
    const bool complete = tide_json_end(&it->line);
    assert(complete && "line_bytes_max bounds every line");
    return complete ? it->put(it->context, it->text, it->line.length)
                    : tide_fail(TIDE_ERROR_INTERNAL, "a line of a trace's tables is too long");
}

static tide_status first_line(head_writer *it, uint64_t keep_steps)
{
    const tide_pool_plan *plan = it->head->plan;
    const tide_pool_options *options = it->head->options;
    tide_json_line *line = line_begin(it, NULL);
    tide_json_count(line, "trace", TIDE_TRACE_FORMAT);
    tide_json_text(line, "tidepool", it->head->version);
    tide_json_count(line, "rank", tide_comm_rank(options->ranks.comm));
    tide_json_count(line, "ranks", tide_comm_ranks(options->ranks.comm));
    if (tide_comm_ranks(options->ranks.comm) > 1)
        tide_json_count(line, "run", it->head->run);
    tide_json_text(line, "device", tide_device_factory_is_null(options->device) ? "null" : options->device);
    tide_json_text(line, "dtype", tide_dtype_name(it->packing->description->dtype));
    tide_json_count(line, "chunk_bytes", plan->chunk_bytes);
    tide_json_count(line, "device_slots", plan->device_slots);
    tide_json_count(line, "host_slots", plan->host_slots);
    tide_json_count(line, "device_memory_bytes", plan->device_memory_bytes);
    tide_json_count(line, "host_memory_bytes", plan->host_memory_bytes);
    tide_json_count(line, "region_bytes", plan->region_bytes);
    tide_json_count(line, "trace_steps", keep_steps);
    return line_end(it);
}

static tide_status settings_write(head_writer *it)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < it->head->setting_count && status == TIDE_OK; i++) {
        tide_json_line *line = line_begin(it, "setting");
        tide_json_text(line, "name", it->head->settings[i].name);
        tide_json_text(line, "value", it->head->settings[i].value);
        status = line_end(it);
    }
    return status;
}

static tide_status machine_write(head_writer *it)
{
    const tide_pool_options *options = it->head->options;
    const tide_machine *machine = &options->machine;
    const bool imitated = tide_device_factory_is_null(options->device);
    tide_json_line *line = line_begin(it, "machine");
    tide_json_text(line, "name", it->head->machine);
    tide_json_count(line, "cores", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    tide_json_count(line, "memory_bytes",
                    (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE));
    tide_json_real(line, "flops_per_second", imitated ? machine->flops_per_second : 0);
    tide_json_real(line, "device_bytes_per_second", imitated ? machine->device_bytes_per_second : 0);
    tide_json_real(line, "host_bytes_per_second", imitated ? machine->host_bytes_per_second : 0);
    tide_json_real(line, "link_bytes_per_second", options->link_bytes_per_second);
    tide_json_count(line, "map_ns", imitated ? machine->map_ns : 0);
    tide_json_count(line, "unmap_ns", imitated ? machine->unmap_ns : 0);
    return line_end(it);
}

/* --- tables of the pool --- */

static tide_status params_write(head_writer *it)
{
    tide_status status = TIDE_OK;
    for (uint32_t p = 0; p < it->packing->param_count && status == TIDE_OK; p++) {
        const tide_packed_param *param = &it->packing->params[p];
        tide_json_line *line = line_begin(it, "param");
        tide_json_count(line, "param", p);
        tide_json_text(line, "name", param->name);
        tide_json_count(line, "elements", param->elements);
        tide_json_bool(line, "frozen", tide_packed_param_is_frozen(param));
        tide_json_bool(line, "decays", param->decays);
        tide_json_open(line, "planes", '[');
        for (uint32_t plane = 0; plane < param->state.planes; plane++)
            tide_json_count(line, NULL, param->state.bytes[plane]);
        tide_json_close(line, ']');
        status = line_end(it);
    }
    return status;
}

static void segments_write(head_writer *it, tide_chunk chunk)
{
    uint32_t first;
    const uint32_t count = tide_layout_chunk_segments(it->layout, chunk, &first);
    for (uint32_t s = 0; s < count; s++) {
        const tide_segment segment = tide_layout_chunk_segment(it->layout, chunk, first + s);
        tide_json_open(&it->line, NULL, '[');
        tide_json_count(&it->line, NULL, segment.param);
        tide_json_count(&it->line, NULL, segment.param_offset_elements);
        tide_json_count(&it->line, NULL, segment.elements);
        tide_json_close(&it->line, ']');
    }
}

/* Writes the PARAM chunks that have state in this STATE chunk. They follow each other; `*from` is the first
 * that may be one, and moves on. */
static void owners_write(head_writer *it, tide_chunk state_chunk, tide_chunk *from)
{
    const tide_chunk end = tide_layout_space_chunks(it->layout, TIDE_SPACE_PARAM);
    for (tide_chunk param = *from; param < end; param++) {
        const uint32_t pieces = tide_layout_pieces(it->layout, param);
        if (pieces == 0 || tide_layout_piece(it->layout, param, pieces - 1).state_chunk < state_chunk)
            continue;
        if (tide_layout_piece(it->layout, param, 0).state_chunk > state_chunk)
            return;
        tide_json_count(&it->line, NULL, param);
        *from = param;
    }
}

static tide_status chunks_write(head_writer *it)
{
    tide_status status = TIDE_OK;
    tide_chunk from = 0;
    for (tide_chunk chunk = 0; chunk < tide_layout_chunk_count(it->layout) && status == TIDE_OK; chunk++) {
        const tide_space space = tide_layout_chunk_space(it->layout, chunk);
        tide_json_line *line = line_begin(it, "chunk");
        tide_json_count(line, "chunk", chunk);
        tide_json_text(line, "space", tide_space_name(space));
        tide_json_count(line, "index", tide_layout_chunk_index(it->layout, chunk));
        tide_json_count(line, "bytes", tide_layout_chunk_used_bytes(it->layout, chunk));
        tide_json_open(line, "params", '[');
        if (space == TIDE_SPACE_PARAM)
            segments_write(it, chunk);
        tide_json_close(line, ']');
        tide_json_open(line, "of", '[');
        if (space == TIDE_SPACE_STATE)
            owners_write(it, chunk, &from);
        tide_json_close(line, ']');
        status = line_end(it);
    }
    return status;
}

static void uses_write(tide_json_line *line, const char *name, const tide_use *uses, uint32_t count)
{
    tide_json_open(line, name, '[');
    for (uint32_t i = 0; i < count; i++) {
        tide_json_open(line, NULL, '[');
        tide_json_count(line, NULL, uses[i].tensor);
        tide_json_count(line, NULL, uses[i].access);
        tide_json_close(line, ']');
    }
    tide_json_close(line, ']');
}

static tide_status ops_write(head_writer *it)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < it->packing->op_count && status == TIDE_OK; i++) {
        const tide_op_description *op = it->packing->ops[i].description;
        tide_json_line *line = line_begin(it, "op");
        tide_json_count(line, "op", i);
        tide_json_text(line, "name", op->name);
        tide_json_text(line, "pass", tide_trace_pass_word(op->pass));
        tide_json_count(line, "slices", op->slices);
        tide_json_count(line, "workspace_bytes", op->workspace_bytes);
        uses_write(line, "params", op->params, op->param_count);
        uses_write(line, "activations", op->activations, op->activation_count);
        status = line_end(it);
    }
    return status;
}

static tide_status activations_write(head_writer *it)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < tide_layout_activations(it->layout) && status == TIDE_OK; i++) {
        const tide_named *activation = tide_layout_activation(it->layout, i);
        tide_json_line *line = line_begin(it, "activation");
        tide_json_count(line, "activation", i);
        tide_json_text(line, "name", activation->name);
        tide_json_count(line, "parts", activation->parts);
        tide_json_count(line, "part_bytes", activation->size);
        tide_json_count(line, "offset_bytes", activation->offset);
        status = line_end(it);
    }
    return status;
}

/* --- all lines --- */

/* An upper bound of a line's length: its names, the longest text with each byte escaped (6 bytes), and the
 * longest list, with three numbers an entry (68 bytes). */
static size_t line_bytes_max(const head_writer *it)
{
    size_t text = strlen(it->head->machine), list = it->packing->param_count;
    for (uint32_t i = 0; i < it->head->setting_count; i++)
        text = tide_max_u64(text, strlen(it->head->settings[i].name) + strlen(it->head->settings[i].value));
    for (uint32_t i = 0; i < it->packing->param_count; i++)
        text = tide_max_u64(text, strlen(it->packing->params[i].name));
    for (uint32_t i = 0; i < tide_layout_activations(it->layout); i++)
        text = tide_max_u64(text, strlen(tide_layout_activation(it->layout, i)->name));
    for (uint32_t i = 0; i < it->packing->op_count; i++) {
        const tide_op_description *op = it->packing->ops[i].description;
        text = tide_max_u64(text, strlen(op->name));
        list = tide_max_u64(list, (size_t)op->param_count + op->activation_count);
    }
    /* a chunk has fewer segments than there are params */
    list = tide_max_u64(list, tide_layout_chunk_count(it->layout));
    return 1024 + 6 * text + 68 * list;
}

tide_status tide_trace_head_write(const tide_trace_head *head, uint64_t keep_steps, const char *path,
                                  tide_trace_put put, void *context)
{
    tide_status (*const tables[])(head_writer *) = {settings_write, machine_write, params_write,
                                                    chunks_write,   ops_write,     activations_write};
    head_writer it = {.head = head,
                      .layout = tide_pool_packing(head->pool)->layout,
                      .packing = tide_pool_packing(head->pool),
                      .put = put,
                      .context = context};
    it.capacity = line_bytes_max(&it);
    it.text = malloc(it.capacity);
    if (it.text == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "trace file %s: no memory for lines of %zu bytes", path,
                         it.capacity);
    tide_status status = first_line(&it, keep_steps);
    for (size_t i = 0; i < sizeof tables / sizeof tables[0] && status == TIDE_OK; i++)
        status = tables[i](&it);
    free(it.text);
    return status;
}
