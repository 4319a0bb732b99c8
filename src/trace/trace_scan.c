#include "src/trace/trace_scan.h"

#include "base/text.h"

#include <assert.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MESSAGE_BYTES = 512 };

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

const char *tide_scan_shown(const tide_trace_scan *scan, char text[TIDE_SCAN_SHOWN_BYTES])
{
    enum { SHOWN_MAX = TIDE_SCAN_SHOWN_BYTES - sizeof "..." };
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
    char text[TIDE_SCAN_SHOWN_BYTES];
    if (name != NULL)
        tide_scan_refuse(scan, "\"%s\" must be %s, not %s", name, want, tide_scan_shown(scan, text));
    else
        tide_scan_refuse(scan, "in a list: must be %s, not %s", want, tide_scan_shown(scan, text));
}

/* ---- marks and names ---- */

void tide_scan_begin(tide_trace_scan *scan, const char *path, uint64_t line, const char *text, size_t bytes)
{
    assert(text[bytes] == '\0');
    *scan = (tide_trace_scan){
        .path = path, .line = line, .at = text, .end = text + bytes, .memory = scan->memory};
}

static void blanks_skip(tide_trace_scan *scan)
{
    while (*scan->at == ' ' || *scan->at == '\t' || *scan->at == '\r')
        scan->at++;
}

/* Read `mark` if it comes next. */
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
    char text[TIDE_SCAN_SHOWN_BYTES];
    if (scan->status == TIDE_OK && !mark_take(scan, mark))
        tide_scan_refuse(scan, "is not JSON: %c is missing %s, there is %s", mark, where,
                         tide_scan_shown(scan, text));
}

/* Read the member's name if it comes next. Names have no escapes. */
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

/* Read the member's name (NULL: none, in a list) and what stands before its value. False: the line is
 * refused, since another member comes next, or was refused before. */
static bool value_begin(tide_trace_scan *scan, const char *name)
{
    char text[TIDE_SCAN_SHOWN_BYTES];
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
        tide_scan_refuse(scan, "\"%s\" belongs here, not %s", name, tide_scan_shown(scan, text));
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
    char text[TIDE_SCAN_SHOWN_BYTES];
    if (scan->status != TIDE_OK)
        return;
    if (mark_take(scan, ',')) {
        blanks_skip(scan);
        tide_scan_refuse(scan, "ends here and has no member %s", tide_scan_shown(scan, text));
        return;
    }
    mark_want(scan, '}', "at the line's end");
    blanks_skip(scan);
    if (scan->at != scan->end)
        tide_scan_refuse(scan, "must end with }, not with %s", tide_scan_shown(scan, text));
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

/* Would the letter continue a number? */
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

/* Read `word` if it comes next. */
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

/* Let jansson read a value of `bytes` at the cursor. NULL: the value is refused as not being `want`, or
 * there is no memory. */
static json_t *value_parse(tide_trace_scan *scan, const char *name, size_t bytes, const char *want)
{
    json_error_t error;
    json_t *value = json_loadb(scan->at, bytes, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL, &error);
    /* jansson leaves the text empty where it found no memory to begin with */
    if (value == NULL && (error.text[0] == '\0' || json_error_code(&error) == json_error_out_of_memory))
        tide_scan_no_memory(scan);
    else if (value == NULL)
        refuse_value(scan, name, want);
    return value;
}

double tide_scan_real(tide_trace_scan *scan, const char *name)
{
    if (!value_begin(scan, name))
        return 0;
    if (word_take(scan, "null"))
        return NAN;
    const size_t bytes = strspn(scan->at, "+-.0123456789eE");
    json_t *value = value_parse(scan, name, bytes, "a number or null");
    const double real = json_real_value(value);
    if (value != NULL)
        scan->at += bytes;
    json_decref(value);
    return real;
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

#define TEXT_WANTED "a text in UTF-8, as JSON escapes it"

tide_scanned tide_scan_raw(tide_trace_scan *scan, const char *name)
{
    tide_scanned none = {scan->at, 0};
    if (!value_begin(scan, name))
        return none;
    const char *at = scan->at + 1;
    while (*scan->at == '"' && *at != '"' && *at != '\0')
        at += *at == '\\' && at[1] != '\0' ? 2 : 1;
    if (*scan->at != '"' || *at != '"') {
        refuse_value(scan, name, *scan->at == '"' ? TEXT_WANTED : "a text");
        return none;
    }
    tide_scanned raw = {scan->at + 1, (size_t)(at - scan->at - 1)};
    scan->at = at + 1;
    return raw;
}

const char *tide_scan_text(tide_trace_scan *scan, const char *name)
{
    tide_scanned raw = tide_scan_raw(scan, name);
    if (scan->status != TIDE_OK)
        return "";
    scan->at = raw.at - 1;
    json_t *text = value_parse(scan, name, raw.length + 2, TEXT_WANTED);
    if (text == NULL)
        return "";
    scan->at += raw.length + 2;
    char *kept = tide_arrays_add(scan->memory, json_string_length(text) + 1, 1);
    if (kept != NULL) {
        strcpy(kept, json_string_value(text));
        tide_text_make_printable(kept); /* an escape may stand for a control character */
    } else {
        tide_scan_no_memory(scan);
    }
    json_decref(text);
    return kept != NULL ? kept : "";
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

/* ---- numbers of rows, and lists ---- */

void tide_scan_number_check(tide_trace_scan *scan, const char *name, uint32_t number, uint32_t count,
                            const char *what)
{
    const char *quote = name != NULL ? "\"" : "";
    if (name == NULL)
        name = "a number in a list";
    if (number >= count && count == 0)
        tide_scan_refuse(scan, "%s%s%s is %" PRIu32 ", but there are no %s", quote, name, quote, number,
                         what);
    else if (number >= count)
        tide_scan_refuse(scan, "%s%s%s is %" PRIu32 ", but %s go from 0 to %" PRIu32, quote, name, quote,
                         number, what, count - 1);
}

uint32_t tide_scan_number(tide_trace_scan *scan, const char *name, uint32_t count, const char *what)
{
    uint32_t number = (uint32_t)tide_scan_count(scan, name, UINT32_MAX);
    if (scan->status == TIDE_OK)
        tide_scan_number_check(scan, name, number, count, what);
    return number;
}

bool tide_scan_reserve(tide_trace_scan *scan, void *list, uint64_t count, size_t bytes)
{
    if (scan->status == TIDE_OK && (count >= UINT32_MAX / 2 || !tide_array_grow(list, count, bytes)))
        tide_scan_no_memory(scan);
    return scan->status == TIDE_OK;
}
