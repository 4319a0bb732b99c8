/* Softmax cross entropy, row by row; the gradient overwrites the logits.
 *
 * The code reads a row of logits three times (largest, sum of exponentials, gradient). A row of 50257 logits
 * takes 100 KiB in 16 bits and stays in the second-level cache, so computing an exponential twice costs less
 * than storing it. The code sums stretches of STRETCH_ELEMENTS in fp32 vectors and adds the stretches in
 * float64, since a plain fp32 sum of so many terms would lose a digit.
 */
#include "base/team.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/variant.h"

enum { STRETCH_ELEMENTS = 1024 };

LANES_INLINE float row_largest(const void *logits, size_t vocabulary, tide_dtype dtype)
{
    lanes largest = lanes_all(-INFINITY);
    size_t i = 0;
    for (; vocabulary - i >= LANES; i += LANES)
        largest = lanes_max(lanes_load(logits, i, dtype), largest);
    float result = lanes_largest(largest);
    for (; i < vocabulary; i++) {
        const float last = element_get(logits, i, dtype);
        result = last > result ? last : result;
    }
    return result;
}

/* Sum of e^(logit - largest); NaN if any logit is NaN or +infinity. */
LANES_INLINE double row_exp_sum(const void *logits, float largest, size_t vocabulary, tide_dtype dtype)
{
    double total = 0.0;
    for (size_t begin = 0; begin < vocabulary; begin += STRETCH_ELEMENTS) {
        const size_t end = vocabulary - begin > STRETCH_ELEMENTS ? begin + STRETCH_ELEMENTS : vocabulary;
        lanes sum = lanes_all(0.0f);
        for (size_t i = begin; i < end; i += LANES)
            sum += lanes_clip(lanes_exp(lanes_load_until(logits, i, end, dtype) - largest), i, end);
        total += (double)lanes_sum(sum);
    }
    return total;
}

/* logits = e^(logit - largest) x scale; zeros in the padding. The caller then corrects the target's
 * element. */
LANES_INLINE void row_gradient(void *logits, float largest, float scale, size_t vocabulary,
                               size_t leading_dimension, tide_dtype dtype)
{
    for (size_t i = 0; i < vocabulary; i += LANES) {
        const lanes exponential = lanes_exp(lanes_load_until(logits, i, vocabulary, dtype) - largest);
        lanes_store_until(logits, i, vocabulary, exponential * scale, dtype);
    }
    for (size_t i = vocabulary; i < leading_dimension; i++)
        lanes_store_some(logits, i, lanes_all(0.0f), 1, dtype);
}

LANES_INLINE void cross_entropy_row(const tide_cross_entropy_args *args, size_t row, tide_dtype dtype)
{
    const size_t vocabulary = args->vocabulary;
    char *logits = (char *)args->logits + row * args->leading_dimension * tide_dtype_bytes(dtype);
    const size_t target = (size_t)args->targets[row];
    if (args->targets[row] < 0) {
        args->losses[row] = 0;
        if (args->gradient)
            memset(logits, 0, args->leading_dimension * tide_dtype_bytes(dtype));
        return;
    }
    assert(target < vocabulary);
    const float target_logit = lanes_load_some(logits, target, 1, dtype)[0];
    const float largest = row_largest(logits, vocabulary, dtype);
    const double sum = row_exp_sum(logits, largest, vocabulary, dtype);
    args->losses[row] = (float)(log(sum) + (double)largest - (double)target_logit);
    if (!args->gradient)
        return;
    const float scale = (float)((double)args->gradient_scale / sum);
    row_gradient(logits, largest, scale, vocabulary, args->leading_dimension, dtype);
    const lanes probability = lanes_exp(lanes_all(target_logit - largest));
    lanes_store_some(logits, target, probability * scale - args->gradient_scale, 1, dtype);
}

static void row_task(const void *arguments, size_t row)
{
    const tide_cross_entropy_args *args = arguments;
    BY_DTYPE(args->dtype, cross_entropy_row, args, row);
}

tide_status VARIANT(cross_entropy)(void *stream, const void *arguments)
{
    const tide_cross_entropy_args *args = arguments;
    (void)stream;
    assert(args->rows == 0 || (args->logits && args->targets && args->losses && args->vocabulary > 0));
    assert(args->leading_dimension >= args->vocabulary);
    tide_team_run(args->rows, args->rows * args->vocabulary, row_task, args);
    return TIDE_OK;
}
