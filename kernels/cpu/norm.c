/* Sums that must have the same bits on every machine: the gradient's norm and the loss.
 *
 * Floating-point sums depend on their order, so kernels.h fixes the order: eight float64 lanes within a leaf
 * of 64 elements, then leaves in order, then blocks in order. Eight lanes are one AVX-512 register, two of
 * AVX2, four of SSE2. Each product is rounded before it is added, since not every instruction set has a fused
 * multiply-add. The square of a bf16, fp16 or fp32 number is exact in float64, so a norm is as exact as the
 * stored gradient.
 */
#include "base/minmax.h"
#include "base/team.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/variant.h"

enum { NORM_LANES = 8, DOUBLES = LANES / 2, PARTS = NORM_LANES / DOUBLES };

typedef double doubles __attribute__((vector_size(8 * DOUBLES)));
typedef float half_lanes __attribute__((vector_size(4 * DOUBLES)));
typedef uint16_t half_16 __attribute__((vector_size(2 * DOUBLES)));
typedef uint32_t half_bits __attribute__((vector_size(4 * DOUBLES)));

/* Convert to 32 bits per lane; the code names the instruction for the same reason as lanes_widen. */
LANES_INLINE half_bits half_widen(half_16 half)
{
#if defined(__AVX512F__)
    return (half_bits)_mm256_cvtepu16_epi32((__m128i)half);
#else
    return __builtin_convertvector(half, half_bits);
#endif
}

LANES_INLINE half_lanes half_from_fp16(half_16 half)
{
#if defined(__AVX512F__)
    return (half_lanes)_mm256_cvtph_ps((__m128i)half);
#elif defined(__AVX2__)
    uint64_t bits;
    memcpy(&bits, &half, sizeof bits);
    return (half_lanes)_mm_cvtph_ps(_mm_cvtsi64_si128((long long)bits));
#else
    half_lanes value;
    for (size_t i = 0; i < DOUBLES; i++)
        value[i] = tide_fp16_to_float(half[i]);
    return value;
#endif
}

LANES_INLINE doubles half_to_doubles(half_lanes value)
{
#if defined(__AVX512F__)
    return (doubles)_mm512_cvtps_pd((__m256)value);
#elif defined(__AVX2__)
    return (doubles)_mm256_cvtps_pd((__m128)value);
#else
    return __builtin_convertvector(value, doubles);
#endif
}

LANES_INLINE doubles doubles_load(const void *base, size_t index, tide_dtype dtype)
{
    half_lanes value;
    if (dtype != TIDE_DTYPE_FP32) {
        half_16 half;
        memcpy(&half, (const uint16_t *)base + index, sizeof half);
        value = dtype == TIDE_DTYPE_BF16 ? (half_lanes)(half_widen(half) << 16) : half_from_fp16(half);
    } else {
        memcpy(&value, (const float *)base + index, sizeof value);
    }
    return half_to_doubles(value);
}

static double leaf_fold(const double lane[NORM_LANES])
{
    return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}

LANES_INLINE double leaf_squares(const void *gradient, size_t begin, tide_dtype dtype)
{
    doubles sums[PARTS] = {0};
    for (size_t i = 0; i < TIDE_NORM_LEAF_ELEMENTS; i += NORM_LANES)
        for (size_t part = 0; part < PARTS; part++) {
            const doubles x = doubles_load(gradient, begin + i + part * DOUBLES, dtype);
            sums[part] += x * x;
        }
    double lane[NORM_LANES];
    memcpy(lane, sums, sizeof lane);
    return leaf_fold(lane);
}

/* Sum of squares of a tensor's last leaf, if it has fewer than 64 elements: `count` of them. Adds in the
 * order of leaf_squares, with zeros for the missing elements. */
LANES_INLINE double leaf_squares_some(const void *gradient, size_t begin, size_t count, tide_dtype dtype)
{
    float some[TIDE_NORM_LEAF_ELEMENTS] = {0};
    for (size_t i = 0; i < count; i++)
        some[i] = element_get(gradient, begin + i, dtype);
    return leaf_squares(some, 0, TIDE_DTYPE_FP32);
}

/* Add the leaves of [begin, end) to `sum` in order. */
LANES_INLINE double block_squares(double sum, const void *gradient, size_t begin, size_t end,
                                  tide_dtype dtype)
{
    for (size_t i = begin; i < end; i += TIDE_NORM_LEAF_ELEMENTS)
        sum += end - i >= TIDE_NORM_LEAF_ELEMENTS ? leaf_squares(gradient, i, dtype)
                                                  : leaf_squares_some(gradient, i, end - i, dtype);
    return sum;
}

/* Sum the part of a block that is in the range; `index` counts the blocks that overlap the range. */
static void block_task(const void *arguments, size_t index)
{
    const tide_gradient_norm_args *args = arguments;
    const size_t first = args->first_element, last = first + args->elements;
    const size_t block = first / TIDE_NORM_BLOCK_ELEMENTS + index;
    const size_t begin = tide_max_u64(block * TIDE_NORM_BLOCK_ELEMENTS, first);
    const size_t end = tide_min_u64((block + 1) * TIDE_NORM_BLOCK_ELEMENTS, last);
    const double before = begin % TIDE_NORM_BLOCK_ELEMENTS == 0 ? 0.0 : args->blocks[block];
    args->blocks[block] =
        BY_DTYPE(args->dtype, block_squares, before, args->gradient, begin - first, end - first);
}

tide_status VARIANT(gradient_norm)(void *stream, const void *arguments)
{
    const tide_gradient_norm_args *args = arguments;
    const size_t first_block = args->first_element / TIDE_NORM_BLOCK_ELEMENTS;
    (void)stream;
    assert(args->first_element % TIDE_NORM_LEAF_ELEMENTS == 0);
    if (args->elements == 0)
        return TIDE_OK;
    assert(args->gradient && args->blocks);
    tide_team_run(tide_norm_blocks(args->first_element + args->elements) - first_block, args->elements,
                  block_task, args);
    return TIDE_OK;
}

tide_status VARIANT(norm_sum)(void *stream, const void *arguments)
{
    const tide_norm_sum_args *args = arguments;
    double lane_sums[TIDE_NORM_SUM_LANES] = {0}, sum = 0.0;
    (void)stream;
    assert(args->sum && (args->blocks_count == 0 || args->blocks));
    for (size_t block = 0; block < args->blocks_count; block++)
        lane_sums[block % TIDE_NORM_SUM_LANES] += args->blocks[block];
    for (size_t lane = 0; lane < TIDE_NORM_SUM_LANES; lane++)
        sum += lane_sums[lane];
    *args->sum = sum;
    return TIDE_OK;
}

tide_status VARIANT(loss_sum)(void *stream, const void *arguments)
{
    const tide_loss_sum_args *args = arguments;
    double sum = 0.0;
    (void)stream;
    assert(args->sum && (args->rows == 0 || args->losses));
    for (size_t begin = 0; begin < args->rows; begin += TIDE_NORM_LEAF_ELEMENTS) {
        const size_t end = tide_min_u64(begin + TIDE_NORM_LEAF_ELEMENTS, args->rows);
        double leaf = 0.0;
        for (size_t row = begin; row < end; row++)
            leaf += (double)args->losses[row];
        sum += leaf;
    }
    *args->sum = sum;
    return TIDE_OK;
}
