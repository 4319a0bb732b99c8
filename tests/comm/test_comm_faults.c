/* One request for memory or one system call of a rank fails, for every such call from the rank's start to its
 * end. All ranks end, with success or a clear failure, and leave no file open. The last run of each loop
 * meets no fault and succeeds.
 *
 * The linker's --wrap sends the calls here. A fault belongs to a rank's own thread. The thread of its watch
 * (test_comm_watch.c) has none. */
#include "base/clock.h"
#include "src/comm/comm.h"
#include "src/comm/mesh.h"
#include "tests/comm/socket_ranks.h"
#include "tests/support/assert_ok.h"

#include <assert.h>
#include <errno.h>

#include <netdb.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

enum {
    RANKS = 3,
    ELEMENTS = 3000,
    PATIENCE_SECONDS = 20 /* much less than ranks wait for one that does not come */
};

/* --- calls that fail --- */

typedef enum fault_kind {
    MEMORY,
    SOCKET,
    SET_OPTION,
    BIND,
    LISTEN,
    ACCEPT,
    CONNECT,
    LOCAL_NAME,
    REMOTE_NAME,
    RESOLVE,
    NAME_HOST,
    WAIT,
    SEND,
    RECEIVE,
    SEND_BLOCKS,
    RECEIVE_BLOCKS,
    START_THREAD,
    KINDS
} fault_kind;

static const struct {
    const char *name;
    int error;
} kinds[KINDS] = {
    [MEMORY] = {"a request for memory", ENOMEM},
    [SOCKET] = {"socket", EMFILE},
    [SET_OPTION] = {"setsockopt", ENOBUFS},
    [BIND] = {"bind", EADDRINUSE},
    [LISTEN] = {"listen", EADDRINUSE},
    [ACCEPT] = {"accept4", ENFILE},
    [CONNECT] = {"connect", ENETUNREACH},
    [LOCAL_NAME] = {"getsockname", ENOBUFS},
    [REMOTE_NAME] = {"getpeername", ENOBUFS},
    [RESOLVE] = {"getaddrinfo", EAI_MEMORY},
    [NAME_HOST] = {"getnameinfo", EAI_MEMORY},
    [WAIT] = {"poll", ENOMEM},
    [SEND] = {"send", ENOBUFS},
    [RECEIVE] = {"recv", ENOBUFS},
    [SEND_BLOCKS] = {"sendmsg", ENOBUFS},
    [RECEIVE_BLOCKS] = {"recvmsg", ENOBUFS},
    [START_THREAD] = {"pthread_create", EAGAIN},
};

static _Thread_local fault_kind failing;
static _Thread_local uint32_t countdown; /* the fault is the call at which it becomes 0; 0: there is none */

static bool must_fail(fault_kind kind)
{
    if (countdown == 0 || kind != failing || --countdown > 0)
        return false;
    errno = kinds[kind].error;
    return true;
}

#define WRAP(kind, type, name, takes, passes, failure)                                                       \
    type __real_##name takes;                                                                                \
    type __wrap_##name takes;                                                                                \
    type __wrap_##name takes                                                                                 \
    {                                                                                                        \
        return must_fail(kind) ? (failure) : __real_##name passes;                                           \
    }

WRAP(MEMORY, void *, malloc, (size_t bytes), (bytes), NULL)
WRAP(MEMORY, void *, calloc, (size_t count, size_t bytes), (count, bytes), NULL)
WRAP(SOCKET, int, socket, (int family, int type, int protocol), (family, type, protocol), -1)
WRAP(SET_OPTION, int, setsockopt, (int fd, int level, int option, const void *value, socklen_t bytes),
     (fd, level, option, value, bytes), -1)
WRAP(BIND, int, bind, (int fd, const struct sockaddr *address, socklen_t bytes), (fd, address, bytes), -1)
WRAP(LISTEN, int, listen, (int fd, int most), (fd, most), -1)
WRAP(ACCEPT, int, accept4, (int fd, struct sockaddr *from, socklen_t *bytes, int flags),
     (fd, from, bytes, flags), -1)
WRAP(CONNECT, int, connect, (int fd, const struct sockaddr *to, socklen_t bytes), (fd, to, bytes), -1)
WRAP(LOCAL_NAME, int, getsockname, (int fd, struct sockaddr *address, socklen_t *bytes), (fd, address, bytes),
     -1)
WRAP(REMOTE_NAME, int, getpeername, (int fd, struct sockaddr *address, socklen_t *bytes),
     (fd, address, bytes), -1)
WRAP(RESOLVE, int, getaddrinfo,
     (const char *name, const char *port, const struct addrinfo *hints, struct addrinfo **list),
     (name, port, hints, list), EAI_MEMORY)
WRAP(NAME_HOST, int, getnameinfo,
     (const struct sockaddr *address, socklen_t bytes, char *host, socklen_t host_bytes, char *port,
      socklen_t port_bytes, int flags),
     (address, bytes, host, host_bytes, port, port_bytes, flags), EAI_MEMORY)
WRAP(WAIT, int, poll, (struct pollfd * files, nfds_t count, int milliseconds), (files, count, milliseconds),
     -1)
WRAP(SEND, ssize_t, send, (int fd, const void *data, size_t bytes, int flags), (fd, data, bytes, flags), -1)
WRAP(RECEIVE, ssize_t, recv, (int fd, void *data, size_t bytes, int flags), (fd, data, bytes, flags), -1)
WRAP(SEND_BLOCKS, ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags),
     -1)
WRAP(RECEIVE_BLOCKS, ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags), -1)
WRAP(START_THREAD, int, pthread_create,
     (pthread_t * thread, const pthread_attr_t *about, void *(*run)(void *), void *context),
     (thread, about, run, context), EAGAIN)

/* --- which ranks are connected --- */

static atomic_bool joined[RANKS][RANKS]; /* [a][b]: rank a has a connection with rank b */

void __real_tide_mesh_keep(tide_mesh *mesh, tide_channel_name channel, uint32_t rank, int connection);
void __wrap_tide_mesh_keep(tide_mesh *mesh, tide_channel_name channel, uint32_t rank, int connection);
void __wrap_tide_mesh_keep(tide_mesh *mesh, tide_channel_name channel, uint32_t rank, int connection)
{
    atomic_store(&joined[mesh->rank][rank], true);
    __real_tide_mesh_keep(mesh, channel, rank, connection);
}

/* --- a rank's calls --- */

typedef struct memory {
    float sums[RANKS * ELEMENTS];
    _Alignas(64) uint8_t scratch[2 * RANKS * 4096];
} memory;

static tide_status call_collectives(tide_comm *comm, memory *of)
{
    const float rank = (float)comm->rank;
    tide_comm_range ranges[RANKS];
    tide_comm_reduction reduction = {.of = "block 3 backward",
                                     .ranges = ranges,
                                     .count = RANKS,
                                     .travels_as = TIDE_DTYPE_FP32,
                                     .scratch = of->scratch,
                                     .scratch_bytes = sizeof of->scratch};
    for (uint32_t i = 0; i < RANKS; i++)
        ranges[i] = (tide_comm_range){of->sums + i * ELEMENTS, ELEMENTS * sizeof of->sums[0], i};
    for (uint32_t i = 0; i < RANKS * ELEMENTS; i++)
        of->sums[i] = 1 + rank;
    tide_status status = tide_comm_reduce(comm, &reduction);
    if (status == TIDE_OK)
        status = tide_comm_gather(comm, reduction.of, ranges, RANKS);
    for (uint32_t i = 0; i < RANKS * ELEMENTS && status == TIDE_OK; i++)
        if (of->sums[i] != 6)
            status = tide_fail(TIDE_ERROR_ARGUMENT, "sum %u is %g", i, of->sums[i]);
    return status;
}

static tide_status call_all(tide_comm *comm)
{
    memory *of = aligned_alloc(64, sizeof *of);
    uint32_t mine = comm->rank, all[RANKS], told = comm->rank + 7;
    if (of == NULL)
        abort();
    tide_status status = tide_comm_barrier(comm);
    if (status == TIDE_OK)
        status = call_collectives(comm, of);
    if (status == TIDE_OK)
        status = tide_comm_exchange(comm, &mine, sizeof mine, all);
    for (uint32_t i = 0; i < RANKS && status == TIDE_OK; i++)
        if (all[i] != i)
            status = tide_fail(TIDE_ERROR_ARGUMENT, "rank %u gave %u", i, all[i]);
    if (status == TIDE_OK)
        status = tide_comm_broadcast(comm, &told, sizeof told);
    if (status == TIDE_OK && told != 7)
        status = tide_fail(TIDE_ERROR_ARGUMENT, "rank 0 told %u", told);
    free(of);
    return status;
}

/* --- ranks over sockets --- */

typedef struct faulty_rank {
    socket_rank base;
    fault_kind kind;
    uint32_t number;  /* of the call that fails, from 1; 0: none */
    bool was_reached; /* the fault has happened */
    bool has_started; /* the rank had a communicator */
    atomic_bool has_ended;
} faulty_rank;

static void *run_rank(void *argument)
{
    faulty_rank *rank = argument;
    socket_rank *base = &rank->base;
    tide_comm *comm = NULL;
    failing = rank->kind;
    countdown = rank->number;
    base->status = tide_comm_socket_create(&base->options, &comm);
    rank->has_started = base->status == TIDE_OK;
    assert(rank->has_started == (comm != NULL));
    if (rank->has_started)
        base->status = call_all(comm);
    snprintf(base->message, sizeof base->message, "%s", tide_message());
    if (rank->has_started && tide_comm_failure(comm) != base->status)
        base->status = TIDE_ERROR_ARGUMENT;
    tide_comm_destroy(comm);
    rank->was_reached = rank->number > 0 && countdown == 0;
    countdown = 0;
    atomic_store(&rank->has_ended, true);
    return NULL;
}

static void start(faulty_rank *rank)
{
    assert_int_equal(pthread_create(&rank->base.thread, NULL, run_rank, rank), 0);
}

static void join(faulty_rank *rank)
{
    assert_int_equal(pthread_join(rank->base.thread, NULL), 0);
}

/* Does the other rank wait for this one, which has failed before they were connected? Ranks wait for rank 0,
 * and it for them. */
static bool waits_for(const faulty_rank *ranks, uint32_t other, uint32_t rank)
{
    return (other == 0) != (rank == 0) && !atomic_load(&joined[0][other + rank]) &&
           !atomic_load(&joined[rank][other]) && !atomic_load(&ranks[other].has_ended);
}

/* End the start of those that wait: processes with the rank's number come that differ. */
static void end_starts(const faulty_rank *ranks, uint32_t rank)
{
    tide_comm_socket_options options = ranks[rank].base.options;
    options.fingerprint++;
    options.timeout_seconds = 0.2;
    for (uint32_t other = 0; other < RANKS; other++) {
        while (waits_for(ranks, other, rank)) {
            tide_comm *comm = NULL;
            assert_int_not_equal(tide_comm_socket_create(&options, &comm), TIDE_OK);
            for (uint32_t i = 0; i < 50 && waits_for(ranks, other, rank); i++)
                (void)poll(NULL, 0, 1);
        }
    }
}

static const char *words_of(fault_kind kind)
{
    if (kind == MEMORY)
        return "no memory ";
    return kind == RESOLVE || kind == NAME_HOST ? gai_strerror(EAI_MEMORY) : strerror(kinds[kind].error);
}

/* Does the message name another rank that has failed? Where the news of the fault comes too late, it is one
 * that gave up for it. */
static bool names_failed_rank(const faulty_rank *ranks, uint32_t rank)
{
    for (uint32_t other = 0; other < RANKS; other++) {
        char name[16];
        snprintf(name, sizeof name, "rank %u ", other);
        if (other != rank && ranks[other].base.status != TIDE_OK &&
            strstr(ranks[rank].base.message, name) != NULL)
            return true;
    }
    return false;
}

/* The rank with the fault says what has failed, the others which rank. */
static void check(const faulty_rank *ranks, uint32_t faulty)
{
    const faulty_rank *at = &ranks[faulty];
    const tide_status status = at->base.status;
    const char *call = kinds[at->kind].name;
    if (status != TIDE_OK &&
        (status == TIDE_ERROR_ARGUMENT || strstr(at->base.message, words_of(at->kind)) == NULL))
        fail_msg("%s %u of rank %u: %s: %s", call, at->number, faulty, tide_status_name(status),
                 at->base.message);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        const socket_rank *other = &ranks[rank].base;
        const bool is_good = other->status == TIDE_OK
                                 ? status == TIDE_OK || !at->was_reached || at->has_started
                                 : other->status == TIDE_ERROR_PEER && names_failed_rank(ranks, rank);
        if (rank != faulty && !is_good)
            fail_msg("%s %u of rank %u: rank %u: %s: %s", call, at->number, faulty, rank,
                     tide_status_name(other->status), other->message);
    }
}

/* Returns whether the rank made so many calls of the kind. */
static bool run_with_fault(uint32_t faulty, fault_kind kind, uint32_t number, void *files)
{
    socket_rank options[RANKS];
    faulty_rank ranks[RANKS];
    const uint64_t begun_ns = tide_clock_ns();
    memset(joined, 0, sizeof joined);
    socket_ranks_set(options, RANKS, NULL, NULL);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        ranks[rank] = (faulty_rank){.base = options[rank]};
    ranks[faulty].kind = kind;
    ranks[faulty].number = number;
    /* rank 0 and the rank without a fault are connected when a fault of the third comes */
    start(&ranks[0]);
    for (uint32_t rank = 1; rank < RANKS; rank++)
        if (rank != faulty)
            start(&ranks[rank]);
    while (faulty > 0 && !atomic_load(&joined[0][RANKS - faulty]))
        (void)poll(NULL, 0, 1);
    if (faulty > 0)
        start(&ranks[faulty]);
    join(&ranks[faulty]);
    if (!ranks[faulty].has_started)
        end_starts(ranks, faulty);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        if (rank != faulty)
            join(&ranks[rank]);
    check(ranks, faulty);
    if (tide_clock_ns() - begun_ns > PATIENCE_SECONDS * (uint64_t)1000000000)
        fail_msg("%s %u of rank %u: a rank ended late", kinds[kind].name, number, faulty);
    expect_no_new_files(&files);
    return ranks[faulty].was_reached;
}

static void every_fault_of_a_rank_ends_all_or_does_no_harm(void **state)
{
    for (fault_kind kind = 0; kind < KINDS; kind++) {
        uint32_t faults = 0;
        for (uint32_t rank = 0; rank < RANKS; rank++)
            for (uint32_t number = 1; run_with_fault(rank, kind, number, *state); number++)
                faults++;
        assert_true(faults > 0);
    }
}

/* --- ranks in one process --- */

static void a_loop_that_gets_no_memory_is_not_made(void **state)
{
    tide_comm *comms[RANKS];
    tide_status status = TIDE_ERROR_NO_MEMORY;
    uint32_t number = 0;
    failing = MEMORY;
    while (status != TIDE_OK) {
        countdown = ++number;
        status = tide_comm_loop_create(RANKS, comms);
        if (status == TIDE_OK)
            break;
        assert_int_equal(countdown, 0);
        assert_fails(status, TIDE_ERROR_NO_MEMORY, "no memory for 3 ranks");
        for (uint32_t rank = 0; rank < RANKS; rank++)
            assert_null(comms[rank]);
    }
    countdown = 0;
    assert_int_equal(number, RANKS + 2);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        tide_comm_destroy(comms[rank]);
}

#define test(name) cmocka_unit_test_setup_teardown(name, count_files, expect_no_new_files)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(every_fault_of_a_rank_ends_all_or_does_no_harm),
        test(a_loop_that_gets_no_memory_is_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
