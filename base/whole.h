/* Reads and writes small files as a whole, and removes folders, through a tide_files table. All return 0 or
 * an errno. */
#ifndef TIDE_BASE_WHOLE_H
#define TIDE_BASE_WHOLE_H

#include "base/files.h"

/* Read a file of at most `most` bytes into a block with a zero at its end, which the caller frees. EFBIG: it
 * is larger. */
int tide_files_read_whole(const tide_files *files, const char *path, size_t most, char **text, size_t *bytes);

/* Write a new file and sync it. If that fails, the file is removed if possible; EEXIST leaves the existing
 * file alone. */
int tide_files_write_whole(const tide_files *files, const char *path, const void *bytes, size_t count);

/* Remove a folder and the files in it. ENOTEMPTY: it contains a folder; ENOENT: it does not exist. */
int tide_files_remove_folder(const tide_files *files, const char *path);

#endif
