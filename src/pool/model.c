#include "src/pool/model.h"

#include "base/array.h"
#include "src/pool/internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARTS = 1 << 20 };
#define MAX_BYTES    (UINT64_C(1) << 50) /* of one item, so that no sum overflows */
#define MAX_ELEMENTS (UINT64_C(1) << 48)

void tide_model_destroy(tide_model *model)
{
    for (uint32_t i = 0; i < model->op_count; i++) {
        free((char *)(uintptr_t)model->ops[i].description.name);
        free((tide_use *)(uintptr_t)model->ops[i].description.params);
        free(model->ops[i].accumulator_offsets);
    }
    free(model->params);
    free(model->activations);
    free(model->ops);
    tide_layout_destroy(model->registered);
    *model = (tide_model){0};
}

static tide_status grow(void *array, uint32_t count, size_t element_bytes)
{
    if (tide_array_grow(array, count, element_bytes))
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory to register one more than %u of a kind", count);
}

/* ARGUMENT if `missing` names a parameter, as tide_pool_given; STATE if the pool is sealed. */
static tide_status registering(const tide_pool *pool, const char *call, const char *missing)
{
    const tide_status status = tide_pool_given(call, missing);
    if (status == TIDE_OK && pool->sealed)
        return tide_fail(TIDE_ERROR_STATE, "%s: the pool is sealed", call);
    return status;
}

static tide_status count_elements(const char *name, const uint64_t *shape, uint32_t rank, uint64_t *elements)
{
    if (rank < 1 || rank > 4)
        return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: %u dimensions, 1 to 4 are allowed", name, rank);
    *elements = 1;
    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] == 0)
            return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: dimension %u is 0", name, i);
        if (shape[i] > MAX_ELEMENTS / *elements)
            return tide_fail(TIDE_ERROR_ARGUMENT,
                             "param %s: dimension %u is %llu, too large: a param has at most 2^48 elements",
                             name, i, (unsigned long long)shape[i]);
        *elements *= shape[i];
        assert(*elements > 0 && *elements <= MAX_ELEMENTS);
    }
    return TIDE_OK;
}

static const tide_state_format adamw_state = {3, {128, 128, 128}};

static tide_status check_planes(const char *name, const tide_state_format *state)
{
    if (state->planes > TIDE_STATE_PLANES_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: a state of %u planes, at most %d are allowed", name,
                         state->planes, TIDE_STATE_PLANES_MAX);
    for (uint32_t i = state->planes; i < TIDE_STATE_PLANES_MAX; i++)
        if (state->bytes[i] != 0)
            return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: a state of %u planes has bytes for plane %u",
                             name, state->planes, i);
    return TIDE_OK;
}

static tide_status check_state(const tide_pool_options *options, const char *name,
                               const tide_state_format *state)
{
    const uint32_t fp32 = 128, own = 32 * (uint32_t)tide_dtype_bytes(options->dtype);
    for (uint32_t i = 0; i < state->planes; i++)
        if (state->bytes[i] != fp32 && state->bytes[i] != own)
            return tide_fail(
                TIDE_ERROR_ARGUMENT,
                "param %s: plane %u of its state has %u bytes for 32 elements; in a pool of %s it "
                "has %s",
                name, i, state->bytes[i], tide_dtype_name(options->dtype), own == fp32 ? "128" : "64 or 128");
    if (options->update == NULL && (state->planes != adamw_state.planes ||
                                    memcmp(state->bytes, adamw_state.bytes, sizeof state->bytes) != 0))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "param %s: AdamW's state is three planes of 128 bytes; another needs options.update",
                         name);
    return TIDE_OK;
}

/* The class in force: the given one, or the default; a trained param without a state gets AdamW's. */
static tide_status complete_class(const tide_pool_options *options, const char *name,
                                  const tide_param_class *given, tide_param_class *of_class)
{
    *of_class = given == NULL ? (tide_param_class){0} : *given;
    if (of_class->frozen && (of_class->decay || of_class->state.planes > 0))
        return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: it is frozen, and can't have %s", name,
                         of_class->decay ? "weight decay" : "optimizer state");
    const tide_status status = check_planes(name, &of_class->state);
    if (status != TIDE_OK || of_class->frozen)
        return status;
    if (of_class->state.planes == 0)
        of_class->state = adamw_state;
    return check_state(options, name, &of_class->state);
}

tide_status tide_param_register(tide_pool *pool, const char *name, const uint64_t *shape, uint32_t rank,
                                const tide_param_class *of_class, tide_param *param)
{
    uint64_t elements = 0;
    tide_param_class complete;
    tide_status status = registering(pool, "tide_param_register",
                                     pool == NULL    ? "pool"
                                     : name == NULL  ? "name"
                                     : shape == NULL ? "shape"
                                     : param == NULL ? "param"
                                                     : NULL);
    if (status == TIDE_OK)
        status = count_elements(name, shape, rank, &elements);
    if (status == TIDE_OK)
        status = complete_class(&pool->context.options, name, of_class, &complete);
    if (status != TIDE_OK)
        return status;
    tide_model *model = &pool->model;
    status = grow(&model->params, model->param_count, sizeof *model->params);
    if (status == TIDE_OK)
        status = tide_layout_add_param_of(model->registered, &complete.state, name, elements, param);
    if (status != TIDE_OK)
        return status;
    assert(*param == model->param_count);
    model->params[model->param_count++] =
        (tide_pool_param){.name = tide_layout_param(model->registered, *param)->name,
                          .elements = elements,
                          .of_class = complete};
    model->trained_count += !complete.frozen;
    return TIDE_OK;
}

tide_status tide_activation_register(tide_pool *pool, const char *name, uint32_t parts, uint64_t part_bytes,
                                     tide_activation *activation)
{
    tide_status status = registering(pool, "tide_activation_register",
                                     pool == NULL         ? "pool"
                                     : name == NULL       ? "name"
                                     : activation == NULL ? "activation"
                                                          : NULL);
    if (status == TIDE_OK && parts > MAX_PARTS)
        status =
            tide_fail(TIDE_ERROR_ARGUMENT, "activation %s: %u parts, at most 2^20 are allowed", name, parts);
    if (status != TIDE_OK)
        return status;
    tide_model *model = &pool->model;
    status = grow(&model->activations, model->activation_count, sizeof *model->activations);
    if (status == TIDE_OK)
        status = tide_layout_add_activation(model->registered, name, parts, part_bytes, activation);
    if (status != TIDE_OK)
        return status;
    assert(*activation == model->activation_count);
    model->activations[model->activation_count++] =
        (tide_pool_activation){.name = tide_layout_activation(model->registered, *activation)->name,
                               .parts = parts,
                               .part_bytes = part_bytes};
    return TIDE_OK;
}

/* Make the pool's own copy of a description. */
static tide_status copy_op(const tide_op_description *given, tide_pool_op *op)
{
    const size_t params = given->param_count, activations = given->activation_count;
    char *name = strdup(given->name);
    tide_use *uses = calloc(params + activations + 1, sizeof *uses);
    uint64_t *offsets = calloc(params + 1, sizeof *offsets);
    if (name == NULL || uses == NULL || offsets == NULL) {
        free(name);
        free(uses);
        free(offsets);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "op %s: no memory to register it", given->name);
    }
    if (params > 0)
        memcpy(uses, given->params, params * sizeof *uses);
    if (activations > 0)
        memcpy(uses + params, given->activations, activations * sizeof *uses);
    *op = (tide_pool_op){.description = *given, .accumulator_offsets = offsets};
    op->description.name = name;
    op->description.params = uses;
    op->description.activations = uses + params;
    return TIDE_OK;
}

tide_status tide_op_register(tide_pool *pool, const tide_op_description *description, tide_op *op)
{
    tide_status status = registering(pool, "tide_op_register",
                                     pool == NULL          ? "pool"
                                     : description == NULL ? "description"
                                     : op == NULL          ? "op"
                                                           : NULL);
    if (status == TIDE_OK)
        status = tide_op_check(pool->model.registered, description);
    if (status == TIDE_OK && description->workspace_bytes > MAX_BYTES)
        status = tide_fail(TIDE_ERROR_ARGUMENT, "op %s: workspace of %llu bytes, at most 2^50 are allowed",
                           description->name, (unsigned long long)description->workspace_bytes);
    if (status == TIDE_OK)
        status = grow(&pool->model.ops, pool->model.op_count, sizeof *pool->model.ops);
    if (status == TIDE_OK)
        status = copy_op(description, &pool->model.ops[pool->model.op_count]);
    if (status == TIDE_OK)
        *op = pool->model.op_count++;
    return status;
}

bool tide_param_find(const tide_pool *pool, const char *name, tide_param *param)
{
    return pool != NULL && name != NULL && param != NULL &&
           tide_layout_find_param(pool->model.registered, name, param);
}

uint64_t tide_param_elements(const tide_pool *pool, tide_param param)
{
    return pool != NULL && param < pool->model.param_count ? pool->model.params[param].elements : 0;
}
