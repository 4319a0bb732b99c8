/* Is there room on the disk for the checkpoints of a run? */
#ifndef TIDE_CHECKPOINT_FREE_SPACE_H
#define TIDE_CHECKPOINT_FREE_SPACE_H

#include "src/checkpoint/checkpoint.h"

typedef struct tide_checkpoint_saves {
    uint64_t bytes;     /* of one checkpoint */
    uint64_t count;     /* that the run makes */
    unsigned keep;      /* as tide_checkpoint_save's */
    uint64_t from_step; /* the run's first step: what DIR holds of later ones is not the run's to remove */
} tide_checkpoint_saves;

/* Most bytes that these saves add to DIR at any moment. A new one is complete before the oldest goes; what dead processes left
 * half-written goes first. A missing DIR holds nothing. Saturates at UINT64_MAX. IO, NO_MEMORY, ARGUMENT. */
TIDE_NODISCARD tide_status tide_checkpoint_space_needed(const tide_files *files, const char *dir,
                                                        const tide_checkpoint_saves *saves, uint64_t *bytes);

#endif
