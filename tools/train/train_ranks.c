#include "tools/train/train_ranks.h"

#include "base/hash.h"
#include "base/minmax.h"
#include "offload/topology.h"
#include "tools/train/launch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Send this rank's lines to a file in the folder, or those of ranks other than 0 to nowhere. */
static tide_status redirect(const char *log_folder, uint32_t rank)
{
    char path[4096];
    if (log_folder == NULL && rank == 0)
        return TIDE_OK;
    if (log_folder == NULL)
        snprintf(path, sizeof path, "/dev/null");
    else if (snprintf(path, sizeof path, "%s/rank-%u.log", log_folder, rank) >= (int)sizeof path)
        return tide_fail(TIDE_ERROR_ARGUMENT, "--log-dir %.100s...: its path is too long", log_folder);
    if (rank == 0) /* which prints to the terminal */
        return TIDE_OK;
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0)
        return tide_fail(TIDE_ERROR_IO, "%s can't be written: %s", path, strerror(errno));
    (void)dup2(file, STDOUT_FILENO);
    if (log_folder != NULL)
        (void)dup2(file, STDERR_FILENO);
    close(file);
    return TIDE_OK;
}

/* Count the ranks whose host has this one's name. */
static tide_status count_neighbours(tide_train_ranks *ranks, const char *host)
{
    const uint64_t mine = tide_hash_end(1, host, strlen(host), strlen(host));
    uint64_t *all = calloc(ranks->ranks, sizeof *all);
    if (all == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %u ranks", ranks->ranks);
    const tide_status status = tide_comm_exchange(ranks->comm, &mine, sizeof mine, all);
    for (uint32_t rank = 0; rank < ranks->ranks && status == TIDE_OK; rank++)
        ranks->on_this_host += all[rank] == mine;
    free(all);
    return status;
}

/* On the communicator's thread. */
static void tell_line(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "tidepool train: %s\n", line);
}

tide_status tide_train_ranks_join(const tide_train_settings *settings, tide_train_ranks *ranks)
{
    tide_comm_socket_options options;
    char host[65] = "?";
    *ranks = (tide_train_ranks){.ranks = 1};
    if (!tide_launch_is_rank()) {
        ranks->on_this_host = 1;
        return TIDE_OK;
    }
    tide_status status = tide_launch_read(&options);
    if (status != TIDE_OK)
        return status;
    (void)gethostname(host, sizeof host - 1);
    snprintf(ranks->name, sizeof ranks->name, "rank %u (host %s): ", options.rank, host);
    ranks->rank = options.rank;
    ranks->ranks = options.ranks;
    ranks->flags = calloc(options.ranks, sizeof *ranks->flags);
    options.collective_timeout_seconds = settings->collective_timeout_seconds;
    /* without logs all ranks write to the same terminal */
    options.tell = options.rank == 0 || settings->log_folder != NULL ? tell_line : NULL;
    status = redirect(settings->log_folder, options.rank);
    if (status == TIDE_OK)
        status = tide_comm_socket_create(&options, &ranks->comm);
    tide_comm_doing(ranks->comm, TIDE_PHASE_READING, "prepares its run");
    return status == TIDE_OK ? count_neighbours(ranks, host) : status;
}

void tide_train_ranks_leave(tide_train_ranks *ranks)
{
    tide_comm_destroy(ranks->comm);
    free(ranks->flags);
    ranks->comm = NULL;
    ranks->flags = NULL;
}

/* Exchange a number with all ranks and set it to the least; sets *differ to whether they differ. */
static tide_status take_least(const tide_train_ranks *ranks, uint64_t *number, bool *differ)
{
    uint64_t *all = calloc(ranks->ranks, sizeof *all);
    if (all == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %u ranks", ranks->ranks);
    const tide_status status = tide_comm_exchange(ranks->comm, number, sizeof *number, all);
    *differ = false;
    for (uint32_t rank = 0; rank < ranks->ranks && status == TIDE_OK; rank++) {
        *differ = *differ || all[rank] != all[0];
        *number = tide_min_u64(*number, all[rank]);
    }
    free(all);
    return status;
}

tide_status tide_train_ranks_share(tide_train_ranks *ranks, tide_trainer_options *options)
{
    if (ranks->ranks == 1)
        return TIDE_OK;
    bool differ;
    uint64_t free_bytes = tide_topology_available_bytes() / ranks->on_this_host;
    options->pool.ranks.comm = ranks->comm;
    if (options->pool.threads == 0)
        options->pool.threads = tide_max_u32(tide_topology_processors() / ranks->on_this_host, 1);
    uint64_t threads = options->pool.threads;
    /* also a barrier: no rank takes memory before all have looked */
    tide_status status = take_least(ranks, &free_bytes, &differ);
    if (status == TIDE_OK)
        status = take_least(ranks, &threads, &ranks->threads_differ);
    if (options->pool.free_memory_bytes == 0)
        options->pool.free_memory_bytes = free_bytes;
    return status;
}

tide_status tide_train_ranks_signal(tide_train_ranks *ranks, int *mine)
{
    if (ranks->ranks == 1)
        return TIDE_OK;
    int *all = calloc(ranks->ranks, sizeof *all);
    if (all == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %u ranks", ranks->ranks);
    const tide_status status = tide_comm_exchange(ranks->comm, mine, sizeof *mine, all);
    *mine = 0;
    for (uint32_t rank = 0; rank < ranks->ranks && status == TIDE_OK && *mine == 0; rank++)
        *mine = all[rank];
    free(all);
    return status;
}
