#include "tools/trace/trace_text.h"

#include "base/text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

/* Does the byte begin a letter of UTF-8? */
static bool begins_letter(char byte)
{
    return ((unsigned char)byte & 0xc0) != 0x80;
}

static size_t letters_of(const char *text)
{
    size_t letters = 0;
    for (; *text != '\0'; text++)
        letters += begins_letter(*text);
    return letters;
}

/* How many bytes the first `letters` letters have. */
static size_t letters_bytes(const char *text, size_t letters)
{
    size_t at = 0;
    for (; text[at] != '\0'; at++)
        if (begins_letter(text[at]) && letters-- == 0)
            break;
    return at;
}

void tide_text_add(tide_text_line *line, const char *format, ...)
{
    va_list arguments;
    size_t capacity = sizeof line->text - line->length;
    va_start(arguments, format);
    int wrote = vsnprintf(line->text + line->length, capacity, format, arguments);
    va_end(arguments);
    if (wrote > 0)
        line->length += (size_t)wrote < capacity ? (size_t)wrote : capacity - 1;
}

void tide_text_pad(tide_text_line *line, size_t column)
{
    size_t letters = letters_of(line->text);
    if (letters < column)
        tide_text_add(line, "%*s", (int)(column - letters), "");
}

bool tide_text_fits(const tide_text_line *line, size_t columns)
{
    return letters_of(line->text) <= columns;
}

static const char mark[] = "...";

enum { MARK = sizeof mark - 1 };

/* Cut the text after a word and add "...". If the word at the cut is longer than WORD, cut within it. */
static void line_cut(tide_text_line *line, size_t columns)
{
    enum { WORD = 24 };
    size_t end = letters_bytes(line->text, columns > MARK ? columns - MARK : 0),
           least = end > WORD ? end - WORD : 0;
    size_t word = end;
    while (word > least && line->text[word] != ' ')
        word--;
    end = word > least ? word : end;
    while (end > 0 && line->text[end - 1] == ' ')
        end--;
    memcpy(line->text + end, mark, sizeof mark);
}

const char *tide_text_shorten(const char *text, size_t letters, char shortened[TIDE_TEXT_NAME_BYTES])
{
    bool cut = letters_of(text) > letters;
    size_t bytes = letters_bytes(text, cut && letters > MARK ? letters - MARK : letters);
    assert(bytes + sizeof mark <= TIDE_TEXT_NAME_BYTES);
    (void)snprintf(shortened, TIDE_TEXT_NAME_BYTES, "%.*s%s", (int)bytes, text, cut ? mark : "");
    return shortened;
}

const char *tide_path_shorten(const char *path, size_t letters, char shortened[TIDE_TEXT_NAME_BYTES])
{
    size_t all = letters_of(path);
    const char *from =
        all > letters ? path + letters_bytes(path, all - (letters > MARK ? letters - MARK : 0)) : path;
    (void)snprintf(shortened, TIDE_TEXT_NAME_BYTES, "%s%s", from != path ? mark : "", from);
    return shortened;
}

void tide_text_print(tide_text_line *line, size_t columns, FILE *out)
{
    if (!tide_text_fits(line, columns))
        line_cut(line, columns);
    size_t end = strlen(line->text);
    while (end > 0 && line->text[end - 1] == ' ')
        line->text[--end] = '\0';
    tide_text_make_printable(line->text);
    fprintf(out, "%s\n", line->text);
    *line = (tide_text_line){.length = 0};
}

const char *tide_seconds_format(double seconds, char text[TIDE_TEXT_NAME_BYTES])
{
    static const char *const units[] = {"s", "ms", "us", "ns"};
    size_t unit = 0;
    double value = seconds;
    for (; unit < 3 && value != 0 && value < 0.9995; unit++)
        value *= 1000;
    int digits = unit == 3 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "%.*f %s", digits, value, units[unit]);
    return text;
}

const char *tide_bytes_format(double bytes, char text[TIDE_UNITS_TEXT_BYTES])
{
    const double most = 0x1p64; /* the first value beyond uint64_t */
    const double rounded = bytes > 0 ? bytes + 0.5 : 0;
    return tide_size_format(rounded < most ? (uint64_t)rounded : UINT64_MAX, text);
}

void tide_text_json_write(const char *text, FILE *out)
{
    fputc('"', out);
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++)
        if (*at < 0x20 || *at == '"' || *at == '\\' || *at == '<' || *at == '>' || *at == 0x7f)
            fprintf(out, "\\u%04x", *at);
        else
            fputc(*at, out);
    fputc('"', out);
}

/* The name of the first activation that lies in the chunk; *more is how many others do. */
static const char *activation_in(const tide_trace_model *model, const tide_traced_chunk *chunk,
                                 uint32_t *more)
{
    const char *name = NULL;
    uint64_t begin = chunk->index * model->chunk_bytes, end = begin + model->chunk_bytes;
    *more = 0;
    for (uint32_t i = 0; i < model->activation_count; i++) {
        const tide_traced_activation *activation = &model->activations[i];
        uint64_t bytes =
            activation->parts *
            activation->part_bytes; /* a damaged trace may make it wrap, which only changes the name */
        if (activation->offset_bytes >= end || activation->offset_bytes + bytes <= begin)
            continue;
        *more += name != NULL;
        name = name != NULL ? name : activation->name;
    }
    return name;
}

static const char *param_in(const tide_trace_model *model, const tide_traced_chunk *chunk, uint32_t *more)
{
    uint32_t count = chunk->param_count;
    *more = count > 0 ? count - 1 : 0;
    return count > 0 ? model->params[chunk->params[0].param].name : NULL;
}

const char *tide_chunk_content(const tide_trace_model *model, uint32_t number, size_t letters,
                               char text[TIDE_TEXT_NAME_BYTES])
{
    const tide_traced_chunk *chunk = &model->chunks[number];
    uint32_t more = 0;
    bool state = chunk->space == TIDE_SPACE_STATE;
    const char *name = state ? NULL : param_in(model, chunk, &more);
    if (chunk->space == TIDE_SPACE_ACTIVATION)
        name = activation_in(model, chunk, &more);
    if (state && chunk->of_count > 0)
        name = param_in(model, &model->chunks[chunk->of[0]], &more);
    if (name == NULL)
        return strcpy(text, "-");
    char tail[32] = "";
    if (more > 0)
        (void)snprintf(tail, sizeof tail, " +%" PRIu32, more);
    const char *head = state ? "state of " : "";
    size_t most = letters > strlen(head) + strlen(tail) ? letters - strlen(head) - strlen(tail) : 1;
    bool cut = letters_of(name) > most;
    int bytes = (int)letters_bytes(name, cut && most > 3 ? most - 3 : most);
    (void)snprintf(text, TIDE_TEXT_NAME_BYTES, "%s%.*s%s%s", head, bytes < 160 ? bytes : 160, name,
                   cut ? "..." : "", tail);
    return text;
}
