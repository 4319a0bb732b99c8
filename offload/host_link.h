/* The emulated link between host and device: each direction carries `bytes_per_second`, whoever sends, so
 * that a copy lasts as long as it would over PCIe. A deadline per direction: a copy may end when the link,
 * busy with those before it, would have carried it. The sender sleeps; nothing spins.
 *
 * A sleep ends late, by 60 us or, on a busy machine, by milliseconds. A link would have begun the next copy meanwhile, so
 * a copy begins, in the link's time, when it was `ready`, not when its sender had woken: 4 MiB copies queued back to back
 * then run at 0.99 of the rate, where they had 0.95 (at 2.4 GB/s).
 */
#ifndef TIDE_OFFLOAD_HOST_LINK_H
#define TIDE_OFFLOAD_HOST_LINK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct tide_host_link {
    double bytes_per_second; /* 0: as fast as memory */
    pthread_mutex_t lock;    /* guards free_ns; never held together with another lock */
    uint64_t free_ns[2];     /* when each direction has carried what was given to it */
} tide_host_link;

void tide_host_link_init(tide_host_link *link, double bytes_per_second);
void tide_host_link_destroy(tide_host_link *link);

/* Copy `bytes` and return when the link would have carried them. `ready_ns`, not later than now: nothing but copies before
 * it has held the copy back since then. */
void tide_host_link_copy(tide_host_link *link, void *to, const void *from, uint64_t bytes, bool to_device,
                         uint64_t ready_ns);

/* Monotonic nanoseconds, and a sleep until then. */
uint64_t tide_host_now_ns(void);
void tide_host_sleep_until(uint64_t deadline_ns);
/* The calling thread's sleeps end as soon after their time as the system can, from now on: left alone, Linux takes up to
 * 50 us more (timer slack). */
void tide_host_sleep_sharply(void);

#endif
