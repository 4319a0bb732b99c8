/* The start over sockets: strangers, ranks that are missing, ranks that differ. */
#include "src/comm/handshake.h"
#include "src/comm/tcp.h"
#include "tests/comm/socket_ranks.h"
#include "tests/support/assert_ok.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static tide_status call_barrier(tide_comm *comm, void *context)
{
    return tide_comm_barrier(comm);
}

/* --- strangers --- */

static void send_garbage(int stranger, size_t bytes)
{
    char garbage[4096];
    memset(garbage, 0x5a, sizeof garbage);
    (void)send(stranger, garbage, bytes, MSG_NOSIGNAL);
}

static void strangers_that_stay_silent_or_send_garbage_do_not_disturb(void **state)
{
    enum { SILENT = 10, STRANGERS = 14 };
    int strangers[STRANGERS];
    socket_rank ranks[3];
    socket_ranks_set(ranks, 3, call_barrier, NULL);
    socket_rank_start(&ranks[0]);
    for (uint32_t i = 0; i < STRANGERS; i++)
        strangers[i] = connect_stranger(ranks[0].options.port);
    send_garbage(strangers[SILENT], 1);
    send_garbage(strangers[SILENT + 1], 128);
    send_garbage(strangers[SILENT + 2], 4096);
    send_garbage(strangers[SILENT + 3], 100);
    shutdown(strangers[SILENT + 3], SHUT_WR);
    socket_rank_start(&ranks[1]);
    socket_rank_start(&ranks[2]);
    for (uint32_t rank = 0; rank < 3; rank++)
        socket_rank_join(&ranks[rank]);
    for (uint32_t i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    socket_ranks_expect_ok(ranks, 3);
}

static void more_silent_strangers_than_may_wait_do_not_disturb(void **state)
{
    enum { STRANGERS = 300 };
    int strangers[STRANGERS];
    socket_rank ranks[2];
    socket_ranks_set(ranks, 2, call_barrier, NULL);
    socket_rank_start(&ranks[0]);
    for (uint32_t i = 0; i < STRANGERS; i++)
        strangers[i] = connect_stranger(ranks[0].options.port);
    socket_rank_start(&ranks[1]);
    socket_rank_join(&ranks[0]);
    socket_rank_join(&ranks[1]);
    for (uint32_t i = 0; i < STRANGERS; i++)
        close(strangers[i]);
    socket_ranks_expect_ok(ranks, 2);
}

static void a_rank_of_another_run_is_refused_and_does_not_disturb(void **state)
{
    socket_rank ranks[3], other;
    socket_ranks_set(ranks, 3, call_barrier, NULL);
    other = ranks[1];
    other.options.token = "another";
    other.options.timeout_seconds = 2; /* tries again and again, and keeps the reason */
    socket_rank_start(&ranks[0]);
    socket_rank_start(&other);
    socket_rank_join(&other);
    socket_rank_start(&ranks[1]);
    socket_rank_start(&ranks[2]);
    for (uint32_t rank = 0; rank < 3; rank++)
        socket_rank_join(&ranks[rank]);
    socket_ranks_expect_ok(ranks, 3);
    socket_rank_expect_failure(&other, "rank 0 (127.0.0.1) refuses rank 1: do their tokens differ?");
}

static void a_refusal_is_told_though_rank_0_has_ended_since(void **state)
{
    socket_rank ranks[2];
    socket_ranks_set(ranks, 2, NULL, NULL);
    ranks[0].options.timeout_seconds = 1;
    ranks[1].options.timeout_seconds = 3;
    ranks[1].options.token = "another";
    socket_ranks_run(ranks, 2);
    socket_rank_expect_failure(&ranks[0], "rank 1 of 2 did not connect to rank 0 in time");
    socket_rank_expect_failure(&ranks[1], "rank 0 (127.0.0.1) refuses rank 1: do their tokens differ?");
}

/* --- ranks that are missing --- */

static void missing_ranks_are_named_on_all_that_came(void **state)
{
    socket_rank ranks[5];
    socket_ranks_set(ranks, 5, NULL, NULL);
    ranks[0].options.timeout_seconds = 0.7;
    for (uint32_t rank = 0; rank < 5; rank += 2)
        socket_rank_start(&ranks[rank]);
    for (uint32_t rank = 0; rank < 5; rank += 2)
        socket_rank_join(&ranks[rank]);
    socket_rank_expect_failure(&ranks[0], "ranks 1, 3 of 5 did not connect to rank 0 in time");
    socket_rank_expect_failure(&ranks[2],
                               "rank 0 (127.0.0.1): ranks 1, 3 of 5 did not connect to rank 0 in time");
    socket_rank_expect_failure(&ranks[4],
                               "rank 0 (127.0.0.1): ranks 1, 3 of 5 did not connect to rank 0 in time");
}

static void the_shortest_timeout_of_all_ranks_counts(void **state)
{
    socket_rank ranks[3];
    socket_ranks_set(ranks, 3, NULL, NULL);
    ranks[1].options.timeout_seconds = 1;
    socket_rank_start(&ranks[0]);
    socket_rank_start(&ranks[1]);
    socket_rank_join(&ranks[0]);
    socket_rank_join(&ranks[1]);
    socket_rank_expect_failure(&ranks[0], "rank 2 of 3 did not connect to rank 0 in time");
    socket_rank_expect_failure(&ranks[1],
                               "rank 0 (127.0.0.1): rank 2 of 3 did not connect to rank 0 in time");
}

static void many_missing_ranks_are_counted(void **state)
{
    socket_rank rank;
    socket_ranks_set(&rank, 1, NULL, NULL);
    rank.options.ranks = TIDE_RANKS_MAX;
    rank.options.timeout_seconds = 0.01;
    socket_ranks_run(&rank, 1);
    socket_rank_expect_failure(&rank, "ranks 1, 2, 3, ");
    socket_rank_expect_failure(&rank, " more of 1024 did not connect to rank 0 in time");
}

static void a_missing_rank_0_is_named(void **state)
{
    socket_rank ranks[2];
    socket_ranks_set(ranks, 2, NULL, NULL);
    ranks[1].options.timeout_seconds = 0.2;
    socket_rank_start(&ranks[1]);
    socket_rank_join(&ranks[1]);
    socket_rank_expect_failure(&ranks[1], "rank 1 can't connect to rank 0 at 127.0.0.1 port");
}

/* --- ranks that differ --- */

/* Play a rank by hand: connect with rank 0 and send it the handshake. Its answer is thrown away. */
static void play_rank(uint16_t port, const tide_handshake *handshake)
{
    char answer[4096];
    const int connection = connect_stranger(port);
    assert_int_equal(send(connection, handshake, sizeof *handshake, MSG_NOSIGNAL), sizeof *handshake);
    while (recv(connection, answer, sizeof answer, 0) > 0)
        continue;
    close(connection);
}

/* Rank 0 fails at such a handshake. */
static void refuses(const tide_handshake *handshake, const char *words)
{
    socket_rank ranks[4];
    socket_ranks_set(ranks, 4, NULL, NULL);
    socket_rank_start(&ranks[0]);
    play_rank(ranks[0].options.port, handshake);
    socket_rank_join(&ranks[0]);
    socket_rank_expect_failure(&ranks[0], words);
}

static void ranks_that_differ_are_named(void **state)
{
    socket_rank ranks[4];
    socket_ranks_set(ranks, 4, NULL, NULL);
    const tide_handshake right = tide_handshake_make(&ranks[2].options);
    tide_handshake other = right;
    snprintf(other.version, sizeof other.version, "99.1");
    refuses(&other, "rank 2 (127.0.0.1) runs tidepool 99.1, protocol 1, where rank 0 runs ");
    other = right;
    other.protocol = 77;
    refuses(&other, ", protocol 77, where rank 0 runs ");
    other = right;
    other.byte_order = __builtin_bswap32(other.byte_order);
    refuses(&other, "the rank at 127.0.0.1 has another byte order than rank 0");
    other = right;
    other.ranks = 5;
    refuses(&other, "rank 2 (127.0.0.1) is one of 5 ranks, where rank 0 is one of 4");
    other = right;
    other.rank = 4;
    refuses(&other, "the rank at 127.0.0.1 sends rank 4");
    other = right;
    other.channel = TIDE_CHANNELS;
    refuses(&other, "the rank at 127.0.0.1 sends rank 2, channel 4");
    other = right;
    other.rank = 0;
    refuses(&other, "two processes have rank 0: this one and one at 127.0.0.1");
}

/* Wait until that many files more than `before` are open. */
static void wait_for_files(const void *before, uintptr_t more)
{
    void *now;
    do {
        (void)poll(NULL, 0, 20);
        count_files(&now);
    } while ((uintptr_t)now < (uintptr_t)before + more);
}

/* Start rank 0 and a rank that comes to it: a listener each, and both ends of their connection. */
static void start_two(socket_rank *first, socket_rank *second, const void *files_before)
{
    socket_rank_start(first);
    socket_rank_start(second);
    wait_for_files(files_before, 4);
    (void)poll(NULL, 0, 200); /* the handshake follows at once */
}

static void a_start_that_is_given_up_ends_on_all_ranks(void **state)
{
    static const char words[] = "the start of the ranks has been given up";
    int sides[2];
    void *files;
    socket_rank ranks[3];
    assert_int_equal(pipe(sides), 0);
    count_files(&files);
    socket_ranks_set(ranks, 3, NULL, NULL);
    ranks[0].options.give_up = ranks[2].options.give_up = sides[0];
    start_two(&ranks[0], &ranks[1], files);
    close(sides[1]);
    socket_rank_join(&ranks[0]);
    socket_rank_join(&ranks[1]);
    socket_rank_start(&ranks[2]); /* rank 0 is gone */
    socket_rank_join(&ranks[2]);
    for (uint32_t rank = 0; rank < 3; rank++)
        socket_rank_expect_failure(&ranks[rank], words);
    close(sides[0]);
}

static void another_fingerprint_is_named_on_all_ranks(void **state)
{
    socket_rank ranks[3];
    socket_ranks_set(ranks, 3, NULL, NULL);
    ranks[2].options.fingerprint = 0x99;
    start_two(&ranks[0], &ranks[1], *state);
    socket_rank_start(&ranks[2]);
    for (uint32_t rank = 0; rank < 3; rank++)
        socket_rank_join(&ranks[rank]);
    const char *words =
        "rank 2 (127.0.0.1) has fingerprint 0000000000000099, where rank 0 has 0000000000001234";
    socket_rank_expect_failure(&ranks[0], words);
    socket_rank_expect_failure(&ranks[1], words);
    socket_rank_expect_failure(
        &ranks[2], "rank 0 (127.0.0.1) has fingerprint 0000000000001234, where rank 2 has 0000000000000099");
}

static void two_processes_with_one_rank_are_named_on_all_ranks(void **state)
{
    socket_rank ranks[3], second;
    socket_ranks_set(ranks, 3, NULL, NULL);
    second = ranks[1];
    start_two(&ranks[0], &ranks[1], *state);
    socket_rank_start(&second);
    socket_rank_join(&ranks[0]);
    socket_rank_join(&ranks[1]);
    socket_rank_join(&second);
    const char *words = "two processes have rank 1: at 127.0.0.1 and at 127.0.0.1";
    socket_rank_expect_failure(&ranks[0], words);
    socket_rank_expect_failure(&ranks[1], words);
    socket_rank_expect_failure(&second, words);
}

static void a_rank_that_ends_during_the_start_is_named(void **state)
{
    char answer[sizeof(tide_handshake)];
    socket_rank ranks[3];
    socket_ranks_set(ranks, 3, NULL, NULL);
    tide_handshake played = tide_handshake_make(&ranks[2].options);
    played.milliseconds_left = 60000;
    socket_rank_start(&ranks[0]);
    const int connection = connect_stranger(ranks[0].options.port);
    assert_int_equal(send(connection, &played, sizeof played, MSG_NOSIGNAL), sizeof played);
    assert_int_equal(recv(connection, answer, sizeof answer, MSG_WAITALL), sizeof answer);
    close(connection);
    socket_rank_join(&ranks[0]);
    socket_rank_expect_failure(&ranks[0], "rank 2 (127.0.0.1) has closed its connection during the start");
}

/* --- arguments --- */

static void wrong_options_are_refused(void **state)
{
    tide_comm *comm = NULL;
    const tide_comm_socket_options right = {.rank = 0, .ranks = 1, .port = 1};
    tide_comm_socket_options options = right;
    assert_fails(tide_comm_socket_create(NULL, &comm), TIDE_ERROR_ARGUMENT, "options is NULL");
    assert_fails(tide_comm_socket_create(&options, NULL), TIDE_ERROR_ARGUMENT, "comm is NULL");
    options.ranks = 0;
    assert_fails(tide_comm_socket_create(&options, &comm), TIDE_ERROR_ARGUMENT, "0 ranks, 1 to 1024 are");
    options.ranks = TIDE_RANKS_MAX + 1;
    assert_fails(tide_comm_socket_create(&options, &comm), TIDE_ERROR_ARGUMENT, "1025 ranks, 1 to 1024 are");
    options = right;
    options.rank = 1;
    assert_fails(tide_comm_socket_create(&options, &comm), TIDE_ERROR_ARGUMENT, "rank 1 of 1, at most 0");
    options = right;
    options.port = 0;
    assert_fails(tide_comm_socket_create(&options, &comm), TIDE_ERROR_ARGUMENT, "port 0");
    options = right;
    options.timeout_seconds = -1;
    assert_fails(tide_comm_socket_create(&options, &comm), TIDE_ERROR_ARGUMENT, "timeout of -1 seconds");
    options.timeout_seconds = 0.0 / 0.0;
    assert_fails(tide_comm_socket_create(&options, &comm), TIDE_ERROR_ARGUMENT, "seconds, 0 or more");
    assert_null(comm);
}

static void an_address_or_port_that_rank_0_cannot_have_is_an_error(void **state)
{
    tide_comm *comm = NULL;
    const uint16_t port = free_port();
    tide_comm_socket_options options = {.rank = 0, .ranks = 2, .port = port, .address = "192.0.2.1"};
    assert_fails(tide_comm_socket_create(&options, &comm), TIDE_ERROR_IO, "rank 0 can't listen at 192.0.2.1");
    options.address = NULL;
    const tide_tcp_address address = {
        .v4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    const int taken = tide_tcp_listen(&address);
    assert_true(taken >= 0);
    assert_fails(tide_comm_socket_create(&options, &comm), TIDE_ERROR_IO, "Address already in use");
    options.rank = 1;
    options.timeout_seconds = 0.2;
    assert_fails(tide_comm_socket_create(&options, &comm), TIDE_ERROR_PEER,
                 "rank 0 (127.0.0.1) does not answer rank 1");
    close(taken);
    assert_null(comm);
}

#define test(name) cmocka_unit_test_setup_teardown(name, count_files, expect_no_new_files)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(strangers_that_stay_silent_or_send_garbage_do_not_disturb),
        test(more_silent_strangers_than_may_wait_do_not_disturb),
        test(a_rank_of_another_run_is_refused_and_does_not_disturb),
        test(a_refusal_is_told_though_rank_0_has_ended_since),
        test(missing_ranks_are_named_on_all_that_came),
        test(the_shortest_timeout_of_all_ranks_counts),
        test(many_missing_ranks_are_counted),
        test(a_missing_rank_0_is_named),
        test(ranks_that_differ_are_named),
        test(a_start_that_is_given_up_ends_on_all_ranks),
        test(another_fingerprint_is_named_on_all_ranks),
        test(two_processes_with_one_rank_are_named_on_all_ranks),
        test(a_rank_that_ends_during_the_start_is_named),
        test(wrong_options_are_refused),
        test(an_address_or_port_that_rank_0_cannot_have_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
