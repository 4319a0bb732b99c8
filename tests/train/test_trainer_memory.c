/* A trainer's N-th request for memory fails, for every N, while it is created, evaluates, samples and saves.
 * Each time the call must return a clear status and leave nothing half made, and it must succeed when
 * repeated. Requests that oneDNN, hwloc and OpenMP make are not included. */
#include "src/comm/comm.h"
#include "tests/support/fake_memory.h"
#include "tests/support/small_model.h"
#include "tests/support/test_trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { RANKS = 2 };

/* --- a communicator whose other rank does as this one --- */

static tide_status mirror_gather(tide_comm *comm, const char *of, const tide_comm_range *ranges,
                                 uint32_t count)
{
    return TIDE_OK;
}

static tide_status mirror_reduce(tide_comm *comm, const tide_comm_reduction *reduction)
{
    return TIDE_OK;
}

static tide_status mirror_exchange(tide_comm *comm, const void *mine, size_t bytes, void *all)
{
    for (uint32_t rank = 0; rank < RANKS && bytes > 0; rank++)
        memmove((char *)all + rank * bytes, mine, bytes);
    return TIDE_OK;
}

static void mirror_abort(tide_comm *comm, const char *reason)
{
    assert_non_null(strstr(reason, "memory"));
}

static const tide_comm_ops mirror_ops = {
    .gather = mirror_gather, .reduce = mirror_reduce, .exchange = mirror_exchange, .abort = mirror_abort};

/* --- creation --- */

static tide_trainer_options base_options(void)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    static const char *frozen[2];
    frozen[0] = family_word("wpe.*", "model.norm.*");
    frozen[1] = family_word("h.0.*", "model.layers.0.*");
    options.model.layers = 2;
    options.freeze = frozen;
    options.freeze_count = 2;
    options.pool.checks.hazard_check = options.pool.checks.guard = false;
    return options;
}

static void check_failure(tide_status status, const char *what, unsigned request)
{
    assert_true(fake_memory_failed());
    if (status != TIDE_ERROR_NO_MEMORY)
        fail_msg("%s, request %u: %s: %s", what, request, tide_status_name(status), tide_message());
}

/* A rank that fails tells the others. */
static unsigned create_until_it_succeeds(uint32_t ranks)
{
    tide_trainer_options options = base_options();
    tide_status status = TIDE_ERROR_NO_MEMORY;
    unsigned request = 0;
    for (; status != TIDE_OK; request++) {
        tide_trainer *trainer = NULL;
        tide_comm mirror;
        tide_comm_init(&mirror, &mirror_ops, ranks - 1, ranks);
        options.pool.ranks = (tide_ranks_options){.comm = ranks > 1 ? &mirror : NULL};
        fake_memory_fail(request);
        status = tide_trainer_create(&options, &trainer);
        if (status == TIDE_OK) {
            assert_false(fake_memory_failed());
            fake_memory_clear();
            ok(tide_trainer_step(trainer, NULL));
        } else {
            check_failure(status, "create", request);
            assert_null(trainer);
            fake_memory_clear();
        }
        tide_trainer_destroy(trainer);
        assert_int_equal(tide_comm_failure(&mirror),
                         ranks == 1 || status == TIDE_OK ? TIDE_OK : TIDE_ERROR_PEER);
        tide_comm_fini(&mirror);
    }
    return request;
}

static void creation_survives_every_failing_request(void **state)
{
    for (uint32_t ranks = 1; ranks <= RANKS; ranks++)
        assert_true(create_until_it_succeeds(ranks) > 50);
}

static tide_status sample(tide_trainer *trainer)
{
    tide_sample_options options;
    tide_sample_options_default(&options);
    options.tokens = 2;
    char *made = NULL;
    const tide_status status = tide_trainer_sample(trainer, &options, &made);
    assert_true((made != NULL) == (status == TIDE_OK));
    free(made);
    return status;
}

static tide_status evaluate(tide_trainer *trainer)
{
    double loss = -1;
    const tide_status status = tide_trainer_evaluate(trainer, &loss);
    assert_true((loss > 0) == (status == TIDE_OK));
    return status;
}

static tide_status step(tide_trainer *trainer)
{
    return tide_trainer_step(trainer, NULL);
}

/* Let each request of `action` fail, one per call. Returns the number of requests of a call in which none
 * fails. */
static unsigned survive(tide_trainer *trainer, const char *what, tide_status (*action)(tide_trainer *))
{
    for (unsigned request = 0;; request++) {
        fake_memory_fail(request);
        const tide_status status = action(trainer);
        const bool failed = fake_memory_failed();
        if (status != TIDE_OK)
            check_failure(status, what, request);
        fake_memory_clear();
        ok(action(trainer));
        if (!failed)
            return request;
    }
}

static void between_steps_every_failing_request_is_survived(void **state)
{
    const tide_trainer_options options = base_options();
    tide_trainer *trainer = trainer_open(&options);
    ok(tide_trainer_step(trainer, NULL));
    ok(tide_trainer_step(trainer, NULL));
    assert_int_equal(survive(trainer, "step", step), 0); /* a step makes no request */
    assert_int_equal(survive(trainer, "evaluate", evaluate), 0);
    assert_true(survive(trainer, "sample", sample) > 3);
    tide_trainer_destroy(trainer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creation_survives_every_failing_request),
        cmocka_unit_test(between_steps_every_failing_request_is_survived),
    };
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
