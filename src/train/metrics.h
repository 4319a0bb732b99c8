/* --metrics FILE: JSON Lines, one object a training step, in the order of the steps.
 *
 *     step version loss grad_norm lr loss_scale tokens step_seconds tokens_per_second compute_seconds
 *     stall_seconds stall_link_seconds stall_slot_seconds stall_update_seconds stall_norm_seconds
 *     stall_map_seconds stall_caller_seconds predicted_step_seconds predicted_stall_seconds h2d_bytes d2h_bytes
 *     collective_bytes evictions demand_fetches prefetches adam_host_seconds adam_device_seconds
 *     device_bytes_peak host_bytes_peak skipped
 *
 * A step's updates may run inside the next step, so a line has two halves: what the trainer reports when the
 * step returns, and the step's share of the pool's counters, known when its last update has ended. The caller
 * brings them together. `version` is TIDE_METRICS_VERSION, which grows where names or meanings change; `tokens`
 * is the step's own; `loss_scale` is 1 but for fp16; `skipped` is 1 for a step that left the weights as they
 * were; the peaks are the run's so far. The predictions were made when the step began. A number that is not
 * finite is null: on the null device loss and norm, and the predictions of steps that have none.
 *
 * Nothing is allocated after begin. One thread.
 */
#ifndef TIDE_TRAIN_METRICS_H
#define TIDE_TRAIN_METRICS_H

#include "src/train/trainer.h"
#include "tidepool/pool.h"

typedef struct tide_metrics tide_metrics;

/* Open the file and leave its content alone: a run that can't write it is refused early, a run that is refused
 * for another reason has lost nothing. IO names the path; NO_MEMORY. */
TIDE_NODISCARD tide_status tide_metrics_open(const char *path, tide_metrics **metrics);

/* Before the first line: empty the file, or with `append` continue it behind `step`'s line (metrics_trim.h).
 * Once. IO, NO_MEMORY; with `append` every line stays then, and steps' lines may be written behind them. */
TIDE_NODISCARD tide_status tide_metrics_begin(tide_metrics *metrics, bool append, uint64_t step);

enum { TIDE_METRICS_VERSION = 1, TIDE_METRICS_LINE_BYTES = 2048 };

/* The line of a step, newline included: `bytes` of text. False: it does not fit. */
bool tide_metrics_line(const tide_trainer_report *report, uint64_t tokens, const tide_pool_counters *counters,
                       char text[TIDE_METRICS_LINE_BYTES], size_t *bytes);

/* Write a step's line, in one write. `tokens` are the step's own. IO: this line is lost. A regular file still holds whole lines
 * only, and the next call tries again. */
TIDE_NODISCARD tide_status tide_metrics_step(tide_metrics *metrics, const tide_trainer_report *report,
                                             uint64_t tokens, const tide_pool_counters *counters);

/* Lines that could not be written. *reader_left: the first of them because nobody reads the pipe any more. */
uint64_t tide_metrics_lost(const tide_metrics *metrics, bool *reader_left);

/* Close the file; without a begin it is as it was before open. NULL is allowed. IO if the last bytes could not
 * be written. */
tide_status tide_metrics_close(tide_metrics *metrics);

#endif
