/* The pool's one lock, the condition that says that something moved, and the failure that stays.
 *
 * The caller's thread and the engine's share the pool under this lock; everything marked [lock] in the headers here asserts
 * that its thread holds it. Who finds that he has to wait sleeps in tide_monitor_wait until somebody tells of progress.
 * Nobody sleeps for the device with the lock, which the engine needs to make the device go on: slow calls (map, unmap, a
 * task's launches) are made without it, by link and engine alone, on a command that is marked open or a running task that is busy.
 *
 * Owns the lock and the failure. Calls nobody.
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
    char message[1024];  /* [lock] its message, which stays when the failure is cleared */
} tide_monitor;

void tide_monitor_init(tide_monitor *monitor);
void tide_monitor_destroy(tide_monitor *monitor);

/* A thread holds one monitor at most. */
void tide_monitor_lock(tide_monitor *monitor);
void tide_monitor_unlock(tide_monitor *monitor);
/* By this thread; NULL: any. For assertions. */
bool tide_monitor_is_held(const tide_monitor *monitor);

/* --- [lock] --- */

/* Wake whoever waits: something that he may wait for has changed. */
void tide_monitor_progress(tide_monitor *monitor);
/* Sleep until then; meanwhile the lock is free. May return for no reason. */
void tide_monitor_wait(tide_monitor *monitor);
/* Keep the status and this thread's message, unless there is a failure already. */
void tide_monitor_fail(tide_monitor *monitor, tide_status status);
/* The failure, with its message written for this thread; TIDE_OK if none. */
tide_status tide_monitor_failure(const tide_monitor *monitor);
/* It has been dealt with. */
void tide_monitor_clear(tide_monitor *monitor);

/* --- without the lock --- */

/* What a call returns that has begun to work: from now on sticky, unless it is the caller's fault. */
tide_status tide_monitor_keep(tide_monitor *monitor, tide_status status);

#endif
