/* See shelves.h. */
#include "chunk/shelves.h"

#include <assert.h>
#include <stdlib.h>

tide_status tide_shelves_create(tide_shelves *shelves, uint32_t count, uint32_t key_count,
                                uint32_t chunk_count)
{
    assert(count <= TIDE_SHELVES_MAX);
    *shelves = (tide_shelves){.count = count, .chunk_count = chunk_count, .key_count = key_count};
    shelves->words = calloc(count * tide_use_set_words(key_count), sizeof *shelves->words);
    shelves->holder = malloc(key_count * sizeof *shelves->holder);
    shelves->standings = malloc(chunk_count * sizeof *shelves->standings);
    if (!shelves->words || !shelves->holder || !shelves->standings)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "manager: no memory to sort %u chunks by %u uses", chunk_count,
                         key_count);
    uint64_t *words = shelves->words;
    for (uint32_t shelf = 0; shelf < count; shelf++)
        words = tide_use_set_place(&shelves->sets[shelf], key_count, words);
    for (tide_chunk chunk = 0; chunk < chunk_count; chunk++)
        shelves->standings[chunk].shelf = TIDE_SHELF_NONE;
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
    for (tide_chunk chunk = 0; chunk < shelves->chunk_count; chunk++)
        shelves->standings[chunk].shelf = TIDE_SHELF_NONE;
}

void tide_shelves_put(tide_shelves *shelves, tide_chunk chunk, uint32_t shelf, uint32_t key)
{
    tide_standing *standing = &shelves->standings[chunk];
    assert((shelf < shelves->count && key < shelves->key_count) || shelf == TIDE_SHELF_NONE);
    assert(chunk < shelves->chunk_count);
    if (standing->shelf == shelf && (shelf == TIDE_SHELF_NONE || standing->key == key))
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

static bool is_spared(const tide_places *places, tide_chunk chunk, uint32_t marks)
{
    return tide_place_of(places, chunk)->marks & marks;
}

/* The highest in [first, end). */
static tide_chunk highest_of(const tide_shelves *s, uint32_t shelf, uint32_t first, uint32_t end,
                             const tide_places *places, uint32_t spared)
{
    assert(shelf < s->count && first <= end && end <= s->key_count);
    for (uint32_t key = tide_use_set_below(&s->sets[shelf], end); key != TIDE_USE_NONE && key >= first;
         key = tide_use_set_below(&s->sets[shelf], key))
        if (!is_spared(places, s->holder[key], spared))
            return s->holder[key];
    return TIDE_CHUNK_NONE;
}

/* The lowest. */
static tide_chunk lowest_of(const tide_shelves *s, uint32_t shelf, uint32_t first, uint32_t end,
                            const tide_places *places, uint32_t spared)
{
    assert(shelf < s->count && first <= end && end <= s->key_count);
    for (uint32_t key = tide_use_set_from(&s->sets[shelf], first); key < end;
         key = tide_use_set_from(&s->sets[shelf], key + 1))
        if (!is_spared(places, s->holder[key], spared))
            return s->holder[key];
    return TIDE_CHUNK_NONE;
}

tide_chunk tide_shelves_farthest(const tide_shelves *shelves, uint32_t shelf, tide_horizon h,
                                 const tide_places *places, uint32_t spared)
{
    tide_chunk chunk = highest_of(shelves, shelf, h.never, shelves->key_count, places, spared);
    if (chunk == TIDE_CHUNK_NONE)
        chunk = highest_of(shelves, shelf, 0, h.from, places, spared);
    return chunk != TIDE_CHUNK_NONE ? chunk : highest_of(shelves, shelf, h.from, h.never, places, spared);
}

tide_chunk tide_shelves_nearest(const tide_shelves *shelves, uint32_t shelf, tide_horizon h,
                                const tide_places *places, uint32_t spared)
{
    tide_chunk chunk = lowest_of(shelves, shelf, h.from, h.never, places, spared);
    if (chunk == TIDE_CHUNK_NONE)
        chunk = lowest_of(shelves, shelf, 0, h.from, places, spared);
    return chunk != TIDE_CHUNK_NONE ? chunk
                                    : lowest_of(shelves, shelf, h.never, shelves->key_count, places, spared);
}

static uint64_t distance(const tide_shelves *s, tide_chunk chunk, tide_horizon h)
{
    const uint32_t key = s->standings[chunk].key;
    assert(s->standings[chunk].shelf != TIDE_SHELF_NONE);
    if (key >= h.never)
        return key;
    return key >= h.from ? key - h.from : (uint64_t)key + h.never - h.from;
}

tide_chunk tide_shelves_farther(const tide_shelves *shelves, tide_chunk a, tide_chunk b, tide_horizon horizon)
{
    if (a == TIDE_CHUNK_NONE || b == TIDE_CHUNK_NONE)
        return a == TIDE_CHUNK_NONE ? b : a;
    return distance(shelves, a, horizon) > distance(shelves, b, horizon) ? a : b;
}

tide_chunk tide_shelves_nearer(const tide_shelves *shelves, tide_chunk a, tide_chunk b, tide_horizon horizon)
{
    if (a == TIDE_CHUNK_NONE || b == TIDE_CHUNK_NONE)
        return a == TIDE_CHUNK_NONE ? b : a;
    return distance(shelves, a, horizon) < distance(shelves, b, horizon) ? a : b;
}
