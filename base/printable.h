/* Makes text from files safe to print in messages. */
#ifndef TIDE_BASE_PRINTABLE_H
#define TIDE_BASE_PRINTABLE_H

#include <stdbool.h>

typedef struct tide_printable_text {
    char text[160];
} tide_printable_text;

/* A copy of the text for one line of a message: each control character (C1's in UTF-8, too) becomes '?', and
 * text that is too long ends in "...". */
tide_printable_text tide_printable(const char *text);

/* Is the text free of control characters? */
bool tide_is_printable(const char *text);

#endif
