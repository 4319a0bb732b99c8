/* Emulates a link of limited speed between host and device, so that a copy lasts as long as it would over
 * PCIe. For each direction a deadline says when the link would have carried all copies so far. A thread
 * copies, adds its bytes to the deadline, and sleeps until then; it does not spin.
 *
 * A sleep ends late, by 60 us or, on a busy machine, by milliseconds, while a real link would have begun the
 * next copy. Therefore a copy's time on the link begins when the copy was ready to begin, not when its thread
 * woke: 4 MiB copies queued back to back then run at 0.99 of the rate, instead of 0.95 (at 2.4 GB/s).
 */
#ifndef TIDE_OFFLOAD_HOST_LINK_H
#define TIDE_OFFLOAD_HOST_LINK_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct tide_host_link {
    double bytes_per_second; /* 0: not throttled */
    pthread_mutex_t lock;    /* guards free_ns; never held together with another lock */
    uint64_t free_ns[2];     /* the deadline of each direction */
} tide_host_link;

void tide_host_link_init(tide_host_link *link, double bytes_per_second);
void tide_host_link_destroy(tide_host_link *link);

/* Copy `bytes`, and return when the link would have carried them. `ready_ns`, in the past, is when the copy
 * could have begun if the link had been free. */
void tide_host_link_copy(tide_host_link *link, void *to, const void *from, uint64_t bytes, bool to_device,
                         uint64_t ready_ns);

/* Sleep until a time of tide_clock_ns. */
void tide_host_sleep_until(uint64_t deadline_ns);
/* Make the calling thread's sleeps end as punctually as the system can. By default Linux may wake a thread up
 * to 50 us late (timer slack). */
void tide_host_sleep_sharply(void);

#endif
