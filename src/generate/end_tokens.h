/* The tokens at which a model ends its text. */
#ifndef TIDE_GENERATE_END_TOKENS_H
#define TIDE_GENERATE_END_TOKENS_H

#include "base/files.h"
#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tide_end_tokens {
    int32_t *tokens; /* [count]; a zeroed list has none */
    size_t count;
} tide_end_tokens;

/* Read the eos_token_id of a model folder's generation_config.json and config.json, each a token or a list
 * of tokens: those of both files end a text. A missing file or field, and null, name none. CORRUPT: a file
 * is not JSON, or the field is something else; IO, NO_MEMORY. On failure *tokens is unchanged. */
TIDE_NODISCARD tide_status tide_end_tokens_read(const tide_files *files, const char *folder,
                                                tide_end_tokens *tokens);
void tide_end_tokens_free(tide_end_tokens *tokens);

bool tide_end_tokens_have(const tide_end_tokens *tokens, int32_t token);

#endif
