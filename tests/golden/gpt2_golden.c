#include "tests/golden/gpt2_golden.h"

#include "tests/golden/golden_hash.h"

#include <fnmatch.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

tide_model_config golden_config(void)
{
    tide_model_config config = {.name = "golden",
                                .family = tide_model_family_find("gpt2"),
                                .layers = 2,
                                .width = 64,
                                .heads = 4,
                                .context = GOLDEN_SEQ_LEN,
                                .vocab_size = 128,
                                .norm_epsilon = 1e-5};
    tide_model_config_complete(&config);
    return config;
}

void golden_param_values(const tide_model_config *config, size_t index, float *values)
{
    tide_model_tensor tensor;
    tide_model_tensor_describe(config, index, &tensor);
    for (uint32_t i = 0; i < tensor.elements; i++)
        values[i] = tensor.init_value + golden_centred((uint32_t)index, i) * 0.25f;
}

void golden_token_stream(int32_t tokens[GOLDEN_TOKENS + 1])
{
    for (uint32_t i = 0; i <= GOLDEN_TOKENS; i++)
        tokens[i] = (int32_t)(golden_number(GOLDEN_TOKENS_ITEM, i) % golden_config().vocab_size);
}

static void read_exactly(FILE *file, void *target, size_t bytes)
{
    assert_int_equal(fread(target, 1, bytes, file), bytes);
}

/* Open a golden file and read its header, which must have this magic, version 1, and `count` in its last
 * number. */
static FILE *open_file(const char *name, const char *magic, uint32_t count)
{
    char path[256], found[8];
    uint32_t header[3];
    snprintf(path, sizeof path, "%s/%s", TIDE_GOLDEN_FOLDER, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    read_exactly(file, found, sizeof found);
    assert_memory_equal(found, magic, sizeof found);
    read_exactly(file, header, sizeof header);
    assert_int_equal(header[0], 1);
    assert_int_equal(header[1], GOLDEN_STEPS);
    assert_int_equal(header[2], count);
    return file;
}

void golden_load(gpt2_golden *golden)
{
    FILE *file = open_file("gpt2.golden", "TIDEGOLD", GOLDEN_PARAMS);
    read_exactly(file, &golden->track, sizeof golden->track);
    const tide_model_config config = golden_config();
    for (size_t i = 0; i < GOLDEN_PARAMS; i++) {
        tide_model_param param;
        tide_model_param_describe(&config, i, &param);
        golden->gradients[i] = malloc(param.elements * sizeof(float));
        assert_non_null(golden->gradients[i]);
        read_exactly(file, golden->gradients[i], param.elements * sizeof(float));
    }
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

void golden_free(gpt2_golden *golden)
{
    for (size_t i = 0; i < GOLDEN_PARAMS; i++)
        free(golden->gradients[i]);
}

/* --- frozen params --- */

/* The sets of frozen params, the same as FROZEN in make_gpt2_golden.py. */
static const golden_frozen golden_sets[GOLDEN_FROZEN_SETS] = {
    {.patterns = {"w?e.weight"}, .pattern_count = 1},
    {.patterns = {"w?e.weight", "h.0.*", "ln_f.*"}, .pattern_count = 3},
    {.patterns = {"wte.weight"}, .pattern_count = 1},
    {.patterns = {"*.bias", "h.1.ln_*", "h.0.mlp.c_fc.weight"}, .pattern_count = 3},
};

static uint32_t match(golden_frozen *set)
{
    const tide_model_config config = golden_config();
    uint32_t frozen = 0;
    for (size_t i = 0; i < GOLDEN_PARAMS; i++) {
        tide_model_param param;
        tide_model_param_describe(&config, i, &param);
        for (uint32_t p = 0; p < set->pattern_count; p++)
            set->is_frozen[i] = set->is_frozen[i] || fnmatch(set->patterns[p], param.name, 0) == 0;
        frozen += set->is_frozen[i];
    }
    return frozen;
}

void golden_frozen_load(golden_frozen sets[GOLDEN_FROZEN_SETS])
{
    FILE *file = open_file("frozen.golden", "TIDEFROZ", GOLDEN_FROZEN_SETS);
    for (int s = 0; s < GOLDEN_FROZEN_SETS; s++) {
        golden_frozen *set = &sets[s];
        uint32_t frozen;
        *set = golden_sets[s];
        read_exactly(file, &frozen, sizeof frozen);
        assert_int_equal(frozen, match(set));
        read_exactly(file, &set->track, sizeof set->track);
        for (size_t i = 0; i < GOLDEN_PARAMS; i++)
            if (!set->is_frozen[i])
                read_exactly(file, set->weights[i], sizeof set->weights[i]);
    }
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}
