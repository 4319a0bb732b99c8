/* A run's place among the ranks that train together: joins them, and shares a machine's memory and processors
 * among those that run on it. */
#ifndef TIDE_TOOLS_TRAIN_RANKS_H
#define TIDE_TOOLS_TRAIN_RANKS_H

#include "tools/train/train_options.h"

typedef struct tide_train_ranks {
    uint32_t rank, ranks;  /* 0 of 1: a run by itself */
    uint32_t on_this_host; /* ranks, this one included */
    tide_comm *comm;       /* NULL: a run by itself */
    char name[96];         /* "rank 3 (host b): "; "" for a run by itself */
    bool *flags;           /* [ranks] */
    bool threads_differ;   /* so that results are not those of one rank */
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

/* The signal that any rank has got: `mine` of this one, 0 for none; of several that of the lowest rank. */
TIDE_NODISCARD tide_status tide_train_ranks_signal(tide_train_ranks *ranks, int *mine);

#endif
