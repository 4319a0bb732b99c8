/* AdamW's arithmetic, once, for every instruction set and for the GPU.
 *
 * The update of one parameter is a fixed sequence of IEEE operations: multiplications, additions, explicit
 * fused multiply-adds, one division and one square root, each rounded once. Whoever includes this file
 * compiles with contraction off and with denormals kept (never -ffast-math, never FTZ or DAZ; CUDA:
 * --fmad=false --prec-div=true
 * --prec-sqrt=true --ftz=false), so a parameter's new bits do not depend on where it was updated. All that
 * needs a power or a root of the hyperparameters is computed once on the host, in float64, by
 * tide_adam_factors_make.
 *
 *     g  = gradient x gradient_scale
 *     m' = beta1 m + (1 - beta1) g
 *     v' = beta2 v + (1 - beta2) g^2
 *     w' = w (1 - lr decay) - lr/(1 - beta1^t)  m' / (sqrt(v') / sqrt(1 - beta2^t) + epsilon)
 */
#ifndef TIDEPOOL_KERNELS_ADAM_MATH_H
#define TIDEPOOL_KERNELS_ADAM_MATH_H

#include "kernels/bf16.h"

#include <math.h>

/* What a step's hyperparameters come down to; the same for every parameter of the step. */
typedef struct tide_adam_factors {
    float gradient_scale; /* unscale x clip factor; 1 when neither applies */
    float beta1, keep1;   /* keep1 = 1 - beta1 */
    float beta2, keep2;   /* keep2 = 1 - beta2 */
    float inverse_root2;  /* 1 / sqrt(1 - beta2^t) */
    float epsilon;
    float step_size; /* lr / (1 - beta1^t) */
    float decay;     /* 1 - lr x weight decay, for segments that decay; others use 1 */
} tide_adam_factors;

/* The factors of step t = 1, 2, ...: computed in float64, each rounded once. `gradient_scale` as in the
 * struct. */
static inline tide_adam_factors tide_adam_factors_make(double learning_rate, double beta1, double beta2,
                                                       double epsilon, double weight_decay, uint64_t step,
                                                       double gradient_scale)
{
    const double correction1 = 1.0 - pow(beta1, (double)step);
    const double correction2 = 1.0 - pow(beta2, (double)step);
    return (tide_adam_factors){
        .gradient_scale = (float)gradient_scale,
        .beta1 = (float)beta1,
        .keep1 = (float)(1.0 - beta1),
        .beta2 = (float)beta2,
        .keep2 = (float)(1.0 - beta2),
        .inverse_root2 = (float)(1.0 / sqrt(correction2)),
        .epsilon = (float)epsilon,
        .step_size = (float)(learning_rate / correction1),
        .decay = (float)(1.0 - learning_rate * weight_decay),
    };
}

/* Update one parameter: returns the new master and replaces the moments. `decay` is factors->decay or 1. */
TIDE_ARITHMETIC float tide_adam_update(const tide_adam_factors *factors, float decay, float gradient,
                                       float master, float *momentum, float *variance)
{
    const float scaled = gradient * factors->gradient_scale;
    const float m = fmaf(factors->beta1, *momentum, factors->keep1 * scaled);
    const float v = fmaf(factors->beta2, *variance, factors->keep2 * (scaled * scaled));
    const float denominator = fmaf(sqrtf(v), factors->inverse_root2, factors->epsilon);
    *momentum = m;
    *variance = v;
    return fmaf(-factors->step_size, m / denominator, master * decay);
}

#endif
