#include "tools/stop.h"

#include <signal.h>

static volatile sig_atomic_t seen;

static void on_signal(int number)
{
    if (seen == 0)
        seen = number;
    (void)signal(SIGINT, SIG_DFL);
    (void)signal(SIGTERM, SIG_DFL);
}

void tide_stop_install(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    (void)signal(SIGXFSZ, SIG_IGN);
}

bool tide_stop_wanted(void)
{
    return seen != 0;
}

const char *tide_stop_name(void)
{
    return seen == SIGINT ? "SIGINT" : "SIGTERM";
}
