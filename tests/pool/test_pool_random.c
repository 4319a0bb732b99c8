/* Random models, machines and calls on a pool, through its public header alone, beside a reference model of
 * plain arrays without chunks (reference_pool.h). The test predicts every status and compares every value,
 * most of them in kernels while the step runs. Some cases are played again on a second pool with another
 * machine and must give the same bits.
 *
 *   usage: test_pool_random [CASES [FIRST_SEED]]
 */
#include "tests/pool/pool_case.h"
#include "tests/pool/reference_kernels.h"
#include "tests/support/test_thin.h"

#include "tests/support/assert_ok.h"

#include <stdlib.h>

enum { CASES = 350, ALL_EVENTS = 175 }; /* a run of ALL_EVENTS cases or more must have met each event */
#ifdef __SANITIZE_THREAD__
enum { THIN = 18 };
#else
enum { THIN = 9 };
#endif

/* Seeds that have found a fault. */
static const uint64_t known_seeds[] = {1000008, 1000879};

static uint32_t case_count;
static uint64_t first_seed = 1;

static uint64_t play(uint64_t seed, uint32_t variant, bool *paired)
{
    static pool_case c;
    pool_case_create(&c, seed, variant);

    for (uint64_t steps = 2 + pool_random(&c, 9); steps > 0 || c.skips_to_come > 0; steps -= steps > 0) {
        pool_step(&c);
        pool_between(&c);
    }
    pool_check_all(&c);
    *paired = c.paired;
    const uint64_t hash = c.hash;
    pool_case_destroy(&c);
    if (ref_difference() != NULL)
        pool_case_fail(&c, "%s", ref_difference());
    return hash;
}

static void play_seed(uint64_t seed)
{
    bool paired;
    const uint64_t hash = play(seed, 0, &paired);
    pool_events[EVENT_CASES]++;
    if (paired && play(seed, 1, &paired) != hash)
        fail_msg("seed %llu: two machines give other bits\nalone: test_pool_random 1 %llu",
                 (unsigned long long)seed, (unsigned long long)seed);
    pool_events[EVENT_PAIRS] += paired;
}

static void a_pool_does_what_its_header_says(void **state)
{
    for (uint64_t seed = first_seed; seed < first_seed + case_count; seed++)
        play_seed(seed);
}

static void known_seeds_find_no_fault(void **state)
{
    for (size_t i = 0; i < sizeof known_seeds / sizeof known_seeds[0]; i++)
        play_seed(known_seeds[i]);
}

static void every_kind_of_event_was_met(void **state)
{
    for (int i = 0; i < EVENT_COUNT; i++)
        print_message("%s%llu %s", i == 0 ? "" : ", ", (unsigned long long)pool_events[i],
                      pool_event_names[i]);
    print_message("\n");
    for (int i = 0; i < EVENT_COUNT && pool_events[EVENT_CASES] >= ALL_EVENTS; i++)
        if (pool_events[i] == 0)
            fail_msg("no case met: %s", pool_event_names[i]);
}

int main(int count, char **arguments)
{
    case_count = count > 1 ? (uint32_t)strtoul(arguments[1], NULL, 10) : CASES / test_every(2, THIN);
    if (count > 2)
        first_seed = strtoull(arguments[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pool_does_what_its_header_says),
        cmocka_unit_test(known_seeds_find_no_fault),
        cmocka_unit_test(every_kind_of_event_was_met),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
