/* Division rounded up, and rounding up to a multiple. The functions also serve size_t. */
#ifndef TIDE_BASE_ALIGN_H
#define TIDE_BASE_ALIGN_H

#include <stdbool.h>
#include <stdint.h>

/* amount / part, rounded up. `part` is at least 1, and amount + part - 1 must fit. */
static inline uint64_t tide_ceil_div(uint64_t amount, uint64_t part)
{
    return (amount + part - 1) / part;
}

/* The next multiple of `multiple`, under the same conditions. */
static inline uint64_t tide_round_up(uint64_t amount, uint64_t multiple)
{
    return tide_ceil_div(amount, multiple) * multiple;
}

static inline bool tide_is_power_of_two(uint64_t number)
{
    return number != 0 && (number & (number - 1)) == 0;
}

#endif
