/* Bytes on their way: connections that fill up, and ranks that end before the others have read. */
#include "src/comm/comm.h"
#include "tests/comm/socket_ranks.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

#include <poll.h>
#include <stdlib.h>

static float whole_number(uint32_t rank, size_t at)
{
    return (float)((at * 7 + rank * 13) % 128);
}

typedef struct late_case {
    tide_dtype travels_as;
    uint64_t scratch_bytes; /* a multiple of 64 */
} late_case;

/* Rank 0 sends while the others do not read yet, so that its connections fill up in the middle of pieces. */
static tide_status reduce_late(tide_comm *comm, void *context)
{
    enum { ELEMENTS = 1500000, RANKS = 3 };
    const late_case *late = context;
    tide_comm_range ranges[RANKS];
    tide_status status = TIDE_OK;
    float *sums = malloc(RANKS * sizeof(float) * ELEMENTS);
    void *scratch = aligned_alloc(64, late->scratch_bytes);
    if (sums == NULL || scratch == NULL)
        abort();
    for (uint32_t owner = 0; owner < RANKS; owner++)
        ranges[owner] = (tide_comm_range){sums + owner * (size_t)ELEMENTS, ELEMENTS * sizeof(float), owner};
    const tide_comm_reduction reduction = {
        NULL, ranges, RANKS, late->travels_as, scratch, late->scratch_bytes};
    for (size_t at = 0; at < RANKS * (size_t)ELEMENTS; at++)
        sums[at] = whole_number(comm->rank, at);
    if (comm->rank != 0)
        (void)poll(NULL, 0, 100);
    status = tide_comm_reduce(comm, &reduction);
    for (size_t at = 0; at < RANKS * (size_t)ELEMENTS && status == TIDE_OK; at++) {
        const float total = whole_number(0, at) + whole_number(1, at) + whole_number(2, at);
        if (sums[at] != (at / ELEMENTS == comm->rank ? total : whole_number(comm->rank, at)))
            status = tide_fail(TIDE_ERROR_INTERNAL, "rank %u: sum %zu is wrong", comm->rank, at);
    }
    free(scratch);
    free(sums);
    return status;
}

static void reduces_that_fill_the_connections_are_right(void **state)
{
    /* small pieces of bf16, and pieces that may not fit into a connection at once */
    const late_case cases[] = {{TIDE_DTYPE_FP32, 24576},
                               {TIDE_DTYPE_BF16, 24576},
                               {TIDE_DTYPE_FP32, 6000000},
                               {TIDE_DTYPE_BF16, 6000000}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i += test_thin_threads(3)) {
        socket_rank ranks[3];
        late_case late = cases[i];
        socket_ranks_set(ranks, 3, reduce_late, &late);
        socket_ranks_run(ranks, 3);
        socket_ranks_expect_ok(ranks, 3);
    }
}

static tide_status send_and_end(tide_comm *comm, void *context)
{
    enum { BYTES = 1 << 19 };
    char *all = calloc(comm->ranks, BYTES);
    if (all == NULL)
        abort();
    char *mine = all + comm->rank * (size_t)BYTES;
    memset(mine, 'a' + (int)comm->rank, BYTES);
    tide_status status = tide_comm_exchange(comm, mine, BYTES, all);
    for (size_t at = 0; at < comm->ranks * (size_t)BYTES && status == TIDE_OK; at++) {
        if (all[at] != 'a' + (int)(at / BYTES))
            status = tide_fail(TIDE_ERROR_INTERNAL, "byte %zu is wrong", at);
    }
    free(all);
    return status;
}

static void a_rank_that_ends_early_does_not_destroy_bytes_on_their_way(void **state)
{
    for (uint32_t times = 0; times < 10; times++) {
        socket_rank ranks[SOCKET_RANKS_MAX];
        socket_ranks_set(ranks, 4, send_and_end, NULL);
        socket_ranks_run(ranks, 4);
        socket_ranks_expect_ok(ranks, 4);
    }
}

static tide_status end_late(tide_comm *comm, void *context)
{
    if (comm->rank == 1)
        (void)poll(NULL, 0, 300);
    return TIDE_OK;
}

static void the_end_waits_for_the_other_ranks(void **state)
{
    socket_rank ranks[2];
    socket_ranks_set(ranks, 2, end_late, NULL);
    socket_ranks_run(ranks, 2);
    socket_ranks_expect_ok(ranks, 2);
    assert_true(ranks[0].ended_ns >= ranks[1].body_ended_ns);
}

#define test(name) cmocka_unit_test_setup_teardown(name, count_files, expect_no_new_files)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(reduces_that_fill_the_connections_are_right),
        test(a_rank_that_ends_early_does_not_destroy_bytes_on_their_way),
        test(the_end_waits_for_the_other_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
