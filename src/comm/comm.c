/* The part that all communicators share: checks of arguments, and the failure that stays. */
#include "src/comm/comm.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert(TIDE_RANKS_MAX == 1024, "TIDE_SUM_GROUPS_MAX of pool.h is as large");

void tide_comm_init(tide_comm *comm, const tide_comm_ops *ops, uint32_t rank, uint32_t ranks)
{
    assert(rank < ranks && ranks <= TIDE_RANKS_MAX);
    *comm = (tide_comm){.ops = ops, .rank = rank, .ranks = ranks};
    pthread_mutex_init(&comm->lock, NULL);
}

void tide_comm_fini(tide_comm *comm)
{
    pthread_mutex_destroy(&comm->lock);
}

void tide_comm_destroy(tide_comm *comm)
{
    if (comm != NULL)
        comm->ops->destroy(comm);
}

uint32_t tide_comm_rank(const tide_comm *comm)
{
    return comm == NULL ? 0 : comm->rank;
}

uint32_t tide_comm_ranks(const tide_comm *comm)
{
    return comm == NULL ? 1 : comm->ranks;
}

/* --- failure --- */

tide_status tide_comm_failure(tide_comm *comm)
{
    if (comm == NULL)
        return TIDE_OK;
    pthread_mutex_lock(&comm->lock);
    const tide_status failure = comm->failure;
    pthread_mutex_unlock(&comm->lock);
    /* the message of a failure never changes */
    return failure == TIDE_OK ? TIDE_OK : tide_fail(failure, "%s", comm->message);
}

tide_status tide_comm_fail(tide_comm *comm, tide_status status)
{
    assert(status != TIDE_OK);
    pthread_mutex_lock(&comm->lock);
    const bool first = comm->failure == TIDE_OK;
    if (first) {
        snprintf(comm->message, sizeof comm->message, "%s", tide_message());
        comm->failure = status;
    }
    pthread_mutex_unlock(&comm->lock);
    if (first)
        comm->ops->abort(comm, comm->message);
    return tide_comm_failure(comm);
}

void tide_comm_doing(tide_comm *comm, tide_comm_phase phase, const char *words)
{
    if (comm != NULL && comm->ops->doing != NULL && (unsigned)phase < TIDE_PHASE_COUNT)
        comm->ops->doing(comm, phase, words == NULL ? "" : words);
}

void tide_comm_abort(tide_comm *comm, const char *reason)
{
    char message[sizeof comm->message];
    if (comm == NULL)
        return;
    snprintf(message, sizeof message, "%s", tide_message());
    (void)tide_comm_fail(comm, tide_fail(TIDE_ERROR_PEER, "%s", reason == NULL ? "given up" : reason));
    (void)tide_fail(TIDE_ERROR_PEER, "%s", message);
}

bool tide_comm_has_told(tide_comm *comm, uint32_t rank)
{
    char message[sizeof comm->message];
    assert(rank < comm->ranks && rank != comm->rank);
    if (comm->ops->has_told == NULL)
        return true;
    snprintf(message, sizeof message, "%s", tide_message());
    const bool has_told = comm->ops->has_told(comm, rank);
    (void)tide_fail(TIDE_ERROR_PEER, "%s", message);
    return has_told;
}

/* --- calls --- */

static tide_status keep(tide_comm *comm, tide_status status)
{
    return status == TIDE_OK || status == TIDE_ERROR_ARGUMENT ? status : tide_comm_fail(comm, status);
}

tide_status tide_comm_gather(tide_comm *comm, const char *of, const tide_comm_range *ranges, uint32_t count)
{
    const tide_status status = tide_comm_failure(comm);
    return status == TIDE_OK ? keep(comm, comm->ops->gather(comm, of, ranges, count)) : status;
}

tide_status tide_comm_reduce(tide_comm *comm, const tide_comm_reduction *reduction)
{
    const tide_status status = tide_comm_failure(comm);
    assert(reduction->travels_as == TIDE_DTYPE_FP32 || reduction->travels_as == TIDE_DTYPE_BF16);
    return status == TIDE_OK ? keep(comm, comm->ops->reduce(comm, reduction)) : status;
}

tide_status tide_comm_exchange(tide_comm *comm, const void *mine, size_t bytes, void *all)
{
    if (bytes > TIDE_EXCHANGE_MAX_BYTES || (bytes > 0 && (mine == NULL || all == NULL)))
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_comm_exchange: %zu bytes%s, at most %d are allowed",
                         bytes, mine == NULL || all == NULL ? " at NULL" : "", TIDE_EXCHANGE_MAX_BYTES);
    if (comm == NULL) {
        if (bytes > 0)
            memmove(all, mine, bytes);
        return TIDE_OK;
    }
    const tide_status status = tide_comm_failure(comm);
    return status == TIDE_OK ? keep(comm, comm->ops->exchange(comm, mine, bytes, all)) : status;
}

tide_status tide_comm_broadcast(tide_comm *comm, void *data, size_t bytes)
{
    if (bytes > TIDE_EXCHANGE_MAX_BYTES || (bytes > 0 && data == NULL))
        return tide_fail(TIDE_ERROR_ARGUMENT, "tide_comm_broadcast: %zu bytes%s, at most %d are allowed",
                         bytes, data == NULL ? " at NULL" : "", TIDE_EXCHANGE_MAX_BYTES);
    if (comm == NULL || comm->ranks == 1)
        return TIDE_OK;
    char *all = malloc(bytes * comm->ranks);
    if (all == NULL && bytes > 0)
        return tide_comm_fail(comm,
                              tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %zu bytes from rank 0", bytes));
    const tide_status status = tide_comm_exchange(comm, data, bytes, all);
    if (status == TIDE_OK && bytes > 0)
        memcpy(data, all, bytes);
    free(all);
    return status;
}

tide_status tide_comm_barrier(tide_comm *comm)
{
    return tide_comm_exchange(comm, NULL, 0, NULL);
}
