/* Counts a program's memory calls, and makes them fail. A test program that links this file gets its
 * malloc and mmap.
 *
 * While armed it counts the calls of all threads that are not exempt, and can make the N-th fail. It sees
 * the C library's own calls of malloc, but not of mmap. It is inactive under AddressSanitizer and
 * ThreadSanitizer, which replace malloc themselves, and beside clang's libomp, which allocates in parallel
 * regions and ends the process on failure. Tests ask interpose_active() and skip without it.
 */
#ifndef TIDE_TESTS_INTERPOSE_H
#define TIDE_TESTS_INTERPOSE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct interpose_counts {
    uint64_t allocations; /* calls of the malloc family, successful or not */
    uint64_t largest;     /* bytes of the largest request */
    int64_t live;         /* allocations less frees since interpose_arm */
    uint64_t new_maps;    /* calls of mmap at new addresses */
    uint64_t fixed_maps;  /* mappings over reserved addresses, which need no new ones */
    int64_t mapped_bytes; /* bytes mapped at new addresses less bytes unmapped since interpose_arm */
} interpose_counts;

enum { INTERPOSE_MALLOC = 1u << 0, INTERPOSE_MMAP = 1u << 1 };

bool interpose_active(void);
/* A test prints this line before it skips because interpose is inactive. */
#define INTERPOSE_SKIPPED "skipped: a sanitizer owns malloc, or libomp calls it as it likes\n"

/* Sets all counts to 0 and starts counting. */
void interpose_arm(void);
void interpose_disarm(void);
interpose_counts interpose_read(void);

/* While armed, call number `countdown` (from now, of the kinds in `mask`) fails, once. 0 stops failures. */
void interpose_fail(uint32_t mask, uint64_t countdown);
/* Whether that call has failed. */
bool interpose_has_failed(void);

/* Exempts this thread: its calls don't count and don't fail. interpose_exemptions returns `name` to the
 * test. */
void interpose_exempt(const char *name);
/* Exempts this thread between the two calls, for a library's function that allocates and frees for itself.
 * Pairs may be nested. */
void interpose_pause(void);
void interpose_resume(void);
/* Returns the number of threads that are or were exempt, and the latest one's name ("" if none). */
uint32_t interpose_exemptions(const char **latest_name);

#endif
