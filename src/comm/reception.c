#include "src/comm/reception.h"

#include "base/clock.h"
#include "base/minmax.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ACCEPTED_AT_ONCE = 16 };
enum { LISTENER, GIVE_UP, VISITORS, RANKS = VISITORS + TIDE_VISITORS_MAX }; /* indices in polls */

tide_status tide_reception_open(tide_reception *reception, tide_mesh *mesh, const tide_handshake *own,
                                int listener, int give_up, uint64_t deadline, tide_tcp_address *addresses)
{
    reception->mesh = mesh;
    reception->own = own;
    reception->listener = listener;
    reception->give_up = give_up;
    reception->deadline = deadline;
    reception->addresses = addresses;
    reception->visitor_count = 0;
    reception->polls = calloc(RANKS + (size_t)mesh->ranks, sizeof *reception->polls);
    reception->ended = calloc(mesh->ranks, sizeof *reception->ended);
    if (reception->polls != NULL && reception->ended != NULL)
        return TIDE_OK;
    free(reception->ended);
    free(reception->polls);
    close(listener);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for connections with %u ranks", mesh->ranks);
}

static void forget(tide_reception *reception, uint32_t index)
{
    assert(index < reception->visitor_count);
    reception->visitor_count--;
    memmove(&reception->visitors[index], &reception->visitors[index + 1],
            (reception->visitor_count - index) * sizeof reception->visitors[0]);
}

static void turn_away(tide_reception *reception, uint32_t index)
{
    close(reception->visitors[index].connection);
    forget(reception, index);
}

void tide_reception_close(tide_reception *reception)
{
    while (reception->visitor_count > 0)
        turn_away(reception, reception->visitor_count - 1);
    close(reception->listener);
    free(reception->ended);
    free(reception->polls);
}

/* --- handshakes --- */

/* The rank's handshake is right; this function checks that its place is free and takes the connection. */
static tide_status admit(tide_reception *reception, uint32_t index)
{
    tide_mesh *mesh = reception->mesh;
    const tide_visitor visitor = reception->visitors[index];
    const tide_handshake *other = &visitor.handshake;
    const tide_tcp_host host = tide_tcp_host_of(&visitor.from);
    if (other->rank == mesh->rank)
        return tide_fail(TIDE_ERROR_PEER, "two processes have rank %u: this one and one at %s", mesh->rank,
                         host.text);
    if (other->rank < mesh->rank || tide_mesh_connection(mesh, other->channel, other->rank) >= 0)
        return tide_fail(TIDE_ERROR_PEER, "two processes have rank %u: at %s and at %s", other->rank,
                         mesh->hosts[other->rank].text, host.text);
    mesh->hosts[other->rank] = host;
    reception->addresses[other->rank] = visitor.from;
    tide_tcp_set_port(&reception->addresses[other->rank], other->port);
    reception->deadline =
        tide_min_u64(reception->deadline, tide_clock_ns() + other->milliseconds_left * (uint64_t)1000000);
    tide_mesh_keep(mesh, other->channel, other->rank, visitor.connection);
    forget(reception, index);
    return TIDE_OK;
}

/* A process that differs gets the handshake, too, and rank 0 says the reason, which it may not see itself. */
static tide_status greet(tide_reception *reception, uint32_t index)
{
    tide_visitor *visitor = &reception->visitors[index];
    const tide_tcp_host host = tide_tcp_host_of(&visitor->from);
    if (!tide_handshake_is_ours(reception->own, &visitor->handshake) ||
        !tide_tcp_send(visitor->connection, reception->own, sizeof *reception->own, 0)) {
        turn_away(reception, index);
        return TIDE_OK;
    }
    const int connection = visitor->connection;
    tide_status status = tide_handshake_check(reception->own, &visitor->handshake, host.text);
    if (status == TIDE_OK)
        status = admit(reception, index);
    if (status != TIDE_OK && reception->own->rank == 0) {
        const tide_start_answer answer = tide_start_answer_make(status);
        (void)tide_tcp_send(connection, &answer, sizeof answer, 0);
    }
    return status;
}

static tide_status listen_to(tide_reception *reception, uint32_t index)
{
    tide_visitor *visitor = &reception->visitors[index];
    const ssize_t got = recv(visitor->connection, (char *)&visitor->handshake + visitor->got_bytes,
                             sizeof visitor->handshake - visitor->got_bytes, 0);
    if (got < 0 && tide_tcp_would_block(errno))
        return TIDE_OK;
    if (got <= 0) {
        turn_away(reception, index);
        return TIDE_OK;
    }
    visitor->got_bytes += (uint32_t)got;
    return visitor->got_bytes == sizeof visitor->handshake ? greet(reception, index) : TIDE_OK;
}

static bool lacks_resources(int error)
{
    return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* Not all at once: those that came before get their turn to speak before they could be turned away. */
static tide_status accept_some(tide_reception *reception)
{
    for (uint32_t i = 0; i < ACCEPTED_AT_ONCE; i++) {
        tide_visitor visitor = {.got_bytes = 0};
        visitor.connection = tide_tcp_accept(reception->listener, &visitor.from);
        if (visitor.connection < 0 && !lacks_resources(errno))
            return TIDE_OK; /* there is none, or the network has lost it already */
        if (visitor.connection < 0)
            return tide_fail(TIDE_ERROR_IO, "rank %u can't accept connections, of which %u ranks need %u: %s",
                             reception->mesh->rank, reception->mesh->ranks,
                             TIDE_CHANNELS * (reception->mesh->ranks - 1), strerror(errno));
        if (reception->visitor_count == TIDE_VISITORS_MAX)
            turn_away(reception, 0);
        reception->visitors[reception->visitor_count++] = visitor;
        const tide_status status = listen_to(reception, reception->visitor_count - 1);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

/* --- waiting --- */

static bool is_missing(const tide_mesh *mesh, uint32_t rank, tide_channel_name first, tide_channel_name end)
{
    for (uint32_t channel = first; channel < end; channel++) {
        if (tide_mesh_connection(mesh, channel, rank) < 0)
            return true;
    }
    return false;
}

static uint32_t count_missing(const tide_mesh *mesh, tide_channel_name first, tide_channel_name end)
{
    uint32_t missing = 0;
    for (uint32_t rank = mesh->rank + 1; rank < mesh->ranks; rank++)
        missing += is_missing(mesh, rank, first, end);
    return missing;
}

static tide_status fail_with_missing(const tide_reception *reception, tide_channel_name first,
                                     tide_channel_name end)
{
    const tide_mesh *mesh = reception->mesh;
    const uint32_t missing = count_missing(mesh, first, end);
    char names[256] = "";
    uint32_t named = 0;
    size_t length = 0;
    for (uint32_t rank = mesh->rank + 1; rank < mesh->ranks && length < sizeof names - 40; rank++) {
        if (is_missing(mesh, rank, first, end))
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%u", named++ > 0 ? ", " : "",
                                       rank);
    }
    if (named < missing)
        snprintf(names + length, sizeof names - length, " and %u more", missing - named);
    return tide_fail(TIDE_ERROR_PEER, "rank%s %s of %u did not connect to rank %u in time",
                     missing == 1 ? "" : "s", names, mesh->ranks, mesh->rank);
}

/* Where a rank that is connected would tell its failure or end: -1 if it is not, or has ended. */
static int watched_connection(const tide_reception *reception, uint32_t rank)
{
    const int notices = tide_mesh_connection(reception->mesh, TIDE_CHANNEL_NOTICE, rank);
    if (reception->ended[rank])
        return -1;
    return notices >= 0 ? notices : tide_mesh_connection(reception->mesh, TIDE_CHANNEL_DATA, rank);
}

static void prepare(tide_reception *reception)
{
    const tide_mesh *mesh = reception->mesh;
    reception->polls[LISTENER] = (struct pollfd){.fd = reception->listener, .events = POLLIN};
    reception->polls[GIVE_UP] = (struct pollfd){.fd = reception->give_up, .events = POLLIN};
    for (uint32_t i = 0; i < TIDE_VISITORS_MAX; i++)
        reception->polls[VISITORS + i] = (struct pollfd){
            .fd = i < reception->visitor_count ? reception->visitors[i].connection : -1, .events = POLLIN};
    for (uint32_t rank = 0; rank < mesh->ranks; rank++) {
        const bool gets_notice = tide_mesh_connection(mesh, TIDE_CHANNEL_NOTICE, rank) >= 0;
        reception->polls[RANKS + rank] = (struct pollfd){.fd = watched_connection(reception, rank),
                                                         .events = gets_notice ? POLLIN : POLLRDHUP};
    }
}

/* Something has come on the rank's watched connection. A rank that has all connections with this one may end
 * without a failure. */
static tide_status look_at_rank(tide_reception *reception, uint32_t rank)
{
    tide_mesh *mesh = reception->mesh;
    const tide_mesh_news news = tide_mesh_connection(mesh, TIDE_CHANNEL_NOTICE, rank) < 0
                                    ? TIDE_MESH_ENDED
                                    : tide_mesh_look(mesh, rank);
    if (news == TIDE_MESH_FAILED)
        return TIDE_ERROR_PEER;
    if (news == TIDE_MESH_NO_NEWS)
        return TIDE_OK;
    reception->ended[rank] = true;
    if (!is_missing(mesh, rank, TIDE_CHANNEL_DATA, TIDE_CHANNELS))
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_PEER, "rank %u (%s) has closed its connection during the start", rank,
                     mesh->hosts[rank].text);
}

static tide_status serve(tide_reception *reception)
{
    tide_status status = TIDE_OK;
    if (reception->polls[GIVE_UP].revents != 0)
        return tide_fail(TIDE_ERROR_PEER, "the start of the ranks has been given up");
    for (uint32_t rank = 0; rank < reception->mesh->ranks && status == TIDE_OK; rank++) {
        if (reception->polls[RANKS + rank].revents != 0)
            status = look_at_rank(reception, rank);
    }
    /* backwards, since a visitor that leaves moves those behind it */
    for (uint32_t i = reception->visitor_count; i-- > 0 && status == TIDE_OK;) {
        if (reception->polls[VISITORS + i].revents != 0)
            status = listen_to(reception, i);
    }
    if (status == TIDE_OK && reception->polls[LISTENER].revents != 0)
        status = accept_some(reception);
    return status;
}

tide_status tide_reception_run(tide_reception *reception, tide_channel_name first, tide_channel_name end)
{
    const tide_mesh *mesh = reception->mesh;
    while (count_missing(mesh, first, end) > 0) {
        const int left = tide_tcp_milliseconds_to(reception->deadline);
        if (left == 0)
            return fail_with_missing(reception, first, end);
        prepare(reception);
        const int ready = poll(reception->polls, RANKS + mesh->ranks, left);
        if (ready < 0 && errno != EINTR)
            return tide_fail(TIDE_ERROR_IO, "rank %u can't wait for the other ranks: %s", mesh->rank,
                             strerror(errno));
        const tide_status status = ready > 0 ? serve(reception) : TIDE_OK;
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}
