/* A toy model on a pool, for tests: layers of one param each, a state vector, one micro-batch part of state saved a layer.
 *
 *     forward of layer l    saved[l][m] = s;  s = 0.5 s + w[l]          (elementwise, per micro-batch m)
 *     backward of layer l   g[l] += 0.1 saved[l][m] + 0.01 w[l];  last layer first
 *     tied                  layer 0's param is used again by a head whose gradient is added to layer 0's
 *
 * Small enough for thousands of steps, and everything a pool does happens: straddling, slices, tied gradients.
 */
#ifndef TOY_MODEL_H
#define TOY_MODEL_H

#include "tidepool/tidepool.h"

enum { TOY_LAYERS = 6, TOY_SLICES = 2, TOY_STATE = 1500 };

typedef struct toy_model {
    tide_pool *pool;
    tide_param params[TOY_LAYERS];
    tide_activation saved[TOY_LAYERS];
    tide_op forward[TOY_LAYERS], backward[TOY_LAYERS], head, unused_forward;
    uint64_t elements[TOY_LAYERS];
    tide_dtype dtype;
    tide_state_format state; /* of all params */
    float loss_scale; /* of the steps to come: gradients are made so many times larger. 0: none */
} toy_model;

typedef struct toy_options {
    tide_pool_options pool;
    double
        device_share; /* of what keeps everything resident, between least and full; 0: the least, 1: full */
    bool least_host;
    tide_state_format state; /* no planes: AdamW's */
} toy_options;

/* Options of a small host pool: 256 KiB chunks, all checks on. */
toy_options toy_options_default(void);
/* Create, register, budget, seal and set initial values. */
tide_status toy_create(const toy_options *options, toy_model *toy);
void toy_destroy(toy_model *toy);
/* One training step. `fail_kernel`: a kernel of backward reports a failure. */
tide_status toy_step(toy_model *toy, float clip_norm, bool fail_kernel);
/* Between its begin and its end: all ops. */
tide_status toy_ops(toy_model *toy, bool fail_kernel);
/* One, with clipping, whose gradients are not finite: it is skipped. */
tide_status toy_step_not_finite(toy_model *toy);
/* The forward half only. */
tide_status toy_evaluate(toy_model *toy);
/* A 64-bit hash of all values of one kind, bit by bit. */
tide_status toy_hash(toy_model *toy, tide_value kind, uint64_t *hash);
tide_step_options toy_step_options(float clip_norm);

#endif
