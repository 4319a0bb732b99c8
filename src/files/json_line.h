/* One line of JSON, built in a buffer of the caller's: objects, arrays, text, whole and real numbers.
 *
 * For writers that must not allocate (metrics, traces). What does not fit is cut off and remembered: a line
 * that is not complete is never written. Commas come by themselves.
 */
#ifndef TIDE_FILES_JSON_LINE_H
#define TIDE_FILES_JSON_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tide_json_line {
    char *text; /* `capacity` bytes, zero-terminated */
    size_t capacity;
    size_t length;
    bool comma;    /* the next value follows another one */
    bool overflow; /* something did not fit: the line is useless */
} tide_json_line;

void tide_json_begin(tide_json_line *line, char *text, size_t capacity);
/* Complete, with its newline, and nothing was cut off. */
bool tide_json_end(tide_json_line *line);

/* `name` is the member's name, NULL inside an array. */
void tide_json_open(tide_json_line *line, const char *name, char bracket); /* '{' or '[' */
void tide_json_close(tide_json_line *line, char bracket);                  /* '}' or ']' */
void tide_json_text(tide_json_line *line, const char *name, const char *value);
void tide_json_count(tide_json_line *line, const char *name, uint64_t value);
void tide_json_bool(tide_json_line *line, const char *name, bool value);
void tide_json_null(tide_json_line *line, const char *name);
/* 17 digits, so that reading gives the same double; null if it is not finite (JSON has no such number). */
void tide_json_real(tide_json_line *line, const char *name, double value);

#endif
