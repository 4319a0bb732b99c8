/* Reads the attention window that some layer of a config.json uses. tidepool computes no attention with a
 * window: sequences that fit into the window do not need it, and src/train/trainer_options.c checks that they
 * fit.
 *
 * The fields mean what they mean to transformers. A position sees itself and the window - 1 positions before
 * it, so a window as long as the context hides nothing. Mistral's layers all have the window, whatever
 * layer_types says. Qwen's have it only with use_sliding_window: those that layer_types lists or, without
 * layer_types, those from max_window_layers on. */
#include "src/model/config_window.h"

#include "base/text.h"
#include "src/model/family.h"

#include <jansson.h>
#include <string.h>

enum { POSITIONS_OTHERWISE = 4096, LAYERS_OTHERWISE = 28 }; /* transformers' defaults for absent fields */

/* Reads how many positions the window has; 0: there is no window. */
static tide_status read_positions(const json_t *root, const char *label, json_int_t *positions)
{
    const json_t *item = json_object_get(root, "sliding_window");
    if (item && !json_is_null(item) && json_integer_value(item) < 1) /* 0 if no whole number */
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: field \"sliding_window\" must be null or a whole number of 1 or more",
                         label);
    *positions = item ? json_integer_value(item) : POSITIONS_OTHERWISE;
    return TIDE_OK;
}

static tide_status read_use(const json_t *root, const char *label, bool *use)
{
    const json_t *item = json_object_get(root, "use_sliding_window");
    if (item && !json_is_null(item) && !json_is_boolean(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"use_sliding_window\" must be true or false",
                         label);
    *use = json_is_true(item);
    return TIDE_OK;
}

static tide_status check_type(const json_t *type, const char *label, bool may_slide)
{
    if (!json_is_string(type))
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: field \"layer_types\" must be the string \"full_attention\"", label);
    const char *word = json_string_value(type);
    if (strcmp(word, "full_attention") == 0 || (may_slide && strcmp(word, "sliding_attention") == 0))
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_UNSUPPORTED,
                     "model %s: field \"layer_types\" is \"%s\", only \"full_attention\" is built", label,
                     tide_printable(word).text);
}

static tide_status check_types(const json_t *types, const char *label, uint32_t layers, bool may_slide)
{
    if (!json_is_array(types))
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %s: field \"layer_types\" must be a list of \"full_attention\"", label);
    for (size_t i = 0; i < json_array_size(types); i++) {
        const tide_status status = check_type(json_array_get(types, i), label, may_slide);
        if (status != TIDE_OK)
            return status;
    }
    if (json_array_size(types) == layers)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_CORRUPT,
                     "model %s: field \"layer_types\" has %zu items, it must have num_hidden_layers, %u",
                     label, json_array_size(types), layers);
}

static bool has_sliding(const json_t *types)
{
    for (size_t i = 0; i < json_array_size(types); i++)
        if (strcmp(json_string_value(json_array_get(types, i)), "sliding_attention") == 0)
            return true;
    return false;
}

/* Do some layers have the window by max_window_layers? Used if config.json has no layer_types. */
static tide_status read_upper(const json_t *root, const char *label, uint32_t layers, bool *sliding)
{
    const json_t *item = json_object_get(root, "max_window_layers");
    if (item && !json_is_integer(item))
        return tide_fail(TIDE_ERROR_CORRUPT, "model %s: field \"max_window_layers\" must be a whole number",
                         label);
    *sliding = (item ? json_integer_value(item) : LAYERS_OTHERWISE) < (json_int_t)layers;
    return TIDE_OK;
}

tide_status tide_config_window_read(const json_t *root, const char *label, tide_model_config *config)
{
    const tide_window kind = config->family->window;
    const json_t *types = json_object_get(root, "layer_types");
    json_int_t positions = 0;
    bool use = kind == TIDE_WINDOW_ALL, sliding = use;
    tide_status status = kind == TIDE_WINDOW_UPPER ? read_use(root, label, &use) : TIDE_OK;
    if (status == TIDE_OK && use)
        status = read_positions(root, label, &positions);
    const bool hides = positions > 0 && positions < (json_int_t)config->context;
    const bool typed = kind != TIDE_WINDOW_UNREAD && types && !json_is_null(types);
    if (status == TIDE_OK && typed)
        status = check_types(types, label, config->layers, positions > 0);
    if (status == TIDE_OK && hides && kind == TIDE_WINDOW_UPPER) {
        if (typed)
            sliding = has_sliding(types);
        else
            status = read_upper(root, label, config->layers, &sliding);
    }
    if (status == TIDE_OK && hides && sliding)
        config->window = (uint32_t)positions;
    return status;
}
