/* The order in which ranks' sums are added, against a recursive reference. */
#include "base/bf16.h"
#include "src/comm/tree.h"
#include "tests/support/assert_ok.h"
#include "tidepool/comm.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

enum { ELEMENTS_MAX = 2500 };

typedef struct tree_case {
    uint32_t count;
    float *values;    /* [count][ELEMENTS_MAX] */
    uint16_t *halves; /* [count][ELEMENTS_MAX] the values as bf16, of ranks for which is_bf16 */
    tide_tree_input *inputs;
} tree_case;

static uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Sums of very different sizes, so that another order gives other bits. */
static float random_sum(uint64_t *state)
{
    const float part = (float)next_random(state) / (float)(1u << 31) - 0.5f;
    return ldexpf(part, (int)(next_random(state) % 20) - 10);
}

static tree_case make_inputs(uint32_t count, bool with_bf16, uint64_t seed)
{
    tree_case made = {
        .count = count,
        .values = calloc((size_t)count * ELEMENTS_MAX, sizeof(float)),
        .halves = calloc((size_t)count * ELEMENTS_MAX, sizeof(uint16_t)),
        .inputs = calloc(count, sizeof(tide_tree_input)),
    };
    assert_true(made.values != NULL && made.halves != NULL && made.inputs != NULL);
    for (uint32_t rank = 0; rank < count; rank++) {
        float *values = made.values + (size_t)rank * ELEMENTS_MAX;
        uint16_t *halves = made.halves + (size_t)rank * ELEMENTS_MAX;
        const bool is_bf16 = with_bf16 && next_random(&seed) % 2 == 0;
        for (uint32_t i = 0; i < ELEMENTS_MAX; i++) {
            values[i] = random_sum(&seed);
            halves[i] = tide_bf16_from_float(values[i]);
            values[i] = is_bf16 ? tide_bf16_to_float(halves[i]) : values[i];
        }
        made.inputs[rank] = (tide_tree_input){is_bf16 ? (const void *)halves : values, is_bf16};
    }
    return made;
}

static void free_inputs(tree_case *made)
{
    free(made->values);
    free(made->halves);
    free(made->inputs);
}

static float reference(const tree_case *made, uint32_t first, uint32_t count, uint32_t element)
{
    uint32_t half = 1;
    if (count == 1)
        return made->values[(size_t)first * ELEMENTS_MAX + element];
    while (2 * half < count)
        half *= 2;
    return reference(made, first, half, element) + reference(made, first + half, count - half, element);
}

static void assert_same_sum(float sum, float expected)
{
    uint32_t bits, expected_bits;
    memcpy(&bits, &sum, sizeof bits);
    memcpy(&expected_bits, &expected, sizeof expected_bits);
    if (isnan(expected))
        assert_true(isnan(sum)); /* hardware may take any operand's NaN */
    else
        assert_int_equal(bits, expected_bits);
}

static void check(const tree_case *made, uint32_t elements)
{
    float out[ELEMENTS_MAX];
    memset(out, 0xab, sizeof out);
    tide_tree_sum(made->inputs, made->count, elements, out);
    for (uint32_t i = 0; i < elements; i++)
        assert_same_sum(out[i], reference(made, 0, made->count, i));
    for (size_t i = elements * sizeof *out; i < sizeof out; i++)
        assert_int_equal(((const uint8_t *)out)[i], 0xab);
}

static void sums_of_any_number_of_ranks_have_the_order_of_the_tree(void **state)
{
    for (uint32_t count = 1; count <= 48; count++) {
        tree_case made = make_inputs(count, false, count);
        check(&made, 37);
        free_inputs(&made);
    }
    for (uint32_t count = TIDE_RANKS_MAX - 1; count <= TIDE_RANKS_MAX; count++) {
        tree_case made = make_inputs(count, true, count);
        check(&made, 13);
        free_inputs(&made);
    }
}

static void sums_of_any_number_of_elements_are_complete(void **state)
{
    static const uint32_t elements[] = {0, 1, 2, 3, 1023, 1024, 1025, 2047, 2048, 2049, ELEMENTS_MAX};
    tree_case made = make_inputs(7, true, 1);
    for (size_t i = 0; i < sizeof elements / sizeof elements[0]; i++)
        check(&made, elements[i]);
    free_inputs(&made);
}

static void bf16_sums_are_added_in_fp32(void **state)
{
    for (uint32_t count = 1; count <= 9; count++) {
        tree_case made = make_inputs(count, true, 100 + count);
        check(&made, ELEMENTS_MAX);
        free_inputs(&made);
    }
}

static void the_result_may_replace_any_rank_s_sums(void **state)
{
    for (uint32_t rank = 0; rank < 6; rank++) {
        tree_case made = make_inputs(6, false, 7 + rank);
        float expected[ELEMENTS_MAX];
        float *own = made.values + (size_t)rank * ELEMENTS_MAX;
        for (uint32_t i = 0; i < ELEMENTS_MAX; i++)
            expected[i] = reference(&made, 0, 6, i);
        tide_tree_sum(made.inputs, 6, ELEMENTS_MAX, own);
        for (uint32_t i = 0; i < ELEMENTS_MAX; i++)
            assert_same_sum(own[i], expected[i]);
        free_inputs(&made);
    }
}

static void special_values_are_added_as_hardware_does(void **state)
{
    const float specials[] = {NAN, INFINITY, -INFINITY, -0.0f, 0.0f, 1e-45f, -3e38f, 3e38f};
    const uint32_t kinds = sizeof specials / sizeof specials[0];
    tree_case made = make_inputs(3, false, 5);
    for (uint32_t i = 0; i < kinds * kinds * kinds; i++) {
        made.values[i] = specials[i % kinds];
        made.values[ELEMENTS_MAX + i] = specials[i / kinds % kinds];
        made.values[2 * ELEMENTS_MAX + i] = specials[i / kinds / kinds];
    }
    check(&made, kinds * kinds * kinds);
    free_inputs(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_any_number_of_ranks_have_the_order_of_the_tree),
        cmocka_unit_test(sums_of_any_number_of_elements_are_complete),
        cmocka_unit_test(bf16_sums_are_added_in_fp32),
        cmocka_unit_test(the_result_may_replace_any_rank_s_sums),
        cmocka_unit_test(special_values_are_added_as_hardware_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
