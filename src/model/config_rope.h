/* The rotary positions' part of a config.json. */
#ifndef TIDE_MODEL_CONFIG_ROPE_H
#define TIDE_MODEL_CONFIG_ROPE_H

#include "src/model/config.h"

struct json_t;

/* "default", "linear", "llama3", "yarn": config.json's rope_type. */
const char *tide_rope_kind_name(tide_rope_kind kind);

/* From rope_parameters (transformers 5), or rope_theta and rope_scaling; config->rope holds the family's own values for what is
 * absent, and config->context is set. CORRUPT, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_config_rope_read(const struct json_t *root, const char *label,
                                                 tide_model_config *config);

/* rope_theta and rope_scaling, which both read. False: no memory. */
bool tide_config_rope_write(const tide_model_config *config, struct json_t *root);

#endif
