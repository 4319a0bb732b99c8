/* A simulated disk behind the file table of checkpoints. It makes operations fail, stops, and loses data
 * at a power cut, by a seed.
 *
 * After a power cut a file holds the bytes of its last sync and any prefix of the bytes appended since,
 * some of them perhaps damaged. A folder holds the names of its last sync with any subset of the later
 * creations, removals and renames (a rename is one change). Nothing more is guaranteed: changes survive in
 * no order, and syncing a folder does not save its files' bytes.
 */
#ifndef TIDE_TESTS_FAKE_FILES_H
#define TIDE_TESTS_FAKE_FILES_H

#include "base/files.h"

typedef struct fake_files fake_files;

/* The effect of a fault on the operation that it hits. */
typedef enum fake_fault {
    FAKE_FAULT_EIO,
    /* ENOSPC for this write, which writes half of its bytes, and all later ones until
     * fake_files_clear_fault */
    FAKE_FAULT_NO_SPACE,
    /* No failure: from this operation on each write and read transfers one to seven bytes. */
    FAKE_FAULT_SHORT_WRITE,
} fake_fault;

fake_files *fake_files_new(void);
void fake_files_free(fake_files *fake);
fake_files *fake_files_clone(const fake_files *fake); /* without open files, faults and counters */

const tide_files *fake_files_table(const fake_files *fake);

/* Numbers of operations so far, of syncs among them, and of files open now. */
unsigned fake_files_operations(const fake_files *fake);
unsigned fake_files_syncs(const fake_files *fake);
unsigned fake_files_open_count(const fake_files *fake);

/* Operation number `operation` (from 0) gets the fault. fake_files_fault_met returns whether that has
 * happened. */
void fake_files_fault(fake_files *fake, fake_fault fault, unsigned operation);
bool fake_files_fault_met(const fake_files *fake);
void fake_files_clear_fault(fake_files *fake);

/* From operation number `operation` on all operations fail and change nothing, as if the power or the
 * process had ended. */
void fake_files_stop(fake_files *fake, unsigned operation);

/* Sync number `sync` (from 0) reports success and does nothing. */
void fake_files_ignore_sync(fake_files *fake, unsigned sync);

/* The disk as a new process, with another process id, finds it after a power cut with this seed (0: no
 * unsynced data survives; 1: all data survives), or after only the old process has died. */
fake_files *fake_files_after_power_cut(const fake_files *fake, uint64_t seed);
fake_files *fake_files_after_kill(const fake_files *fake);

/* Returns a file's bytes, which the test may read or damage, or NULL if there is no such file. They are
 * valid until the next operation. */
unsigned char *fake_files_bytes(fake_files *fake, const char *path, size_t *bytes);
void fake_files_truncate(fake_files *fake, const char *path, size_t bytes);

bool fake_files_exists(const fake_files *fake, const char *path);

#endif
