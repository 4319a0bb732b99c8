#include "src/pool/journal.h"

#include <assert.h>

/* Memory traffic of one of a PARAM chunk's updates, its pieces taken as equal: over a step that is exact. */
static uint64_t update_bytes(const tide_sealed_context *context, tide_chunk param_chunk)
{
    const uint64_t element_bytes = tide_sealed_element_bytes(context),
                   elements = tide_layout_chunk_used_bytes(context->layout, param_chunk) / element_bytes;
    return elements * tide_sealed_update_bytes(context, param_chunk) /
           tide_layout_pieces(context->layout, param_chunk);
}

static bool is_adam(uint32_t meter)
{
    return meter >= TIDE_METER_ADAM && meter < TIDE_METER_NORM;
}

static void measure_command(tide_journal *journal, tide_stream stream, uint32_t tag, uint32_t meter,
                            uint64_t ns)
{
    tide_measure *measure = &journal->measure;
    const tide_sealed_context *context = journal->tracer.context;
    assert(stream < TIDE_STREAM_COUNT && meter < TIDE_METER_SERIES + tide_measure_series_count(measure));
    if (meter >= TIDE_METER_SERIES)
        tide_measure_add(measure, meter - TIDE_METER_SERIES, ns, 0);
    else if (is_adam(meter))
        tide_measure_add(measure,
                         stream == TIDE_STREAM_HOST ? TIDE_SERIES_ADAM_HOST : TIDE_SERIES_ADAM_DEVICE, ns,
                         update_bytes(context, tag));
    else if (meter >= TIDE_METER_COPY && meter < TIDE_METER_ADAM)
        tide_measure_add(measure, stream == TIDE_STREAM_IN ? TIDE_SERIES_COPY_IN : TIDE_SERIES_COPY_OUT, ns,
                         tide_layout_chunk_used_bytes(context->layout, tag));
}

static tide_stall_command stall_command(const tide_journal *journal, uint32_t tag, uint32_t meter,
                                        bool is_wait)
{
    if (is_wait)
        return TIDE_STALL_WAIT;
    if (meter == TIDE_METER_NORM)
        return TIDE_STALL_NORM_COPY;
    return tag < journal->measure.op_count ? TIDE_STALL_OF_OP : TIDE_STALL_BETWEEN;
}

void tide_journal_observe(void *context, const tide_observed *command)
{
    tide_journal *journal = context;
    const uint32_t tag = command->tag, meter = command->meter;
    const uint64_t begin_ns = command->begin_ns, end_ns = command->end_ns;
    assert(!command->is_wait || tag < TIDE_WAIT_SITE_COUNT);
    if (journal->watch != NULL)
        journal->watch(journal->watch_context, command);
    if (command->stream == TIDE_STREAM_COMPUTE)
        tide_stalls_observe(&journal->stalls, stall_command(journal, tag, meter, command->is_wait), tag,
                            begin_ns, end_ns, tide_tracer_issued(&journal->tracer, command->id));
    if (command->is_wait)
        return;
    if (is_adam(meter))
        tide_records_updated(&journal->records, meter - TIDE_METER_ADAM, end_ns - begin_ns);
    measure_command(journal, command->stream, tag, meter, end_ns - begin_ns);
    tide_tracer_over(&journal->tracer, command, meter == TIDE_METER_NORM, meter == TIDE_METER_ZERO);
}
