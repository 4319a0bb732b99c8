/* UTF-8. Text from outside, such as a path, may hold any bytes. */
#ifndef TIDE_BASE_UTF8_H
#define TIDE_BASE_UTF8_H

#include <stddef.h>

/* How many bytes the UTF-8 letter at `text` has, a zero-terminated text; 0: there is no valid letter (end of
 * the text, overlong, a surrogate, beyond 10FFFF). */
size_t tide_utf8_letter_bytes(const char *text);

#endif
