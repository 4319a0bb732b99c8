/* A library to preload: one of a program's looks at one path fails.
 *
 *     FAIL_PATH=/tmp/model FAIL_CALL=stat FAIL_AT=1 FAIL_ERRNO=5 LD_PRELOAD=.../libfailing_look.so tidepool train ...
 *
 * FAIL_CALL is stat, open, access or opendir; the FAIL_AT-th such call with that very path, from 1, fails with that errno, and with
 * FAIL_AT=0 every one. FAIL_LOG names a file to which each such call adds a byte, failed or not: a test so knows how many there are.
 */
#undef _FILE_OFFSET_BITS /* each name is to mean itself, stat and stat64 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))

static atomic_int calls;

/* By system calls: what is called here must not come back. */
static void note(void)
{
    const char *log = getenv("FAIL_LOG");
    const long to =
        log != NULL ? syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;
    if (to < 0)
        return;
    (void)!write((int)to, "x", 1);
    (void)close((int)to);
}

static bool fails(const char *call, const char *path)
{
    const char *wanted = getenv("FAIL_PATH"), *of = getenv("FAIL_CALL"), *at = getenv("FAIL_AT"),
               *error = getenv("FAIL_ERRNO");
    if (path == NULL || wanted == NULL || of == NULL || strcmp(call, of) != 0 || strcmp(path, wanted) != 0)
        return false;
    note();
    const int number = atomic_fetch_add(&calls, 1) + 1, which = at != NULL ? atoi(at) : 0;
    if (error == NULL || (which != 0 && which != number))
        return false;
    errno = atoi(error);
    return true;
}

static void *next_of(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

/* ISO C has no conversion from an object's address to a function's. */
#define NEXT(type, name)                                                                                     \
    union {                                                                                                  \
        void *symbol;                                                                                        \
        type call;                                                                                           \
    } next = {.symbol = next_of(name)}

typedef int (*stat_call)(const char *, struct stat *);
typedef int (*stat64_call)(const char *, struct stat64 *);
typedef int (*open_call)(const char *, int, ...);
typedef int (*access_call)(const char *, int);
typedef DIR *(*opendir_call)(const char *);

#define STAT(name)                                                                                           \
    EXPORTED int name(const char *path, struct name *about)                                                  \
    {                                                                                                        \
        NEXT(name##_call, #name);                                                                            \
        return fails("stat", path) ? -1 : next.call(path, about);                                            \
    }

#define OPEN(name)                                                                                           \
    EXPORTED int name(const char *path, int flags, ...)                                                      \
    {                                                                                                        \
        va_list rest;                                                                                        \
        va_start(rest, flags);                                                                               \
        const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;               \
        va_end(rest);                                                                                        \
        NEXT(open_call, #name);                                                                              \
        return fails("open", path) ? -1 : next.call(path, flags, mode);                                      \
    }

STAT(stat)
STAT(stat64)
OPEN(open)
OPEN(open64)

EXPORTED int access(const char *path, int mode)
{
    NEXT(access_call, "access");
    return fails("access", path) ? -1 : next.call(path, mode);
}

EXPORTED DIR *opendir(const char *path)
{
    NEXT(opendir_call, "opendir");
    return fails("opendir", path) ? NULL : next.call(path);
}
