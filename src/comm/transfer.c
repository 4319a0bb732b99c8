#include "src/comm/transfer.h"

#include "base/clock.h"
#include "base/minmax.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

tide_status tide_transfer_init(tide_transfer *transfer, tide_mesh *mesh, tide_watch *watch,
                               tide_channel_name channel)
{
    const uint32_t ranks = mesh->ranks;
    *transfer = (tide_transfer){.mesh = mesh, .watch = watch, .channel = channel};
    transfer->links = calloc(ranks, sizeof *transfer->links);
    transfer->notices_ended = calloc(ranks, sizeof *transfer->notices_ended);
    transfer->polls = calloc(2 * (size_t)ranks, sizeof *transfer->polls);
    transfer->inputs = calloc(ranks, sizeof *transfer->inputs);
    if (transfer->links != NULL && transfer->notices_ended != NULL && transfer->polls != NULL &&
        transfer->inputs != NULL)
        return TIDE_OK;
    tide_transfer_fini(transfer);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the collectives of %u ranks", ranks);
}

void tide_transfer_fini(tide_transfer *transfer)
{
    free(transfer->inputs);
    free(transfer->polls);
    free(transfer->notices_ended);
    free(transfer->links);
}

/* --- one call --- */

static void begin(tide_transfer *transfer, const tide_call *call)
{
    const tide_mesh *mesh = transfer->mesh;
    for (uint32_t rank = 0; rank < mesh->ranks; rank++) {
        transfer->links[rank].rank = rank;
        transfer->links[rank].connection = tide_mesh_connection(mesh, transfer->channel, rank);
        if (rank != mesh->rank)
            tide_link_begin(&transfer->links[rank], mesh, call);
    }
}

enum { LATE_NS_MOST = 5000000 };

/* How long the line is still busy with the bytes that this rank has sent. */
static uint64_t line_busy_ns(const tide_transfer *transfer)
{
    const uint64_t now_ns = transfer->bytes_per_second > 0 ? tide_clock_ns() : UINT64_MAX;
    return transfer->line_free_ns > now_ns ? transfer->line_free_ns - now_ns : 0;
}

/* Send, as far as a limit of the bandwidth allows. */
static tide_status send_some(tide_transfer *transfer, tide_link *link, const tide_call *call)
{
    const double share_seconds = 0.002; /* so that all links get their turn */
    const double rate = transfer->bytes_per_second;
    uint64_t sent;
    if (line_busy_ns(transfer) > 0)
        return TIDE_OK;
    const tide_status status = tide_link_send(
        link, transfer->mesh, call, rate > 0 ? 1 + (uint64_t)(rate * share_seconds) : UINT64_MAX, &sent);
    if (rate > 0) /* poll wakes late; a little of the time lost is made up */
        transfer->line_free_ns = tide_max_u64(transfer->line_free_ns, tide_clock_ns() - LATE_NS_MOST) +
                                 (uint64_t)((double)sent / rate * 1e9);
    return status;
}

/* Set what poll waits for, and *timeout_ms for it. Returns whether the call is over with all ranks. A
 * connection from which nothing is wanted now is left out: if its other side is gone, poll would report it
 * again and again. */
static bool prepare(tide_transfer *transfer, const tide_call *call, int *timeout_ms)
{
    const tide_mesh *mesh = transfer->mesh;
    const uint64_t busy_ns = line_busy_ns(transfer);
    const int sends = busy_ns > 0 ? 0 : POLLOUT;
    bool is_over = true;
    *timeout_ms = busy_ns > 0 ? 1 + (int)(busy_ns / 1000000) : -1;
    for (uint32_t rank = 0; rank < mesh->ranks; rank++) {
        struct pollfd *notices = &transfer->polls[rank];
        struct pollfd *bytes = notices + mesh->ranks;
        const tide_link *link = &transfer->links[rank];
        *notices = *bytes = (struct pollfd){.fd = -1};
        if (rank == mesh->rank)
            continue;
        if (!transfer->notices_ended[rank])
            *notices = (struct pollfd){tide_mesh_connection(mesh, TIDE_CHANNEL_NOTICE, rank), POLLIN, 0};
        bytes->events =
            (short)((tide_link_sends(link) ? sends : 0) | (tide_link_receives(link, call) ? POLLIN : 0));
        bytes->fd = bytes->events == 0 ? -1 : link->connection;
        if (!tide_link_is_over(link, call))
            is_over = false;
        else
            tide_watch_part_over(transfer->watch, transfer->channel, rank);
    }
    return is_over;
}

static tide_status look_at_notices(tide_transfer *transfer)
{
    if (atomic_load(&transfer->mesh->given_up))
        return tide_fail(TIDE_ERROR_PEER, "rank %u has given up", transfer->mesh->rank);
    for (uint32_t rank = 0; rank < transfer->mesh->ranks; rank++) {
        if (transfer->polls[rank].revents == 0)
            continue;
        const tide_mesh_news news = tide_mesh_look(transfer->mesh, rank);
        if (news == TIDE_MESH_FAILED)
            return TIDE_ERROR_PEER;
        transfer->notices_ended[rank] = news == TIDE_MESH_ENDED;
    }
    return TIDE_OK;
}

static tide_status move_bytes(tide_transfer *transfer, const tide_call *call)
{
    tide_mesh *mesh = transfer->mesh;
    for (uint32_t rank = 0; rank < mesh->ranks; rank++) {
        const struct pollfd *ready = &transfer->polls[mesh->ranks + rank];
        tide_link *link = &transfer->links[rank];
        tide_status status = TIDE_OK;
        /* an error makes both tries, the first of which reports it */
        if ((ready->revents & ~POLLOUT) != 0 && tide_link_receives(link, call))
            status = tide_link_receive(link, mesh, call);
        if (status == TIDE_OK && (ready->revents & ~POLLIN) != 0 && tide_link_sends(link))
            status = send_some(transfer, link, call);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

static tide_status move_all(tide_transfer *transfer, const tide_call *call)
{
    int timeout_ms;
    begin(transfer, call);
    while (!prepare(transfer, call, &timeout_ms)) {
        if (poll(transfer->polls, 2 * transfer->mesh->ranks, timeout_ms) < 0) {
            if (errno == EINTR)
                continue;
            return tide_fail(TIDE_ERROR_IO, "rank %u can't wait for the other ranks: %s",
                             transfer->mesh->rank, strerror(errno));
        }
        tide_status status = look_at_notices(transfer);
        if (status == TIDE_OK)
            status = move_bytes(transfer, call);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

static tide_status run(tide_transfer *transfer, const tide_call *call)
{
    tide_watch_enter(transfer->watch, transfer->channel, call->header.number, call->text);
    const tide_status status = move_all(transfer, call);
    tide_watch_leave(transfer->watch, transfer->channel);
    return status;
}

tide_status tide_transfer_gather(tide_transfer *transfer, tide_call_kind kind, const char *of,
                                 const tide_comm_range *ranges, uint32_t count)
{
    if (transfer->mesh->ranks == 1)
        return TIDE_OK;
    tide_call call = {.ranges = ranges, .count = count};
    tide_call_describe(&call, kind, ++transfer->calls, of);
    return run(transfer, &call);
}

tide_status tide_transfer_reduce(tide_transfer *transfer, const tide_comm_reduction *reduction)
{
    const tide_mesh *mesh = transfer->mesh;
    if (mesh->ranks == 1)
        return TIDE_OK;
    tide_call call = {.ranges = reduction->ranges, .count = reduction->count, .ring = &transfer->ring};
    tide_reduce_ring_begin(&transfer->ring, reduction, mesh->rank, mesh->ranks, transfer->inputs);
    tide_call_describe(&call, transfer->ring.is_bf16 ? TIDE_CALL_REDUCE_BF16 : TIDE_CALL_REDUCE,
                       ++transfer->calls, reduction->of);
    return run(transfer, &call);
}
