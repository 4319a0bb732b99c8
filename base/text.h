/* Makes text that may come from outside printable as one line on a terminal. */
#ifndef TIDE_BASE_TEXT_H
#define TIDE_BASE_TEXT_H

#include <stddef.h>

/* The length in bytes of the control character that begins at `text`: 1, or 2 for a C1 character in UTF-8; 0
 * if there is none. */
size_t tide_control_bytes(const char *text);

/* Replace each control character by a '?'. */
void tide_text_make_printable(char *text);

#endif
