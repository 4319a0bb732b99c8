/* A small file of /proc or /sys as text, without stdio and so without allocating: budgets are checked where nothing may be
 * allocated.
 */
#ifndef TIDE_OFFLOAD_SYSTEM_TEXT_H
#define TIDE_OFFLOAD_SYSTEM_TEXT_H

#include <stdbool.h>

enum { TIDE_SYSTEM_TEXT_BYTES = 8192 };

/* Its beginning, ended by a zero. False if it can't be read or is empty. */
bool tide_system_text_read(const char *path, char text[TIDE_SYSTEM_TEXT_BYTES]);

#endif
