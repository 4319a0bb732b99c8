/* Checkpoints: DIR/step-N with model.safetensors (fp32 masters), momentum.safetensors, variance.safetensors
 * and manifest.json (sizes, checksums, training state); one of weights alone is without the moments' files. Other tools read the tensor files as they are.
 *
 * A frozen tensor is in model.safetensors alone, as fp32; the manifest names it, so that a moment that is missing for
 * another reason is damage. Who loads may freeze other tensors: one that was frozen begins with zero moments, of one that is
 * frozen now they are passed over.
 *
 * A folder called step-N is complete, always: it is written as DIR/.tmp-STEP-PID, every file and the folder
 * are synced, and only then renamed. A crash at any instant leaves the earlier ones usable. Nothing here
 * holds the model: values pass through one buffer of at most 4 MiB.
 *
 * Thread: any, one call a folder at a time. One process writes to a folder.
 */
#ifndef TIDE_CHECKPOINT_CHECKPOINT_H
#define TIDE_CHECKPOINT_CHECKPOINT_H

#include "src/checkpoint/train_state.h"
#include "src/files/files.h"
#include "tidepool/types.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    TIDE_CHECKPOINT_PATH_BYTES = 4096,
    TIDE_CHECKPOINT_RANK_MAX = 4,
    /* one a value but PARAM, which is MASTER rounded */
    TIDE_CHECKPOINT_FILES = TIDE_VALUE_COUNT - TIDE_VALUE_MASTER,
};

/* One tensor, fp32, the same name and shape in every file that has it. */
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

/* Save pulls ranges: fill values[0 .. count) with elements [first, first + count) of a value of tensors[tensor]. Called
 * tensor by tensor, of each range by range, of each for MASTER, MOMENTUM and VARIANCE (of a frozen tensor for MASTER alone):
 * what lies together in memory comes together. count is at most 1 Mi. */
typedef tide_status (*tide_checkpoint_read)(void *context, size_t tensor, tide_value value, uint64_t first,
                                            uint64_t count, float *values);

/* Load pushes ranges, in the same order; what is frozen now counts. */
typedef tide_status (*tide_checkpoint_write)(void *context, size_t tensor, tide_value value, uint64_t first,
                                             uint64_t count, const float *values);

/* Load checks and then pushes all bytes of the tensor files: each pass counts half of them. `context` is write's. */
typedef void (*tide_checkpoint_progress)(void *context, uint64_t done_bytes, uint64_t total_bytes);

typedef struct tide_checkpoint_saved {
    char path[TIDE_CHECKPOINT_PATH_BYTES]; /* DIR/step-N */
    uint64_t bytes;
    unsigned removed;  /* older checkpoints removed for `keep` */
    char warning[512]; /* "" or what could not be tidied up; the new checkpoint is durable all the same */
} tide_checkpoint_saved;

/* Save as DIR/step-<state->step>; DIR is created if missing (its parent must exist). `keep` > 0 removes the
 * oldest complete ones beyond it, after the new one is durable; 0 keeps all. `saved` may be NULL.
 *
 *   STATE        DIR already holds a checkpoint of this or a later step: resume from it or take another folder
 *   IO           DIR can't be created or written, the disk is full, a file operation failed: which, where, why
 *   ARGUMENT     the state or a tensor is not valid, or the path is too long
 *   other        what `read` returned
 *
 * On failure the temporary folder is removed and the earlier checkpoints are as before. */
TIDE_NODISCARD tide_status tide_checkpoint_save(const tide_files *files, const char *dir,
                                                const tide_train_state *state,
                                                const tide_checkpoint_tensors *tensors, unsigned keep,
                                                tide_checkpoint_read read, void *context,
                                                tide_checkpoint_saved *saved);

/* The same without moments: model.safetensors is the only tensor file, and read is called for MASTER alone. The manifest says
 * so. Who loads it begins with zero moments and a count of updates of 0, which is then the last of the changes. */
TIDE_NODISCARD tide_status tide_checkpoint_save_weights(const tide_files *files, const char *dir,
                                                        const tide_train_state *state,
                                                        const tide_checkpoint_tensors *tensors, unsigned keep,
                                                        tide_checkpoint_read read, void *context,
                                                        tide_checkpoint_saved *saved);

/* Bytes of a checkpoint of these tensors; of its manifest the most. ARGUMENT, NO_MEMORY, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_checkpoint_bytes(const tide_checkpoint_tensors *tensors, bool weights_only,
                                                 uint64_t *bytes);

typedef struct tide_checkpoint_found {
    bool exists;
    uint64_t step;
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    bool weights_only;    /* it has no moments */
    unsigned passed_over; /* newer step-N folders without a manifest: remains of a removal or a copy */
} tide_checkpoint_found;

/* The newest checkpoint in DIR; a missing DIR holds none. Reads its manifest and checks the files' sizes. A
 * step-N folder without a manifest is no checkpoint and is passed over; one with a manifest claims to be
 * complete, so any damage to it is an error that names it: going back silently would hide the damage and lose
 * work. CORRUPT: the newest one is damaged. IO, UNSUPPORTED, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_checkpoint_newest(const tide_files *files, const char *dir,
                                                  tide_checkpoint_found *found);

/* The checkpoint at `path` (DIR/step-N), with the same checks. ARGUMENT: the path is too long. CORRUPT also if there is none. */
TIDE_NODISCARD tide_status tide_checkpoint_at(const tide_files *files, const char *path,
                                              tide_checkpoint_found *found);

/* The training state of the checkpoint at `path` (DIR/step-N). CORRUPT, IO, UNSUPPORTED, NO_MEMORY. */
TIDE_NODISCARD tide_status tide_checkpoint_peek(const tide_files *files, const char *path,
                                                tide_train_state *state);

/* Check everything (manifest, sizes, headers, the checksum of every byte), compare with `current` if not
 * NULL, and only then push every value. `state` and `changes` (may be NULL) are set on success; current's
 * hyperparameters stand, so the caller takes step, tokens, adam_step and skipped from *state. Another set of frozen tensors is
 * the last of the changes. `progress`, unless NULL, is told how far it is.
 *
 *   CORRUPT      truncated, altered, or contradicting itself: which file, what
 *   MISMATCH     another model, data, seed or batch: the field and both values
 *   IO, UNSUPPORTED, NO_MEMORY
 *   other        what `write` returned
 *
 * Before the first push nothing has changed; a failure after it (`write` failed, or the disk did) leaves the caller's
 * tensors partly loaded. */
TIDE_NODISCARD tide_status tide_checkpoint_load(const tide_files *files, const char *path,
                                                const tide_train_state *current,
                                                const tide_checkpoint_tensors *tensors,
                                                tide_checkpoint_write write,
                                                tide_checkpoint_progress progress, void *context,
                                                tide_train_state *state, tide_train_changes *changes);

#endif
