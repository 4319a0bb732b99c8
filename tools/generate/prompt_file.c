#include "tools/generate/prompt_file.h"

#include "base/array.h"
#include "base/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 24 };

typedef struct reading {
    const char *name; /* of the file, for messages */
    FILE *file;
    unsigned long long line;
    int32_t *tokens;
    uint64_t count;
} reading;

/* Reads the next word, of which the first bytes are kept. False: there is none. */
static bool word_read(reading *it, char word[WORD_BYTES])
{
    size_t length = 0;
    int byte = getc(it->file);
    for (; byte != EOF && isspace(byte); byte = getc(it->file))
        it->line += byte == '\n';
    for (; byte != EOF && !isspace(byte); byte = getc(it->file))
        if (length + 1 < WORD_BYTES)
            word[length++] = (char)byte;
    word[length] = '\0';
    if (byte != EOF)
        (void)ungetc(byte, it->file);
    return length > 0;
}

static tide_status word_take(reading *it, const char *word)
{
    const bool is_number = strspn(word, "0123456789") == strlen(word) && strlen(word) + 1 < WORD_BYTES;
    const unsigned long long token = is_number ? strtoull(word, NULL, 10) : 0;
    if (!is_number || token > INT32_MAX)
        return tide_fail(TIDE_ERROR_CORRUPT, "--prompt-ids %.800s: line %llu: \"%s\" is no token id",
                         it->name, it->line, tide_printable(word).text);
    if (!tide_array_grow(&it->tokens, it->count, sizeof *it->tokens))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a prompt of %llu tokens",
                         (unsigned long long)it->count + 1);
    it->tokens[it->count++] = (int32_t)token;
    return TIDE_OK;
}

static tide_status words_read(reading *it)
{
    char word[WORD_BYTES];
    tide_status status = TIDE_OK;
    errno = 0;
    while (status == TIDE_OK && word_read(it, word))
        status = word_take(it, word);
    if (status == TIDE_OK && ferror(it->file))
        status =
            tide_fail(TIDE_ERROR_IO, "--prompt-ids %.800s: can't be read: %s", it->name, strerror(errno));
    return status;
}

tide_status tide_prompt_file_read(const char *path, int32_t **tokens, uint64_t *count)
{
    const bool is_input = strcmp(path, "-") == 0;
    reading it = {.name = path, .line = 1, .file = is_input ? stdin : fopen(path, "rb")};
    if (it.file == NULL)
        return tide_fail(TIDE_ERROR_IO, "--prompt-ids %.800s: can't be opened: %s", path, strerror(errno));
    const tide_status status = words_read(&it);
    if (!is_input)
        (void)fclose(it.file);
    if (status != TIDE_OK) {
        free(it.tokens);
        return status;
    }
    *tokens = it.tokens;
    *count = it.count;
    return TIDE_OK;
}
