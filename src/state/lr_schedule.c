/* The cosine spans the steps after warm-up, first step lr, last step lr_min. Both are shares of lr and lr_min
 * that are exactly 0 or 1 at the ends, so that the ends are reached exactly: lr * W / W and
 * lr_min + (lr - lr_min) can miss lr in their last bit. The arithmetic is float64; the optimizer rounds it
 * once. */
#include "src/state/lr_schedule.h"

#include <math.h>

double tide_lr_schedule_at(const tide_lr_schedule *schedule, uint64_t step)
{
    if (step < schedule->warmup_steps)
        return schedule->lr * ((double)(step + 1) / (double)schedule->warmup_steps);
    if (step >= schedule->steps || step + 1 == schedule->steps)
        return schedule->lr_min;
    const double span = (double)(schedule->steps - 1 - schedule->warmup_steps);
    const double progress = (double)(step - schedule->warmup_steps) / span;
    const double share = 0.5 * (1.0 + cos(3.14159265358979323846 * progress));
    return share * schedule->lr + (1.0 - share) * schedule->lr_min;
}
