/* The team of threads inside a CPU kernel: which processors it runs on and how many threads it has. */
#include "base/team.h"
#include "tests/kernels/test_kernels.h"

#include <pthread.h>
#include <sched.h>

/* Where each task of a team ran. Task i writes only element i of each array. */
enum { TASKS = 16 };
typedef struct places {
    cpu_set_t bound_to;
    pthread_t threads[TASKS];
    cpu_set_t processors[TASKS];
} places;

static void note_place(const void *arguments, size_t index)
{
    places *it = *(places *const *)arguments;
    it->threads[index] = pthread_self();
    /* if the call fails, the set stays empty */
    (void)sched_getaffinity(0, sizeof it->processors[index], &it->processors[index]);
}

static void run_noting_places(places *seen)
{
    const places *arguments = seen;
    tide_team_run(TASKS, 1 << 20, note_place, &arguments);
}

static void keep_first_processor(cpu_set_t *processors)
{
    size_t first = 0;
    while (!CPU_ISSET(first, processors))
        first++;
    CPU_ZERO(processors);
    CPU_SET(first, processors);
}

/* Binds itself to a processor before it starts its first team, as the host executor's thread does. */
static void *bound_thread(void *argument)
{
    places *seen = argument;
    omp_set_num_threads(2);
    if (sched_getaffinity(0, sizeof seen->bound_to, &seen->bound_to) != 0)
        return NULL;
    keep_first_processor(&seen->bound_to);
    if (sched_setaffinity(0, sizeof seen->bound_to, &seen->bound_to) == 0)
        run_noting_places(seen);
    return NULL;
}

static void the_team_of_a_bound_thread_stays_on_its_processors(void **state)
{
    static places seen;
    pthread_t thread;
    /* The user has chosen the processors. */
    if (getenv("OMP_PROC_BIND"))
        skip();
    tide_kernels_cpu_configure(2);
    assert_int_equal(pthread_create(&thread, NULL, bound_thread, &seen), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    for (size_t i = 0; i < TASKS; i++)
        assert_true(CPU_COUNT(&seen.bound_to) == 1 && CPU_EQUAL(&seen.processors[i], &seen.bound_to));
    assert_false(pthread_equal(seen.threads[0], seen.threads[TASKS - 1]));
}

static void a_team_has_no_more_threads_than_its_caller_was_given(void **state)
{
    static places seen;
    use_threads(2);
    omp_set_num_threads(1);
    run_noting_places(&seen);
    for (size_t i = 0; i < TASKS; i++)
        assert_true(pthread_equal(seen.threads[i], pthread_self()));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_team_of_a_bound_thread_stays_on_its_processors),
        cmocka_unit_test(a_team_has_no_more_threads_than_its_caller_was_given),
    };
    return RUN_KERNEL_TESTS(tests);
}
