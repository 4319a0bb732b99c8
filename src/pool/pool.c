/* The public pool: the calls that use all other files of the folder. */
#include "src/pool/layout.h"

#include "src/pool/internal.h"

tide_status tide_pool_create(const tide_pool_options *options, tide_pool **pool)
{
    if (options == NULL || pool == NULL)
        return tide_pool_given("tide_pool_create", options == NULL ? "options" : "pool");
    return tide_pool_make(options, false, pool);
}

void tide_pool_destroy(tide_pool *pool)
{
    if (pool == NULL)
        return;
    tide_predict_destroy(&pool->predict);
    tide_pool_unmake(pool);
}

tide_status tide_pool_seal(tide_pool *pool)
{
    if (pool == NULL)
        return tide_pool_given("tide_pool_seal", "pool");
    tide_status status = tide_pool_build(pool);
    if (status != TIDE_OK || !pool->context.options.predict)
        return status;
    status = tide_predict_create(pool);
    if (status != TIDE_OK)
        tide_pool_unseal(pool);
    return status;
}

/* --- addresses --- */

const tide_model *tide_pool_model(const tide_pool *pool)
{
    return &pool->model;
}

const tide_layout *tide_pool_layout(const tide_pool *pool)
{
    return pool->context.layout;
}

void *tide_param_data(const tide_pool *pool, tide_param param)
{
    if (pool == NULL || !pool->sealed || param >= pool->model.param_count)
        return NULL;
    return pool->context.space_address[TIDE_SPACE_PARAM] + pool->model.params[param].data_offset_bytes;
}

void *tide_activation_data(const tide_pool *pool, tide_activation activation, uint32_t part)
{
    if (pool == NULL || !pool->sealed || activation >= pool->model.activation_count ||
        part >= pool->model.activations[activation].parts)
        return NULL;
    return pool->context.space_address[TIDE_SPACE_ACTIVATION] +
           pool->model.activations[activation].offset_bytes +
           part * tide_align_up(pool->model.activations[activation].part_bytes);
}

void *tide_region(const tide_pool *pool)
{
    return pool != NULL && pool->sealed ? pool->context.region : NULL;
}

void *tide_workspace(const tide_pool *pool)
{
    return pool != NULL && tide_op_is_open(pool)
               ? pool->context.region + pool->context.region_layout.workspace_offset
               : NULL;
}

/* The index of the param among the open op's, if the op has GRAD of it; UINT32_MAX otherwise. */
static uint32_t find_gradient(const tide_pool *pool, tide_param param)
{
    if (pool == NULL || !tide_op_is_open(pool))
        return UINT32_MAX;
    const tide_op_description *op = &tide_op_open(pool)->description;
    for (uint32_t i = 0; i < op->param_count; i++)
        if (op->params[i].tensor == param && (op->params[i].access & TIDE_ACCESS_GRAD) != 0)
            return i;
    return UINT32_MAX;
}

float *tide_param_gradient(const tide_pool *pool, tide_param param)
{
    const uint32_t i = find_gradient(pool, param);
    return i == UINT32_MAX
               ? NULL
               : (float *)(void *)(pool->context.region + tide_op_open(pool)->accumulator_offsets[i]);
}

bool tide_param_gradient_is_new(const tide_pool *pool, tide_param param)
{
    const uint32_t i = find_gradient(pool, param);
    return i != UINT32_MAX &&
           (tide_op_open(pool)->description.params[i].access & TIDE_ACCESS_OVERWRITE) != 0 &&
           !tide_manager_gradients(pool->engine.manager)->params[param].is_added;
}
