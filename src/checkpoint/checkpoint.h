/* Checkpoints. One is a folder DIR/step-N with model.safetensors (fp32 masters), momentum.safetensors,
 * variance.safetensors and manifest.json (sizes, checksums, training state). A checkpoint of weights alone
 * lacks the two files of moments. Other tools can read the tensor files.
 *
 * A frozen tensor is in model.safetensors only, as fp32. The manifest lists the frozen tensors, so that any
 * other missing moment counts as damage. A run may freeze other tensors than the checkpoint that it loads: a
 * tensor that was frozen then begins with zero moments, and the moments of one that is frozen now are not
 * read.
 *
 * A folder called step-N is always complete: save writes it as DIR/.tmp-STEP-PID, syncs every file and the
 * folder, and only then renames it. A crash at any instant leaves the earlier checkpoints usable. Nothing
 * here holds the whole model: values pass through one buffer of at most 4 MiB.
 *
 * Any thread may call, but only one call at a time may work on a folder. Only one process may write to a
 * folder.
 */
#ifndef TIDE_CHECKPOINT_CHECKPOINT_H
#define TIDE_CHECKPOINT_CHECKPOINT_H

#include "base/files.h"
#include "src/checkpoint/train_state.h"
#include "tidepool/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TIDE_CHECKPOINT_PATH_BYTES = 4096,
    TIDE_CHECKPOINT_RANK_MAX = 4,
    /* one file per value, except PARAM, which is MASTER rounded */
    TIDE_CHECKPOINT_FILES = TIDE_VALUE_COUNT - TIDE_VALUE_MASTER,
};

/* An fp32 tensor, with the same name and shape in every file that contains it. */
typedef struct tide_checkpoint_tensor {
    const char *name;
    uint32_t rank; /* 1 .. TIDE_CHECKPOINT_RANK_MAX */
    uint64_t shape[TIDE_CHECKPOINT_RANK_MAX];
    bool frozen; /* it has no moments */
} tide_checkpoint_tensor;

typedef struct tide_checkpoint_tensors {
    const tide_checkpoint_tensor *tensors;
    size_t count;
} tide_checkpoint_tensors;

/* Save calls this to read a range: fill values[0 .. count) with the elements [first, first + count) of the
 * given value of tensors[tensor]. Save goes through the tensors, in each through its ranges, and for each
 * range calls with MASTER, MOMENTUM and VARIANCE (for a frozen tensor with MASTER only), so that values that
 * lie together in memory are read together. count is at most 1 Mi. */
typedef tide_status (*tide_checkpoint_read)(void *context, size_t tensor, tide_value value, uint64_t first,
                                            uint64_t count, float *values);

/* Load calls this to write a range, in the same order; a tensor that is frozen in the run gets MASTER
 * only. */
typedef tide_status (*tide_checkpoint_write)(void *context, size_t tensor, tide_value value, uint64_t first,
                                             uint64_t count, const float *values);

/* Load calls this as it goes through the tensor files twice, first to check them, then to write their values:
 * each pass adds half of total_bytes. `context` is that of tide_checkpoint_write. */
typedef void (*tide_checkpoint_progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);

typedef struct tide_checkpoint_saved {
    char path[TIDE_CHECKPOINT_PATH_BYTES]; /* DIR/step-N */
    uint64_t bytes;
    unsigned removed;  /* how many older checkpoints were removed because of `keep` */
    char warning[512]; /* "", or what could not be removed; the new checkpoint is durable nevertheless */
} tide_checkpoint_saved;

/* Save as DIR/step-<state->step>; creates DIR if it is missing (its parent must exist). If `keep` > 0,
 * removes the oldest complete checkpoints once the new one is durable, until `keep` are left and, if it is
 * none of these, that of state->best_step. `saved` may be NULL.
 *
 *   STATE        DIR has a checkpoint of this or a later step: resume from it or take another folder
 *   IO           DIR can't be created or written, the disk is full, or a file operation failed: the message
 *                names the operation, the file and the error
 *   ARGUMENT     the state or a tensor is not valid, or the path is too long
 *   other        the status that `read` returned
 *
 * On failure the temporary folder is removed and the earlier checkpoints are unchanged. */
TIDE_NODISCARD tide_status tide_checkpoint_save(const tide_files *files, const char *dir,
                                                const tide_train_state *state,
                                                const tide_checkpoint_tensors *tensors, unsigned keep,
                                                tide_checkpoint_read read, void *context,
                                                tide_checkpoint_saved *saved);

/* Save without moments: model.safetensors is the only tensor file, and save calls `read` with MASTER only.
 * The manifest records this. A run that loads such a checkpoint begins with zero moments and an update count
 * of 0; load adds a line about that to its changes, the last one. */
TIDE_NODISCARD tide_status tide_checkpoint_save_weights(const tide_files *files, const char *dir,
                                                        const tide_train_state *state,
                                                        const tide_checkpoint_tensors *tensors, unsigned keep,
                                                        tide_checkpoint_read read, void *context,
                                                        tide_checkpoint_saved *saved);

/* How many bytes a checkpoint of these tensors has, counting the largest possible manifest. ARGUMENT,
 * NO_MEMORY, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_checkpoint_bytes(const tide_checkpoint_tensors *tensors, bool weights_only,
                                                 uint64_t *bytes);

typedef struct tide_checkpoint_found {
    bool exists;
    uint64_t step;
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    bool weights_only; /* it has no moments */
    uint64_t hash;     /* of the values */
    /* newer step-N folders without a manifest, left by an interrupted removal or copy */
    unsigned passed_over;
} tide_checkpoint_found;

/* Find the newest checkpoint in DIR; a missing DIR holds none. Reads its manifest and checks the files'
 * sizes. A step-N folder without a manifest is no checkpoint and is ignored. A step-N folder with one claims
 * to be complete, so damage to it is an error that names the folder; falling back to an older checkpoint
 * would hide the damage and lose work. CORRUPT: the newest checkpoint is damaged. IO, UNSUPPORTED,
 * NO_MEMORY. */
TIDE_NODISCARD tide_status tide_checkpoint_newest(const tide_files *files, const char *dir,
                                                  tide_checkpoint_found *found);

/* Find the checkpoint at `path` (DIR/step-N), with the checks of tide_checkpoint_newest. ARGUMENT: the path
 * is too long. CORRUPT: it is damaged, or there is none. */
TIDE_NODISCARD tide_status tide_checkpoint_at(const tide_files *files, const char *path,
                                              tide_checkpoint_found *found);

/* Find the checkpoint that `path` means: the one at `path` if it is called step-N, else the newest in that
 * folder. Statuses of these two; IO: the folder holds none. */
TIDE_NODISCARD tide_status tide_checkpoint_choose(const tide_files *files, const char *path,
                                                  tide_checkpoint_found *found);

/* Read the training state of the checkpoint at `path` (DIR/step-N). CORRUPT, IO, UNSUPPORTED, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_checkpoint_peek(const tide_files *files, const char *path,
                                                tide_train_state *state);

/* Check everything (manifest, sizes, headers, the checksum of every byte), compare the state with `current`
 * if not NULL, and only then write every value. Sets `state` and `changes` (may be NULL) on success. The run
 * keeps the hyperparameters of `current`, so the caller takes step, tokens, adam_step and skipped from
 * *state. If other tensors are frozen now, the last of the changes says so. Calls `progress`, if not NULL, as
 * it goes.
 *
 *   CORRUPT      truncated, altered, or contradicting itself: the message names the file and the fault
 *   MISMATCH     another model, data, seed or batch: the message names the field and both values
 *   IO, UNSUPPORTED, NO_MEMORY
 *   other        the status that `write` returned
 *
 * A failure before the first write changes nothing; a later one (`write` or the disk failed) leaves the
 * caller's tensors partly loaded. */
TIDE_NODISCARD tide_status tide_checkpoint_load(const tide_files *files, const char *path,
                                                const tide_train_state *current,
                                                const tide_checkpoint_tensors *tensors,
                                                tide_checkpoint_write write,
                                                tide_checkpoint_progress progress, void *context,
                                                tide_train_state *state, tide_train_changes *changes);

#endif
