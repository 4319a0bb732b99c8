/* A list of the tensors of one kind, with unique names: numbered from 0 in the order in which they are added,
 * and searchable by name.
 *
 * The names are in a tree of the C library (tsearch), which takes 0.1 s to add 10^5 names; a linear search
 * for each name took 3.1 s.
 *
 * Owns the names; calls only array. Not thread-safe; the owner locks.
 */
#ifndef TIDE_CHUNK_NAMES_H
#define TIDE_CHUNK_NAMES_H

#include "tidepool/status.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

/* A tensor and where it lies. Sizes and offsets of params are in elements, those of activations in bytes. */
typedef struct tide_named {
    char *name;
    uint32_t number;
    uint32_t of_class;   /* of a param */
    bool decays;         /* of a param: weight decay applies to it */
    uint32_t parts;      /* 1 for a param */
    uint32_t first_part; /* how many parts all activations before this one have */
    uint64_t size;       /* of one part */
    uint64_t offset;     /* from the start of the ACTIVATION space, or of the param's class */
} tide_named;

/* To make an empty list, set `kind` and zero the rest. Only names.c writes it. */
typedef struct tide_names {
    const char *kind;  /* "param": for messages */
    tide_named **list; /* by number; the structs do not move until destroy */
    uint32_t count;
    void *tree;
    uint32_t parts; /* how many parts all tensors here have */
} tide_names;

void tide_names_destroy(tide_names *names);
/* Append a copy of a tensor and of its name, which must be new (asserted); sets `number`. NO_MEMORY: nothing
 * was added. */
TIDE_NODISCARD tide_status tide_names_add(tide_names *names, const tide_named *what, uint32_t *number);
/* NULL if no tensor has the name. */
const tide_named *tide_names_find(const tide_names *names, const char *name);

static inline const tide_named *tide_names_at(const tide_names *names, uint32_t number)
{
    assert(number < names->count && names->list[number]->number == number);
    return names->list[number];
}

#endif
