/* A model's folder as Hugging Face keeps one: config.json, weights (weights/writer.h), and what belongs to them from the folder
 * that the model began with, its tokenizer and settings of generation.
 *
 * The folder is written beside its place under another name, every file and the folder synced, and then renamed: it is there
 * whole or not at all.
 */
#ifndef TIDE_TRAIN_EXPORT_H
#define TIDE_TRAIN_EXPORT_H

#include "src/checkpoint/checkpoint.h"
#include "src/model/config.h"
#include "src/weights/writer.h"

typedef struct tide_export {
    const tide_files *files;
    const char *out;                /* the folder to make; its parent must be there, itself not */
    const tide_model_config *model; /* with a family */
    const char *origin;             /* a folder with a config.json of this model, and what goes along; NULL: config.json is made */
    tide_weights_dtype dtype;
    uint64_t max_shard_bytes; /* 0: no limit */
    tide_progress_callback progress; /* told "weights"; or NULL */
    void *progress_context;
} tide_export;

/* Can it be made? ARGUMENT: `out` is there, or too long. IO: its parent can't be written, or has no room. MISMATCH: origin's
 * config.json is of another model. CORRUPT, UNSUPPORTED (config.json), NO_MEMORY. */
TIDE_NODISCARD tide_status tide_export_check(const tide_export *export);

/* Make it; `get` gives values as fp32 by the number of a tensor of the model. Statuses of the check, of tide_weights_write and of
 * `get`. On failure nothing is left behind, as far as that works. */
TIDE_NODISCARD tide_status tide_export_write(const tide_export *export, tide_weights_get get, void *context);

/* The same from the checkpoint at `path` (DIR/step-N), whose bytes must be sound; export->model is not read. Origin, unless
 * given, is DIR/tidepool-origin. Also CORRUPT: the checkpoint is damaged. */
TIDE_NODISCARD tide_status tide_export_checkpoint(const tide_export *export, const char *path);

/* The dtype of a checkpoint's run; of a config.json's "torch_dtype". */
tide_weights_dtype tide_export_dtype_of(tide_dtype dtype);

/* Keep in `dir`, a folder of checkpoints that this process alone writes to, what an export of them copies from `origin`, as
 * dir/tidepool-origin, in place of what an earlier run left there; with origin NULL nothing is left. A power cut or a failure
 * leaves under that name the earlier one, the new one or none, whole. STATE: there is something that no run has kept there; it
 * stays. IO, NO_MEMORY, ARGUMENT (a path too long). */
TIDE_NODISCARD tide_status tide_export_keep_origin(const tide_files *files, const char *dir, const char *origin);

/* Is there one? `origin` is its path. IO, ARGUMENT. */
TIDE_NODISCARD tide_status tide_export_origin_kept(const tide_files *files, const char *dir,
                                                   char origin[TIDE_CHECKPOINT_PATH_BYTES], bool *kept);

#endif
