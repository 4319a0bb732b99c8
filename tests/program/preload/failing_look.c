/* A library for LD_PRELOAD that makes a program's file look-ups fail for one path.
 *
 *     FAIL_PATH=/tmp/model FAIL_CALL=stat FAIL_AT=1 FAIL_ERRNO=5 LD_PRELOAD=.../libfailing_look.so \
 *         tidepool train ...
 *
 * FAIL_CALL is stat, open, access or opendir. The library counts the calls of that name with exactly that
 * path and fails call number FAIL_AT (counted from 1; 0: every call) with the errno FAIL_ERRNO. It appends
 * one byte to the file FAIL_LOG for each counted call, so that a test knows how many there were. */
#undef _FILE_OFFSET_BITS /* without this, glibc's headers would rename stat to stat64 and open to open64 */
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

/* Uses system calls, since open() of the C library would enter this library again. */
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

/* The C library's functions. The constructor looks them up before main begins: dlsym allocates memory, and
 * a later look-up could happen inside malloc. A call that comes before the constructor runs (from the
 * loader) makes NEXT look them up. */
static struct {
    int (*stat)(const char *, struct stat *);
    int (*stat64)(const char *, struct stat64 *);
    int (*open)(const char *, int, ...);
    int (*open64)(const char *, int, ...);
    int (*access)(const char *, int);
    DIR *(*opendir)(const char *);
} next;

__attribute__((constructor)) static void next_find(void)
{
    *(void **)&next.stat = dlsym(RTLD_NEXT, "stat");
    *(void **)&next.stat64 = dlsym(RTLD_NEXT, "stat64");
    *(void **)&next.open = dlsym(RTLD_NEXT, "open");
    *(void **)&next.open64 = dlsym(RTLD_NEXT, "open64");
    *(void **)&next.access = dlsym(RTLD_NEXT, "access");
    *(void **)&next.opendir = dlsym(RTLD_NEXT, "opendir");
}

#define NEXT(name) (next.name != NULL ? (void)0 : next_find(), next.name)

#define STAT(name)                                                                                           \
    EXPORTED int name(const char *path, struct name *about)                                                  \
    {                                                                                                        \
        return fails("stat", path) ? -1 : NEXT(name)(path, about);                                           \
    }

#define OPEN(name)                                                                                           \
    EXPORTED int name(const char *path, int flags, ...)                                                      \
    {                                                                                                        \
        va_list rest;                                                                                        \
        va_start(rest, flags);                                                                               \
        const mode_t mode = (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;               \
        va_end(rest);                                                                                        \
        return fails("open", path) ? -1 : NEXT(name)(path, flags, mode);                                     \
    }

STAT(stat)
STAT(stat64)
OPEN(open)
OPEN(open64)

EXPORTED int access(const char *path, int mode)
{
    return fails("access", path) ? -1 : NEXT(access)(path, mode);
}

EXPORTED DIR *opendir(const char *path)
{
    return fails("opendir", path) ? NULL : NEXT(opendir)(path);
}
