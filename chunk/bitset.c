#include "chunk/bitset.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static uint32_t words_of(uint32_t bound)
{
    return bound / 64 + 1;
}

size_t tide_bitset_words(uint32_t bound)
{
    size_t words = 0;
    for (uint32_t count = words_of(bound);; count = words_of(count - 1)) {
        words += count;
        if (count == 1)
            return words;
    }
}

uint64_t *tide_bitset_place(tide_bitset *set, uint32_t bound, uint64_t *memory)
{
    set->levels = 0;
    for (uint32_t count = words_of(bound);; count = words_of(count - 1)) {
        assert(set->levels < TIDE_BITSET_LEVELS);
        set->words[set->levels++] = memory;
        memory += count;
        set->words[set->levels] = memory;
        if (count == 1)
            return memory;
    }
}

uint64_t *tide_bitsets_create(tide_bitset *sets, uint32_t count, uint32_t bound)
{
    uint64_t *memory = calloc(count * tide_bitset_words(bound), sizeof *memory), *next = memory;
    for (uint32_t i = 0; memory && i < count; i++)
        next = tide_bitset_place(&sets[i], bound, next);
    return memory;
}

static inline size_t word_count(const tide_bitset *set, uint32_t level)
{
    return (size_t)(set->words[level + 1] - set->words[level]);
}

void tide_bitset_insert(tide_bitset *set, uint32_t use)
{
    assert(set->levels > 0 && use / 64 < word_count(set, 0));
    for (uint32_t level = 0; level < set->levels; level++, use /= 64)
        set->words[level][use / 64] |= UINT64_C(1) << use % 64;
}

void tide_bitset_erase(tide_bitset *set, uint32_t use)
{
    assert(set->levels > 0 && use / 64 < word_count(set, 0));
    for (uint32_t level = 0; level < set->levels; level++, use /= 64) {
        set->words[level][use / 64] &= ~(UINT64_C(1) << use % 64);
        if (set->words[level][use / 64])
            return;
    }
}

void tide_bitset_clear(tide_bitset *set)
{
    memset(set->words[0], 0, (size_t)(set->words[set->levels] - set->words[0]) * sizeof *set->words[0]);
}

static uint32_t lowest(uint64_t word)
{
    assert(word);
    return (uint32_t)__builtin_ctzll(word);
}

uint32_t tide_bitset_from(const tide_bitset *set, uint32_t from)
{
    assert(from / 64 < word_count(set, 0));
    for (uint32_t level = 0; level < set->levels; level++) {
        const bool inside = from / 64 < word_count(set, level);
        const uint64_t word = inside ? set->words[level][from / 64] >> from % 64 << from % 64 : 0;
        if (!word) {
            from = from / 64 + 1; /* on the level above, continue with the word after this one */
            continue;
        }
        uint32_t found = from / 64 * 64 + lowest(word);
        while (level-- > 0)
            found = found * 64 + lowest(set->words[level][found]);
        return found;
    }
    return TIDE_USE_NONE;
}

static uint32_t highest(uint64_t word)
{
    assert(word);
    return 63 - (uint32_t)__builtin_clzll(word);
}

uint32_t tide_bitset_below(const tide_bitset *set, uint32_t limit)
{
    assert(limit / 64 < word_count(set, 0));
    for (uint32_t level = 0; level < set->levels; level++, limit /= 64) {
        const uint64_t below = (UINT64_C(1) << limit % 64) - 1;
        uint64_t word = set->words[level][limit / 64] & below;
        if (!word)
            continue;
        uint32_t found = limit / 64 * 64 + highest(word);
        while (level-- > 0)
            found = found * 64 + highest(set->words[level][found]);
        return found;
    }
    return TIDE_USE_NONE;
}
