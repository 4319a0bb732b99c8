/* Checks the files that a command line names: the command must not write a file that it also reads, nor write
 * one file twice.
 *
 * Two paths name one file if, after links are resolved, they lead to the same device and inode. Files that do
 * not exist yet are one file if they would be created under the same name in the same folder. A path may be
 * given twice if it is neither a regular file nor a folder (/dev/null, a pipe, a terminal), because no
 * content can be lost there. For a folder that the command reads, the check includes the files that the
 * command reads from it.
 */
#ifndef TIDE_TOOLS_FILE_USE_H
#define TIDE_TOOLS_FILE_USE_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>

typedef enum tide_file_kind {
    TIDE_FILE_PLAIN = 0, /* a file, or a folder that the command creates */
    /* a file, and beside it its segments PATH.step-N, and those files of several ranks, PATH.rank-R */
    TIDE_FILE_TRACE,
    TIDE_FILE_LOGS,  /* the files rank-R.log in a folder that may hold others */
    TIDE_FILE_DATA,  /* a file, or a folder of shards */
    TIDE_FILE_MODEL, /* a file, or a folder with a model */
    /* a folder of checkpoints: the files in each of them, and the source model's files that a run keeps
     * beside them */
    TIDE_FILE_RUN,
    TIDE_FILE_WHOLE, /* a folder, and all files in it */
} tide_file_kind;

typedef struct tide_file_use {
    const char *name; /* the option, for messages: "--data" */
    const char *path; /* NULL: the option is not given */
    tide_file_kind kind;
} tide_file_use;

enum { TIDE_FILE_USES_MAX = 8 }; /* most uses that a command may read; as many again may be written */

/* Compares all files that `command` reads and writes. Call it before anything is opened for writing. The same
 * run folder may be both read and written, but no single file in its checkpoints may. ARGUMENT: two uses name
 * one file; the message names both. IO: a path can't be examined. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_file_uses_check(const char *command, const tide_file_use *reads,
                                                size_t read_count, const tide_file_use *writes,
                                                size_t write_count);

/* Sets *same: do both paths exist and lead to one file or folder? IO: a path can't be examined. */
TIDE_NODISCARD tide_status tide_file_is_same(const char *a, const char *b, bool *same);

#endif
