/* The dynamic loss scale of fp16.
 *
 * Gradients far below the loss would vanish in fp16, whose least number is 2^-24. So the loss' gradient is multiplied by a
 * scale, as large as is possible without an overflow, and the optimizer takes it out again. How large that is changes in
 * the course of training, so it is found by trying:
 *
 *     65536 at first; a step that overflows is skipped and the scale halves; 2000 steps without one, and it doubles
 *
 * as PyTorch's GradScaler does, whose numbers these are. It stays between 1 (below, an overflow is the model's, not the
 * scale's) and 2^24 (Apex's bound; PyTorch has none and can reach infinity). A power of two always: then taking it out is
 * exact, and no step depends on it but by what would otherwise over- or underflow.
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
    double scale;        /* of the next step */
    uint64_t good_steps; /* since it changed or a step was skipped */
} tide_loss_scale;

/* A power of two within the bounds. */
bool tide_loss_scale_is_valid(double scale);

/* What follows a step made with `now`. */
tide_loss_scale tide_loss_scale_after(tide_loss_scale now, bool skipped);

#endif
