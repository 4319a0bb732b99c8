#include "src/pool/tracer.h"

#include <assert.h>
#include <string.h>

static bool is_of_update(const char *reason)
{
    return strcmp(reason, tide_reason_name(TIDE_REASON_UPDATE)) == 0 ||
           strcmp(reason, tide_reason_name(TIDE_REASON_RESTORE)) == 0;
}

/* The rest of `event` is of a chunk, or of none. */
static void tell(const tide_tracer *tracer, tide_trace_event event, tide_chunk chunk)
{
    const tide_pool_options *options = &tracer->ground->options;
    const char *op = tracer->op;
    const bool of_chunk = chunk != TIDE_CHUNK_NONE;
    assert(options->trace != NULL && event.reason != NULL);
    event.step = of_chunk && is_of_update(event.reason) ? tracer->let_go_step : tracer->step;
    event.moment = tracer->moment;
    event.op = op == NULL ? "" : op;
    event.chunk = of_chunk ? tide_layout_chunk_index(tracer->ground->layout, chunk) : UINT32_MAX;
    event.space = of_chunk ? tide_layout_chunk_space(tracer->ground->layout, chunk) : TIDE_SPACE_PARAM;
    options->trace(options->trace_context, &event);
}

void tide_tracer_tell(const tide_tracer *tracer, const char *event, tide_chunk chunk, const char *from,
                      const char *to, const char *reason)
{
    tide_device *device = tracer->ground->device;
    tell(tracer,
         (tide_trace_event){
             .t_ns = device->ops->now_ns(device), .event = event, .from = from, .to = to, .reason = reason},
         chunk);
}

/* Something with a beginning and an end. */
static void tell_both(const tide_tracer *tracer, tide_trace_event event, const char *const names[2],
                      tide_chunk chunk, uint64_t begin_ns, uint64_t end_ns)
{
    assert(begin_ns <= end_ns);
    event.event = names[0];
    event.t_ns = begin_ns;
    tell(tracer, event, chunk);
    event.event = names[1];
    event.t_ns = end_ns;
    tell(tracer, event, chunk);
}

void tide_tracer_copy(const tide_tracer *tracer, tide_stream stream, tide_chunk chunk, const char *reason,
                      uint64_t begin_ns, uint64_t end_ns)
{
    static const char *const names[] = {"copy begin", "copy end"};
    const bool in = stream == TIDE_STREAM_IN;
    assert(in || stream == TIDE_STREAM_OUT);
    if (tracer->ground->options.trace == NULL)
        return;
    const tide_trace_event event = {.from = in ? "host" : "device",
                                    .to = in ? "device" : "host",
                                    .bytes = tide_layout_chunk_used_bytes(tracer->ground->layout, chunk),
                                    .reason = reason};
    tell_both(tracer, event, names, chunk, begin_ns, end_ns);
}

void tide_tracer_stall(const tide_tracer *tracer, tide_stall_cause cause, uint64_t begin_ns, uint64_t end_ns)
{
    static const char *const names[] = {"stall begin", "stall end"};
    const tide_trace_event event = {.from = "", .to = "", .reason = tide_stall_cause_name(cause)};
    if (tracer->ground->options.trace != NULL)
        tell_both(tracer, event, names, TIDE_CHUNK_NONE, begin_ns, end_ns);
}
