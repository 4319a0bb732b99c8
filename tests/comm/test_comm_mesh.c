/* Notices of ranks that have given up, in orders in which a network may deliver them. */
#include "src/comm/mesh.h"
#include "tests/comm/socket_ranks.h"
#include "tests/support/assert_ok.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

enum { RANKS = 3 };

/* The mesh of rank 0, and the other side of each of its connections. */
typedef struct half_mesh {
    tide_mesh mesh;
    int others[TIDE_CHANNELS][RANKS];
} half_mesh;

static void make(half_mesh *half)
{
    tide_tcp_address address = {.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    const int listener = tide_tcp_listen(&address);
    assert_true(listener >= 0 && tide_tcp_local(listener, &address));
    assert_ok(tide_mesh_init(&half->mesh, 0, RANKS));
    for (uint32_t channel = 0; channel < TIDE_CHANNELS; channel++) {
        for (uint32_t rank = 1; rank < RANKS; rank++) {
            struct pollfd waiting = {.fd = listener, .events = POLLIN};
            tide_tcp_address from;
            half->others[channel][rank] = tide_tcp_connect(&address, UINT64_MAX);
            assert_int_equal(poll(&waiting, 1, -1), 1);
            tide_mesh_keep(&half->mesh, channel, rank, tide_tcp_accept(listener, &from));
            half->mesh.hosts[rank] = tide_tcp_host_of(&from);
        }
    }
    close(listener);
}

static void destroy(half_mesh *half)
{
    for (uint32_t channel = 0; channel < TIDE_CHANNELS; channel++) {
        for (uint32_t rank = 1; rank < RANKS; rank++)
            close(half->others[channel][rank]);
    }
    tide_mesh_fini(&half->mesh);
}

static tide_notice notice_of(uint32_t rank, const char *reason)
{
    tide_notice notice = {.rank = rank};
    snprintf(notice.reason, sizeof notice.reason, "%s", reason);
    return notice;
}

static void send_bytes(int connection, const void *data, size_t bytes)
{
    assert_int_equal(send(connection, data, bytes, MSG_NOSIGNAL), bytes);
}

/* Does poll report the rank's notices within some time? */
static bool is_reported(const half_mesh *half, uint32_t rank, int milliseconds)
{
    struct pollfd notices = {.fd = tide_mesh_connection(&half->mesh, TIDE_CHANNEL_NOTICE, rank),
                             .events = POLLIN};
    return poll(&notices, 1, milliseconds) > 0;
}

static void each_look_at_a_notice_finds_it(void **state)
{
    half_mesh half;
    make(&half);
    const tide_notice notice = notice_of(1, "no memory");
    assert_int_equal(tide_mesh_look(&half.mesh, 1), TIDE_MESH_NO_NEWS);
    send_bytes(half.others[TIDE_CHANNEL_NOTICE][1], &notice, sizeof notice);
    assert_true(is_reported(&half, 1, -1));
    for (uint32_t times = 0; times < 3; times++) {
        tide_fail(TIDE_ERROR_PEER, "nothing");
        assert_int_equal(tide_mesh_look(&half.mesh, 1), TIDE_MESH_FAILED);
        expect_words("rank 1 (127.0.0.1): no memory");
    }
    assert_int_equal(tide_mesh_look(&half.mesh, 2), TIDE_MESH_NO_NEWS);
    destroy(&half);
}

static void poll_reports_a_notice_when_all_of_it_is_there(void **state)
{
    half_mesh half;
    make(&half);
    const tide_notice notice = notice_of(2, "no memory");
    send_bytes(half.others[TIDE_CHANNEL_NOTICE][2], &notice, 100);
    assert_false(is_reported(&half, 2, 50));
    send_bytes(half.others[TIDE_CHANNEL_NOTICE][2], (const char *)&notice + 100, sizeof notice - 100);
    assert_true(is_reported(&half, 2, -1));
    assert_int_equal(tide_mesh_look(&half.mesh, 2), TIDE_MESH_FAILED);
    destroy(&half);
}

static void a_connection_s_end_is_no_notice(void **state)
{
    half_mesh half;
    make(&half);
    shutdown(half.others[TIDE_CHANNEL_NOTICE][1], SHUT_WR);
    send_bytes(half.others[TIDE_CHANNEL_NOTICE][2], "abc", 3);
    shutdown(half.others[TIDE_CHANNEL_NOTICE][2], SHUT_WR);
    for (uint32_t rank = 1; rank < RANKS; rank++) {
        assert_true(is_reported(&half, rank, -1));
        assert_int_equal(tide_mesh_look(&half.mesh, rank), TIDE_MESH_ENDED);
        assert_int_equal(tide_mesh_lost(&half.mesh, rank, 0, "reduce 5"), TIDE_ERROR_PEER);
        expect_words("(127.0.0.1) has closed its connection during reduce 5");
    }
    destroy(&half);
}

static void *send_late(void *argument)
{
    const tide_notice notice = notice_of(1, "came late");
    (void)poll(NULL, 0, 100);
    send_bytes(*(const int *)argument, &notice, sizeof notice);
    return NULL;
}

static void a_notice_that_comes_after_the_end_of_another_connection_is_found(void **state)
{
    half_mesh half;
    pthread_t thread;
    make(&half);
    pthread_create(&thread, NULL, send_late, &half.others[TIDE_CHANNEL_NOTICE][1]);
    assert_int_equal(tide_mesh_lost(&half.mesh, 1, 0, "reduce 5"), TIDE_ERROR_PEER);
    expect_words("rank 1 (127.0.0.1): came late");
    pthread_join(thread, NULL);
    destroy(&half);
}

static void the_first_notice_is_passed_on_for_the_rank_that_failed(void **state)
{
    half_mesh half;
    tide_notice passed;
    make(&half);
    const tide_notice first = notice_of(1, "first"), second = notice_of(2, "second");
    send_bytes(half.others[TIDE_CHANNEL_NOTICE][2], &first, sizeof first); /* rank 2 passes it on itself */
    assert_true(is_reported(&half, 2, -1));
    assert_int_equal(tide_mesh_look(&half.mesh, 2), TIDE_MESH_FAILED);
    send_bytes(half.others[TIDE_CHANNEL_NOTICE][1], &second, sizeof second);
    assert_true(is_reported(&half, 1, -1));
    assert_int_equal(tide_mesh_look(&half.mesh, 1), TIDE_MESH_FAILED);
    tide_mesh_give_up(&half.mesh, "my own words");
    for (uint32_t rank = 1; rank < RANKS; rank++) {
        assert_true(
            tide_tcp_receive(half.others[TIDE_CHANNEL_NOTICE][rank], &passed, sizeof passed, UINT64_MAX));
        assert_memory_equal(&passed, &first, sizeof first);
    }
    destroy(&half);
}

static void a_mesh_that_gives_up_ends_all_its_connections(void **state)
{
    half_mesh half;
    char byte;
    make(&half);
    tide_mesh_give_up(&half.mesh, "my own words");
    for (uint32_t rank = 1; rank < RANKS; rank++) {
        tide_notice notice;
        assert_true(
            tide_tcp_receive(half.others[TIDE_CHANNEL_NOTICE][rank], &notice, sizeof notice, UINT64_MAX));
        assert_int_equal(notice.rank, 0);
        assert_string_equal(notice.reason, "my own words");
        for (uint32_t channel = 0; channel < TIDE_CHANNELS; channel++)
            assert_false(tide_tcp_receive(half.others[channel][rank], &byte, 1, UINT64_MAX));
    }
    destroy(&half);
}

#define test(name) cmocka_unit_test_setup_teardown(name, count_files, expect_no_new_files)

int main(void)
{
    const struct CMUnitTest tests[] = {
        test(each_look_at_a_notice_finds_it),
        test(poll_reports_a_notice_when_all_of_it_is_there),
        test(a_connection_s_end_is_no_notice),
        test(a_notice_that_comes_after_the_end_of_another_connection_is_found),
        test(the_first_notice_is_passed_on_for_the_rank_that_failed),
        test(a_mesh_that_gives_up_ends_all_its_connections),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
