/* A run's place among the ranks that train together: joins them, and shares a machine's memory and processors
 * among those that run on it. */
#ifndef TIDE_TOOLS_TRAIN_RANKS_H
#define TIDE_TOOLS_TRAIN_RANKS_H

#include "src/train/metrics.h"
#include "tools/train/train_options.h"

/* Each rank sends its news to the others after each step. */
typedef struct tide_rank_news {
    double own_seconds;        /* for the step (tide_trainer_report); NAN: there was no step */
    int32_t stop, save_signal; /* signals that it has got; 0: none */
} tide_rank_news;

/* The steps in which a rank was the slowest. */
typedef struct tide_rank_lag {
    uint64_t steps;
    double seconds; /* by which it took longer than the others' mean, summed over these steps */
} tide_rank_lag;

/* A rank that mpirun, say, has bound to fewer processors than it has threads. */
typedef struct tide_narrow_rank {
    uint32_t rank, threads, processors; /* no threads: there is none */
} tide_narrow_rank;

typedef struct tide_train_ranks {
    uint32_t rank, ranks;  /* 0 of 1: a run by itself */
    uint32_t on_this_host; /* ranks, this one included */
    uint32_t beside;       /* of these, the ranks that may use this one's processors, itself included */
    uint64_t run;          /* a number that the ranks of this run share with no other run */
    tide_comm *comm;       /* NULL: a run by itself */
    char name[96];         /* "rank 3 (host b): "; "" for a run by itself */
    bool given_up;         /* another rank has ended before all had met, and its failure is printed */
    bool threads_differ;   /* so that results are not those of one rank */
    tide_narrow_rank narrow;
    tide_rank_news *news; /* [ranks] of the last exchange */
    tide_rank_lag *lags;  /* [ranks] */
    uint64_t steps;       /* that `lags` are of */
} tide_train_ranks;

/* Must this process start the ranks? It must if there are several and no launcher has started it as one. */
bool tide_train_ranks_start_here(const tide_train_settings *settings);

/* Join the other ranks, if our own launcher or another (rank_place.h) has started this process as one. Ranks
 * other than 0 print to nowhere from then on, or with --log-dir to a file. *ranks must be left, also after a
 * failure. IO, ARGUMENT, PEER, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_train_ranks_join(const tide_train_settings *settings,
                                                 tide_train_ranks *ranks);
void tide_train_ranks_leave(tide_train_ranks *ranks);

/* Set the options of several ranks, and share the free memory and the processors of this machine out among
 * the ranks on it, as far as the options do not say how much to use. Does nothing for a run by itself. PEER,
 * NO_MEMORY. */
TIDE_NODISCARD tide_status tide_train_ranks_share(tide_train_ranks *ranks, tide_trainer_options *options);

/* Exchange the ranks' news. On return the signals in `news` are those that any rank has got, of several those
 * of the lowest rank, and behind a step *slowest is set. Does nothing for a run by itself. Fails as
 * tide_comm_exchange does. */
TIDE_NODISCARD tide_status tide_train_ranks_exchange(tide_train_ranks *ranks, tide_rank_news *news,
                                                     tide_slowest_rank *slowest);

/* Has one rank been the slowest in more than half of the steps, by more than a tenth of a step, which takes
 * `step_seconds`? Then `text` says so. */
enum { TIDE_STRAGGLER_TEXT_BYTES = 128 };
bool tide_train_ranks_straggler(const tide_train_ranks *ranks, double step_seconds,
                                char text[TIDE_STRAGGLER_TEXT_BYTES]);

#endif
