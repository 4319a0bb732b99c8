/* What the pool did and how long it took: trace, durations, stalls, counters; and the observer that hears of all streams.
 *
 *     observer -> measure | stalls -> tracer | records
 *
 * Owns the four. Each says in its own header how it is guarded; it calls them and the layout's queries.
 */
#ifndef TIDE_POOL_JOURNAL_H
#define TIDE_POOL_JOURNAL_H

#include "src/pool/measure.h"
#include "src/pool/records.h"

/* What a command's time counts as (tide_work.meter). */
enum {
    TIDE_METER_NONE = 0,
    TIDE_METER_COPY, /* and the command's tide_reason; tag: the chunk */
    TIDE_METER_ADAM = TIDE_METER_COPY + TIDE_REASON_PROMOTE + 1, /* and tide_records_meter; tag: the PARAM chunk */
    TIDE_METER_NORM = TIDE_METER_ADAM + TIDE_ADAM_METERS, /* the norm's copy to the host: the compute stream carries it, but
                                                             computes nothing */
    TIDE_METER_ZERO, /* zeroing ahead of a command's own work */
    TIDE_METER_SERIES, /* and the number of a series (measure.h): work on the compute stream */
};

typedef struct tide_journal {
    tide_tracer tracer;
    tide_measure measure;
    tide_stalls stalls;
    tide_records records;
    tide_device_observer watch; /* hears of all that the observer does; NULL: nobody */
    void *watch_context;
} tide_journal;

/* Does somebody want the time of each kernel? Else kernels that count as the same may be timed together. */
static inline bool tide_journal_times_kernels(const tide_journal *journal)
{
    return journal->tracer.on || journal->watch != NULL;
}

/* tide_device_observer. On the streams' threads. */
void tide_journal_observe(void *journal, const tide_observed *command);

#endif
