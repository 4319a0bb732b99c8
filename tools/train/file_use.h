/* What a command reads and what it writes: nothing that it writes may be something that it reads, or something else that it writes.
 *
 * Two paths are one file if they lead, links followed, to the same device and inode; where nothing is there yet, to the same name in
 * the same folder. What is no file and no folder (/dev/null, a pipe, a terminal) keeps no content that could be lost: it may be named
 * twice. A folder that is read counts with the files in it that the command takes from there.
 */
#ifndef TIDE_TOOLS_FILE_USE_H
#define TIDE_TOOLS_FILE_USE_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tide_file_kind {
    TIDE_FILE_PLAIN = 0, /* a file, or a folder that is made */
    TIDE_FILE_TRACE,     /* a file, and PATH.step-N beside it */
    TIDE_FILE_DATA,      /* a file, or a folder of shards */
    TIDE_FILE_MODEL,     /* a file, or a folder with a model */
    TIDE_FILE_RUN,       /* a folder of checkpoints: what is in them, and what a run keeps beside them */
    TIDE_FILE_WHOLE,     /* a folder, and all files in it */
} tide_file_kind;

typedef struct tide_file_use {
    const char *name; /* in messages: "--data" */
    const char *path; /* NULL: not given */
    tide_file_kind kind;
} tide_file_use;

enum { TIDE_FILE_USES_MAX = 8 }; /* that are read, and that are written */

/* Look, before anything is opened for writing. A run's folder may be read and written; what is in its parts may not.
 * ARGUMENT: two are one; the message names both. IO: something can't be looked at. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_file_uses_check(const char *command, const tide_file_use *reads,
                                                size_t read_count, const tide_file_use *writes,
                                                size_t write_count);

/* Whether both paths are there and lead to one file or folder. IO: that can't be found out. */
TIDE_NODISCARD tide_status tide_file_is_same(const char *a, const char *b, bool *same);

#endif
