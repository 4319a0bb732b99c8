/* Questions about option tables that man.c, bash.c and zsh.c have in common. */
#include "tools/pages/pages.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const tide_option tide_help_option = {
    .name = "--help", .kind = TIDE_OPTION_FLAG, .help = "say how it is used, and do no more"};

bool tide_page_has_commands(const tide_page *page)
{
    return page->table_count > 1;
}

const char *tide_table_words(const tide_option_table *table)
{
    const char *blank = strchr(table->command, ' ');
    return blank != NULL ? blank + 1 : "";
}

const char *tide_table_text(const tide_option_table *table)
{
    const char *end = strstr(table->summary, "\n\n");
    return end != NULL ? end + 2 : "";
}

bool tide_option_is_named(const tide_option *option)
{
    return option->name != NULL && !option->operand;
}

/* Adds an alternative to the words. Its capitals are placeholders for numbers, as in cuda:N, and become 0. */
static void alternative_add(const char *text, size_t length, FILE *words)
{
    fputc(' ', words);
    for (size_t i = 0; i < length; i++)
        fputc(isupper((unsigned char)text[i]) ? '0' : text[i], words);
}

char *tide_option_words(const tide_option *option)
{
    char *text = NULL;
    size_t bytes = 0;
    const char *separators = option->words != NULL ? ", " : "|";
    const char *from = option->words != NULL ? option->words : tide_option_metavar(option);
    FILE *words = open_memstream(&text, &bytes);
    if (words == NULL)
        abort();
    while (from != NULL && *from != '\0') {
        size_t length = strcspn(from, separators);
        if (islower((unsigned char)*from))
            alternative_add(from, length, words);
        from += length;
        from += strspn(from, separators);
    }
    if (fclose(words) != 0)
        abort();
    return text;
}

bool tide_option_takes(const tide_option *option, const char *name)
{
    const char *text = option->metavar != NULL ? option->metavar : "";
    for (text += strspn(text, "|"); *text != '\0'; text += strspn(text, "|")) {
        size_t length = strcspn(text, "|");
        if (strlen(name) == length && strncmp(text, name, length) == 0)
            return true;
        text += length;
    }
    return false;
}

bool tide_option_takes_files(const tide_option *option)
{
    return tide_option_takes(option, "FILE") || tide_option_takes(option, "PATH");
}
