/* Command-line options from a table. Parsing, defaults, ranges, help and suggestions all read the same table,
 * so they can't contradict each other.
 *
 * A table entry holds the offset of the member of the caller's struct that gets the value. A default is the
 * text that help shows, parsed like a value from the command line. Every error is reported in one line that
 * says what is wrong, where, and what would be right.
 */
#ifndef TIDE_TOOLS_OPTIONS_H
#define TIDE_TOOLS_OPTIONS_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum tide_option_kind {
    TIDE_OPTION_FLAG = 0, /* bool; takes no value */
    TIDE_OPTION_SWITCH,   /* bool; on or off */
    TIDE_OPTION_TEXT,     /* const char *, which points into argv */
    TIDE_OPTION_TEXTS,    /* tide_option_texts; the option may be repeated */
    TIDE_OPTION_CHOICE,   /* int, or an enum of its size: the index among the words of `metavar` */
    TIDE_OPTION_COUNT,    /* uint64_t in [least, most] */
    TIDE_OPTION_COUNT32,  /* uint32_t in [least, most]; most is below 2^32 */
    TIDE_OPTION_REAL,     /* double in [least, most] */
    TIDE_OPTION_SIZE,     /* uint64_t bytes in [least, most] */
    TIDE_OPTION_RATE,     /* double, bytes a second, in [least, most] */
} tide_option_kind;

enum { TIDE_OPTION_TEXTS_MAX = 64, TIDE_OPTIONS_MAX = 128 };

/* All values of one option, in the order in which they were given; they point into argv. */
typedef struct tide_option_texts {
    const char *items[TIDE_OPTION_TEXTS_MAX];
    uint32_t count;
} tide_option_texts;

/* The texts with blanks between them, "" without any; the caller frees it. NULL: no memory. */
char *tide_option_texts_join(const tide_option_texts *texts);

typedef struct tide_option {
    /* "--steps"; NULL: the entry begins a group in the help, and `help` is the group's title */
    const char *name;
    tide_option_kind kind;
    size_t offset;       /* of the value in the caller's struct */
    const char *metavar; /* "N", "SIZE", "PATH"; CHOICE: "auto|none|all"; NULL for FLAG and SWITCH */
    const char *value;   /* the default, as text; NULL: the struct's member stays as it is */
    double least, most;  /* for COUNT, REAL, SIZE, RATE; both 0: any value >= 0 */
    bool required;       /* a command line without the option is an error */
    /* a positional argument: its value is an argument without dashes, and several operands take such
     * arguments in order. `name` is "FILE", say, `metavar` NULL, `kind` not FLAG */
    bool operand;
    const char *value_help; /* the default as help shows it if `value` is NULL: "what the run needs" */
    /* values that shells complete, as in "gpt2, gpt2-xl"; NULL: those in `metavar`, if any */
    const char *words;
    const char *help;
} tide_option;

typedef struct tide_option_table {
    const char *command; /* "tidepool train"; every message begins with it */
    const char *title;   /* of a subcommand: its line in the list of subcommands; else NULL */
    const char *summary; /* first lines of the help: the usage, an empty line, and the command's purpose */
    const tide_option *options;
    size_t count;
} tide_option_table;

/* Whether the option of that name was on the command line. `given` is the array that tide_options_parse
 * filled in. */
bool tide_options_given(const tide_option_table *table, const bool *given, const char *name);

/* The last word of the command: "train". */
const char *tide_option_table_name(const tide_option_table *table);

/* Set every member whose option has a default. */
void tide_options_default(const tide_option_table *table, void *values);

/* Set the defaults, then read the arguments. An option is "--name value" or
 * "--name=value". Operands may stand anywhere; "-" is an operand, and after "--" there are only operands.
 * Sets *given (may be NULL), one bool for each option: was it on the command line? ARGUMENT, with a complete
 * message: an unknown or repeated option, a missing or bad value, a missing required option. */
TIDE_NODISCARD tide_status tide_options_parse(const tide_option_table *table, int count,
                                              char *const *arguments, void *values, bool *given);

/* Whether `name` is one of the arguments before any "--". */
bool tide_options_asked(int count, char *const *arguments, const char *name);

/* The placeholder of the option's value in help: "SIZE", "on|off"; NULL for a FLAG. */
const char *tide_option_metavar(const tide_option *option);

/* Print the option's help, range and default, as --help and the man pages show them. */
void tide_option_tell(const tide_option *option, FILE *out);

void tide_options_help(const tide_option_table *table, FILE *out);

/* Whether `word` may be a misspelling of `name`, and differs from it in fewer letters than *distance. If so,
 * sets *distance to the number of letters that differ. Leading dashes do not count. */
bool tide_word_is_nearer(const char *word, const char *name, size_t *distance);

/* The table's option that is most similar to `word`; NULL: none is similar enough. */
const char *tide_options_nearest(const tide_option_table *table, const char *word);

/* The number of letters to change, insert, remove or swap with a neighbour that turns one word into the
 * other. */
size_t tide_word_distance(const char *a, const char *b);

#endif
