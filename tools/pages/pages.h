/* The outputs of tidepool --generate, made from the option tables: man pages (man.c), completion for bash
 * (bash.c) and zsh (zsh.c). The caller, who opened `out`, checks it for errors. */
#ifndef TIDE_TOOLS_PAGES_H
#define TIDE_TOOLS_PAGES_H

#include "tools/page.h"

#include <stdbool.h>
#include <stdio.h>

/* With the form "man", write a command's page ("": the program's). With "bash" or "zsh", and "" as command,
 * write that shell's completion. Returns false, and writes nothing, if there is no such form or command. */
bool tide_pages_generate(const char *form, const char *command, FILE *out);

/* Write the man page of `page`: tidepool-NAME(1) or tidepool(1). */
void tide_man_write(const tide_page *page, FILE *out);

void tide_bash_write(FILE *out);
void tide_zsh_write(FILE *out);

/* ---- questions about the tables ---- */

/* The option --help, which every command has and no table lists. */
extern const tide_option tide_help_option;

/* Whether the command has subcommands. */
bool tide_page_has_commands(const tide_page *page);

/* The words that a user types after "tidepool" for this table: "train", "trace summary", "". */
const char *tide_table_words(const tide_option_table *table);

/* The text after the usage in the table's summary; "" if there is none. */
const char *tide_table_text(const tide_option_table *table);

/* Whether the entry is an option that is typed by its name: neither the title of a group nor an operand. */
bool tide_option_is_named(const tide_option *option);

/* The option's values that can be typed as they are, each after a blank: " auto host null cuda:0"; "": none.
 * The caller frees the text. */
char *tide_option_words(const tide_option *option);

/* Whether `name` is one of the option's placeholders: tide_option_takes(option, "FILE"). */
bool tide_option_takes(const tide_option *option, const char *name);

bool tide_option_takes_files(const tide_option *option);

#endif
