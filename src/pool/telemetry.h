/* The pool's telemetry: trace, durations, stalls and counters, and the observer, which the device calls for
 * the ended commands of all streams.
 *
 *     observer -> measure | stalls -> tracer | counters
 *
 * Owns measure, stalls, tracer and counters, whose headers say which lock guards each; calls them and the
 * layout's queries.
 */
#ifndef TIDE_POOL_TELEMETRY_H
#define TIDE_POOL_TELEMETRY_H

#include "src/pool/counters.h"
#include "src/pool/measure.h"

/* Values of tide_work.timer: for which sums a command's time counts, and which tide_work.tag it has. */
enum {
    TIDE_TIMER_NONE = 0,
    TIDE_TIMER_COPY, /* plus the tide_reason of the command; tag: the chunk */
    TIDE_TIMER_ADAM =
        TIDE_TIMER_COPY + TIDE_REASON_COUNT, /* plus tide_counters_timer; tag: the PARAM chunk */
    TIDE_TIMER_NORM =
        TIDE_TIMER_ADAM + TIDE_ADAM_TIMERS, /* the norm's copy, on the compute stream but no compute */
    TIDE_TIMER_ZERO,                        /* zeroing before a command's own work */
    TIDE_TIMER_SERIES, /* plus the number of a series (measure.h): work on the compute stream */
};

typedef struct tide_telemetry {
    tide_tracer tracer;
    tide_measure measure;
    tide_stalls stalls;
    tide_counters counters;
    tide_device_observer watch; /* called for the same commands; NULL: none */
    void *watch_context;
} tide_telemetry;

/* Does a trace or `watch` need the time of each kernel? If not, the device may time kernels of one op or
 * slice together. */
static inline bool tide_telemetry_times_kernels(const tide_telemetry *telemetry)
{
    return telemetry->tracer.on || telemetry->watch != NULL;
}

/* The tide_device_observer of the pool's device, which calls it on the streams' threads. */
void tide_telemetry_observe(void *telemetry, const tide_observed *command);

#endif
