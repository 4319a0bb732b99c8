/* Reads small files of /proc and /sys as text, without stdio and so without allocating, since budgets are
 * checked where nothing may be allocated.
 */
#ifndef TIDE_OFFLOAD_SYSTEM_TEXT_H
#define TIDE_OFFLOAD_SYSTEM_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TIDE_SYSTEM_TEXT_BYTES = 8192, TIDE_SYSTEM_PIECE_BYTES = 512 };

/* Read the beginning of a file, as a C string. False: the file can't be read or is empty. */
bool tide_system_text_read(const char *path, char text[TIDE_SYSTEM_TEXT_BYTES]);

/* Reads the lines of a file, one piece of the file at a time, since the caller's thread may have a stack of
 * only 64 KiB. */
typedef struct tide_system_lines {
    int descriptor;
    size_t at, filled; /* within `piece` */
    char piece[TIDE_SYSTEM_PIECE_BYTES];
} tide_system_lines;

bool tide_system_lines_open(const char *path, tide_system_lines *lines);
/* Read the next line, without its end of line; of a longer one the first `capacity` - 1 bytes. False: there
 * is none. */
bool tide_system_lines_next(tide_system_lines *lines, char *line, size_t capacity);
void tide_system_lines_close(tide_system_lines *lines);

/* Read the number behind `key` in the first line that begins with `key`. False: there is no such line or
 * number. */
bool tide_system_number_read(const char *path, const char *key, uint64_t *number);

#endif
