#include "base/team.h"

#include "tide_config.h"

#include <assert.h>

#if TIDE_HAVE_OPENMP
#include <omp.h>
#endif

/* With fewer elements the calling thread finishes before the team is awake. */
enum { TEAM_ELEMENTS_MIN = 16384 };

static int thread_count = 1; /* the configured number; set at start, before any team runs */

void tide_team_configure(int threads)
{
    assert(threads >= 1);
    thread_count = tide_team_threads_of(threads);
}

int tide_team_threads_of(int threads)
{
    return TIDE_HAVE_OPENMP ? threads : 1;
}

int tide_team_threads(void)
{
    return thread_count;
}

/* The size of the calling thread's team: the configured number, but at most the number set in this thread; a
 * thread bound to a node has set it to the number of the node's processors. */
static int calling_threads(void)
{
#if TIDE_HAVE_OPENMP
    const int most = omp_get_max_threads();
    return thread_count < most ? thread_count : most;
#else
    return thread_count;
#endif
}

void tide_team_run(size_t count, size_t elements, tide_team_task task, const void *arguments)
{
    const int threads = calling_threads();
    if (threads == 1 || count == 1 || elements < TEAM_ELEMENTS_MIN) {
        for (size_t index = 0; index < count; index++)
            task(arguments, index);
        return;
    }
#pragma omp parallel for num_threads(threads) schedule(static)
    for (size_t index = 0; index < count; index++)
        task(arguments, index);
}

void tide_team_run_uneven(size_t count, tide_team_member_task task, const void *arguments)
{
    const int threads = calling_threads();
    if (threads == 1 || count == 1) {
        for (size_t index = 0; index < count; index++)
            task(arguments, index, 0);
        return;
    }
#if TIDE_HAVE_OPENMP
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1)
    for (size_t index = 0; index < count; index++)
        task(arguments, index, (size_t)omp_get_thread_num());
#endif
}
