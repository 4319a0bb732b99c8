/* What the pool did and how long it took: trace, durations, stalls, counters; and the observer that hears of all streams.
 *
 *     observer -> measure | stalls -> tracer | counters
 *
 * Owns the four. Each says in its own header how it is guarded; it calls them and the layout's queries.
 */
#ifndef TIDE_POOL_TELEMETRY_H
#define TIDE_POOL_TELEMETRY_H

#include "src/pool/counters.h"
#include "src/pool/measure.h"

/* What a command's time counts as (tide_work.timer). */
enum {
    TIDE_TIMER_NONE = 0,
    TIDE_TIMER_COPY, /* and the command's tide_reason; tag: the chunk */
    TIDE_TIMER_ADAM =
        TIDE_TIMER_COPY + TIDE_REASON_PROMOTE + 1, /* and tide_counters_timer; tag: the PARAM chunk */
    TIDE_TIMER_NORM =
        TIDE_TIMER_ADAM + TIDE_ADAM_TIMERS, /* the norm's copy to the host: the compute stream carries it, but
                                                             computes nothing */
    TIDE_TIMER_ZERO,                        /* zeroing ahead of a command's own work */
    TIDE_TIMER_SERIES, /* and the number of a series (measure.h): work on the compute stream */
};

typedef struct tide_telemetry {
    tide_tracer tracer;
    tide_measure measure;
    tide_stalls stalls;
    tide_counters counters;
    tide_device_observer watch; /* hears of all that the observer does; NULL: nobody */
    void *watch_context;
} tide_telemetry;

/* Does somebody want the time of each kernel? Else kernels that count as the same may be timed together. */
static inline bool tide_telemetry_times_kernels(const tide_telemetry *telemetry)
{
    return telemetry->tracer.on || telemetry->watch != NULL;
}

/* tide_device_observer. On the streams' threads. */
void tide_telemetry_observe(void *telemetry, const tide_observed *command);

#endif
