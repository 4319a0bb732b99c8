/* The only interface to the file system for checkpoints and weights: a table of functions. The program uses
 * the POSIX table; tests use one that loses whatever was not synced, and one that fails the N-th operation.
 *
 * Every function returns 0 or an errno, and sets outputs on success only. Callers write the messages, since
 * they know the file's purpose.
 */
#ifndef TIDE_BASE_FILES_H
#define TIDE_BASE_FILES_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Does the errno say that the file does not exist? Only ENOENT and ENOTDIR say so: after any other error,
 * as from a failing disk or a folder without permission, the file may exist. */
static inline bool tide_files_is_absent(int error)
{
    return error == ENOENT || error == ENOTDIR;
}

/* Called once for each name except "." and "..", in any order. A result other than 0 ends the listing, which
 * returns it.
 */
typedef int (*tide_files_visit)(void *visitor, const char *name);

typedef struct tide_files {
    void *context;

    /* Files. A handle is valid from a successful open or create until close; it is closed even if close
     * fails. */
    int (*open)(void *context, const char *path, int *handle);   /* for reading; fails for a folder */
    int (*create)(void *context, const char *path, int *handle); /* for writing; fails if the path exists */
    /* May read fewer bytes than asked for; *done is 0 only at the end of the file or for bytes == 0. Several
     * threads may read from one handle at once. */
    int (*read)(void *context, int handle, uint64_t offset, void *buffer, size_t bytes, size_t *done);
    /* Appends. May write fewer bytes than asked for, but at least one. */
    int (*write)(void *context, int handle, const void *buffer, size_t bytes, size_t *done);
    int (*size)(void *context, int handle, uint64_t *bytes);
    /* Returns when the file's data and size would survive a power cut. */
    int (*sync)(void *context, int handle);
    int (*close)(void *context, int handle);
    /* Lock a file until its handle is closed, which the end of the process does, too. With `create` the
     * file `path` must be new (EEXIST); it is locked if the file system has locks. Without `create`:
     * EWOULDBLOCK: another handle has locked it; ENOENT: there is no such file; after any other error the
     * caller can't know whether it is locked. */
    int (*lock)(void *context, const char *path, bool create, int *handle);

    /* Names. */
    /* Returns when the names in the folder would survive a power cut. */
    int (*sync_folder)(void *context, const char *path);
    int (*rename)(void *context, const char *from, const char *to);
    int (*make_folder)(void *context, const char *path);
    int (*remove_file)(void *context, const char *path);
    int (*remove_folder)(void *context, const char *path);
    int (*list)(void *context, const char *path, tide_files_visit visit, void *visitor);

    /* How many bytes can still be written to the file system of `path`. */
    int (*free_space)(void *context, const char *path, uint64_t *bytes);

    /* Processes, to tell which temporary folders are stale (owner.h). */
    uint64_t (*process_id)(void *context);
    bool (*process_is_alive)(void *context, uint64_t process_id);
} tide_files;

/* The operating system's files. Static storage, thread-safe. */
const tide_files *tide_files_posix(void);

#endif
