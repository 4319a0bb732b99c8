/* A small model on a pool, for tests. It has a state vector, and each layer has one param and saves the
 * state as an activation with one part per micro-batch.
 *
 *     forward of layer l    saved[l][m] = s;  s = 0.5 s + w[l]          (elementwise, per micro-batch m)
 *     backward of layer l   g[l] += 0.1 saved[l][m] + 0.01 w[l];  last layer first
 *     tied                  a head uses layer 0's param again and adds to its gradient
 *
 * It is small enough for thousands of steps, and still has params across chunk borders, slices, and tied
 * gradients.
 */
#ifndef POOL_FIXTURE_H
#define POOL_FIXTURE_H

#include "tidepool/tidepool.h"

enum { FIXTURE_LAYERS = 6, FIXTURE_SLICES = 2, FIXTURE_STATE = 1500 };
#define FIXTURE_REGION_BYTES (FIXTURE_SLICES * FIXTURE_STATE * sizeof(float))

typedef struct pool_fixture {
    tide_description *description;
    tide_pool *pool;
    tide_param params[FIXTURE_LAYERS];
    tide_activation saved[FIXTURE_LAYERS];
    tide_op forward[FIXTURE_LAYERS], backward[FIXTURE_LAYERS], head;
    uint64_t elements[FIXTURE_LAYERS];
    tide_dtype dtype;
    tide_state_format state; /* of all params */
    bool finishes;           /* backward finishes the first elements of its gradient before its op ends */
    float loss_scale;        /* factor of the gradients in later steps; 0: no loss scale */
} pool_fixture;

typedef struct pool_fixture_options {
    tide_dtype dtype;
    tide_pool_options pool;
    /* The device budget between the least (0) and the one that keeps everything resident (1). */
    double device_share;
    bool least_host;
    bool finishes;
    tide_state_format state; /* no planes: AdamW's */
} pool_fixture_options;

/* Returns the options of a small host pool: bf16, chunks of 256 KiB, all checks on. */
pool_fixture_options pool_fixture_options_default(void);
/* Describes the model, creates a pool with these budgets and sets initial values. */
tide_status pool_fixture_create(const pool_fixture_options *options, pool_fixture *fixture);
void pool_fixture_destroy(pool_fixture *fixture);
/* Runs one training step. `fail_kernel`: a kernel of backward reports a failure. */
tide_status pool_fixture_step(pool_fixture *fixture, float clip_norm, bool fail_kernel);
/* Runs one training step, gets its result and drains the pool. */
tide_status pool_fixture_step_and_settle(pool_fixture *fixture, float clip_norm);
/* Runs all ops of a step that the caller begins and ends. */
tide_status pool_fixture_ops(pool_fixture *fixture, bool fail_kernel);
/* Runs one step with clipping whose gradients are not finite, so that the pool skips it. */
tide_status pool_fixture_step_not_finite(pool_fixture *fixture);
/* Runs a forward pass only. */
tide_status pool_fixture_evaluate(pool_fixture *fixture);
/* Computes a 64-bit hash of the bits of all values of one kind. */
tide_status pool_fixture_hash(pool_fixture *fixture, tide_value kind, uint64_t *hash);
tide_step_options pool_fixture_step_options(float clip_norm);

#endif
