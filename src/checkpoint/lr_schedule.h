/* The learning rate: linear warm-up from 0, then one of four shapes to the end of the run.
 *
 *     cosine, linear          constant              wsd
 *     lr      /\              lr      ________      lr      _____
 *            /   \__                 /                     /     \
 *           /       \__             /                     /       \
 *     floor/           \___        /                floor/         \
 *         0  warmup      steps    0  warmup steps       0  warmup  steps
 *                                                                 |-| decay_steps
 *
 * wsd is warm-up, stable, decay (Hu et al., MiniCPM, arXiv:2404.06395): the stable part may be continued for
 * as long as one likes, and a short decay from any of its checkpoints gives a finished model. That paper
 * finds a tenth of the steps enough for the decay; Haegele et al. (arXiv:2405.18392) find a run with a linear
 * one as good as a cosine over the whole run.
 *
 * The run's last step has the floor exactly. So cosine and linear are PyTorch's CosineAnnealingLR and
 * LinearLR over steps - 1 - warmup, and wsd is transformers' warmup_stable_decay with decay_type "linear",
 * num_decay_steps = decay_steps and num_stable_steps = steps - 1 - warmup - decay_steps. transformers' cosine
 * and linear reach the floor one step later, which the run does not make.
 */
#ifndef TIDE_CHECKPOINT_LR_SCHEDULE_H
#define TIDE_CHECKPOINT_LR_SCHEDULE_H

#include <stdint.h>

typedef enum tide_lr_shape {
    TIDE_LR_COSINE = 0,
    TIDE_LR_LINEAR,
    TIDE_LR_CONSTANT,
    TIDE_LR_WSD,
} tide_lr_shape;

enum { TIDE_LR_SHAPES = TIDE_LR_WSD + 1 };

const char *tide_lr_shape_name(tide_lr_shape shape); /* "cosine" and so on */

typedef struct tide_lr_schedule {
    tide_lr_shape shape;
    double lr;             /* at the end of warm-up */
    double lr_min;         /* at the last step; unused by the constant schedule */
    uint64_t warmup_steps; /* 0: none */
    uint64_t decay_steps;  /* of wsd: its last steps, with rates below lr; unused by others */
    uint64_t steps;        /* of the run */
} tide_lr_schedule;

/* The learning rate of step `step`, counted from 0. The first of W warm-up steps has lr / W, the last has lr.
 * The last step of the run and any after it have lr_min. If the warm-up fills the whole run, its rates are
 * used for all steps. */
double tide_lr_schedule_at(const tide_lr_schedule *schedule, uint64_t step);

#endif
