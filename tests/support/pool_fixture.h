/* A small model on a pool, for tests: layers of one param each, a state vector, one micro-batch part of state saved a layer.
 *
 *     forward of layer l    saved[l][m] = s;  s = 0.5 s + w[l]          (elementwise, per micro-batch m)
 *     backward of layer l   g[l] += 0.1 saved[l][m] + 0.01 w[l];  last layer first
 *     tied                  layer 0's param is used again by a head whose gradient is added to layer 0's
 *
 * Small enough for thousands of steps, and everything a pool does happens: straddling, slices, tied gradients.
 */
#ifndef POOL_FIXTURE_H
#define POOL_FIXTURE_H

#include "tidepool/tidepool.h"

enum { FIXTURE_LAYERS = 6, FIXTURE_SLICES = 2, FIXTURE_STATE = 1500 };

typedef struct pool_fixture {
    tide_pool *pool;
    tide_param params[FIXTURE_LAYERS];
    tide_activation saved[FIXTURE_LAYERS];
    tide_op forward[FIXTURE_LAYERS], backward[FIXTURE_LAYERS], head, unused_forward;
    uint64_t elements[FIXTURE_LAYERS];
    tide_dtype dtype;
    tide_state_format state; /* of all params */
    float loss_scale;        /* of the steps to come: gradients are made so many times larger. 0: none */
} pool_fixture;

typedef struct pool_fixture_options {
    tide_pool_options pool;
    /* of what keeps everything resident, between least and full; 0: the least, 1: full */
    double device_share;
    bool least_host;
    tide_state_format state; /* no planes: AdamW's */
} pool_fixture_options;

/* Options of a small host pool: 256 KiB chunks, all checks on. */
pool_fixture_options pool_fixture_options_default(void);
/* Create, register, budget, seal and set initial values. */
tide_status pool_fixture_create(const pool_fixture_options *options, pool_fixture *fixture);
void pool_fixture_destroy(pool_fixture *fixture);
/* One training step. `fail_kernel`: a kernel of backward reports a failure. */
tide_status pool_fixture_step(pool_fixture *fixture, float clip_norm, bool fail_kernel);
/* Between its begin and its end: all ops. */
tide_status pool_fixture_ops(pool_fixture *fixture, bool fail_kernel);
/* One, with clipping, whose gradients are not finite: it is skipped. */
tide_status pool_fixture_step_not_finite(pool_fixture *fixture);
/* The forward half only. */
tide_status pool_fixture_evaluate(pool_fixture *fixture);
/* A 64-bit hash of all values of one kind, bit by bit. */
tide_status pool_fixture_hash(pool_fixture *fixture, tide_value kind, uint64_t *hash);
tide_step_options pool_fixture_step_options(float clip_norm);

#endif
