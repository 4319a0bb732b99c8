/* Temporary folders and the processes that fill them. Beside a folder PATH lies PATH.lock, which the folder's
 * owner keeps locked:
 *
 *     claim: create and lock PATH.lock   make PATH, fill it, rename or remove it   release: remove PATH.lock
 *
 * The operating system drops the lock when the process ends, however that happens and on whichever machine or
 * container it ran. So if the lock is free, the owner is gone, even if another process has its process id by
 * now.
 *
 * If there is no lock file, or the file system has no locks, the process id in the folder's name decides.
 * This works only for processes of this machine. A folder with this process's own id counts as left by an
 * earlier process, since this one does not fill it (in a container every run may have the same id). Some
 * network file systems keep locks to one machine; on those, only one machine at a time may write.
 *
 * All functions return 0 or an errno.
 */
#ifndef TIDE_BASE_OWNER_H
#define TIDE_BASE_OWNER_H

#include "base/files.h"

#define TIDE_OWNER_SUFFIX ".lock"

enum { TIDE_OWNER_NO_LOCK = -1 };

/* Become the owner of `path`, which does not exist yet. *lock is for release. EEXIST: `path` has, or had,
 * another owner. ENAMETOOLONG. */
int tide_owner_claim(const tide_files *files, const char *path, int *lock);

/* Become the owner of `path` if its owner is gone. EWOULDBLOCK: the owner is alive. If there is no lock file,
 * the result is ENOENT with `lock_proves`; without it, process_id decides. */
int tide_owner_inherit(const tide_files *files, const char *path, uint64_t process_id, bool lock_proves,
                       int *lock);

/* Call when `path` has been renamed or removed: removes its lock file. */
void tide_owner_release(const tide_files *files, const char *path, int lock);

/* Give up ownership; `path` and its lock file stay. */
void tide_owner_leave(const tide_files *files, int lock);

/* Has `path` no living owner? Decides as inherit does, but changes nothing. */
bool tide_owner_is_gone(const tide_files *files, const char *path, uint64_t process_id);

#endif
