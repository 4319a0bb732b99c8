/* Temporary folders and the processes that fill them. Beside a folder PATH lies PATH.lock, which its owner
 * keeps locked:
 *
 *     claim: PATH.lock, locked     make PATH, fill it, rename or remove it     release: PATH.lock goes
 *
 * The operating system drops the lock when the process ends, however it ends, and whichever machine or
 * container it ran on; so a free lock proves that the owner is gone, even where another process has its
 * number by now. Where there is no lock file, or the file system has no locks, the process number in the
 * folder's name decides: of a process on this machine alone, and one with our own number is gone, since we do
 * not fill that folder (in a container every run may have the same number). A network file system whose mount
 * keeps locks to one machine proves nothing of the others: there one machine at a time must write.
 *
 * All return 0 or an errno value.
 */
#ifndef TIDE_FILES_OWNER_H
#define TIDE_FILES_OWNER_H

#include "src/files/files.h"

#define TIDE_OWNER_SUFFIX ".lock"

enum { TIDE_OWNER_NO_LOCK = -1 };

/* Own `path`, which is not made yet. *lock is for release. EEXIST: `path` has or had another owner.
 * ENAMETOOLONG. */
int tide_owner_claim(const tide_files *files, const char *path, int *lock);

/* Own `path` in the place of a process that is gone. EWOULDBLOCK: its owner lives. With `lock_proves` ENOENT:
 * it has no lock file, so that nobody has claimed it; without, process_id decides then. */
int tide_owner_inherit(const tide_files *files, const char *path, uint64_t process_id, bool lock_proves,
                       int *lock);

/* `path` is renamed or removed: its lock file goes too. */
void tide_owner_release(const tide_files *files, const char *path, int lock);

/* `path` stays, and its lock file with it. */
void tide_owner_leave(const tide_files *files, int lock);

/* Has `path` no living owner? As inherit tells, and nothing changes. */
bool tide_owner_is_gone(const tide_files *files, const char *path, uint64_t process_id);

#endif
