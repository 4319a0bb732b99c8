#include "base/clock.h"

#include <time.h>

uint64_t tide_clock_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock and a valid pointer */
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
