#include "tests/golden/gpt2_run.h"

#include "src/train/trainer_internal.h"
#include "tests/support/test_trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

/* Write eight sequences for training, all of which are in every batch, so that shuffling does not matter,
 * and a ninth for validation. */
static void write_golden_data(const char *path)
{
    int32_t tokens[GOLDEN_TOKENS + GOLDEN_SEQ_LEN + 1] = {0};
    golden_token_stream(tokens);
    shard_write(path, tokens, GOLDEN_TOKENS + GOLDEN_SEQ_LEN + 1);
}

static void set_golden_values(tide_trainer *trainer)
{
    const tide_model_config config = golden_config();
    for (size_t i = 0; i < GOLDEN_PARAMS; i++) {
        tide_model_param param;
        tide_model_param_describe(&config, i, &param);
        float *values = malloc(param.elements * sizeof *values);
        assert_non_null(values);
        golden_param_values(&config, i, values);
        ok(tide_decoder_values_set(trainer->model, i, TIDE_VALUE_MASTER, 0, param.elements, values));
        free(values);
    }
}

tide_trainer *golden_run_open(tide_dtype dtype, const char *const *freeze, uint32_t freeze_count)
{
    char path[96];
    snprintf(path, sizeof path, "%s/golden.bin", folder);
    write_golden_data(path);
    tide_trainer_options options = small_options(path, dtype);
    options.model = golden_config();
    options.hyper.schedule.steps = GOLDEN_STEPS;
    options.hyper.schedule.warmup_steps = GOLDEN_WARMUP;
    options.hyper.schedule.lr = 1e-2;
    options.freeze = freeze;
    options.freeze_count = freeze_count;
    tide_trainer *trainer;
    ok(tide_trainer_create(&options, &trainer));
    set_golden_values(trainer);
    return trainer;
}
