/* A file that is written whole or not at all.
 *
 * open creates PATH.tmp-PID-N beside PATH, which has the old file's mode and, where the system allows it, its
 * owner. finish syncs it and renames it to PATH; until then the old file stays. If PATH is a symbolic link,
 * the file that it leads to is replaced. A pipe, a terminal or /dev/null has no content to keep: the stream
 * writes to it directly.
 *
 *     open -> (write to `stream`) -> finish        PATH is the new file; on failure it is as before
 *                                 -> abandon       PATH is as before
 */
#ifndef TIDE_BASE_ATOMIC_FILE_H
#define TIDE_BASE_ATOMIC_FILE_H

#include "tidepool/status.h"

#include <stdio.h>

/* The struct must stay at its address until finish or abandon, since the stream points at it. */
typedef struct tide_atomic_file {
    FILE *stream;
    const char *kind, *given; /* the caller's, for messages */
    int descriptor;           /* the stream's */
    int error;                /* of the first write that failed; 0: none */
    char *path;               /* `given` with links followed */
    char *written_path;       /* the new file beside `path`; NULL: the stream writes to `path` */
} tide_atomic_file;

/* `kind` ("machine file", say) begins every message, then the path; both strings must stay until finish or
 * abandon. IO, NO_MEMORY: there is nothing to abandon. */
TIDE_NODISCARD tide_status tide_atomic_file_open(const char *kind, const char *path, tide_atomic_file *file);

/* IO if anything could not be written, with the first reason; a caller need not check each write. */
TIDE_NODISCARD tide_status tide_atomic_file_finish(tide_atomic_file *file);

void tide_atomic_file_abandon(tide_atomic_file *file);

#endif
