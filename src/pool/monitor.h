/* The pool's only lock, the condition variable that signals progress, and the pool's failure, which stays
 * until tide_monitor_clear.
 *
 * The caller's thread and the engine's share the pool under this lock; all functions marked [lock] in the
 * headers here assert that their thread holds it. A thread that has to wait sleeps in tide_monitor_wait until
 * another calls tide_monitor_progress. No thread waits for the device while it holds the lock, since the
 * device may need work that the engine can enqueue only with the lock. Link and engine release it for slow
 * calls (map, unmap, a task's launches), and mark the command open or the running task busy first, so that no
 * other thread takes it.
 *
 * Owns the lock and the failure, of which it tells the other ranks. Calls no other part of the pool.
 */
#ifndef TIDE_POOL_MONITOR_H
#define TIDE_POOL_MONITOR_H

#include "tidepool/comm.h"
#include "tidepool/types.h"

#include <pthread.h>
#include <stdbool.h>

typedef struct tide_monitor {
    pthread_mutex_t lock;
    pthread_cond_t progress;
    tide_comm *comm;     /* of several ranks: aborted at the first failure; NULL: one rank */
    tide_status failure; /* [lock] the first failure since the last clear */
    char message[1024];  /* the failure's message; a clear does not erase it */
} tide_monitor;

void tide_monitor_init(tide_monitor *monitor);
void tide_monitor_destroy(tide_monitor *monitor);

/* A thread may hold only one monitor at a time. */
void tide_monitor_lock(tide_monitor *monitor);
void tide_monitor_unlock(tide_monitor *monitor);
/* Does this thread hold the monitor, or any monitor if it is NULL? For assertions. */
bool tide_monitor_is_held(const tide_monitor *monitor);

/* --- [lock] --- */

/* Wake the waiting threads: something that they may wait for has changed. */
void tide_monitor_progress(tide_monitor *monitor);
/* Release the lock, sleep until tide_monitor_progress, and take the lock again. May return without
 * progress. */
void tide_monitor_wait(tide_monitor *monitor);
/* Make the status and this thread's message the pool's failure, unless it has one already. */
void tide_monitor_fail(tide_monitor *monitor, tide_status status);
/* The failure, TIDE_OK if none. Sets this thread's message to the failure's. */
tide_status tide_monitor_failure(const tide_monitor *monitor);
/* Clear the failure, after it has been handled. */
void tide_monitor_clear(tide_monitor *monitor);

/* --- without the lock --- */

/* Return `status`; first make it the pool's failure, unless it is OK, ARGUMENT or STATE. For calls that have
 * already changed something. */
tide_status tide_monitor_keep(tide_monitor *monitor, tide_status status);

#endif
