/* Steps that a pool without data simulates one after another until their durations repeat: each step lasts as
 * long as the last one, or a cycle of a few steps does.
 *
 * The first step is left out, because the manager still records its schedule during it. Steps that wait for
 * the link most of the time may never repeat.
 */
#ifndef TIDE_POOL_COURSE_H
#define TIDE_POOL_COURSE_H

#include "tidepool/pool.h"

enum { TIDE_COURSE_STEPS_MAX = 48 };

typedef struct tide_course {
    uint32_t enough; /* how many steps in a row must repeat; a longer cycle must repeat twice */
    uint32_t most;   /* how many steps to keep, at most TIDE_COURSE_STEPS_MAX */
    uint64_t first;  /* number of the first step played; only later steps are kept */
    uint32_t count;  /* number of steps kept */
    tide_pool_counters steps[TIDE_COURSE_STEPS_MAX];
} tide_course;

/* Take the counters of all steps that the pool has finished. */
void tide_course_take(tide_course *course, tide_pool *pool);

/* The number of steps in the cycle that repeats, 1 if every step is the same; 0: nothing repeats yet. */
uint32_t tide_course_period(const tide_course *course);

/* Is the simulation over, since the steps repeat or `most` of them are kept? */
bool tide_course_is_over(const tide_course *course);

/* The mean step of the last cycle. If nothing repeats: the mean of all steps after the first twelve, or of
 * the later half if there are at most 24 steps. Seconds, bytes and counts are means; peaks and allocations
 * are those of the last step. At least one step must be kept. */
void tide_course_mean(const tide_course *course, tide_pool_counters *mean);

#endif
