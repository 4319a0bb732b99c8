/* Converts values between fp32 and the dtypes of files, at the speed of memory. The results are bit for bit
 * those of base/bf16.h and base/fp16.h; the loops take no branches, so that the compiler can vectorize
 * them for every instruction set. The processor must round to nearest.
 */
#ifndef TIDE_WEIGHTS_CONVERT_H
#define TIDE_WEIGHTS_CONVERT_H

#include "src/weights/tensor.h"

/* Widen `count` numbers of BF16 or F16 to fp32 in place. They lie in the last half of `values`, which has
 * room for `count` floats. Exact; a NaN of F16 becomes quiet. */
void tide_weights_widen(tide_weights_dtype dtype, float *values, size_t count);

/* Round to BF16 or F16, to nearest, ties to even. A NaN becomes quiet in BF16, 0x7fff in F16. `values` and
 * `raw` must not overlap. */
void tide_weights_narrow(tide_weights_dtype dtype, const float *restrict values, uint16_t *restrict raw,
                         size_t count);

/* The index of the first finite value that F16 would round to infinity; `count`: there is none. */
size_t tide_weights_f16_overflow(const float *values, size_t count);

#endif
