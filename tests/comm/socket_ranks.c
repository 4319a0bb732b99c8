#include "tests/comm/socket_ranks.h"

#include "base/clock.h"
#include "tests/support/assert_ok.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

void socket_ranks_set(socket_rank *ranks, uint32_t count, tide_status (*body)(tide_comm *, void *),
                      void *context)
{
    const uint16_t port = free_port();
    assert_true(count <= SOCKET_RANKS_MAX);
    for (uint32_t rank = 0; rank < count; rank++)
        ranks[rank] = (socket_rank){
            .options = {.rank = rank, .ranks = count, .port = port, .token = "test", .fingerprint = 0x1234},
            .body = body,
            .context = context,
        };
}

static void *run_rank(void *argument)
{
    socket_rank *rank = argument;
    tide_comm *comm = NULL;
    rank->status = tide_comm_socket_create(&rank->options, &comm);
    if (rank->status == TIDE_OK && rank->body != NULL)
        rank->status = rank->body(comm, rank->context);
    snprintf(rank->message, sizeof rank->message, "%s", tide_message());
    rank->body_ended_ns = tide_clock_ns();
    tide_comm_destroy(comm);
    rank->ended_ns = tide_clock_ns();
    return NULL;
}

void socket_rank_start(socket_rank *rank)
{
    assert_int_equal(pthread_create(&rank->thread, NULL, run_rank, rank), 0);
}

void socket_rank_join(socket_rank *rank)
{
    assert_int_equal(pthread_join(rank->thread, NULL), 0);
}

void socket_ranks_run(socket_rank *ranks, uint32_t count)
{
    for (uint32_t rank = 0; rank < count; rank++)
        socket_rank_start(&ranks[rank]);
    for (uint32_t rank = 0; rank < count; rank++)
        socket_rank_join(&ranks[rank]);
}

void socket_ranks_expect_ok(const socket_rank *ranks, uint32_t count)
{
    for (uint32_t rank = 0; rank < count; rank++) {
        if (ranks[rank].status != TIDE_OK)
            fail_msg("rank %u of %u: %s", rank, count, ranks[rank].message);
    }
}

void socket_rank_expect_failure(const socket_rank *rank, const char *words)
{
    if (rank->status != TIDE_ERROR_PEER || strstr(rank->message, words) == NULL)
        fail_msg("rank %u: %s: \"%s\" does not say \"%s\"", rank->options.rank,
                 tide_status_name(rank->status), rank->message, words);
}

static bool is_free(int family, const struct sockaddr *address, socklen_t bytes)
{
    const int on = 1;
    const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is = fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
                    bind(fd, address, bytes) == 0;
    close(fd);
    return is;
}

uint16_t free_port(void)
{
    static uint32_t next;
    for (uint32_t tries = 0; tries < 10000; tries++) {
        const uint16_t port = (uint16_t)(12000 + ((uint32_t)getpid() * 131 + next++) % 18000);
        const struct sockaddr_in address = {
            .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        if (is_free(AF_INET, (const struct sockaddr *)&address, sizeof address))
            return port;
    }
    fail_msg("no port is free");
    return 0;
}

int connect_stranger(uint16_t port)
{
    const struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (;;) {
        const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        assert_true(fd >= 0);
        if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
            return fd;
        close(fd);
        (void)poll(NULL, 0, 10);
    }
}

static uintptr_t open_files(void)
{
    uintptr_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert_non_null(folder);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

int count_files(void **state)
{
    *state = (void *)open_files(); // NOLINT
    return 0;
}

int expect_no_new_files(void **state)
{
    assert_int_equal(open_files(), (uintptr_t)*state);
    return 0;
}
