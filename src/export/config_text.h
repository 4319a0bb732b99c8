/* Changes the dtype in the text of a config.json. */
#ifndef TIDE_EXPORT_CONFIG_TEXT_H
#define TIDE_EXPORT_CONFIG_TEXT_H

#include <stddef.h>

/* Copy `text`, which must be a JSON object, and give its own keys "dtype" and "torch_dtype", whichever it
 * has, the string `dtype` as value; if it has neither, add "torch_dtype" as the last key. Every other byte
 * stays. A key that is spelled with escapes is not found. Returns a zero-terminated block that the caller
 * frees; NULL: no memory. */
char *tide_config_text_with_dtype(const char *text, size_t bytes, const char *dtype);

#endif
