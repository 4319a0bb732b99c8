/* Starts the thread of a stream whose commands run on the host's processors: of each stream of the host
 * device, and of a GPU's host executor.
 *
 * The thread blocks all signals except those of faults, so that signals sent to the process reach the
 * program's own threads. It may be bound to a NUMA node, together with the OpenMP team that its functions
 * make; the team is no larger than asked for, nor than the node.
 */
#ifndef TIDE_OFFLOAD_STREAM_THREAD_H
#define TIDE_OFFLOAD_STREAM_THREAD_H

#include "offload/device_common.h"

#include <pthread.h>

typedef struct tide_stream_thread_options {
    tide_stream role; /* for the thread's name ("tide-host") and for messages */
    bool bound;       /* bind it to `node` (topology.h) if possible, for speed */
    int32_t node;
    uint32_t threads;           /* threads of a parallel region inside a function; > 0 */
    void (*threads_set)(int);   /* the process's omp_set_num_threads; NULL: look it up */
    void (*run)(void *context); /* the thread's work; when it returns, the thread ends */
    void *context;
} tide_stream_thread_options;

/* Start the thread, which the caller joins. Returns when the thread has begun and is bound: so its first
 * allocations always happen while the device is being opened. *team (unless NULL) is the number of threads
 * that a team of its functions may have. NO_MEMORY: no thread can be made. */
tide_status tide_stream_thread_start(const tide_stream_thread_options *options, pthread_t *thread,
                                     uint32_t *team);

#endif
