/* What `tidepool train` tells people: where every byte goes, a line a step, and the sum at the end. */
#ifndef TIDE_TOOLS_TRAIN_REPORT_H
#define TIDE_TOOLS_TRAIN_REPORT_H

#include "offload/device.h"
#include "src/train/trainer.h"

#include <stdbool.h>
#include <stdio.h>

/* Print the table of all bytes. INTERNAL, and only the lines before the fault, if it does not add up: then
 * the plan is wrong and nothing must be trained on it. */
TIDE_NODISCARD tide_status tide_report_plan(const tide_trainer_plan *plan, FILE *out);

/* One line: how many sequences validate and train, and where both are. `data` and `eval_data` (may be NULL) are
 * the paths that the user gave. */
void tide_report_data(const tide_data_counts *counts, const char *data, const char *eval_data, FILE *out);

/* "lr 0.0006 after 20 steps of warm-up, then cosine to 6e-05, weight decay 0.1, clip 1"; betas and epsilon
 * where they are not the default. */
void tide_report_optimizer(const tide_train_state *state, FILE *out);

/* "pinned 100 GiB of host memory in 12.31 s with 16 threads (touched at 9.1 GiB/s, registered at 20 GiB/s)": rates of all threads
 * together, each as if they did nothing else; ", waited 2.05 s" each for the machine's memory to grow, where they did.
 * Nothing where nothing was pinned. */
void tide_report_pinning(const tide_pinning_times *times, FILE *out);

/* Lines of a run. On a terminal a progress bar stands below the last line. No line that can't be written ends a run: the first
 * one is told on standard error, and the next one is tried again. */
typedef struct tide_progress {
    FILE *out;
    uint64_t lost;    /* lines that could not be written */
    bool reader_left; /* when the first of them was lost */
    bool terminal;
    bool bar_shown;
    bool computes;  /* false on the null device: no loss */
    bool scales;    /* fp16: a loss scale moves */
    uint64_t steps; /* where the run ends */
    uint64_t step_tokens;
    uint64_t lines; /* steps that have their line; `sum` is over them */
    tide_pool_counters sum;
} tide_progress;

void tide_progress_begin(tide_progress *progress, FILE *out, const tide_trainer *trainer);
/* A finished step's line: its report and its own share of the counters, whose seconds are virtual on the null
 * device. */
void tide_progress_step(tide_progress *progress, const tide_trainer_report *report,
                        const tide_pool_counters *counters);
/* Any other line: printf's arguments, without the newline. */
void tide_progress_line(tide_progress *progress, const char *format, ...) TIDE_PRINTF(2, 3);
/* A line on standard error, "tidepool train: ..." */
void tide_progress_warn(tide_progress *progress, const char *format, ...) TIDE_PRINTF(2, 3);
/* Take the bar away and print what the steps with a line came to: the sums of their lines. */
void tide_progress_end(tide_progress *progress, const tide_pool_plan *plan);
/* Leave the terminal with nothing half-written on it. Also before tide_progress_begin, on zeros. */
void tide_progress_close(tide_progress *progress);
/* Whether all lines were written, or nobody reads them any more. If not, a line on standard error says so. */
bool tide_progress_arrived(const tide_progress *progress);

/* A clock that only goes on. */
double tide_clock_seconds(void);

/* ---- what takes seconds at start ---- */

/* What is shown of slots, the region and first values in the making, each if it takes more than a second: on a terminal a
 * line that moves and then goes; elsewhere one line when the next begins or all are made. */
typedef struct tide_making {
    FILE *out;
    bool terminal;
    const char *what;       /* is being made; NULL: nothing */
    double begin_s, last_s; /* of its first and latest call, by a clock that only goes on */
    double drawn_s;         /* when the line was drawn; 0: none stands there */
    uint64_t bytes;         /* so far */
} tide_making;

void tide_making_begin(tide_making *making, FILE *out);
/* A tide_progress_callback; `making` is a tide_making. */
void tide_making_show(void *making, const char *what, uint64_t done_bytes, uint64_t total_bytes);
void tide_making_end(tide_making *making);

#endif
