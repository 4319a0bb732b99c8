/* Every wait between streams is needed: the test disables in turn each site of src/pool/order.h, that is,
 * each place in the code where a stream or a thread waits for a stream, and the hazard checker must name the
 * two commands that are no longer ordered. If no run reports a site, its wait should be deleted.
 *
 * The checker works when commands are enqueued, so whether it reports a missing wait does not depend on
 * timing. Whether the program comes to a site may: UNMAP_IN, for instance, is reached only if a chunk leaves
 * unused because another fetch overtook it. The test therefore plays its scenes, short trainings under
 * different budgets and options, with different delays until the checker reports the site.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/pool/internal.h"
#include "tests/support/assert_ok.h"
#include "tests/support/pool_fixture.h"
#include "tests/support/test_thin.h"

typedef struct scene {
    double device_share;
    bool least_host;
    tide_placement placement;
    bool prefetch;
    float clip_norm;
    bool skips;  /* steps have a norm that is not finite, so params are restored */
    bool beside; /* gradients are finished on a stream of their own */
} scene;

/* Together these scenes reach every site. */
static const scene scenes[] = {
    {0.0, false, TIDE_PLACEMENT_HOST, true, 1.0F, false, false},
    {0.3, true, TIDE_PLACEMENT_HOST, true, 0.0F, false, false},
    {0.0, false, TIDE_PLACEMENT_DEVICE, true, 1.0F, false, false},
    {0.3, true, TIDE_PLACEMENT_DEVICE, true, 0.0F, false, false},
    {0.6, true, TIDE_PLACEMENT_AUTO, false, 1.0F, false, false},
    {1.0, false, TIDE_PLACEMENT_AUTO, true, 1.0F, false, false},
    {0.0, true, TIDE_PLACEMENT_DEVICE, false, 0.0F, false, false},
    {0.1, true, TIDE_PLACEMENT_DEVICE, true, 1.0F, false, false},
    {0.0, true, TIDE_PLACEMENT_DEVICE, true, 1.0F, true, false},
    {0.0, false, TIDE_PLACEMENT_HOST, true, 0.0F, false, true},
    {0.3, true, TIDE_PLACEMENT_DEVICE, true, 0.0F, false, true},
    {0.6, true, TIDE_PLACEMENT_AUTO, true, 1.0F, false, true},
    {0.0, true, TIDE_PLACEMENT_DEVICE, true, 1.0F, true, true},
};

enum { SCENES = sizeof scenes / sizeof scenes[0], STEPS = 4, TRIES = 8 };

/* Read and set a param. The pool has already prefetched it for the next step and must bring it back to the
 * host for the write. */
static tide_status set_what_is_fetched(pool_fixture *fixture)
{
    float value;
    const tide_status status =
        tide_param_get(fixture->pool, fixture->params[0], TIDE_VALUE_MASTER, 0, 1, &value);
    return status == TIDE_OK
               ? tide_param_set(fixture->pool, fixture->params[0], TIDE_VALUE_MASTER, 0, 1, &value)
               : status;
}

static tide_status play(const scene *played, uint64_t delay_seed, uint32_t skip_site,
                        uint64_t waits[TIDE_WAIT_SITE_COUNT])
{
    pool_fixture_options options = pool_fixture_options_default();
    options.device_share = played->device_share;
    options.least_host = played->least_host;
    options.pool.placement = played->placement;
    options.pool.prefetch = played->prefetch;
    options.pool.checks.skip_wait_site = skip_site;
    options.pool.checks.finish_beside = played->beside;
    options.pool.staging_bytes = 4096; /* so that a write takes several pieces */
    options.pool.checks.delay_seed =
        delay_seed; /* delays keep commands running that would otherwise end at once */
    options.pool.checks.delay_max_us = 100;
    options.pool.checks.fault_handler = false;
    options.pool.checks.guard =
        false; /* with the guard, a missing wait would fault before the checker reports it */
    pool_fixture fixture;
    tide_status status = pool_fixture_create(&options, &fixture);
    if (status != TIDE_OK)
        return status;
    const float infinite = INFINITY;
    if (played->skips)
        status = tide_param_set(fixture.pool, fixture.params[0], TIDE_VALUE_MASTER, 0, 1, &infinite);
    for (int step = 0; step < STEPS && status == TIDE_OK; step++) {
        float state[16];
        status = pool_fixture_step(&fixture, played->clip_norm, false);
        if (status == TIDE_OK && step % 2 == 1)
            status = tide_read(fixture.pool, state, tide_region(fixture.pool), sizeof state);
        tide_step_result result;
        if (status == TIDE_OK)
            status = tide_step_result_get(fixture.pool, &result);
        if (status == TIDE_OK)
            status = set_what_is_fetched(&fixture);
    }
    uint64_t hash;
    if (status == TIDE_OK)
        status = pool_fixture_hash(&fixture, TIDE_VALUE_MASTER, &hash);
    tide_device *device = fixture.pool->context.device;
    tide_device_statistics statistics;
    device->ops->statistics(device, &statistics);
    memcpy(waits, statistics.waits, sizeof statistics.waits);
    char message[1024];
    snprintf(message, sizeof message, "%s", tide_message());
    pool_fixture_destroy(&fixture);
    return status == TIDE_OK ? TIDE_OK : tide_fail(status, "%s", message);
}

/* The delay seed of the i-th play. Plays take the scenes in turn; all scenes of one turn have the same
 * seed. */
static uint64_t delay_seed(int i)
{
    return 7 + (uint64_t)(i / SCENES);
}

static void nothing_is_reported_when_all_sites_stand(void **state)
{
    for (int i = 0; i < TRIES / (int)test_every(4, 4) * SCENES; i++) {
        uint64_t waits[TIDE_WAIT_SITE_COUNT];
        if (play(&scenes[i % SCENES], delay_seed(i), 0, waits) != TIDE_OK)
            fail_msg("scene %d, delays %d: %s", i % SCENES, (int)delay_seed(i), tide_message());
    }
}

/* Does some scene report that the site is disabled? *met counts how often the program came to the site. */
static bool is_reported(uint32_t site, uint64_t *met)
{
    for (int i = 0; i < TRIES * SCENES; i++) {
        uint64_t waits[TIDE_WAIT_SITE_COUNT] = {0};
        const tide_status status = play(&scenes[i % SCENES], delay_seed(i), site, waits);
        *met += waits[site];
        if (status == TIDE_ERROR_HAZARD)
            return true;
    }
    return false;
}

static void taking_a_site_away_is_reported_with_both_commands(void **state)
{
    int unreported = 0;
    for (uint32_t site = 1; site < TIDE_SITE_COUNT; site++) {
        uint64_t met = 0;
        if (is_reported(site, &met)) {
            assert_non_null(strstr(tide_message(), "without being ordered after"));
            print_message("site %u: %s\n", site, tide_message());
        } else {
            print_message("site %u: nothing reports its removal; it was met %llu times\n", site,
                          (unsigned long long)met);
            unreported++;
        }
    }
    assert_int_equal(unreported, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_reported_when_all_sites_stand),
        cmocka_unit_test(taking_a_site_away_is_reported_with_both_commands),
    };
    return cmocka_run_group_tests_name("pool_sites", tests, NULL, NULL);
}
