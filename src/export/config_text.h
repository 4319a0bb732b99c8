/* A config.json's text with another dtype in it. */
#ifndef TIDE_EXPORT_CONFIG_TEXT_H
#define TIDE_EXPORT_CONFIG_TEXT_H

#include <stddef.h>

/* `text`, which must be a JSON object, with `dtype` as the string of its own keys "dtype" and "torch_dtype", whichever it has, and
 * under "torch_dtype" as the last where it has neither; every other byte stays: in a zero-terminated block that the caller frees.
 * A key that is spelled with escapes is not found. NULL: no memory. */
char *tide_config_text_with_dtype(const char *text, size_t bytes, const char *dtype);

#endif
