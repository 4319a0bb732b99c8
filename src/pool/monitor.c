#include "src/pool/monitor.h"

#include <assert.h>
#include <stdio.h>

static _Thread_local const tide_monitor *held; /* the monitor that this thread holds */

void tide_monitor_init(tide_monitor *monitor)
{
    pthread_mutex_init(&monitor->lock, NULL);
    pthread_cond_init(&monitor->progress, NULL);
}

void tide_monitor_destroy(tide_monitor *monitor)
{
    pthread_cond_destroy(&monitor->progress);
    pthread_mutex_destroy(&monitor->lock);
}

void tide_monitor_lock(tide_monitor *monitor)
{
    assert(held == NULL);
    const int error = pthread_mutex_lock(&monitor->lock);
    assert(error == 0);
    (void)error;
    held = monitor;
}

void tide_monitor_unlock(tide_monitor *monitor)
{
    assert(held == monitor);
    held = NULL;
    const int error = pthread_mutex_unlock(&monitor->lock);
    assert(error == 0);
    (void)error;
}

bool tide_monitor_is_held(const tide_monitor *monitor)
{
    return held != NULL && (monitor == NULL || held == monitor);
}

void tide_monitor_progress(tide_monitor *monitor)
{
    assert(tide_monitor_is_held(monitor));
    pthread_cond_broadcast(&monitor->progress);
}

void tide_monitor_wait(tide_monitor *monitor)
{
    assert(tide_monitor_is_held(monitor));
    pthread_cond_wait(&monitor->progress, &monitor->lock);
}

void tide_monitor_fail(tide_monitor *monitor, tide_status status)
{
    assert(tide_monitor_is_held(monitor));
    assert(status != TIDE_OK);
    if (monitor->failure == TIDE_OK) {
        monitor->failure = status;
        snprintf(monitor->message, sizeof monitor->message, "%s", tide_message());
        if (status != TIDE_ERROR_NONFINITE) /* which all ranks find by themselves */
            tide_comm_abort(monitor->comm, monitor->message);
    }
    tide_monitor_progress(monitor);
}

tide_status tide_monitor_failure(const tide_monitor *monitor)
{
    assert(tide_monitor_is_held(monitor));
    return monitor->failure == TIDE_OK ? TIDE_OK : tide_fail(monitor->failure, "%s", monitor->message);
}

void tide_monitor_clear(tide_monitor *monitor)
{
    assert(tide_monitor_is_held(monitor));
    monitor->failure = TIDE_OK;
}

tide_status tide_monitor_keep(tide_monitor *monitor, tide_status status)
{
    assert(!tide_monitor_is_held(monitor));
    if (status == TIDE_OK || status == TIDE_ERROR_ARGUMENT || status == TIDE_ERROR_STATE)
        return status;
    tide_monitor_lock(monitor);
    tide_monitor_fail(monitor, status);
    tide_monitor_unlock(monitor);
    return status;
}
