/* What tidepool --generate makes of the tables of options: man pages (man.c), and completion for bash (bash.c)
 * and zsh (zsh.c). Whoever opened `out` looks at its errors. */
#ifndef TIDE_TOOLS_PAGES_H
#define TIDE_TOOLS_PAGES_H

#include "tools/page.h"

#include <stdbool.h>
#include <stdio.h>

/* With the form "man" write a command's page ("": the program's), with "bash" or "zsh" and no command what that
 * shell completes. False, and nothing is written: there is no such form or command. */
bool tide_pages_generate(const char *form, const char *command, FILE *out);

/* The man page of `page`, tidepool-NAME(1) or tidepool(1). */
void tide_man_write(const tide_page *page, FILE *out);

void tide_bash_write(FILE *out);
void tide_zsh_write(FILE *out);

/* ---- what all of them ask of the tables ---- */

/* The option --help, which is in no table. */
extern const tide_option tide_help_option;

/* Whether the command has commands of its own. */
bool tide_page_has_commands(const tide_page *page);

/* What a user types behind "tidepool" for this table: "train", "trace summary", "". */
const char *tide_table_words(const tide_option_table *table);

/* What follows the usage in the table's summary, "" if nothing does. */
const char *tide_table_text(const tide_option_table *table);

/* Stands on the command line; a group's title does not, nor does an operand's. */
bool tide_option_is_named(const tide_option *option);

/* Values that can be typed as they are, each with a blank before it: " auto host null cuda:0"; "" if there are none. The
 * caller frees it. */
char *tide_option_words(const tide_option *option);

/* Whether a value may be one that the metavar calls so: tide_option_takes(option, "FILE"). */
bool tide_option_takes(const tide_option *option, const char *name);

bool tide_option_takes_files(const tide_option *option);

#endif
