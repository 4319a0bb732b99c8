#include "src/generate/end_tokens.h"

#include "base/array.h"
#include "base/whole.h"
#include "src/safetensors/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { FILE_MOST_BYTES = 1 << 20, PATH_BYTES = 4096 };

static tide_status add(tide_end_tokens *tokens, const json_t *item, const char *path)
{
    const json_int_t token = json_integer_value(item);
    if (!json_is_integer(item) || token < 0 || token > INT32_MAX)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "model %.800s: field \"eos_token_id\" must be null, a token or a list of tokens",
                         path);
    if (tide_end_tokens_have(tokens, (int32_t)token))
        return TIDE_OK;
    if (!tide_array_grow(&tokens->tokens, tokens->count, sizeof *tokens->tokens))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a list of end tokens");
    tokens->tokens[tokens->count++] = (int32_t)token;
    return TIDE_OK;
}

static tide_status add_all(tide_end_tokens *tokens, const json_t *root, const char *path)
{
    const json_t *field = json_object_get(root, "eos_token_id");
    tide_status status = TIDE_OK;
    if (field == NULL || json_is_null(field))
        return TIDE_OK;
    if (!json_is_array(field))
        return add(tokens, field, path);
    for (size_t i = 0; status == TIDE_OK && i < json_array_size(field); i++)
        status = add(tokens, json_array_get(field, i), path);
    return status;
}

static tide_status read_file(const tide_files *files, const char *folder, const char *name,
                             tide_end_tokens *tokens)
{
    char path[PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    json_t *root = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, name) >= sizeof path)
        return tide_fail(TIDE_ERROR_ARGUMENT, "model %.200s...: the path is too long", folder);
    const int error = tide_files_read_whole(files, path, FILE_MOST_BYTES, &text, &bytes);
    if (error == ENOENT || error == ENOTDIR)
        return TIDE_OK;
    if (error != 0)
        return tide_fail(error == ENOMEM ? TIDE_ERROR_NO_MEMORY : TIDE_ERROR_IO,
                         "model %.800s can't be read: %s", path, strerror(error));
    tide_status status = tide_json_object_parse(text, bytes, "model", path, "the file", &root);
    free(text);
    if (status != TIDE_OK)
        return status;
    status = add_all(tokens, root, path);
    json_decref(root);
    return status;
}

tide_status tide_end_tokens_read(const tide_files *files, const char *folder, tide_end_tokens *tokens)
{
    tide_end_tokens made = {.tokens = NULL};
    tide_status status = read_file(files, folder, "generation_config.json", &made);
    if (status == TIDE_OK)
        status = read_file(files, folder, "config.json", &made);
    if (status == TIDE_OK)
        *tokens = made;
    else
        tide_end_tokens_free(&made);
    return status;
}

void tide_end_tokens_free(tide_end_tokens *tokens)
{
    free(tokens->tokens);
    *tokens = (tide_end_tokens){.tokens = NULL};
}

bool tide_end_tokens_have(const tide_end_tokens *tokens, int32_t token)
{
    for (size_t i = 0; i < tokens->count; i++)
        if (tokens->tokens[i] == token)
            return true;
    return false;
}
