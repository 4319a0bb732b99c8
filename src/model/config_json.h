/* A config.json's JSON and a config: the families' tables of fields, and the rotary positions' own. */
#ifndef TIDE_MODEL_CONFIG_JSON_H
#define TIDE_MODEL_CONFIG_JSON_H

#include "src/model/config.h"

struct json_t;

/* The config.json of a model, as transformers 4 and 5 read it, with `dtype` ("float32", "bfloat16", ...) as that of its weights.
 * A new reference; NULL: no memory. */
struct json_t *tide_model_config_to_json(const tide_model_config *config, const char *dtype);

#endif
