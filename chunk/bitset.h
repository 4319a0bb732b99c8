/* A set of numbers below a bound, as a tree of 64-bit words. Insert, erase, "the highest number below n" and
 * "the lowest number from n on" take constant time.
 *
 *   level 2              1
 *   level 1       1010...          0...          bit w: word w of the level below is not zero
 *   level 0   0110..  0...  0001..               bit u: u is in the set
 *
 * The planner keeps one set for each state of a chunk: the numbers of the next uses of the chunks in that
 * state.
 */
#ifndef TIDE_CHUNK_BITSET_H
#define TIDE_CHUNK_BITSET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TIDE_USE_NONE UINT32_MAX

enum { TIDE_BITSET_LEVELS = 6 }; /* 64^6 > 2^32 */

typedef struct tide_bitset {
    uint32_t levels;
    /* where each level begins in the one array of all levels; the last entry is the array's end */
    uint64_t *words[TIDE_BITSET_LEVELS + 1];
} tide_bitset;

/* The number of 64-bit words that a set of numbers below `bound` needs. */
size_t tide_bitset_words(uint32_t bound);
/* Make an empty set in zeroed memory of tide_bitset_words words; returns the first word after them. */
uint64_t *tide_bitset_place(tide_bitset *set, uint32_t bound, uint64_t *memory);
/* Make `count` empty sets in memory of their own, which the caller frees with free(). NULL: there was no
 * memory. */
uint64_t *tide_bitsets_create(tide_bitset *sets, uint32_t count, uint32_t bound);
void tide_bitset_insert(tide_bitset *set, uint32_t use);
void tide_bitset_erase(tide_bitset *set, uint32_t use);
static inline void tide_bitset_put(tide_bitset *set, uint32_t use, bool member)
{
    if (member)
        tide_bitset_insert(set, use);
    else
        tide_bitset_erase(set, use);
}

/* Insert and erase the number `use` in several sets: bit i of `was` says whether sets[i] has it before this
 * call, bit i of `is` whether it has it afterwards. */
static inline void tide_bitsets_move(tide_bitset *sets, uint32_t use, uint32_t was, uint32_t is)
{
    for (uint32_t changed = was ^ is; changed; changed &= changed - 1)
        tide_bitset_put(&sets[__builtin_ctz(changed)], use, is & changed & -changed);
}

static inline bool tide_bitset_is_empty(const tide_bitset *set)
{
    return set->words[set->levels - 1][0] == 0;
}

/* Empty the set. */
void tide_bitset_clear(tide_bitset *set);
/* The lowest number of at least `from` (at most the bound), TIDE_USE_NONE if there is none. */
uint32_t tide_bitset_from(const tide_bitset *set, uint32_t from);
/* The highest number below `limit` (at most the bound), TIDE_USE_NONE if there is none. */
uint32_t tide_bitset_below(const tide_bitset *set, uint32_t limit);

#endif
