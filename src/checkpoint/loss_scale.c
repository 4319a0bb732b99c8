#include "src/checkpoint/loss_scale.h"

#include <assert.h>
#include <math.h>

bool tide_loss_scale_is_valid(double scale)
{
    int exponent;
    return scale >= TIDE_LOSS_SCALE_LEAST && scale <= TIDE_LOSS_SCALE_MOST && frexp(scale, &exponent) == 0.5;
}

tide_loss_scale tide_loss_scale_after(tide_loss_scale now, bool skipped)
{
    assert(tide_loss_scale_is_valid(now.scale) && now.good_steps < TIDE_LOSS_SCALE_GROWTH_STEPS);
    if (skipped)
        return (tide_loss_scale){.scale = fmax(now.scale / 2, TIDE_LOSS_SCALE_LEAST)};
    if (now.good_steps + 1 < TIDE_LOSS_SCALE_GROWTH_STEPS)
        return (tide_loss_scale){.scale = now.scale, .good_steps = now.good_steps + 1};
    return (tide_loss_scale){.scale = fmin(now.scale * 2, TIDE_LOSS_SCALE_MOST)};
}
