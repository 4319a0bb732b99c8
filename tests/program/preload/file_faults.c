/* A library for LD_PRELOAD that makes a program's calls on files fail by rules. It reads the rules from
 * the file that TIDE_FILE_FAULTS names, at each call; while that file is absent no call fails. Each line
 * of it is one rule:
 *
 *     CALL ERRNO FIRST LAST TEXT
 *
 * The library counts the calls named CALL whose path contains TEXT and fails those numbered FIRST to LAST
 * (from 1) with ERRNO. CALL is open, write, fsync, mkdir, rename or statvfs; or half: a write that writes
 * half of its bytes. If TIDE_CLOCK_BACK is set, the program's N-th reading of the wall clock is N hours
 * too early. */
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
/* By line of the rules file: the number of calls so far that match the rule. */
static unsigned long counts[RULES_MAX];

/* The C library's functions. The constructor looks them up before main begins: dlsym allocates memory, and
 * an allocator that replaces malloc may read the clock, which this library replaces. */
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

/* Returns the errno of the first rule that matches, or 0. Reads the rules with stdio, which does not call
 * the functions that this library replaces, so fault_of is never entered again. */
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

/* Sets errno to `error` and returns -1, unless `error` is 0. */
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

/* Uses the system call, since the program may read the clock before the constructor has run. */
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
