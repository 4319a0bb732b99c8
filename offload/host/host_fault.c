/* The handler runs in the thread that made the fault, so it takes no lock and calls only the registered
 * locate functions, snprintf and write. A lock guards registration; the handler reads the table of registered
 * clients (the devices) through atomics.
 */
#include "offload/host/host_fault.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { CLIENTS_MAX = 16, TEXT_BYTES = 512, LINE_BYTES = 640, SIGNAL_COUNT = 2 };

/* Registration writes the context last, unregistration clears it first, and the handler reads it first: so
 * the handler sees a complete client or none. */
typedef struct client {
    _Atomic(tide_host_fault_locate) locate;
    _Atomic(void *) context;
} client;

static const int signals[SIGNAL_COUNT] = {SIGSEGV, SIGBUS};

static client clients[CLIENTS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* the handler does not take it */
static unsigned client_count;
static struct sigaction before[SIGNAL_COUNT];
static atomic_flag reported = ATOMIC_FLAG_INIT;

static void line_write(const void *address, const char *text)
{
    /* glibc's snprintf neither locks nor allocates for these conversions. */
    char line[LINE_BYTES];
    int length = snprintf(line, sizeof line, "tidepool: fault at %p: %s\n", address, text);
    if (length >= LINE_BYTES)
        length = LINE_BYTES - 1;
    if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0)
        return; /* standard error is closed */
}

static void report(const void *address)
{
    char text[TEXT_BYTES];
    for (unsigned i = 0; i < CLIENTS_MAX; i++) {
        void *context = atomic_load(&clients[i].context);
        tide_host_fault_locate locate = atomic_load(&clients[i].locate);
        if (context == NULL || !locate(context, address, text, sizeof text))
            continue;
        if (!atomic_flag_test_and_set(&reported))
            line_write(address, text);
        return;
    }
}

/* Call the handler that was installed before. If there was none, restore the default action: when this
 * handler returns, the access is repeated, and the same signal ends the process. */
static void pass_on(int number, siginfo_t *info, void *machine_context)
{
    const struct sigaction *previous = &before[number == signals[1]];
    if (previous->sa_flags & SA_SIGINFO)
        previous->sa_sigaction(number, info, machine_context);
    else if (previous->sa_handler != SIG_DFL && previous->sa_handler != SIG_IGN)
        previous->sa_handler(number);
    else
        (void)signal(number, SIG_DFL);
}

static void on_fault(int number, siginfo_t *info, void *machine_context)
{
    int saved_errno = errno;
    if (info->si_code > 0) /* the kernel sent it, so there is an address */
        report(info->si_addr);
    errno = saved_errno;
    pass_on(number, info, machine_context);
}

static void handler_remove(int count)
{
    for (int i = 0; i < count; i++) {
        struct sigaction now;
        bool ours = sigaction(signals[i], NULL, &now) == 0 && (now.sa_flags & SA_SIGINFO) != 0 &&
                    now.sa_sigaction == on_fault;
        if (ours)
            /* can't fail: these actions were installed before */
            (void)sigaction(signals[i], &before[i], NULL);
    }
}

static tide_status handler_install(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < SIGNAL_COUNT; i++)
        if (sigaction(signals[i], &action, &before[i]) != 0) {
            tide_status status = tide_fail(TIDE_ERROR_UNSUPPORTED, "no handler for signal %d: %s", signals[i],
                                           strerror(errno));
            handler_remove(i);
            return status;
        }
    return TIDE_OK;
}

static client *client_find(const void *context)
{
    for (unsigned i = 0; i < CLIENTS_MAX; i++)
        if (atomic_load(&clients[i].context) == context)
            return &clients[i];
    return NULL;
}

tide_status tide_host_fault_register(tide_host_fault_locate locate, void *context)
{
    assert(locate != NULL && context != NULL);
    pthread_mutex_lock(&lock);
    tide_status status = TIDE_OK;
    client *place = client_find(NULL);
    if (place == NULL)
        status = tide_fail(TIDE_ERROR_STATE, "more than %d devices with a fault handler", CLIENTS_MAX);
    else if (client_count == 0)
        status = handler_install();
    if (status == TIDE_OK) {
        atomic_store(&place->locate, locate);
        atomic_store(&place->context, context);
        client_count++;
    }
    pthread_mutex_unlock(&lock);
    return status;
}

void tide_host_fault_unregister(void *context)
{
    pthread_mutex_lock(&lock);
    client *place = client_find(context);
    if (place != NULL) {
        atomic_store(&place->context, NULL);
        if (--client_count == 0)
            handler_remove(SIGNAL_COUNT);
    }
    pthread_mutex_unlock(&lock);
}
