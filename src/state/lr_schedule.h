/* The learning rate: linear warm-up from 0, then a cosine down to a floor at the end of the run.
 *
 *     lr      /\
 *            /   \__
 *           /       \__
 *     floor/           \___
 *         0  warmup      steps
 */
#ifndef TIDE_STATE_LR_SCHEDULE_H
#define TIDE_STATE_LR_SCHEDULE_H

#include <stdint.h>

typedef struct tide_lr_schedule {
    double lr;             /* at the end of warm-up */
    double lr_min;         /* at the last step */
    uint64_t warmup_steps; /* 0: none */
    uint64_t steps;        /* of the run */
} tide_lr_schedule;

/* Learning rate of step `step`, counted from 0. The first of W warm-up steps has lr / W, the last has lr; the
 * last step of the run has lr_min, and so have steps beyond it. Warm-up wins where it fills the whole run. */
double tide_lr_schedule_at(const tide_lr_schedule *schedule, uint64_t step);

#endif
