/* Command-line options from one table: parsing, defaults, ranges, help and suggestions all read it, so none
 * of them can tell another story.
 *
 * A table entry says where in the caller's struct the value goes. Defaults are the texts that help shows,
 * parsed like a value from the command line. Every failure is one line: what, where, what would be right.
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
    TIDE_OPTION_TEXT,     /* const char *; points into argv */
    TIDE_OPTION_TEXTS,    /* tide_option_texts; may be given again and again */
    TIDE_OPTION_CHOICE,   /* int; the index in `choices` */
    TIDE_OPTION_COUNT,    /* uint64_t in [least, most] */
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
    const char *name; /* "--steps"; NULL begins a group in the help and `help` is its title */
    tide_option_kind kind;
    size_t offset;       /* of the value in the caller's struct */
    const char *metavar; /* "N", "SIZE", "PATH"; CHOICE: "auto|none|all"; NULL for FLAG and SWITCH */
    const char *value;   /* the default as text; NULL: none, the struct's zero stands */
    double least, most;  /* COUNT, REAL, SIZE, RATE; both 0: any value >= 0 */
    bool required;       /* a command line without it is an error */
    bool operand; /* an argument without dashes is its value: of several, in order. `name` is "FILE", kind no
                               FLAG, metavar NULL */
    const char *value_help; /* shown as the default where `value` is NULL, e.g. "what the run needs" */
    /* that shells offer as values, as in "gpt2, gpt2-xl"; NULL: those in `metavar`, if any */
    const char *words;
    const char *help;
} tide_option;

typedef struct tide_option_table {
    const char *command; /* "tidepool train", begins every message */
    const char *title;   /* what it does, in a phrase: in the list of a command's commands; else NULL */
    const char *summary; /* help's first lines: the usage; then, after an empty line, what it does */
    const tide_option *options;
    size_t count;
} tide_option_table;

/* Whether the option of that name was on the command line that tide_options_parse has read. */
bool tide_options_given(const tide_option_table *table, const bool *given, const char *name);

/* The command's last word: "train". */
const char *tide_option_table_name(const tide_option_table *table);

/* Set every field of *values to its default, then read the arguments: "--name value" or "--name=value", operands wherever
 * they stand, and behind "--" operands alone; "-" is one.
 * *given, one bool an option, says which were on the command line (may be NULL). ARGUMENT  unknown or
 * repeated option, missing or bad value, missing required option; the message is complete */
TIDE_NODISCARD tide_status tide_options_parse(const tide_option_table *table, int count,
                                              char *const *arguments, void *values, bool *given);

/* Whether `name` is one of the arguments before any "--". */
bool tide_options_asked(int count, char *const *arguments, const char *name);

/* What stands for its value: "SIZE", "on|off"; NULL for a FLAG. */
const char *tide_option_metavar(const tide_option *option);

/* Its help, range and default, as --help and the man pages have them. */
void tide_option_tell(const tide_option *option, FILE *out);

void tide_options_help(const tide_option_table *table, FILE *out);

/* Whether `name` may be what `word`, mistyped, was meant to be, and is nearer than *distance, which then falls.
 * Leading dashes do not count. */
bool tide_word_is_nearer(const char *word, const char *name, size_t *distance);

/* The table's option nearest to `word`, NULL if none is near. */
const char *tide_options_nearest(const tide_option_table *table, const char *word);

/* Letters to change, add, drop or swap with a neighbour to make one word of the other. */
size_t tide_word_distance(const char *a, const char *b);

#endif
