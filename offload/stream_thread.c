#include "offload/stream_thread.h"

#include "offload/topology.h"

#include <assert.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* NULL unless the process has an OpenMP runtime (the kernels' folder links one, this folder does not). Each
 * thread has its own setting of the number of threads, so every stream sets it. */
extern void omp_set_num_threads(int count) __attribute__((weak));

/* The new thread's arguments. They lie on the stack of the starting thread, which waits until the new one has
 * begun. */
typedef struct beginning {
    const tide_stream_thread_options *options;
    uint32_t team;
    sem_t begun;
} beginning;

/* Bind the calling thread as the options say. Returns how many threads a team of it may have: as many as
 * asked for, or only as many as the node has processors if binding has left it fewer. */
static uint32_t place(const tide_stream_thread_options *options)
{
    const uint32_t before = tide_topology_processors();
    if (options->bound)
        (void)tide_topology_bind_thread(options->node);
    const uint32_t left = tide_topology_processors();
    return left < before && left < options->threads ? left : options->threads;
}

static void *thread_main(void *argument)
{
    beginning *start = argument;
    const tide_stream_thread_options options = *start->options;
    void (*const threads_set)(int) = options.threads_set != NULL ? options.threads_set : omp_set_num_threads;
    start->team = place(&options);
    if (threads_set != NULL)
        threads_set((int)start->team);
    (void)sem_post(&start->begun);
    options.run(options.context);
    return NULL;
}

static void signals_block(sigset_t *before)
{
    sigset_t blocked;
    sigfillset(&blocked);
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    (void)pthread_sigmask(SIG_SETMASK, &blocked, before);
}

tide_status tide_stream_thread_start(const tide_stream_thread_options *options, pthread_t *thread,
                                     uint32_t *team)
{
    beginning start = {.options = options};
    sigset_t signals_before;
    char name[16];
    assert(options->threads > 0);
    (void)sem_init(&start.begun, 0, 0);
    signals_block(&signals_before);
    const int error = pthread_create(thread, NULL, thread_main, &start);
    (void)pthread_sigmask(SIG_SETMASK, &signals_before, NULL);
    while (error == 0 && sem_wait(&start.begun) != 0)
        ; /* a signal interrupted the wait */
    (void)sem_destroy(&start.begun);
    if (error != 0)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no thread for stream %s: %s", tide_stream_name(options->role),
                         strerror(error));
    (void)snprintf(name, sizeof name, "tide-%.10s", tide_stream_name(options->role));
    (void)pthread_setname_np(*thread, name); /* for debuggers only */
    if (team != NULL)
        *team = start.team;
    return TIDE_OK;
}
