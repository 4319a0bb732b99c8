#include "chunk/priority_buckets.h"

#include <assert.h>
#include <stdlib.h>

tide_status tide_priority_buckets_create(tide_priority_buckets *buckets, const tide_places *places,
                                         uint32_t count, uint32_t key_count)
{
    assert(count <= TIDE_BUCKETS_MAX);
    *buckets = (tide_priority_buckets){.places = places, .count = count, .key_count = key_count};
    buckets->words = tide_bitsets_create(buckets->sets, count, key_count);
    buckets->holder = malloc(key_count * sizeof *buckets->holder);
    buckets->entries = malloc(places->chunk_count * sizeof *buckets->entries);
    if (!buckets->words || !buckets->holder || !buckets->entries)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory to sort %u chunks by %u uses",
                         places->chunk_count, key_count);
    tide_priority_buckets_clear(buckets);
    return TIDE_OK;
}

void tide_priority_buckets_destroy(tide_priority_buckets *buckets)
{
    free(buckets->words);
    free(buckets->holder);
    free(buckets->entries);
    *buckets = (tide_priority_buckets){.count = 0};
}

void tide_priority_buckets_clear(tide_priority_buckets *buckets)
{
    for (uint32_t bucket = 0; bucket < buckets->count; bucket++)
        tide_bitset_clear(&buckets->sets[bucket]);
    for (tide_chunk chunk = 0; chunk < buckets->places->chunk_count; chunk++)
        buckets->entries[chunk].bucket = TIDE_BUCKET_NONE;
}

void tide_priority_buckets_put(tide_priority_buckets *buckets, tide_chunk chunk, uint32_t bucket,
                               uint32_t key)
{
    tide_bucket_entry *entry = &buckets->entries[chunk];
    assert((bucket < buckets->count && key < buckets->key_count) || bucket == TIDE_BUCKET_NONE);
    assert(chunk < buckets->places->chunk_count);
    if (tide_priority_buckets_has(buckets, chunk, bucket, key))
        return;
    assert(entry->bucket == TIDE_BUCKET_NONE || buckets->holder[entry->key] == chunk);
    if (entry->bucket != TIDE_BUCKET_NONE)
        tide_bitset_erase(&buckets->sets[entry->bucket], entry->key);
    *entry = (tide_bucket_entry){.key = key, .bucket = (uint8_t)bucket};
    if (bucket == TIDE_BUCKET_NONE)
        return;
    tide_bitset_insert(&buckets->sets[bucket], key);
    buckets->holder[key] = chunk;
}

static bool is_spared(const tide_priority_buckets *s, uint32_t key, uint32_t marks)
{
    return tide_place_of(s->places, s->holder[key])->marks & marks;
}

/* The chunk in the buckets `among` with the highest key in [first, end), without `spared` marks. */
static tide_chunk highest_of(const tide_priority_buckets *s, uint32_t among, uint32_t first, uint32_t end,
                             uint32_t spared)
{
    tide_chunk found = TIDE_CHUNK_NONE;
    assert(among < 1u << s->count && first <= end && end <= s->key_count);
    for (; among; among &= among - 1) {
        const tide_bitset *set = &s->sets[__builtin_ctz(among)];
        uint32_t key = tide_bitset_below(set, end);
        while (key != TIDE_USE_NONE && key >= first && is_spared(s, key, spared))
            key = tide_bitset_below(set, key);
        if (key == TIDE_USE_NONE || key < first)
            continue;
        found = s->holder[key];
        first = key;
    }
    return found;
}

/* The chunk in the buckets `among` with the lowest key in [first, end), without `spared` marks. */
static tide_chunk lowest_of(const tide_priority_buckets *s, uint32_t among, uint32_t first, uint32_t end,
                            uint32_t spared)
{
    tide_chunk found = TIDE_CHUNK_NONE;
    assert(among < 1u << s->count && first <= end && end <= s->key_count);
    for (; among; among &= among - 1) {
        const tide_bitset *set = &s->sets[__builtin_ctz(among)];
        uint32_t key = tide_bitset_from(set, first);
        while (key < end && is_spared(s, key, spared))
            key = tide_bitset_from(set, key + 1);
        if (key >= end)
            continue;
        found = s->holder[key];
        end = key;
    }
    return found;
}

tide_chunk tide_priority_buckets_farthest(const tide_priority_buckets *buckets, uint32_t among,
                                          tide_horizon h, uint32_t spared)
{
    tide_chunk chunk = highest_of(buckets, among, h.never, buckets->key_count, spared);
    if (chunk == TIDE_CHUNK_NONE)
        chunk = highest_of(buckets, among, 0, h.from, spared);
    return chunk != TIDE_CHUNK_NONE ? chunk : highest_of(buckets, among, h.from, h.never, spared);
}

tide_chunk tide_priority_buckets_nearest(const tide_priority_buckets *buckets, uint32_t among, tide_horizon h,
                                         uint32_t spared)
{
    tide_chunk chunk = lowest_of(buckets, among, h.from, h.never, spared);
    if (chunk == TIDE_CHUNK_NONE)
        chunk = lowest_of(buckets, among, 0, h.from, spared);
    return chunk != TIDE_CHUNK_NONE ? chunk : lowest_of(buckets, among, h.never, buckets->key_count, spared);
}
