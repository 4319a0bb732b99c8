/* A step's rate is a weighted mean of lr and lr_min. At both ends the weights are exactly 0 and 1, so that
 * the rate is exactly lr or lr_min there: formulas like lr * W / W and lr_min + (lr - lr_min) can miss lr in
 * the last bit. The arithmetic is float64; the optimizer rounds the result once. */
#include "src/checkpoint/lr_schedule.h"

#include <assert.h>
#include <math.h>

const char *tide_lr_shape_name(tide_lr_shape shape)
{
    static const char *const names[TIDE_LR_SHAPES] = {"cosine", "linear", "constant", "wsd"};
    assert((unsigned)shape < TIDE_LR_SHAPES);
    return names[shape];
}

/* The weight of lr, for a step after the warm-up and before the last one. */
static double share_of_lr(const tide_lr_schedule *schedule, uint64_t step)
{
    const uint64_t left = schedule->steps - 1 - step;
    const uint64_t span =
        schedule->shape == TIDE_LR_WSD ? schedule->decay_steps : schedule->steps - 1 - schedule->warmup_steps;
    if (left >= span)
        return 1;
    const double progress = (double)(span - left) / (double)span;
    return schedule->shape == TIDE_LR_COSINE ? 0.5 * (1.0 + cos(3.14159265358979323846 * progress))
                                             : 1.0 - progress;
}

double tide_lr_schedule_at(const tide_lr_schedule *schedule, uint64_t step)
{
    if (step < schedule->warmup_steps)
        return schedule->lr * ((double)(step + 1) / (double)schedule->warmup_steps);
    if (schedule->shape == TIDE_LR_CONSTANT)
        return schedule->lr;
    if (step >= schedule->steps || step + 1 == schedule->steps)
        return schedule->lr_min;
    const double share = share_of_lr(schedule, step);
    return share * schedule->lr + (1.0 - share) * schedule->lr_min;
}
