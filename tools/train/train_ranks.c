#include "tools/train/train_ranks.h"

#include "base/hash.h"
#include "base/minmax.h"
#include "offload/topology.h"
#include "tools/train/launch.h"
#include "tools/train/rank_place.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Send the lines of a rank other than 0 to a file in the folder, which is created if it is missing, or to
 * nowhere. */
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
    if (log_folder != NULL && mkdir(log_folder, 0777) != 0 && errno != EEXIST)
        return tide_fail(TIDE_ERROR_IO, "--log-dir %s: can't be created: %s", log_folder, strerror(errno));
    const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0)
        return tide_fail(TIDE_ERROR_IO, "%s can't be written: %s", path, strerror(errno));
    (void)dup2(file, STDOUT_FILENO);
    if (log_folder != NULL)
        (void)dup2(file, STDERR_FILENO);
    close(file);
    return TIDE_OK;
}

/* Hashes of a host's name and of the set of its processors that a rank may use. */
typedef struct rank_site {
    uint64_t host, processors;
} rank_site;

static rank_site site_of(const char *host)
{
    cpu_set_t allowed;
    rank_site site = {.host = tide_hash_end(1, host, strlen(host), strlen(host))};
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0)
        site.processors = tide_hash_end(1, &allowed, sizeof allowed, sizeof allowed);
    return site;
}

/* Count the ranks whose host has this one's name. */
static tide_status count_neighbours(tide_train_ranks *ranks, const char *host)
{
    const rank_site mine = site_of(host);
    rank_site *all = calloc(ranks->ranks, sizeof *all);
    if (all == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %u ranks", ranks->ranks);
    const tide_status status = tide_comm_exchange(ranks->comm, &mine, sizeof mine, all);
    ranks->on_this_host = ranks->beside = 0;
    for (uint32_t rank = 0; rank < ranks->ranks && status == TIDE_OK; rank++) {
        ranks->on_this_host += all[rank].host == mine.host;
        ranks->beside += all[rank].host == mine.host && all[rank].processors == mine.processors;
    }
    free(all);
    return status;
}

/* Compare the options that decide in which steps ranks validate, save and sample. PEER. */
static tide_status agree(const tide_train_ranks *ranks, const tide_train_settings *settings)
{
    const struct {
        const char *name;
        uint64_t value;
    } parts[] = {{"--eval-every", settings->eval_every},
                 {"--save-every", settings->save_every},
                 {"--checkpoint", settings->checkpoint != NULL},
                 {"--export", settings->export != NULL},
                 {"--keep-best", settings->keep_best},
                 {"--resume", settings->resume},
                 {"--sample", settings->sample}};
    enum { PARTS = sizeof parts / sizeof parts[0] };
    uint64_t mine[PARTS], *all = calloc(ranks->ranks, sizeof mine);
    if (all == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to compare %u ranks", ranks->ranks);
    for (size_t i = 0; i < PARTS; i++)
        mine[i] = parts[i].value;
    tide_status status = tide_comm_exchange(ranks->comm, mine, sizeof mine, all);
    for (uint32_t rank = 1; rank < ranks->ranks && status == TIDE_OK; rank++)
        for (size_t i = 0; i < PARTS && status == TIDE_OK; i++)
            if (all[rank * PARTS + i] != all[i])
                status =
                    tide_fail(TIDE_ERROR_PEER, "rank %u has another %s than rank 0", rank, parts[i].name);
    free(all);
    return status;
}

/* Rank 0's time, in microseconds since 1970, is the run's number. */
static tide_status number_run(tide_train_ranks *ranks)
{
    struct timespec now = {.tv_sec = 0};
    (void)clock_gettime(CLOCK_REALTIME, &now);
    ranks->run = (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
    return tide_comm_broadcast(ranks->comm, &ranks->run, sizeof ranks->run);
}

/* On the communicator's thread. */
static void tell_line(void *context, const char *line)
{
    (void)context;
    fprintf(stderr, "tidepool train: %s\n", line);
}

bool tide_train_ranks_start_here(const tide_train_settings *settings)
{
    tide_rank_place place;
    return settings->ranks > 1 && !tide_launch_is_rank() &&
           tide_rank_place_find(tide_rank_variable, NULL, settings->master, settings->port, &place) ==
               TIDE_OK &&
           place.ranks == 1;
}

/* The options of a rank that another launcher has started; one rank: none has. *place owns their texts. */
static tide_status read_place(const tide_train_settings *settings, tide_rank_place *place,
                              tide_comm_socket_options *options)
{
    const tide_status status =
        tide_rank_place_find(tide_rank_variable, NULL, settings->master, settings->port, place);
    if (status != TIDE_OK)
        return status;
    *options = (tide_comm_socket_options){.rank = place->rank,
                                          .ranks = place->ranks,
                                          .address = place->address,
                                          .port = place->port,
                                          .token = place->token};
    return TIDE_OK;
}

static bool is_given_up(int descriptor)
{
    struct pollfd news = {.fd = descriptor > 0 ? descriptor : -1, .events = POLLIN};
    return poll(&news, 1, 0) > 0;
}

tide_status tide_train_ranks_join(const tide_train_settings *settings, tide_train_ranks *ranks)
{
    tide_comm_socket_options options;
    tide_rank_place place;
    char host[65] = "?";
    *ranks = (tide_train_ranks){.ranks = 1, .on_this_host = 1, .beside = 1};
    if (settings->ranks == 1)
        return TIDE_OK;
    const tide_status status_of_place =
        tide_launch_is_rank() ? tide_launch_read(&options) : read_place(settings, &place, &options);
    if (status_of_place != TIDE_OK || options.ranks == 1)
        return status_of_place;
    (void)gethostname(host, sizeof host - 1);
    snprintf(ranks->name, sizeof ranks->name, "rank %u (host %s): ", options.rank, host);
    ranks->rank = options.rank;
    ranks->ranks = options.ranks;
    ranks->news = calloc(options.ranks, sizeof *ranks->news);
    ranks->lags = calloc(options.ranks, sizeof *ranks->lags);
    if (ranks->news == NULL || ranks->lags == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %u ranks", options.ranks);
    options.bytes_per_second = settings->network_bytes_per_second;
    options.collective_timeout_seconds = settings->collective_timeout_seconds;
    /* without logs all ranks write to the same terminal */
    options.tell = options.rank == 0 || settings->log_folder != NULL ? tell_line : NULL;
    tide_status status = tide_comm_socket_create(&options, &ranks->comm);
    ranks->given_up = status != TIDE_OK && is_given_up(options.give_up);
    if (options.give_up > 0)
        close(options.give_up);
    if (status == TIDE_OK) /* only now, since the others learn why it fails */
        status = redirect(settings->log_folder, options.rank);
    tide_comm_doing(ranks->comm, TIDE_PHASE_READING, "prepares its run");
    if (status == TIDE_OK)
        status = agree(ranks, settings);
    if (status == TIDE_OK)
        status = number_run(ranks);
    return status == TIDE_OK ? count_neighbours(ranks, host) : status;
}

void tide_train_ranks_leave(tide_train_ranks *ranks)
{
    tide_comm_destroy(ranks->comm);
    free(ranks->news);
    free(ranks->lags);
    ranks->comm = NULL;
    ranks->news = NULL;
    ranks->lags = NULL;
}

typedef struct rank_threads {
    uint32_t threads;
    uint32_t processors; /* to which the rank is bound; UINT32_MAX: to none */
} rank_threads;

/* Exchange numbers of threads and set this rank's to the least; notes whether they differ and the first rank
 * that has too few processors. */
static tide_status compare_threads(tide_train_ranks *ranks, uint32_t *threads)
{
    const uint32_t processors = tide_topology_processors();
    const bool is_bound = (long)processors < sysconf(_SC_NPROCESSORS_ONLN);
    const rank_threads mine = {*threads, is_bound ? processors : UINT32_MAX};
    rank_threads *all = calloc(ranks->ranks, sizeof *all);
    if (all == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %u ranks", ranks->ranks);
    const tide_status status = tide_comm_exchange(ranks->comm, &mine, sizeof mine, all);
    for (uint32_t rank = ranks->ranks; rank-- > 0 && status == TIDE_OK;) {
        ranks->threads_differ = ranks->threads_differ || all[rank].threads != all[0].threads;
        *threads = tide_min_u32(*threads, all[rank].threads);
        if (all[rank].threads > all[rank].processors)
            ranks->narrow = (tide_narrow_rank){rank, all[rank].threads, all[rank].processors};
    }
    free(all);
    return status;
}

tide_status tide_train_ranks_share(tide_train_ranks *ranks, tide_trainer_options *options)
{
    if (ranks->ranks == 1)
        return TIDE_OK;
    const uint64_t free_bytes = tide_topology_available_bytes() / ranks->on_this_host;
    uint32_t threads = options->pool.threads;
    options->pool.ranks.comm = ranks->comm;
    if (options->pool.free_memory_bytes == 0)
        options->pool.free_memory_bytes = free_bytes;
    if (options->pool.threads == 0)
        threads = tide_max_u32(tide_topology_processors() / ranks->beside, 1);
    /* also a barrier: no rank takes memory before all have looked how much is free */
    const tide_status status = compare_threads(ranks, &threads);
    if (options->pool.threads == 0) { /* the same number for all, whatever the hosts */
        options->pool.threads = threads;
        ranks->threads_differ = false;
    }
    return status;
}

/* Note which rank was the slowest. */
static void count_step(tide_train_ranks *ranks, tide_slowest_rank *slowest)
{
    double sum = 0;
    *slowest = (tide_slowest_rank){0, ranks->news[0].own_seconds};
    for (uint32_t rank = 0; rank < ranks->ranks; rank++) {
        const double seconds = ranks->news[rank].own_seconds;
        sum += seconds;
        if (seconds > slowest->seconds)
            *slowest = (tide_slowest_rank){rank, seconds};
    }
    ranks->steps++;
    ranks->lags[slowest->rank].steps++;
    ranks->lags[slowest->rank].seconds += slowest->seconds - (sum - slowest->seconds) / (ranks->ranks - 1);
}

tide_status tide_train_ranks_exchange(tide_train_ranks *ranks, tide_rank_news *news,
                                      tide_slowest_rank *slowest)
{
    if (ranks->ranks == 1)
        return TIDE_OK;
    const tide_status status = tide_comm_exchange(ranks->comm, news, sizeof *news, ranks->news);
    if (status != TIDE_OK)
        return status;
    if (!isnan(news->own_seconds))
        count_step(ranks, slowest);
    news->stop = news->save_signal = 0;
    for (uint32_t rank = ranks->ranks; rank-- > 0;) {
        const tide_rank_news *of = &ranks->news[rank];
        news->stop = of->stop != 0 ? of->stop : news->stop;
        news->save_signal = of->save_signal != 0 ? of->save_signal : news->save_signal;
    }
    return TIDE_OK;
}

bool tide_train_ranks_straggler(const tide_train_ranks *ranks, double step_seconds,
                                char text[TIDE_STRAGGLER_TEXT_BYTES])
{
    const double least_part = 0.1;
    for (uint32_t rank = 0; ranks->ranks > 1 && rank < ranks->ranks; rank++) {
        const tide_rank_lag *lag = &ranks->lags[rank];
        if (lag->steps <= ranks->steps / 2)
            continue;
        const double part = lag->seconds / (double)lag->steps / step_seconds;
        snprintf(text, TIDE_STRAGGLER_TEXT_BYTES,
                 "rank %u was the slowest in %llu of %llu steps, by %.0f%% of a step", rank,
                 (unsigned long long)lag->steps, (unsigned long long)ranks->steps, 100 * part);
        return part > least_part;
    }
    return false;
}
