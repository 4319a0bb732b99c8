/* Values of params and optimizer state, in and out, through the host tier; and what a torn pool still lacks.
 *
 * Owns which values have been set since the pool was torn. Works on the caller's thread with the lock. Calls step, engine, jobs
 * (whose request it is) and the layout's queries.
 */
#ifndef TIDE_POOL_VALUES_H
#define TIDE_POOL_VALUES_H

#include "src/pool/model.h"
#include "src/pool/step.h"

typedef struct tide_values {
    const tide_ground *ground;
    const tide_model *model;
    tide_engine *engine;
    tide_step *step;
    uint64_t (*covered)[3]; /* per param: elements set anew, per fp32 space, */
    uint64_t tear;          /* since this tear of the pool's */
} tide_values;

/* Room for the model. NO_MEMORY. */
tide_status tide_values_create(tide_values *values);
void tide_values_destroy(tide_values *values);

#endif
