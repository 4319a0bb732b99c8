/* A model's sizes and peculiarities as text. */
#ifndef TIDE_TOOLS_MODEL_TEXT_H
#define TIDE_TOOLS_MODEL_TEXT_H

#include "src/model/config.h"

#include <stdio.h>

enum { TIDE_MODEL_TEXT_BYTES = 192 };

/* Write "36 layers, width 4096, 32 heads (8 of keys and values), MLP 12288, context 40960, vocabulary
 * 151936". Sizes that follow from the others, as in GPT-2, are left out. Returns `text`. */
const char *tide_model_text(const tide_model_config *config, char text[TIDE_MODEL_TEXT_BYTES]);

/* Print one line for each setting of config.json that is missing (transformers' default is used), that
 * tidepool ignores, or that limits a run. */
void tide_model_notes(const tide_model_config *config, FILE *out);

#endif
