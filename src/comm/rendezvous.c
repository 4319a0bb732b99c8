#include "src/comm/rendezvous.h"

#include "base/clock.h"
#include "base/minmax.h"
#include "src/comm/reception.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static const uint64_t second_ns = 1000000000;

enum {
    RETRY_MILLISECONDS = 50,
    CONNECT_SECONDS = 3, /* for one of several addresses of rank 0 */
    /* by which other ranks wait longer than rank 0, which can name those that are missing */
    ANSWER_SECONDS = 3
};

typedef struct start_state {
    tide_mesh *mesh;
    const char *address; /* of rank 0 */
    uint16_t port;
    int listener; /* which listens there already; 0: none */
    int give_up;  /* a descriptor at which the start is given up; -1: none */
    tide_handshake own;
    uint64_t deadline;
    tide_tcp_address *addresses; /* [ranks] where each listens */
    bool is_refused;             /* a program listens at rank 0's address, but closes the connection */
} start_state;

/* --- rank 0's address --- */

/* The caller frees the list. IO: the name is not known. */
static tide_status resolve(const start_state *start, struct addrinfo **list)
{
    char port[8];
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    snprintf(port, sizeof port, "%u", start->port);
    const int error = getaddrinfo(start->address, port, &hints, list);
    return error == 0
               ? TIDE_OK
               : tide_fail(TIDE_ERROR_IO, "rank %u can't find rank 0's address %s: %s", start->own.rank,
                           start->address, error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
}

static bool get_address(const struct addrinfo *info, tide_tcp_address *address)
{
    *address = (tide_tcp_address){0};
    if (info->ai_addrlen > sizeof *address)
        return false;
    memcpy(address, info->ai_addr, info->ai_addrlen);
    return tide_tcp_address_is_valid(address);
}

static tide_status listen_at_address(const start_state *start, int *listener)
{
    struct addrinfo *list;
    if (start->listener > 0) {
        *listener = start->listener;
        return tide_tcp_adopt(*listener)
                   ? TIDE_OK
                   : tide_fail(TIDE_ERROR_IO, "rank 0 can't listen at descriptor %d: %s", *listener,
                               strerror(errno));
    }
    const tide_status status = resolve(start, &list);
    if (status != TIDE_OK)
        return status;
    *listener = -1;
    errno = EADDRNOTAVAIL;
    for (const struct addrinfo *info = list; info != NULL && *listener < 0; info = info->ai_next) {
        tide_tcp_address address;
        if (get_address(info, &address))
            *listener = tide_tcp_listen(&address);
    }
    const int error = errno;
    freeaddrinfo(list);
    return *listener >= 0 ? TIDE_OK
                          : tide_fail(TIDE_ERROR_IO, "rank 0 can't listen at %s port %u: %s", start->address,
                                      start->port, strerror(error));
}

/* --- connecting to a lower rank --- */

static bool is_closed(int error)
{
    return error == ECONNRESET || error == EPIPE;
}

/* With errno, of a connection with a rank that has been a rank of this run. */
static tide_status fail_at_start(const tide_mesh *mesh, uint32_t rank)
{
    if (is_closed(errno))
        return tide_fail(TIDE_ERROR_PEER, "rank %u (%s) has closed its connection during the start", rank,
                         mesh->hosts[rank].text);
    return tide_fail(TIDE_ERROR_PEER, "rank %u (%s) does not answer during the start: %s", rank,
                     mesh->hosts[rank].text, strerror(errno));
}

/* Exchange handshakes on a new connection. PEER; `again`: another try may succeed, since the other side is no
 * rank of this run or has closed the connection. */
static tide_status introduce(const start_state *start, int connection, uint32_t rank,
                             tide_channel_name channel, bool *again)
{
    const char *host = start->mesh->hosts[rank].text;
    tide_handshake own = start->own, other;
    own.channel = channel;
    own.milliseconds_left = (uint32_t)tide_tcp_milliseconds_to(start->deadline);
    *again = true;
    if (!tide_tcp_send(connection, &own, sizeof own, start->deadline) ||
        !tide_tcp_receive(connection, &other, sizeof other, start->deadline)) {
        *again = is_closed(errno) || errno == ETIMEDOUT;
        if (tide_mesh_connection(start->mesh, TIDE_CHANNEL_DATA, 0) >= 0)
            return fail_at_start(start->mesh, rank);
        if (is_closed(errno))
            return tide_fail(TIDE_ERROR_PEER, "rank %u (%s) refuses rank %u: do their tokens differ?", rank,
                             host, own.rank);
        return tide_fail(TIDE_ERROR_PEER, "rank %u (%s) does not answer rank %u: %s", rank, host, own.rank,
                         strerror(errno));
    }
    if (!tide_handshake_is_ours(&own, &other))
        return tide_fail(TIDE_ERROR_PEER,
                         "the program at %s is not rank %u of this run: do their tokens differ?", host, rank);
    *again = false;
    const tide_status status = tide_handshake_check(&own, &other, host);
    return status != TIDE_OK || other.rank == rank
               ? status
               : tide_fail(TIDE_ERROR_PEER, "at %s there is rank %u, where rank %u should be", host,
                           other.rank, rank);
}

/* One channel to a rank that listens already. */
static tide_status connect_to(const start_state *start, uint32_t rank, tide_channel_name channel)
{
    for (;;) {
        bool again = false;
        const int connection = tide_tcp_connect(&start->addresses[rank], start->deadline);
        if (connection < 0)
            return tide_fail(TIDE_ERROR_PEER, "rank %u can't connect to rank %u (%s): %s", start->own.rank,
                             rank, start->mesh->hosts[rank].text, strerror(errno));
        const tide_status status = introduce(start, connection, rank, channel, &again);
        if (status == TIDE_OK) {
            tide_mesh_keep(start->mesh, channel, rank, connection);
            return TIDE_OK;
        }
        close(connection);
        if (!again || tide_tcp_milliseconds_to(start->deadline) == 0)
            return status;
    }
}

/* --- step 1 of the other ranks --- */

/* Try one address of rank 0; makes the listener. PEER, IO. */
static tide_status try_address(start_state *start, const tide_tcp_address *address, int *listener,
                               bool *again)
{
    tide_tcp_address local;
    const uint64_t limit = tide_min_u64(start->deadline, tide_clock_ns() + CONNECT_SECONDS * second_ns);
    *again = true;
    start->mesh->hosts[0] = tide_tcp_host_of(address);
    const int connection = tide_tcp_connect(address, limit);
    if (connection < 0)
        return tide_fail(TIDE_ERROR_PEER, "rank %u can't connect to rank 0 at %s port %u: %s",
                         start->own.rank, start->mesh->hosts[0].text, start->port, strerror(errno));
    tide_status status;
    *listener = -1;
    if (tide_tcp_local(connection, &local)) {
        tide_tcp_set_port(&local, 0);
        *listener = tide_tcp_listen(&local);
    }
    if (*listener < 0 || !tide_tcp_local(*listener, &local)) {
        *again = false;
        status = tide_fail(TIDE_ERROR_IO, "rank %u can't listen: %s", start->own.rank, strerror(errno));
        goto close_both;
    }
    start->own.port = tide_tcp_port(&local);
    start->addresses[0] = *address;
    status = introduce(start, connection, 0, TIDE_CHANNEL_DATA, again);
    start->is_refused = status != TIDE_OK;
    if (status != TIDE_OK)
        goto close_both;
    tide_mesh_keep(start->mesh, TIDE_CHANNEL_DATA, 0, connection);
    return TIDE_OK;

close_both:
    close(connection);
    if (*listener >= 0)
        close(*listener);
    return status;
}

static tide_status try_name(start_state *start, int *listener, bool *again)
{
    struct addrinfo *list;
    *again = true; /* a name may become known later */
    tide_status status = resolve(start, &list);
    if (status != TIDE_OK)
        return status;
    status = tide_fail(TIDE_ERROR_PEER, "%s has no address of IPv4 or IPv6", start->address);
    for (const struct addrinfo *info = list; info != NULL && status != TIDE_OK && *again;
         info = info->ai_next) {
        tide_tcp_address address;
        if (get_address(info, &address))
            status = try_address(start, &address, listener, again);
    }
    freeaddrinfo(list);
    return status;
}

/* At the timeout the message is that of the last try to which the time did not put an end. A refusal counts
 * more than a connection that fails, since rank 0 may have ended meanwhile. */
static tide_status join(start_state *start, int *listener)
{
    char reason[1024] = "";
    bool was_refused = false;
    for (;;) {
        bool again = true;
        start->is_refused = false;
        const tide_status status = try_name(start, listener, &again);
        const int left = tide_tcp_milliseconds_to(start->deadline);
        if (status == TIDE_OK || !again)
            return status;
        if (left == 0)
            return tide_fail(TIDE_ERROR_PEER, "%s", reason[0] == '\0' ? tide_message() : reason);
        if (start->is_refused || !was_refused)
            snprintf(reason, sizeof reason, "%s", tide_message());
        was_refused = was_refused || start->is_refused;
        struct pollfd news = {.fd = start->give_up, .events = POLLIN};
        if (poll(&news, 1, left < RETRY_MILLISECONDS ? left : RETRY_MILLISECONDS) > 0)
            return tide_fail(TIDE_ERROR_PEER, "the start of the ranks has been given up");
    }
}

/* --- step 2 --- */

static tide_status send_table(const start_state *start)
{
    const tide_mesh *mesh = start->mesh;
    const tide_start_answer answer = tide_start_answer_make(TIDE_OK);
    for (uint32_t rank = 1; rank < mesh->ranks; rank++) {
        const int connection = tide_mesh_connection(mesh, TIDE_CHANNEL_DATA, rank);
        if (!tide_tcp_send(connection, &answer, sizeof answer, start->deadline) ||
            !tide_tcp_send(connection, start->addresses, mesh->ranks * sizeof *start->addresses,
                           start->deadline))
            return fail_at_start(mesh, rank);
    }
    return TIDE_OK;
}

/* Say this thread's message to all ranks that have come. */
static void send_failure(const start_state *start, tide_status status)
{
    const tide_start_answer answer = tide_start_answer_make(status);
    for (uint32_t rank = 1; rank < start->mesh->ranks; rank++) {
        const int connection = tide_mesh_connection(start->mesh, TIDE_CHANNEL_DATA, rank);
        if (connection >= 0)
            (void)tide_tcp_send(connection, &answer, sizeof answer, 0);
    }
}

static tide_status receive_table(start_state *start)
{
    tide_mesh *mesh = start->mesh;
    tide_start_answer answer;
    const tide_tcp_address rank_0 = start->addresses[0];
    const int connection = tide_mesh_connection(mesh, TIDE_CHANNEL_DATA, 0);
    const uint64_t deadline = start->deadline + ANSWER_SECONDS * second_ns;
    if (!tide_tcp_receive(connection, &answer, sizeof answer, deadline))
        return fail_at_start(mesh, 0);
    answer.reason[sizeof answer.reason - 1] = '\0';
    if (answer.has_failed)
        return tide_fail(TIDE_ERROR_PEER, "rank 0 (%s): %s", mesh->hosts[0].text, answer.reason);
    if (!tide_tcp_receive(connection, start->addresses, mesh->ranks * sizeof *start->addresses, deadline))
        return fail_at_start(mesh, 0);
    start->addresses[0] = rank_0;
    for (uint32_t rank = 1; rank < mesh->ranks; rank++) {
        tide_tcp_address *address = &start->addresses[rank];
        if (!tide_tcp_address_is_valid(address))
            return tide_fail(TIDE_ERROR_PEER, "rank 0 (%s) sends no address of rank %u", mesh->hosts[0].text,
                             rank);
        /* the number of the network device in a link-local address is another on each host */
        if (address->family == AF_INET6 && address->v6.sin6_scope_id != 0)
            address->v6.sin6_scope_id = rank_0.v6.sin6_scope_id;
        mesh->hosts[rank] = tide_tcp_host_of(address);
    }
    return TIDE_OK;
}

/* --- all steps --- */

static tide_status lead(start_state *start)
{
    int listener = -1;
    tide_reception reception;
    tide_status status = listen_at_address(start, &listener);
    if (status == TIDE_OK)
        status = tide_reception_open(&reception, start->mesh, &start->own, listener, start->give_up,
                                     start->deadline, start->addresses);
    if (status != TIDE_OK)
        return status;
    status = tide_reception_run(&reception, TIDE_CHANNEL_DATA, TIDE_CHANNEL_DATA + 1);
    if (status != TIDE_OK)
        send_failure(start, status);
    if (status == TIDE_OK)
        status = send_table(start);
    if (status == TIDE_OK)
        status = tide_reception_run(&reception, TIDE_CHANNEL_SIDE, TIDE_CHANNELS);
    tide_reception_close(&reception);
    return status;
}

static tide_status follow(start_state *start)
{
    int listener = -1;
    tide_reception reception;
    tide_status status = join(start, &listener);
    if (status == TIDE_OK)
        status = tide_reception_open(&reception, start->mesh, &start->own, listener, start->give_up,
                                     start->deadline, start->addresses);
    if (status != TIDE_OK)
        return status;
    status = receive_table(start);
    for (uint32_t rank = 0; rank < start->own.rank && status == TIDE_OK; rank++) {
        for (uint32_t channel = 0; channel < TIDE_CHANNELS && status == TIDE_OK; channel++) {
            if (tide_mesh_connection(start->mesh, channel, rank) < 0)
                status = connect_to(start, rank, channel);
        }
    }
    if (status == TIDE_OK)
        status = tide_reception_run(&reception, TIDE_CHANNEL_DATA, TIDE_CHANNELS);
    tide_reception_close(&reception);
    return status;
}

tide_status tide_rendezvous(const tide_comm_socket_options *options, tide_mesh *mesh)
{
    const double seconds = options->timeout_seconds == 0 ? 60 : options->timeout_seconds;
    assert(mesh->ranks > 1 && seconds > 0);
    start_state start = {
        .mesh = mesh,
        .address = options->address == NULL ? "127.0.0.1" : options->address,
        .port = options->port,
        .listener = options->listener,
        .give_up = options->give_up > 0 ? options->give_up : -1,
        .own = tide_handshake_make(options),
        .deadline = tide_clock_ns() + (uint64_t)(tide_min_f64(seconds, 1e6) * 1e9),
        .addresses = calloc(mesh->ranks, sizeof *start.addresses),
    };
    if (start.addresses == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the addresses of %u ranks", mesh->ranks);
    const tide_status status = mesh->rank == 0 ? lead(&start) : follow(&start);
    free(start.addresses);
    return status;
}
