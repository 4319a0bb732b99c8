/* Functions that the parts of an export share. export.c calls the others: export_config.c (config.json),
 * export_sidecar.c (sidecar files), export_source.c (the files that a run keeps), export_place.c (the
 * temporary folder) and export_same.c (comparison). */
#ifndef TIDE_EXPORT_EXPORT_INTERNAL_H
#define TIDE_EXPORT_EXPORT_INTERNAL_H

#include "src/export/export.h"

#define TIDE_EXPORT_CONFIG_NAME "config.json"

/* The text of config.json: *bytes bytes and a zero, which the caller frees. IO, NO_MEMORY, ARGUMENT (a path
 * too long). With a source model also CORRUPT, UNSUPPORTED, MISMATCH (it is another model). */
TIDE_NODISCARD tide_status tide_export_config(const tide_export *export, char **text, size_t *bytes);

/* The last name of a path, without trailing slashes. */
void tide_export_name_of(const char *path, char name[TIDE_CHECKPOINT_PATH_BYTES]);

/* Make OUT.tmp-PID, or OUT.tmp-PID-N, and own it. IO. */
TIDE_NODISCARD tide_status tide_export_place_make(const tide_export *export, tide_export_place *place);

/* Give up the ownership of the folder, which has been renamed or is left to the user. Afterwards `place` has
 * no folder. */
void tide_export_place_release(const tide_files *files, tide_export_place *place);

/* A comparison of an export with an existing folder. */
typedef struct tide_export_same {
    tide_files files; /* the export writes through this table, which compares with the existing files */
    const tide_files *under;
    int created; /* handle of the file that is being compared */
    uint64_t at; /* how many bytes of that file have been found equal */
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    bool differs; /* the file at `path` differs */
} tide_export_same;

void tide_export_same_begin(const tide_files *files, tide_export_same *same);

/* Join a folder and a name. ARGUMENT: the path is too long. */
TIDE_NODISCARD tide_status tide_export_path(const char *folder, const char *name,
                                            char path[TIDE_CHECKPOINT_PATH_BYTES]);

/* The failure for `error` from reading a file. The message of EFBIG says that a file with more than `most`
 * bytes is not `what` ("a config.json"). */
TIDE_NODISCARD tide_status tide_export_read_fail(const char *path, int most, const char *what, int error);

/* The failure for `error`: the folder or file can't be `what` ("opened", say). */
TIDE_NODISCARD tide_status tide_export_folder_fail(const char *path, const char *what, int error);

/* Copy the sidecar files, with `config_too` also config.json, into `to`, which has none of them; sync each
 * file. IO, NO_MEMORY, ARGUMENT. On failure some of the files may be there. */
TIDE_NODISCARD tide_status tide_export_copy_sidecars(const tide_files *files, const char *from,
                                                     const char *to, bool config_too);

/* Sync the folder at `path`, whose files are synced already, rename it to `name` and sync the parent.
 * *named: the rename succeeded; a power cut may still undo it if this call fails. IO. */
TIDE_NODISCARD tide_status tide_export_name_folder(const tide_files *files, const char *path,
                                                   const char *name, bool *named);

/* Is the model's vocabulary the bytes, with or without an end of text? */
bool tide_export_takes_bytes(const tide_model_config *model);
/* Write tokenizer.json, tokenizer_config.json and, with an end of text, generation_config.json for such a
 * model. IO, NO_MEMORY, ARGUMENT (a path too long). */
TIDE_NODISCARD tide_status tide_export_bytes_write(const tide_files *files, const char *folder,
                                                   const tide_model_config *model);

#endif
