/* Normal random numbers from random words: Box-Muller in double precision, rounded once to fp32.
 *
 * The C library's log, cos and sin (pair_exactly) define the values, but to compute all of them so would
 * take nine tenths of the time in which a model's initial values are made. The code therefore computes
 * GROUP pairs at a time with polynomials in vectors, whose relative error in double is below DOUBT. fp32
 * is so much coarser that nearly always both ends of value (1 -+ DOUBT) round to the same fp32 number, to
 * which the library's result then rounds, too. If the ends differ for a value of a group, which happens in
 * about one group of a hundred, the library computes the whole group. The bits therefore do not depend on
 * the instruction set or on which of the two ways computed them.
 *
 * log: x = 2^e m with m in [sqrt(1/2), sqrt(2)), log m = 2 artanh(s) with s = (m - 1) / (m + 1), |s| < 0.172,
 * by the series of artanh up to s^15: the first term left out is 2^-44 of the sum. sin and cos: subtracting
 * quarter turns gives an angle r within pi/4; the series of sin up to r^13 and of cos up to r^14 have
 * relative errors of 2^-45 and 2^-49. A quarter turn is subtracted in two parts, the first of them exactly,
 * so that r is exact to 2^-85; sines and cosines near 0 (below NOTHING) count as in doubt all the same.
 */
#include "base/minmax.h"
#include "base/philox.h"
#include "kernels/cpu/variant.h"

#include <math.h>

enum { GROUP = 64 }; /* pairs of values that are computed at once */

static const double turn = 6.283185307179586476925 * 0x1p-32;

#define DOUBT   0x1p-40
#define NOTHING 0x1p-20

#if defined(__FMA__)
#define MULTIPLY_ADD(a, b, c) __builtin_fma(a, b, c)
#else
#define MULTIPLY_ADD(a, b, c) ((a) * (b) + (c))
#endif

typedef struct pair_group {
    uint32_t radius[GROUP], angle[GROUP]; /* random words */
    float cosine[GROUP], sine[GROUP];
} pair_group;

static inline double double_of(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Convert an integer below 2^52: puts it into the low bits of the double 2^52 and subtracts 2^52. */
static inline double double_of_integer(uint64_t value)
{
    return double_of(value | 0x4330000000000000u) - 0x1p52;
}

/* log x for 0 < x <= 1 that is not denormal. */
static inline double log_series(double x)
{
    const uint64_t root_half = 0x3FE6A09E667F3BCDu; /* sqrt(1/2) */
    const uint64_t shifted = bits_of(x) + (0x3FF0000000000000u - root_half);
    const double e = double_of_integer(shifted >> 52) - 1023.0;
    const double m = double_of((shifted & 0x000FFFFFFFFFFFFFu) + root_half);
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 1.0 / 15;
    p = MULTIPLY_ADD(p, z, 1.0 / 13);
    p = MULTIPLY_ADD(p, z, 1.0 / 11);
    p = MULTIPLY_ADD(p, z, 1.0 / 9);
    p = MULTIPLY_ADD(p, z, 1.0 / 7);
    p = MULTIPLY_ADD(p, z, 1.0 / 5);
    p = MULTIPLY_ADD(p, z, 1.0 / 3);
    p = MULTIPLY_ADD(p, z, 1.0);
    return MULTIPLY_ADD(e, 0x1.62e42fefa39efp-1, 2.0 * s * p);
}

static inline double sin_series(double r)
{
    const double z = r * r;
    double p = 1.0 / 6227020800;
    p = MULTIPLY_ADD(p, z, -1.0 / 39916800);
    p = MULTIPLY_ADD(p, z, 1.0 / 362880);
    p = MULTIPLY_ADD(p, z, -1.0 / 5040);
    p = MULTIPLY_ADD(p, z, 1.0 / 120);
    p = MULTIPLY_ADD(p, z, -1.0 / 6);
    p = MULTIPLY_ADD(p, z, 1.0);
    return p * r;
}

static inline double cos_series(double r)
{
    const double z = r * r;
    double p = -1.0 / 87178291200;
    p = MULTIPLY_ADD(p, z, 1.0 / 479001600);
    p = MULTIPLY_ADD(p, z, -1.0 / 3628800);
    p = MULTIPLY_ADD(p, z, 1.0 / 40320);
    p = MULTIPLY_ADD(p, z, -1.0 / 720);
    p = MULTIPLY_ADD(p, z, 1.0 / 24);
    p = MULTIPLY_ADD(p, z, -1.0 / 2);
    return MULTIPLY_ADD(p, z, 1.0);
}

/* Round to fp32; sets *doubt if the error of `value` could change the result. */
static inline float round_value(double value, int32_t *doubt)
{
    const float low = (float)(value - value * DOUBT), high = (float)(value + value * DOUBT);
    *doubt |= low != high;
    return high;
}

/* Compute a group with polynomials; true if any value is in doubt. */
static bool group_by_series(pair_group *group, double deviation)
{
    int32_t doubt = 0;
#pragma omp simd reduction(| : doubt)
    for (size_t i = 0; i < GROUP; i++) {
        const double radius = sqrt(-2.0 * log_series((double_of_integer(group->radius[i]) + 1.0) * 0x1p-32));
        const double angle = double_of_integer(group->angle[i]) * turn;
        const uint64_t quarter = ((uint64_t)group->angle[i] + 0x20000000u) >> 30; /* 0 to 4 */
        const double quarters = double_of_integer(quarter);
        const double r = (angle - quarters * 0x1.921fb544p+0) - quarters * 0x1.0b4611a626331p-34;
        const double a = cos_series(r), b = sin_series(r);
        const bool odd = (quarter & 1) != 0;
        const double cosine = double_of(bits_of(odd ? b : a) ^ ((quarter + 1) & 2) << 62);
        const double sine = double_of(bits_of(odd ? a : b) ^ (quarter & 2) << 62);
        doubt |= fabs(b) < NOTHING;
        group->cosine[i] = round_value(radius * cosine * deviation, &doubt);
        group->sine[i] = round_value(radius * sine * deviation, &doubt);
    }
    return doubt != 0;
}

static void pair_exactly(pair_group *group, size_t i, double deviation)
{
    const double radius = sqrt(-2.0 * log(((double)group->radius[i] + 1.0) * 0x1p-32));
    const double angle = (double)group->angle[i] * turn;
    group->cosine[i] = (float)(radius * cos(angle) * deviation);
    group->sine[i] = (float)(radius * sin(angle) * deviation);
}

static void group_make(pair_group *group, double deviation)
{
    if (!group_by_series(group, deviation))
        return;
    for (size_t i = 0; i < GROUP; i++)
        pair_exactly(group, i, deviation);
}

/* Make the random words of a group: GROUP / 2 blocks of two pairs each; each round goes over all blocks. */
static void group_words(const tide_normals_args *args, uint64_t first_block, pair_group *group)
{
    uint32_t words[4][GROUP / 2];
    for (size_t i = 0; i < GROUP / 2; i++) {
        words[0][i] = (uint32_t)(first_block + i);
        words[1][i] = (uint32_t)((first_block + i) >> 32);
        words[2][i] = args->stream[0];
        words[3][i] = args->stream[1];
    }
    for (uint32_t round = 0; round < TIDE_PHILOX_ROUNDS; round++) {
#pragma omp simd
        for (size_t i = 0; i < GROUP / 2; i++)
            tide_philox_round(&words[0][i], &words[1][i], &words[2][i], &words[3][i], args->key, round);
    }
    memcpy(group->radius, words[0], sizeof words[0]);
    memcpy(group->angle, words[1], sizeof words[1]);
    memcpy(group->radius + GROUP / 2, words[2], sizeof words[2]);
    memcpy(group->angle + GROUP / 2, words[3], sizeof words[3]);
}

void VARIANT(normals)(const tide_normals_args *args, uint64_t first_block, size_t blocks, float *values)
{
    for (size_t done = 0; done < blocks; done += GROUP / 2) {
        const size_t count = tide_min_u64(blocks - done, GROUP / 2);
        pair_group group;
        group_words(args, first_block + done, &group);
        group_make(&group, args->deviation);
        for (size_t i = 0; i < count; i++) {
            float *block = values + 4 * (done + i);
            block[0] = group.cosine[i];
            block[1] = group.sine[i];
            block[2] = group.cosine[i + GROUP / 2];
            block[3] = group.sine[i + GROUP / 2];
        }
    }
}
