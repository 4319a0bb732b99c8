#include "src/comm/mesh.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint64_t second_ns = 1000000000;

enum { NOTICE_WAIT_SECONDS = 2, BUSY_WAIT_SECONDS = 10, LEAVE_WAIT_SECONDS = 5 };

static_assert(sizeof(tide_notice) < 1024, "a notice fits into one packet");

static uint32_t connections_of(const tide_mesh *mesh)
{
    return TIDE_CHANNELS * mesh->ranks;
}

tide_status tide_mesh_init(tide_mesh *mesh, uint32_t rank, uint32_t ranks)
{
    *mesh = (tide_mesh){.rank = rank, .ranks = ranks};
    const uint32_t count = connections_of(mesh);
    mesh->connections = malloc(count * sizeof *mesh->connections);
    mesh->hosts = calloc(ranks, sizeof *mesh->hosts);
    mesh->polls = calloc(count, sizeof *mesh->polls);
    if (mesh->connections == NULL || mesh->hosts == NULL || mesh->polls == NULL) {
        free(mesh->polls);
        free(mesh->hosts);
        free(mesh->connections);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the connections of %u ranks", ranks);
    }
    for (uint32_t i = 0; i < count; i++)
        mesh->connections[i] = -1;
    pthread_mutex_init(&mesh->lock, NULL);
    return TIDE_OK;
}

void tide_mesh_fini(tide_mesh *mesh)
{
    for (uint32_t i = 0; i < connections_of(mesh); i++) {
        if (mesh->connections[i] >= 0)
            close(mesh->connections[i]);
    }
    pthread_mutex_destroy(&mesh->lock);
    free(mesh->polls);
    free(mesh->hosts);
    free(mesh->connections);
}

static int *connection_at(const tide_mesh *mesh, tide_channel_name channel, uint32_t rank)
{
    assert(channel < TIDE_CHANNELS && rank < mesh->ranks);
    return &mesh->connections[(uint32_t)channel * mesh->ranks + rank];
}

int tide_mesh_connection(const tide_mesh *mesh, tide_channel_name channel, uint32_t rank)
{
    return *connection_at(mesh, channel, rank);
}

void tide_mesh_keep(tide_mesh *mesh, tide_channel_name channel, uint32_t rank, int connection)
{
    /* poll reports a notice when all of it is there */
    const int notice_bytes = sizeof(tide_notice);
    if (channel == TIDE_CHANNEL_NOTICE)
        setsockopt(connection, SOL_SOCKET, SO_RCVLOWAT, &notice_bytes, sizeof notice_bytes);
    assert(rank != mesh->rank && *connection_at(mesh, channel, rank) < 0);
    *connection_at(mesh, channel, rank) = connection;
}

/* --- notices --- */

static tide_status fail_with(tide_mesh *mesh, const tide_notice *notice)
{
    return tide_fail(TIDE_ERROR_PEER, "rank %u (%s): %s", notice->rank, mesh->hosts[notice->rank].text,
                     notice->reason);
}

/* The notice stays in the kernel's buffer, where this rank's other waiting thread finds it. */
tide_mesh_news tide_mesh_look(tide_mesh *mesh, uint32_t rank)
{
    tide_notice notice;
    const ssize_t got =
        recv(tide_mesh_connection(mesh, TIDE_CHANNEL_NOTICE, rank), &notice, sizeof notice, MSG_PEEK);
    if (got < 0 && tide_tcp_would_block(errno))
        return TIDE_MESH_NO_NEWS;
    if (got < 0 && errno == ETIMEDOUT) {
        tide_fail(TIDE_ERROR_PEER, "rank %u (%s) does not answer any more", rank, mesh->hosts[rank].text);
        return TIDE_MESH_FAILED;
    }
    if (got != sizeof notice || notice.rank >= mesh->ranks)
        return TIDE_MESH_ENDED;
    notice.reason[sizeof notice.reason - 1] = '\0';
    pthread_mutex_lock(&mesh->lock);
    if (!mesh->heard)
        mesh->first = notice;
    mesh->heard = true;
    pthread_mutex_unlock(&mesh->lock);
    fail_with(mesh, &notice);
    return TIDE_MESH_FAILED;
}

tide_status tide_mesh_lost(tide_mesh *mesh, uint32_t rank, int error, const char *call)
{
    /* an error of this host's brings no notice */
    const bool is_closed = error == 0 || error == ECONNRESET || error == EPIPE;
    const uint64_t deadline = tide_clock_ns() + (is_closed ? NOTICE_WAIT_SECONDS * second_ns : 0);
    struct pollfd notices = {.fd = tide_mesh_connection(mesh, TIDE_CHANNEL_NOTICE, rank), .events = POLLIN};
    for (int left; !atomic_load(&mesh->given_up) && (left = tide_tcp_milliseconds_to(deadline)) > 0;) {
        if (poll(&notices, 1, left) <= 0)
            continue;
        const tide_mesh_news news = tide_mesh_look(mesh, rank);
        if (news == TIDE_MESH_FAILED)
            return TIDE_ERROR_PEER;
        if (news == TIDE_MESH_ENDED)
            break;
    }
    if (is_closed)
        return tide_fail(TIDE_ERROR_PEER, "rank %u (%s) has closed its connection during %s", rank,
                         mesh->hosts[rank].text, call);
    return tide_fail(TIDE_ERROR_PEER, "the connection with rank %u (%s) has failed during %s: %s", rank,
                     mesh->hosts[rank].text, call, strerror(error));
}

/* A rank that is busy outside collectives sends its notice late. */
bool tide_mesh_has_told(const tide_mesh *mesh, uint32_t rank)
{
    const uint64_t deadline = tide_clock_ns() + BUSY_WAIT_SECONDS * second_ns;
    const int connection = tide_mesh_connection(mesh, TIDE_CHANNEL_NOTICE, rank);
    struct pollfd notices = {.fd = connection, .events = POLLIN};
    tide_notice notice;
    int left;
    do
        left = tide_tcp_milliseconds_to(deadline);
    while (left > 0 && poll(&notices, 1, left) <= 0);
    return recv(connection, &notice, sizeof notice, MSG_PEEK) == sizeof notice;
}

void tide_mesh_give_up(tide_mesh *mesh, const char *reason)
{
    if (mesh->ranks == 1)
        return;
    tide_notice notice = {.rank = mesh->rank};
    snprintf(notice.reason, sizeof notice.reason, "%s", reason);
    pthread_mutex_lock(&mesh->lock);
    if (mesh->heard)
        notice = mesh->first;
    pthread_mutex_unlock(&mesh->lock);
    atomic_store(&mesh->given_up, true);
    for (uint32_t rank = 0; rank < mesh->ranks; rank++) {
        if (rank == mesh->rank)
            continue;
        const int connection = tide_mesh_connection(mesh, TIDE_CHANNEL_NOTICE, rank);
        if (connection < 0) /* the start has failed */
            continue;
        while (send(connection, &notice, sizeof notice, MSG_NOSIGNAL) < 0 && errno == EINTR)
            continue;
        shutdown(connection, SHUT_WR);
        shutdown(tide_mesh_connection(mesh, TIDE_CHANNEL_DATA, rank), SHUT_RDWR);
        shutdown(tide_mesh_connection(mesh, TIDE_CHANNEL_SIDE, rank), SHUT_RDWR);
        shutdown(tide_mesh_connection(mesh, TIDE_CHANNEL_WATCH, rank), SHUT_RDWR);
    }
}

/* --- the end --- */

/* Throw away the bytes that have come. Has the other side closed the connection? */
static bool is_over(int connection)
{
    char unread[4096];
    for (;;) {
        const ssize_t got = recv(connection, unread, sizeof unread, 0);
        if (got == 0 || (got < 0 && !tide_tcp_would_block(errno)))
            return true;
        if (got < 0 && errno != EINTR)
            return false;
    }
}

void tide_mesh_take_leave(tide_mesh *mesh)
{
    const uint64_t deadline = tide_clock_ns() + LEAVE_WAIT_SECONDS * second_ns;
    uint32_t open = 0;
    for (uint32_t i = 0; i < connections_of(mesh); i++) {
        mesh->polls[i] = (struct pollfd){.fd = mesh->connections[i], .events = POLLIN};
        if (mesh->connections[i] < 0)
            continue;
        shutdown(mesh->connections[i], SHUT_WR);
        open++;
    }
    for (int left; open > 0 && (left = tide_tcp_milliseconds_to(deadline)) > 0;) {
        if (poll(mesh->polls, connections_of(mesh), left) <= 0)
            continue;
        for (uint32_t i = 0; i < connections_of(mesh); i++) {
            if (mesh->polls[i].fd < 0 || mesh->polls[i].revents == 0 || !is_over(mesh->polls[i].fd))
                continue;
            mesh->polls[i].fd = -1;
            open--;
        }
    }
}
