/* The emulated link, and why it copies with memcpy.
 *
 * Copies use the C library's memcpy. We tried streaming stores, which bypass the caches: on a Cascade Lake
 * Xeon (2 cores of a virtual machine, glibc 2.36, medians of 9 to 15) they copy chunks of 4 MiB at 4.75 GB/s
 * and of 64 MiB at 4.76, where memcpy reaches 4.84 and 5.09 (64-byte stores 3.5; prefetching, or four pages
 * at a time, gains nothing): one core's loads are the limit. Another thread that kept reading 12 MiB became
 * 6% slower beside memcpy and 3% beside streaming stores, less than its speed varies. But a thread that reads
 * a chunk right after its copy reads 1.7 times slower after streaming stores. Hence memcpy.
 */
#include "offload/host_link.h"

#include "base/clock.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

enum { NS_PER_SECOND = 1000000000 };
#define FOREVER_NS UINT64_C(1000000000000000000) /* 31 years */

void tide_host_sleep_until(uint64_t deadline_ns)
{
    struct timespec deadline = {
        .tv_sec = (time_t)(deadline_ns / NS_PER_SECOND),
        .tv_nsec = (long)(deadline_ns % NS_PER_SECOND),
    };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR)
        ;
}

void tide_host_sleep_sharply(void)
{
    static _Thread_local bool sharp;
    if (!sharp)
        (void)prctl(PR_SET_TIMERSLACK, 1ul); /* in ns; it may fail */
    sharp = true;
}

void tide_host_link_init(tide_host_link *link, double bytes_per_second)
{
    link->bytes_per_second = bytes_per_second;
    link->free_ns[0] = link->free_ns[1] = 0;
    (void)pthread_mutex_init(&link->lock, NULL); /* default attributes: cannot fail on Linux */
}

void tide_host_link_destroy(tide_host_link *link)
{
    (void)pthread_mutex_destroy(&link->lock);
}

/* Add `bytes` to the direction's deadline; returns the new deadline, which may be in the past. */
static uint64_t link_book(tide_host_link *link, uint64_t bytes, bool to_device, uint64_t ready_ns)
{
    const double ns = (double)bytes / link->bytes_per_second * NS_PER_SECOND;
    const uint64_t duration_ns = ns < FOREVER_NS ? (uint64_t)ns : FOREVER_NS;
    pthread_mutex_lock(&link->lock);
    uint64_t *free_ns = &link->free_ns[to_device];
    *free_ns = (*free_ns > ready_ns ? *free_ns : ready_ns) + duration_ns;
    uint64_t arrival_ns = *free_ns;
    pthread_mutex_unlock(&link->lock);
    return arrival_ns;
}

void tide_host_link_copy(tide_host_link *link, void *to, const void *from, uint64_t bytes, bool to_device,
                         uint64_t ready_ns)
{
    assert(ready_ns <= tide_clock_ns());
    if (bytes == 0)
        return;
    if (link->bytes_per_second <= 0) {
        memcpy(to, from, bytes);
        return;
    }
    uint64_t arrival_ns = link_book(link, bytes, to_device, ready_ns);
    memcpy(to, from, bytes);
    tide_host_sleep_until(arrival_ns);
}
