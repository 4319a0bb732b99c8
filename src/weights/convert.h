/* Values between fp32 and the dtypes of files, at the speed of memory: the same bits as kernels/bf16.h and kernels/fp16.h give,
 * in loops without a choice of paths, so that every instruction set has vectors for them. The processor must round to nearest.
 */
#ifndef TIDE_WEIGHTS_CONVERT_H
#define TIDE_WEIGHTS_CONVERT_H

#include "src/weights/tensor.h"

/* `count` numbers of BF16 or F16 lie in the last half of `values`, which has room for as many of fp32: widen them in place.
 * Exact; a NaN of F16 becomes quiet. */
void tide_weights_widen(tide_weights_dtype dtype, float *values, size_t count);

/* Round to BF16 or F16, to nearest, ties to even. A NaN becomes quiet in BF16, 0x7fff in F16. `values` and `raw` lie apart. */
void tide_weights_narrow(tide_weights_dtype dtype, const float *restrict values, uint16_t *restrict raw,
                         size_t count);

/* The first of the finite values that would be an infinity in F16; `count`: none. */
size_t tide_weights_f16_overflow(const float *values, size_t count);

#endif
