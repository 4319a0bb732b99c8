#include "chunk/names.h"

#include "base/array.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

static void free_named(void *it)
{
    free(((tide_named *)it)->name);
    free(it);
}

void tide_names_destroy(tide_names *names)
{
    tdestroy(names->tree, free_named);
    free(names->list);
    *names = (tide_names){0};
}

static int compare(const void *a, const void *b)
{
    return strcmp(((const tide_named *)a)->name, ((const tide_named *)b)->name);
}

tide_status tide_names_add(tide_names *names, const tide_named *what, uint32_t *number)
{
    assert(!tide_names_find(names, what->name));
    tide_named *added = malloc(sizeof *added);
    char *name = strdup(what->name);
    if (!added || !name || !tide_array_grow(&names->list, names->count, sizeof *names->list))
        goto undo;
    *added = *what;
    added->name = name;
    added->number = names->count;
    added->first_part = names->parts;
    if (!tsearch(added, &names->tree, compare))
        goto undo;
    *number = names->count;
    names->list[names->count++] = added;
    names->parts += what->parts;
    return TIDE_OK;

undo:
    free(added);
    free(name);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "description: no memory for %s %s, behind %u others", names->kind,
                     what->name, names->count);
}

const tide_named *tide_names_find(const tide_names *names, const char *name)
{
    const tide_named wanted = {.name = (char *)name};
    tide_named *const *found = tfind(&wanted, &names->tree, compare);
    return found ? *found : NULL;
}
