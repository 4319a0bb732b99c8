/* Loaded before the C library, it makes calls on files fail as the file that TIDE_FILE_FAULTS names says, as long as that file is
 * there. A line of it is a rule:
 *
 *     CALL ERRNO FIRST LAST TEXT
 *
 * The calls of this name, the FIRST to the LAST (from 1) whose path contains TEXT, fail with this number. CALL is open, write,
 * fsync, mkdir, rename, statvfs, or half: a write that takes half of its bytes. With TIDE_CLOCK_BACK each look at the clock of
 * the day finds it set back by an hour. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(default)

enum { RULES_MAX = 16, HOUR_S = 3600 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long counts[RULES_MAX]; /* [line]: calls that it fits */

static void *next_of(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL)
        abort();
    return found;
}

/* The errno of the first rule that fits, 0: none. Reading the rules must not come by here again: it uses stdio, which does not call
 * the names that are exported here. */
static int fault_of(const char *call, const char *path)
{
    const char *rules = getenv("TIDE_FILE_FAULTS");
    FILE *file = rules != NULL && path != NULL ? fopen(rules, "re") : NULL;
    char name[16], text[512];
    int error, found = 0;
    unsigned long first, last;
    if (file == NULL)
        return 0;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RULES_MAX && fscanf(file, "%15s %d %lu %lu %511s", name, &error, &first, &last, text) == 5; i++) {
        if (strcmp(name, call) != 0 || strstr(path, text) == NULL)
            continue;
        counts[i]++;
        if (found == 0 && counts[i] >= first && counts[i] <= last)
            found = error;
    }
    pthread_mutex_unlock(&lock);
    (void)fclose(file);
    return found;
}

static int fault_of_descriptor(const char *call, int descriptor)
{
    char link[64], path[4096];
    (void)snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    const ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = '\0';
    return fault_of(call, path);
}

/* -1 with errno set where the rules say so. */
static int is_refused(int error)
{
    if (error != 0)
        errno = error;
    return error != 0;
}

int open64(const char *path, int flags, ...)
{
    int (*const next)(const char *, int, ...) = (int (*)(const char *, int, ...))next_of("open64");
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    return is_refused(fault_of("open", path)) ? -1 : next(path, flags, mode);
}

ssize_t write(int descriptor, const void *bytes, size_t count)
{
    ssize_t (*const next)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))next_of("write");
    if (is_refused(fault_of_descriptor("write", descriptor)))
        return -1;
    return next(descriptor, bytes, fault_of_descriptor("half", descriptor) != 0 ? (count + 1) / 2 : count);
}

int fsync(int descriptor)
{
    int (*const next)(int) = (int (*)(int))next_of("fsync");
    return is_refused(fault_of_descriptor("fsync", descriptor)) ? -1 : next(descriptor);
}

int mkdir(const char *path, mode_t mode)
{
    int (*const next)(const char *, mode_t) = (int (*)(const char *, mode_t))next_of("mkdir");
    return is_refused(fault_of("mkdir", path)) ? -1 : next(path, mode);
}

int rename(const char *from, const char *to)
{
    int (*const next)(const char *, const char *) = (int (*)(const char *, const char *))next_of("rename");
    return is_refused(fault_of("rename", from)) ? -1 : next(from, to);
}

int statvfs64(const char *path, struct statvfs64 *about)
{
    int (*const next)(const char *, struct statvfs64 *) =
        (int (*)(const char *, struct statvfs64 *))next_of("statvfs64");
    return is_refused(fault_of("statvfs", path)) ? -1 : next(path, about);
}

/* ---- the clock ---- */

static time_t set_back(void)
{
    static unsigned long looks;
    return (time_t)__atomic_add_fetch(&looks, 1, __ATOMIC_RELAXED) * HOUR_S;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*const next)(clockid_t, struct timespec *) = (int (*)(clockid_t, struct timespec *))next_of("clock_gettime");
    const int result = next(clock, now);
    if (result == 0 && clock == CLOCK_REALTIME && getenv("TIDE_CLOCK_BACK") != NULL)
        now->tv_sec -= set_back();
    return result;
}

time_t time(time_t *at)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (at != NULL)
        *at = now.tv_sec;
    return now.tv_sec;
}
