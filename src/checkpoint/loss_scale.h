/* The dynamic loss scale of fp16.
 *
 * Gradients far below the loss would vanish in fp16, whose smallest number is 2^-24. So training multiplies
 * the loss' gradient by a scale, as large as is possible without an overflow, and the optimizer divides it
 * out again. The best scale changes in the course of training, so it is found by trial:
 *
 *     it begins at 65536; if a step overflows, the step is skipped and the scale halved; after 2000
 *     good steps the scale doubles
 *
 * These are the rules and numbers of PyTorch's GradScaler. The scale stays between 1 (if a step overflows
 * even then, the model is the cause) and 2^24 (Apex's bound; PyTorch has none and can reach infinity). It is
 * always a power of two, so that dividing it out is exact and it changes only values that would otherwise
 * over- or underflow.
 */
#ifndef TIDE_CHECKPOINT_LOSS_SCALE_H
#define TIDE_CHECKPOINT_LOSS_SCALE_H

#include <stdbool.h>
#include <stdint.h>

#define TIDE_LOSS_SCALE_FIRST 65536.0
#define TIDE_LOSS_SCALE_LEAST 1.0
#define TIDE_LOSS_SCALE_MOST  16777216.0

enum { TIDE_LOSS_SCALE_GROWTH_STEPS = 2000 };

typedef struct tide_loss_scale {
    double scale;        /* for the next step */
    uint64_t good_steps; /* steps since the scale changed or a step was skipped */
} tide_loss_scale;

/* Is the scale a power of two within the bounds? */
bool tide_loss_scale_is_valid(double scale);

/* The scale after a step that was made with `now`. */
tide_loss_scale tide_loss_scale_after(tide_loss_scale now, bool skipped);

#endif
