/* Windows of attention in a config.json: none is built. Only in builds with jansson. */
#ifndef TIDE_MODEL_CONFIG_WINDOW_H
#define TIDE_MODEL_CONFIG_WINDOW_H

#include "src/model/config.h"

struct json_t;

/* Every layer must see all earlier positions, whatever fields the family has for that; config->family, layers and context are set.
 * CORRUPT, UNSUPPORTED: the field that is malformed, or asks for a window that some position would be outside of. */
TIDE_NODISCARD tide_status tide_config_window_check(const struct json_t *root, const char *origin,
                                                    const tide_model_config *config);

#endif
