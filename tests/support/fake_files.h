/* A simulated disk behind the checkpoint's file table: it forgets, fails and dies on demand, by seed.
 *
 * What survives a power cut: of a file, what it held at its last sync, and of what was appended since any
 * prefix, with damaged bytes or not; of a folder, its names at its last sync, and of the creations, removals
 * and renames since any subset, each on its own (a rename is one change). Nothing else: not the order of
 * things, not one file's data because its folder was synced.
 */
#ifndef TIDE_TESTS_FAKE_FILES_H
#define TIDE_TESTS_FAKE_FILES_H

#include "src/files/files.h"

typedef struct fake_files fake_files;

/* What a fault does to the operation it meets. */
typedef enum fake_fault {
    FAKE_FAULT_EIO,
    FAKE_FAULT_NO_SPACE, /* ENOSPC, from this write on until fake_files_clear_fault; half of it is written first */
    FAKE_FAULT_SHORT_WRITE, /* no failure: every write and read from this operation on transfers one to seven
                              bytes */
} fake_fault;

fake_files *fake_files_new(void);
void fake_files_free(fake_files *fake);
fake_files *fake_files_clone(const fake_files *fake); /* without its open files, faults and counters */

const tide_files *fake_files_table(const fake_files *fake);

/* Operations so far; syncs among them; files open now. */
unsigned fake_files_operations(const fake_files *fake);
unsigned fake_files_syncs(const fake_files *fake);
unsigned fake_files_open_count(const fake_files *fake);

/* Operation `operation` (from 0) meets the fault. `fake_files_fault_met` says whether it came to that. */
void fake_files_fault(fake_files *fake, fake_fault fault, unsigned operation);
bool fake_files_fault_met(const fake_files *fake);
void fake_files_clear_fault(fake_files *fake);

/* Power or the process ends before operation `operation`: from it on all fail and change nothing. */
void fake_files_stop(fake_files *fake, unsigned operation);

/* Sync number `sync` (from 0) does nothing and says it did. */
void fake_files_ignore_sync(fake_files *fake, unsigned sync);

/* The disk as a new process finds it: after a power cut with this seed (0: nothing that was not synced
 * survives, 1: all of it does), or after the process alone died. Always with another process id; the old one
 * is dead. */
fake_files *fake_files_after_power_cut(const fake_files *fake, uint64_t seed);
fake_files *fake_files_after_kill(const fake_files *fake);

/* A file's bytes, to look at or to damage; NULL if there is none. Valid until the next operation. */
unsigned char *fake_files_bytes(fake_files *fake, const char *path, size_t *bytes);
void fake_files_truncate(fake_files *fake, const char *path, size_t bytes);

/* Whether a path exists. */
bool fake_files_exists(const fake_files *fake, const char *path);

#endif
