/* AdamW's arithmetic: the same code for every instruction set and for the GPU.
 *
 * The update of one parameter is a fixed sequence of IEEE operations: multiplications, additions, explicit
 * fused multiply-adds, one division and one square root, each rounded once. Code that includes this file must
 * be compiled with contraction off and denormals kept (never -ffast-math, FTZ or DAZ; CUDA: --fmad=false
 * --prec-div=true --prec-sqrt=true --ftz=false), so that a parameter's new bits do not depend on the place of
 * its update. tide_adam_factors_make computes all powers and roots of the hyperparameters once, on the host,
 * in float64.
 *
 *     g  = gradient x gradient_scale
 *     m' = beta1 m + (1 - beta1) g
 *     v' = beta2 v + (1 - beta2) g^2
 *     w' = w (1 - lr decay) - lr/(1 - beta1^t)  m' / (sqrt(v') / sqrt(1 - beta2^t) + epsilon)
 */
#ifndef TIDEPOOL_KERNELS_ADAM_MATH_H
#define TIDEPOOL_KERNELS_ADAM_MATH_H

#include "base/bf16.h"

#include <math.h>

/* Factors computed from the hyperparameters of a step; all parameters of the step use them. */
typedef struct tide_adam_factors {
    float gradient_scale; /* clip factor / loss scale; 1 without either */
    float beta1, keep1;   /* keep1 = 1 - beta1 */
    float beta2, keep2;   /* keep2 = 1 - beta2 */
    float inverse_root2;  /* 1 / sqrt(1 - beta2^t) */
    float epsilon;
    float step_size; /* lr / (1 - beta1^t) */
    float decay;     /* 1 - lr x weight decay; segments without decay use 1 */
} tide_adam_factors;

/* Compute the factors of step t = 1, 2, ... in float64 and round each once. `gradient_scale` is as in the
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
