#include "src/pool/journal.h"

#include <assert.h>
#include <string.h>

/* Memory traffic of one of a PARAM chunk's updates, its pieces taken as equal: over a step that is exact. */
static uint64_t update_bytes(const tide_ground *ground, tide_chunk param_chunk)
{
    const uint64_t element_bytes = tide_ground_element_bytes(ground),
                   elements = tide_layout_chunk_used_bytes(ground->layout, param_chunk) / element_bytes;
    return elements * tide_ground_update_bytes(ground, param_chunk) /
           tide_layout_pieces(ground->layout, param_chunk);
}

static void measure_command(tide_journal *journal, tide_stream stream, uint32_t tag, uint32_t meter,
                            uint64_t ns)
{
    tide_measure *measure = &journal->measure;
    const tide_ground *ground = journal->tracer.ground;
    assert(stream < TIDE_STREAM_COUNT && meter < TIDE_METER_SERIES + tide_measure_series_count(measure));
    if (meter >= TIDE_METER_SERIES)
        tide_measure_add(measure, meter - TIDE_METER_SERIES, ns, 0);
    else if (meter == TIDE_METER_ADAM_HOST || meter == TIDE_METER_ADAM_DEVICE)
        tide_measure_add(measure, TIDE_SERIES_ADAM_HOST + (meter - TIDE_METER_ADAM_HOST), ns,
                         update_bytes(ground, tag));
    else if (meter >= TIDE_METER_COPY && meter < TIDE_METER_ADAM_HOST)
        tide_measure_add(measure, stream == TIDE_STREAM_IN ? TIDE_SERIES_COPY_IN : TIDE_SERIES_COPY_OUT, ns,
                         tide_layout_chunk_used_bytes(ground->layout, tag));
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

/* Zeros on the in stream are traced as copies of no reason. */
static const char *copy_reason(uint32_t meter)
{
    return meter == TIDE_METER_NONE ? "" : tide_reason_name((tide_reason)(meter - TIDE_METER_COPY));
}

void tide_journal_observe(void *context, tide_stream stream, const char *label, uint32_t tag, uint32_t meter,
                          uint64_t begin_ns, uint64_t end_ns)
{
    tide_journal *journal = context;
    const bool is_wait = strcmp(label, "wait") == 0;
    assert(!is_wait || tag < TIDE_WAIT_SITE_COUNT);
    if (stream == TIDE_STREAM_COMPUTE)
        tide_stalls_observe(&journal->stalls, stall_command(journal, tag, meter, is_wait), tag, begin_ns,
                            end_ns);
    if (is_wait)
        return;
    if (meter == TIDE_METER_ADAM_HOST || meter == TIDE_METER_ADAM_DEVICE)
        journal->records.adam_ns[meter - TIDE_METER_ADAM_HOST] += end_ns - begin_ns;
    measure_command(journal, stream, tag, meter, end_ns - begin_ns);
    if (stream == TIDE_STREAM_IN || stream == TIDE_STREAM_OUT)
        tide_tracer_copy(&journal->tracer, stream, tag, copy_reason(meter), begin_ns, end_ns);
}
