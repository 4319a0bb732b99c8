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
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(default)

enum { RULES_MAX = 16, HOUR_S = 3600 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned long counts[RULES_MAX]; /* [line]: calls that it fits */

/* The C library's own. Looked up once, before the program begins: the loader asks for memory, and an allocator that has taken malloc
 * looks at the clock. */
static struct {
    int (*open64)(const char *, int, ...);
    ssize_t (*write)(int, const void *, size_t);
    int (*fsync)(int);
    int (*mkdir)(const char *, mode_t);
    int (*rename)(const char *, const char *);
    int (*statvfs64)(const char *, struct statvfs64 *);
} next;

__attribute__((constructor)) static void next_find(void)
{
    *(void **)&next.open64 = dlsym(RTLD_NEXT, "open64");
    *(void **)&next.write = dlsym(RTLD_NEXT, "write");
    *(void **)&next.fsync = dlsym(RTLD_NEXT, "fsync");
    *(void **)&next.mkdir = dlsym(RTLD_NEXT, "mkdir");
    *(void **)&next.rename = dlsym(RTLD_NEXT, "rename");
    *(void **)&next.statvfs64 = dlsym(RTLD_NEXT, "statvfs64");
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
    for (int i = 0;
         i < RULES_MAX && fscanf(file, "%15s %d %lu %lu %511s", name, &error, &first, &last, text) == 5;
         i++) {
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
    mode_t mode = 0;
    if ((flags & O_CREAT) != 0) {
        va_list arguments;
        va_start(arguments, flags);
        mode = va_arg(arguments, mode_t);
        va_end(arguments);
    }
    return is_refused(fault_of("open", path)) ? -1 : next.open64(path, flags, mode);
}

ssize_t write(int descriptor, const void *bytes, size_t count)
{
    if (is_refused(fault_of_descriptor("write", descriptor)))
        return -1;
    return next.write(descriptor, bytes,
                      fault_of_descriptor("half", descriptor) != 0 ? (count + 1) / 2 : count);
}

int fsync(int descriptor)
{
    return is_refused(fault_of_descriptor("fsync", descriptor)) ? -1 : next.fsync(descriptor);
}

int mkdir(const char *path, mode_t mode)
{
    return is_refused(fault_of("mkdir", path)) ? -1 : next.mkdir(path, mode);
}

int rename(const char *from, const char *to)
{
    return is_refused(fault_of("rename", from)) ? -1 : next.rename(from, to);
}

int statvfs64(const char *path, struct statvfs64 *about)
{
    return is_refused(fault_of("statvfs", path)) ? -1 : next.statvfs64(path, about);
}

/* ---- the clock ---- */

static time_t set_back(void)
{
    static unsigned long looks;
    return (time_t)__atomic_add_fetch(&looks, 1, __ATOMIC_RELAXED) * HOUR_S;
}

/* By the system call: the program may look before the constructor has run. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int result = (int)syscall(SYS_clock_gettime, clock, now);
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
