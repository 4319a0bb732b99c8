/* --metrics FILE: JSON Lines, one object a training step, in the order of the steps. docs/metrics.md
 * explains the members:
 *
 *     step version loss grad_norm lr loss_scale tokens learned_tokens step_seconds tokens_per_second
 *     compute_seconds stall_seconds stall_link_seconds stall_slot_seconds stall_update_seconds
 *     stall_norm_seconds stall_map_seconds stall_peer_seconds stall_caller_seconds predicted_step_seconds
 *     predicted_stall_seconds h2d_bytes d2h_bytes collective_bytes evictions demand_fetches prefetches
 *     adam_host_seconds adam_device_seconds device_bytes_peak host_bytes_peak skipped
 *     slowest_rank slowest_step_seconds (these two with several ranks only)
 *
 * A step's updates may run inside the next step, so a line has two sources: the trainer's report, complete
 * when the step returns, and the step's share of the pool's counters, complete when its last update has
 * ended. The caller passes both. `version` is TIDE_METRICS_VERSION, which grows when names or meanings
 * change; `tokens` counts this step's tokens only, `learned_tokens` those of its targets that were learned;
 * `loss_scale` is 1 except in fp16; `skipped` is 1 if the step left the weights unchanged; the peaks cover
 * the run so far. The predictions were made when the step began. A number that is not finite is written as
 * null: loss and norm on the null device, and the predictions of a step that has none.
 *
 * No call after begin allocates memory. One thread makes all calls. */
#ifndef TIDE_TRAIN_METRICS_H
#define TIDE_TRAIN_METRICS_H

#include "src/train/trainer.h"
#include "tidepool/pool.h"

typedef struct tide_metrics tide_metrics;

/* Open the file without changing its content. A file that can't be written is so found before the run starts,
 * and a run refused for another reason leaves the old file whole. IO names the path; NO_MEMORY. */
TIDE_NODISCARD tide_status tide_metrics_open(const char *path, tide_metrics **metrics);

/* Call once, before the first line: empties the file or, with `append`, cuts it behind `step`'s line
 * (metrics_trim.h). IO, NO_MEMORY; if `append` fails, the file keeps every line and further steps' lines may
 * be appended. */
TIDE_NODISCARD tide_status tide_metrics_begin(tide_metrics *metrics, bool append, uint64_t step);

enum {
    TIDE_METRICS_VERSION = 3, /* 1: without learned_tokens; 1 and 2: without stall_peer_seconds */
    TIDE_METRICS_LINE_BYTES = 2048,
};

/* Of several ranks the one whose own time for a step (tide_trainer_report) was longest. */
typedef struct tide_slowest_rank {
    uint32_t rank;
    double seconds;
} tide_slowest_rank;

/* Write a step's line with its newline into `text`; *bytes is its length. `slowest` is NULL for a run of one
 * rank. False: `text` is too small. */
bool tide_metrics_line(const tide_trainer_report *report, const tide_slowest_rank *slowest, uint64_t tokens,
                       const tide_pool_counters *counters, char text[TIDE_METRICS_LINE_BYTES], size_t *bytes);

/* Write a step's line with one write. `tokens`: this step's only. IO: this line is lost; a regular file still
 * holds whole lines only, and the next call may succeed. */
TIDE_NODISCARD tide_status tide_metrics_step(tide_metrics *metrics, const tide_trainer_report *report,
                                             const tide_slowest_rank *slowest, uint64_t tokens,
                                             const tide_pool_counters *counters);

/* How many lines could not be written. *reader_left: the first of them was lost because the pipe's reader
 * had closed the pipe. */
uint64_t tide_metrics_lost(const tide_metrics *metrics, bool *reader_left);

/* Close the file; without a begin its content is the same as before open. NULL is allowed. IO if the last
 * bytes could not be written. */
tide_status tide_metrics_close(tide_metrics *metrics);

#endif
