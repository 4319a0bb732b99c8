/* A library for LD_PRELOAD that simulates a slow disk: each write to a regular file takes 2 ms more, each
 * fsync 50 ms. tools/dev/conditions.sh runs the suite with it: no result may depend on when bytes reach a
 * file. Writes by stdio are not slowed, since they don't call these functions. */
/* Otherwise glibc's headers would rename pwrite to pwrite64, and both are defined here. */
#undef _FILE_OFFSET_BITS
#include <errno.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { WRITE_NS = 2000000, SYNC_NS = 50000000 };

#define EXPORTED __attribute__((visibility("default")))

/* A signal does not shorten the wait, and errno stays unchanged. */
static void wait_ns(long duration_ns)
{
    const int before = errno;
    struct timespec left = {.tv_nsec = duration_ns};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
    errno = before;
}

static void wait_for_file(int descriptor)
{
    const int before = errno;
    struct stat about;
    if (fstat(descriptor, &about) == 0 && S_ISREG(about.st_mode))
        wait_ns(WRITE_NS);
    errno = before;
}

EXPORTED ssize_t write(int descriptor, const void *bytes, size_t count)
{
    wait_for_file(descriptor);
    return syscall(SYS_write, descriptor, bytes, count);
}

EXPORTED ssize_t pwrite64(int descriptor, const void *bytes, size_t count, off64_t at)
{
    wait_for_file(descriptor);
    return syscall(SYS_pwrite64, descriptor, bytes, count, at);
}

EXPORTED ssize_t pwrite(int descriptor, const void *bytes, size_t count, off_t at)
{
    return pwrite64(descriptor, bytes, count, at);
}

EXPORTED int fsync(int descriptor)
{
    wait_ns(SYNC_NS);
    return (int)syscall(SYS_fsync, descriptor);
}

EXPORTED int fdatasync(int descriptor)
{
    wait_ns(SYNC_NS);
    return (int)syscall(SYS_fdatasync, descriptor);
}
