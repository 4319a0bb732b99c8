/* A folder in /tmp for each case, which the teardown removes with all that the case has put there. */
#ifndef TIDE_TESTS_SCRATCH_H
#define TIDE_TESTS_SCRATCH_H

#include "base/files.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

typedef struct scratch {
    char root[64];
    char path[128]; /* a name in root for the file or folder that a case makes */
} scratch;

static inline int scratch_make(void **state)
{
    scratch *made = calloc(1, sizeof *made);
    snprintf(made->root, sizeof made->root, "/tmp/tidepool-files-XXXXXX");
    *state = made;
    if (mkdtemp(made->root) == NULL)
        return -1;
    snprintf(made->path, sizeof made->path, "%s/made", made->root);
    return 0;
}

static inline int scratch_remove_name(void *visitor, const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", (const char *)visitor, name);
    if (unlink(path) == 0)
        return 0;
    const int error = tide_files_posix()->list(NULL, path, scratch_remove_name, path);
    return error != 0 ? error : rmdir(path);
}

static inline int scratch_remove(void **state)
{
    scratch *made = *state;
    int error = tide_files_posix()->list(NULL, made->root, scratch_remove_name, made->root);
    error = error != 0 ? error : rmdir(made->root);
    free(made);
    return error;
}

#define in_scratch(test) cmocka_unit_test_setup_teardown(test, scratch_make, scratch_remove)

#endif
