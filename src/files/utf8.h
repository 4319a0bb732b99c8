/* Text from outside, a path say, may hold any bytes. */
#ifndef TIDE_FILES_UTF8_H
#define TIDE_FILES_UTF8_H

#include <stddef.h>

/* Bytes of the UTF-8 letter at `text`, which a zero ends; 0: there is none (at the end, too long, half of a pair, beyond 10FFFF). */
size_t tide_utf8_letter_bytes(const char *text);

#endif
