/* Ranks over sockets that fail, end, or call something else than the others. */
#include "src/comm/comm.h"
#include "tests/comm/socket_ranks.h"
#include "tests/support/assert_ok.h"

#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ELEMENTS = 300000 }; /* in a range, more than the sockets hold */

/* A call of ELEMENTS sums for each rank. */
typedef struct one_call {
    float *sums; /* [ranks * ELEMENTS] */
    tide_comm_range ranges[SOCKET_RANKS_MAX];
    tide_comm_reduction reduction;
} one_call;

static one_call *make_call(const tide_comm *comm)
{
    one_call *call = calloc(1, sizeof *call);
    if (call == NULL || (call->sums = calloc(comm->ranks * (size_t)ELEMENTS, sizeof *call->sums)) == NULL)
        abort();
    for (uint32_t rank = 0; rank < comm->ranks; rank++)
        call->ranges[rank] =
            (tide_comm_range){call->sums + rank * (size_t)ELEMENTS, ELEMENTS * sizeof *call->sums, rank};
    call->reduction = (tide_comm_reduction){
        .ranges = call->ranges,
        .count = comm->ranks,
        .travels_as = TIDE_DTYPE_FP32,
        .scratch_bytes = 2 * comm->ranks * (uint64_t)4096,
    };
    call->reduction.scratch = aligned_alloc(64, call->reduction.scratch_bytes);
    return call;
}

static void free_call(one_call *call)
{
    free(call->reduction.scratch);
    free(call->sums);
    free(call);
}

static tide_status reduce_once(tide_comm *comm)
{
    one_call *call = make_call(comm);
    const tide_status status = tide_comm_reduce(comm, &call->reduction);
    free_call(call);
    return status;
}

/* --- calls that differ --- */

typedef enum call_difference {
    OTHER_KIND,
    OTHER_BYTES,
    OTHER_OWNERS,
    OTHER_CUT,
    OTHER_TYPE,
    OTHER_EXCHANGE,
    DIFFERENCES
} call_difference;

static tide_status call_with(tide_comm *comm, call_difference difference)
{
    one_call *call = make_call(comm);
    tide_status status;
    switch (difference) {
    case OTHER_BYTES:
        call->ranges[2].bytes -= 4;
        break;
    case OTHER_OWNERS:
        call->ranges[0].owner = 1;
        break;
    case OTHER_CUT:
        call->ranges[0].bytes -= 4;
        call->ranges[1].bytes += 4;
        call->ranges[1].data = (float *)call->ranges[1].data - 1;
        break;
    case OTHER_TYPE:
        call->reduction.travels_as = TIDE_DTYPE_BF16;
        break;
    default:
        break;
    }
    if (difference == OTHER_EXCHANGE)
        status = tide_comm_exchange(comm, call->sums, 17, call->sums + 100);
    else if (difference == OTHER_KIND)
        status = tide_comm_gather(comm, NULL, call->ranges, comm->ranks);
    else
        status = tide_comm_reduce(comm, &call->reduction);
    free_call(call);
    return status;
}

/* Rank 1 differs, in the second call of all ranks. */
static tide_status differ(tide_comm *comm, void *context)
{
    const call_difference difference = *(const call_difference *)context;
    tide_status status = tide_comm_barrier(comm);
    if (status == TIDE_OK && difference != OTHER_EXCHANGE)
        status = reduce_once(comm);
    if (status != TIDE_OK)
        return status;
    if (comm->rank == 1)
        return call_with(comm, difference);
    return difference == OTHER_EXCHANGE ? tide_comm_barrier(comm) : reduce_once(comm);
}

static void calls_that_differ_fail_on_all_ranks(void **state)
{
    static const char *const words[DIFFERENCES][2] = {
        [OTHER_KIND] = {"gather 2 of 3600000", "reduce 2 of 3600000"},
        [OTHER_BYTES] = {"reduce 2 of 3599996", "reduce 2 of 3600000"},
        [OTHER_OWNERS] =
            {"reduce 2 of 3600000 bytes in 3 ranges, which have other sizes or owners than the 3",
             "(127.0.0.1)"},
        [OTHER_CUT] = {"reduce 2 of 3600000 bytes in 3 ranges, which have other sizes or owners than the 3",
                       "(127.0.0.1)"},
        [OTHER_TYPE] = {"reduce of bf16 2 of 3600000", "reduce 2 of 3600000"},
        [OTHER_EXCHANGE] = {"exchange 2 of 51", "exchange 2 of 0"},
    };
    for (call_difference difference = OTHER_KIND; difference < DIFFERENCES; difference++) {
        socket_rank ranks[3];
        socket_ranks_set(ranks, 3, differ, &difference);
        socket_ranks_run(ranks, 3);
        for (uint32_t rank = 0; rank < 3; rank++) {
            socket_rank_expect_failure(&ranks[rank], words[difference][0]);
            socket_rank_expect_failure(&ranks[rank], words[difference][1]);
            socket_rank_expect_failure(&ranks[rank], "rank 1");
        }
    }
}

/* --- abort --- */

/* Two threads of a rank that wait in both channels. */
typedef struct waiting {
    tide_comm *comm;
    tide_status status;
    char message[1024];
} waiting;

static void *wait_in_barrier(void *argument)
{
    waiting *side = argument;
    side->status = tide_comm_barrier(side->comm);
    snprintf(side->message, sizeof side->message, "%s", tide_message());
    return NULL;
}

static void *abort_soon(void *argument)
{
    (void)poll(NULL, 0, 100);
    tide_comm_abort(argument, "the disk is full");
    return NULL;
}

typedef struct abort_case {
    uint32_t aborting;  /* a rank */
    atomic_uint failed; /* ranks that know the failure */
} abort_case;

/* Ranks 0 and 1 wait for rank 2, which calls nothing, until a third thread of a rank gives up. */
static tide_status wait_for_abort(tide_comm *comm, void *context)
{
    abort_case *shared = context;
    waiting side = {.comm = comm};
    pthread_t barrier, third;
    const bool aborts = comm->rank == shared->aborting;
    tide_status status = tide_comm_barrier(comm);
    if (status != TIDE_OK)
        return status;
    if (aborts)
        pthread_create(&third, NULL, abort_soon, comm);
    if (comm->rank != 2) {
        pthread_create(&barrier, NULL, wait_in_barrier, &side);
        status = reduce_once(comm);
        pthread_join(barrier, NULL);
        if (side.status != status)
            status = tide_fail(TIDE_ERROR_INTERNAL, "the barrier: %s", side.message);
        atomic_fetch_add(&shared->failed, 1);
    } else {
        while (atomic_load(&shared->failed) < 2)
            (void)poll(NULL, 0, 10);
        status = tide_comm_barrier(comm); /* a rank that has not waited gets the reason, too */
    }
    if (aborts)
        pthread_join(third, NULL);
    return status;
}

static void abort_wakes_all_waits_of_all_ranks_with_the_reason(void **state)
{
    for (uint32_t aborting = 0; aborting < 3; aborting += 2) {
        char words[64];
        socket_rank ranks[3];
        abort_case shared = {.aborting = aborting};
        socket_ranks_set(ranks, 3, wait_for_abort, &shared);
        socket_ranks_run(ranks, 3);
        snprintf(words, sizeof words, "rank %u (127.0.0.1): the disk is full", aborting);
        for (uint32_t rank = 0; rank < 3; rank++)
            socket_rank_expect_failure(&ranks[rank], rank == aborting ? "the disk is full" : words);
        assert_string_equal(ranks[aborting].message, "the disk is full");
        /* the rank that gave up first is named, not the ones that heard of it */
        for (uint32_t rank = 0; rank < 3; rank++)
            assert_true(rank == aborting || strcmp(ranks[rank].message, words) == 0);
    }
}

/* Rank 1 calls nothing and stays until rank 0 has heard of its own abort. */
static tide_status abort_alone(tide_comm *comm, void *context)
{
    abort_case *shared = context;
    waiting side = {.comm = comm};
    pthread_t barrier, third;
    tide_status status = tide_comm_barrier(comm);
    if (comm->rank == 0) {
        pthread_create(&barrier, NULL, wait_in_barrier, &side);
        pthread_create(&third, NULL, abort_soon, comm);
        status = reduce_once(comm);
        pthread_join(barrier, NULL);
        pthread_join(third, NULL);
        atomic_store(&shared->failed, 1);
        return side.status == status ? status : TIDE_OK;
    }
    while (atomic_load(&shared->failed) == 0)
        (void)poll(NULL, 0, 10);
    return status == TIDE_OK ? tide_comm_barrier(comm) : status;
}

static void abort_ends_the_own_waits_although_no_other_rank_moves(void **state)
{
    socket_rank ranks[2];
    abort_case shared = {.aborting = 0};
    socket_ranks_set(ranks, 2, abort_alone, &shared);
    socket_ranks_run(ranks, 2);
    socket_rank_expect_failure(&ranks[0], "the disk is full");
    socket_rank_expect_failure(&ranks[1], "rank 0 (127.0.0.1): the disk is full");
}

static tide_status abort_with_long_reason(tide_comm *comm, void *context)
{
    char reason[3000];
    memset(reason, 'x', sizeof reason - 1);
    reason[sizeof reason - 1] = '\0';
    if (comm->rank == 1)
        tide_comm_abort(comm, reason);
    return comm->rank == 1 ? tide_comm_failure(comm) : reduce_once(comm);
}

static void a_long_reason_is_cut(void **state)
{
    char words[900] = "rank 1 (127.0.0.1): ";
    socket_rank ranks[2];
    socket_ranks_set(ranks, 2, abort_with_long_reason, NULL);
    socket_ranks_run(ranks, 2);
    memset(words + strlen(words), 'x', sizeof words - 1 - strlen(words));
    words[sizeof words - 1] = '\0';
    socket_rank_expect_failure(&ranks[0], words);
    socket_rank_expect_failure(&ranks[1], words + strlen("rank 1 (127.0.0.1): "));
}

/* --- ranks that end --- */

static tide_status end_early(tide_comm *comm, void *context)
{
    tide_status status = reduce_once(comm);
    if (status != TIDE_OK || comm->rank == 2)
        return status;
    status = reduce_once(comm);
    /* the failure stays */
    const tide_status again = tide_comm_barrier(comm);
    return again == status && tide_comm_failure(comm) == status ? status : TIDE_OK;
}

static void a_rank_that_ends_is_named_and_the_failure_stays(void **state)
{
    socket_rank ranks[4];
    socket_ranks_set(ranks, 4, end_early, NULL);
    socket_ranks_run(ranks, 4);
    assert_int_equal(ranks[2].status, TIDE_OK);
    for (uint32_t rank = 0; rank < 4; rank++) {
        if (rank != 2)
            socket_rank_expect_failure(&ranks[rank],
                                       "rank 2 (127.0.0.1) has closed its connection during reduce 2");
    }
}

/* Reduces follow each other until SIGALRM ends rank 1 in one of them. */
static tide_status reduce_until_failure(tide_comm *comm)
{
    tide_status status = reduce_once(comm);
    if (comm->rank == 1)
        (void)ualarm(100000, 0);
    while (status == TIDE_OK)
        status = reduce_once(comm);
    return status;
}

static int run_process(const socket_rank *rank)
{
    tide_comm *comm;
    if (tide_comm_socket_create(&rank->options, &comm) != TIDE_OK)
        return 1;
    const tide_status status = reduce_until_failure(comm);
    tide_comm_destroy(comm);
    return status == TIDE_ERROR_PEER && strstr(tide_message(), "rank 1 (127.0.0.1) has closed its") != NULL
               ? 0
               : 2;
}

static void a_process_that_is_killed_is_named(void **state)
{
    pid_t processes[3];
    socket_rank ranks[3];
    socket_ranks_set(ranks, 3, NULL, NULL);
    for (uint32_t rank = 0; rank < 3; rank++) {
        processes[rank] = fork();
        assert_true(processes[rank] >= 0);
        if (processes[rank] == 0)
            _exit(run_process(&ranks[rank]));
    }
    for (uint32_t rank = 0; rank < 3; rank++) {
        int ended;
        assert_int_equal(waitpid(processes[rank], &ended, 0), processes[rank]);
        if (rank == 1)
            assert_true(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGALRM);
        else
            assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    }
}

#define test(name) cmocka_unit_test_setup_teardown(name, count_files, expect_no_new_files)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(a_process_that_is_killed_is_named), /* the first, since it forks: no thread has run yet */
        test(calls_that_differ_fail_on_all_ranks),
        test(abort_wakes_all_waits_of_all_ranks_with_the_reason),
        test(abort_ends_the_own_waits_although_no_other_rank_moves),
        test(a_long_reason_is_cut),
        test(a_rank_that_ends_is_named_and_the_failure_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
