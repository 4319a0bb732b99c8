/* Decides how much memory threads may touch next, also on virtual machines whose memory grows while it is
 * used.
 *
 * A virtual machine may start with a part of its memory. MemTotal and MemAvailable then begin far below what
 * it may have, and grow with use: at once, when its kernel needs more, or a while later, when its host has
 * seen that little is left. So a process may get more memory than is available now. Yet a process that simply
 * touches more than that takes the memory that all others need and is then killed by the out-of-memory
 * killer; in an experiment that happened before the process had touched 64 MiB more than were called
 * available. Therefore threads touch memory in steps, and ask before each:
 *
 *   0. A request is refused at once if the process's control groups have less than that left, or if the
 *      machine has less available and dormant memory (topology.h) together. On most machines nothing is
 *      dormant.
 *      Where any amount may be plugged in, only the control groups refuse: no file says how much the host
 *      would give, so only touching shows it.
 *   1. A step is at most 128 MiB, and at least 16 MiB but for the last one. It must fit into the available
 *      memory less a margin and less all steps that were given and are not touched yet: several threads
 *      touch, and each would count the same free bytes.
 *   2. If no step fits, the thread waits and looks again every 10 ms.
 *   3. When no step has been given or touched for 5 s, and none is being touched, the request fails, and its
 *      message has all figures.
 *
 * The margin, 256 MiB or a quarter of a smaller request, is for other processes and for the memory that
 * pinning takes beside the pages (page tables, the driver's lists), which counts as used at the next look. A
 * Linux kernel that sets up the tables of its memory only when needed does so, by its source, when the zone
 * that it prefers is short while the one below 4 GiB is still free; that point lies above the margin. (We
 * have not seen it happen.)
 */
#ifndef TIDE_OFFLOAD_FREE_MEMORY_H
#define TIDE_OFFLOAD_FREE_MEMORY_H

#include "offload/topology.h"

#include <pthread.h>

/* The only way to the system and the clock. */
typedef struct tide_free_memory_machine {
    uint64_t (*available_bytes)(void *context);
    /* bytes left in the control groups; UINT64_MAX: there is no limit */
    uint64_t (*limit_bytes)(void *context);
    uint64_t (*dormant_bytes)(void *context); /* UINT64_MAX: any amount may be plugged in */
    uint64_t (*now_ns)(void *context);
    void (*sleep_until)(void *context, uint64_t ns);
    void *context;
} tide_free_memory_machine;

typedef struct tide_free_memory {
    const tide_free_memory_machine *machine;
    const char *what;
    uint64_t wanted_bytes;
    uint64_t margin_bytes;

    pthread_mutex_t lock; /* Guards the fields below. Taken last; held during calls of the machine. */
    uint64_t given_bytes;
    uint64_t untouched_bytes; /* bytes given out and not touched yet */
    uint64_t free_bytes;      /* bytes that were available and not given out at the last look */
    uint64_t sign_ns;         /* when a step was last given or touched */
    bool over;                /* the request was stopped, or has failed by rule 3 */
} tide_free_memory;

const tide_free_memory_machine *tide_free_memory_machine_system(void);

/* Bytes that the machine surely has left: available and dormant memory together, within the control groups'
 * limit; UINT64_MAX: the machine does not say. Where any amount may be plugged in, only available memory
 * counts, since memory plugged in so far is in use or available already. A caller who knows that more will
 * come asks for more all the same. */
uint64_t tide_free_memory_most_bytes(const tide_free_memory_machine *machine);

/* Begin a request of `wanted_bytes`, which any threads will touch; `what`, a constant text, is for messages.
 * NO_MEMORY by rule 0; then there is nothing to close. */
tide_status tide_free_memory_open(tide_free_memory *memory, const char *what, uint64_t wanted_bytes,
                                  const tide_free_memory_machine *machine);
void tide_free_memory_close(tide_free_memory *memory);
bool tide_free_memory_is_valid(const tide_free_memory *memory);

/* Wait until a step of 1 to `most_bytes` bytes may be touched, and give it out. NO_MEMORY: no memory is left
 * and none comes (the message has all figures), or the request was stopped. */
tide_status tide_free_memory_take(tide_free_memory *memory, uint64_t most_bytes, uint64_t *bytes);
/* Count this many of the bytes given out as touched. Also for bytes that will not be touched after all. */
void tide_free_memory_touched(tide_free_memory *memory, uint64_t bytes);
/* Give out nothing more: threads that wait in tide_free_memory_take() fail soon. */
void tide_free_memory_stop(tide_free_memory *memory);

#endif
