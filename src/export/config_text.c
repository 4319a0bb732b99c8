/* Replaces words in the text itself. A JSON parser and printer would write numbers such as 1e-05, or of 17
 * digits, in their own way, and a comparison of the folders would show changes without a meaning. */
#include "src/export/config_text.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_space(char byte)
{
    return byte == ' ' || byte == '\t' || byte == '\n' || byte == '\r';
}

static size_t spaces_end(const char *text, size_t bytes, size_t at)
{
    while (at < bytes && is_space(text[at]))
        at++;
    return at;
}

/* The position behind the closing quote of the string that begins at `at`. */
static size_t string_end(const char *text, size_t bytes, size_t at)
{
    for (at++; at < bytes && text[at] != '"'; at++)
        at += text[at] == '\\';
    return at < bytes ? at + 1 : bytes;
}

static int depth_change(char byte)
{
    return (byte == '{' || byte == '[') - (byte == '}' || byte == ']');
}

/* The position behind the value that begins at `at`. */
static size_t value_end(const char *text, size_t bytes, size_t at)
{
    int depth = 0;
    size_t end = at;
    while (at < bytes) {
        if (depth == 0 && (text[at] == ',' || text[at] == '}'))
            break;
        depth += depth_change(text[at]);
        const bool space = is_space(text[at]);
        at = text[at] == '"' ? string_end(text, bytes, at) : at + 1;
        end = space ? end : at;
    }
    return end;
}

/* Is the string from `begin` to `end` a key that names the dtype? *value: where the key's value begins. */
static bool is_dtype(const char *text, size_t bytes, size_t begin, size_t end, size_t *value)
{
    static const char *const keys[] = {"\"dtype\"", "\"torch_dtype\""};
    bool is_one = false;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        is_one =
            is_one || (end - begin == strlen(keys[i]) && memcmp(text + begin, keys[i], end - begin) == 0);
    const size_t colon = spaces_end(text, bytes, end);
    if (!is_one || colon >= bytes || text[colon] != ':')
        return false;
    *value = spaces_end(text, bytes, colon + 1);
    return true;
}

/* A text under construction, in a buffer that is large enough for all of it. */
typedef struct growing {
    char *text;
    size_t length;
} growing;

static void add(growing *made, const char *text, size_t bytes)
{
    memcpy(made->text + made->length, text, bytes);
    made->length += bytes;
}

/* Inserts the dtype before the brace that closes the object, which is the last in the text. */
static void add_last(growing *made, const char *word)
{
    size_t brace = made->length, end;
    while (made->text[brace - 1] != '}')
        brace--;
    for (end = --brace; is_space(made->text[end - 1]);)
        end--;
    char key[64];
    const char *const gap = memchr(made->text, '\n', made->length) != NULL ? "\n  " : " ";
    const int length = snprintf(key, sizeof key, "%s%s\"torch_dtype\": %s",
                                made->text[end - 1] == '{' ? "" : ",", gap, word);
    memmove(made->text + end + length, made->text + end, made->length - end);
    memcpy(made->text + end, key, (size_t)length);
    made->length += (size_t)length;
}

char *tide_config_text_with_dtype(const char *text, size_t bytes, const char *dtype)
{
    char word[32];
    const int word_bytes = snprintf(word, sizeof word, "\"%s\"", dtype);
    growing made = {.text = malloc(bytes + 3 * sizeof word + 1)};
    bool found = false;
    int depth = 0;
    assert(word_bytes > 2 && (size_t)word_bytes < sizeof word);
    if (made.text == NULL)
        return NULL;
    for (size_t at = 0, end, value; at < bytes; at = end) {
        end = text[at] == '"' ? string_end(text, bytes, at) : at + 1;
        depth += depth_change(text[at]);
        if (depth != 1 || text[at] != '"' || !is_dtype(text, bytes, at, end, &value)) {
            add(&made, text + at, end - at);
            continue;
        }
        add(&made, text + at, value - at);
        add(&made, word, (size_t)word_bytes);
        end = value_end(text, bytes, value);
        found = true;
    }
    if (!found)
        add_last(&made, word);
    made.text[made.length] = '\0';
    return made.text;
}
