#include "tests/pool/reference_kernels.h"

#include "tests/support/reference_pool.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

static char difference[256];
static atomic_int differences, difference_written;

const char *ref_difference(void)
{
    return atomic_load(&difference_written) ? difference : NULL;
}

static void note_difference(const ref_expect_args *args, uint64_t byte)
{
    if (atomic_fetch_add(&differences, 1) != 0)
        return;
    snprintf(difference, sizeof difference, "%s: byte %llu of %llu is not as expected", args->what,
             (unsigned long long)byte, (unsigned long long)args->bytes);
    atomic_store(&difference_written, 1);
}

static void compare(const ref_expect_args *args, uint64_t first, const char *expected, uint64_t bytes)
{
    const char *found = (const char *)args->found + first;
    if (memcmp(found, expected, bytes) == 0)
        return;
    uint64_t byte = 0;
    while (found[byte] == expected[byte])
        byte++;
    note_difference(args, first + byte);
}

tide_status ref_expect_kernel(void *stream, const void *arguments)
{
    (void)stream;
    enum { PIECE = 4096 };
    const ref_expect_args *args = arguments;
    if (args->expected != NULL)
        compare(args, 0, args->expected, args->bytes);
    for (uint64_t first = 0; first < args->bytes && args->expected == NULL; first += PIECE) {
        const uint64_t bytes = args->bytes - first < PIECE ? args->bytes - first : PIECE;
        char pattern[PIECE];
        ref_pattern(args->seed, first, pattern, bytes);
        compare(args, first, pattern, bytes);
    }
    return TIDE_OK;
}

tide_status ref_add_kernel(void *stream, const void *arguments)
{
    (void)stream;
    const ref_add_args *args = arguments;
    for (uint64_t i = 0; i < args->elements; i++)
        args->accumulator[i] =
            (args->overwrite ? 0 : args->accumulator[i]) + ref_amount(args->seed, (uint32_t)i) * args->factor;
    if (args->special != 0)
        args->accumulator[args->seed % args->elements] += args->special;
    return TIDE_OK;
}

tide_status ref_fill_kernel(void *stream, const void *arguments)
{
    (void)stream;
    const ref_fill_args *args = arguments;
    if (args->from != NULL)
        memcpy(args->to, args->from, args->bytes);
    else
        ref_pattern(args->seed, 0, args->to, args->bytes);
    return TIDE_OK;
}

tide_status ref_failing_kernel(void *stream, const void *arguments)
{
    (void)stream;
    (void)arguments;
    return tide_fail(TIDE_ERROR_IO, "this kernel fails on purpose");
}
