/* Buckets of chunks, each sorted by the distance of the chunks' next uses.
 *
 * A chunk's key says when it is used next: with a recording it is the number of the next use in the step.
 * `from` is the key of the present place in the step, so lower keys are uses in the next step.
 *
 *     0          from                     never            keys
 *     |-- later, next step --|-- sooner --|-- no use at all --|
 *
 * From nearest to farthest: keys from `from` to `never`, then from 0 to `from`, then from `never` on. No two
 * chunks have the same key; no chunk is in two buckets.
 *
 * Calls places and bitset.
 */
#ifndef TIDE_CHUNK_PRIORITY_BUCKETS_H
#define TIDE_CHUNK_PRIORITY_BUCKETS_H

#include "chunk/bitset.h"
#include "chunk/places.h"

enum { TIDE_BUCKETS_MAX = 8, TIDE_BUCKET_NONE = 255 };

typedef struct tide_horizon {
    uint32_t from, never;
} tide_horizon;

/* A chunk's bucket (TIDE_BUCKET_NONE: in none) and key. */
typedef struct tide_bucket_entry {
    uint32_t key;
    uint8_t bucket;
} tide_bucket_entry;

typedef struct tide_priority_buckets {
    const tide_places *places;
    tide_bitset sets[TIDE_BUCKETS_MAX];
    uint32_t count, key_count;
    uint64_t *words;
    tide_chunk *holder;         /* for each key: the chunk with that key */
    tide_bucket_entry *entries; /* one for each chunk */
} tide_priority_buckets;

/* Create `count` empty buckets for keys below `key_count`. NO_MEMORY. Zeroed buckets may be destroyed,
 * too. */
tide_status tide_priority_buckets_create(tide_priority_buckets *buckets, const tide_places *places,
                                         uint32_t count, uint32_t key_count);
void tide_priority_buckets_destroy(tide_priority_buckets *buckets);
void tide_priority_buckets_clear(tide_priority_buckets *buckets);
void tide_priority_buckets_put(tide_priority_buckets *buckets, tide_chunk chunk, uint32_t bucket,
                               uint32_t key);

/* Is the chunk in this bucket, with this key? With TIDE_BUCKET_NONE: is it in no bucket? */
static inline bool tide_priority_buckets_has(const tide_priority_buckets *buckets, tide_chunk chunk,
                                             uint32_t bucket, uint32_t key)
{
    const tide_bucket_entry *entry = &buckets->entries[chunk];
    return entry->bucket == bucket && (bucket == TIDE_BUCKET_NONE || entry->key == key);
}

/* The farthest, or nearest, chunk in the buckets `among` (bit i: bucket i) that has none of the marks
 * `spared`; TIDE_CHUNK_NONE if there is none. Skips chunks with these marks one by one: there must be few. */
tide_chunk tide_priority_buckets_farthest(const tide_priority_buckets *buckets, uint32_t among,
                                          tide_horizon horizon, uint32_t spared);
tide_chunk tide_priority_buckets_nearest(const tide_priority_buckets *buckets, uint32_t among,
                                         tide_horizon horizon, uint32_t spared);

#endif
