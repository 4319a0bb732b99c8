/* What the parts of an export share: export.c is above; export_config.c (config.json), export_sidecar.c (the
 * sidecar files), export_source.c (what a run keeps), export_place.c (the temporary folder) and
 * export_same.c (comparison) are beneath. */
#ifndef TIDE_EXPORT_EXPORT_INTERNAL_H
#define TIDE_EXPORT_EXPORT_INTERNAL_H

#include "src/export/export.h"

#define TIDE_EXPORT_CONFIG_NAME "config.json"

/* The text of config.json, so many bytes and a zero, which the caller frees. IO, NO_MEMORY, ARGUMENT (a
 * path too long), and of a source model's CORRUPT, UNSUPPORTED, MISMATCH (another model's). */
TIDE_NODISCARD tide_status tide_export_config(const tide_export *export, char **text, size_t *bytes);

/* The last name of a path, without the slashes behind it. */
void tide_export_name_of(const char *path, char name[TIDE_CHECKPOINT_PATH_BYTES]);

/* Make OUT.tmp-PID, or OUT.tmp-PID-N, and own it. IO. */
TIDE_NODISCARD tide_status tide_export_place_make(const tide_export *export, tide_export_place *place);

/* It has its name, or a person is to have it: own it no longer. `place` is nowhere afterwards. */
void tide_export_place_release(const tide_files *files, tide_export_place *place);

/* A comparison of an export with what is there. */
typedef struct tide_export_same {
    tide_files files; /* to export to: what is created is compared */
    const tide_files *under;
    int created; /* the file that is being compared */
    uint64_t at; /* so many of its bytes are the same */
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    bool differs; /* the file at `path` */
} tide_export_same;

void tide_export_same_begin(const tide_files *files, tide_export_same *same);

/* ARGUMENT: too long. */
TIDE_NODISCARD tide_status tide_export_path(const char *folder, const char *name,
                                            char path[TIDE_CHECKPOINT_PATH_BYTES]);

/* `error` as the failure to read a file that must be `what` and have at most `most` bytes. */
TIDE_NODISCARD tide_status tide_export_read_fail(const char *path, int most, const char *what, int error);

/* That `what` can't be done with the folder or file. */
TIDE_NODISCARD tide_status tide_export_folder_fail(const char *path, const char *what, int error);

/* Copy the sidecar files, each file synced, into `to`, which has none of them. IO, NO_MEMORY, ARGUMENT. On
 * failure some of them may be there. */
TIDE_NODISCARD tide_status tide_export_copy_sidecars(const tide_files *files, const char *from,
                                                     const char *to, bool config_too);

/* Sync the folder at `path`, whose files are, name it `name`, and make that durable. *named: it bears the name, though a power cut
 * may take that back where this fails. IO. */
TIDE_NODISCARD tide_status tide_export_name_folder(const tide_files *files, const char *path,
                                                   const char *name, bool *named);

#endif
