/* The text that `tidepool train` prints: where every byte goes, a line for each step, and the sums at the
 * end. */
#ifndef TIDE_TOOLS_TRAIN_REPORT_H
#define TIDE_TOOLS_TRAIN_REPORT_H

#include "offload/device.h"
#include "src/train/trainer.h"

#include <stdbool.h>
#include <stdio.h>

/* Print the table of all bytes. INTERNAL, after the lines above the fault, if the parts of a line do not add
 * up to it: then the plan is wrong and the caller must not train with it. */
TIDE_NODISCARD tide_status tide_report_plan(const tide_trainer_plan *plan, FILE *out);

/* Print ", gradients summed in 4 groups (12.0 MiB of region)" and, for bf16, ", each sum rounded to bf16";
 * nothing for one group and fp32. */
void tide_report_sums(const tide_trainer_plan *plan, FILE *out);

/* Print how many sequences validate and train, and which files they are in. `data` and `eval_data` (may be
 * NULL) are the paths that the user gave. */
void tide_report_data(const tide_data_counts *counts, const char *data, const char *eval_data, FILE *out);

/* Print "lr 0.0006 after 20 steps of warm-up, then cosine to 6e-05, weight decay 0.1, clip 1"; betas and
 * epsilon are added if they are not the default. */
void tide_report_optimizer(const tide_train_state *state, FILE *out);

/* Print "pinned 100 GiB of host memory in 12.31 s with 16 threads (touched at 9.1 GiB/s, registered at 20
 * GiB/s)". Each rate is of all threads together, over the time that they spent on that work. ", waited 2.05
 * s" is added if the threads had to wait until the machine had free memory. Prints nothing if nothing was
 * pinned. */
void tide_report_pinning(const tide_pinning_times *times, FILE *out);

/* The lines of a run. On a terminal a progress bar stands below the last line. A line that can't be written
 * does not end the run: a message on standard error reports the first such line, and later lines are tried
 * again. */
typedef struct tide_progress {
    FILE *out;
    uint64_t lost;    /* lines that could not be written */
    bool reader_left; /* whether the output's other end was closed when the first line was lost */
    bool terminal;
    bool quiet; /* tide_progress_warn prints nothing: rank 0 does */
    bool bar_shown;
    bool computes;  /* false on the null device, which has no loss to print */
    bool scales;    /* with fp16, whose loss scale is printed */
    uint64_t steps; /* number of the run's last step */
    uint64_t step_tokens;
    uint64_t lines; /* steps whose line is printed; `sum` is over them */
    tide_pool_counters sum;
} tide_progress;

void tide_progress_begin(tide_progress *progress, FILE *out, const tide_trainer *trainer);
/* Print a finished step's line from its report and its own counters. On the null device their seconds are
 * simulated. */
void tide_progress_step(tide_progress *progress, const tide_trainer_report *report,
                        const tide_pool_counters *counters);
/* Print any other line; `format` has no newline. */
void tide_progress_line(tide_progress *progress, const char *format, ...) TIDE_PRINTF(2, 3);
/* Print a line "tidepool train: ..." on standard error. */
void tide_progress_warn(tide_progress *progress, const char *format, ...) TIDE_PRINTF(2, 3);
/* Remove the bar and print the sums over all steps whose lines were printed. */
void tide_progress_end(tide_progress *progress, const tide_pool_plan *plan);
/* Complete a half-written line on the terminal. May be called on a zeroed tide_progress, before
 * tide_progress_begin. */
void tide_progress_close(tide_progress *progress);
/* Whether all lines were written, or the reader has closed its end. If not, prints a line on standard
 * error. */
bool tide_progress_arrived(const tide_progress *progress);

/* ---- tasks that take seconds at start ---- */

/* Shows the progress of a task at start: making slots, the region, first values. Prints only if the task
 * takes more than a second: on a terminal a line that is updated and then removed, elsewhere one line when
 * the task ends. */
typedef struct tide_making {
    FILE *out;
    bool terminal;
    const char *what;       /* name of the current task; NULL: none */
    double begin_s, last_s; /* tide_clock_seconds() of the task's first and latest call */
    double drawn_s;         /* time at which the line was drawn last; 0: no line stands there */
    uint64_t bytes;         /* done so far */
} tide_making;

void tide_making_begin(tide_making *making, FILE *out);
/* A tide_progress_callback; `making` is a tide_making. */
void tide_making_show(void *making, const char *what, uint64_t done_bytes, uint64_t total_bytes);
void tide_making_end(tide_making *making);

#endif
