/* Reads and writes the rotary positions in a config.json. */
#ifndef TIDE_MODEL_CONFIG_ROPE_H
#define TIDE_MODEL_CONFIG_ROPE_H

#include "src/model/config.h"

struct json_t;

/* The kind's rope_type in config.json: "default", "linear", "llama3", "yarn". */
const char *tide_rope_kind_name(tide_rope_kind kind);

/* Set config->rope from rope_parameters (transformers 5), or from rope_theta and rope_scaling.
 * config->context must be set, and config->rope must hold the family's defaults, which stay where a field is
 * absent. CORRUPT, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_config_rope_read(const struct json_t *root, const char *label,
                                                 tide_model_config *config);

/* Write rope_theta and rope_scaling, which both transformers 4 and 5 read. False: no memory. */
bool tide_config_rope_write(const tide_model_config *config, struct json_t *root);

#endif
