/* Text that may come from outside, made fit for one line on a terminal. */
#ifndef TIDE_BASE_TEXT_H
#define TIDE_BASE_TEXT_H

#include <stddef.h>

/* Bytes of the control character that begins at `text`: 1, or 2 for C1's in UTF-8; 0: none does. */
size_t tide_control_bytes(const char *text);

/* Put a '?' in each control character's place. */
void tide_text_make_printable(char *text);

#endif
