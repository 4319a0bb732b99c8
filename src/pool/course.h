/* Steps that are played one after another, until they repeat: one by one, or in a cycle of a few that differ.
 *
 * The first step played records, and lasts until the second begins: it is left out. Steps bound by the link may never repeat.
 */
#ifndef TIDE_POOL_COURSE_H
#define TIDE_POOL_COURSE_H

#include "tidepool/pool.h"

enum { TIDE_COURSE_STEPS_MAX = 48 };

typedef struct tide_course {
    uint32_t
        enough; /* so many steps in a row must repeat, and each cycle twice, before it is no pause on the way */
    uint32_t most;  /* steps to keep, at most TIDE_COURSE_STEPS_MAX */
    uint64_t first; /* the number of the first step played, which is left out as are those before it */
    uint32_t count; /* of steps kept */
    tide_pool_counters steps[TIDE_COURSE_STEPS_MAX];
} tide_course;

/* Take the counters of all steps that the pool has finished. */
void tide_course_take(tide_course *course, tide_pool *pool);

/* After how many steps they repeat; 0: they don't yet. */
uint32_t tide_course_period(const tide_course *course);

/* Nothing more is to be learnt: they repeat, or there is no room for more. */
bool tide_course_is_over(const tide_course *course);

/* The mean of the last cycle, or, where there is none, of all steps after a dozen, of fewer than two dozen the last half: seconds,
 * bytes and counts; peaks and allocations are the last step's. At least one step is there. */
void tide_course_mean(const tide_course *course, tide_pool_counters *mean);

#endif
