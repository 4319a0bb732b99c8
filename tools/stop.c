#include "tools/stop.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t end_seen, save_seen;

static void on_end(int number)
{
    if (end_seen == 0)
        end_seen = number;
    if (number != SIGINT && number != SIGTERM)
        return;
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
}

static void on_save(int number)
{
    save_seen = number;
}

static void install(int number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
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

static const char *name_of(int number)
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
    return name_of(end_seen);
}

const char *tide_stop_save_take(void)
{
    const int number = save_seen;
    if (number == 0)
        return NULL;
    save_seen = 0;
    return name_of(number);
}
