/* The only interface to the file system for checkpoints and weights: one small table. The program uses the POSIX one; tests
 * use one that loses what was not synced, and one that fails the N-th operation.
 *
 * Every function returns 0 or an errno value and leaves outputs alone on failure; messages are the caller's,
 * who knows what the file was for.
 */
#ifndef TIDE_FILES_FILES_H
#define TIDE_FILES_FILES_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether an errno value says that nothing is there. No other does: a disk that fails, or a folder that may not be searched, says
 * nothing about what is there. */
static inline bool tide_files_is_absent(int error)
{
    return error == ENOENT || error == ENOTDIR;
}

/* Called once a name, "." and ".." excluded, in no order. A non-zero return ends the listing and is returned.
 */
typedef int (*tide_files_visit)(void *visitor, const char *name);

typedef struct tide_files {
    void *context;

    /* Files. A handle is valid from a successful open or create until close; close ends it also when it
     * fails. */
    int (*open)(void *context, const char *path, int *handle);   /* for reading; not a folder */
    int (*create)(void *context, const char *path, int *handle); /* for writing; fails if the path exists */
    /* May transfer less than asked; *done is 0 only at the end of the file, or for bytes == 0. Several threads may read one
     * handle at once. */
    int (*read)(void *context, int handle, uint64_t offset, void *buffer, size_t bytes, size_t *done);
    /* Appends. May transfer less than asked, at least one byte. */
    int (*write)(void *context, int handle, const void *buffer, size_t bytes, size_t *done);
    int (*size)(void *context, int handle, uint64_t *bytes);
    int (*sync)(void *context, int handle); /* the file's data and size survive a power cut afterwards */
    int (*close)(void *context, int handle);
    /* Lock a file for as long as the handle is open, which its process's end closes too. With `create` `path`
     * is a new file (EEXIST), locked where the file system has locks. Without, EWOULDBLOCK: another handle
     * has it locked; ENOENT; any other error: that can't be told. */
    int (*lock)(void *context, const char *path, bool create, int *handle);

    /* Names. */
    int (*sync_folder)(void *context, const char *path); /* the names in it survive a power cut afterwards */
    int (*rename)(void *context, const char *from, const char *to);
    int (*make_folder)(void *context, const char *path);
    int (*remove_file)(void *context, const char *path);
    int (*remove_folder)(void *context, const char *path);
    int (*list)(void *context, const char *path, tide_files_visit visit, void *visitor);

    /* Bytes that may still be written where `path` lies. */
    int (*free_space)(void *context, const char *path, uint64_t *bytes);

    /* Processes: whose temporary folders are stale (owner.h). */
    uint64_t (*process_id)(void *context);
    bool (*process_is_alive)(void *context, uint64_t process_id);
} tide_files;

/* The operating system's files. Static storage, thread-safe. */
const tide_files *tide_files_posix(void);

#endif
