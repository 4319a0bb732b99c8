#include "chunk/names.h"

#include "chunk/array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct tide_name {
    char *text;
    uint64_t hash;
};

/* FNV-1a, its upper half folded into the lower, of which places are made. */
static uint64_t hash_of(const char *text)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * UINT64_C(1099511628211);
    return hash ^ hash >> 32;
}

void tide_names_destroy(tide_names *names)
{
    assert(tide_names_is_valid(names));
    for (uint32_t i = 0; i < names->count; i++)
        free(names->names[i].text);
    free(names->names);
    free(names->table);
    *names = (tide_names){0};
}

static uint32_t place_after(const tide_names *names, uint32_t place)
{
    assert((names->places & (names->places - 1)) == 0 && place < names->places);
    return (place + 1) & (names->places - 1);
}

/* The place that `text` has, or the empty one where it would go. */
static uint32_t place_of(const tide_names *names, const char *text, uint64_t hash)
{
    assert(names->places > names->count);
    uint32_t place = (uint32_t)hash & (names->places - 1);
    for (; names->table[place]; place = place_after(names, place)) {
        const struct tide_name *there = &names->names[names->table[place] - 1];
        if (there->hash == hash && strcmp(there->text, text) == 0)
            break;
    }
    return place;
}

bool tide_names_is_valid(const tide_names *names)
{
    uint32_t taken = 0, number;
    for (uint32_t place = 0; place < names->places; place++)
        taken += names->table[place] != 0;
    bool valid =
        taken == names->count && names->count <= names->capacity && names->count <= names->places / 2;
    for (uint32_t i = 0; i < names->count && valid; i++)
        valid = tide_names_find(names, names->names[i].text, &number) && number == i;
    return valid;
}

/* All names are different, so the first empty place is right. */
static void fill_table(tide_names *names)
{
    for (uint32_t i = 0; i < names->count; i++) {
        uint32_t place = (uint32_t)names->names[i].hash & (names->places - 1);
        while (names->table[place])
            place = place_after(names, place);
        names->table[place] = i + 1;
    }
}

/* Two places a name that there is room for. */
static bool make_room(tide_names *names)
{
    if (!tide_array_grow((void **)&names->names, names->count, &names->capacity, sizeof *names->names))
        return false;
    assert(names->count < names->capacity && names->places <= 2 * names->capacity);
    if (names->places == 2 * names->capacity)
        return true;
    uint32_t *table = calloc(2 * (size_t)names->capacity, sizeof *table);
    if (!table)
        return false;
    free(names->table);
    names->table = table;
    names->places = 2 * names->capacity;
    fill_table(names);
    assert(tide_names_is_valid(names)); /* the full walk, each time that they have doubled */
    return true;
}

tide_status tide_names_add(tide_names *names, const char *name)
{
    char *copy = make_room(names) ? strdup(name) : NULL;
    if (!copy)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the name %s, behind %u others", name,
                         names->count);
    const uint64_t hash = hash_of(name);
    const uint32_t place = place_of(names, name, hash);
    assert(names->table[place] == 0 && names->count < names->places / 2);
    names->names[names->count++] = (struct tide_name){.text = copy, .hash = hash};
    names->table[place] = names->count;
    return TIDE_OK;
}

bool tide_names_find(const tide_names *names, const char *name, uint32_t *number)
{
    if (names->count == 0)
        return false;
    const uint32_t taken_by = names->table[place_of(names, name, hash_of(name))];
    if (taken_by)
        *number = taken_by - 1;
    return taken_by != 0;
}

const char *tide_names_at(const tide_names *names, uint32_t number)
{
    assert(number < names->count);
    return names->names[number].text;
}
