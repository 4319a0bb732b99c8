/* Memory seen from outside: a file to link into a test program, which then owns malloc and mmap.
 *
 * While armed it counts the calls of all threads (but those that said they are exempt) and can fail the N-th.
 * Calls inside the C library go past mmap, not past malloc. Under AddressSanitizer and ThreadSanitizer, which
 * own malloc themselves, nothing is interposed, and beside clang's libomp, which allocates in parallel regions and ends the
 * process when it gets nothing, no count means anything: interpose_active() says so, and a test that needs it skips.
 */
#ifndef TIDE_TESTS_INTERPOSE_H
#define TIDE_TESTS_INTERPOSE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct interpose_counts {
    uint64_t allocations; /* malloc and its family, successful or not */
    uint64_t largest;     /* bytes of the largest one asked for */
    int64_t live;         /* allocations less frees since armed */
    uint64_t new_maps;    /* mmap at new addresses */
    uint64_t fixed_maps;  /* mmap over addresses the program holds: it takes none */
    int64_t mapped_bytes; /* at new addresses, less what was given back since armed */
} interpose_counts;

enum { INTERPOSE_MALLOC = 1u << 0, INTERPOSE_MMAP = 1u << 1 };

bool interpose_active(void);
/* What a test prints before it skips for want of it. */
#define INTERPOSE_SKIPPED "skipped: a sanitizer owns malloc, or libomp calls it as it likes\n"

/* Count from 0. */
void interpose_arm(void);
void interpose_disarm(void);
interpose_counts interpose_read(void);

/* Fail the `countdown`-th call of the kinds in `mask` from now on, once, while armed; 0: none. */
void interpose_fail(uint32_t mask, uint64_t countdown);
/* Has that call come? */
bool interpose_has_failed(void);

/* Calls of this thread don't count and don't fail. `name` says in the test's text who is exempt. */
void interpose_exempt(const char *name);
/* The same for a while: a library's call that is known to take and give back memory of its own. Pairs may be
 * nested. */
void interpose_pause(void);
void interpose_resume(void);
/* The number of threads that are or were exempt, and the latest one's name ("" if none). */
uint32_t interpose_exemptions(const char **latest_name);

#endif
