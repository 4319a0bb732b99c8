/* Configs of models of any size for tests and benchmarks. */
#ifndef TIDE_TESTS_SMALL_MODEL_H
#define TIDE_TESTS_SMALL_MODEL_H

#include "src/model/config.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Returns a config of the family. Families other than GPT-2 get two query heads per key head where that
 * divides, and an MLP of 8/3 widths. */
static inline tide_model_config model_of_family(const char *family, uint32_t layers, uint32_t width,
                                                uint32_t heads, uint32_t context, uint32_t vocab_size)
{
    tide_model_config config = {.name = "small",
                                .family = tide_model_family_find(family),
                                .layers = layers,
                                .width = width,
                                .heads = heads,
                                .context = context,
                                .vocab_size = vocab_size,
                                .norm_epsilon = 1e-5};
    assert(config.family);
    if (strcmp(family, "gpt2") != 0) {
        config.kv_heads = heads % 2 == 0 ? heads / 2 : heads;
        config.mlp_width = width * 8 / 3;
        config.rope.theta = 10000;
        config.tied = strcmp(family, "qwen3") != 0;
    }
    tide_model_config_complete(&config);
    return config;
}

static inline tide_model_config gpt2_of(uint32_t layers, uint32_t width, uint32_t heads, uint32_t context,
                                        uint32_t vocab_size)
{
    return model_of_family("gpt2", layers, width, heads, context, vocab_size);
}

/* Returns the family in the environment variable TIDEPOOL_TEST_FAMILY, or GPT-2. */
static inline const char *test_family(void)
{
    const char *named = getenv("TIDEPOOL_TEST_FAMILY");
    return named && named[0] != '\0' ? named : "gpt2";
}

/* Returns the name (or pattern) of a tensor in this run's family: `of_gpt2`, or `of_llama` for every other
 * family. */
static inline const char *family_word(const char *of_gpt2, const char *of_llama)
{
    return strcmp(test_family(), "gpt2") == 0 ? of_gpt2 : of_llama;
}

#endif
