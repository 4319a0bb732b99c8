/* Text out of files, made fit for messages. */
#ifndef TIDE_FILES_PRINTABLE_H
#define TIDE_FILES_PRINTABLE_H

#include <stdbool.h>

typedef struct tide_printable_text {
    char text[160];
} tide_printable_text;

/* Text out of a file, fit for a line of message: a '?' for every control character, C1's in UTF-8 too, and an ending of "..." where
 * it is longer than fits. */
tide_printable_text tide_printable(const char *text);

/* Has it no control character? */
bool tide_is_printable(const char *text);

#endif
