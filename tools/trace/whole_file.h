/* A file that a command writes whole or not at all.
 *
 * The stream writes to a new file beside the place, PATH.tmp-PID-N, which takes the name PATH when it is
 * complete; until then PATH keeps its old content. A pipe, a terminal or a device has no content to keep, so
 * the stream writes to it directly.
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
    struct tide_file_sink *sink; /* where the stream writes */
    char *named;                 /* the path that the caller gave, for messages */
    char *path;                  /* with links followed */
    char *written_path;          /* the new file beside `path`; NULL: the stream writes to `path` itself */
} tide_whole_file;

/* IO names the caller's path; NO_MEMORY. *file is set on success only. */
TIDE_NODISCARD tide_status tide_whole_file_open(const char *path, tide_whole_file *file);

/* IO if any byte could not be written, with the first error. */
TIDE_NODISCARD tide_status tide_whole_file_finish(tide_whole_file *file);

void tide_whole_file_abandon(tide_whole_file *file);

#endif
