/* Computes the disk space that the checkpoints of a run need. */
#ifndef TIDE_CHECKPOINT_FREE_SPACE_H
#define TIDE_CHECKPOINT_FREE_SPACE_H

#include "src/checkpoint/checkpoint.h"

typedef struct tide_checkpoint_saves {
    uint64_t bytes;     /* of one checkpoint */
    uint64_t count;     /* how many checkpoints the run makes */
    unsigned keep;      /* as in tide_checkpoint_save */
    uint64_t from_step; /* the run's first step; the run does not remove checkpoints of later steps */
} tide_checkpoint_saves;

/* The most bytes that these saves add to DIR at any moment. A save removes stale folders first, and the
 * oldest checkpoint only after the new one is complete. A missing DIR holds nothing. Saturates at UINT64_MAX.
 * IO, NO_MEMORY, ARGUMENT. */
TIDE_NODISCARD tide_status tide_checkpoint_space_needed(const tide_files *files, const char *dir,
                                                        const tide_checkpoint_saves *saves, uint64_t *bytes);

#endif
