/* These functions replace the C library's. They call it by its second names (__libc_malloc) and by system
 * calls: dlsym would allocate. */
/* Otherwise glibc's headers would rename mmap to mmap64, and both are defined here. */
#undef _FILE_OFFSET_BITS
#include "tests/support/interpose.h"

#include <errno.h>
#include <link.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INTERPOSE_POSSIBLE 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define INTERPOSE_POSSIBLE 0
#else
#define INTERPOSE_POSSIBLE 1
#endif
#else
#define INTERPOSE_POSSIBLE 1
#endif

static atomic_bool armed;
static atomic_bool failed;
static _Atomic uint64_t allocations, largest, new_maps, fixed_maps, countdown;
static _Atomic int64_t live, mapped_bytes;
static _Atomic uint32_t fail_mask, exemptions;
static _Atomic(const char *) exempt_name;
static _Thread_local bool exempt;
static _Thread_local uint32_t paused;
#if INTERPOSE_POSSIBLE
static uintptr_t libgomp_begin, libgomp_end;

static int find_libgomp(struct dl_phdr_info *info, size_t bytes, void *unused);
#endif

static int is_libomp(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    (void)bytes;
    (void)unused;
    return strstr(info->dlpi_name, "libomp.") != NULL;
}

bool interpose_active(void)
{
    return INTERPOSE_POSSIBLE && dl_iterate_phdr(is_libomp, NULL) == 0;
}

void interpose_arm(void)
{
#if INTERPOSE_POSSIBLE
    (void)dl_iterate_phdr(find_libgomp, NULL);
#endif
    atomic_store(&allocations, 0);
    atomic_store(&largest, 0);
    atomic_store(&live, 0);
    atomic_store(&new_maps, 0);
    atomic_store(&fixed_maps, 0);
    atomic_store(&mapped_bytes, 0);
    atomic_store(&armed, true);
}

void interpose_disarm(void)
{
    atomic_store(&armed, false);
}

interpose_counts interpose_read(void)
{
    return (interpose_counts){
        .allocations = atomic_load(&allocations),
        .largest = atomic_load(&largest),
        .live = atomic_load(&live),
        .new_maps = atomic_load(&new_maps),
        .fixed_maps = atomic_load(&fixed_maps),
        .mapped_bytes = atomic_load(&mapped_bytes),
    };
}

void interpose_fail(uint32_t mask, uint64_t count)
{
    atomic_store(&fail_mask, 0);
    atomic_store(&failed, false);
    atomic_store(&countdown, count);
    atomic_store(&fail_mask, count > 0 ? mask : 0);
}

bool interpose_has_failed(void)
{
    return atomic_load(&failed);
}

void interpose_exempt(const char *name)
{
    exempt = true;
    atomic_store(&exempt_name, name);
    atomic_fetch_add(&exemptions, 1);
}

void interpose_pause(void)
{
    paused++;
}

void interpose_resume(void)
{
    paused--;
}

uint32_t interpose_exemptions(const char **latest_name)
{
    const char *name = atomic_load(&exempt_name);
    *latest_name = name != NULL ? name : "";
    return atomic_load(&exemptions);
}

#if INTERPOSE_POSSIBLE

#define EXPORTED __attribute__((visibility("default")))

extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *old, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *address);

EXPORTED void *malloc(size_t bytes);
EXPORTED void *calloc(size_t count, size_t bytes);
EXPORTED void *realloc(void *old, size_t bytes);
EXPORTED void *aligned_alloc(size_t alignment, size_t bytes);
EXPORTED void *memalign(size_t alignment, size_t bytes);
EXPORTED int posix_memalign(void **address, size_t alignment, size_t bytes);
EXPORTED void free(void *address);

static bool counts(void)
{
    return atomic_load(&armed) && !exempt && paused == 0;
}

/* Finds libgomp's code. libgomp ends the process if it gets no memory for a thread of its own, so its
 * calls never fail here. */
static int find_libgomp(struct dl_phdr_info *info, size_t bytes, void *unused)
{
    (void)bytes;
    (void)unused;
    if (strstr(info->dlpi_name, "libgomp") == NULL)
        return 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || (part->p_flags & PF_X) == 0)
            continue;
        libgomp_begin = info->dlpi_addr + part->p_vaddr;
        libgomp_end = libgomp_begin + part->p_memsz;
    }
    return 1;
}

static bool is_libgomp(const void *caller)
{
    return (uintptr_t)caller >= libgomp_begin && (uintptr_t)caller < libgomp_end;
}

static bool must_fail(uint32_t kind)
{
    if ((atomic_load(&fail_mask) & kind) == 0 || atomic_fetch_sub(&countdown, 1) != 1)
        return false;
    atomic_store(&failed, true);
    errno = ENOMEM;
    return true;
}

/* Counts a call of the malloc family. Returns true if the call must fail. */
static bool enter(const void *caller, size_t bytes)
{
    if (!counts())
        return false;
    atomic_fetch_add(&allocations, 1);
    uint64_t before = atomic_load(&largest);
    while (before < bytes && !atomic_compare_exchange_weak(&largest, &before, bytes))
        ;
    return !is_libgomp(caller) && must_fail(INTERPOSE_MALLOC);
}

static void *made(void *address)
{
    if (address != NULL && counts())
        atomic_fetch_add(&live, 1);
    return address;
}

void *malloc(size_t bytes)
{
    return enter(__builtin_return_address(0), bytes) ? NULL : made(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes)
{
    return enter(__builtin_return_address(0), count * bytes) ? NULL : made(__libc_calloc(count, bytes));
}

void *realloc(void *old, size_t bytes)
{
    if (enter(__builtin_return_address(0), bytes))
        return NULL;
    void *address = __libc_realloc(old, bytes);
    return old == NULL ? made(address) : address;
}

void *memalign(size_t alignment, size_t bytes)
{
    return enter(__builtin_return_address(0), bytes) ? NULL : made(__libc_memalign(alignment, bytes));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **address, size_t alignment, size_t bytes)
{
    void *got = memalign(alignment, bytes);
    if (got == NULL)
        return ENOMEM;
    *address = got;
    return 0;
}

void free(void *address)
{
    if (address != NULL && counts())
        atomic_fetch_sub(&live, 1);
    __libc_free(address);
}

EXPORTED void *mmap(void *wanted, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (counts()) {
        atomic_fetch_add((flags & MAP_FIXED) != 0 ? &fixed_maps : &new_maps, 1);
        if (must_fail(INTERPOSE_MMAP))
            return MAP_FAILED;
    }
    void *address = (void *)syscall(SYS_mmap, wanted, bytes, protection, flags, fd, offset);
    if (address != MAP_FAILED && (flags & MAP_FIXED) == 0 && counts())
        atomic_fetch_add(&mapped_bytes, (int64_t)bytes);
    return address;
}

EXPORTED void *mmap64(void *wanted, size_t bytes, int protection, int flags, int fd, off64_t offset)
{
    return mmap(wanted, bytes, protection, flags, fd, offset);
}

/* Supports tidepool's only use: moving a mapping to an address that the program has reserved. */
EXPORTED void *mremap(void *from, size_t old_bytes, size_t bytes, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    void *to = (flags & MREMAP_FIXED) != 0 ? va_arg(rest, void *) : NULL;
    va_end(rest);
    if (counts()) {
        atomic_fetch_add(&fixed_maps, 1);
        if (must_fail(INTERPOSE_MMAP))
            return MAP_FAILED;
    }
    return (void *)syscall(SYS_mremap, from, old_bytes, bytes, flags, to);
}

EXPORTED int munmap(void *address, size_t bytes)
{
    int result = (int)syscall(SYS_munmap, address, bytes);
    if (result == 0 && counts())
        atomic_fetch_sub(&mapped_bytes, (int64_t)bytes);
    return result;
}

#endif
