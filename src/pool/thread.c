/* The engine's thread: runs rounds while there is something to do, else sleeps in the device's park(). */
#include "src/pool/engine.h"

#include <assert.h>
#include <signal.h>

/* Can the end of a command on the device give the engine something to do? If not, the engine's thread sleeps
 * until tide_engine_ring and leaves the lock to the caller. */
static bool awaits_device(const tide_engine *engine)
{
    return engine->commands.count > 0 || engine->link->used || !tide_norm_is_known(engine->norm) ||
           tide_running_tasks_busy(engine->running_tasks) || tide_manager_may_act(engine->manager);
}

/* For an assertion: if the engine waits for nothing on the device, it has seen all its commands end.
 * Exceptions: zeroing on the in stream, whose end the engine does not query; a test that skips a wait site;
 * and a failure, after which a stream may still hold a wait whose command the device refused. */
__attribute__((unused)) static bool device_has_nothing_pending(const tide_engine *engine)
{
    tide_device_statistics device;
    engine->context->device->ops->statistics(engine->context->device, &device);
    return engine->context->options.checks.skip_wait_site > 0 || engine->monitor->failure != TIDE_OK ||
           (device.pending[TIDE_STREAM_OUT] == 0 && device.pending[TIDE_STREAM_HOST] == 0 &&
            device.pending[TIDE_STREAM_UPDATE] == 0);
}

static void *engine_main(void *context)
{
    tide_engine *engine = context;
    tide_device *device = engine->context->device;
    tide_monitor_lock(engine->monitor);
    while (!engine->stopping) {
        assert(tide_monitor_is_held(engine->monitor));
        const uint64_t ticket = device->ops->doorbell(device);
        if (tide_engine_round(engine))
            continue;
        const bool events = awaits_device(engine);
        assert(events || device_has_nothing_pending(engine));
        tide_monitor_unlock(engine->monitor);
        const tide_status status = device->ops->park(device, ticket, events);
        tide_monitor_lock(engine->monitor);
        if (status != TIDE_OK)
            tide_monitor_fail(engine->monitor, status);
    }
    tide_monitor_unlock(engine->monitor);
    return NULL;
}

/* The engine's thread blocks all signals except SIGSEGV and SIGBUS, so that the program's own threads handle
 * them. */
tide_status tide_engine_start(tide_engine *engine)
{
    assert(!engine->started && engine->manager != NULL && engine->commands.manager == engine->manager);
    engine->stopping = false;
    if (!engine->context->device->ops->asynchronous)
        return TIDE_OK;
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&engine->thread, NULL, engine_main, engine);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: the engine's thread could not be started");
    engine->started = true;
    return TIDE_OK;
}

void tide_engine_stop(tide_engine *engine)
{
    if (!engine->started)
        return;
    assert(!tide_monitor_is_held(NULL));
    tide_monitor_lock(engine->monitor);
    engine->stopping = true;
    tide_monitor_unlock(engine->monitor);
    engine->context->device->ops->ring(engine->context->device);
    pthread_join(engine->thread, NULL);
    engine->started = false;
}
