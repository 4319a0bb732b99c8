/* tidepool: trains models larger than GPU memory. Chooses the subcommand; each has a file of its own. */
#include "tide_config.h"
#include "tools/command.h"
#include "tools/options.h"

#include <stdio.h>
#include <string.h>

typedef struct command {
    const char *name;
    int (*run)(int count, char *const *arguments);
    const char *help;
} command;

static const command commands[] = {
    {"train", tide_command_train, "train a model, within budgets of device and host memory"},
    {"info", tide_command_info, "this machine, its measured rates, and what this build has"},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

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

static int help(FILE *out)
{
    fputs("tidepool trains models larger than GPU memory.\n\n"
          "usage: tidepool COMMAND [OPTIONS]\n\n",
          out);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-8s %s\n", commands[i].name, commands[i].help);
    fputs("\n  --version, --help; tidepool train --help lists its options\n", out);
    return TIDE_EXIT_OK;
}

static int unknown_command(const char *word)
{
    const char *nearest = NULL;
    for (size_t i = 0; i < COMMANDS; i++)
        if (tide_word_distance(word, commands[i].name) <= 2)
            nearest = commands[i].name;
    if (nearest != NULL)
        fprintf(stderr, "tidepool: unknown command %s; did you mean %s?\n", word, nearest);
    else
        fprintf(stderr, "tidepool: unknown command %s (see tidepool --help)\n", word);
    return TIDE_EXIT_USAGE;
}

int main(int count, char **arguments)
{
    if (count < 2) {
        fputs("tidepool: a command is missing (train or info; see tidepool --help)\n", stderr);
        return TIDE_EXIT_USAGE;
    }
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(arguments[1], commands[i].name) == 0)
            return commands[i].run(count - 2, arguments + 2);
    if (strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "-h") == 0)
        return help(stdout);
    if (strcmp(arguments[1], "--version") == 0) {
        puts("tidepool " TIDE_VERSION);
        return TIDE_EXIT_OK;
    }
    return unknown_command(arguments[1]);
}
