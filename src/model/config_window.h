/* Windows of attention in a config.json. */
#ifndef TIDE_MODEL_CONFIG_WINDOW_H
#define TIDE_MODEL_CONFIG_WINDOW_H

#include "src/model/config.h"

struct json_t;

/* Set config->window by whatever fields the family has for that; config->family, layers and context are set.
 * CORRUPT, UNSUPPORTED: the field that is malformed, or asks for a window of no known size. */
TIDE_NODISCARD tide_status tide_config_window_read(const struct json_t *root, const char *label,
                                                   tide_model_config *config);

#endif
