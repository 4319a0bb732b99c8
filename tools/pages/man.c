/* Writes a man page with roff's man macros. Paragraphs are filled here, so that no line of the file is long
 * and every sentence begins a line, which is how roff recognizes the end of a sentence. */
#include "tide_config.h"
#include "tools/pages/pages.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_WIDTH = 66, LETTER_BYTES = 8 };

#define BOLD   "\\fB"
#define ITALIC "\\fI"
#define ROMAN  "\\fR"

/* ---- characters ---- */

/* Escapes a character that roff would otherwise replace by a typographic one: a dash stays a minus, quotes
 * stay straight. */
static const char *letter_escape(char letter, char text[LETTER_BYTES])
{
    switch (letter) {
    case '-':
        return "\\-";
    case '\\':
        return "\\e";
    case '\'':
        return "\\(aq";
    case '`':
        return "\\(ga";
    case '^':
        return "\\(ha";
    case '~':
        return "\\(ti";
    default:
        text[0] = letter, text[1] = '\0';
        return text;
    }
}

static void letters_write(const char *text, size_t length, FILE *out)
{
    char escaped[LETTER_BYTES];
    for (size_t i = 0; i < length; i++)
        fputs(letter_escape(text[i], escaped), out);
}

static void plain_write(const char *text, FILE *out)
{
    letters_write(text, strlen(text), out);
}

/* Writes a command line: words in capitals are placeholders, in italics; the rest is typed as it is, in
 * bold. */
static void usage_write(const char *text, FILE *out)
{
    while (*text != '\0') {
        size_t capitals = 0;
        while (isupper((unsigned char)text[capitals]))
            capitals++;
        size_t marks = strspn(text, " []|");
        size_t length = capitals > 0 ? capitals : marks > 0 ? marks : 1;
        if (capitals == 0 && marks == 0)
            while (text[length] != '\0' && !isupper((unsigned char)text[length]) &&
                   strchr(" []|", text[length]) == NULL)
                length++;
        fputs(capitals > 0 ? ITALIC : marks > 0 ? ROMAN : BOLD, out);
        letters_write(text, length, out);
        text += length;
    }
    fputs(ROMAN, out);
}

/* ---- paragraphs ---- */

typedef struct filling {
    FILE *out;
    size_t column; /* in the current line; 0: at its beginning */
    bool quoted;   /* inside backquotes */
} filling;

/* Length of the option or page name at the beginning of the word; 0: there is none. */
static size_t name_length(const char *word, size_t length)
{
    size_t name = 0;
    bool dashes = length > 2 && word[0] == '-' && word[1] == '-';
    while (name < length && (islower((unsigned char)word[name]) || word[name] == '-'))
        name++;
    return dashes || (name > 0 && name < length && strncmp(word + name, "(1)", 3) == 0) ? name : 0;
}

static void word_write(filling *line, const char *word, size_t length)
{
    FILE *out = line->out;
    if (line->column == 0 && strchr(".'", word[0]) != NULL)
        fputs("\\&", out);
    for (size_t i = 0; i < length; i++) {
        bool begins = i == 0 || (!isalnum((unsigned char)word[i - 1]) && word[i - 1] != '-');
        size_t name = line->quoted || !begins ? 0 : name_length(word + i, length - i);
        if (word[i] == '`') {
            line->quoted = !line->quoted;
            fputs(line->quoted ? BOLD : ROMAN, out);
        } else if (name > 0) {
            fputs(BOLD, out);
            letters_write(word + i, name, out);
            fputs(ROMAN, out);
            i += name - 1;
        } else {
            letters_write(word + i, 1, out);
        }
    }
    line->column += length;
}

/* Writes one paragraph, filled, and ends its last line. */
static void paragraph_write(const char *text, size_t length, FILE *out)
{
    filling line = {.out = out};
    const char *end = text + length;
    while (text < end) {
        size_t word = strcspn(text, " \n");
        if (word > (size_t)(end - text))
            word = (size_t)(end - text);
        if (word == 0) {
            text++;
            continue;
        }
        if (line.column > 0) {
            bool sentence = text[-2] == '.' && isupper((unsigned char)*text) && !line.quoted;
            bool full = line.column + 1 + word > LINE_WIDTH;
            fputc(sentence || full ? '\n' : ' ', out);
            line.column = sentence || full ? 0 : line.column + 1;
        }
        word_write(&line, text, word);
        text += word;
    }
    fputc('\n', out);
}

static void item_write(const char *line, size_t length, FILE *out)
{
    size_t term = strcspn(line, "\t");
    char *name = strndup(line, term);
    if (name == NULL)
        abort();
    fputs(".TP\n", out);
    if (strchr(name, '_') != NULL) { /* the name of an environment variable */
        fputs(BOLD, out);
        plain_write(name, out);
        fputs(ROMAN, out);
    } else {
        usage_write(name, out);
    }
    fputc('\n', out);
    paragraph_write(line + term + 1, length - term - 1, out);
    free(name);
}

/* Writes lines that all begin with four blanks; the page's own indentation replaces those. */
static void code_write(const char *lines, size_t length, FILE *out)
{
    const char *end = lines + length;
    fputs(".RS 4\n.nf\n", out);
    while (lines < end) {
        size_t line = strcspn(lines, "\n");
        fputs(strchr(".'", lines[4]) != NULL ? "\\&" : "", out);
        letters_write(lines + 4, line - 4, out);
        fputc('\n', out);
        lines += line + 1;
    }
    fputs(".fi\n.RE\n", out);
}

static bool line_is_code(const char *line)
{
    return strncmp(line, "    ", 4) == 0;
}

static bool line_is_item(const char *line)
{
    return line[strcspn(line, "\t\n")] == '\t';
}

/* The length of the next part: an item's line, or all lines of a paragraph or of a block of commands. */
static size_t part_length(const char *text)
{
    size_t length = strcspn(text, "\n");
    if (line_is_item(text))
        return length;
    while (text[length] == '\n' && text[length + 1] != '\n' && text[length + 1] != '\0' &&
           line_is_code(text) == line_is_code(text + length + 1) && !line_is_item(text + length + 1))
        length += 1 + strcspn(text + length + 1, "\n");
    return length;
}

/* Writes a text in the form that page.h describes. The first paragraph of a section needs no macro before
 * it. */
static void text_write(const char *text, bool begins, FILE *out)
{
    while (*text != '\0') {
        size_t length = part_length(text);
        if (length > 0 && !line_is_item(text) && !begins)
            fputs(".PP\n", out);
        if (line_is_code(text))
            code_write(text, length, out);
        else if (line_is_item(text))
            item_write(text, length, out);
        else if (length > 0)
            paragraph_write(text, length, out);
        text += length + (text[length] == '\n');
        begins = false;
    }
}

/* ---- parts of a page ---- */

static void section_write(const char *title, const char *text, FILE *out)
{
    if (text == NULL)
        return;
    fprintf(out, ".SH %s\n", title);
    text_write(text, true, out);
}

/* Writes the usage line of a table, which is in its summary. */
static void synopsis_write(const tide_option_table *table, FILE *out)
{
    static const char begin[] = "usage: ";
    const char *usage = table->summary;
    if (strncmp(usage, begin, strlen(begin)) == 0)
        usage += strlen(begin);
    char *line = strndup(usage, strcspn(usage, "\n"));
    if (line == NULL)
        abort();
    usage_write(line, out);
    fputc('\n', out);
    free(line);
}

static void option_write(const tide_option *option, FILE *out)
{
    char *text = NULL;
    size_t bytes = 0;
    const char *metavar = tide_option_metavar(option);
    FILE *memory = open_memstream(&text, &bytes);
    if (memory == NULL)
        abort();
    tide_option_tell(option, memory);
    fclose(memory);
    fputs(".TP\n", out);
    usage_write(option->name, out);
    if (metavar != NULL && tide_option_is_named(option)) {
        fputc(' ', out);
        usage_write(metavar, out);
    }
    fputc('\n', out);
    paragraph_write(text, bytes, out);
    free(text);
}

static void group_write(const char *title, FILE *out)
{
    fputs(".SS ", out);
    fputc(toupper((unsigned char)*title), out);
    plain_write(title + 1, out);
    fputc('\n', out);
}

static void options_write(const tide_option_table *table, FILE *out)
{
    for (size_t i = 0; i < table->count; i++) {
        if (table->options[i].name == NULL)
            group_write(table->options[i].help, out);
        else
            option_write(&table->options[i], out);
    }
}

static void page_name_write(const tide_page *page, FILE *out)
{
    fputs("tidepool", out);
    if (*page->name != '\0')
        fprintf(out, "\\-%s", page->name);
}

static void head_write(const tide_page *page, FILE *out)
{
    fputs(".\\\" Made from the tables of options; tools/pages/ in tidepool's source.\n.TH TIDEPOOL", out);
    fputs(*page->name != '\0' ? "\\-" : "", out);
    for (const char *letter = page->name; *letter != '\0'; letter++)
        fputc(toupper((unsigned char)*letter), out);
    fputs(" 1 \"\" \"tidepool " TIDE_VERSION "\" \"User Commands\"\n.nh\n.ad l\n.SH NAME\n", out);
    page_name_write(page, out);
    fprintf(out, " \\- ");
    plain_write(page->title, out);
    fputs("\n.SH SYNOPSIS\n", out);
    for (size_t i = 0; i < page->table_count; i++) {
        fputs(i > 0 ? ".br\n" : "", out);
        synopsis_write(page->tables[i], out);
    }
}

static void program_commands_write(FILE *out)
{
    fputs(".SH COMMANDS\n", out);
    for (size_t i = 1; i < tide_page_count; i++) {
        fprintf(out, ".TP\n" BOLD "%s" ROMAN "\n", tide_pages[i]->name);
        plain_write(tide_pages[i]->title, out);
        fprintf(out, ": see\n" BOLD "tidepool\\-%s" ROMAN "(1)\n", tide_pages[i]->name);
    }
}

static void own_commands_write(const tide_page *page, FILE *out)
{
    fputs(".SH COMMANDS\n", out);
    for (size_t i = 0; i < page->table_count; i++) {
        fprintf(out, ".SS %s\n", page->tables[i]->command);
        text_write(tide_table_text(page->tables[i]), true, out);
        options_write(page->tables[i], out);
    }
}

static void see_also_write(const tide_page *page, FILE *out)
{
    bool first = true;
    fputs(".SH SEE ALSO\n", out);
    for (size_t i = 0; i < tide_page_count; i++) {
        if (tide_pages[i] == page)
            continue;
        fputs(first ? BOLD : ",\n" BOLD, out);
        page_name_write(tide_pages[i], out);
        fputs(ROMAN "(1)", out);
        first = false;
    }
    fputc('\n', out);
}

void tide_man_write(const tide_page *page, FILE *out)
{
    head_write(page, out);
    fputs(".SH DESCRIPTION\n", out);
    if (!tide_page_has_commands(page))
        text_write(tide_table_text(page->tables[0]), true, out);
    text_write(page->description != NULL ? page->description : "", tide_page_has_commands(page), out);
    if (page == &tide_program_page)
        program_commands_write(out);
    else if (tide_page_has_commands(page))
        own_commands_write(page, out);
    fputs(".SH OPTIONS\n", out);
    option_write(&tide_help_option, out);
    if (!tide_page_has_commands(page))
        options_write(page->tables[0], out);
    section_write("EXIT STATUS", page->statuses, out);
    section_write("ENVIRONMENT", page->environment, out);
    section_write("FILES", page->files, out);
    section_write("EXAMPLES", page->examples, out);
    see_also_write(page, out);
}
