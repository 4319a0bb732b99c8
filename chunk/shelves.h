/* Chunks sorted into shelves, and on each by how far their next use is.
 *
 * A chunk's key is its place in time: in a recorded step the number of its next use, so that keys go round with the step.
 *
 *     0          from                     never            keys
 *     |-- later, next step --|-- sooner --|-- no use at all --|
 *
 * Nearest first is: from `from` up to `never`, then from 0 up to `from`, then what is never used. No two chunks on one of these
 * shelves have the same key; none is on two of them.
 *
 * Owns its memory alone. Calls places, use_set.
 */
#ifndef TIDE_CHUNK_SHELVES_H
#define TIDE_CHUNK_SHELVES_H

#include "chunk/places.h"
#include "chunk/use_set.h"

enum { TIDE_SHELVES_MAX = 8, TIDE_SHELF_NONE = 255 };

typedef struct tide_horizon {
    uint32_t from, never;
} tide_horizon;

/* Where a chunk stands: its shelf, TIDE_SHELF_NONE if on none, and its key. */
typedef struct tide_standing {
    uint32_t key;
    uint8_t shelf;
} tide_standing;

typedef struct tide_shelves {
    const tide_places *places;
    tide_use_set sets[TIDE_SHELVES_MAX];
    uint32_t count, key_count;
    uint64_t *words;
    tide_chunk *holder;       /* per key */
    tide_standing *standings; /* per chunk */
} tide_shelves;

/* `count` empty shelves for keys below `key_count`. NO_MEMORY. Zeroed ones may be destroyed, too. */
tide_status tide_shelves_create(tide_shelves *shelves, const tide_places *places, uint32_t count, uint32_t key_count);
void tide_shelves_destroy(tide_shelves *shelves);
void tide_shelves_clear(tide_shelves *shelves);
void tide_shelves_put(tide_shelves *shelves, tide_chunk chunk, uint32_t shelf, uint32_t key);

/* Does it stand there? On none, whatever the key. */
static inline bool tide_shelves_has(const tide_shelves *shelves, tide_chunk chunk, uint32_t shelf, uint32_t key)
{
    const tide_standing *standing = &shelves->standings[chunk];
    return standing->shelf == shelf && (shelf == TIDE_SHELF_NONE || standing->key == key);
}

/* The farthest, or nearest, chunk on some shelves (bit i: shelf i) without any of the `spared` marks; TIDE_CHUNK_NONE if there
 * is none. Few chunks have those marks. */
tide_chunk tide_shelves_farthest(const tide_shelves *shelves, uint32_t among, tide_horizon horizon, uint32_t spared);
tide_chunk tide_shelves_nearest(const tide_shelves *shelves, uint32_t among, tide_horizon horizon, uint32_t spared);

#endif
