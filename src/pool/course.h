/* Steps that are played one after another until they repeat: one by one, or in a cycle of a few that differ.
 *
 * The manager records its schedule during the first step played, which lasts until the second begins; this
 * step is left out. Steps bound by the link may never repeat.
 */
#ifndef TIDE_POOL_COURSE_H
#define TIDE_POOL_COURSE_H

#include "tidepool/pool.h"

enum { TIDE_COURSE_STEPS_MAX = 48 };

typedef struct tide_course {
    uint32_t enough; /* steps in a row that must repeat, and each cycle twice */
    uint32_t most;   /* how many steps to keep, at most TIDE_COURSE_STEPS_MAX */
    uint64_t first;  /* number of the first step played; only later steps are kept */
    uint32_t count;  /* number of steps kept */
    tide_pool_counters steps[TIDE_COURSE_STEPS_MAX];
} tide_course;

/* Take the counters of all steps that the pool has finished. */
void tide_course_take(tide_course *course, tide_pool *pool);

/* After how many steps the course repeats; 0: it does not yet. */
uint32_t tide_course_period(const tide_course *course);

/* Does the course repeat, or is there no space for more steps? */
bool tide_course_is_over(const tide_course *course);

/* The mean of the last cycle. If there is none, that of all steps after the first twelve, or, of fewer than
 * 24 steps, that of their last half. Seconds, bytes and counts are means; peaks and allocations are the last
 * step's. There must be at least one step. */
void tide_course_mean(const tide_course *course, tide_pool_counters *mean);

#endif
