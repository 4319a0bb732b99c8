/* Normally distributed numbers made in vectors have the bits that the C library's functions give, with
 * every instruction set. */
#include "tests/kernels/test_kernels.h"

#include "base/philox.h"

enum { BLOCKS = 1 << 18 };

static void words_of_block(const tide_normals_args *args, uint64_t block, uint32_t words[4])
{
    words[0] = (uint32_t)block;
    words[1] = (uint32_t)(block >> 32);
    words[2] = args->stream[0];
    words[3] = args->stream[1];
    for (uint32_t round = 0; round < TIDE_PHILOX_ROUNDS; round++)
        tide_philox_round(&words[0], &words[1], &words[2], &words[3], args->key, round);
}

/* The Box-Muller transform by the textbook. */
static void normals_of_words(const uint32_t words[4], double deviation, float values[4])
{
    for (int i = 0; i < 4; i += 2) {
        const double radius = sqrt(-2.0 * log(((double)words[i] + 1.0) * 0x1p-32));
        const double angle = (double)words[i + 1] * (6.283185307179586476925 * 0x1p-32);
        values[i] = (float)(radius * cos(angle) * deviation);
        values[i + 1] = (float)(radius * sin(angle) * deviation);
    }
}

static void assert_same_block(const tide_normals_args *args, uint64_t block, const float values[4])
{
    uint32_t words[4];
    float expected[4];
    words_of_block(args, block, words);
    normals_of_words(words, args->deviation, expected);
    if (memcmp(expected, values, sizeof expected) != 0)
        fail_msg("words %08x %08x %08x %08x times %g: %a %a %a %a instead of %a %a %a %a", words[0], words[1],
                 words[2], words[3], args->deviation, values[0], values[1], values[2], values[3], expected[0],
                 expected[1], expected[2], expected[3]);
}

static void check_many(const tide_cpu_variant *variant, const tide_normals_args *args, uint64_t first_block)
{
    float *values = malloc(BLOCKS * 4 * sizeof *values);
    assert_non_null(values);
    variant->normals(args, first_block, BLOCKS, values);
    for (size_t i = 0; i < BLOCKS; i++)
        assert_same_block(args, first_block + i, values + 4 * i);
    free(values);
}

static void normals_are_the_c_librarys(void **state)
{
    for (tide_cpu_isa isa = 0; isa < TIDE_CPU_ISA_COUNT; isa++) {
        const tide_cpu_variant *variant = tide_cpu_variant_get(isa);
        if (variant == NULL)
            continue;
        check_many(variant, &(tide_normals_args){{42, 0}, {0, 1}, 0.02}, 0);
        check_many(variant, &(tide_normals_args){{0x9abcdef0u, 0x12345678u}, {7, 3}, 1.0},
                   UINT64_C(0xffffff00));
        check_many(variant, &(tide_normals_args){{1, 2}, {3, 4}, 1e-38}, 12345); /* denormal results */
    }
}

/* Nine blocks of the stream, found among 131 million by trying, in which the kernel's series round one
 * value wrongly; the kernel has to notice that the value lies between two floats and to correct it. */
static void values_between_two_floats_are_the_c_librarys(void **state)
{
    static const uint32_t blocks[] = {9548780,  17863943,  24471392,  29764126, 45562432,
                                      45915612, 105507841, 115724039, 126456421};
    const tide_normals_args args = {{42, 0}, {3, 1}, 1.0};
    for (tide_cpu_isa isa = 0; isa < TIDE_CPU_ISA_COUNT; isa++) {
        const tide_cpu_variant *variant = tide_cpu_variant_get(isa);
        for (size_t i = 0; variant != NULL && i < sizeof blocks / sizeof blocks[0]; i++) {
            float values[4];
            variant->normals(&args, blocks[i], 1, values);
            assert_same_block(&args, blocks[i], values);
        }
    }
}

static uint32_t inverse(uint32_t odd)
{
    /* The product of x and `odd` is 1 in the lowest 3 bits; each step of Newton's method doubles that
     * number. */
    uint32_t x = odd;
    for (int i = 0; i < 4; i++)
        x *= 2 - odd * x;
    return x;
}

/* Finds the counter whose block has these words by running Philox's rounds backwards. */
static void counter_of_words(const uint32_t words[4], uint32_t counter[4])
{
    const uint32_t multiplier0 = 0xD2511F53u, multiplier1 = 0xCD9E8D57u;
    memcpy(counter, words, 4 * sizeof *counter);
    for (uint32_t round = TIDE_PHILOX_ROUNDS; round-- > 0;) {
        const uint32_t c2 = counter[1] * inverse(multiplier1), c0 = counter[3] * inverse(multiplier0);
        const uint32_t high1 = (uint32_t)((uint64_t)multiplier1 * c2 >> 32);
        const uint32_t high0 = (uint32_t)((uint64_t)multiplier0 * c0 >> 32);
        const uint32_t c1 = counter[0] ^ high1 ^ round * 0x9E3779B9u,
                       c3 = counter[2] ^ high0 ^ round * 0xBB67AE85u;
        counter[0] = c0;
        counter[1] = c1;
        counter[2] = c2;
        counter[3] = c3;
    }
}

static void check_words(const tide_cpu_variant *variant, const uint32_t words[4])
{
    uint32_t counter[4];
    float values[4];
    counter_of_words(words, counter);
    const tide_normals_args args = {.stream = {counter[2], counter[3]}, .deviation = 0.02};
    const uint64_t block = (uint64_t)counter[1] << 32 | counter[0];
    uint32_t back[4];
    words_of_block(&args, block, back);
    assert_memory_equal(back, words, sizeof back);
    variant->normals(&args, block, 1, values);
    assert_same_block(&args, block, values);
}

/* Words where the angle passes from one quarter turn to the next, where sine or cosine is zero, and where
 * the logarithm is zero or largest. */
static void words_at_the_edges_are_no_exception(void **state)
{
    static const uint32_t edges[] = {0,           0x20000000u, 0x40000000u, 0x60000000u, 0x80000000u,
                                     0xa0000000u, 0xb504f333u, 0xc0000000u, 0xe0000000u};
    enum { EDGES = sizeof edges / sizeof edges[0], NEAR = 3 };
    for (tide_cpu_isa isa = 0; isa < TIDE_CPU_ISA_COUNT; isa++) {
        const tide_cpu_variant *variant = tide_cpu_variant_get(isa);
        for (uint32_t i = 0; variant != NULL && i < EDGES * EDGES * (2 * NEAR + 1); i++) {
            const uint32_t radius = edges[i % EDGES], angle = edges[i / EDGES % EDGES],
                           off = i / EDGES / EDGES - NEAR;
            check_words(variant, (const uint32_t[]){radius + off, angle + off, radius - off, angle});
        }
    }
}

/* At angles whose cosine is zero the library's cosine of the rounded angle is about 1e-16. */
static void vanishing_sines_are_the_c_librarys(void **state)
{
    for (tide_cpu_isa isa = 0; isa < TIDE_CPU_ISA_COUNT; isa++) {
        const tide_cpu_variant *variant = tide_cpu_variant_get(isa);
        for (uint32_t radius = 0; variant != NULL && radius < 3 * 4096; radius++)
            check_words(variant, (const uint32_t[]){radius * 0x54321u, 0x40000000u, ~radius, 0xc0000000u});
    }
}

static void any_number_of_blocks_ends_where_it_should(void **state)
{
    enum { MOST = 70 };
    const tide_normals_args args = {{5, 6}, {7, 8}, 1.0};
    for (size_t blocks = 0; blocks <= MOST; blocks++) {
        float values[4 * MOST + 1];
        values[4 * blocks] = 77;
        tide_cpu_variant_best()->normals(&args, 9, blocks, values);
        assert_true(values[4 * blocks] == 77);
        for (size_t i = 0; i < blocks; i++)
            assert_same_block(&args, 9 + i, values + 4 * i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(normals_are_the_c_librarys),
        cmocka_unit_test(values_between_two_floats_are_the_c_librarys),
        cmocka_unit_test(words_at_the_edges_are_no_exception),
        cmocka_unit_test(vanishing_sines_are_the_c_librarys),
        cmocka_unit_test(any_number_of_blocks_ends_where_it_should),
    };
    return cmocka_run_group_tests_name("normals", tests, NULL, NULL);
}
