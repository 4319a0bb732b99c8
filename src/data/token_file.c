/* One mapped file of tokens.
 *
 *     text     every byte is a token
 *     shard    | magic | version | count | 253 x unused | token 0 | token 1 | ...      (llm.c)
 *              '----------- 256 x int32 --------------' '-- uint16 or uint32 --'
 *
 * Magic and version say how wide a token is: 20240520, 1 (GPT-2's vocabulary): uint16; 20240801, 7 (Llama 3's): uint32.
 * A folder may hold both. All integers are little-endian and read byte by byte, so the host's order does not matter
 * (compilers make one load of it). The count is taken as unsigned: llm.c writes an int32, so its own shards end at
 * half as many tokens as ours.
 */
#include "src/data/token_file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static uint32_t load_u32(const uint8_t *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

static bool ends_with(const char *text, const char *end)
{
    size_t text_length = strlen(text), end_length = strlen(end);
    return text_length >= end_length && strcmp(text + text_length - end_length, end) == 0;
}

/* A format of shards. */
typedef struct shard_kind {
    uint32_t magic, version, token_bytes;
} shard_kind;

static const shard_kind shard_kinds[] = {
    {TIDE_DATA_SHARD_MAGIC, TIDE_DATA_SHARD_VERSION, 2},
    {TIDE_DATA_WIDE_SHARD_MAGIC, TIDE_DATA_WIDE_SHARD_VERSION, 4},
};

/* By the magic; NULL: it is none's. */
static const shard_kind *find_shard_kind(const tide_token_file *file)
{
    for (size_t i = 0; i < sizeof shard_kinds / sizeof shard_kinds[0] && file->map_bytes >= 4; i++) {
        if (load_u32(file->map) == shard_kinds[i].magic)
            return &shard_kinds[i];
    }
    return NULL;
}

static tide_status read_shard_header(tide_token_file *file)
{
    if (file->map_bytes < TIDE_DATA_SHARD_HEADER_BYTES)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: %zu bytes are too few for a shard's header of %d bytes", file->path,
                         file->map_bytes, TIDE_DATA_SHARD_HEADER_BYTES);
    const shard_kind *kind = find_shard_kind(file);
    uint32_t version = load_u32(file->map + 4), count = load_u32(file->map + 8);
    if (kind == NULL)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: a *.bin file must be a token shard with magic %d (uint16 tokens) or %d "
                         "(uint32), this one has %u",
                         file->path, TIDE_DATA_SHARD_MAGIC, TIDE_DATA_WIDE_SHARD_MAGIC, load_u32(file->map));
    if (version != kind->version)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: shard version %u; with magic %u only version %u (uint%u tokens) is known",
                         file->path, version, kind->magic, kind->version, 8 * kind->token_bytes);
    uint64_t need_bytes = TIDE_DATA_SHARD_HEADER_BYTES + (uint64_t)kind->token_bytes * count;
    if (need_bytes != file->map_bytes)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: the header says %u tokens, so %llu bytes, but the file has %zu bytes",
                         file->path, count, (unsigned long long)need_bytes, file->map_bytes);
    if (count == 0)
        return tide_fail(TIDE_ERROR_CORRUPT, "data %s: the shard is empty, its header says 0 tokens",
                         file->path);
    file->format = TIDE_DATA_FORMAT_SHARDS;
    file->tokens = file->map + TIDE_DATA_SHARD_HEADER_BYTES;
    file->token_count = count;
    file->token_bytes = kind->token_bytes;
    return TIDE_OK;
}

static tide_status read_layout(tide_token_file *file)
{
    if (ends_with(file->path, ".bin") || find_shard_kind(file) != NULL)
        return read_shard_header(file);
    file->format = TIDE_DATA_FORMAT_BYTES;
    file->tokens = file->map;
    file->token_count = file->map_bytes;
    file->token_bytes = 1;
    return TIDE_OK;
}

/* Map the whole file; the mapping outlives the descriptor. */
static tide_status map_file(tide_token_file *file)
{
    tide_status status = TIDE_OK;
    /* O_NONBLOCK: a fifo is refused below instead of waiting for its writer. */
    int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return tide_fail(TIDE_ERROR_IO, "data %s: can't be opened: %s", file->path, strerror(errno));
    struct stat about;
    if (fstat(descriptor, &about) != 0)
        status = tide_fail(TIDE_ERROR_IO, "data %s: can't be examined: %s", file->path, strerror(errno));
    else if (!S_ISREG(about.st_mode))
        status = tide_fail(TIDE_ERROR_IO, "data %s: neither a file nor a folder of *.bin shards", file->path);
    else if (about.st_size == 0)
        status = tide_fail(TIDE_ERROR_CORRUPT, "data %s: the file is empty", file->path);
    if (status != TIDE_OK)
        goto close_descriptor;
    size_t bytes = (size_t)about.st_size;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
    if (map == MAP_FAILED) {
        status = tide_fail(TIDE_ERROR_IO, "data %s: its %zu bytes can't be mapped: %s", file->path, bytes,
                           strerror(errno));
        goto close_descriptor;
    }
    file->map = map;
    file->map_bytes = bytes;
close_descriptor:
    close(descriptor); /* opened for reading: nothing can be lost */
    return status;
}

tide_status tide_token_file_open(const char *path, tide_token_file *file)
{
    tide_token_file opened = {.path = strdup(path)};
    if (opened.path == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data %s: no memory for its path", path);
    tide_status status = map_file(&opened);
    if (status != TIDE_OK)
        goto free_path;
    status = read_layout(&opened);
    if (status != TIDE_OK)
        goto unmap;
    *file = opened;
    return TIDE_OK;
unmap:
    munmap((void *)opened.map, opened.map_bytes);
free_path:
    free(opened.path);
    return status;
}

void tide_token_file_close(tide_token_file *file)
{
    munmap((void *)file->map, file->map_bytes);
    free(file->path);
    *file = (tide_token_file){0};
}

/* Whether no token the format can hold is outside the vocabulary. */
static bool cannot_be_outside(const tide_token_file *file, uint32_t vocab_size)
{
    return vocab_size >= 1ull << 8 * file->token_bytes;
}

/* Some token of the range is outside: find the first and say so. */
static tide_status refuse_outside(const tide_token_file *file, uint64_t first, uint64_t count,
                                  uint32_t vocab_size)
{
    uint64_t position = first;
    while (position < first + count - 1 && tide_token_file_at(file, position) < vocab_size)
        position++;
    return tide_fail(TIDE_ERROR_CORRUPT, "data %s: token %u at position %llu is outside the vocabulary of %u",
                     file->path, tide_token_file_at(file, position), (unsigned long long)position,
                     vocab_size);
}

tide_status tide_token_file_check(const tide_token_file *file, uint64_t first, uint64_t count,
                                  uint32_t vocab_size)
{
    assert(first <= file->token_count && count <= file->token_count - first);
    if (cannot_be_outside(file, vocab_size))
        return TIDE_OK;
    uint32_t highest = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t token = tide_token_file_at(file, first + i);
        highest = token > highest ? token : highest;
    }
    return highest < vocab_size ? TIDE_OK : refuse_outside(file, first, count, vocab_size);
}

/* What is checked is the copy, not the map: another process may change the file in between. */
tide_status tide_token_file_copy(const tide_token_file *file, uint64_t first, uint64_t count,
                                 uint32_t vocab_size, int32_t *tokens)
{
    assert(first <= file->token_count && count <= file->token_count - first);
    uint32_t highest = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint32_t token = tide_token_file_at(file, first + i);
        highest = token > highest ? token : highest;
        tokens[i] = (int32_t)token;
    }
    if (highest < vocab_size)
        return TIDE_OK;
    return refuse_outside(file, first, count, vocab_size);
}
