/* The pool: the list of its objects, and what the public calls share.
 *
 * Arrows point down; README.md has them as a figure. Each object has its own struct and header, which says what it owns, which
 * thread or lock guards it, and whom it may call.
 *
 * [caller] only the caller's thread; [lock] under the monitor's lock; [fixed] not changed after seal.
 */
#ifndef TIDE_POOL_INTERNAL_H
#define TIDE_POOL_INTERNAL_H

#include "src/pool/op.h"
#include "src/pool/predict.h"
#include "src/pool/staging.h"
#include "src/pool/values.h"

struct tide_pool {
    bool sealed;
    tide_ground ground;
    tide_model model;
    tide_monitor monitor;
    tide_order order;
    tide_journal journal;
    tide_link link;
    tide_jobs jobs;
    tide_norm norm;
    tide_engine engine; /* with the manager and its open commands */
    tide_launcher launch;
    tide_step step;
    tide_open_op op;
    tide_staging staging;
    tide_values values;
    tide_predict predict; /* [caller] */
};

/* --- call.c --- */

/* ARGUMENT if a public call was given a NULL: `missing` is the first such parameter's name, NULL if there is none. */
static inline tide_status tide_pool_given(const char *call, const char *missing)
{
    return missing == NULL ? TIDE_OK : tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s is NULL", call, missing);
}

/* OK if the pool is there (ARGUMENT) and sealed; `call` is named in the message. */
tide_status tide_pool_sealed(const tide_pool *pool, const char *call);
/* And has not failed and is not torn. */
tide_status tide_pool_callable(tide_pool *pool, const char *call);
/* STATE: the pool is torn. */
tide_status tide_pool_say_torn(const char *call);

/* --- make.c --- */

/* tide_pool_create; a shadow leaves the kernels' thread count alone. */
tide_status tide_pool_make(const tide_pool_options *options, bool shadow, tide_pool **pool);
/* Everything but predictions, which have a pool of their own. */
void tide_pool_unmake(tide_pool *pool);

/* --- plan.c --- */

/* An empty layout for such params. ARGUMENT, NO_MEMORY. */
tide_status tide_pool_layout_create(const tide_pool_options *options, uint64_t chunk_bytes, tide_layout **layout);
/* Layout and manager of what is registered, for any chunk size. The caller destroys both. */
tide_status tide_pool_policy_build(const tide_pool *pool, uint64_t chunk_bytes, tide_layout **layout,
                                   tide_manager **manager);
/* Budgets in force, slots and refusals; fills `plan` whole, the region's layout and the accumulators' offsets. */
tide_status tide_pool_plan_make(tide_pool *pool, const tide_layout *layout, tide_manager *manager,
                                uint64_t device_memory_bytes, uint64_t host_memory_bytes, bool refuse,
                                tide_pool_plan *plan);
/* A caller's optimizer runs on the host. */
tide_placement tide_pool_placement(const tide_pool *pool);

/* --- seal.c --- */

/* tide_pool_seal without predictions. After a failure nothing is left. */
tide_status tide_pool_build(tide_pool *pool);
/* Undo it, and what of it there is. */
void tide_pool_unseal(tide_pool *pool);

#endif
