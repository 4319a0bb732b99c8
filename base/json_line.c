/* Builds JSON text piece by piece: see json_line.h. */
#include "base/json_line.h"

#include "base/text.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void tide_json_begin(tide_json_line *line, char *text, size_t capacity)
{
    assert(capacity > 0);
    *line = (tide_json_line){.text = text, .capacity = capacity};
    text[0] = '\0';
}

static void append(tide_json_line *line, const char *text, size_t length)
{
    if (line->overflow || length >= line->capacity - line->length) {
        line->overflow = true;
        return;
    }
    memcpy(line->text + line->length, text, length);
    line->length += length;
    line->text[line->length] = '\0';
}

static void append_text(tide_json_line *line, const char *text)
{
    append(line, text, strlen(text));
}

static bool is_plain(char letter)
{
    return (unsigned char)letter >= 0x20 && (unsigned char)letter < 0x80 && letter != '"' && letter != '\\';
}

/* How many bytes of the text need no escape. */
static size_t plain_bytes(const char *text)
{
    size_t bytes = 0, letter;
    do {
        while (is_plain(text[bytes]))
            bytes++;
        letter = (unsigned char)text[bytes] < 0x80 ? 0 : tide_utf8_letter_bytes(text + bytes);
        bytes += letter;
    } while (letter > 0);
    return bytes;
}

/* Writes a byte as an escape. A byte that is not UTF-8, as in some paths, becomes U+FFFD, since JSON can't
 * hold it. */
static void append_escaped(tide_json_line *line, unsigned char byte)
{
    char escaped[8];
    snprintf(escaped, sizeof escaped, byte < 0x20 ? "\\u%04x" : byte < 0x80 ? "\\%c" : "\\ufffd", byte);
    append_text(line, escaped);
}

static void append_quoted(tide_json_line *line, const char *text)
{
    append(line, "\"", 1);
    for (;;) {
        const size_t plain = plain_bytes(text);
        append(line, text, plain);
        text += plain;
        if (*text == '\0')
            break;
        append_escaped(line, (unsigned char)*text++);
    }
    append(line, "\"", 1);
}

/* Writes a comma if another value comes before, and the member's name. */
static void value_begin(tide_json_line *line, const char *name)
{
    if (line->comma)
        append(line, ",", 1);
    line->comma = true;
    if (name == NULL)
        return;
    append_quoted(line, name);
    append(line, ":", 1);
}

void tide_json_open(tide_json_line *line, const char *name, char bracket)
{
    assert(bracket == '{' || bracket == '[');
    value_begin(line, name);
    append(line, &bracket, 1);
    line->comma = false;
}

void tide_json_close(tide_json_line *line, char bracket)
{
    assert(bracket == '}' || bracket == ']');
    append(line, &bracket, 1);
    line->comma = true;
}

void tide_json_text(tide_json_line *line, const char *name, const char *value)
{
    value_begin(line, name);
    append_quoted(line, value);
}

void tide_json_count(tide_json_line *line, const char *name, uint64_t value)
{
    char digits[20];
    size_t first = sizeof digits;
    do {
        digits[--first] = (char)('0' + value % 10);
        value /= 10;
    } while (value > 0);
    value_begin(line, name);
    append(line, digits + first, sizeof digits - first);
}

void tide_json_bool(tide_json_line *line, const char *name, bool value)
{
    value_begin(line, name);
    append_text(line, value ? "true" : "false");
}

void tide_json_null(tide_json_line *line, const char *name)
{
    value_begin(line, name);
    append_text(line, "null");
}

void tide_json_real(tide_json_line *line, const char *name, double value)
{
    char number[40];
    snprintf(number, sizeof number, "%.17g", value);
    value_begin(line, name);
    append_text(line, isfinite(value) ? number : "null");
}

bool tide_json_end(tide_json_line *line)
{
    append(line, "\n", 1);
    return !line->overflow;
}
