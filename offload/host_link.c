/* A deadline for each direction of the link; whoever sends sleeps until its bytes would have arrived. */
#include "offload/host_link.h"

#include <errno.h>
#include <string.h>
#include <time.h>

enum { NS_PER_SECOND = 1000000000 };

uint64_t tide_host_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now); /* cannot fail for this clock and a valid pointer */
    return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

void tide_host_sleep_until(uint64_t deadline_ns)
{
    struct timespec deadline = {
        .tv_sec = (time_t)(deadline_ns / NS_PER_SECOND),
        .tv_nsec = (long)(deadline_ns % NS_PER_SECOND),
    };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &deadline, NULL) == EINTR)
        ;
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

/* Take the link's next free time for `bytes`; returns when they will have arrived. */
static uint64_t link_book(tide_host_link *link, uint64_t bytes, bool to_device)
{
    uint64_t duration_ns = (uint64_t)((double)bytes / link->bytes_per_second * NS_PER_SECOND);
    uint64_t now_ns = tide_host_now_ns();
    pthread_mutex_lock(&link->lock);
    uint64_t *free_ns = &link->free_ns[to_device];
    *free_ns = (*free_ns > now_ns ? *free_ns : now_ns) + duration_ns;
    uint64_t arrival_ns = *free_ns;
    pthread_mutex_unlock(&link->lock);
    return arrival_ns;
}

void tide_host_link_copy(tide_host_link *link, void *to, const void *from, uint64_t bytes, bool to_device)
{
    if (bytes == 0)
        return;
    if (link->bytes_per_second <= 0) {
        memcpy(to, from, bytes);
        return;
    }
    uint64_t arrival_ns = link_book(link, bytes, to_device);
    memcpy(to, from, bytes);
    tide_host_sleep_until(arrival_ns);
}
