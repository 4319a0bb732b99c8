/* tidepool: trains models larger than GPU memory. This file chooses the subcommand; each subcommand has a
 * folder of its own. */
#include "base/write_error.h"
#include "tide_config.h"
#include "tools/command.h"
#include "tools/page.h"
#include "tools/pages/pages.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

typedef struct command {
    const tide_page *page; /* also gives the command's name */
    int (*run)(int count, char *const *arguments);
} command;

static const command commands[] = {
    {&tide_plan_page, tide_command_plan},
    {&tide_tune_page, tide_command_tune},
    {&tide_train_page, tide_command_train},
    {&tide_trace_page, tide_command_trace},
    {&tide_checkpoint_page, tide_command_checkpoint},
    {&tide_export_page, tide_command_export},
    {&tide_generate_page, tide_command_generate},
    {&tide_info_page, tide_command_info},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static int help(FILE *out)
{
    fprintf(out, "%s\n\n", tide_program_page.tables[0]->summary);
    for (size_t i = 0; i < COMMANDS; i++)
        fprintf(out, "  %-12s %s\n", commands[i].page->name, commands[i].page->title);
    fputs("\n  --version, --help, --generate man|bash|zsh; tidepool train --help lists its options\n", out);
    return TIDE_EXIT_OK;
}

static int unknown_command(const char *word)
{
    static const char *const questions[] = {"--help", "--version", "--generate"};
    const char *nearest = NULL;
    size_t distance = SIZE_MAX;
    for (size_t i = 0; i < COMMANDS; i++)
        if (tide_word_is_nearer(word, commands[i].page->name, &distance))
            nearest = commands[i].page->name;
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++)
        if (tide_word_is_nearer(word, questions[i], &distance))
            nearest = questions[i];
    if (nearest != NULL)
        fprintf(stderr, "tidepool: unknown command %s; did you mean %s?\n", word, nearest);
    else
        fprintf(stderr, "tidepool: unknown command %s (see tidepool --help)\n", word);
    return TIDE_EXIT_USAGE;
}

static int generate(int count, char **words)
{
    if (count >= 1 && count <= 2 && tide_pages_generate(words[0], count == 2 ? words[1] : "", stdout))
        return TIDE_EXIT_OK;
    fputs("tidepool --generate: must be followed by man, man COMMAND, bash or zsh\n", stderr);
    return TIDE_EXIT_USAGE;
}

static int command_run(int count, char **arguments)
{
    for (size_t i = 0; i < COMMANDS; i++)
        if (strcmp(arguments[1], commands[i].page->name) == 0)
            return commands[i].run(count - 2, arguments + 2);
    if (strcmp(arguments[1], "--help") == 0 || strcmp(arguments[1], "-h") == 0)
        return help(stdout);
    if (strcmp(arguments[1], "--version") == 0) {
        puts("tidepool " TIDE_VERSION);
        return TIDE_EXIT_OK;
    }
    if (strcmp(arguments[1], "--generate") == 0)
        return generate(count - 2, arguments + 2);
    return unknown_command(arguments[1]);
}

/* Fails the command if its output was lost: a full disk or a closed stdout may be noticed only when the last
 * of the output is flushed. Prints nothing if the command has failed already, because it has said why. */
static int output_check(int exit_status)
{
    bool lost_before = ferror(stdout) != 0;
    errno = 0;
    bool lost_now = fflush(stdout) != 0;
    if (exit_status != TIDE_EXIT_OK || !(lost_before || lost_now))
        return exit_status;
    fprintf(stderr, "tidepool: standard output could not be written%s%s\n", lost_now ? ": " : "",
            lost_now ? tide_write_error(errno) : "");
    return TIDE_EXIT_FAILURE;
}

/* Opens /dev/null, for reading, in place of each standard stream that was closed at start. Otherwise the next
 * file that is opened would get the stream's descriptor, and printed text would go into that file. */
static void standard_streams_take(void)
{
    int taken;
    do
        taken = open("/dev/null", O_RDONLY);
    while (taken >= 0 && taken <= STDERR_FILENO);
    if (taken > STDERR_FILENO)
        (void)close(taken);
}

/* Raises the limit of open files as far as the system permits, because a run keeps every shard of its data
 * open. A failure is ignored here: opening the shard that is one too many reports it. */
static void open_files_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int count, char **arguments)
{
    standard_streams_take();
    if (count < 2) {
        fputs("tidepool: a command is missing (plan, tune, train, trace, checkpoint, export, generate or "
              "info; see "
              "tidepool --help)\n",
              stderr);
        return TIDE_EXIT_USAGE;
    }
    open_files_raise();
    /* a write beyond the file size limit then fails, and its caller reports that */
    (void)signal(SIGXFSZ, SIG_IGN);
    return output_check(command_run(count, arguments));
}
