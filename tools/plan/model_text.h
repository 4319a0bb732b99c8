/* A model's sizes in words, for people. */
#ifndef TIDE_TOOLS_MODEL_TEXT_H
#define TIDE_TOOLS_MODEL_TEXT_H

#include "src/model/config.h"

#include <stdio.h>

enum { TIDE_MODEL_TEXT_BYTES = 192 };

/* "36 layers, width 4096, 32 heads (8 of keys and values), MLP 12288, context 40960, vocabulary 151936"; of what follows
 * from the rest, as in GPT-2, nothing is said. Returns `text`. */
const char *tide_model_text(const tide_model_config *config, char text[TIDE_MODEL_TEXT_BYTES]);

/* A line each: what config.json leaves to transformers' default, or asks for and does not get, or what of it limits a run. */
void tide_model_notes(const tide_model_config *config, FILE *out);

#endif
