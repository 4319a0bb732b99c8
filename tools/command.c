#include "tools/command.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

int tide_command_failed(const char *name, tide_status status)
{
    const char *message = tide_message();
    size_t length = strlen(name);
    bool named = strncmp(message, name, length) == 0 && message[length] == ':';
    fflush(stdout);
    if (named)
        fprintf(stderr, "%s\n", message);
    else
        fprintf(stderr, "%s: %s\n", name, message);
    return status == TIDE_ERROR_ARGUMENT ? TIDE_EXIT_USAGE : TIDE_EXIT_FAILURE;
}
