/* Tensors of one kind, each name once: numbered from 0 in the order in which they are added, and found again
 * by name.
 *
 * The names are in a tree of the C library (tsearch), to which 10^5 names are added in 0.1 s; comparing each
 * name with all names before it took 3.1 s.
 *
 * Owns the names; calls only array. Not thread-safe; the owner locks.
 */
#ifndef TIDE_CHUNK_NAMES_H
#define TIDE_CHUNK_NAMES_H

#include "tidepool/status.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

/* Where a tensor lies: params count in elements, activations in bytes. */
typedef struct tide_named {
    char *name;
    uint32_t number;
    uint32_t of_class;   /* of a param */
    bool decays;         /* of a param: weight decay applies to it */
    uint32_t parts;      /* of a param 1 */
    uint32_t first_part; /* the parts of all activations before this one */
    uint64_t size;       /* of one part */
    uint64_t offset;     /* of the first part from the space's start; of a param from its class's start */
} tide_named;

/* A list of tensors; all zero but for `kind`, it is empty. Only names.c writes it. */
typedef struct tide_names {
    const char *kind;  /* "param": for messages */
    tide_named **list; /* by number; each stays where it is until destroy */
    uint32_t count;
    void *tree;
    uint32_t parts; /* the parts of all tensors here */
} tide_names;

void tide_names_destroy(tide_names *names);
/* Append a tensor. The call copies its name, which no tensor here may have already (asserted). NO_MEMORY:
 * nothing was added. */
TIDE_NODISCARD tide_status tide_names_add(tide_names *names, const tide_named *what, uint32_t *number);
/* NULL if no tensor has the name. */
const tide_named *tide_names_find(const tide_names *names, const char *name);

static inline const tide_named *tide_names_at(const tide_names *names, uint32_t number)
{
    assert(number < names->count && names->list[number]->number == number);
    return names->list[number];
}

#endif
