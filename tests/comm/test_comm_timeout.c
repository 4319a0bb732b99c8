/* Ranks that are late, stopped, slow or busy with something else: threads and processes with beats and
 * timeouts. Where a test expects no failure, its timeout leaves a machine that is ten times slower enough
 * time. Tests that do little but wait run at the same time, each in a process of its own. */
#include "base/clock.h"
#include "src/comm/comm.h"
#include "tests/comm/socket_ranks.h"
#include "tests/support/assert_ok.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS = 3, LATE = 2 };

static void rest(uint32_t milliseconds)
{
    (void)poll(NULL, 0, (int)milliseconds);
}

/* Sum `elements` floats of each rank, as an op would. */
static tide_status reduce(tide_comm *comm, size_t elements)
{
    tide_comm_range ranges[SOCKET_RANKS_MAX];
    float *sums = calloc(comm->ranks * elements, sizeof *sums);
    tide_comm_reduction reduction = {.of = "block 3 backward",
                                     .ranges = ranges,
                                     .count = comm->ranks,
                                     .travels_as = TIDE_DTYPE_FP32,
                                     .scratch_bytes = 2 * comm->ranks * (uint64_t)4096};
    reduction.scratch = aligned_alloc(64, reduction.scratch_bytes);
    if (sums == NULL || reduction.scratch == NULL)
        abort();
    for (uint32_t rank = 0; rank < comm->ranks; rank++)
        ranges[rank] = (tide_comm_range){sums + rank * elements, elements * sizeof *sums, rank};
    const tide_status status = tide_comm_reduce(comm, &reduction);
    free(reduction.scratch);
    free(sums);
    return status;
}

/* --- ranks that are threads --- */

static void run(socket_rank *ranks, uint32_t count, double timeout_seconds,
                tide_status (*body)(tide_comm *, void *), void *context)
{
    socket_ranks_set(ranks, count, body, context);
    for (uint32_t rank = 0; rank < count; rank++)
        ranks[rank].options.collective_timeout_seconds = timeout_seconds;
    socket_ranks_run(ranks, count);
}

/* A rank that does not come to the call behind the first two. */
typedef struct late_case {
    bool exchanges;
    atomic_uint failed; /* ranks that know the failure */
} late_case;

static tide_status call(tide_comm *comm, const late_case *shared)
{
    return shared->exchanges ? tide_comm_barrier(comm) : reduce(comm, 1000);
}

static tide_status come_not(tide_comm *comm, void *context)
{
    late_case *shared = context;
    tide_status status = call(comm, shared);
    if (status == TIDE_OK)
        status = call(comm, shared);
    if (status != TIDE_OK)
        return status;
    if (comm->rank == LATE) {
        tide_comm_doing(comm, TIDE_PHASE_COMPUTING, "computes block 5 backward");
        while (atomic_load(&shared->failed) < RANKS - 1)
            rest(10);
    }
    status = call(comm, shared);
    atomic_fetch_add(&shared->failed, 1);
    return status;
}

static void a_rank_that_never_comes_is_named_on_all_ranks(void **state)
{
    for (uint32_t exchanges = 0; exchanges < 2; exchanges++) {
        char sentence[256];
        socket_rank ranks[RANKS];
        late_case shared = {.exchanges = exchanges};
        const uint64_t begin_ns = tide_clock_ns();
        run(ranks, RANKS, 1, come_not, &shared);
        snprintf(sentence, sizeof sentence,
                 "rank 2 (127.0.0.1) has not come to %s for 1 s; it says: computes block 5 backward",
                 exchanges ? "exchange 3" : "reduce 3 of block 3 backward");
        for (uint32_t rank = 0; rank < RANKS; rank++)
            socket_rank_expect_failure(&ranks[rank], sentence);
        assert_true(tide_clock_ns() - begin_ns > 1000000000);
        /* one of them judged, the others say that it did */
        assert_true(strcmp(ranks[0].message, sentence) == 0 || strcmp(ranks[1].message, sentence) == 0);
        assert_non_null(strstr(ranks[LATE].message, "): rank 2 (127.0.0.1) has not come to "));
    }
}

static tide_status save_long(tide_comm *comm, void *context)
{
    tide_status status = tide_comm_barrier(comm);
    if (comm->rank == 0) {
        tide_comm_doing(comm, TIDE_PHASE_SAVING, "step 100");
        rest(3000);
        tide_comm_doing(comm, TIDE_PHASE_COMPUTING, "computes");
    }
    return status == TIDE_OK ? tide_comm_barrier(comm) : status;
}

static void ranks_wait_for_one_that_saves(void **state)
{
    socket_rank ranks[RANKS];
    run(ranks, RANKS, 1, save_long, NULL);
    socket_ranks_expect_ok(ranks, RANKS);
}

/* Each rank in turn is slow, by a tenth of the timeout. */
static tide_status be_slow_in_turn(tide_comm *comm, void *context)
{
    tide_status status = TIDE_OK;
    for (uint32_t round = 0; round < 30 && status == TIDE_OK; round++) {
        if (round % comm->ranks == comm->rank)
            rest(100);
        status = round % 2 == 0 ? reduce(comm, 1000) : tide_comm_barrier(comm);
    }
    return status;
}

static void slow_ranks_are_waited_for(void **state)
{
    socket_rank ranks[RANKS];
    run(ranks, RANKS, 1, be_slow_in_turn, NULL);
    socket_ranks_expect_ok(ranks, RANKS);
}

static tide_status many_rounds(tide_comm *comm, void *context)
{
    tide_status status = TIDE_OK;
    uint32_t random = comm->rank + 1;
    for (uint32_t round = 0; round < 200 && status == TIDE_OK; round++) {
        random = random * 1664525 + 1013904223;
        rest(random >> 29); /* up to 7 ms */
        tide_comm_doing(comm, TIDE_PHASE_COMPUTING, "computes");
        status = round % 3 == 0 ? tide_comm_barrier(comm) : reduce(comm, 1 + round * 37 % 4096);
    }
    return status;
}

static void many_rounds_of_uneven_ranks_fail_never(void **state)
{
    socket_rank ranks[5];
    run(ranks, 5, 2, many_rounds, NULL);
    socket_ranks_expect_ok(ranks, 5);
}

/* The sums of 64 MiB of each of two ranks go through the smallest memory. */
static tide_status reduce_long(tide_comm *comm, void *context)
{
    tide_status status = TIDE_OK;
    for (uint32_t round = 0; round < 3 && status == TIDE_OK; round++)
        status = reduce(comm, ((size_t)32 << 20) / sizeof(float));
    return status;
}

static void beats_go_on_while_a_long_reduce_runs(void **state)
{
    socket_rank ranks[2];
    run(ranks, 2, 2, reduce_long, NULL);
    socket_ranks_expect_ok(ranks, 2);
}

/* Rank 2 ends while the others are in calls, rank 1 a while after its last call. */
static tide_status end_in_calls(tide_comm *comm, void *context)
{
    tide_status status = tide_comm_barrier(comm);
    if (comm->rank == LATE)
        rest(150);
    return status != TIDE_OK || comm->rank == LATE ? status : tide_comm_barrier(comm);
}

static void a_rank_that_ends_is_no_late_one(void **state)
{
    socket_rank ranks[RANKS];
    run(ranks, RANKS, 1, end_in_calls, NULL);
    assert_int_equal(ranks[LATE].status, TIDE_OK);
    for (uint32_t rank = 0; rank < LATE; rank++)
        socket_rank_expect_failure(&ranks[rank],
                                   "rank 2 (127.0.0.1) has closed its connection during exchange 2");
}

/* Ranks end at different times, long after the others' last call. */
static tide_status end_apart(tide_comm *comm, void *context)
{
    const tide_status status = tide_comm_barrier(comm);
    rest(comm->rank * 800);
    return status == TIDE_OK ? tide_comm_failure(comm) : status;
}

static void ranks_may_end_apart(void **state)
{
    socket_rank ranks[RANKS];
    run(ranks, RANKS, 0.5, end_apart, NULL);
    socket_ranks_expect_ok(ranks, RANKS);
}

static void a_timeout_below_zero_is_refused(void **state)
{
    socket_rank ranks[2];
    tide_comm *comm;
    socket_ranks_set(ranks, 2, NULL, NULL);
    ranks[0].options.collective_timeout_seconds = -1;
    assert_fails(tide_comm_socket_create(&ranks[0].options, &comm), TIDE_ERROR_ARGUMENT,
                 "a timeout of -1 seconds for collectives, 0 or more is allowed");
}

/* --- ranks that are processes --- */

/* Memory that the processes share. */
typedef struct process_case {
    atomic_bool ends;  /* rank 0 ends the run after its next round */
    atomic_bool holds; /* rank 2 stays out of its next round */
    socket_rank ranks[RANKS];
    pid_t processes[RANKS];
    atomic_uint rounds[RANKS];
    atomic_bool ended[RANKS]; /* the rank makes no more rounds */
    tide_status statuses[RANKS];
    char messages[RANKS][1024];
} process_case;

/* Rounds of a reduce and an exchange, until rank 0 ends the run or it fails. */
static int run_process(process_case *shared, uint32_t rank)
{
    tide_comm *comm = NULL;
    uint8_t ends[RANKS] = {0};
    tide_status status = tide_comm_socket_create(&shared->ranks[rank].options, &comm);
    tide_comm_doing(comm, TIDE_PHASE_SAVING, "all the time");
    while (status == TIDE_OK && !ends[0]) {
        const uint8_t mine = atomic_load(&shared->ends);
        while (rank == LATE && atomic_load(&shared->holds))
            rest(10);
        status = reduce(comm, 1000);
        if (status == TIDE_OK)
            status = tide_comm_exchange(comm, &mine, sizeof mine, ends);
        atomic_fetch_add(&shared->rounds[rank], 1);
        rest(5);
    }
    shared->statuses[rank] = status;
    snprintf(shared->messages[rank], sizeof shared->messages[rank], "%s", tide_message());
    atomic_store(&shared->ended[rank], true);
    tide_comm_destroy(comm);
    return 0;
}

/* Wait for some rounds, or for the rank's end. */
static void wait_for_rounds(process_case *shared, uint32_t rank)
{
    const uint32_t begun = atomic_load(&shared->rounds[rank]);
    while (atomic_load(&shared->rounds[rank]) < begun + 5 && !atomic_load(&shared->ended[rank]))
        rest(5);
}

static process_case *start_processes(double timeout_seconds)
{
    process_case *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(shared != MAP_FAILED);
    socket_ranks_set(shared->ranks, RANKS, NULL, NULL);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        shared->ranks[rank].options.collective_timeout_seconds = timeout_seconds;
        const pid_t process = fork();
        assert_true(process >= 0);
        if (process == 0)
            _exit(run_process(shared, rank));
        shared->processes[rank] = process; /* the parent alone writes it */
    }
    wait_for_rounds(shared, 0);
    return shared;
}

static void send_signal(const process_case *shared, uint32_t rank, int number)
{
    assert_true(shared->processes[rank] > 0); /* 0: this process, too */
    assert_int_equal(kill(shared->processes[rank], number), 0);
}

static void join_process(process_case *shared, uint32_t rank)
{
    int ended;
    assert_int_equal(waitpid(shared->processes[rank], &ended, 0), shared->processes[rank]);
    assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
}

static void end_processes(process_case *shared)
{
    wait_for_rounds(shared, 0);
    atomic_store(&shared->ends, true);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        join_process(shared, rank);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (shared->statuses[rank] != TIDE_OK)
            fail_msg("rank %u: %s", rank, shared->messages[rank]);
    }
    munmap(shared, sizeof *shared);
}

static void expect_words_of(const process_case *shared, uint32_t rank, const char *words)
{
    if (shared->statuses[rank] != TIDE_ERROR_PEER || strstr(shared->messages[rank], words) == NULL)
        fail_msg("rank %u: %s: \"%s\" does not say \"%s\"", rank, tide_status_name(shared->statuses[rank]),
                 shared->messages[rank], words);
}

static void a_process_that_is_stopped_is_named_and_fails_when_it_goes_on(void **state)
{
    process_case *shared = start_processes(2);
    rest(1000); /* until beats have carried the words */
    send_signal(shared, LATE, SIGSTOP);
    join_process(shared, 0);
    join_process(shared, 1);
    send_signal(shared, LATE, SIGCONT);
    join_process(shared, LATE);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        expect_words_of(shared, rank, "nothing has been heard of rank 2 (127.0.0.1) for 2 s, in ");
        expect_words_of(shared, rank, "; it last said: all the time");
    }
    munmap(shared, sizeof *shared);
}

/* Stop processes [first, RANKS) for a while. */
static void stop_for(process_case *shared, uint32_t first, uint32_t milliseconds)
{
    for (uint32_t rank = first; rank < RANKS; rank++)
        send_signal(shared, rank, SIGSTOP);
    rest(milliseconds);
    for (uint32_t rank = first; rank < RANKS; rank++)
        send_signal(shared, rank, SIGCONT);
}

static void processes_that_are_all_stopped_go_on(void **state)
{
    process_case *shared = start_processes(1.5);
    stop_for(shared, 0, 4500);
    end_processes(shared);
}

static void a_process_that_is_stopped_for_less_than_the_timeout_goes_on(void **state)
{
    process_case *shared = start_processes(5);
    for (uint32_t times = 0; times < 2; times++) {
        stop_for(shared, LATE, 700);
        wait_for_rounds(shared, 0);
    }
    end_processes(shared);
}

/* Rank 1 is stopped in a call in which rank 0 waits only for rank 2. */
static void a_stopped_process_whose_part_is_over_is_not_missed(void **state)
{
    process_case *shared = start_processes(1.5);
    atomic_store(&shared->holds, true);
    rest(1000); /* until ranks 0 and 1 wait */
    send_signal(shared, 1, SIGSTOP);
    rest(3000);
    send_signal(shared, 1, SIGCONT);
    rest(1000); /* until rank 2 has heard of it */
    atomic_store(&shared->holds, false);
    end_processes(shared);
}

/* --- all --- */

#define test(name) cmocka_unit_test_setup_teardown(name, count_files, expect_no_new_files)

static const struct CMUnitTest waiting[] = {
    test(a_process_that_is_stopped_is_named_and_fails_when_it_goes_on),
    test(processes_that_are_all_stopped_go_on),
    test(a_process_that_is_stopped_for_less_than_the_timeout_goes_on),
    test(a_stopped_process_whose_part_is_over_is_not_missed),
    test(a_rank_that_never_comes_is_named_on_all_ranks),
    test(ranks_wait_for_one_that_saves),
    test(slow_ranks_are_waited_for),
    test(a_rank_that_ends_is_no_late_one),
    test(ranks_may_end_apart),
};

static const struct CMUnitTest busy[] = {
    test(many_rounds_of_uneven_ranks_fail_never),
    test(beats_go_on_while_a_long_reduce_runs),
    test(a_timeout_below_zero_is_refused),
};

enum { WAITING = sizeof waiting / sizeof waiting[0] };

/* Returns how many have failed. The processes begin before this one has a thread. */
static int run_waiting(void)
{
    pid_t processes[WAITING];
    int failed = 0;
    fflush(stdout);
    for (uint32_t i = 0; i < WAITING; i++) {
        processes[i] = fork();
        if (processes[i] == 0)
            exit(_cmocka_run_group_tests(waiting[i].name, &waiting[i], 1, NULL, NULL));
    }
    for (uint32_t i = 0; i < WAITING; i++) {
        int ended = 0;
        const bool has_ended = processes[i] > 0 && waitpid(processes[i], &ended, 0) == processes[i];
        if (has_ended && WIFEXITED(ended) && WEXITSTATUS(ended) == 0)
            continue;
        failed++;
        print_error("%s: its process ended with %#x\n", waiting[i].name, (unsigned)ended);
    }
    return failed;
}

int main(void)
{
    const int failed = run_waiting();
    return failed + cmocka_run_group_tests(busy, NULL, NULL);
}
