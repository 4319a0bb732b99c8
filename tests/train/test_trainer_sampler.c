#include "src/train/sampler.h"
#include "tests/support/assert_ok.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { VOCABULARY = 5, DRAWS = 20000 };

/* Probabilities of the tokens. make_logits gives their logarithms plus a constant. */
static const double probabilities[VOCABULARY] = {0.1, 0.4, 0.2, 0.25, 0.05};

static void make_logits(float logits[VOCABULARY])
{
    for (int i = 0; i < VOCABULARY; i++)
        logits[i] = (float)log(probabilities[i]) + 3;
}

static void draw(uint32_t top_k, double temperature, uint64_t seed, uint32_t sample,
                 unsigned counts[VOCABULARY])
{
    float logits[VOCABULARY];
    tide_sampler sampler;
    make_logits(logits);
    for (int i = 0; i < VOCABULARY; i++)
        counts[i] = 0;
    assert_int_equal(tide_sampler_init(&sampler, VOCABULARY, top_k, temperature, seed, sample), TIDE_OK);
    for (uint64_t position = 0; position < DRAWS; position++) {
        const int32_t token = tide_sampler_pick(&sampler, logits, position);
        assert_in_range(token, 0, VOCABULARY - 1);
        counts[token]++;
    }
    tide_sampler_free(&sampler);
}

static void draws_follow_the_probabilities(void **state)
{
    unsigned counts[VOCABULARY];
    draw(0, 1, 1, 0, counts);
    for (int i = 0; i < VOCABULARY; i++) /* within five standard deviations */
        assert_true(fabs(counts[i] - DRAWS * probabilities[i]) <
                    5 * sqrt(DRAWS * probabilities[i] * (1 - probabilities[i])));
}

static void temperature_zero_takes_the_likeliest(void **state)
{
    unsigned counts[VOCABULARY];
    draw(0, 0, 1, 0, counts);
    assert_int_equal(counts[1], DRAWS);
}

static void a_low_temperature_sharpens(void **state)
{
    unsigned counts[VOCABULARY];
    draw(0, 0.5, 1, 0, counts); /* temperature 0.5 squares the probabilities: token 1 gets 0.16 / 0.275 */
    assert_true(fabs(counts[1] - DRAWS * 0.16 / 0.275) < 5 * sqrt(DRAWS * 0.25));
}

static void top_k_draws_only_the_k_likeliest(void **state)
{
    unsigned counts[VOCABULARY];
    draw(2, 1, 1, 0, counts);
    assert_int_equal(counts[1] + counts[3], DRAWS);
    assert_true(counts[3] > 0);
}

static void a_draw_is_a_function_of_seed_sample_and_position(void **state)
{
    float logits[VOCABULARY];
    make_logits(logits);
    tide_sampler one, again, other;
    assert_int_equal(tide_sampler_init(&one, VOCABULARY, 0, 1, 7, 0), TIDE_OK);
    assert_int_equal(tide_sampler_init(&again, VOCABULARY, 0, 1, 7, 0), TIDE_OK);
    assert_int_equal(tide_sampler_init(&other, VOCABULARY, 0, 1, 7, 1), TIDE_OK);
    unsigned differ = 0;
    for (uint64_t i = 0; i < 100; i++) {
        const int32_t token = tide_sampler_pick(&one, logits, i);
        differ += token != tide_sampler_pick(&other, logits, i);
    }
    for (uint64_t i = 100; i-- > 0;)
        assert_int_equal(tide_sampler_pick(&one, logits, i), tide_sampler_pick(&again, logits, i));
    assert_true(differ > 20);
    tide_sampler_free(&one);
    tide_sampler_free(&again);
    tide_sampler_free(&other);
}

static void logits_that_are_not_finite_are_never_drawn(void **state)
{
    float logits[VOCABULARY] = {NAN, 1, INFINITY, 1, -INFINITY};
    tide_sampler sampler;
    assert_int_equal(tide_sampler_init(&sampler, VOCABULARY, 3, 1, 1, 0), TIDE_OK);
    for (uint64_t i = 0; i < 100; i++) {
        const int32_t token = tide_sampler_pick(&sampler, logits, i);
        assert_true(token == 1 || token == 3);
    }
    for (int i = 0; i < VOCABULARY; i++)
        logits[i] = NAN;
    assert_int_equal(tide_sampler_pick(&sampler, logits, 0), 0);
    tide_sampler_free(&sampler);
}

static void a_negative_temperature_is_refused(void **state)
{
    tide_sampler sampler;
    assert_int_equal(tide_sampler_init(&sampler, VOCABULARY, 0, -1, 1, 0), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_sampler_init(&sampler, VOCABULARY, 0, NAN, 1, 0), TIDE_ERROR_ARGUMENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(temperature_zero_takes_the_likeliest),
        cmocka_unit_test(a_low_temperature_sharpens),
        cmocka_unit_test(top_k_draws_only_the_k_likeliest),
        cmocka_unit_test(a_draw_is_a_function_of_seed_sample_and_position),
        cmocka_unit_test(logits_that_are_not_finite_are_never_drawn),
        cmocka_unit_test(a_negative_temperature_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
