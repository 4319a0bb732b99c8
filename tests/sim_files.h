/* A simulated disk behind the checkpoint's file table: it forgets, fails and dies on demand, by seed.
 *
 * What survives a power cut: of a file, what it held at its last sync, and of what was appended since any
 * prefix, with damaged bytes or not; of a folder, its names at its last sync, and of the creations, removals
 * and renames since any subset, each on its own (a rename is one change). Nothing else: not the order of
 * things, not one file's data because its folder was synced.
 */
#ifndef TIDE_TESTS_SIM_FILES_H
#define TIDE_TESTS_SIM_FILES_H

#include "src/files/files.h"

typedef struct sim_files sim_files;

/* What a fault does to the operation it meets. */
typedef enum sim_fault {
    SIM_FAULT_EIO,
    SIM_FAULT_NO_SPACE,    /* ENOSPC, from this write on until sim_files_heal; half of it is written first */
    SIM_FAULT_SHORT_WRITE, /* no failure: every write and read from this operation on transfers one to seven
                              bytes */
} sim_fault;

sim_files *sim_files_new(void);
void sim_files_free(sim_files *sim);
sim_files *sim_files_clone(const sim_files *sim); /* without its open files, faults and counters */

const tide_files *sim_files_table(const sim_files *sim);

/* Operations so far; syncs among them; files open now. */
unsigned sim_files_operations(const sim_files *sim);
unsigned sim_files_syncs(const sim_files *sim);
unsigned sim_files_open_count(const sim_files *sim);

/* Operation `operation` (from 0) meets the fault. `sim_files_fault_met` says whether it came to that. */
void sim_files_fault(sim_files *sim, sim_fault fault, unsigned operation);
bool sim_files_fault_met(const sim_files *sim);
void sim_files_heal(sim_files *sim);

/* Power or the process ends before operation `operation`: from it on all fail and change nothing. */
void sim_files_stop(sim_files *sim, unsigned operation);

/* Sync number `sync` (from 0) does nothing and says it did. */
void sim_files_ignore_sync(sim_files *sim, unsigned sync);

/* The disk as a new process finds it: after a power cut with this seed (0: nothing that was not synced
 * survives, 1: all of it does), or after the process alone died. Always with another process id; the old one
 * is dead. */
sim_files *sim_files_after_power_cut(const sim_files *sim, uint64_t seed);
sim_files *sim_files_after_kill(const sim_files *sim);

/* A file's bytes, to look at or to damage; NULL if there is none. Valid until the next operation. */
unsigned char *sim_files_bytes(sim_files *sim, const char *path, size_t *bytes);
void sim_files_truncate(sim_files *sim, const char *path, size_t bytes);

/* Whether a path exists. */
bool sim_files_exists(const sim_files *sim, const char *path);

#endif
