/* Tokens of a line: see trace_scan.h. */
#include "src/trace/trace_scan.h"

#include "src/files/utf8.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_MAX = 32, MESSAGE_BYTES = 512 };

/* ---- failures ---- */

void tide_scan_refuse(tide_trace_scan *scan, const char *format, ...)
{
    char message[MESSAGE_BYTES];
    va_list arguments;
    if (scan->status != TIDE_OK)
        return;
    va_start(arguments, format);
    (void)vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    bool named = scan->kind != NULL && scan->name != NULL;
    scan->status = tide_fail(TIDE_ERROR_ARGUMENT, "%s:%" PRIu64 ": %s%s%s%s%s", scan->path, scan->line,
                             scan->kind != NULL ? scan->kind : "", named ? " " : "", named ? scan->name : "",
                             scan->kind != NULL ? ": " : "", message);
}

void tide_scan_no_memory(tide_trace_scan *scan)
{
    if (scan->status == TIDE_OK)
        scan->status =
            tide_fail(TIDE_ERROR_NO_MEMORY, "%s:%" PRIu64 ": no memory for what comes from here on",
                      scan->path, scan->line);
}

/* What stands at the cursor, as far as a line of message may show it: up to what ends a value. */
static const char *shown(const tide_trace_scan *scan, char text[SHOWN_MAX + 4])
{
    size_t length = 0;
    bool quoted = scan->at < scan->end && *scan->at == '"';
    for (const char *at = scan->at; at < scan->end; at++) {
        if (length == SHOWN_MAX)
            return strcpy(text + length, "..."), text;
        if (!quoted && length > 0 && strchr(",]}: \t", *at) != NULL)
            break;
        text[length++] = *at >= 0x20 && *at < 0x7f ? *at : '?';
        if (quoted && length > 1 && *at == '"')
            break;
    }
    text[length] = '\0';
    return length > 0 ? text : "the line's end";
}

static void refuse_value(tide_trace_scan *scan, const char *name, const char *want)
{
    char text[SHOWN_MAX + 4];
    if (name != NULL)
        tide_scan_refuse(scan, "\"%s\" must be %s, not %s", name, want, shown(scan, text));
    else
        tide_scan_refuse(scan, "in a list: must be %s, not %s", want, shown(scan, text));
}

/* ---- what stands between values ---- */

void tide_scan_begin(tide_trace_scan *scan, const char *path, uint64_t line, const char *text, size_t bytes)
{
    assert(text[bytes] == '\0');
    *scan = (tide_trace_scan){.path = path, .line = line, .at = text, .end = text + bytes};
}

static void blanks_skip(tide_trace_scan *scan)
{
    while (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\r')
        scan->at++;
}

/* Read `mark`, or nothing. */
static bool mark_take(tide_trace_scan *scan, char mark)
{
    blanks_skip(scan);
    if (*scan->at != mark)
        return false;
    scan->at++;
    return true;
}

static void mark_want(tide_trace_scan *scan, char mark, const char *where)
{
    char text[SHOWN_MAX + 4];
    if (scan->status == TIDE_OK && !mark_take(scan, mark))
        tide_scan_refuse(scan, "is not JSON: %c is missing %s, there is %s", mark, where, shown(scan, text));
}

/* The name at the cursor, ": " behind it included; names have no escapes. */
static bool name_take(tide_trace_scan *scan, const char *name)
{
    size_t length = strlen(name);
    const char *at = scan->at;
    if ((size_t)(scan->end - at) < length + 2 || at[0] != '"' || memcmp(at + 1, name, length) != 0 ||
        at[length + 1] != '"')
        return false;
    scan->at += length + 2;
    return true;
}

/* Whether the value of `name` is what comes now. */
static bool value_begin(tide_trace_scan *scan, const char *name)
{
    char text[SHOWN_MAX + 4];
    if (scan->status != TIDE_OK)
        return false;
    blanks_skip(scan);
    if (name != NULL && *scan->at == '}') {
        tide_scan_refuse(scan, "\"%s\" is missing", name);
        return false;
    }
    if (scan->comma)
        mark_want(scan, ',', name != NULL ? "between two members" : "between two values");
    blanks_skip(scan);
    if (name != NULL && scan->status == TIDE_OK && !name_take(scan, name))
        tide_scan_refuse(scan, "\"%s\" belongs here, not %s", name, shown(scan, text));
    if (name != NULL)
        mark_want(scan, ':', "behind a member's name");
    blanks_skip(scan);
    scan->comma = true;
    return scan->status == TIDE_OK;
}

tide_scanned tide_scan_first(tide_trace_scan *scan)
{
    mark_want(scan, '{', "at the line's begin");
    blanks_skip(scan);
    tide_scanned name = {scan->at, 0};
    if (scan->status != TIDE_OK || *scan->at != '"')
        return name;
    name.at++;
    const char *end = memchr(name.at, '"', (size_t)(scan->end - name.at));
    if (end != NULL)
        name.length = (size_t)(end - name.at);
    return name;
}

void tide_scan_end(tide_trace_scan *scan)
{
    char text[SHOWN_MAX + 4];
    if (scan->status != TIDE_OK)
        return;
    if (mark_take(scan, ',')) {
        blanks_skip(scan);
        tide_scan_refuse(scan, "ends here and has no member %s", shown(scan, text));
        return;
    }
    mark_want(scan, '}', "at the line's end");
    blanks_skip(scan);
    if (scan->at != scan->end)
        tide_scan_refuse(scan, "must end with }, not with %s", shown(scan, text));
}

void tide_scan_list_begin(tide_trace_scan *scan, const char *name)
{
    if (!value_begin(scan, name))
        return;
    if (!mark_take(scan, '['))
        refuse_value(scan, name, "a list");
    scan->comma = false;
}

bool tide_scan_list_goes_on(tide_trace_scan *scan)
{
    if (scan->status != TIDE_OK)
        return false;
    bool ended = mark_take(scan, ']');
    if (ended)
        scan->comma = true;
    return !ended;
}

/* ---- values ---- */

static bool is_digit(char letter)
{
    return letter >= '0' && letter <= '9';
}

/* A number goes on: so what was read of it was not all. */
static bool number_goes_on(char letter)
{
    return is_digit(letter) || letter == '.' || letter == 'e' || letter == 'E';
}

uint64_t tide_scan_count(tide_trace_scan *scan, const char *name, uint64_t most)
{
    char want[64];
    uint64_t value = 0;
    if (!value_begin(scan, name))
        return 0;
    const char *at = scan->at;
    bool fits = is_digit(*at);
    for (; fits && is_digit(*at) && (value != 0 || at == scan->at); at++) {
        uint64_t digit = (uint64_t)(*at - '0');
        fits = value <= (UINT64_MAX - digit) / 10;
        value = value * 10 + digit;
    }
    if (fits && value <= most && !number_goes_on(*at)) {
        scan->at = at;
        return value;
    }
    (void)snprintf(want, sizeof want, "a whole number from 0 to %" PRIu64, most);
    refuse_value(scan, name, most == TIDE_SCAN_COUNT_MAX ? "a whole number from 0 on" : want);
    return 0;
}

/* Whether a word stands here; it is read. */
static bool word_take(tide_trace_scan *scan, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(scan->end - scan->at) < length || memcmp(scan->at, word, length) != 0)
        return false;
    scan->at += length;
    return true;
}

bool tide_scan_is_null(tide_trace_scan *scan, const char *name)
{
    tide_trace_scan ahead = *scan;
    if (!value_begin(&ahead, name) || !word_take(&ahead, "null")) {
        scan->status = ahead.status;
        return false;
    }
    *scan = ahead;
    return true;
}

/* Where a number as JSON writes it ends, NULL if there is none. */
static const char *real_end(const char *at)
{
    at += *at == '-';
    if (!is_digit(*at))
        return NULL;
    at += *at == '0' ? 1 : strspn(at, "0123456789");
    if (*at == '.') {
        if (!is_digit(*++at))
            return NULL;
        at += strspn(at, "0123456789");
    }
    if (*at == 'e' || *at == 'E') {
        at++;
        at += *at == '-' || *at == '+';
        if (!is_digit(*at))
            return NULL;
        at += strspn(at, "0123456789");
    }
    return number_goes_on(*at) ? NULL : at;
}

double tide_scan_real(tide_trace_scan *scan, const char *name)
{
    if (!value_begin(scan, name))
        return 0;
    if (word_take(scan, "null"))
        return NAN;
    const char *end = real_end(scan->at);
    double value = end != NULL ? strtod(scan->at, NULL) : NAN;
    if (!isfinite(value)) {
        refuse_value(scan, name, "a number or null");
        return 0;
    }
    scan->at = end;
    return value;
}

bool tide_scan_bool(tide_trace_scan *scan, const char *name)
{
    if (!value_begin(scan, name))
        return false;
    if (word_take(scan, "true"))
        return true;
    if (!word_take(scan, "false"))
        refuse_value(scan, name, "true or false");
    return false;
}

/* ---- texts ---- */

/* Bytes of the letter at `at` that may stand in a text; 0: it may not. */
static size_t letter_bytes(const char *at)
{
    return (unsigned char)*at >= 0x20 ? tide_utf8_letter_bytes(at) : 0;
}

static bool hex_read(const char *at, uint32_t *value)
{
    *value = 0;
    for (int i = 0; i < 4; i++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF";
        const char *found = at[i] != '\0' ? strchr(digits, at[i]) : NULL;
        if (found == NULL)
            return false;
        *value = *value << 4 | (uint32_t)((found - digits) % 16);
    }
    return true;
}

static bool is_high(uint32_t half)
{
    return half >= 0xd800 && half <= 0xdbff;
}

static bool is_low(uint32_t half)
{
    return half >= 0xdc00 && half <= 0xdfff;
}

/* Bytes of the escape at `at`, 0 if JSON has none such; *letter is what it stands for, never 0. */
static size_t escape_bytes(const char *at, uint32_t *letter)
{
    static const char names[] = "\"\\/bfnrt", letters[] = "\"\\/\b\f\n\r\t";
    uint32_t low = 0;
    const char *found = at[1] != '\0' ? strchr(names, at[1]) : NULL;
    if (found != NULL) {
        *letter = (unsigned char)letters[found - names];
        return 2;
    }
    if (at[1] != 'u' || !hex_read(at + 2, letter) || *letter == 0 || is_low(*letter))
        return 0;
    if (!is_high(*letter))
        return 6;
    if (at[6] != '\\' || at[7] != 'u' || !hex_read(at + 8, &low) || !is_low(low))
        return 0;
    *letter = 0x10000 + ((*letter - 0xd800) << 10) + (low - 0xdc00);
    return 12;
}

tide_scanned tide_scan_raw(tide_trace_scan *scan, const char *name)
{
    tide_scanned none = {scan->at, 0};
    uint32_t letter = 0;
    if (!value_begin(scan, name))
        return none;
    if (*scan->at != '"') {
        refuse_value(scan, name, "a text");
        return none;
    }
    const char *at = scan->at + 1;
    for (size_t bytes = 1; *at != '"' && bytes > 0; at += bytes)
        bytes = *at == '\\' ? escape_bytes(at, &letter) : letter_bytes(at);
    if (*at != '"' || at >= scan->end) {
        refuse_value(scan, name, "a text in UTF-8, as JSON escapes it");
        return none;
    }
    tide_scanned raw = {scan->at + 1, (size_t)(at - scan->at - 1)};
    scan->at = at + 1;
    return raw;
}

/* Write a letter as UTF-8, at `to` if that is not NULL; its bytes. */
static size_t letter_write(uint32_t letter, char *to)
{
    static const unsigned char leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    size_t bytes = letter < 0x80 ? 1 : letter < 0x800 ? 2 : letter < 0x10000 ? 3 : 4;
    for (size_t i = bytes; to != NULL && i-- > 1; letter >>= 6)
        to[i] = (char)(0x80 | (letter & 0x3f));
    if (to != NULL)
        to[0] = (char)(leads[bytes] | letter);
    return bytes;
}

static size_t unescape(tide_scanned raw, char *to)
{
    size_t length = 0, bytes = 0;
    for (const char *at = raw.at; at < raw.at + raw.length; at += bytes) {
        uint32_t letter = 0;
        bytes = 1;
        if (*at != '\\') {
            if (to != NULL)
                to[length] = *at;
            length++;
            continue;
        }
        bytes = escape_bytes(at, &letter);
        length += letter_write(letter, to != NULL ? to + length : NULL);
    }
    return length;
}

size_t tide_scan_text_bytes(tide_scanned raw)
{
    return unescape(raw, NULL);
}

void tide_scan_text_write(tide_scanned raw, char *text)
{
    text[unescape(raw, text)] = '\0';
}

bool tide_scanned_is(tide_scanned piece, const char *word)
{
    return strlen(word) == piece.length && memcmp(piece.at, word, piece.length) == 0;
}

static void word_refuse(tide_trace_scan *scan, const char *name, tide_trace_words words)
{
    char want[192] = "one of ";
    size_t length = strlen(want);
    for (uint32_t i = 0; words(i) != NULL && length < sizeof want; i++)
        length += (size_t)snprintf(want + length, sizeof want - length, "%s%s", i > 0 ? ", " : "", words(i));
    refuse_value(scan, name, want);
}

uint32_t tide_scan_word(tide_trace_scan *scan, const char *name, tide_trace_words words)
{
    tide_scanned raw = tide_scan_raw(scan, name);
    if (scan->status != TIDE_OK)
        return 0;
    for (uint32_t i = 0; words(i) != NULL; i++)
        if (tide_scanned_is(raw, words(i)))
            return i;
    scan->at = raw.at - 1;
    word_refuse(scan, name, words);
    return 0;
}
