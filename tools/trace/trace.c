/* tidepool trace: chooses the subcommand. */
#include "tools/trace/trace.h"

#include "tools/command.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef struct subcommand {
    const tide_option_table *table; /* also gives the subcommand's name */
    int (*run)(int count, char *const *arguments);
} subcommand;

static const subcommand subcommands[] = {
    {&tide_trace_summary_options, tide_trace_summary_command},
    {&tide_trace_html_options, tide_trace_html_command},
    {&tide_trace_perfetto_options, tide_trace_perfetto_command},
    {&tide_trace_diff_options, tide_trace_diff_command},
};

enum { SUBCOMMANDS = sizeof subcommands / sizeof subcommands[0] };

static const char *name_of(size_t i)
{
    return tide_option_table_name(subcommands[i].table);
}

static int help(void)
{
    fputs("usage: tidepool trace SUBCOMMAND FILE [OPTIONS]\n\n"
          "What the trace of a run tells (tidepool train --trace FILE).\n\n",
          stdout);
    for (size_t i = 0; i < SUBCOMMANDS; i++)
        printf("  %-9s %s\n", name_of(i), subcommands[i].table->title);
    puts("\n  tidepool trace SUBCOMMAND --help lists its options");
    return TIDE_EXIT_OK;
}

static int unknown(const char *word)
{
    const char *nearest = NULL;
    size_t distance = SIZE_MAX;
    for (size_t i = 0; i < SUBCOMMANDS; i++)
        if (tide_word_is_nearer(word, name_of(i), &distance))
            nearest = name_of(i);
    if (nearest != NULL)
        fprintf(stderr, "tidepool trace: unknown subcommand %s; did you mean %s?\n", word, nearest);
    else
        fprintf(stderr, "tidepool trace: unknown subcommand %s (see tidepool trace --help)\n", word);
    return TIDE_EXIT_USAGE;
}

int tide_command_trace(int count, char *const *arguments)
{
    if (count == 0) {
        fputs("tidepool trace: a subcommand is missing (see tidepool trace --help)\n", stderr);
        return TIDE_EXIT_USAGE;
    }
    for (size_t i = 0; i < SUBCOMMANDS; i++)
        if (strcmp(arguments[0], name_of(i)) == 0)
            return subcommands[i].run(count - 1, arguments + 1);
    if (strcmp(arguments[0], "--help") == 0 || strcmp(arguments[0], "-h") == 0)
        return help();
    return unknown(arguments[0]);
}
