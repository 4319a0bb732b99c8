#include "chunk/roll.h"

#include "base/hash.h"

#include <assert.h>

void tide_roll_create(tide_roll *roll, uint32_t capacity, tide_arrays *arrays)
{
    assert(capacity > 0);
    *roll = (tide_roll){.capacity = capacity,
                        .entries = tide_arrays_add(arrays, capacity, sizeof *roll->entries)};
}

uint64_t tide_roll_append(tide_roll *roll, const tide_collective *entry)
{
    const uint64_t words[] = {(uint64_t)entry->kind, entry->group, entry->replaced, entry->frame, entry->op,
                              entry->param,          entry->first, entry->count};
    assert(tide_roll_count(roll) < roll->capacity && entry->kind < TIDE_COLLECTIVE_KINDS);
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        roll->hash = tide_hash_u64(roll->hash, words[i]);
    roll->entries[roll->appended % roll->capacity] = *entry;
    return roll->appended++;
}

void tide_roll_pop(tide_roll *roll)
{
    assert(roll->issued < roll->appended);
    roll->issued++;
}

void tide_roll_clear(tide_roll *roll)
{
    roll->issued = roll->appended;
}

void tide_roll_note(tide_roll *roll, tide_program_event event, uint64_t value)
{
    roll->hash = tide_hash_u64(tide_hash_u64(roll->hash, (uint64_t)event), value);
}
