/* A prompt in a file: token ids in decimal, with white space between them. */
#ifndef TIDE_TOOLS_PROMPT_FILE_H
#define TIDE_TOOLS_PROMPT_FILE_H

#include "tidepool/status.h"

#include <stdint.h>

/* Read a file, or standard input if `path` is "-". *tokens, [*count], is the caller's to free; NULL if the
 * file has no token. IO: the file can't be read. CORRUPT: it holds something else, or an id above 2^31 -
 * 1; the message says what and in which line. NO_MEMORY. */
TIDE_NODISCARD tide_status tide_prompt_file_read(const char *path, int32_t **tokens, uint64_t *count);

#endif
