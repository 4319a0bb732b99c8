/* A file that a run writes from its first step on. Open only proves that the file can be written; its content
 * stays until the run is sure to begin, so that a run that is refused destroys no old file.
 *
 *     open -> begin -> ... -> close       the run began: the old content is gone, unless it was kept
 *     open -> close                       the run was refused: the file is unchanged; if open created it, it
 *                                         is removed
 */
#ifndef TIDE_BASE_OUTPUT_FILE_H
#define TIDE_BASE_OUTPUT_FILE_H

#include "tidepool/status.h"

#include <stdbool.h>

typedef struct tide_output_file {
    const char *kind; /* a static string such as "metrics file", with which every message begins */
    char *path;
    int descriptor;
    bool made;  /* open has created it */
    bool begun; /* begin was called: the content is this run's */
} tide_output_file;

/* Open or create the file. `access` is O_WRONLY or O_RDWR; a pipe is always opened with O_WRONLY, which waits
 * for the pipe's reader. IO names kind and path; NO_MEMORY. *file is set on success only. */
TIDE_NODISCARD tide_status tide_output_file_open(const char *kind, const char *path, int access,
                                                 tide_output_file *file);

/* The run begins: empty the file unless `keep_content`. A file that is not regular (a pipe, a device) has
 * nothing to empty. IO. */
TIDE_NODISCARD tide_status tide_output_file_begin(tide_output_file *file, bool keep_content);

/* Close the descriptor, if it is not -1. IO if the last bytes could not be written. */
tide_status tide_output_file_close(tide_output_file *file);

/* Make the message of a failed call on the file from `what` and the errno; returns IO. */
tide_status tide_output_file_failed(const tide_output_file *file, const char *what, int error);

#endif
