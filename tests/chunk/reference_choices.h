/* The manager's choices once more, by plain rules: each looks at all chunks, slots, fetches or pins at every command, and says what
 * the header of the object that chooses says. They keep nothing but when each chunk's use ends. The objects themselves keep sets
 * sorted by next use, and look again only at chunks that changed (chunk/places.h): if the manager forgets to
 * notify them of a change, their choice differs from the plain rule's.
 *
 * The choosing functions of victims, eviction_queue, tasks, request and prefetch are wrapped (tests/meson.build,
 * reference_choices_link_args): the plain rule is asked first, then the function, then the two are compared, ties included.
 */
#ifndef TIDE_TESTS_REF_CHOICES_H
#define TIDE_TESTS_REF_CHOICES_H

#include <stdint.h>

enum { REF_CHUNKS_MAX = 4096 };

typedef struct ref_counts {
    uint64_t victims, duplicates, promotions, evictions, ready, assembles, fetches,
        pins;           /* choices compared that chose something */
    uint64_t held_back; /* assemblies that waited for the other tier's */
} ref_counts;

extern ref_counts ref_choices_made;

/* A new manager comes, of at most REF_CHUNKS_MAX chunks; one at a time. */
void ref_choices_begin(void);
/* The first choice that was another; "" if there was none. Nothing is compared after it. */
const char *ref_choices_problem(void);

#endif
