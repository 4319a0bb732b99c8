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

typedef struct tide_journal {
    const tide_ground *ground;
    tide_tracer tracer;
    tide_measure measure;
    tide_stalls stalls;
    tide_records records;
} tide_journal;

void tide_journal_init(tide_journal *journal, const tide_ground *ground);
/* With the layout, and before the device is opened, whose observer it is. NO_MEMORY. */
tide_status tide_journal_create(tide_journal *journal, uint32_t op_count, uint32_t script_lines);

/* tide_device_observer. On the streams' threads. */
void tide_journal_observe(void *journal, tide_stream stream, const char *label, uint32_t tag, uint64_t begin_ns,
                          uint64_t end_ns);

/* The label of a command's copy: its kind and, for the observer, its reason. Static. */
const char *tide_journal_copy_label(const tide_command *command);
/* Labels of work whose seconds are the optimizer's; of what the pool does at an op's end, and at begins. */
extern const char tide_label_adam_host[], tide_label_adam_device[];
extern const char tide_label_gradient_rounding[], tide_label_gradient_norm[];
extern const char tide_label_zero_region[], tide_label_write[];
/* The norm's copy to the host: the compute stream carries it, but computes nothing. */
extern const char tide_label_norm_to_host[];

#endif
