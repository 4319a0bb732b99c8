/* Makes the man pages and what shells complete, from the tables that the program reads its command lines with.
 *
 * usage: pages FOLDER      writes tidepool.1, tidepool-COMMAND.1, tidepool (bash) and _tidepool (zsh) there
 *
 * It runs where tidepool is built, so it is linked with the tables alone. */
#include "tools/pages/pages.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

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

/* Alternatives in capitals stand for something; of a counted one the first can be typed. */
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

/* ---- files ---- */

typedef struct page_file {
    FILE *file;
    char path[PATH_BYTES];
} page_file;

static void fail(const char *path)
{
    fprintf(stderr, "pages: %s: %s\n", path, strerror(errno));
    exit(1);
}

static FILE *file_open(page_file *output, const char *folder, const char *name)
{
    snprintf(output->path, sizeof output->path, "%s/%s", folder, name);
    output->file = fopen(output->path, "w");
    if (output->file == NULL)
        fail(output->path);
    return output->file;
}

static void file_close(page_file *output)
{
    bool failed = ferror(output->file) != 0;
    if (fclose(output->file) != 0 || failed)
        fail(output->path);
}

int main(int count, char **arguments)
{
    page_file output;
    if (count != 2) {
        fputs("usage: pages FOLDER\n", stderr);
        return 2;
    }
    for (size_t i = 0; i < tide_page_count; i++) {
        char name[64];
        const char *command = tide_pages[i]->name;
        snprintf(name, sizeof name, "tidepool%s%s.1", *command != '\0' ? "-" : "", command);
        tide_man_write(tide_pages[i], file_open(&output, arguments[1], name));
        file_close(&output);
    }
    tide_bash_write(file_open(&output, arguments[1], "tidepool"));
    file_close(&output);
    tide_zsh_write(file_open(&output, arguments[1], "_tidepool"));
    file_close(&output);
    return 0;
}
