/* The emulated link between host and device. Each direction carries `bytes_per_second` in all, so that a copy
 * lasts as long as it would over PCIe. Each direction has a deadline: the time when the link would have
 * carried this copy and all copies before it. The thread that copies sleeps until then; nothing spins.
 *
 * A sleep ends late, by 60 us or, on a busy machine, by milliseconds. A real link would have begun the next
 * copy meanwhile. Therefore a copy begins, in the link's time, when it was `ready`, not when its thread woke:
 * 4 MiB copies queued back to back then run at 0.99 of the rate, instead of 0.95 (at 2.4 GB/s).
 */
#ifndef TIDE_OFFLOAD_HOST_LINK_H
#define TIDE_OFFLOAD_HOST_LINK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct tide_host_link {
    double bytes_per_second; /* 0: not throttled */
    pthread_mutex_t lock;    /* guards free_ns; never held together with another lock */
    uint64_t free_ns[2];     /* when each direction will have carried all copies given to it */
} tide_host_link;

void tide_host_link_init(tide_host_link *link, double bytes_per_second);
void tide_host_link_destroy(tide_host_link *link);

/* Copy `bytes` and return when the link would have carried them. `ready_ns`, not later than now, is when the
 * copy could have begun but for other copies before it. */
void tide_host_link_copy(tide_host_link *link, void *to, const void *from, uint64_t bytes, bool to_device,
                         uint64_t ready_ns);

/* Sleep until a time of tide_clock_ns. */
void tide_host_sleep_until(uint64_t deadline_ns);
/* From now on, wake the calling thread from its sleeps as punctually as the system can: by default Linux may
 * wake it up to 50 us late (timer slack). */
void tide_host_sleep_sharply(void);

#endif
