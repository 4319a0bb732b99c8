/* The manager's choices again, by slow and simple rules. At each command a rule looks at all chunks, slots,
 * fetches or pins and chooses as the header of the choosing object says. The rules store nothing but when
 * each chunk's use ends. The manager's objects keep sets sorted by next use and look again only at chunks
 * that changed (chunk/places.h), so if the manager forgets to notify them of a change, their choice differs
 * from the rule's.
 *
 * The linker wraps the choosing functions of victims, eviction_queue, tasks, request and prefetch
 * (tests/meson.build, reference_choices_link_args). A wrapper computes the rule's choice, calls the
 * function, and compares the two, ties included.
 */
#ifndef TIDE_TESTS_REF_CHOICES_H
#define TIDE_TESTS_REF_CHOICES_H

#include <stdint.h>

enum { REF_CHUNKS_MAX = 4096 };

typedef struct ref_counts {
    uint64_t victims, duplicates, promotions, evictions, ready, assembles, fetches,
        pins;           /* number of compared choices that chose something */
    uint64_t held_back; /* number of assemblies that waited for an assembly of the other tier */
} ref_counts;

extern ref_counts ref_choices_made;

/* Begin with a new manager of at most REF_CHUNKS_MAX chunks. There can be only one at a time. */
void ref_choices_begin(void);
/* Describes the first choice that differed; "" if there was none. Later choices are not compared. */
const char *ref_choices_problem(void);

#endif
