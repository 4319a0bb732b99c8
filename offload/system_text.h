/* A small file of /proc or /sys as text, without stdio and so without allocating: budgets are checked where nothing may be
 * allocated.
 */
#ifndef TIDE_OFFLOAD_SYSTEM_TEXT_H
#define TIDE_OFFLOAD_SYSTEM_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TIDE_SYSTEM_TEXT_BYTES = 8192, TIDE_SYSTEM_PIECE_BYTES = 512 };

/* The beginning of a file, ended by a zero. False if it can't be read or is empty. */
bool tide_system_text_read(const char *path, char text[TIDE_SYSTEM_TEXT_BYTES]);

/* The lines of a file, a piece in memory at a time: a caller's thread may have a stack of 64 KiB in all. */
typedef struct tide_system_lines {
    int descriptor;
    size_t at, filled; /* of `piece` */
    char piece[TIDE_SYSTEM_PIECE_BYTES];
} tide_system_lines;

bool tide_system_lines_open(const char *path, tide_system_lines *lines);
/* The next line without its end; of a longer one than `capacity` - 1 bytes the beginning. False: there is none. */
bool tide_system_lines_next(tide_system_lines *lines, char *line, size_t capacity);
void tide_system_lines_close(tide_system_lines *lines);

/* The number behind `key`, with which a line begins. False: there is no such line, or no number in it. */
bool tide_system_number_read(const char *path, const char *key, uint64_t *number);

#endif
