/* Reads and writes the rotary positions of a config.json: either the fields rope_theta and rope_scaling
 * or, with the same content, rope_parameters. */
#include "src/model/config_rope.h"

#include "base/text.h"
#include "src/model/rope.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kind_names[TIDE_ROPE_KINDS] = {"default", "linear", "llama3", "yarn"};

const char *tide_rope_kind_name(tide_rope_kind kind)
{
    return kind_names[kind];
}

/* A numeric field of rope_scaling or rope_parameters. */
typedef struct rope_number {
    const char *key;
    size_t offset;  /* in tide_rope */
    unsigned kinds; /* the kinds that have it, one bit each */
    bool needed;
    double least; /* 1: values from 1 on are valid; 0: values above 0 */
    double otherwise;
} rope_number;

#define KIND(kind) (1u << (kind))

static const rope_number numbers[] = {
    {"factor", offsetof(tide_rope, factor),
     KIND(TIDE_ROPE_LINEAR) | KIND(TIDE_ROPE_LLAMA3) | KIND(TIDE_ROPE_YARN), true, 1, 0},
    {"low_freq_factor", offsetof(tide_rope, low_factor), KIND(TIDE_ROPE_LLAMA3), true, 0, 0},
    {"high_freq_factor", offsetof(tide_rope, high_factor), KIND(TIDE_ROPE_LLAMA3), true, 0, 0},
    {"original_max_position_embeddings", offsetof(tide_rope, original_context), KIND(TIDE_ROPE_LLAMA3), true,
     1, 0},
    {"original_max_position_embeddings", offsetof(tide_rope, original_context), KIND(TIDE_ROPE_YARN), false,
     1, 0},
    {"attention_factor", offsetof(tide_rope, attention_factor), KIND(TIDE_ROPE_YARN), false, 0, 0},
    {"beta_fast", offsetof(tide_rope, beta_fast), KIND(TIDE_ROPE_YARN), false, 0, 32},
    {"beta_slow", offsetof(tide_rope, beta_slow), KIND(TIDE_ROPE_YARN), false, 0, 1},
};

enum { NUMBERS = sizeof numbers / sizeof numbers[0] };

/* The field's value; NULL if it is absent or null, since a field that may be absent may also be null. */
static const json_t *item_of(const json_t *object, const char *key)
{
    const json_t *item = json_object_get(object, key);
    return json_is_null(item) ? NULL : item;
}

/* Reads a number; leaves *value as it is if the number is absent. */
static tide_status read_number(const json_t *object, const char *within, const char *key, double least,
                               const char *label, double *value)
{
    const json_t *item = item_of(object, key);
    if (!item)
        return TIDE_OK;
    const double found = json_number_value(item);
    if (!json_is_number(item) || !(least > 0 ? found >= least : found > 0) || !isfinite(found))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s%s\" must be a number %s", label, within,
                         key, least > 0 ? "of 1 or more" : "above 0");
    *value = found;
    return TIDE_OK;
}

static tide_status read_kind_named(const json_t *scaling, const char *within, const char *key,
                                   const char *label, tide_rope_kind *kind)
{
    const json_t *type = item_of(scaling, key);
    if (!type)
        return TIDE_OK;
    for (int candidate = 0; json_is_string(type) && candidate < TIDE_ROPE_KINDS; candidate++)
        if (strcmp(json_string_value(type), kind_names[candidate]) == 0) {
            *kind = (tide_rope_kind)candidate;
            return TIDE_OK;
        }
    return tide_fail(json_is_string(type) ? TIDE_ERROR_UNSUPPORTED : TIDE_ERROR_CORRUPT,
                     "model %s: field \"%s%s\" is %s, only default, linear, llama3 and yarn are built", label,
                     within, key,
                     tide_printable(json_is_string(type) ? json_string_value(type) : "no string").text);
}

/* Reads the kind under rope_type or its older name, type; if both are there, they must be equal. */
static tide_status read_kind(const json_t *scaling, const char *within, const char *label, tide_rope *rope)
{
    tide_rope_kind kind = TIDE_ROPE_DEFAULT, legacy = TIDE_ROPE_DEFAULT;
    const bool is_there = item_of(scaling, "rope_type") != NULL;
    tide_status status = read_kind_named(scaling, within, "rope_type", label, &kind);
    if (status == TIDE_OK)
        status = read_kind_named(scaling, within, "type", label, &legacy);
    if (status == TIDE_OK && is_there && item_of(scaling, "type") && legacy != kind)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: \"%srope_type\" is %s and \"%stype\" is %s, they must be equal", label,
                         within, kind_names[kind], within, kind_names[legacy]);
    if (status == TIDE_OK)
        rope->kind = is_there ? kind : legacy;
    return status;
}

/* Refuses rotary positions that differ by kind of layer: some families have them, tidepool does not. */
static tide_status check_flat(const json_t *scaling, const char *within, const char *label)
{
    const char *key;
    json_t *item;
    json_object_foreach((json_t *)scaling, key, item)
    {
        if (json_is_object(item))
            return tide_fail(
                TIDE_ERROR_UNSUPPORTED,
                "model %s: field \"%s%s\" is an object; positions by kinds of layers are not built", label,
                within, tide_printable(key).text);
    }
    return TIDE_OK;
}

/* Refuses numbers without a type: the kind would be "default", which has no such numbers. */
static tide_status check_untyped(const json_t *scaling, const char *within, const char *label)
{
    const char *key;
    json_t *item;
    if (item_of(scaling, "rope_type") || item_of(scaling, "type"))
        return TIDE_OK;
    json_object_foreach((json_t *)scaling, key, item)
    {
        if (!json_is_null(item) && strcmp(key, "rope_theta") != 0 &&
            strcmp(key, "partial_rotary_factor") != 0)
            return tide_fail(TIDE_ERROR_CORRUPT,
                             "model %s: field \"%s%s\" is there without \"%srope_type\", which must say what "
                             "it is for",
                             label, within, tide_printable(key).text, within);
    }
    return TIDE_OK;
}

/* YaRN's factor may be null, though not absent, if the original context is given. It is then the ratio of the
 * context to the original context, as in transformers. */
static void factor_of_contexts(const json_t *scaling, const tide_model_config *config, tide_rope *rope)
{
    const double factor = rope->original_context > 0 ? config->context / rope->original_context : 0;
    if (rope->kind == TIDE_ROPE_YARN && json_is_null(json_object_get(scaling, "factor")) && factor >= 1)
        rope->factor = factor;
}

static tide_status check_needed(const tide_rope *rope, const char *within, const char *label)
{
    for (size_t i = 0; i < NUMBERS; i++) {
        const rope_number *number = &numbers[i];
        if (number->needed && number->kinds & KIND(rope->kind) &&
            *(const double *)((const char *)rope + number->offset) == 0)
            return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s%s\" is missing, %s positions need it",
                             label, within, number->key, kind_names[rope->kind]);
    }
    return TIDE_OK;
}

static tide_status read_scaling(const json_t *scaling, const char *within, const char *label,
                                tide_model_config *config)
{
    tide_rope *rope = &config->rope;
    if (!json_is_object(scaling))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%.*s\" must be an object", label,
                         (int)strlen(within) - 1, within);
    tide_status status = check_flat(scaling, within, label);
    if (status == TIDE_OK)
        status = check_untyped(scaling, within, label);
    if (status == TIDE_OK)
        status = read_kind(scaling, within, label, rope);
    for (size_t i = 0; status == TIDE_OK && i < NUMBERS; i++) {
        const rope_number *number = &numbers[i];
        double *value = (double *)((char *)rope + number->offset);
        if (!(number->kinds & KIND(rope->kind)))
            continue;
        *value = number->otherwise;
        status = read_number(scaling, within, number->key, number->least, label, value);
    }
    if (status == TIDE_OK) {
        factor_of_contexts(scaling, config, rope);
        status = check_needed(rope, within, label);
    }
    if (status == TIDE_OK && rope->kind == TIDE_ROPE_LLAMA3 && !(rope->high_factor > rope->low_factor))
        status = tide_fail(TIDE_ERROR_CORRUPT,
                           "model %s: \"%shigh_freq_factor\" is %g, it must be above low_freq_factor, %g",
                           label, within, rope->high_factor, rope->low_factor);
    return status;
}

/* Reads an mscale. 0 counts as absent, as in transformers. */
static tide_status read_mscale(const json_t *scaling, const char *within, const char *key, const char *label,
                               double *value)
{
    const json_t *item = item_of(scaling, key);
    if (json_is_number(item) && json_number_value(item) == 0)
        return TIDE_OK;
    return read_number(scaling, within, key, 0, label, value);
}

static tide_status read_yarn(const json_t *scaling, const char *within, const char *label,
                             tide_model_config *config)
{
    tide_rope *rope = &config->rope;
    double mscale = 0, mscale_all_dim = 0;
    const json_t *truncate = item_of(scaling, "truncate");
    if (truncate && !json_is_boolean(truncate))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%struncate\" must be true or false", label,
                         within);
    rope->exact = truncate && json_is_false(truncate);
    if (rope->original_context == 0)
        rope->original_context = config->context;
    tide_status status = read_mscale(scaling, within, "mscale", label, &mscale);
    if (status == TIDE_OK)
        status = read_mscale(scaling, within, "mscale_all_dim", label, &mscale_all_dim);
    if (status == TIDE_OK && rope->attention_factor == 0)
        rope->attention_factor = tide_rope_yarn_attention(rope->factor, mscale, mscale_all_dim);
    return status;
}

static tide_status check_partial(const json_t *object, const char *within, const char *label)
{
    double share = 1;
    const tide_status status = read_number(object, within, "partial_rotary_factor", 0, label, &share);
    if (status == TIDE_OK && share != 1)
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "model %s: field \"%spartial_rotary_factor\" is %g, only 1 is built", label, within,
                         share);
    return status;
}

/* Refuses a theta in rope_scaling that differs from rope_theta: transformers 4 ignores it and transformers 5
 * uses it. */
static tide_status check_theta(const json_t *scaling, const char *within, const char *label, double theta)
{
    double other = theta;
    const tide_status status = read_number(scaling, within, "rope_theta", 1, label, &other);
    if (status == TIDE_OK && other != theta)
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "model %s: field \"%srope_theta\" is %g, it must be rope_theta's %g or absent",
                         label, within, other, theta);
    return status;
}

tide_status tide_config_rope_read(const json_t *root, const char *label, tide_model_config *config)
{
    const char *within = "rope_scaling.";
    const json_t *scaling = item_of(root, "rope_scaling"), *one = item_of(root, "rope_parameters");
    if (one && scaling)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: fields \"rope_parameters\" and \"rope_scaling\" are both there", label);
    tide_status status = read_number(root, "", "rope_theta", 1, label, &config->rope.theta);
    if (status == TIDE_OK)
        status = check_partial(root, "", label);
    if (one) {
        scaling = one;
        within = "rope_parameters.";
    }
    if (status != TIDE_OK || !scaling)
        return status;
    status = read_scaling(scaling, within, label, config);
    if (status == TIDE_OK)
        status = one ? read_number(scaling, within, "rope_theta", 1, label, &config->rope.theta)
                     : check_theta(scaling, within, label, config->rope.theta);
    if (status == TIDE_OK)
        status = check_partial(scaling, within, label);
    if (status == TIDE_OK && config->rope.kind == TIDE_ROPE_YARN)
        status = read_yarn(scaling, within, label, config);
    return status;
}

/* Writes whole numbers without a decimal point, as people do. */
static json_t *number_to_json(double value)
{
    return value == floor(value) && value < 1e15 ? json_integer((json_int_t)value) : json_real(value);
}

bool tide_config_rope_write(const tide_model_config *config, json_t *root)
{
    const tide_rope *rope = &config->rope;
    if (json_object_set_new(root, "rope_theta", json_real(rope->theta)) != 0)
        return false;
    if (rope->kind == TIDE_ROPE_DEFAULT)
        return json_object_set_new(root, "rope_scaling", json_null()) == 0;
    json_t *scaling = json_pack("{ss}", "rope_type", kind_names[rope->kind]);
    bool whole = scaling != NULL;
    for (size_t i = 0; whole && i < NUMBERS; i++)
        if (numbers[i].kinds & KIND(rope->kind))
            whole = json_object_set_new(
                        scaling, numbers[i].key,
                        number_to_json(*(const double *)((const char *)rope + numbers[i].offset))) == 0;
    if (whole && rope->kind == TIDE_ROPE_YARN && rope->exact)
        whole = json_object_set_new(scaling, "truncate", json_false()) == 0;
    if (!whole) {
        json_decref(scaling);
        return false;
    }
    return json_object_set_new(root, "rope_scaling", scaling) == 0;
}
