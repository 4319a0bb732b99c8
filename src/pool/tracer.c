#include "src/pool/tracer.h"

#include <assert.h>
#include <string.h>

static bool is_of_update(const char *reason)
{
    return strcmp(reason, tide_reason_name(TIDE_REASON_UPDATE)) == 0 ||
           strcmp(reason, tide_reason_name(TIDE_REASON_RESTORE)) == 0;
}

/* The chunk may be none. */
static void tell(const tide_tracer *tracer, uint64_t t_ns, const char *event, tide_chunk chunk,
                 const char *from, const char *to, uint64_t bytes, const char *reason)
{
    const tide_pool_options *options = &tracer->ground->options;
    const tide_layout *layout = tracer->ground->layout;
    const char *op = tracer->op;
    const bool of_chunk = chunk != TIDE_CHUNK_NONE;
    if (options->trace == NULL)
        return;
    const tide_trace_event told = {
        .t_ns = t_ns,
        .step = of_chunk && is_of_update(reason) ? tracer->let_go_step : tracer->step,
        .moment = tracer->moment,
        .op = op == NULL ? "" : op,
        .event = event,
        .chunk = of_chunk ? tide_layout_chunk_index(layout, chunk) : UINT32_MAX,
        .space = of_chunk ? tide_layout_chunk_space(layout, chunk) : TIDE_SPACE_PARAM,
        .from = from,
        .to = to,
        .bytes = bytes,
        .reason = reason};
    options->trace(options->trace_context, &told);
}

void tide_tracer_tell(const tide_tracer *tracer, const char *event, tide_chunk chunk, const char *from,
                      const char *to, const char *reason)
{
    tide_device *device = tracer->ground->device;
    tell(tracer, device->ops->now_ns(device), event, chunk, from, to, 0, reason);
}

void tide_tracer_copy(const tide_tracer *tracer, tide_stream stream, tide_chunk chunk, const char *reason,
                      uint64_t begin_ns, uint64_t end_ns)
{
    const bool in = stream == TIDE_STREAM_IN;
    const char *from = in ? "host" : "device", *to = in ? "device" : "host";
    const uint64_t bytes = tide_layout_chunk_used_bytes(tracer->ground->layout, chunk);
    assert((in || stream == TIDE_STREAM_OUT) && begin_ns <= end_ns);
    tell(tracer, begin_ns, "copy begin", chunk, from, to, bytes, reason);
    tell(tracer, end_ns, "copy end", chunk, from, to, bytes, reason);
}

void tide_tracer_stall(const tide_tracer *tracer, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns)
{
    assert(begin_ns <= end_ns);
    tell(tracer, begin_ns, "stall begin", TIDE_CHUNK_NONE, "", "", 0, tide_stall_cause_name(cause));
    tell(tracer, end_ns, "stall end", TIDE_CHUNK_NONE, "", "", 0, tide_stall_cause_name(cause));
}
