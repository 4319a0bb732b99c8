/* Reads the attention window in a config.json. */
#ifndef TIDE_MODEL_CONFIG_WINDOW_H
#define TIDE_MODEL_CONFIG_WINDOW_H

#include "src/model/config.h"

struct json_t;

/* Set config->window from the fields that the family has for it; config->family, layers and context must be
 * set. CORRUPT: a field is malformed. UNSUPPORTED: a field asks for a window of unknown size. Messages name
 * the field. */
TIDE_NODISCARD tide_status tide_config_window_read(const struct json_t *root, const char *label,
                                                   tide_model_config *config);

#endif
