#include "src/pool/course.h"

#include <assert.h>
#include <math.h>

enum { PERIOD_MAX = 8, SETTLING_STEPS = 12 };
static const double equal_part = 1e-3;

void tide_course_take(tide_course *course, tide_pool *pool)
{
    assert(course->most <= TIDE_COURSE_STEPS_MAX);
    uint64_t step;
    tide_pool_counters counters;
    while (tide_pool_step_counters_take(pool, &step, &counters)) {
        if (step > course->first && course->count < course->most)
            course->steps[course->count++] = counters;
    }
}

static bool is_equal(double a, double b)
{
    return fabs(a - b) <= equal_part * a;
}

uint32_t tide_course_period(const tide_course *course)
{
    const tide_pool_counters *steps = course->steps;
    for (uint32_t period = 1; period <= PERIOD_MAX; period++) {
        const uint32_t enough = 2 * period > course->enough ? 2 * period : course->enough;
        uint32_t equal = 0;
        while (equal < enough && equal + period < course->count &&
               is_equal(steps[course->count - 1 - equal].seconds,
                        steps[course->count - 1 - equal - period].seconds))
            equal++;
        if (equal == enough)
            return period;
    }
    return 0;
}

bool tide_course_is_over(const tide_course *course)
{
    return course->count == course->most || tide_course_period(course) != 0;
}

/* The mean of a sum of counts or bytes, rounded. */
static uint64_t mean_count(double sum, uint32_t count)
{
    return (uint64_t)(sum / count + 0.5);
}

void tide_course_mean(const tide_course *course, tide_pool_counters *mean)
{
    const uint32_t period = tide_course_period(course),
                   settling = course->count > 2 * SETTLING_STEPS ? SETTLING_STEPS : course->count / 2,
                   count = period != 0 ? period : course->count - settling;
    assert(count > 0 && count <= course->count);
    double h2d = 0, d2h = 0, evictions = 0, demands = 0, prefetches = 0;
    *mean = course->steps[course->count - 1];
    mean->seconds = mean->compute_seconds = mean->stall_seconds = 0;
    mean->adam_host_seconds = mean->adam_device_seconds = 0;
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        mean->stall_seconds_by[cause] = 0;
    for (uint32_t i = course->count - count; i < course->count; i++) {
        const tide_pool_counters *step = &course->steps[i];
        mean->seconds += step->seconds / count;
        mean->compute_seconds += step->compute_seconds / count;
        mean->stall_seconds += step->stall_seconds / count;
        mean->adam_host_seconds += step->adam_host_seconds / count;
        mean->adam_device_seconds += step->adam_device_seconds / count;
        for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
            mean->stall_seconds_by[cause] += step->stall_seconds_by[cause] / count;
        h2d += (double)step->h2d_bytes, d2h += (double)step->d2h_bytes;
        evictions += (double)step->evictions;
        demands += (double)step->demand_fetches, prefetches += (double)step->prefetches;
    }
    mean->h2d_bytes = mean_count(h2d, count);
    mean->d2h_bytes = mean_count(d2h, count);
    mean->evictions = mean_count(evictions, count);
    mean->demand_fetches = mean_count(demands, count);
    mean->prefetches = mean_count(prefetches, count);
}
