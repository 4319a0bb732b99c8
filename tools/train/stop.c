#include "tools/train/stop.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t end_seen, end_count, save_seen;
/* Time of the first SIGINT or SIGTERM. Only the handler uses it, while both signals are blocked. */
static uint64_t first_ns;
static volatile sig_atomic_t first_seen;

/* Whether this signal comes a second or more after the first: then the user has sent it on purpose. */
static bool is_second(void)
{
    const uint64_t now_ns = tide_clock_ns();
    if (first_seen)
        return now_ns - first_ns >= 1000000000;
    first_seen = 1;
    first_ns = now_ns;
    return false;
}

static void on_end(int number)
{
    const int kept = errno;
    if (end_seen == 0)
        end_seen = number;
    end_count++;
    if ((number == SIGINT || number == SIGTERM) && is_second()) {
        (void)signal(number, SIG_DFL);
        (void)raise(number); /* the process gets it when this handler returns */
    }
    errno = kept;
}

static void on_save(int number)
{
    save_seen = number;
}

static void install(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGINT);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaction(number, &action, NULL);
}

static bool is_ignored(int number)
{
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

void tide_stop_install(void)
{
    install(SIGINT, on_end);
    install(SIGTERM, on_end);
    install(SIGXCPU, on_end);
    if (!is_ignored(SIGHUP))
        install(SIGHUP, on_end);
}

void tide_stop_install_run(void)
{
    tide_stop_install();
    install(SIGUSR1, on_save);
    install(SIGUSR2, on_save);
    (void)signal(SIGPIPE, SIG_IGN);
}

bool tide_stop_wanted(void)
{
    return end_seen != 0;
}

bool tide_stop_not_wanted(void *unused)
{
    (void)unused;
    return !tide_stop_wanted();
}

unsigned tide_stop_count(void)
{
    return (unsigned)end_count;
}

int tide_stop_number(void)
{
    return end_seen;
}

const char *tide_stop_signal_name(int number)
{
    switch (number) {
    case SIGINT:
        return "SIGINT";
    case SIGHUP:
        return "SIGHUP";
    case SIGXCPU:
        return "SIGXCPU";
    case SIGUSR1:
        return "SIGUSR1";
    case SIGUSR2:
        return "SIGUSR2";
    default:
        return "SIGTERM";
    }
}

const char *tide_stop_name(void)
{
    return tide_stop_signal_name(end_seen);
}

int tide_stop_save_take(void)
{
    const int number = save_seen;
    if (number != 0)
        save_seen = 0;
    return number;
}
