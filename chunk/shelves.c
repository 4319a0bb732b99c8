/* See shelves.h. */
#include "chunk/shelves.h"

#include <assert.h>
#include <stdlib.h>

tide_status tide_shelves_create(tide_shelves *shelves, const tide_places *places, uint32_t count,
                                uint32_t key_count)
{
    assert(count <= TIDE_SHELVES_MAX);
    *shelves = (tide_shelves){.places = places, .count = count, .key_count = key_count};
    shelves->words = tide_use_sets_create(shelves->sets, count, key_count);
    shelves->holder = malloc(key_count * sizeof *shelves->holder);
    shelves->standings = malloc(places->chunk_count * sizeof *shelves->standings);
    if (!shelves->words || !shelves->holder || !shelves->standings)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory to sort %u chunks by %u uses",
                         places->chunk_count, key_count);
    tide_shelves_clear(shelves);
    return TIDE_OK;
}

void tide_shelves_destroy(tide_shelves *shelves)
{
    free(shelves->words);
    free(shelves->holder);
    free(shelves->standings);
    *shelves = (tide_shelves){.count = 0};
}

void tide_shelves_clear(tide_shelves *shelves)
{
    for (uint32_t shelf = 0; shelf < shelves->count; shelf++)
        tide_use_set_clear(&shelves->sets[shelf]);
    for (tide_chunk chunk = 0; chunk < shelves->places->chunk_count; chunk++)
        shelves->standings[chunk].shelf = TIDE_SHELF_NONE;
}

void tide_shelves_put(tide_shelves *shelves, tide_chunk chunk, uint32_t shelf, uint32_t key)
{
    tide_standing *standing = &shelves->standings[chunk];
    assert((shelf < shelves->count && key < shelves->key_count) || shelf == TIDE_SHELF_NONE);
    assert(chunk < shelves->places->chunk_count);
    if (tide_shelves_has(shelves, chunk, shelf, key))
        return;
    assert(standing->shelf == TIDE_SHELF_NONE || shelves->holder[standing->key] == chunk);
    if (standing->shelf != TIDE_SHELF_NONE)
        tide_use_set_erase(&shelves->sets[standing->shelf], standing->key);
    *standing = (tide_standing){.key = key, .shelf = (uint8_t)shelf};
    if (shelf == TIDE_SHELF_NONE)
        return;
    tide_use_set_insert(&shelves->sets[shelf], key);
    shelves->holder[key] = chunk;
}

static bool is_spared(const tide_shelves *s, uint32_t key, uint32_t marks)
{
    return tide_place_of(s->places, s->holder[key])->marks & marks;
}

/* The chunk with the highest key in [first, end). */
static tide_chunk highest_of(const tide_shelves *s, uint32_t among, uint32_t first, uint32_t end,
                             uint32_t spared)
{
    tide_chunk found = TIDE_CHUNK_NONE;
    assert(among < 1u << s->count && first <= end && end <= s->key_count);
    for (; among; among &= among - 1) {
        const tide_use_set *set = &s->sets[__builtin_ctz(among)];
        uint32_t key = tide_use_set_below(set, end);
        while (key != TIDE_USE_NONE && key >= first && is_spared(s, key, spared))
            key = tide_use_set_below(set, key);
        if (key == TIDE_USE_NONE || key < first)
            continue;
        found = s->holder[key];
        first = key;
    }
    return found;
}

/* With the lowest. */
static tide_chunk lowest_of(const tide_shelves *s, uint32_t among, uint32_t first, uint32_t end,
                            uint32_t spared)
{
    tide_chunk found = TIDE_CHUNK_NONE;
    assert(among < 1u << s->count && first <= end && end <= s->key_count);
    for (; among; among &= among - 1) {
        const tide_use_set *set = &s->sets[__builtin_ctz(among)];
        uint32_t key = tide_use_set_from(set, first);
        while (key < end && is_spared(s, key, spared))
            key = tide_use_set_from(set, key + 1);
        if (key >= end)
            continue;
        found = s->holder[key];
        end = key;
    }
    return found;
}

tide_chunk tide_shelves_farthest(const tide_shelves *shelves, uint32_t among, tide_horizon h, uint32_t spared)
{
    tide_chunk chunk = highest_of(shelves, among, h.never, shelves->key_count, spared);
    if (chunk == TIDE_CHUNK_NONE)
        chunk = highest_of(shelves, among, 0, h.from, spared);
    return chunk != TIDE_CHUNK_NONE ? chunk : highest_of(shelves, among, h.from, h.never, spared);
}

tide_chunk tide_shelves_nearest(const tide_shelves *shelves, uint32_t among, tide_horizon h, uint32_t spared)
{
    tide_chunk chunk = lowest_of(shelves, among, h.from, h.never, spared);
    if (chunk == TIDE_CHUNK_NONE)
        chunk = lowest_of(shelves, among, 0, h.from, spared);
    return chunk != TIDE_CHUNK_NONE ? chunk : lowest_of(shelves, among, h.never, shelves->key_count, spared);
}
