/* Writes bash's completion: a function that knows the words that each command takes, and which of them are on
 * the line already. It does not need the package bash-completion, which, if it is installed, finds the file
 * by its name. */
#include "tools/pages/pages.h"

#include <stdlib.h>
#include <string.h>

static const char head[] =
    "# What bash completes behind tidepool. Made from the tables of options; tools/pages/ in tidepool's "
    "source.\n"
    "\n"
    "_tidepool_words() # WORD...: those that go on from what is typed\n"
    "{\n"
    "    local name\n"
    "    for name; do\n"
    "        [[ $name == \"$word\"* ]] && COMPREPLY+=(\"$name\")\n"
    "    done\n"
    "}\n"
    "\n"
    "_tidepool_options() # OPTION...: those that are not there yet; with a + in front, that may be there\n"
    "{\n"
    "    local name\n"
    "    for name; do\n"
    "        [[ $name != +* && $given == *\" $name \"* ]] || _tidepool_words \"${name#+}\"\n"
    "    done\n"
    "}\n"
    "\n"
    "_tidepool_files() # -f: files and folders; -d: folders\n"
    "{\n"
    "    local name\n"
    "    compopt -o filenames 2>/dev/null\n"
    "    while IFS= read -r name; do\n"
    "        COMPREPLY+=(\"$name\")\n"
    "    done < <(compgen \"$1\" -- \"$word\")\n"
    "}\n"
    "\n"
    "_tidepool()\n"
    "{\n"
    "    local word=${COMP_WORDS[COMP_CWORD]} option=${COMP_WORDS[COMP_CWORD - 1]} given=' ' command i\n"
    "    COMPREPLY=()\n"
    "    # --option=value is three words to bash.\n"
    "    if [[ $word == '=' ]]; then\n"
    "        word=\n"
    "    elif [[ $option == '=' ]]; then\n"
    "        option=${COMP_WORDS[COMP_CWORD - 2]}\n"
    "    fi\n"
    "    for ((i = 1; i < ${#COMP_WORDS[@]}; i++)); do\n"
    "        ((i == COMP_CWORD)) || given+=\"${COMP_WORDS[i]} \"\n"
    "    done\n";

static bool has_value(const tide_option *option)
{
    return tide_option_is_named(option) && option->kind != TIDE_OPTION_FLAG;
}

/* Writes the values of an option, if all or some of them are known; returns whether they are. */
static bool values_write(const tide_option *option, FILE *out)
{
    char *words = tide_option_words(option);
    bool files = tide_option_takes_files(option), folders = tide_option_takes(option, "DIR");
    bool known = *words != '\0' || files || folders;
    if (known)
        fprintf(out, "        %s)\n", option->name);
    if (*words != '\0')
        fprintf(out, "            _tidepool_words%s\n", words);
    if (files || folders)
        fprintf(out, "            _tidepool_files %s\n", files ? "-f" : "-d");
    if (known)
        fputs("            return\n            ;;\n", out);
    free(words);
    return known;
}

/* Writes the values of all options. Nothing is completed for an option with unknown values, since only the
 * user knows them. */
static void all_values_write(const tide_option_table *table, FILE *out)
{
    bool known[TIDE_OPTIONS_MAX] = {false};
    bool any = false;
    fputs("        case $option in\n", out);
    for (size_t i = 0; i < table->count; i++)
        known[i] = has_value(&table->options[i]) && values_write(&table->options[i], out);
    for (size_t i = 0; i < table->count; i++)
        if (has_value(&table->options[i]) && !known[i]) {
            fprintf(out, "%s%s", any ? " | " : "        ", table->options[i].name);
            any = true;
        }
    if (any)
        fputs(")\n            return\n            ;;\n", out);
    fputs("        esac\n", out);
}

static void option_names_write(const tide_option_table *table, FILE *out)
{
    fprintf(out, "        _tidepool_options %s", tide_help_option.name);
    for (size_t i = 0; i < table->count; i++)
        if (tide_option_is_named(&table->options[i]))
            fprintf(out, " %s%s", table->options[i].kind == TIDE_OPTION_TEXTS ? "+" : "",
                    table->options[i].name);
    fputs("\n        ;;\n", out);
}

static void table_write(const tide_option_table *table, FILE *out)
{
    bool operands = false;
    fprintf(out, "    '%s')\n", tide_table_words(table));
    all_values_write(table, out);
    for (size_t i = 0; i < table->count; i++)
        operands = operands || table->options[i].operand;
    if (operands)
        fputs("        if [[ $word != -* ]]; then\n            _tidepool_files -f\n            return\n      "
              "  fi\n",
              out);
    option_names_write(table, out);
}

/* Completes a command of the program or, of a page with subcommands, a subcommand. */
static void command_names_write(const tide_page *page, FILE *out)
{
    fprintf(out, "    '%s')\n        if [[ $word != -* ]]; then\n            _tidepool_words", page->name);
    if (page == &tide_program_page)
        for (size_t i = 1; i < tide_page_count; i++)
            fprintf(out, " %s", tide_pages[i]->name);
    else
        for (size_t i = 0; i < page->table_count; i++)
            fprintf(out, " %s", tide_option_table_name(page->tables[i]));
    fputs("\n            return\n        fi\n", out);
    if (page == &tide_program_page)
        option_names_write(page->tables[0], out);
    else
        fprintf(out, "        _tidepool_words %s\n        ;;\n", tide_help_option.name);
}

/* Finds the command on the line: two words if the first has subcommands. */
static void command_find_write(FILE *out)
{
    fputs("    command=${COMP_WORDS[1]}\n    ((COMP_CWORD > 1)) || command=\n    case $command in\n", out);
    for (size_t i = 1; i < tide_page_count; i++)
        if (tide_page_has_commands(tide_pages[i]))
            fprintf(out,
                    "    %s)\n        ((COMP_CWORD == 2)) || command+=\" ${COMP_WORDS[2]}\"\n        ;;\n",
                    tide_pages[i]->name);
    fputs("    esac\n", out);
}

void tide_bash_write(FILE *out)
{
    fputs(head, out);
    command_find_write(out);
    fputs("    case $command in\n", out);
    for (size_t i = 0; i < tide_page_count; i++) {
        const tide_page *page = tide_pages[i];
        if (page == &tide_program_page || tide_page_has_commands(page))
            command_names_write(page, out);
        if (page != &tide_program_page)
            for (size_t t = 0; t < page->table_count; t++)
                table_write(page->tables[t], out);
    }
    fputs("    esac\n}\n\ncomplete -F _tidepool tidepool\n", out);
}
