/* Ranks that are processes, on one host or several, connected by TCP. Each two ranks have a connection for
 * gather and reduce (the pool's thread), one for exchange (the caller's), one for the reason of a failure and
 * one for beats (the watch's thread):
 *
 *     rendezvous.h -> reception.h, handshake.h    the start: each rank connects with all others
 *     mesh.h -> tcp.h                             the connections, notices of failures, the end
 *     transfer.h -> link.h                        the collectives of one channel, with one other rank
 *     watch.h                                     the other ranks' beats, timeouts
 *     reduce_ring.h, range_cursor.h               the memory for sums that arrive; a place in ranges
 */
#include "src/comm/rendezvous.h"
#include "src/comm/transfer.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef struct socket_comm {
    tide_comm base;
    tide_mesh mesh;
    tide_watch watch;
    tide_transfer data, side;
    tide_comm_range *exchanged; /* [ranks] */
} socket_comm;

static socket_comm *socket_of(tide_comm *comm)
{
    return (socket_comm *)comm;
}

static tide_status socket_gather(tide_comm *comm, const char *of, const tide_comm_range *ranges,
                                 uint32_t count)
{
    return tide_transfer_gather(&socket_of(comm)->data, TIDE_CALL_GATHER, of, ranges, count);
}

static tide_status socket_reduce(tide_comm *comm, const tide_comm_reduction *reduction)
{
    return tide_transfer_reduce(&socket_of(comm)->data, reduction);
}

static tide_status socket_exchange(tide_comm *comm, const void *mine, size_t bytes, void *all)
{
    tide_comm_range *ranges = socket_of(comm)->exchanged;
    for (uint32_t rank = 0; rank < comm->ranks; rank++)
        ranges[rank] = (tide_comm_range){bytes == 0 ? NULL : (char *)all + rank * bytes, bytes, rank};
    if (bytes > 0)
        memmove(ranges[comm->rank].data, mine, bytes);
    return tide_transfer_gather(&socket_of(comm)->side, TIDE_CALL_EXCHANGE, NULL, ranges, comm->ranks);
}

static void socket_doing(tide_comm *comm, tide_comm_phase phase, const char *words)
{
    tide_watch_doing(&socket_of(comm)->watch, phase, words);
}

static void socket_abort(tide_comm *comm, const char *reason)
{
    tide_mesh_give_up(&socket_of(comm)->mesh, reason);
}

static void destroy(socket_comm *comm)
{
    tide_transfer_fini(&comm->side);
    tide_transfer_fini(&comm->data);
    tide_watch_fini(&comm->watch);
    tide_mesh_fini(&comm->mesh);
    tide_comm_fini(&comm->base);
    free(comm->exchanged);
    free(comm);
}

static bool socket_has_told(tide_comm *comm, uint32_t rank)
{
    return tide_mesh_has_told(&socket_of(comm)->mesh, rank);
}

static void socket_destroy(tide_comm *comm)
{
    tide_watch_stop(&socket_of(comm)->watch); /* first, since it may be failing the comm */
    if (tide_comm_failure(comm) == TIDE_OK)
        tide_mesh_take_leave(&socket_of(comm)->mesh);
    destroy(socket_of(comm));
}

static const tide_comm_ops socket_ops = {
    .gather = socket_gather,
    .reduce = socket_reduce,
    .exchange = socket_exchange,
    .doing = socket_doing,
    .abort = socket_abort,
    .has_told = socket_has_told,
    .destroy = socket_destroy,
};

static tide_status check_options(const tide_comm_socket_options *options, tide_comm **comm)
{
    if (options == NULL || comm == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_comm_socket_create: %s is NULL",
                         options == NULL ? "options" : "comm");
    if (options->ranks < 1 || options->ranks > TIDE_RANKS_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_comm_socket_create: %u ranks, 1 to %d are allowed",
                         options->ranks, TIDE_RANKS_MAX);
    if (options->rank >= options->ranks)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_comm_socket_create: rank %u of %u, at most %u is allowed",
                         options->rank, options->ranks, options->ranks - 1);
    if (options->port == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_comm_socket_create: port 0, 1 to 65535 are allowed");
    if (!(options->timeout_seconds >= 0))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tide_comm_socket_create: a timeout of %g seconds, 0 or more is "
                         "allowed",
                         options->timeout_seconds);
    if (!(options->collective_timeout_seconds >= 0))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tide_comm_socket_create: a timeout of %g seconds for collectives, 0 or more is "
                         "allowed",
                         options->collective_timeout_seconds);
    if (!(options->bytes_per_second >= 0))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tide_comm_socket_create: a bandwidth of %g bytes a second, 0 or more is allowed",
                         options->bytes_per_second);
    return TIDE_OK;
}

/* All but the connections and the watch's thread. NO_MEMORY. */
static tide_status make(const tide_comm_socket_options *options, socket_comm **made)
{
    const uint32_t rank = options->rank, ranks = options->ranks;
    tide_status status = TIDE_ERROR_NO_MEMORY;
    socket_comm *comm = calloc(1, sizeof *comm);
    tide_comm_range *exchanged = calloc(ranks, sizeof *exchanged);
    if (comm == NULL || exchanged == NULL) {
        tide_fail(status, "no memory for the communicator of %u ranks", ranks);
        goto free_arrays;
    }
    comm->exchanged = exchanged;
    status = tide_mesh_init(&comm->mesh, rank, ranks);
    if (status != TIDE_OK)
        goto free_arrays;
    status = tide_watch_init(&comm->watch, &comm->base, &comm->mesh, options);
    if (status != TIDE_OK)
        goto fini_mesh;
    status = tide_transfer_init(&comm->data, &comm->mesh, &comm->watch, TIDE_CHANNEL_DATA);
    if (status != TIDE_OK)
        goto fini_watch;
    status = tide_transfer_init(&comm->side, &comm->mesh, &comm->watch, TIDE_CHANNEL_SIDE);
    if (status != TIDE_OK)
        goto fini_data;
    comm->data.bytes_per_second = options->bytes_per_second;
    tide_comm_init(&comm->base, &socket_ops, rank, ranks);
    *made = comm;
    return TIDE_OK;

fini_data:
    tide_transfer_fini(&comm->data);
fini_watch:
    tide_watch_fini(&comm->watch);
fini_mesh:
    tide_mesh_fini(&comm->mesh);
free_arrays:
    free(exchanged);
    free(comm);
    return status;
}

tide_status tide_comm_socket_create(const tide_comm_socket_options *options, tide_comm **comm)
{
    socket_comm *made = NULL;
    tide_status status = check_options(options, comm);
    if (status == TIDE_OK)
        status = make(options, &made);
    if (status == TIDE_OK && options->ranks > 1) {
        status = tide_rendezvous(options, &made->mesh);
        if (status == TIDE_OK)
            status = tide_watch_start(&made->watch);
        if (status != TIDE_OK) {
            tide_mesh_give_up(&made->mesh, tide_message());
            destroy(made);
        }
    }
    if (status == TIDE_OK)
        *comm = &made->base;
    return status;
}
