/* A training run allocates nothing after its second step, alone or as one of two ranks. The run has metrics
 * and a trace, like one of the program.
 *
 * The test replaces malloc and mmap (interpose.h) and counts every call of every thread, with one exception:
 * dnnl_primitive_execute makes and frees a map of its operands in each call (kernels/cpu/matmul_onednn.c).
 * None of that memory may remain, so a second test counts these calls, too, and checks that all memory is
 * freed.
 */
#include "src/trace/trace.h"
#include "src/train/metrics.h"
#include "tests/comm/socket_ranks.h"
#include "tests/support/interpose.h"
#include "tests/support/test_trainer_fixture.h"

#include "tide_config.h"

#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FIRST_STEPS = 2, MORE_STEPS = 6, WAITING_MAX = 16, OPERANDS_BYTES = 1024, RANKS = 2 };

/* --- oneDNN --- */

#if TIDE_HAVE_ONEDNN
#include <oneapi/dnnl/dnnl.h>

typedef dnnl_status_t (*execute_function)(const_dnnl_primitive_t primitive, dnnl_stream_t stream, int count,
                                          const dnnl_exec_arg_t *arguments);

static execute_function execute;
static bool execute_is_exempt;
static uint64_t executions;

__attribute__((visibility("default"))) dnnl_status_t dnnl_primitive_execute(const_dnnl_primitive_t primitive,
                                                                            dnnl_stream_t stream, int count,
                                                                            const dnnl_exec_arg_t *arguments)
{
    executions++; /* no data race: the caller holds a lock */
    if (execute_is_exempt)
        interpose_pause();
    const dnnl_status_t status = execute(primitive, stream, count, arguments);
    if (execute_is_exempt)
        interpose_resume();
    return status;
}

static void find_execute(void)
{
    void *symbol = dlsym(RTLD_NEXT, "dnnl_primitive_execute");
    assert_non_null(symbol);
    memcpy(&execute, &symbol, sizeof execute);
}
#else
static bool execute_is_exempt;

static void find_execute(void) {}
#endif

/* --- a run like one of the program --- */

typedef struct run {
    tide_comm *comm; /* NULL: one rank */
    tide_trainer *trainer;
    tide_metrics *metrics;
    tide_trace *trace;
    tide_trainer_report waiting[WAITING_MAX]; /* reports of steps whose counters have not come yet */
    uint64_t reported, lined;
} run;

static void begin_trace(run *r, const tide_pool_options *options)
{
    const tide_trace_head head = {.version = "test",
                                  .pool = tide_trainer_pool(r->trainer),
                                  .options = options,
                                  .plan = &tide_trainer_plan_get(r->trainer)->pool,
                                  .machine = "test"};
    ok(tide_trace_begin(r->trace, &head));
}

static void run_open(run *r, tide_comm *comm, double clip)
{
    char path[96];
    *r = (run){.comm = comm};
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.hyper.clip = clip;
    options.pool.device_memory_bytes = comm == NULL ? 4 << 20 : 8 << 20;
    options.pool.predict = true;
    options.pool.checks.guard = comm == NULL;
    options.pool.ranks = (tide_ranks_options){.comm = comm, .zero_stage = 0};
    options.sum_groups = RANKS;
    snprintf(path, sizeof path, "%s/metrics-%u", folder, tide_comm_rank(comm));
    ok(tide_metrics_open(path, &r->metrics));
    snprintf(path, sizeof path, "%s/trace-%u", folder, tide_comm_rank(comm));
    const tide_trace_options kept = {.ring_events = TIDE_TRACE_RING_EVENTS, .keep_steps = 2};
    ok(tide_trace_open(path, &kept, &r->trace));
    options.pool.trace = tide_trace_record;
    options.pool.trace_context = r->trace;
    ok(tide_trainer_create(&options, &r->trainer));
    ok(tide_metrics_begin(r->metrics, false, 0));
    begin_trace(r, &options.pool);
}

static void write_lines(run *r)
{
    uint64_t step;
    tide_pool_counters counters;
    while (r->lined < r->reported &&
           tide_pool_step_counters_take(tide_trainer_pool(r->trainer), &step, &counters)) {
        const tide_trainer_report *report = &r->waiting[r->lined++ % WAITING_MAX];
        assert_int_equal(report->step, step);
        ok(tide_metrics_step(r->metrics, report, NULL, 256, &counters));
        tide_trace_step(r->trace, report, NULL, 256, &counters);
    }
}

static void run_steps(run *r, int steps)
{
    for (int i = 0; i < steps; i++) {
        uint32_t ranks[RANKS], mine = tide_comm_rank(r->comm);
        ok(tide_trainer_step(r->trainer, &r->waiting[r->reported++ % WAITING_MAX]));
        ok(tide_comm_exchange(r->comm, &mine, sizeof mine, ranks));
        write_lines(r);
    }
}

static void run_close(run *r)
{
    uint64_t dropped;
    ok(tide_trace_finish(r->trace, &dropped));
    assert_int_equal(dropped, 0);
    ok(tide_metrics_close(r->metrics));
    tide_trainer_destroy(r->trainer);
    tide_trace_destroy(r->trace);
    assert_int_equal(r->lined, FIRST_STEPS + MORE_STEPS);
    /* a prediction was made while calls were counted */
    assert_true(r->waiting[FIRST_STEPS % WAITING_MAX].predicted_step_seconds > 0);
}

static interpose_counts count_steps(double clip)
{
    run r;
    run_open(&r, NULL, clip);
    run_steps(&r, FIRST_STEPS);
    ok(tide_pool_drain(tide_trainer_pool(r.trainer)));
    interpose_arm();
    run_steps(&r, MORE_STEPS);
    ok(tide_pool_drain(tide_trainer_pool(r.trainer)));
    write_lines(&r);
    const interpose_counts counts = interpose_read();
    interpose_disarm();
    run_close(&r);
    return counts;
}

/* --- two ranks in threads --- */

typedef struct rank {
    tide_comm_socket_options options;
    tide_comm *comm;
    pthread_barrier_t *all;
    interpose_counts counts; /* of all threads; rank 0 alone sets it */
} rank;

static void *run_rank(void *of)
{
    rank *at = of;
    run r;
    if (at->comm == NULL)
        ok(tide_comm_socket_create(&at->options, &at->comm));
    run_open(&r, at->comm, 1);
    run_steps(&r, FIRST_STEPS);
    ok(tide_pool_drain(tide_trainer_pool(r.trainer)));
    pthread_barrier_wait(at->all);
    if (tide_comm_rank(at->comm) == 0)
        interpose_arm();
    pthread_barrier_wait(at->all);
    run_steps(&r, MORE_STEPS);
    ok(tide_pool_drain(tide_trainer_pool(r.trainer)));
    write_lines(&r);
    pthread_barrier_wait(at->all);
    if (tide_comm_rank(at->comm) == 0) {
        at->counts = interpose_read();
        interpose_disarm();
    }
    pthread_barrier_wait(at->all);
    run_close(&r);
    tide_comm_destroy(at->comm);
    return NULL;
}

static interpose_counts count_ranks(rank *ranks)
{
    pthread_t threads[RANKS];
    pthread_barrier_t all;
    assert_int_equal(pthread_barrier_init(&all, NULL, RANKS), 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r].all = &all;
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    pthread_barrier_destroy(&all);
    return ranks[0].counts;
}

/* --- tests --- */

static void skip_unless_interposed(void)
{
    if (!interpose_active()) {
        print_message(INTERPOSE_SKIPPED);
        skip();
    }
}

static void assert_nothing(interpose_counts counts)
{
    assert_int_equal(counts.allocations, 0);
    assert_int_equal(counts.live, 0);
    assert_int_equal(counts.new_maps, 0);
    assert_int_equal(counts.mapped_bytes, 0);
}

static void after_two_steps_nothing_is_allocated(void **state)
{
    skip_unless_interposed();
    execute_is_exempt = true;
    for (int clip = 0; clip < 2; clip++)
        assert_nothing(count_steps(clip));
}

static void nor_by_ranks_that_are_threads(void **state)
{
    skip_unless_interposed();
    execute_is_exempt = true;
    rank ranks[RANKS] = {0};
    tide_comm *comms[RANKS];
    ok(tide_comm_loop_create(RANKS, comms));
    for (uint32_t r = 0; r < RANKS; r++)
        ranks[r].comm = comms[r];
    assert_nothing(count_ranks(ranks));
}

static void nor_by_ranks_connected_by_sockets(void **state)
{
    skip_unless_interposed();
    execute_is_exempt = true;
    rank ranks[RANKS] = {0};
    const uint16_t port = free_port();
    for (uint32_t r = 0; r < RANKS; r++)
        ranks[r].options = (tide_comm_socket_options){.rank = r, .ranks = RANKS, .port = port};
    assert_nothing(count_ranks(ranks));
}

static void what_onednn_takes_it_gives_back(void **state)
{
    skip_unless_interposed();
    execute_is_exempt = false;
    const interpose_counts counts = count_steps(1);
    assert_int_equal(counts.live, 0);
    assert_int_equal(counts.new_maps, 0);
    assert_in_range(counts.largest, 0, OPERANDS_BYTES);
#if TIDE_HAVE_ONEDNN
    assert_true(counts.allocations == 0 || executions > 0);
#else
    assert_int_equal(counts.allocations, 0);
#endif
}

int main(void)
{
    find_execute();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_two_steps_nothing_is_allocated),
        cmocka_unit_test(nor_by_ranks_that_are_threads),
        cmocka_unit_test(nor_by_ranks_connected_by_sockets),
        cmocka_unit_test(what_onednn_takes_it_gives_back),
    };
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
