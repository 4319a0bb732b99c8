/* Names, shapes and initial values, from one table of the params' roles.
 *
 * Initial values follow OpenAI's own code (openai/gpt-2, src/model.py) where it speaks: normal(0.02) for wte
 * and every matrix, normal(0.01) for wpe, zeros for biases, ones for norms; and the paper where the code is
 * silent (Radford et al. 2019, section 2.3): the weights of the residual projections are scaled by 1 /
 * sqrt(N), N = 2 x layers being the number of residual additions. Hugging Face's port uses 0.02 for wpe as
 * well and reads it from initializer_range; tidepool does not.
 */
#include "src/model/params.h"

#include "src/data/random.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

/* A dimension of a shape: a multiple of one of the model's sizes; NONE for the second of a vector. */
typedef enum role_dimension { NONE, VOCAB, CONTEXT, WIDTH, WIDTH_X3, WIDTH_X4 } role_dimension;

typedef enum role_init { EMBEDDING, POSITION, MATRIX, RESIDUAL, BIAS, SCALE } role_init;

typedef struct role_entry {
    const char *name; /* within the layer for the per-layer roles */
    role_dimension rows, columns;
    role_init init;
} role_entry;

static const role_entry roles[TIDE_GPT2_ROLES] = {
    [TIDE_GPT2_WTE] = {"wte.weight", VOCAB, WIDTH, EMBEDDING},
    [TIDE_GPT2_WPE] = {"wpe.weight", CONTEXT, WIDTH, POSITION},
    [TIDE_GPT2_LN_1_WEIGHT] = {"ln_1.weight", WIDTH, NONE, SCALE},
    [TIDE_GPT2_LN_1_BIAS] = {"ln_1.bias", WIDTH, NONE, BIAS},
    [TIDE_GPT2_ATTN_QKV_WEIGHT] = {"attn.c_attn.weight", WIDTH, WIDTH_X3, MATRIX},
    [TIDE_GPT2_ATTN_QKV_BIAS] = {"attn.c_attn.bias", WIDTH_X3, NONE, BIAS},
    [TIDE_GPT2_ATTN_PROJ_WEIGHT] = {"attn.c_proj.weight", WIDTH, WIDTH, RESIDUAL},
    [TIDE_GPT2_ATTN_PROJ_BIAS] = {"attn.c_proj.bias", WIDTH, NONE, BIAS},
    [TIDE_GPT2_LN_2_WEIGHT] = {"ln_2.weight", WIDTH, NONE, SCALE},
    [TIDE_GPT2_LN_2_BIAS] = {"ln_2.bias", WIDTH, NONE, BIAS},
    [TIDE_GPT2_MLP_FC_WEIGHT] = {"mlp.c_fc.weight", WIDTH, WIDTH_X4, MATRIX},
    [TIDE_GPT2_MLP_FC_BIAS] = {"mlp.c_fc.bias", WIDTH_X4, NONE, BIAS},
    [TIDE_GPT2_MLP_PROJ_WEIGHT] = {"mlp.c_proj.weight", WIDTH_X4, WIDTH, RESIDUAL},
    [TIDE_GPT2_MLP_PROJ_BIAS] = {"mlp.c_proj.bias", WIDTH, NONE, BIAS},
    [TIDE_GPT2_LN_F_WEIGHT] = {"ln_f.weight", WIDTH, NONE, SCALE},
    [TIDE_GPT2_LN_F_BIAS] = {"ln_f.bias", WIDTH, NONE, BIAS},
};

static bool role_is_per_layer(tide_gpt2_role role)
{
    return role >= TIDE_GPT2_LN_1_WEIGHT && role <= TIDE_GPT2_MLP_PROJ_BIAS;
}

static uint64_t dimension_elements(const tide_gpt2_config *config, role_dimension dimension)
{
    switch (dimension) {
    case VOCAB:
        return config->vocab_size;
    case CONTEXT:
        return config->context;
    case WIDTH:
        return config->width;
    case WIDTH_X3:
        return 3ull * config->width;
    case WIDTH_X4:
        return 4ull * config->width;
    case NONE:
        break;
    }
    return 1;
}

uint64_t tide_gpt2_vocabulary_rows(const tide_gpt2_config *config)
{
    const uint64_t multiple = TIDE_GPT2_VOCABULARY_MULTIPLE;
    return (config->vocab_size + multiple - 1) / multiple * multiple;
}

size_t tide_gpt2_param_count(const tide_gpt2_config *config)
{
    return TIDE_GPT2_ROLES - TIDE_GPT2_LAYER_ROLES + (size_t)TIDE_GPT2_LAYER_ROLES * config->layers;
}

size_t tide_gpt2_param_index(const tide_gpt2_config *config, tide_gpt2_role role, uint32_t layer)
{
    assert(role < TIDE_GPT2_ROLES && layer < (role_is_per_layer(role) ? config->layers : 1));
    if (role_is_per_layer(role))
        return (size_t)role + (size_t)TIDE_GPT2_LAYER_ROLES * layer;
    if (role < TIDE_GPT2_LN_1_WEIGHT)
        return (size_t)role;
    return (size_t)role + (size_t)TIDE_GPT2_LAYER_ROLES * (config->layers - 1);
}

static tide_gpt2_role index_role(const tide_gpt2_config *config, size_t index, uint32_t *layer)
{
    size_t layers_end = TIDE_GPT2_LN_1_WEIGHT + (size_t)TIDE_GPT2_LAYER_ROLES * config->layers;
    *layer = 0;
    if (index < TIDE_GPT2_LN_1_WEIGHT)
        return (tide_gpt2_role)index;
    if (index >= layers_end)
        return (tide_gpt2_role)(TIDE_GPT2_LN_F_WEIGHT + (index - layers_end));
    size_t within = index - TIDE_GPT2_LN_1_WEIGHT;
    *layer = (uint32_t)(within / TIDE_GPT2_LAYER_ROLES);
    return (tide_gpt2_role)(TIDE_GPT2_LN_1_WEIGHT + within % TIDE_GPT2_LAYER_ROLES);
}

static void init_describe(const tide_gpt2_config *config, role_init init, tide_gpt2_param *param)
{
    param->init = init == BIAS ? TIDE_INIT_ZEROS : init == SCALE ? TIDE_INIT_ONES : TIDE_INIT_NORMAL;
    param->decays = param->init == TIDE_INIT_NORMAL;
    if (init == POSITION)
        param->init_deviation = 0.01;
    else if (init == RESIDUAL)
        param->init_deviation = 0.02 / sqrt(2.0 * config->layers);
    else if (param->init == TIDE_INIT_NORMAL)
        param->init_deviation = 0.02;
}

void tide_gpt2_param_describe(const tide_gpt2_config *config, size_t index, tide_gpt2_param *param)
{
    assert(tide_gpt2_config_is_valid(config) && index < tide_gpt2_param_count(config));
    tide_gpt2_param described = {0};
    described.role = index_role(config, index, &described.layer);
    const role_entry *entry = &roles[described.role];
    if (role_is_per_layer(described.role))
        snprintf(described.name, sizeof described.name, "h.%u.%s", described.layer, entry->name);
    else
        snprintf(described.name, sizeof described.name, "%s", entry->name);
    described.rank = entry->columns == NONE ? 1 : 2;
    described.shape[0] = dimension_elements(config, entry->rows);
    described.shape[1] = dimension_elements(config, entry->columns);
    described.elements = described.shape[0] * described.shape[1];
    described.memory_rows = entry->rows == VOCAB ? tide_gpt2_vocabulary_rows(config) : described.shape[0];
    described.memory_elements = described.memory_rows * described.shape[1];
    if (described.rank == 1)
        described.shape[1] = 0;
    init_describe(config, entry->init, &described);
    assert(tide_gpt2_param_index(config, described.role, described.layer) == index);
    *param = described;
}

uint64_t tide_gpt2_element_count(const tide_gpt2_config *config)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < tide_gpt2_param_count(config); i++) {
        tide_gpt2_param param;
        tide_gpt2_param_describe(config, i, &param);
        elements += param.elements;
    }
    return elements;
}

void tide_gpt2_init_range(const tide_gpt2_config *config, uint64_t seed, size_t param, uint64_t first,
                          uint64_t count, float *values)
{
    tide_gpt2_param about;
    tide_gpt2_param_describe(config, param, &about);
    assert(first <= about.elements && count <= about.elements - first);
    if (about.init == TIDE_INIT_NORMAL) {
        tide_random_normals(seed, TIDE_RANDOM_USE_INIT, (uint32_t)param, first, count, about.init_deviation,
                            values);
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        values[i] = about.init == TIDE_INIT_ONES ? 1.0f : 0.0f;
}
