/* One open file of tokens.
 *
 *     text     every byte is a token
 *     shard    | magic | version | count | 253 x unused | token 0 | token 1 | ...      (llm.c)
 *              '----------- 256 x int32 --------------' '-- uint16 or uint32 --'
 *     u16, u32 | token 0 | token 1 | ...                                               (nanoGPT)
 *     TIDETOK1 | header | tokens | mask | starts of documents | CRC |                  (token_documents.c)
 *
 * Magic and version say how wide a token is: 20240520, 1 (GPT-2's vocabulary): uint16; 20240801, 7 (Llama
 * 3's): uint32. A folder may hold both. All integers are little-endian and read byte by byte, so the host's
 * byte order does not matter (compilers turn the four loads into one). The count is read as unsigned. llm.c
 * writes an int32, so its own shards have at most half as many tokens.
 *
 * The descriptor stays open, so a file that is unlinked, or replaced by another of its name, can be read on
 * with its old content.
 */
#include "src/data/token_file_internal.h"

#include "base/hash.h"
#include "base/minmax.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASH_WHOLE_BYTES  (64ull << 20)
#define HASH_WINDOW_BYTES 4096ull

enum { HASH_WINDOWS = 64 };

static bool ends_with(const char *text, const char *end)
{
    size_t text_length = strlen(text), end_length = strlen(end);
    return text_length >= end_length && strcmp(text + text_length - end_length, end) == 0;
}

/* ---- opening ---- */

/* A version of the shards' format. */
typedef struct shard_kind {
    uint32_t magic, version, token_bytes;
} shard_kind;

static const shard_kind shard_kinds[] = {
    {TIDE_DATA_SHARD_MAGIC, TIDE_DATA_SHARD_VERSION, 2},
    {TIDE_DATA_WIDE_SHARD_MAGIC, TIDE_DATA_WIDE_SHARD_VERSION, 4},
};

enum { HEADER_FIELDS_BYTES = 12 };

/* The fields of a shard's header; zeros where the file is too short for them. */
typedef struct shard_header {
    const shard_kind *kind; /* found by the magic; NULL: the magic is unknown */
    uint32_t magic, version, count;
    uint64_t need_bytes; /* the file's size according to kind and count; set if the kind is known */
    bool has_documents;  /* does the file begin with the magic of shards with documents? */
} shard_header;

static tide_status read_header(const tide_token_file *file, shard_header *header)
{
    uint8_t bytes[HEADER_FIELDS_BYTES] = {0};
    const size_t count = tide_min_u64(file->file_bytes, sizeof bytes);
    const tide_status status = tide_token_file_read(file, 0, bytes, count);
    if (status != TIDE_OK)
        return status;
    *header = (shard_header){
        .magic = tide_load_u32(bytes),
        .version = tide_load_u32(bytes + 4),
        .count = tide_load_u32(bytes + 8),
        .has_documents = memcmp(bytes, TIDE_TOKEN_DOCUMENTS_MAGIC, strlen(TIDE_TOKEN_DOCUMENTS_MAGIC)) == 0};
    for (size_t i = 0; i < sizeof shard_kinds / sizeof shard_kinds[0]; i++)
        if (header->magic == shard_kinds[i].magic)
            header->kind = &shard_kinds[i];
    if (header->kind != NULL)
        header->need_bytes =
            TIDE_DATA_SHARD_HEADER_BYTES + (uint64_t)header->kind->token_bytes * header->count;
    return TIDE_OK;
}

static tide_status take_shard(tide_token_file *file, const shard_header *header)
{
    const shard_kind *kind = header->kind;
    if (kind == NULL)
        return tide_fail(
            TIDE_ERROR_CORRUPT,
            "data %s: a *.bin file must be a token shard with magic %d (uint16 tokens) or %d "
            "(uint32), this one has %u; if it is tokens without a header, as nanoGPT writes them, "
            "say --data-format u16 (or u32)",
            file->path, TIDE_DATA_SHARD_MAGIC, TIDE_DATA_WIDE_SHARD_MAGIC, header->magic);
    if (file->file_bytes < TIDE_DATA_SHARD_HEADER_BYTES)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: %llu bytes are too few for a shard's header of %d bytes", file->path,
                         (unsigned long long)file->file_bytes, TIDE_DATA_SHARD_HEADER_BYTES);
    if (header->version != kind->version)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: shard version %u; with magic %u only version %u (uint%u tokens) is known",
                         file->path, header->version, kind->magic, kind->version, 8 * kind->token_bytes);
    if (header->need_bytes != file->file_bytes)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: the header says %u tokens, so %llu bytes, but the file has %llu bytes",
                         file->path, header->count, (unsigned long long)header->need_bytes,
                         (unsigned long long)file->file_bytes);
    if (header->count == 0)
        return tide_fail(TIDE_ERROR_CORRUPT, "data %s: the shard is empty, its header says 0 tokens",
                         file->path);
    file->format = TIDE_DATA_FORMAT_SHARDS;
    file->first_byte = TIDE_DATA_SHARD_HEADER_BYTES;
    file->token_count = header->count;
    file->token_bytes = kind->token_bytes;
    file->content_bytes = file->token_count * file->token_bytes;
    return TIDE_OK;
}

/* The file consists of tokens from the first byte to the last. */
static void take_all(tide_token_file *file, tide_data_format format, uint32_t token_bytes)
{
    file->format = format;
    file->first_byte = 0;
    file->token_count = file->file_bytes / token_bytes;
    file->token_bytes = token_bytes;
    file->content_bytes = file->token_count * token_bytes;
}

static tide_status take_headerless(tide_token_file *file, const shard_header *header, uint32_t token_bytes)
{
    const bool is_shard =
        header->has_documents || (header->kind != NULL && header->version == header->kind->version &&
                                  header->need_bytes == file->file_bytes);
    if (is_shard)
        return tide_fail(
            TIDE_ERROR_CORRUPT,
            "data %s: it is a token shard with a header, so not --data-format u%u: leave that out",
            file->path, 8 * token_bytes);
    if (file->file_bytes % token_bytes != 0)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: its %llu bytes are no whole number of uint%u tokens (--data-format u%u)",
                         file->path, (unsigned long long)file->file_bytes, 8 * token_bytes, 8 * token_bytes);
    take_all(file, TIDE_DATA_FORMAT_HEADERLESS, token_bytes);
    return TIDE_OK;
}

static bool is_text(const tide_token_file *file, const shard_header *header)
{
    return !header->has_documents && header->kind == NULL && !ends_with(file->path, ".bin");
}

static tide_status read_layout(tide_token_file *file, tide_data_encoding encoding)
{
    shard_header header;
    const tide_status status = read_header(file, &header);
    if (status != TIDE_OK)
        return status;
    if (encoding != TIDE_DATA_ENCODING_AUTO)
        return take_headerless(file, &header, encoding == TIDE_DATA_ENCODING_U16 ? 2 : 4);
    if (header.has_documents)
        return tide_token_documents_open(file);
    if (!is_text(file, &header))
        return take_shard(file, &header);
    take_all(file, TIDE_DATA_FORMAT_BYTES, 1);
    return TIDE_OK;
}

static tide_status refuse_open(const char *path)
{
    struct rlimit limit;
    const int error = errno;
    if (error == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0)
        return tide_fail(TIDE_ERROR_IO,
                         "data %s: can't be opened: every shard stays open, and this process may open %llu "
                         "files: raise that limit (ulimit -n), or join shards",
                         path, (unsigned long long)limit.rlim_cur);
    return tide_fail(TIDE_ERROR_IO, "data %s: can't be opened: %s", path, strerror(error));
}

static tide_status open_descriptor(tide_token_file *file)
{
    struct stat about;
    tide_status status = TIDE_OK;
    /* With O_NONBLOCK the opening of a fifo does not wait for a writer; the fifo is refused below. */
    const int descriptor = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor < 0)
        return refuse_open(file->path);
    if (fstat(descriptor, &about) != 0)
        status = tide_fail(TIDE_ERROR_IO, "data %s: can't be examined: %s", file->path, strerror(errno));
    else if (!S_ISREG(about.st_mode))
        status = tide_fail(TIDE_ERROR_IO, "data %s: neither a file nor a folder of *.bin shards", file->path);
    else if (about.st_size == 0)
        status = tide_fail(TIDE_ERROR_CORRUPT, "data %s: the file is empty", file->path);
    if (status != TIDE_OK) {
        close(descriptor); /* opened for reading: nothing can be lost */
        return status;
    }
    file->descriptor = descriptor;
    file->file_bytes = (uint64_t)about.st_size;
    file->modified = about.st_mtim;
    file->changed = about.st_ctim;
    return TIDE_OK;
}

tide_status tide_token_file_open(const char *path, tide_data_encoding encoding, tide_token_file *file)
{
    tide_token_file opened = {.path = strdup(path)};
    if (opened.path == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data %s: no memory for its path", path);
    tide_status status = open_descriptor(&opened);
    if (status != TIDE_OK)
        goto free_path;
    status = read_layout(&opened, encoding);
    if (status != TIDE_OK)
        goto close_descriptor;
    *file = opened;
    return TIDE_OK;
close_descriptor:
    close(opened.descriptor);
free_path:
    free(opened.path);
    return status;
}

tide_status tide_token_file_is_text(const char *path, bool *is)
{
    tide_token_file file = {.path = strdup(path)};
    shard_header header = {0};
    if (file.path == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data %s: no memory for its path", path);
    tide_status status = open_descriptor(&file);
    if (status == TIDE_OK) {
        status = read_header(&file, &header);
        close(file.descriptor);
    }
    if (status == TIDE_OK)
        *is = is_text(&file, &header);
    free(file.path);
    return status;
}

void tide_token_file_close(tide_token_file *file)
{
    close(file->descriptor);
    free(file->path);
    *file = (tide_token_file){0};
}

/* ---- has the file changed? ---- */

/* Chains *hash with `count` bytes of the content from `at` on, as one call of tide_hash_end for all of them
 * would. */
static tide_status hash_range(const tide_token_file *file, uint64_t at, uint64_t count, uint64_t *hash)
{
    uint8_t piece[TIDE_TOKEN_PIECE_BYTES];
    for (uint64_t done = 0;; done += TIDE_TOKEN_PIECE_BYTES) {
        const bool last = count - done <= TIDE_TOKEN_PIECE_BYTES;
        const size_t part = last ? (size_t)(count - done) : TIDE_TOKEN_PIECE_BYTES;
        const tide_status status = tide_token_file_read(file, file->first_byte + at + done, piece, part);
        if (status != TIDE_OK)
            return status;
        *hash = last ? tide_hash_end(*hash, piece, part, count) : tide_hash_words(*hash, piece, part);
        if (last)
            return TIDE_OK;
    }
}

tide_status tide_token_file_hash(const tide_token_file *file, uint64_t *hash)
{
    const uint64_t bytes = file->content_bytes;
    const uint64_t windows = bytes <= HASH_WHOLE_BYTES ? 1 : HASH_WINDOWS;
    const uint64_t window_bytes = bytes <= HASH_WHOLE_BYTES ? bytes : HASH_WINDOW_BYTES;
    tide_status status = TIDE_OK;
    uint64_t made = tide_hash_u64(*hash, file->token_count);
    for (uint64_t i = 0; i < windows && status == TIDE_OK; i++) {
        const bool last = i == windows - 1;
        const uint64_t at = last ? bytes - window_bytes : (bytes - window_bytes) / (HASH_WINDOWS - 1) * i;
        status = hash_range(file, at, window_bytes, &made);
    }
    if (status == TIDE_OK)
        *hash = made;
    return status;
}

tide_status tide_token_file_fingerprint(tide_token_file *file, uint64_t *hash)
{
    file->hash_before = *hash;
    const tide_status status = tide_token_file_hash(file, hash);
    file->hash_behind = *hash;
    return status;
}

static bool same_time(struct timespec a, struct timespec b)
{
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

tide_status tide_token_file_verify(tide_token_file *file)
{
    static const char advice[] = "a data file must stay as it is while a run reads it";
    struct stat now;
    uint64_t hash = file->hash_before;
    if (fstat(file->descriptor, &now) != 0)
        return tide_fail(TIDE_ERROR_IO, "data %s: can't be examined: %s", file->path, strerror(errno));
    if ((uint64_t)now.st_size != file->file_bytes)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: it had %llu bytes when it was opened and has %llu now; %s", file->path,
                         (unsigned long long)file->file_bytes, (unsigned long long)now.st_size, advice);
    if (same_time(now.st_mtim, file->modified) && same_time(now.st_ctim, file->changed))
        return TIDE_OK;
    const tide_status status = tide_token_file_hash(file, &hash);
    const bool is_hashed_whole = file->content_bytes <= HASH_WHOLE_BYTES;
    if (status == TIDE_OK && !is_hashed_whole && !same_time(now.st_mtim, file->modified))
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: its %llu bytes were written to after it was opened; %s", file->path,
                         (unsigned long long)file->file_bytes, advice);
    if (status == TIDE_OK && hash != file->hash_behind)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: its %llu bytes are not the content that it had when it was opened; %s",
                         file->path, (unsigned long long)file->file_bytes, advice);
    if (status == TIDE_OK) {
        file->modified = now.st_mtim;
        file->changed = now.st_ctim;
    }
    return status;
}
