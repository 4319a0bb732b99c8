/* Predictions of a training step: the pool's very own manager, planner and engine, on a device without data.
 *
 * A shadow is a second pool on the null device: same params, checkpoints and ops, same budgets, chunk size, placement
 * and prefetch, so the same plan. Its machine is the measured one (measure.h): rates of the link's two ways and of both
 * Adams, costs of map and unmap; each op's kernels last what they lasted. The last step's script is played on it, in
 * virtual time, until steps repeat, one by one or in a cycle of up to eight; the answer is the mean of a cycle. Link-bound
 * steps may never repeat: then it is the mean of 36 of them.
 *
 *   what is played   begin, [slice, unit]..., unit if there was no slice, end
 *   a unit           a kernel of the shadow's that lasts what a unit of the op does
 *   pool's kernels   what the shadow launches of its own accord (zeros, gradients, norm) lasts no time but for the first
 *                    kernel of an op's begin, of its end, of the step's begin and of its end, which lasts what all do
 *
 * It is played anew when the script is another or when a measured duration has moved by more than a tenth, where that
 * makes more than a hundredth of the step, or all of compute together by more than a tenth; otherwise the last answer
 * stands. Nothing is allocated after create.
 *
 * All fields belong to the caller's thread.
 */
#ifndef TIDE_POOL_PREDICT_H
#define TIDE_POOL_PREDICT_H

#include "tidepool/pool.h"

typedef struct tide_predict {
    tide_pool *shadow;  /* NULL: not made */
    double *played_ns;  /* per series, the means that the answer was made with */
    double device_rate; /* bytes per second of the shadow's device memory */
    uint64_t version;   /* of the script played */
    bool answered;
    tide_pool_prediction answer;
} tide_predict;

/* Make the shadow of a sealed pool. Statuses of tide_pool_create and tide_pool_seal; nothing is left behind then. */
tide_status tide_predict_create(tide_pool *pool);
void tide_predict_destroy(tide_predict *predict); /* zeroed: allowed */

#endif
