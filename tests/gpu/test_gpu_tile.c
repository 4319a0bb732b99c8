/* The instructions that only a GPU has (kernels/cuda/tile.h), compared with matrices computed as plain
 * numbers and with the plain code that every other test runs.
 *
 * Products of small integers are exact in any order of their sum, so all three must be equal; this tests
 * the layout of fragments. Random numbers test the rounding: a GPU adds the 16 products and the old sum in
 * an order and with guard bits of its own, so the error is bounded by units of the sum of absolute values,
 * not of the result. Loads, copies and conversions round nothing and must have the same bits. On the CPU
 * both ways are the plain code, which shows that the test expects the right results. */
#include "tests/kernels/test_kernels.h"

#include "tests/gpu/gpu_tile.h"

enum { M = 16, N = 8, K = 16, LANES = GPU_TILE_LANES };

typedef struct matrices {
    double a[M][K], b[K][N], c[M][N];
} matrices;

static uint32_t narrow(tide_dtype dtype, double value)
{
    return dtype == TIDE_DTYPE_BF16 ? tide_bf16_from_float((float)value) : tide_fp16_from_float((float)value);
}

static double widened(tide_dtype dtype, double value)
{
    if (dtype == TIDE_DTYPE_FP32)
        return (double)(float)value;
    const uint16_t bits = (uint16_t)narrow(dtype, value);
    return (double)(dtype == TIDE_DTYPE_BF16 ? tide_bf16_to_float(bits) : tide_fp16_to_float(bits));
}

static void for_each_narrow(void (*check)(tide_dtype dtype))
{
    check(TIDE_DTYPE_BF16);
    check(TIDE_DTYPE_FP16);
}

/* --- the product --- */

static void for_each_dtype(void (*check)(tide_dtype dtype))
{
    check(TIDE_DTYPE_FP32);
    for_each_narrow(check);
}

/* Puts the matrices into fragments, as the picture in tile.h shows. */
static void product_pack(gpu_tile_product *product, const matrices *m)
{
    for (int lane = 0; lane < LANES; lane++) {
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++) {
            const int row = g + i % 2 * 8, k = 2 * t + i / 2 * 8;
            for (int j = 0; j < 2; j++)
                product->a[lane][i][j] = (float)m->a[row][k + j];
            product->c[lane][i] = (float)m->c[g + i / 2 * 8][2 * t + i % 2];
        }
        for (int i = 0; i < 2; i++) {
            const int k = 2 * t + 8 * i;
            for (int j = 0; j < 2; j++)
                product->b[lane][i][j] = (float)m->b[k + j][g];
        }
    }
}

static void check_whole_numbers(tide_dtype dtype)
{
    buffer block = buffer_bytes(sizeof(gpu_tile_product));
    gpu_tile_product *product = block.data;
    matrices m;
    for (int row = 0; row < M; row++)
        for (int k = 0; k < K; k++)
            m.a[row][k] = (row * 5 + k * 3) % 17 - 8;
    for (int k = 0; k < K; k++)
        for (int column = 0; column < N; column++)
            m.b[k][column] = (k * 7 + column * 11) % 13 - 6;
    for (int row = 0; row < M; row++)
        for (int column = 0; column < N; column++)
            m.c[row][column] = 1000 * row + column;
    product_pack(product, &m);
    run_kernel(gpu_tile_multiply, &(gpu_tile_args){.data = product, .dtype = dtype});
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
            double expected = m.c[row][column];
            for (int k = 0; k < K; k++)
                expected += m.a[row][k] * m.b[k][column];
            assert_true((double)product->by_reference[lane][i] == expected);
            assert_true((double)product->by_instruction[lane][i] == expected);
        }
    buffer_free(block);
}

static void products_of_whole_numbers_are_exact(void **state)
{
    for_each_dtype(check_whole_numbers);
}

static void matrices_random(matrices *m, tide_dtype dtype, double scale)
{
    for (int row = 0; row < M; row++)
        for (int k = 0; k < K; k++)
            m->a[row][k] = widened(dtype, scale * random_value());
    for (int k = 0; k < K; k++)
        for (int column = 0; column < N; column++)
            m->b[k][column] = widened(dtype, random_value());
    for (int row = 0; row < M; row++)
        for (int column = 0; column < N; column++)
            m->c[row][column] = (double)(float)random_value();
}

/* The tolerance: each of 16 fused steps errs by half a unit; the instruction may truncate each of 17 terms
 * at one unit. */
static void expect_rounded(const gpu_tile_product *product, const matrices *m)
{
    for (int lane = 0; lane < LANES; lane++)
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i / 2 * 8, column = 2 * (lane % 4) + i % 2;
            double expected = m->c[row][column], size = fabs(expected);
            for (int k = 0; k < K; k++) {
                expected += m->a[row][k] * m->b[k][column];
                size += fabs(m->a[row][k] * m->b[k][column]);
            }
            assert_true(fabs((double)product->by_reference[lane][i] - expected) <= ldexp(size, -24) * 16);
            assert_true(fabs((double)product->by_instruction[lane][i] - expected) <= ldexp(size, -23) * 17);
#ifdef TEST_CUDA_ON_CPU
            assert_true(product->by_instruction[lane][i] == product->by_reference[lane][i]);
#endif
        }
}

static void check_random_numbers(tide_dtype dtype)
{
    buffer block = buffer_bytes(sizeof(gpu_tile_product));
    matrices m;
    for (int round = 0; round < 50; round++) {
        matrices_random(&m, dtype, ldexp(1.0, round % 10 - 5));
        product_pack(block.data, &m);
        run_kernel(gpu_tile_multiply, &(gpu_tile_args){.data = block.data, .dtype = dtype});
        expect_rounded(block.data, &m);
    }
    buffer_free(block);
}

static void products_of_random_numbers_are_rounded_in_fp32(void **state)
{
    for_each_dtype(check_random_numbers);
}

/* --- loading four matrices of a tile --- */

/* The index of a granule of a row, permuted as tile.h says. */
static int granule_at(int row, int granule)
{
    return row * GPU_TILE_ROWS + (granule ^ (row & 7)) * GPU_TILE_GRANULE;
}

static void check_matrices(tide_dtype dtype)
{
    buffer block = buffer_bytes(sizeof(gpu_tile_matrices));
    gpu_tile_matrices *it = block.data;
    for (int first = 0; first + 32 <= GPU_TILE_ROWS; first += 8) {
        for (int i = 0; i < GPU_TILE_NUMBERS; i++)
            it->tile[i] = (uint16_t)(i * 40503 + 17);
        /* matrix i has rows first + 8 i and following, and granule 5 i + first / 8 */
        for (int lane = 0; lane < LANES; lane++)
            it->own[lane] = granule_at(first + lane, (lane / 8 * 5 + first / 8) % 8);
        run_kernel(gpu_tile_load, &(gpu_tile_args){.data = it, .dtype = dtype});
        for (int lane = 0; lane < LANES; lane++)
            for (int i = 0; i < 4; i++) {
                const int g = lane / 4, t = lane % 4;
                const uint32_t straight = it->tile[it->own[8 * i + g] + 2 * t] |
                                          (uint32_t)it->tile[it->own[8 * i + g] + 2 * t + 1] << 16;
                const uint32_t transposed = it->tile[it->own[8 * i + 2 * t] + g] |
                                            (uint32_t)it->tile[it->own[8 * i + 2 * t + 1] + g] << 16;
                assert_int_equal(it->by_reference[0][lane][i], straight);
                assert_int_equal(it->by_instruction[0][lane][i], straight);
                assert_int_equal(it->by_reference[1][lane][i], transposed);
                assert_int_equal(it->by_instruction[1][lane][i], transposed);
            }
    }
    buffer_free(block);
}

static void matrices_of_a_tile_are_loaded_straight_and_transposed(void **state)
{
    for_each_narrow(check_matrices);
}

/* --- copies --- */

static void check_copies(tide_dtype dtype)
{
    buffer block = buffer_bytes(sizeof(gpu_tile_copies));
    gpu_tile_copies *it = block.data;
    static uint16_t expected[GPU_TILE_NUMBERS];
    for (int i = 0; i < GPU_TILE_NUMBERS; i++)
        expected[i] = it->tile[i] = 0x7e7e;
    for (int group = 0; group < 2; group++)
        for (int lane = 0; lane < LANES; lane++) {
            it->at[group][lane] = granule_at(lane + 32 * group, (3 * lane + group) % 8);
            it->inside[group][lane] = lane % 3 != group;
            for (int i = 0; i < GPU_TILE_GRANULE; i++) {
                uint16_t *from = &it->from[group][lane * GPU_TILE_GRANULE + i];
                *from = (uint16_t)(1 + 1000 * group + 8 * lane + i);
                expected[it->at[group][lane] + i] = it->inside[group][lane] ? *from : 0;
            }
        }
    run_kernel(gpu_tile_copy, &(gpu_tile_args){.data = it, .dtype = dtype});
    for (int lane = 0; lane < LANES; lane++)
        assert_memory_equal(&it->early[lane * GPU_TILE_GRANULE], &expected[it->at[0][lane]],
                            GPU_TILE_GRANULE * sizeof expected[0]);
    assert_memory_equal(it->tile, expected, sizeof expected);
    buffer_free(block);
}

static void copies_are_there_when_their_group_was_waited_for_and_zero_outside(void **state)
{
    for_each_narrow(check_copies);
}

/* --- conversions --- */

/* Converts every number on a GPU; on the CPU the numbers near special values: denormals, ties, overflow,
 * infinities, NaNs. */
static void check_conversions(tide_dtype dtype)
{
#ifdef TEST_CUDA_ON_CPU
    static const uint32_t firsts[] = {
        0, 0x33000000u - 0x8000u, 0x38800000u - 0x8000u, 0x3f800000u, 0x477f0000u, 0x7f7f8000u, 0xfff00000u};
    const uint32_t count = 1u << 16;
#else
    static const uint32_t firsts[] = {0, 0x40000000u, 0x80000000u, 0xc0000000u};
    const uint32_t count = 1u << 30;
#endif
    buffer block = buffer_bytes(sizeof(gpu_tile_conversions));
    gpu_tile_conversions *it = block.data;
    for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
        *it = (gpu_tile_conversions){0};
        run_kernel(gpu_tile_convert,
                   &(gpu_tile_args){.data = it, .dtype = dtype, .first = firsts[i], .count = count});
        if (it->wrong_down + it->wrong_pairs + it->wrong_up > 0)
            fail_msg("dtype %d: %u wrong, %u in pairs, %u on the way up; one has the bits %08x", (int)dtype,
                     it->wrong_down, it->wrong_pairs, it->wrong_up, it->an_example);
    }
    buffer_free(block);
}

static void every_number_is_converted_to_the_cpus_bits(void **state)
{
    for_each_narrow(check_conversions);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_of_whole_numbers_are_exact),
        cmocka_unit_test(products_of_random_numbers_are_rounded_in_fp32),
        cmocka_unit_test(matrices_of_a_tile_are_loaded_straight_and_transposed),
        cmocka_unit_test(copies_are_there_when_their_group_was_waited_for_and_zero_outside),
        cmocka_unit_test(every_number_is_converted_to_the_cpus_bits),
    };
    return RUN_KERNEL_TESTS(tests);
}
