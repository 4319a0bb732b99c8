/* Writes a model's folder in Hugging Face's form: config.json, weights (weights/writer.h), and sidecar files,
 * such as tokenizer and generation settings, from the folder of the source model.
 *
 *     tide_export_begin      before a run trains: makes OUT.tmp-PID, or OUT.tmp-PID-N, without the weights
 *     tide_export_finish     after the run: writes the weights, syncs everything, renames the folder to OUT
 *     tide_export_abandon    in place of finish: removes the folder
 *
 * OUT is complete or not there at all. A killed process leaves OUT.tmp-PID and its lock; the next begin
 * removes them.
 */
#ifndef TIDE_EXPORT_EXPORT_H
#define TIDE_EXPORT_EXPORT_H

#include "src/checkpoint/checkpoint.h"
#include "src/model/config.h"
#include "src/weights/writer.h"

/* The subfolder of a folder of checkpoints in which runs keep the source model's files. The name is reserved
 * for that. */
#define TIDE_EXPORT_SOURCE_NAME "tidepool-origin"

typedef struct tide_export {
    const tide_files *files;
    /* the folder to make; its parent must exist, and the folder itself must not */
    const char *out;
    const tide_model_config *model; /* its family must be set */
    /* a folder with a config.json of this model, and sidecar files; NULL: config.json is made anew */
    const char *source;
    /* without a source: the model's tokens are bytes, so write a tokenizer of bytes, if the vocabulary is 256
     * or 257 (with an end of text) */
    bool of_bytes;
    tide_weights_dtype dtype;
    uint64_t max_shard_bytes; /* 0: no limit */
    /* `out` may exist if its files are those that this export writes, to the byte */
    bool may_be_there;
    tide_progress_callback progress; /* called with "weights", for a checkpoint also "checksum"; or NULL */
    void *progress_context;
} tide_export;

/* The temporary folder of an export; path "": there is none. */
typedef struct tide_export_place {
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    int lock;      /* the lock by which this process owns the folder */
    bool is_there; /* `out` exists, so there is no temporary folder; finish compares `out` with the export */
} tide_export_place;

/* Begin an export. Removes the folders that dead processes left beside `out`. ARGUMENT: `out` exists (with
 * may_be_there: and its config.json or a sidecar file differs), is too long, or is a place from which a run
 * would remove it: it lies in a checkpoint, or in a folder of checkpoints under a name that runs use. IO: the
 * parent can't be written to or has too little space, or a file of the source can't be read. MISMATCH: the
 * source's config.json is of another model. CORRUPT, UNSUPPORTED (config.json), NO_MEMORY. On failure nothing
 * is left. */
TIDE_NODISCARD tide_status tide_export_begin(const tide_export *export, tide_export_place *place);

/* Finish an export. `get` gives values as fp32; its `tensor` is a number in the model's order. If the
 * temporary folder has been removed since begin, it is made again. Statuses of making it, of
 * tide_weights_write and of `get`: nothing is left. IO or STATE (`out` exists by now) when the folder gets
 * its name: the weights are complete, and the message begins with the folder that has them. If begin found
 * `out` there, its weights are compared with the export's; ARGUMENT: they differ. Afterwards `place` has no
 * folder. */
TIDE_NODISCARD tide_status tide_export_finish(const tide_export *export, tide_export_place *place,
                                              tide_weights_get get, void *context);
/* Remove the temporary folder. Afterwards `place` has no folder. */
void tide_export_abandon(const tide_files *files, tide_export_place *place);

/* Remove the temporary folders of `out` whose owners are gone; tide_export_begin does this, too. Stops at the
 * first folder that can't be removed. */
void tide_export_tidy(const tide_files *files, const char *out);

/* Begin and finish in one call. */
TIDE_NODISCARD tide_status tide_export_write(const tide_export *export, tide_weights_get get, void *context);

/* An upper bound, only a little too high, of the bytes of the export's weights. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_export_bytes(const tide_export *export, uint64_t *bytes);

/* Is the last name of `out` one that runs use in a folder of checkpoints: step-N, .tmp-... or
 * TIDE_EXPORT_SOURCE_NAME? */
bool tide_export_is_runs_own(const char *out);

/* Export the checkpoint at `path` (DIR/step-N) after checking its checksums; export->model is not read. If
 * export->source is NULL, the source is DIR/tidepool-origin if that exists. Statuses of begin and finish;
 * also CORRUPT: the checkpoint is damaged. */
TIDE_NODISCARD tide_status tide_export_checkpoint(const tide_export *export, const char *path);

/* The dtype of files that corresponds to a pool's dtype. */
tide_weights_dtype tide_export_dtype_of(tide_dtype dtype);

/* Is a file of this name a model's sidecar file? With `config_too`, config.json counts as one. */
bool tide_export_is_sidecar(const char *name, bool config_too);

/* Copy `source`'s config.json and sidecar files to dir/tidepool-origin, for later exports of the checkpoints
 * in `dir`, which this process alone may write to. Replaces the files that an earlier run kept there; with
 * source NULL removes them. After a failure or a power cut the name has the earlier folder, the new one or
 * none, never a part of one. STATE: the folder holds a file that no run keeps there; the folder stays. IO,
 * NO_MEMORY, ARGUMENT (a path too long). */
TIDE_NODISCARD tide_status tide_export_keep_source(const tide_files *files, const char *dir,
                                                   const char *source);

/* Does `dir` keep a source model's files? Sets `source` to their folder. IO, ARGUMENT (a path too long). */
TIDE_NODISCARD tide_status tide_export_source_kept(const tide_files *files, const char *dir,
                                                   char source[TIDE_CHECKPOINT_PATH_BYTES], bool *kept);

#endif
