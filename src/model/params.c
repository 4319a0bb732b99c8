/* Names, shapes and initial values, from a family's table of roles.
 *
 * Initial values follow OpenAI's own code (openai/gpt-2, src/model.py): normal(0.02) for the token embedding
 * and every matrix, normal(0.01) for a position embedding, zeros for biases, ones for norms. For the residual
 * projections, about which the code says nothing, they follow the paper (Radford et al. 2019, section 2.3):
 * their weights are scaled by 1 / sqrt(N), where N = 2 x layers is the number of residual additions. Hugging
 * Face's ports read one deviation for all params from initializer_range; tidepool does not.
 */
#include "src/model/params.h"

#include "base/align.h"
#include "src/data/random.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

static bool is_per_layer(tide_role role)
{
    return role >= TIDE_ROLE_NORM_1_WEIGHT && role <= TIDE_ROLE_MLP_BIAS;
}

static bool is_there(const tide_model_config *config, const tide_role_entry *entry)
{
    return !entry->is_there || entry->is_there(config);
}

static uint32_t tensors_of(const tide_role_entry *entry)
{
    uint32_t tensors = 0;
    while (tensors < TIDE_ROLE_TENSORS_MAX && entry->tensors[tensors].name)
        tensors++;
    return tensors;
}

/* How many params and tensors come before the layers, belong to each layer, and come after the layers. */
typedef struct counts {
    size_t params[3], tensors[3];
} counts;

enum { BEFORE, LAYER, BEHIND };

static int part_of(tide_role role)
{
    return is_per_layer(role) ? LAYER : role < TIDE_ROLE_NORM_1_WEIGHT ? BEFORE : BEHIND;
}

static counts count_roles(const tide_model_config *config)
{
    counts found = {{0}, {0}};
    for (size_t i = 0; i < config->family->role_count; i++) {
        const tide_role_entry *entry = &config->family->roles[i];
        if (!is_there(config, entry))
            continue;
        found.params[part_of(entry->role)]++;
        found.tensors[part_of(entry->role)] += tensors_of(entry);
    }
    return found;
}

static size_t total(const tide_model_config *config, const size_t parts[3])
{
    return parts[BEFORE] + parts[LAYER] * config->layers + parts[BEHIND];
}

size_t tide_model_param_count(const tide_model_config *config)
{
    const counts found = count_roles(config);
    return total(config, found.params);
}

size_t tide_model_tensor_count(const tide_model_config *config)
{
    const counts found = count_roles(config);
    return total(config, found.tensors);
}

uint64_t tide_model_vocabulary_rows(const tide_model_config *config)
{
    const uint64_t multiple = TIDE_MODEL_VOCABULARY_MULTIPLE;
    return tide_round_up(config->vocab_size, multiple);
}

bool tide_model_has(const tide_model_config *config, tide_role role)
{
    for (size_t i = 0; i < config->family->role_count; i++)
        if (config->family->roles[i].role == role)
            return is_there(config, &config->family->roles[i]);
    return false;
}

/* An index among all params or all tensors of the model, whose counts are `parts`. It is that of the param
 * or tensor which follows `within` others of the same part and, in the part LAYER, of the same layer. */
static size_t place_of(const tide_model_config *config, const size_t parts[3], int part, uint32_t layer,
                       size_t within)
{
    if (part == BEFORE)
        return within;
    return parts[BEFORE] + parts[LAYER] * (part == LAYER ? layer : config->layers) + within;
}

size_t tide_model_param_index(const tide_model_config *config, tide_role role, uint32_t layer)
{
    assert(tide_model_has(config, role) && layer < (is_per_layer(role) ? config->layers : 1));
    const counts found = count_roles(config);
    size_t within = 0;
    for (const tide_role_entry *entry = config->family->roles; entry->role != role; entry++)
        within += part_of(entry->role) == part_of(role) && is_there(config, entry);
    return place_of(config, found.params, part_of(role), layer, within);
}

/* The entry and layer that an index stands for, and how many tensors and params of the whole model come
 * before that layer's tensors of the entry. */
typedef struct position {
    const tide_role_entry *entry;
    uint32_t layer;
    uint32_t tensor; /* if the index counts tensors: the number of the tensor within the entry */
    size_t tensors_before;
    size_t params_before;
} position;

static position find(const tide_model_config *config, size_t index, bool by_tensor)
{
    const counts found = count_roles(config);
    const size_t *parts = by_tensor ? found.tensors : found.params;
    const size_t layers_end = parts[BEFORE] + parts[LAYER] * config->layers;
    const int part = index < parts[BEFORE] ? BEFORE : index < layers_end ? LAYER : BEHIND;
    size_t within = part == BEFORE  ? index
                    : part == LAYER ? (index - parts[BEFORE]) % parts[LAYER]
                                    : index - layers_end;
    position at = {.layer = part == LAYER ? (uint32_t)((index - parts[BEFORE]) / parts[LAYER]) : 0};
    for (at.entry = config->family->roles;; at.entry++) {
        if (part_of(at.entry->role) != part || !is_there(config, at.entry))
            continue;
        const uint32_t tensors = tensors_of(at.entry), here = by_tensor ? tensors : 1;
        if (within < here)
            break;
        within -= here;
        at.tensors_before += tensors;
        at.params_before++;
    }
    at.tensor = (uint32_t)within;
    at.tensors_before = place_of(config, found.tensors, part, at.layer, at.tensors_before);
    at.params_before = place_of(config, found.params, part, at.layer, at.params_before);
    return at;
}

static void write_name(const tide_model_config *config, const position *at, uint32_t tensor,
                       char name[TIDE_MODEL_NAME_BYTES])
{
    size_t length = 0;
    if (is_per_layer(at->entry->role))
        length =
            (size_t)snprintf(name, TIDE_MODEL_NAME_BYTES, "%s%u.", config->family->layer_name, at->layer);
    snprintf(name + length, TIDE_MODEL_NAME_BYTES - length, "%s", at->entry->tensors[tensor].name);
}

static bool decays(const tide_role_entry *entry)
{
    return entry->init != TIDE_INIT_RULE_BIAS && entry->init != TIDE_INIT_RULE_SCALE;
}

static double deviation(const tide_model_config *config, tide_init_rule rule)
{
    switch (rule) {
    case TIDE_INIT_RULE_MATRIX:
        return 0.02;
    case TIDE_INIT_RULE_POSITION:
        return 0.01;
    case TIDE_INIT_RULE_RESIDUAL:
        return 0.02 / sqrt(2.0 * config->layers);
    case TIDE_INIT_RULE_BIAS:
    case TIDE_INIT_RULE_SCALE:
        break;
    }
    return 0;
}

void tide_model_param_describe(const tide_model_config *config, size_t index, tide_model_param *param)
{
    assert(index < tide_model_param_count(config));
    const position at = find(config, index, false);
    const uint64_t columns = tide_model_dimension(config, at.entry->columns);
    tide_model_param described = {.role = at.entry->role,
                                  .layer = at.layer,
                                  .rank = at.entry->columns == TIDE_DIMENSION_NONE ? 1 : 2,
                                  .decays = decays(at.entry),
                                  .first_tensor = at.tensors_before,
                                  .tensors = tensors_of(at.entry)};
    write_name(config, &at, 0, described.name);
    for (uint32_t i = 0; i < described.tensors; i++)
        described.shape[0] += tide_model_dimension(config, at.entry->tensors[i].rows);
    described.elements = described.shape[0] * columns;
    described.memory_rows = at.entry->tensors[0].rows == TIDE_DIMENSION_VOCABULARY
                                ? tide_model_vocabulary_rows(config)
                                : described.shape[0];
    described.memory_elements = described.memory_rows * columns;
    if (described.rank == 2)
        described.shape[1] = columns;
    *param = described;
}

void tide_model_tensor_describe(const tide_model_config *config, size_t index, tide_model_tensor *tensor)
{
    assert(index < tide_model_tensor_count(config));
    const position at = find(config, index, true);
    const uint64_t columns = tide_model_dimension(config, at.entry->columns);
    tide_model_tensor described = {.param = at.params_before,
                                   .role = at.entry->role,
                                   .layer = at.layer,
                                   .rank = at.entry->columns == TIDE_DIMENSION_NONE ? 1 : 2,
                                   .init_deviation = deviation(config, at.entry->init),
                                   .init_value = at.entry->init == TIDE_INIT_RULE_SCALE ? 1.0f : 0.0f};
    write_name(config, &at, at.tensor, described.name);
    for (uint32_t i = 0; i < at.tensor; i++)
        described.first += tide_model_dimension(config, at.entry->tensors[i].rows) * columns;
    described.shape[0] = tide_model_dimension(config, at.entry->tensors[at.tensor].rows);
    described.elements = described.shape[0] * columns;
    if (described.rank == 2)
        described.shape[1] = columns;
    *tensor = described;
}

uint64_t tide_model_element_count(const tide_model_config *config)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < tide_model_param_count(config); i++) {
        tide_model_param param;
        tide_model_param_describe(config, i, &param);
        elements += param.elements;
    }
    return elements;
}

void tide_model_init_range(const tide_model_config *config, uint64_t seed, size_t tensor, uint64_t first,
                           uint64_t count, float *values)
{
    tide_model_tensor about;
    tide_model_tensor_describe(config, tensor, &about);
    assert(first <= about.elements && count <= about.elements - first);
    if (about.init_deviation != 0) {
        tide_random_normals(seed, TIDE_RANDOM_USE_INIT, (uint32_t)tensor, first, count, about.init_deviation,
                            values);
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        values[i] = about.init_value;
}
