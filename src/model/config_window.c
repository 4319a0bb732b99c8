/* Does a config.json ask for a window of attention that some layer would use? None is built.
 *
 * As transformers reads it: a window of as many positions as the model has is none, since no position is outside; layer_types says
 * which layers have the window; where it is absent, Mistral's all do, and Qwen's from max_window_layers on, if use_sliding_window.
 * Mistral's do whatever layer_types says. */
#include "src/model/config_window.h"

#include "src/files/printable.h"
#include "src/model/family.h"
#include "tide_config.h"

#include <string.h>

#if TIDE_HAVE_JANSSON
#include <jansson.h>

enum { POSITIONS_OTHERWISE = 4096, LAYERS_OTHERWISE = 28 }; /* transformers', where the field is absent */

/* Of the window, 0: there is none. */
static tide_status read_positions(const json_t *root, const char *origin, json_int_t *positions)
{
    const json_t *item = json_object_get(root, "sliding_window");
    if (item && !json_is_null(item) && json_integer_value(item) < 1) /* 0 for what is no whole number */
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: field \"sliding_window\" must be null or a whole number of 1 or more",
                         origin);
    *positions = item ? json_integer_value(item) : POSITIONS_OTHERWISE;
    return TIDE_OK;
}

static tide_status read_use(const json_t *root, const char *origin, bool *use)
{
    const json_t *item = json_object_get(root, "use_sliding_window");
    if (item && !json_is_null(item) && !json_is_boolean(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"use_sliding_window\" must be true or false",
                         origin);
    *use = json_is_true(item);
    return TIDE_OK;
}

static tide_status check_type(const json_t *type, const char *origin, bool may_slide)
{
    if (!json_is_string(type))
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: field \"layer_types\" must be the string \"full_attention\"", origin);
    const char *word = json_string_value(type);
    if (strcmp(word, "full_attention") == 0 || (may_slide && strcmp(word, "sliding_attention") == 0))
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_UNSUPPORTED,
                     "model %s: field \"layer_types\" is \"%s\", only \"full_attention\" is built", origin,
                     tide_printable(word).text);
}

static tide_status check_types(const json_t *types, const char *origin, uint32_t layers, bool may_slide)
{
    if (!json_is_array(types))
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: field \"layer_types\" must be a list of \"full_attention\"", origin);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const tide_status status = check_type(json_array_get(types, i), origin, may_slide);
        if (status != TIDE_OK)
            return status;
    }
    if (json_array_size(types) == layers)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_CORRUPT,
                     "model %s: field \"layer_types\" has %zu items, it must have num_hidden_layers, %u",
                     origin, json_array_size(types), layers);
}

static tide_status refuse_all(const json_t *root, const char *origin, json_int_t positions, uint32_t context)
{
    return tide_fail(
        TIDE_ERROR_UNSUPPORTED,
        "model %s: field \"sliding_window\" is %s%lld, only null or max_position_embeddings (%u) or more is "
        "built",
        origin, json_object_get(root, "sliding_window") ? "" : "missing, which means ", (long long)positions,
        context);
}

static tide_status check_upper(const json_t *root, const char *origin, json_int_t positions,
                               const tide_model_config *config)
{
    const json_t *item = json_object_get(root, "max_window_layers");
    if (item && !json_is_integer(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"max_window_layers\" must be a whole number",
                         origin);
    const json_int_t first = item ? json_integer_value(item) : LAYERS_OTHERWISE;
    if (first >= (json_int_t)config->layers)
        return TIDE_OK;
    return tide_fail(
        TIDE_ERROR_UNSUPPORTED,
        "model %s: field \"use_sliding_window\" is true, only false is built where max_window_layers (%lld) "
        "is below num_hidden_layers (%u) and sliding_window (%lld) below max_position_embeddings (%u)",
        origin, (long long)first, config->layers, (long long)positions, config->context);
}

tide_status tide_config_window_check(const json_t *root, const char *origin, const tide_model_config *config)
{
    const tide_window kind = config->family->window;
    const json_t *types = json_object_get(root, "layer_types");
    json_int_t positions = 0;
    bool use = kind == TIDE_WINDOW_ALL;
    tide_status status = kind == TIDE_WINDOW_UPPER ? read_use(root, origin, &use) : TIDE_OK;
    if (status == TIDE_OK && use)
        status = read_positions(root, origin, &positions);
    const bool hides = positions > 0 && positions < (json_int_t)config->context;
    const bool typed = kind != TIDE_WINDOW_UNREAD && types && !json_is_null(types);
    if (status == TIDE_OK && typed)
        status = check_types(types, origin, config->layers, positions > 0 && !hides);
    if (status != TIDE_OK || !hides)
        return status;
    if (kind == TIDE_WINDOW_ALL)
        return refuse_all(root, origin, positions, config->context);
    return typed ? TIDE_OK : check_upper(root, origin, positions, config);
}

#endif
