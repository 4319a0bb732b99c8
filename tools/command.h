/* The program's subcommands. Each gets the arguments after its name and returns the exit status: 0 for
 * success, 1 for a failure, 2 for a wrong command line. */
#ifndef TIDE_TOOLS_COMMAND_H
#define TIDE_TOOLS_COMMAND_H

#include "tidepool/status.h"

enum { TIDE_EXIT_OK = 0, TIDE_EXIT_FAILURE = 1, TIDE_EXIT_USAGE = 2 };

int tide_command_plan(int count, char *const *arguments);
int tide_command_tune(int count, char *const *arguments);
int tide_command_train(int count, char *const *arguments);
int tide_command_trace(int count, char *const *arguments);
int tide_command_checkpoint(int count, char *const *arguments);
int tide_command_export(int count, char *const *arguments);
int tide_command_generate(int count, char *const *arguments);
int tide_command_info(int count, char *const *arguments);

/* Print this thread's error message as one line on stderr, after the command's name. Returns the exit status
 * that belongs to `status`. */
int tide_command_failed(const char *command, tide_status status);

#endif
