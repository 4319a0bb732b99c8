/* One line of JSON, built in the caller's buffer: objects, arrays, text, whole and real numbers.
 *
 * For writers that must not allocate memory (metrics, traces). If the buffer is too small, the text is cut
 * off and `overflow` set, so that the caller never writes an incomplete line. Commas are added where needed.
 */
#ifndef TIDE_BASE_JSON_LINE_H
#define TIDE_BASE_JSON_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tide_json_line {
    char *text; /* `capacity` bytes, zero-terminated */
    size_t capacity;
    size_t length;
    bool comma;    /* the next value needs a comma before it */
    bool overflow; /* the buffer was too small: the line must not be used */
} tide_json_line;

void tide_json_begin(tide_json_line *line, char *text, size_t capacity);
/* Add the newline. False: the line did not fit. */
bool tide_json_end(tide_json_line *line);

/* `name` is the member's name; NULL inside an array. */
void tide_json_open(tide_json_line *line, const char *name, char bracket); /* '{' or '[' */
void tide_json_close(tide_json_line *line, char bracket);                  /* '}' or ']' */
void tide_json_text(tide_json_line *line, const char *name, const char *value);
void tide_json_count(tide_json_line *line, const char *name, uint64_t value);
void tide_json_bool(tide_json_line *line, const char *name, bool value);
void tide_json_null(tide_json_line *line, const char *name);
/* Writes 17 digits, from which a reader gets the same double; null if the value is not finite. */
void tide_json_real(tide_json_line *line, const char *name, double value);

#endif
