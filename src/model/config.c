/* GPT-2 configurations. Two tables hold what there is to know, the presets and the fields of a config.json; the rest reads
 * them.
 *
 * A config.json is refused whenever it asks for a network that is not the one built here; what only tells
 * other software about generation, dropout or tokens is passed over.
 */
#include "src/model/config.h"

#include "tide_config.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#if TIDE_HAVE_JANSSON
#include <jansson.h>
#endif

static const tide_gpt2_config presets[] = {
    {"gpt2-nano", 6, 256, 8, 256, 256, 1e-5},         {"gpt2", 12, 768, 12, 1024, 50257, 1e-5},
    {"gpt2-medium", 24, 1024, 16, 1024, 50257, 1e-5}, {"gpt2-large", 36, 1280, 20, 1024, 50257, 1e-5},
    {"gpt2-xl", 48, 1600, 25, 1024, 50257, 1e-5},
};

enum { PRESETS = sizeof presets / sizeof presets[0], CONFIG_FILE_MAX_BYTES = 1 << 20 };

/* A size of the network: its field, its key in a config.json, and its range. */
typedef struct size_field {
    const char *name;
    const char *key;
    const char *legacy_key; /* an older name of the same thing, or NULL */
    size_t offset;
    uint32_t most; /* from 1 */
} size_field;

static const size_field size_fields[] = {
    {"layers", "n_layer", NULL, offsetof(tide_gpt2_config, layers), 1024},
    {"width", "n_embd", NULL, offsetof(tide_gpt2_config, width), 65536},
    {"heads", "n_head", NULL, offsetof(tide_gpt2_config, heads), 1024},
    {"context", "n_positions", "n_ctx", offsetof(tide_gpt2_config, context), 1048576},
    {"vocab_size", "vocab_size", NULL, offsetof(tide_gpt2_config, vocab_size), 16777216},
};

enum { SIZE_FIELDS = sizeof size_fields / sizeof size_fields[0] };

static uint32_t size_field_get(const tide_gpt2_config *config, const size_field *field)
{
    return *(const uint32_t *)((const char *)config + field->offset);
}

/* ---- checks ---- */

tide_status tide_gpt2_config_check(const tide_gpt2_config *config, const char *origin)
{
    for (size_t i = 0; i < SIZE_FIELDS; i++) {
        uint32_t value = size_field_get(config, &size_fields[i]);
        if (value < 1 || value > size_fields[i].most)
            return tide_fail(TIDE_ERROR_ARGUMENT, "model %s: %s (%s) is %u, it must be in 1 .. %u", origin,
                             size_fields[i].name, size_fields[i].key, value, size_fields[i].most);
    }
    if (config->width % config->heads != 0)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "model %s: width (n_embd) is %u, it must be a multiple of heads (n_head), which is %u", origin,
            config->width, config->heads);
    if (!(config->layer_norm_epsilon > 0 && config->layer_norm_epsilon < 1))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "model %s: layer_norm_epsilon is %g, it must be between 0 and 1", origin,
                         config->layer_norm_epsilon);
    return TIDE_OK;
}

bool tide_gpt2_config_is_valid(const tide_gpt2_config *config)
{
    bool valid = true;
    for (size_t i = 0; i < SIZE_FIELDS; i++) {
        uint32_t value = size_field_get(config, &size_fields[i]);
        valid = valid && value >= 1 && value <= size_fields[i].most;
    }
    return valid && config->width % config->heads == 0 && config->layer_norm_epsilon > 0 &&
           config->layer_norm_epsilon < 1;
}

/* ---- config.json ---- */

#if TIDE_HAVE_JANSSON

/* A switch of Hugging Face's GPT-2 that changes the network: only one value is built. Absent means that
 * value. */
typedef struct switch_field {
    const char *key;
    bool must_be;
} switch_field;

static const switch_field switch_fields[] = {
    {"tie_word_embeddings", true},
    {"scale_attn_weights", true},
    {"scale_attn_by_inverse_layer_idx", false},
    {"reorder_and_upcast_attn", false},
    {"add_cross_attention", false},
};

enum { SWITCH_FIELDS = sizeof switch_fields / sizeof switch_fields[0] };

static tide_status json_size(const json_t *root, const char *origin, const char *key, uint32_t most,
                             uint32_t *value)
{
    const json_t *item = json_object_get(root, key);
    if (!json_is_integer(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" must be a whole number in 1 .. %u",
                         origin, key, most);
    json_int_t found = json_integer_value(item);
    if (found < 1 || found > (json_int_t)most)
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" is %lld, it must be in 1 .. %u", origin,
                         key, (long long)found, most);
    *value = (uint32_t)found;
    return TIDE_OK;
}

/* Under its key or its legacy key; under both, the values must agree. */
static tide_status json_size_field(const json_t *root, const char *origin, const size_field *field,
                                   uint32_t *value)
{
    bool has_key = json_object_get(root, field->key) != NULL;
    bool has_legacy = field->legacy_key != NULL && json_object_get(root, field->legacy_key) != NULL;
    if (!has_key && !has_legacy)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: field \"%s\" is missing, it must be a whole number in 1 .. %u", origin,
                         field->key, field->most);
    uint32_t found = 0, legacy = 0;
    tide_status status = TIDE_OK;
    if (has_key)
        status = json_size(root, origin, field->key, field->most, &found);
    if (status == TIDE_OK && has_legacy)
        status = json_size(root, origin, field->legacy_key, field->most, &legacy);
    if (status != TIDE_OK)
        return status;
    if (has_key && has_legacy && found != legacy)
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: \"%s\" is %u and \"%s\" is %u, they must be equal",
                         origin, field->key, found, field->legacy_key, legacy);
    *value = has_key ? found : legacy;
    return TIDE_OK;
}

static tide_status json_sizes(const json_t *root, const char *origin, tide_gpt2_config *config)
{
    for (size_t i = 0; i < SIZE_FIELDS; i++) {
        uint32_t *value = (uint32_t *)((char *)config + size_fields[i].offset);
        tide_status status = json_size_field(root, origin, &size_fields[i], value);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

/* A string that must have one value; `needed` says whether it must be there at all. */
static tide_status json_word(const json_t *root, const char *origin, const char *key, const char *must_be,
                             bool needed)
{
    const json_t *item = json_object_get(root, key);
    if (item == NULL && !needed)
        return TIDE_OK;
    if (!json_is_string(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" must be the string \"%s\"", origin, key,
                         must_be);
    if (strcmp(json_string_value(item), must_be) != 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "model %s: field \"%s\" is \"%.64s\", only \"%s\" is built",
                         origin, key, json_string_value(item), must_be);
    return TIDE_OK;
}

static tide_status json_switches(const json_t *root, const char *origin)
{
    for (size_t i = 0; i < SWITCH_FIELDS; i++) {
        const switch_field *field = &switch_fields[i];
        const json_t *item = json_object_get(root, field->key);
        const char *right = field->must_be ? "true" : "false";
        if (item != NULL && !json_is_boolean(item))
            return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"%s\" must be %s", origin, field->key,
                             right);
        if (item != NULL && json_is_true(item) != field->must_be)
            return tide_fail(TIDE_ERROR_UNSUPPORTED, "model %s: field \"%s\" is %s, only %s is built", origin,
                             field->key, field->must_be ? "false" : "true", right);
    }
    return TIDE_OK;
}

static tide_status json_inner(const json_t *root, const char *origin, uint32_t width)
{
    const json_t *item = json_object_get(root, "n_inner");
    json_int_t right = 4 * (json_int_t)width;
    if (item == NULL || json_is_null(item))
        return TIDE_OK;
    if (!json_is_integer(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"n_inner\" must be null or 4 x n_embd = %lld",
                         origin, (long long)right);
    if (json_integer_value(item) != right)
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "model %s: field \"n_inner\" is %lld, only null or 4 x n_embd = %lld is built",
                         origin, (long long)json_integer_value(item), (long long)right);
    return TIDE_OK;
}

static tide_status json_epsilon(const json_t *root, const char *origin, double *epsilon)
{
    const json_t *item = json_object_get(root, "layer_norm_epsilon");
    if (item == NULL)
        return TIDE_OK;
    double value = json_number_value(item); /* 0 for what is no number */
    if (!(value > 0 && value < 1))
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: field \"layer_norm_epsilon\" must be a number between 0 and 1", origin);
    *epsilon = value;
    return TIDE_OK;
}

static tide_status json_config(const json_t *root, const char *origin, tide_gpt2_config *config)
{
    if (!json_is_object(root))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: must be a JSON object, the config.json of a gpt2",
                         origin);
    tide_status status = json_word(root, origin, "model_type", "gpt2", true);
    if (status == TIDE_OK)
        status = json_word(root, origin, "activation_function", "gelu_new", false);
    if (status == TIDE_OK)
        status = json_switches(root, origin);
    if (status == TIDE_OK)
        status = json_sizes(root, origin, config);
    if (status == TIDE_OK)
        status = json_inner(root, origin, config->width);
    if (status == TIDE_OK)
        status = json_epsilon(root, origin, &config->layer_norm_epsilon);
    if (status == TIDE_OK && config->width % config->heads != 0)
        status = tide_fail(TIDE_ERROR_CORRUPT,
                           "model %s: field \"n_embd\" is %u, it must be a multiple of \"n_head\", %u",
                           origin, config->width, config->heads);
    return status;
}

tide_status tide_gpt2_config_parse(const char *text, size_t bytes, const char *origin,
                                   tide_gpt2_config *config)
{
    json_error_t error;
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && error.text[0] == '\0')
        return tide_fail(TIDE_ERROR_NO_MEMORY, "model %s: no memory to read %zu bytes of JSON", origin,
                         bytes);
    if (root == NULL)
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: not JSON at line %d, column %d: %s", origin,
                         error.line, error.column, error.text);
    tide_gpt2_config parsed = {.name = "config.json", .layer_norm_epsilon = 1e-5};
    tide_status status = json_config(root, origin, &parsed);
    json_decref(root);
    if (status != TIDE_OK)
        return status;
    assert(tide_gpt2_config_is_valid(&parsed));
    *config = parsed;
    return TIDE_OK;
}

#else

tide_status tide_gpt2_config_parse(const char *text, size_t bytes, const char *origin,
                                   tide_gpt2_config *config)
{
    (void)text, (void)bytes, (void)config;
    return tide_fail(TIDE_ERROR_UNSUPPORTED,
                     "model %s: this build has no jansson and can't read a config.json; take a preset",
                     origin);
}

#endif

/* ---- opening ---- */

const char *tide_model_shape_name(const tide_gpt2_config *config)
{
    for (size_t i = 0; i < PRESETS; i++) {
        const tide_gpt2_config *preset = &presets[i];
        if (preset->layers == config->layers && preset->width == config->width &&
            preset->heads == config->heads && preset->context == config->context &&
            preset->vocab_size == config->vocab_size)
            return preset->name;
    }
    return NULL;
}

const char *tide_gpt2_preset_name(size_t index)
{
    return index < PRESETS ? presets[index].name : NULL;
}

/* Room for the file and one byte more, so that a file over the limit shows. */
static tide_status file_read(int descriptor, const char *path, char *text, size_t *bytes)
{
    size_t done = 0;
    while (done <= CONFIG_FILE_MAX_BYTES) {
        ssize_t got = read(descriptor, text + done, CONFIG_FILE_MAX_BYTES + 1 - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tide_fail(TIDE_ERROR_IO, "model %s: can't be read: %s", path, strerror(errno));
        if (got == 0)
            break;
        done += (size_t)got;
    }
    if (done > CONFIG_FILE_MAX_BYTES)
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: over %d bytes, that is no config.json", path,
                         CONFIG_FILE_MAX_BYTES);
    *bytes = done;
    return TIDE_OK;
}

static tide_status no_such_model(const char *model, int error)
{
    char names[128] = "";
    size_t length = 0;
    for (size_t i = 0; i < PRESETS; i++)
        length += (size_t)snprintf(names + length, sizeof names - length, "%s%s", i == 0 ? "" : ", ",
                                   presets[i].name);
    return tide_fail(TIDE_ERROR_IO,
                     "model %s: neither a preset (%s) nor a config.json that can be opened: %s", model, names,
                     strerror(error));
}

static tide_status file_open(const char *path, tide_gpt2_config *config)
{
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return no_such_model(path, errno);
    tide_status status = TIDE_OK;
    struct stat about;
    char *text = malloc(CONFIG_FILE_MAX_BYTES + 1);
    size_t bytes = 0;
    if (text == NULL)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "model %s: no memory for %d bytes", path,
                           CONFIG_FILE_MAX_BYTES + 1);
    else if (fstat(descriptor, &about) != 0 || !S_ISREG(about.st_mode))
        status = tide_fail(TIDE_ERROR_IO, "model %s: not a file; name a preset or a config.json", path);
    else
        status = file_read(descriptor, path, text, &bytes);
    if (status == TIDE_OK)
        status = tide_gpt2_config_parse(text, bytes, path, config);
    free(text);
    close(descriptor); /* opened for reading: nothing can be lost */
    return status;
}

tide_status tide_gpt2_config_open(const char *model, tide_gpt2_config *config)
{
    for (size_t i = 0; i < PRESETS; i++) {
        if (strcmp(model, presets[i].name) == 0) {
            *config = presets[i];
            return TIDE_OK;
        }
    }
    return file_open(model, config);
}
