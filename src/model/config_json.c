/* Reads and writes config.json by the families' tables of fields.
 *
 * The reader refuses a config.json that asks for a network other than the one that tidepool computes. It
 * skips fields that only concern generation or tokens. It reads dropout rates only so that the caller can
 * report them: tidepool drops nothing out.
 */
#include "src/model/config_json.h"

#include "base/text.h"
#include "src/model/config_rope.h"
#include "src/model/config_window.h"
#include "src/model/family.h"

#include <assert.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The field's value; NULL if it is absent or null, since a field that may be absent may also be null. */
static const json_t *field_item(const json_t *root, const char *key)
{
    const json_t *item = key ? json_object_get(root, key) : NULL;
    return item && json_is_null(item) ? NULL : item;
}

static tide_status read_size(const json_t *item, const char *key, const char *label, uint32_t most,
                             uint32_t *value)
{
    if (!json_is_integer(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" must be a whole number in 1 .. %u",
                         label, key, most);
    const json_int_t found = json_integer_value(item);
    if (found < 1 || found > (json_int_t)most)
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" is %lld, it must be in 1 .. %u", label,
                         key, (long long)found, most);
    *value = (uint32_t)found;
    return TIDE_OK;
}

/* Reads a size under its key or its legacy key; if both are there, their values must be equal. */
static tide_status read_size_field(const json_t *root, const char *label, const tide_config_field *field,
                                   uint32_t *value)
{
    const json_t *item = field_item(root, field->key), *legacy_item = field_item(root, field->legacy_key);
    if (!item && !legacy_item && field->needed)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: field \"%s\" is missing, it must be a whole number in 1 .. %u", label,
                         field->key, field->most);
    uint32_t legacy = 0;
    if (!item && !legacy_item && json_object_get(root, field->key) != NULL)
        *value = 0; /* null: other fields decide the size */
    tide_status status = item ? read_size(item, field->key, label, field->most, value) : TIDE_OK;
    if (status == TIDE_OK && legacy_item)
        status = read_size(legacy_item, field->legacy_key, label, field->most, &legacy);
    if (status == TIDE_OK && item && legacy_item && *value != legacy)
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: \"%s\" is %u and \"%s\" is %u, they must be equal",
                         label, field->key, *value, field->legacy_key, legacy);
    if (status == TIDE_OK && !item && legacy_item)
        *value = legacy;
    return status;
}

static tide_status read_real(const json_t *item, const char *label, const tide_config_field *field,
                             double *value)
{
    const double found = json_number_value(item); /* 0 if it is no number */
    if (!(found > 0 && found < 1))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" must be a number between 0 and 1", label,
                         field->key);
    *value = found;
    return TIDE_OK;
}

static tide_status read_switch(const json_t *item, const char *label, const tide_config_field *field,
                               bool *value)
{
    const bool any = field->kind == TIDE_FIELD_FLAG, right = field->kind != TIDE_FIELD_FALSE;
    if (!json_is_boolean(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" must be %s", label, field->key,
                         any     ? "true or false"
                         : right ? "true"
                                 : "false");
    if (!any && json_is_true(item) != right)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "model %s: field \"%s\" is %s, only %s is built", label,
                         field->key, right ? "false" : "true", right ? "true" : "false");
    if (any)
        *value = json_is_true(item);
    return TIDE_OK;
}

/* A dropout rate; transformers' dropout layers accept the same range. */
static tide_status read_rate(const json_t *item, const char *label, const tide_config_field *field,
                             double *value)
{
    const double found = json_number_value(item);
    if (!json_is_number(item) || !(found >= 0 && found <= 1))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" must be a number from 0 to 1", label,
                         field->key);
    *value = found;
    return TIDE_OK;
}

/* A token, as torch's Embedding reads its padding_idx: a negative one counts from the vocabulary's end
 * (old files have -1). A token outside the vocabulary counts as none (transformers can't build such a
 * model). */
static tide_status read_token(const json_t *item, const char *label, const tide_config_field *field,
                              uint32_t vocabulary, uint32_t *row)
{
    const json_int_t found = json_integer_value(item), count = vocabulary;
    if (!json_is_integer(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" must be null or a whole number", label,
                         field->key);
    if (found >= -count && found < count)
        *row = (uint32_t)((found < 0 ? found + count : found) + 1);
    return TIDE_OK;
}

/* Do the words name the same activation function? transformers calls SiLU "swish", too. */
static bool is_same_word(const char *found, const char *word)
{
    return strcmp(found, word) == 0 || (strcmp(found, "swish") == 0 && strcmp(word, "silu") == 0);
}

static tide_status read_word(const json_t *item, const char *label, const char *key, const char *word)
{
    if (!json_is_string(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" must be the string \"%s\"", label, key,
                         word);
    if (!is_same_word(json_string_value(item), word))
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "model %s: field \"%s\" is \"%s\", only \"%s\" is built",
                         label, key, tide_printable(json_string_value(item)).text, word);
    return TIDE_OK;
}

/* Fails because of an unsupported value, which the message shows. */
static tide_status refuse_value(const json_t *item, const char *label, const char *key, const char *built)
{
    char *text = json_dumps(item, JSON_ENCODE_ANY | JSON_COMPACT);
    const tide_status status =
        tide_fail(TIDE_ERROR_UNSUPPORTED, "model %s: field \"%s\" is %s, only %s is built", label, key,
                  tide_printable(text ? text : "there").text, built);
    free(text);
    return status;
}

static tide_status read_field(const json_t *root, const char *label, const tide_config_field *field,
                              tide_model_config *config)
{
    void *at = (char *)config + field->offset;
    const json_t *item = field_item(root, field->key);
    if (field->kind == TIDE_FIELD_SIZE)
        return read_size_field(root, label, field, at);
    if (!item || field->kind == TIDE_FIELD_WINDOW)
        return TIDE_OK;
    switch (field->kind) {
    case TIDE_FIELD_REAL:
        return read_real(item, label, field, at);
    case TIDE_FIELD_RATE:
        return read_rate(item, label, field, at);
    case TIDE_FIELD_TOKEN: /* vocab_size has been read before */
        return read_token(item, label, field, config->vocab_size, at);
    case TIDE_FIELD_WORD:
        return read_word(item, label, field->key, field->word);
    case TIDE_FIELD_NOTHING:
        return refuse_value(item, label, field->key, "null");
    case TIDE_FIELD_NO_COUNT:
        return json_is_integer(item) && json_integer_value(item) == 0
                   ? TIDE_OK
                   : refuse_value(item, label, field->key, "null or 0");
    default:
        return read_switch(item, label, field, at);
    }
}

static tide_status refuse_type(const json_t *type, const char *label)
{
    char names[128] = "";
    size_t length = 0;
    for (size_t i = 0; tide_model_family_at(i); i++)
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i == 0 ? "" : ", ",
                                   tide_model_family_at(i)->name);
    if (!json_is_string(type))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"model_type\" must be a string, one of %s",
                         label, names);
    return tide_fail(TIDE_ERROR_UNSUPPORTED, "model %s: field \"model_type\" is \"%s\", only %s are built",
                     label, tide_printable(json_string_value(type)).text, names);
}

/* Sets config->context_assumed: the field for the context is absent, so transformers' default applies.
 * Refuses a null, as transformers does. */
static tide_status check_context(const json_t *root, const char *label, tide_model_config *config)
{
    const tide_config_field *field =
        tide_model_config_field(config->family, offsetof(tide_model_config, context));
    config->context_assumed = !json_object_get(root, field->key) &&
                              (!field->legacy_key || !json_object_get(root, field->legacy_key));
    if (config->context != 0)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" must be a whole number in 1 .. %u", label,
                     field->key, field->most);
}

/* Refuses a GPT-2 config whose MLP is not four widths wide, the only width that tidepool supports. */
static tide_status check_mlp(const tide_model_config *config, const char *label)
{
    const uint64_t right = (uint64_t)config->family->mlp_widths * config->width;
    if (right == 0 || config->mlp_width == right)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_UNSUPPORTED,
                     "model %s: field \"n_inner\" is %u, only null or %u x n_embd = %llu is built", label,
                     config->mlp_width, config->family->mlp_widths, (unsigned long long)right);
}

static tide_status read_config(const json_t *root, const char *label, tide_model_config *config)
{
    if (!json_is_object(root))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: must be a JSON object, the config.json of a model",
                         label);
    const json_t *type = json_object_get(root, "model_type");
    const tide_family *family = json_is_string(type) ? tide_model_family_find(json_string_value(type)) : NULL;
    if (!family)
        return refuse_type(type, label);
    *config = family->defaults;
    config->family = family;
    snprintf(config->name, sizeof config->name, "config.json");
    tide_status status = TIDE_OK;
    for (size_t i = 0; i < family->field_count && status == TIDE_OK; i++)
        status = read_field(root, label, &family->fields[i], config);
    if (status == TIDE_OK)
        status = check_context(root, label, config);
    if (status == TIDE_OK)
        status = tide_config_window_read(root, label, config);
    if (status == TIDE_OK && family->rotary)
        status = tide_config_rope_read(root, label, config);
    if (status != TIDE_OK)
        return status;
    tide_model_config_complete(config);
    status = check_mlp(config, label);
    if (status == TIDE_OK && tide_model_config_check(config, label) != TIDE_OK) {
        char message[512];
        snprintf(message, sizeof message, "%s", tide_message());
        status = tide_fail(TIDE_ERROR_CORRUPT, "%s", message);
    }
    return status;
}

tide_status tide_model_config_parse(const char *text, size_t bytes, const char *label,
                                    tide_model_config *config)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && error.text[0] == '\0')
        return tide_fail(TIDE_ERROR_NO_MEMORY, "model %s: no memory to read %zu bytes of JSON", label, bytes);
    if (root == NULL)
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: not JSON at line %d, column %d: %s", label,
                         error.line, error.column, tide_printable(error.text).text);
    tide_model_config parsed;
    const tide_status status = read_config(root, label, &parsed);
    json_decref(root);
    if (status != TIDE_OK)
        return status;
    assert(tide_model_config_is_valid(&parsed));
    *config = parsed;
    return TIDE_OK;
}

/* ---- writing ---- */

static bool is_written(const tide_config_field *field, const tide_family *family)
{
    if (field->kind == TIDE_FIELD_RATE)
        return *(const double *)((const char *)&family->defaults + field->offset) != 0;
    return field->kind != TIDE_FIELD_NOTHING && field->kind != TIDE_FIELD_NO_COUNT &&
           field->kind != TIDE_FIELD_NOT_FALSE && field->kind != TIDE_FIELD_TOKEN;
}

/* The field's value as JSON; NULL: no memory. */
static json_t *field_to_json(const tide_config_field *field, const tide_model_config *config)
{
    const void *at = (const char *)config + field->offset;
    switch (field->kind) {
    case TIDE_FIELD_SIZE:
        return json_integer(*(const uint32_t *)at);
    case TIDE_FIELD_REAL:
        return json_real(*(const double *)at);
    case TIDE_FIELD_RATE:
        return json_real(0);
    case TIDE_FIELD_FLAG:
        return json_boolean(*(const bool *)at);
    case TIDE_FIELD_TRUE:
        return json_true();
    case TIDE_FIELD_FALSE:
        return json_false();
    case TIDE_FIELD_WORD:
        return json_string(field->word);
    case TIDE_FIELD_WINDOW:
        return config->family->window == TIDE_WINDOW_UPPER ? json_false() : json_null();
    default:
        return json_null();
    }
}

/* Sets a key of the object. False: no memory. */
static bool set(json_t *root, const char *key, json_t *value)
{
    return json_object_set_new(root, key, value) == 0;
}

json_t *tide_model_config_to_json(const tide_model_config *config, const char *dtype)
{
    const tide_family *family = config->family;
    json_t *root = json_object();
    bool whole = root && set(root, "architectures", json_pack("[s]", family->architecture)) &&
                 set(root, "model_type", json_string(family->name));
    for (size_t i = 0; whole && i < family->field_count; i++)
        if (is_written(&family->fields[i], family))
            whole = set(root, family->fields[i].key, field_to_json(&family->fields[i], config)) &&
                    (!family->fields[i].legacy_key || /* for older readers, such as llama.cpp's converter */
                     set(root, family->fields[i].legacy_key, field_to_json(&family->fields[i], config)));
    if (whole && family->rotary)
        whole = tide_config_rope_write(config, root);
    whole = whole && set(root, "torch_dtype", json_string(dtype));
    if (whole)
        return root;
    json_decref(root);
    return NULL;
}
