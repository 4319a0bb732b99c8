/* Text from outside, such as a path or a name in a file: control characters, made printable, and UTF-8. */
#ifndef TIDE_BASE_TEXT_H
#define TIDE_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

/* The length in bytes of the control character that begins at `text`: 1, or 2 for a C1 character in UTF-8; 0
 * if there is none. */
size_t tide_control_bytes(const char *text);

/* Is the text free of control characters? */
bool tide_is_printable(const char *text);

/* Replace each control character by a '?'. */
void tide_text_make_printable(char *text);

typedef struct tide_printable_text {
    char text[160];
} tide_printable_text;

/* A copy of the text for one line of a message: each control character (C1's in UTF-8, too) becomes '?', and
 * text that is too long ends in "...". */
tide_printable_text tide_printable(const char *text);

/* How many bytes the UTF-8 letter at `text` has, a zero-terminated text; 0: there is no valid letter (end of
 * the text, overlong, a surrogate, beyond 10FFFF). */
size_t tide_utf8_letter_bytes(const char *text);

#endif
