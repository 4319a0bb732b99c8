/* The pool's one lock, the condition variable that signals progress, and the failure, which stays until it is
 * cleared.
 *
 * The caller's thread and the engine's share the pool under this lock; all functions marked [lock] in the
 * headers here assert that their thread holds it. A thread that has to wait sleeps in tide_monitor_wait until
 * another calls tide_monitor_progress. No thread sleeps for the device while it holds the lock, which the
 * engine needs to make the device go on. Link and engine release it for slow calls (map, unmap, a task's
 * launches), which they make only for a command that is marked open or a running task that is busy.
 *
 * Owns the lock and the failure. Calls no other part of the pool.
 */
#ifndef TIDE_POOL_MONITOR_H
#define TIDE_POOL_MONITOR_H

#include "tidepool/types.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct tide_monitor {
    pthread_mutex_t lock;
    pthread_cond_t progress;
    tide_status failure; /* [lock] sticky: the first stays */
    char message[1024];  /* the message of the failure; clearing the failure leaves it */
} tide_monitor;

void tide_monitor_init(tide_monitor *monitor);
void tide_monitor_destroy(tide_monitor *monitor);

/* A thread holds one monitor at most. */
void tide_monitor_lock(tide_monitor *monitor);
void tide_monitor_unlock(tide_monitor *monitor);
/* Does this thread hold the monitor (NULL: any)? For assertions. */
bool tide_monitor_is_held(const tide_monitor *monitor);

/* --- [lock] --- */

/* Wake the waiting threads: something that they may wait for has changed. */
void tide_monitor_progress(tide_monitor *monitor);
/* Release the lock, sleep until tide_monitor_progress, and take the lock again. May return for no reason. */
void tide_monitor_wait(tide_monitor *monitor);
/* Keep the status and this thread's message, unless there is a failure already. */
void tide_monitor_fail(tide_monitor *monitor, tide_status status);
/* The failure, with its message written for this thread; TIDE_OK if none. */
tide_status tide_monitor_failure(const tide_monitor *monitor);
/* Clear the failure, which has been handled. */
void tide_monitor_clear(tide_monitor *monitor);

/* --- without the lock --- */

/* Return the status of a call that has begun to work; unless it is OK, ARGUMENT or STATE, keep it as the
 * failure first. */
tide_status tide_monitor_keep(tide_monitor *monitor, tide_status status);

#endif
