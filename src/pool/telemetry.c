#include "src/pool/telemetry.h"

#include <assert.h>

/* Memory traffic in bytes of one task that updates a PARAM chunk: the chunk's divided by its number of
 * pieces. Over a step the sum is exact. */
static uint64_t update_bytes(const tide_pool_context *context, tide_chunk param_chunk)
{
    const uint64_t element_bytes = tide_context_element_bytes(context),
                   elements =
                       tide_layout_chunk_used_bytes(context->packing->layout, param_chunk) / element_bytes;
    return elements * tide_context_update_bytes(context, param_chunk) /
           tide_layout_pieces(context->packing->layout, param_chunk);
}

static bool is_adam(uint32_t timer)
{
    return timer >= TIDE_TIMER_ADAM && timer < TIDE_TIMER_NORM;
}

static void measure_command(tide_telemetry *telemetry, tide_stream stream, uint32_t tag, uint32_t timer,
                            uint64_t ns)
{
    tide_measure *measure = &telemetry->measure;
    const tide_pool_context *context = telemetry->tracer.context;
    assert(stream < TIDE_STREAM_COUNT && timer < TIDE_TIMER_SERIES + tide_measure_series_count(measure));
    if (timer >= TIDE_TIMER_SERIES)
        tide_measure_add(measure, timer - TIDE_TIMER_SERIES, ns, 0);
    else if (is_adam(timer))
        tide_measure_add(measure,
                         stream == TIDE_STREAM_HOST ? TIDE_SERIES_ADAM_HOST : TIDE_SERIES_ADAM_DEVICE, ns,
                         update_bytes(context, tag));
    else if (timer >= TIDE_TIMER_COPY && timer < TIDE_TIMER_ADAM)
        tide_measure_add(measure, stream == TIDE_STREAM_IN ? TIDE_SERIES_COPY_IN : TIDE_SERIES_COPY_OUT, ns,
                         tide_layout_chunk_used_bytes(context->packing->layout, tag));
}

static tide_stall_command stall_command(const tide_telemetry *telemetry, uint32_t tag, uint32_t timer,
                                        bool is_wait)
{
    if (is_wait)
        return TIDE_STALL_WAIT;
    if (timer == TIDE_TIMER_NORM)
        return TIDE_STALL_NORM_COPY;
    return tag < telemetry->measure.op_count ? TIDE_STALL_OF_OP : TIDE_STALL_BETWEEN;
}

void tide_telemetry_observe(void *context, const tide_observed *command)
{
    tide_telemetry *telemetry = context;
    const uint32_t tag = command->tag, timer = command->timer;
    const uint64_t begin_ns = command->begin_ns, end_ns = command->end_ns;
    assert(!command->is_wait || tag < TIDE_WAIT_SITE_COUNT);
    if (telemetry->watch != NULL)
        telemetry->watch(telemetry->watch_context, command);
    if (command->stream == TIDE_STREAM_COMPUTE)
        tide_stalls_observe(&telemetry->stalls, stall_command(telemetry, tag, timer, command->is_wait), tag,
                            begin_ns, end_ns, tide_tracer_issued(&telemetry->tracer, command->id));
    if (command->is_wait)
        return;
    if (is_adam(timer))
        tide_counters_updated(&telemetry->counters, timer - TIDE_TIMER_ADAM, end_ns - begin_ns);
    measure_command(telemetry, command->stream, tag, timer, end_ns - begin_ns);
    tide_tracer_over(&telemetry->tracer, command, timer == TIDE_TIMER_NORM, timer == TIDE_TIMER_ZERO);
}
