/* Room for memory that is about to be touched, on machines whose memory is all there and on machines where it grows.
 *
 * A virtual machine may begin with a part of its memory. MemTotal and MemAvailable then start far below what
 * it may have, and grow with use: at once, when its kernel needs more, or a while later, when its host has
 * seen that little is left. So the memory available now is no bound on the memory that a process can get. Yet
 * a process that just touches more than there is takes the memory that all others need and then meets the
 * out-of-memory killer: tried, it came before 64 MiB more were touched than had been called available. Hence
 * in steps, each looked at before it is touched:
 *
 *   0. A request is refused at once if it is more than the process's control groups have left, or than the machine
 *      has available and dormant (topology.h) together. On most machines nothing is dormant. Where any amount may
 *      be plugged in, the control groups alone refuse: no file tells how much the host would give, so only touching
 *      shows it.
 *   1. A step of at most 128 MiB, and at least 16 but at the end, is given out of the available memory less a margin
 *      and less all that has been given and is not touched yet: several threads touch, and each would count the same
 *      free bytes.
 *   2. Where there is none the thread waits, looking every 10 ms.
 *   3. When no step has been given or touched for 5 s, and none is being touched: given up, with the figures.
 *
 * The margin, 256 MiB or a quarter of a small request, is for other processes and for the memory that pinning
 * takes beside the pages (page tables, the driver's lists), which the next look sees. A Linux kernel that
 * makes its memory's tables when it needs them does so, as it is written, when the zone it prefers is short
 * and the one below 4 GiB still free: above the margin. (Not seen.)
 */
#ifndef TIDE_OFFLOAD_FREE_MEMORY_H
#define TIDE_OFFLOAD_FREE_MEMORY_H

#include "offload/topology.h"

#include <pthread.h>

/* The only interface to the system and the clock. */
typedef struct tide_free_memory_machine {
    uint64_t (*available_bytes)(void *context);
    uint64_t (*limit_bytes)(void *context);   /* left by the control groups; UINT64_MAX: no limit */
    uint64_t (*dormant_bytes)(void *context); /* UINT64_MAX: any number */
    uint64_t (*now_ns)(void *context);
    void (*sleep_until)(void *context, uint64_t ns);
    void *context;
} tide_free_memory_machine;

typedef struct tide_free_memory {
    const tide_free_memory_machine *machine;
    const char *what;
    uint64_t wanted_bytes;
    uint64_t margin_bytes;

    pthread_mutex_t lock; /* guards the rest; taken last, and the machine is looked at under it */
    uint64_t given_bytes;
    uint64_t untouched_bytes; /* of them */
    uint64_t free_bytes;      /* at the last look: available and not given */
    uint64_t sign_ns;
    bool over; /* stopped, or given up */
} tide_free_memory;

const tide_free_memory_machine *tide_free_memory_machine_system(void);

/* Bytes that the machine surely has left: available and dormant memory together, within the control groups'
 * limit; UINT64_MAX: the machine does not say. Where any amount may be plugged in, only available memory
 * counts, for memory plugged in so far is in use or available already. A caller that knows that more will
 * come asks for it. */
uint64_t tide_free_memory_most_bytes(const tide_free_memory_machine *machine);

/* `wanted_bytes` are going to be touched by any threads; `what`, a constant, is for messages. NO_MEMORY, and nothing to
 * close: so much can't be had. */
tide_status tide_free_memory_open(tide_free_memory *memory, const char *what, uint64_t wanted_bytes,
                                  const tide_free_memory_machine *machine);
void tide_free_memory_close(tide_free_memory *memory);
bool tide_free_memory_is_valid(const tide_free_memory *memory);

/* The next step to touch, 1 to `most_bytes` bytes of it; sleeps until there is room. NO_MEMORY, with all figures: there is none
 * and none comes; or the room was stopped. */
tide_status tide_free_memory_take(tide_free_memory *memory, uint64_t most_bytes, uint64_t *bytes);
/* Count so many of the bytes taken as touched: they have been, or will not be. */
void tide_free_memory_touched(tide_free_memory *memory, uint64_t bytes);
/* Give nothing any more: whoever sleeps in tide_free_memory_take() fails soon. */
void tide_free_memory_stop(tide_free_memory *memory);

#endif
