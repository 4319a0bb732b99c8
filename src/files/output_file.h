/* A file that a run writes from its first step on. Opening it only proves that it can be written: what is in
 * it stays until the run is sure to begin, so a run that is refused costs nobody their old file.
 *
 *     open -> begin -> ... -> close        the run began: what was in the file is gone
 *     open -> close                        it did not: the file is as before, one that open made is removed
 */
#ifndef TIDE_FILES_OUTPUT_FILE_H
#define TIDE_FILES_OUTPUT_FILE_H

#include "tidepool/status.h"

#include <stdbool.h>

typedef struct tide_output_file {
    const char *kind; /* "metrics file", begins every message; static */
    char *path;
    int descriptor;
    bool made;  /* by open */
    bool begun; /* its content is this run's */
} tide_output_file;

/* `access` is O_WRONLY or O_RDWR; of a pipe O_WRONLY in any case, which waits for its reader. IO names kind and path; NO_MEMORY. *file is set on success only. */
TIDE_NODISCARD tide_status tide_output_file_open(const char *kind, const char *path, int access,
                                                 tide_output_file *file);

/* The run begins: empty the file unless its content is kept; what is no regular file (a pipe, a device) has nothing to empty. IO. */
TIDE_NODISCARD tide_status tide_output_file_begin(tide_output_file *file, bool keep_content);

/* Close the descriptor, unless it is -1 because a stream took it and closed it. IO if the last bytes could not
 * be written. */
tide_status tide_output_file_close(tide_output_file *file);

/* Message and status of a failed call on the file, from an errno. */
tide_status tide_output_file_failed(const tide_output_file *file, const char *what, int error);

#endif
