/* The linker's --wrap=malloc sends calls of malloc in the code under test to __wrap_malloc and makes
 * __real_malloc the name of the C library's function. The other functions are wrapped alike. */
#include "tests/support/fake_memory.h"

#include <errno.h>
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
char *__real_strdup(const char *text);
void *__real_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
char *__wrap_strdup(const char *text);
void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *));

static unsigned requests, failing = UINT32_MAX;
static bool failed, failed_in_jansson;

static bool may_have(void)
{
    if (requests++ != failing)
        return true;
    failed = true;
    errno = ENOMEM;
    return false;
}

void *__wrap_malloc(size_t bytes)
{
    return may_have() ? __real_malloc(bytes) : NULL;
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return may_have() ? __real_calloc(count, bytes) : NULL;
}

void *__wrap_realloc(void *memory, size_t bytes)
{
    return may_have() ? __real_realloc(memory, bytes) : NULL;
}

char *__wrap_strdup(const char *text)
{
    return may_have() ? __real_strdup(text) : NULL;
}

void *__wrap_tsearch(const void *key, void **root, int (*compare)(const void *, const void *))
{
    return may_have() ? __real_tsearch(key, root, compare) : NULL;
}

void fake_memory_fail(unsigned request)
{
    requests = 0;
    failed = failed_in_jansson = false;
    failing = request;
}

bool fake_memory_failed(void)
{
    return failed;
}

bool fake_memory_failed_in_jansson(void)
{
    return failed_in_jansson;
}

unsigned fake_memory_clear(void)
{
    unsigned had = requests;
    fake_memory_fail(UINT32_MAX);
    return had;
}

static void *jansson_malloc(size_t bytes)
{
    void *memory = __wrap_malloc(bytes);
    failed_in_jansson = failed_in_jansson || memory == NULL;
    return memory;
}

void fake_memory_take_jansson(void)
{
    json_set_alloc_funcs(jansson_malloc, free);
}
