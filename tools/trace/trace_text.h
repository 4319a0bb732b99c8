/* Text for people: names of chunks, times, and lines that fit a screen. */
#ifndef TIDE_TOOLS_TRACE_TEXT_H
#define TIDE_TOOLS_TRACE_TEXT_H

#include "src/trace/trace_model.h"
#include "tools/units.h"

#include <stdio.h>

enum { TIDE_TEXT_COLUMNS = 100, TIDE_TEXT_LINE_BYTES = 1024, TIDE_TEXT_NAME_BYTES = 256 };

typedef struct tide_text_line {
    char text[TIDE_TEXT_LINE_BYTES];
    size_t length;
} tide_text_line;

/* A zeroed line is empty. */
void tide_text_add(tide_text_line *line, const char *format, ...) TIDE_PRINTF(2, 3);
/* Add blanks up to the column. A column is a letter, not a byte. */
void tide_text_pad(tide_text_line *line, size_t column);
/* Print the line and a newline, and empty it. A line of more than `columns` letters ends between words with
 * "...". Control characters of names are printed as "?". */
void tide_text_print(tide_text_line *line, size_t columns, FILE *out);

/* Does the line have at most `columns` letters? */
bool tide_text_fits(const tide_text_line *line, size_t columns);

/* Shorten a text to at most `letters` letters (4 to 60): its begin and "..."; for a path "..." and the path's
 * end. Return `shortened`. */
const char *tide_text_shorten(const char *text, size_t letters, char shortened[TIDE_TEXT_NAME_BYTES]);
const char *tide_path_shorten(const char *path, size_t letters, char shortened[TIDE_TEXT_NAME_BYTES]);

/* "1.234 s", "12.3 ms", "45.6 us". Returns `text`. */
const char *tide_seconds_format(double seconds, char text[TIDE_TEXT_NAME_BYTES]);

/* tide_size_format of a mean, rounded to the nearest byte. Returns `text`. */
const char *tide_bytes_format(double bytes, char text[TIDE_UNITS_TEXT_BYTES]);

/* Write the text as JSON that may also stand in a script of an HTML page. */
void tide_text_json_write(const char *text, FILE *out);

/* The content of a chunk in at most `letters` letters: its first param or activation, and how many more it
 * has; for a state chunk "state of" and the first param. Returns `text`. */
const char *tide_chunk_content(const tide_trace_model *model, uint32_t chunk, size_t letters,
                               char text[TIDE_TEXT_NAME_BYTES]);

#endif
