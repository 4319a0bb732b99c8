/* A file that a command writes whole or not at all.
 *
 * It is written beside its place, as PATH.tmp-PID-N, and takes the name PATH when all of it is there: until then what
 * was at PATH stays. What is no regular file (a pipe, a terminal, /dev/null) is written at once, having no content to
 * keep.
 *
 *     open -> (write to `stream`) -> finish        PATH is the new file; on failure it is as before
 *                                 -> abandon       PATH is as before
 */
#ifndef TIDE_TOOLS_WHOLE_FILE_H
#define TIDE_TOOLS_WHOLE_FILE_H

#include "tidepool/status.h"

#include <stdio.h>

typedef struct tide_whole_file {
    FILE *stream;
    struct tide_file_sink *sink; /* the stream's */
    char *named;                 /* as the caller named it: for messages */
    char *path;                  /* with links followed */
    char *written_path;          /* where the stream writes; NULL: at `path` */
} tide_whole_file;

/* IO names the path as it was given; NO_MEMORY. *file is set on success only. */
TIDE_NODISCARD tide_status tide_whole_file_open(const char *path, tide_whole_file *file);

/* IO if anything could not be written, also earlier, with the first reason. */
TIDE_NODISCARD tide_status tide_whole_file_finish(tide_whole_file *file);

void tide_whole_file_abandon(tide_whole_file *file);

#endif
