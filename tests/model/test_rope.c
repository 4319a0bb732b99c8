/* Rotary frequencies and their tables, compared with float64 formulas. */
#include "src/model/rope.h"

#include "tests/support/assert_ok.h"
#include "tests/support/same_config.h"
#include "tests/support/small_model.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { HALF_MAX = 64, LONG_POSITIONS = 131072 };

static const double circle = 6.283185307179586476925;

static tide_model_config config_of(uint32_t head_width, tide_rope rope)
{
    tide_model_config config = model_of_family("llama", 1, head_width, 1, LONG_POSITIONS, 100);
    config.rope = rope;
    assert_true(tide_model_config_is_valid(&config));
    return config;
}

static void assert_frequencies(const tide_model_config *config, const double *expected)
{
    float made[HALF_MAX];
    tide_rope_frequencies(config, made);
    for (uint32_t i = 0; i < config->head_width / 2; i++)
        if (!(fabs((double)made[i] / expected[i] - 1) < 3e-7)) /* a few fp32 roundings */
            fail_msg("frequency %u is %.9g, not %.9g", i, (double)made[i], expected[i]);
}

static void reference_frequencies(uint32_t head_width, double theta, double *made)
{
    for (uint32_t i = 0; i < head_width / 2; i++)
        made[i] = exp(-log(theta) * (2 * i) / head_width);
}

static void plain_frequencies_are_powers_of_theta_and_linear_ones_a_share(void **unused)
{
    static const double thetas[] = {10000, 500000, 1e6, 12345.678};
    for (size_t t = 0; t < 4; t++) {
        double expected[HALF_MAX];
        reference_frequencies(128, thetas[t], expected);
        tide_model_config config = config_of(128, (tide_rope){.theta = thetas[t]});
        assert_frequencies(&config, expected);
        config = config_of(128, (tide_rope){.theta = thetas[t], .kind = TIDE_ROPE_LINEAR, .factor = 2.5});
        for (int i = 0; i < 64; i++)
            expected[i] /= 2.5;
        assert_frequencies(&config, expected);
    }
}

static void an_odd_number_of_pairs_has_its_frequencies_too(void **unused)
{
    double expected[HALF_MAX];
    reference_frequencies(10, 10000, expected);
    const tide_model_config config = config_of(10, (tide_rope){.theta = 10000});
    assert_frequencies(&config, expected);
}

/* The parameters of Llama 3.1 and others. The number of turns within the original context decides whether a
 * frequency is kept, mixed or stretched. */
static void llama3_keeps_short_waves_and_stretches_long_ones(void **unused)
{
    static const tide_rope ropes[] = {
        LLAMA3(.theta = 500000, .factor = 8, .original_context = 8192),
        LLAMA3(.theta = 500000, .factor = 32, .original_context = 8192),
        {.theta = 10000,
         .kind = TIDE_ROPE_LLAMA3,
         .factor = 3.5,
         .low_factor = 2,
         .high_factor = 9,
         .original_context = 500},
    };
    for (size_t r = 0; r < 3; r++) {
        const tide_rope *rope = &ropes[r];
        double expected[HALF_MAX];
        unsigned kept = 0, mixed = 0, stretched = 0;
        reference_frequencies(128, rope->theta, expected);
        for (int i = 0; i < 64; i++) {
            const double turns = rope->original_context * expected[i] / circle;
            if (turns > rope->high_factor) {
                kept++;
            } else if (turns < rope->low_factor) {
                expected[i] /= rope->factor;
                stretched++;
            } else {
                const double smooth = (turns - rope->low_factor) / (rope->high_factor - rope->low_factor);
                expected[i] *= smooth + (1 - smooth) / rope->factor;
                mixed++;
            }
        }
        assert_true(kept > 10 && mixed > 2 && stretched > 10);
        const tide_model_config config = config_of(128, *rope);
        assert_frequencies(&config, expected);
    }
}

/* The frequencies as in the YaRN paper: find the dimensions that turn beta_fast and beta_slow times, let a
 * ramp go from one to the other, and mix the kept and the divided frequency by it. */
static void yarn_frequencies(uint32_t head_width, const tide_rope *rope, double *made)
{
    double ends[2];
    const double turns[2] = {rope->beta_fast, rope->beta_slow};
    for (int e = 0; e < 2; e++)
        ends[e] = head_width / 2.0 * log(rope->original_context / (turns[e] * circle)) / log(rope->theta);
    if (!rope->exact) {
        ends[0] = floor(ends[0]);
        ends[1] = ceil(ends[1]);
    }
    ends[0] = ends[0] < 0 ? 0 : ends[0];
    ends[1] = ends[1] > head_width - 1 ? head_width - 1 : ends[1];
    reference_frequencies(head_width, rope->theta, made);
    for (uint32_t i = 0; i < head_width / 2; i++) {
        const double width = ends[1] - ends[0] == 0 ? 0.001 : ends[1] - ends[0], ramp = (i - ends[0]) / width,
                     kept = ramp < 0   ? 1
                            : ramp > 1 ? 0
                                       : 1 - ramp;
        made[i] = kept * made[i] + (1 - kept) * made[i] / rope->factor;
    }
}

static void yarn_ramps_by_dimension_rounded_or_not(void **unused)
{
    static const tide_rope ropes[] = {
        YARN(.theta = 1e6, .factor = 4, .original_context = 32768),
        YARN(.theta = 150000, .factor = 32, .original_context = 4096),
        YARN(.theta = 10000, .factor = 2, .original_context = 100),
        YARN(.theta = 100, .factor = 2, .original_context = 1e9),
        {.theta = 1e4,
         .kind = TIDE_ROPE_YARN,
         .factor = 9,
         .original_context = 4096,
         .beta_fast = 3,
         .beta_slow = 3},
    };
    for (size_t r = 0; r < sizeof ropes / sizeof ropes[0]; r++) {
        double expected[2][HALF_MAX];
        for (int exact = 0; exact < 2; exact++) {
            tide_rope rope = ropes[r];
            rope.exact = exact;
            rope.attention_factor = 1;
            yarn_frequencies(128, &rope, expected[exact]);
            const tide_model_config config = config_of(128, rope);
            assert_frequencies(&config, expected[exact]);
        }
        if (r < 2) /* their ramps lie inside, with ends between two dimensions */
            assert_memory_not_equal(expected[0], expected[1], sizeof expected[0]);
    }
}

static void yarns_attention_factor_grows_with_the_factors_logarithm(void **unused)
{
    assert_true(tide_rope_yarn_attention(1, 0, 0) == 1);
    assert_true(fabs(tide_rope_yarn_attention(4, 0, 0) - (0.1 * log(4) + 1)) < 1e-15);
    assert_true(fabs(tide_rope_yarn_attention(40, 0.707, 0) - (0.1 * log(40) + 1)) <
                1e-15); /* mscale without mscale_all_dim has no effect, nor the reverse */
    assert_true(fabs(tide_rope_yarn_attention(40, 0, 0.707) - (0.1 * log(40) + 1)) < 1e-15);
    assert_true(tide_rope_yarn_attention(40, 0.707, 0.707) == 1);
    assert_true(fabs(tide_rope_yarn_attention(40, 1, 0.5) - (0.1 * log(40) + 1) / (0.05 * log(40) + 1)) <
                1e-15);
}

/* ---- tables ---- */

static void assert_row(const tide_model_config *config, const float *row, uint64_t position)
{
    float frequencies[HALF_MAX];
    const uint32_t half = config->head_width / 2;
    const bool is_yarn = config->rope.kind == TIDE_ROPE_YARN;
    tide_rope_frequencies(config, frequencies);
    for (uint32_t i = 0; i < half; i++) {
        const float angle = (float)position * frequencies[i];
        const double cosine = cos((double)angle), sine = sin((double)angle);
        const double size = is_yarn ? config->rope.attention_factor : 1;
        if (row[i] != (float)(cosine * size) || row[half + i] != (float)(sine * size))
            fail_msg("position %llu, pair %u: %.9g and %.9g, not %.9g and %.9g", (unsigned long long)position,
                     i, (double)row[i], (double)row[half + i], cosine * size, sine * size);
    }
}

static void a_table_has_the_angles_of_every_position(void **unused)
{
    static const tide_rope ropes[TIDE_ROPE_KINDS] = {
        {.theta = 10000},
        {.theta = 10000, .kind = TIDE_ROPE_LINEAR, .factor = 4},
        LLAMA3(.theta = 500000, .factor = 8, .original_context = 8192),
        YARN(.theta = 1e6, .factor = 4, .original_context = 32768, .attention_factor = 1.138629436111989),
    };
    enum { WIDTH = 12 };
    float *table = malloc((size_t)LONG_POSITIONS * WIDTH * sizeof *table);
    assert_non_null(table);
    for (int kind = 0; kind < TIDE_ROPE_KINDS; kind++) {
        const tide_model_config config = config_of(WIDTH, ropes[kind]);
        tide_rope_table(&config, LONG_POSITIONS, table);
        for (uint64_t position = 0; position < LONG_POSITIONS; position += position < 4096 ? 1 : 127)
            assert_row(&config, table + position * WIDTH, position);
        assert_row(&config, table + (LONG_POSITIONS - 1) * WIDTH, LONG_POSITIONS - 1);
    }
    free(table);
}

/* tide_rope_table keeps the frequencies in the last row while it makes the table, so a short table is a
 * special case. */
static void short_tables_are_the_long_ones_beginning(void **unused)
{
    const tide_model_config config = config_of(8, (tide_rope){.theta = 10000});
    float table[7 * 8], one[8] = {-1, -1, -1, -1, -1, -1, -1, -1};
    for (uint64_t positions = 1; positions <= 7; positions++) {
        memset(table, 0xff, sizeof table);
        tide_rope_table(&config, positions, table);
        for (uint64_t position = 0; position < positions; position++)
            assert_row(&config, table + position * 8, position);
    }
    tide_rope_table(&config, 0, one);
    for (int i = 0; i < 8; i++)
        assert_true(one[i] == -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_frequencies_are_powers_of_theta_and_linear_ones_a_share),
        cmocka_unit_test(an_odd_number_of_pairs_has_its_frequencies_too),
        cmocka_unit_test(llama3_keeps_short_waves_and_stretches_long_ones),
        cmocka_unit_test(yarn_ramps_by_dimension_rounded_or_not),
        cmocka_unit_test(yarns_attention_factor_grows_with_the_factors_logarithm),
        cmocka_unit_test(a_table_has_the_angles_of_every_position),
        cmocka_unit_test(short_tables_are_the_long_ones_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
