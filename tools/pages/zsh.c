/* Writes zsh's completion: a function for each table, in the notation of zsh's _arguments. */
#include "tools/pages/pages.h"

#include <stdlib.h>
#include <string.h>

/* ---- quoting ---- */

/* Writes text inside single quotes, with a backslash before each of `marks`, which are special to zsh's
 * completion functions. */
static void text_write(const char *text, const char *marks, FILE *out)
{
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            fputs("'\\''", out);
        else
            fprintf(out, "%s%c", strchr(marks, *text) != NULL ? "\\" : "", *text);
    }
}

/* Writes a function's name: for "trace summary", _tidepool_trace_summary. */
static void function_write(const char *words, FILE *out)
{
    fputs("_tidepool_", out);
    for (; *words != '\0'; words++)
        fputc(*words == ' ' || *words == '-' ? '_' : *words, out);
}

/* ---- an option ---- */

/* Writes the completion of an option's value: nothing, words, files, or words and files. */
static void action_write(const tide_option *option, FILE *out)
{
    char *words = tide_option_words(option);
    if (*words != '\0' && tide_option_takes_files(option)) {
        fprintf(out, " _tidepool_words_and_files%s", words);
    } else if (*words != '\0') {
        fputc('(', out);
        text_write(words + 1, ":\\", out);
        fputc(')', out);
    } else {
        fputs(tide_option_takes_files(option)    ? "_files"
              : tide_option_takes(option, "DIR") ? "_files -/"
                                                 : " ",
              out);
    }
    free(words);
}

/* Writes an argument of _arguments. After an option that is `alone` zsh completes nothing else. */
static void option_write(const tide_option *option, bool alone, FILE *out)
{
    bool value = option->kind != TIDE_OPTION_FLAG;
    bool longer = strncmp(option->name, "--", 2) == 0; /* the value may also follow "=" */
    fprintf(out, " \\\n        '%s%s%s%s[", alone ? "(- : *)" : "",
            option->kind == TIDE_OPTION_TEXTS ? "*" : "", option->name, value && longer ? "=" : "");
    text_write(option->help, "[]\\", out);
    fputc(']', out);
    if (value) {
        fputc(':', out);
        text_write(tide_option_metavar(option), ":\\", out);
        fputc(':', out);
        action_write(option, out);
    }
    fputc('\'', out);
}

static void table_write(const tide_option_table *table, FILE *out)
{
    bool operands = false;
    function_write(tide_table_words(table), out);
    fputs("()\n{\n    _arguments", out);
    option_write(&tide_help_option, true, out);
    for (size_t i = 0; i < table->count; i++) {
        operands = operands || table->options[i].operand;
        if (tide_option_is_named(&table->options[i]))
            option_write(&table->options[i], false, out);
    }
    fputs(operands ? " \\\n        '*:FILE:_files'" : "", out);
    fputs("\n}\n\n", out);
}

/* ---- commands ---- */

static void command_list_write(const tide_page *page, FILE *out)
{
    fputs("        local -a commands=(\n", out);
    if (page == &tide_program_page) {
        for (size_t i = 1; i < tide_page_count; i++) {
            fprintf(out, "            '%s:", tide_pages[i]->name);
            text_write(tide_pages[i]->title, ":\\", out);
            fputs("'\n", out);
        }
    } else {
        for (size_t i = 0; i < page->table_count; i++) {
            fprintf(out, "            '%s:", tide_option_table_name(page->tables[i]));
            text_write(page->tables[i]->title, ":\\", out);
            fputs("'\n", out);
        }
    }
    fputs("        )\n        _describe -t commands command commands\n        ;;\n", out);
}

/* Writes the function that completes a command and then calls the command's own function. */
static void commands_write(const tide_page *page, FILE *out)
{
    bool program = page == &tide_program_page;
    fputs("_tidepool", out);
    if (!program)
        fprintf(out, "_%s", page->name);
    fputs("()\n{\n    local curcontext=$curcontext state state_descr line\n    typeset -A opt_args\n"
          "    _arguments -C",
          out);
    option_write(&tide_help_option, true, out);
    if (program)
        for (size_t i = 0; i < page->tables[0]->count; i++)
            option_write(&page->tables[0]->options[i], true, out);
    fputs(" \\\n        '1: :->command' '*:: :->rest' && return\n    case $state in\n    command)\n", out);
    command_list_write(page, out);
    fputs("    rest)\n        case $words[1] in\n", out);
    size_t count = program ? tide_page_count : page->table_count;
    for (size_t i = program; i < count; i++) {
        const char *words = program ? tide_pages[i]->name : tide_table_words(page->tables[i]);
        fprintf(out, "        %s) ", program ? words : tide_option_table_name(page->tables[i]));
        function_write(words, out);
        fputs(" ;;\n", out);
    }
    fputs("        esac\n        ;;\n    esac\n}\n\n", out);
}

void tide_zsh_write(FILE *out)
{
    fputs("#compdef tidepool\n"
          "# What zsh completes behind tidepool. Made from the tables of options; tools/pages/ in tidepool's "
          "source.\n\n"
          "_tidepool_words_and_files() # WORD...\n{\n"
          "    _alternative \"values:value:($*)\" 'files:file:_files'\n}\n\n",
          out);
    for (size_t i = 1; i < tide_page_count; i++) {
        for (size_t t = 0; t < tide_pages[i]->table_count; t++)
            table_write(tide_pages[i]->tables[t], out);
        if (tide_page_has_commands(tide_pages[i]))
            commands_write(tide_pages[i], out);
    }
    commands_write(&tide_program_page, out);
    fputs("_tidepool \"$@\"\n", out);
}
