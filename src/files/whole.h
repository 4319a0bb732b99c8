/* Small files whole, and folders of files, through the table. All return 0 or an errno value. */
#ifndef TIDE_FILES_WHOLE_H
#define TIDE_FILES_WHOLE_H

#include "src/files/files.h"

/* All of a file of at most `most` bytes and a zero behind them, in a block that the caller frees. EFBIG: it is larger. */
int tide_files_read_whole(const tide_files *files, const char *path, size_t most, char **text, size_t *bytes);

/* A new file, synced. On failure it is removed, as far as that works; EEXIST leaves what is there. */
int tide_files_write_whole(const tide_files *files, const char *path, const void *bytes, size_t count);

/* Take a folder away, with the files in it. ENOTEMPTY: a folder is in it; ENOENT: it is not there. */
int tide_files_remove_folder(const tide_files *files, const char *path);

#endif
