/* The thread of a stream that runs on the host's processors: each of the host device's, and a GPU's host executor.
 *
 * Signals that people send are blocked in it: they belong to the program's own threads (faults reach their handler on any).
 * It may be bound to a NUMA node, and with it the OpenMP team that its functions make, which is no larger than asked for
 * nor than the node.
 */
#ifndef TIDE_OFFLOAD_STREAM_THREAD_H
#define TIDE_OFFLOAD_STREAM_THREAD_H

#include "offload/device_common.h"

#include <pthread.h>

typedef struct tide_stream_thread_options {
    tide_stream role; /* names it, "tide-host", for debuggers and messages */
    bool bound;       /* to `node` (topology.h); a wish: elsewhere it is only slower */
    int32_t node;
    uint32_t threads;           /* for parallel regions inside functions; > 0 */
    void (*threads_set)(int);   /* omp_set_num_threads; NULL: the one found here, if any */
    void (*run)(void *context); /* the thread's work; it ends when this returns */
    void *context;
} tide_stream_thread_options;

/* Returns when the thread has begun and is where it belongs, so that its first allocations count as the
 * device's, however busy the machine. *team (unless NULL) is the number of threads that a team of it may
 * have. Joined by the caller. NO_MEMORY: there is no thread to be had. */
tide_status tide_stream_thread_start(const tide_stream_thread_options *options, pthread_t *thread,
                                     uint32_t *team);

#endif
