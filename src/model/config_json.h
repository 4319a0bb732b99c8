/* Writes a config as the JSON of a config.json (tide_model_config_parse in config.h reads one). */
#ifndef TIDE_MODEL_CONFIG_JSON_H
#define TIDE_MODEL_CONFIG_JSON_H

#include "src/model/config.h"

struct json_t;

/* The config.json of a model, as transformers 4 and 5 read it; `dtype` ("float32", "bfloat16", ...) is that
 * of its weights. The caller owns the new reference; NULL: no memory. */
struct json_t *tide_model_config_to_json(const tide_model_config *config, const char *dtype);

#endif
