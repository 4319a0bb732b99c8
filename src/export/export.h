/* A model's folder as Hugging Face keeps one: config.json, weights (weights/writer.h), and what belongs to them from the folder
 * that the model began with, its tokenizer and settings of generation.
 *
 *     tide_export_begin      makes OUT.tmp-PID (or OUT.tmp-PID-N), with all but the weights: before a run trains
 *     tide_export_finish     the weights, everything synced, and the name OUT: when it has
 *     tide_export_abandon    instead: takes it away
 *
 * OUT is there whole or not at all. What a killed process leaves is OUT.tmp-PID and its lock: the next begin
 * removes them.
 */
#ifndef TIDE_EXPORT_EXPORT_H
#define TIDE_EXPORT_EXPORT_H

#include "src/checkpoint/checkpoint.h"
#include "src/model/config.h"
#include "src/weights/writer.h"

/* A name in a folder of checkpoints that is nobody else's: what is there may be replaced. */
#define TIDE_EXPORT_SOURCE_NAME "tidepool-origin"

typedef struct tide_export {
    const tide_files *files;
    const char *out;                /* the folder to make; its parent must be there, itself not */
    const tide_model_config *model; /* with a family */
    /* a folder with a config.json of this model, and sidecar files; NULL: config.json is made */
    const char *source;
    tide_weights_dtype dtype;
    uint64_t max_shard_bytes;        /* 0: no limit */
    bool may_be_there;               /* `out` may be there if it is what this export writes, to the byte */
    tide_progress_callback progress; /* told "weights"; or NULL */
    void *progress_context;
} tide_export;

/* Where an export is being made; "": nowhere. */
typedef struct tide_export_place {
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    int lock;      /* its owner's */
    bool is_there; /* nowhere, since `out` is there: finish compares */
} tide_export_place;

/* Begin. What dead processes left beside `out` goes. ARGUMENT: `out` is there (and is not what may be there:
 * its config.json or a sidecar file differs), or too long, or is where a run takes things away: a name of
 * its own in a folder of checkpoints, or inside a checkpoint. IO: its parent can't be written, or has no
 * room; a file of source can't be read. MISMATCH: source's config.json is of another model. CORRUPT,
 * UNSUPPORTED (config.json), NO_MEMORY. On failure nothing is left. */
TIDE_NODISCARD tide_status tide_export_begin(const tide_export *export, tide_export_place *place);

/* Finish; `get` gives values as fp32 by the number of a tensor of the model. What was made at the beginning
 * and is gone is made again. Of an `out` that is there the weights are compared: ARGUMENT, they differ.
 * Statuses of that, of tide_weights_write and of `get`: nothing is left. IO, STATE (`out` is there by now):
 * the weights are written, and the message says first where they are whole. `place` is nowhere afterwards. */
TIDE_NODISCARD tide_status tide_export_finish(const tide_export *export, tide_export_place *place,
                                              tide_weights_get get, void *context);
void tide_export_abandon(const tide_files *files, tide_export_place *place); /* also nowhere */

/* Remove the temporary folders of `out` whose owners are gone: begin does it, too. One that can't be removed
 * stays, and those behind it. */
void tide_export_tidy(const tide_files *files, const char *out);

/* Begin and finish. */
TIDE_NODISCARD tide_status tide_export_write(const tide_export *export, tide_weights_get get, void *context);

/* Bytes that its weights will have, or a few more. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_export_bytes(const tide_export *export, uint64_t *bytes);

/* Is `out`'s last name one that runs give to things of their own in a folder of checkpoints: step-N, .tmp-..., the source model's? */
bool tide_export_is_runs_own(const char *out);

/* Begin and finish, from the checkpoint at `path` (DIR/step-N), whose bytes must be sound; export->model is not read. Origin, unless
 * given, is DIR/tidepool-origin. Also CORRUPT: the checkpoint is damaged. */
TIDE_NODISCARD tide_status tide_export_checkpoint(const tide_export *export, const char *path);

/* The dtype of a checkpoint's run; of a config.json's "torch_dtype". */
tide_weights_dtype tide_export_dtype_of(tide_dtype dtype);

/* Is a file of this name a model's sidecar file? */
bool tide_export_is_sidecar(const char *name, bool config_too);

/* Keep in `dir`, a folder of checkpoints that this process alone writes to, what an export of them copies from `source`, as
 * dir/tidepool-origin, in place of what an earlier run left there; with source NULL nothing is left. A power cut or a failure
 * leaves under that name the earlier one, the new one or none, whole. STATE: there is something that no run has kept there; it
 * stays. IO, NO_MEMORY, ARGUMENT (a path too long). */
TIDE_NODISCARD tide_status tide_export_keep_source(const tide_files *files, const char *dir,
                                                   const char *source);

/* Is there one? `source` is its path. IO, ARGUMENT. */
TIDE_NODISCARD tide_status tide_export_source_kept(const tide_files *files, const char *dir,
                                                   char source[TIDE_CHECKPOINT_PATH_BYTES], bool *kept);

#endif
