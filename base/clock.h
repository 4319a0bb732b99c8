/* The monotonic clock. It counts from an arbitrary moment, and setting the date does not change it. */
#ifndef TIDE_BASE_CLOCK_H
#define TIDE_BASE_CLOCK_H

#include <stdint.h>

/* A signal handler may call this. */
uint64_t tide_clock_ns(void);

static inline double tide_clock_seconds(void)
{
    return (double)tide_clock_ns() * 1e-9;
}

#endif
