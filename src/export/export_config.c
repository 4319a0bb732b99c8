/* The config.json of an export: the source model's, byte for byte but for the dtype, or one made anew. */
#include "src/export/export_internal.h"

#include "base/whole.h"
#include "src/export/config_text.h"
#include "src/model/config_json.h"

#include <stdlib.h>
#include <string.h>

#include "src/safetensors/json.h"

enum { CONFIG_MAX_BYTES = 1 << 20 };

static const char *dtype_word(tide_weights_dtype dtype)
{
    return dtype == TIDE_WEIGHTS_BF16 ? "bfloat16" : dtype == TIDE_WEIGHTS_F16 ? "float16" : "float32";
}

/* The JSON's text and a line's end. Numbers have 15 digits if that is enough to read the same numbers back,
 * else 17. NULL: no memory. */
static char *made_text(const json_t *root)
{
    char *text = tide_json_object_text(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_t *back = text != NULL ? json_loads(text, 0, NULL) : NULL;
    if (back != NULL && !json_equal(back, (json_t *)root)) {
        free(text);
        text = tide_json_object_text(root, JSON_INDENT(2));
    }
    const size_t length = text != NULL ? strlen(text) : 0;
    char *line = back != NULL && text != NULL ? realloc(text, length + 2) : NULL;
    json_decref(back);
    if (line == NULL)
        free(text);
    else
        memcpy(line + length, "\n", 2);
    return line;
}

static bool same_model(const tide_model_config *a, const tide_model_config *b)
{
    json_t *one = tide_model_config_to_json(a, ""), *other = tide_model_config_to_json(b, "");
    const bool same = one != NULL && other != NULL && json_equal(one, other);
    json_decref(one);
    json_decref(other);
    return same;
}

/* Checks that every key for the dtype in the text has this word as its value. */
static tide_status dtype_check(const char *text, const char *path, const char *word)
{
    static const char *const keys[] = {"dtype", "torch_dtype"};
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL && json_error_code(&error) != json_error_duplicate_key)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "export: no memory for %.900s", path);
    bool right = root != NULL; /* NULL: a duplicate key, once spelled with escapes */
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const json_t *value = json_object_get(root, keys[i]);
        right = right &&
                (value == NULL || (json_is_string(value) && strcmp(json_string_value(value), word) == 0));
    }
    json_decref(root);
    return right ? TIDE_OK
                 : tide_fail(TIDE_ERROR_UNSUPPORTED, "export: %.900s spells its dtype with escapes", path);
}

/* The text of the source model's config.json, unchanged but for the dtype. */
static tide_status source_text(const tide_export *export, char **made)
{
    char path[TIDE_CHECKPOINT_PATH_BYTES], *text = NULL, *edited = NULL;
    size_t bytes = 0;
    tide_model_config model;
    tide_status status = tide_export_path(export->source, TIDE_EXPORT_CONFIG_NAME, path);
    if (status != TIDE_OK)
        return status;
    const int error = tide_files_read_whole(export->files, path, CONFIG_MAX_BYTES, &text, &bytes);
    if (error != 0)
        return tide_export_read_fail(path, CONFIG_MAX_BYTES, "a config.json", error);
    status = tide_model_config_parse(text, bytes, path, &model);
    if (status == TIDE_OK && !same_model(&model, export->model))
        status =
            tide_fail(TIDE_ERROR_MISMATCH, "export: %.900s is of another model than the one to export", path);
    if (status == TIDE_OK) {
        edited = tide_config_text_with_dtype(text, bytes, dtype_word(export->dtype));
        status = edited != NULL ? dtype_check(edited, path, dtype_word(export->dtype))
                                : tide_fail(TIDE_ERROR_NO_MEMORY, "export: no memory for %.900s", path);
    }
    free(text);
    if (status != TIDE_OK) {
        free(edited);
        return status;
    }
    *made = edited;
    return TIDE_OK;
}

tide_status tide_export_config(const tide_export *export, char **text, size_t *bytes)
{
    if (export->source != NULL) {
        const tide_status status = source_text(export, text);
        if (status == TIDE_OK)
            *bytes = strlen(*text);
        return status;
    }
    json_t *root = tide_model_config_to_json(export->model, dtype_word(export->dtype));
    char *made = root != NULL ? made_text(root) : NULL;
    json_decref(root);
    if (made == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "export: no memory for a config.json");
    *text = made;
    *bytes = strlen(made);
    return TIDE_OK;
}
