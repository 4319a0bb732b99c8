/* What of a trace people read: names of chunks, times, and lines that fit a screen. */
#ifndef TIDE_TOOLS_TRACE_TEXT_H
#define TIDE_TOOLS_TRACE_TEXT_H

#include "src/trace/trace_model.h"
#include "tools/units.h"

#include <stdio.h>

enum { TIDE_TEXT_COLUMNS = 100, TIDE_TEXT_LINE_BYTES = 1024, TIDE_TEXT_NAME_BYTES = 256 };

/* A line in the making. */
typedef struct tide_text_line {
    char text[TIDE_TEXT_LINE_BYTES];
    size_t length;
} tide_text_line;

/* Zeroed: empty. */
void tide_text_add(tide_text_line *line, const char *format, ...) TIDE_PRINTF(2, 3);
/* Blanks up to the column. Columns are letters, not bytes. */
void tide_text_pad(tide_text_line *line, size_t column);
/* Print at most `columns` letters and a newline, and empty the line: what is longer ends between words, with "...";
 * nothing ends with blanks. Of a name that a file brought no control reaches the terminal: "?" stands for it. */
void tide_text_print(tide_text_line *line, size_t columns, FILE *out);

/* Whether all of the line fits. */
bool tide_text_fits(const tide_text_line *line, size_t columns);

/* At most `letters` letters (4 at least, 60 at most) of a text: all of it, or its begin and "..."; of a path, "..." and
 * its end. Returns `shortened`. */
const char *tide_text_shorten(const char *text, size_t letters, char shortened[TIDE_TEXT_NAME_BYTES]);
const char *tide_path_shorten(const char *path, size_t letters, char shortened[TIDE_TEXT_NAME_BYTES]);

/* "1.234 s", "12.3 ms", "45.6 us". Returns `text`. */
const char *tide_seconds_format(double seconds, char text[TIDE_TEXT_NAME_BYTES]);

/* A mean of bytes to the nearest byte, as tide_size_format has it. Returns `text`. */
const char *tide_bytes_format(double bytes, char text[TIDE_UNITS_TEXT_BYTES]);

/* Write the text as JSON that may also stand in a script of an HTML page. */
void tide_text_json_write(const char *text, FILE *out);

/* What lies in a chunk, shortly: its first param and how many more; of a state chunk, whose state; of an activation
 * chunk, which activations. At most `letters` letters and "...". Returns `text`. */
const char *tide_chunk_content(const tide_trace_model *model, uint32_t chunk, size_t letters,
                               char text[TIDE_TEXT_NAME_BYTES]);

#endif
