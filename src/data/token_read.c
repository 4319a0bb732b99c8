/* Reads tokens, their mask and the starts of documents.
 *
 * Tokens are read with pread, not through a mapping: if another process truncates the file, a read returns
 * fewer bytes, but a reader of a mapping gets SIGBUS. (A batch of 8 sequences takes 20 us of processor time,
 * with 4096 tokens in each 85 us; through a mapping it took 6 and 60.)
 */
#include "src/data/token_file_internal.h"

#include "base/minmax.h"

#include <assert.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

tide_status tide_token_file_read(const tide_token_file *file, uint64_t at, void *bytes, size_t count)
{
    uint8_t *to = bytes;
    while (count > 0) {
        const ssize_t got = pread(file->descriptor, to, count, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return tide_fail(TIDE_ERROR_IO, "data %s: can't be read at byte %llu: %s", file->path,
                             (unsigned long long)at, strerror(errno));
        if (got == 0)
            return tide_fail(TIDE_ERROR_CORRUPT,
                             "data %s: it ends at byte %llu, and had %llu bytes when it was opened",
                             file->path, (unsigned long long)at, (unsigned long long)file->file_bytes);
        to += got;
        at += (uint64_t)got;
        count -= (size_t)got;
    }
    return TIDE_OK;
}

static uint32_t load_token(const uint8_t *bytes, uint32_t token_bytes, size_t index)
{
    const uint8_t *at = bytes + token_bytes * index;
    if (token_bytes == 1)
        return at[0];
    return token_bytes == 2 ? (uint32_t)at[0] | (uint32_t)at[1] << 8 : tide_load_u32(at);
}

/* Fails with the position of the piece's first token outside the vocabulary, which must exist. The piece
 * begins at token `first`. */
static tide_status refuse_outside(const tide_token_file *file, const uint8_t *piece, uint64_t first,
                                  uint32_t vocab_size)
{
    size_t at = 0;
    while (load_token(piece, file->token_bytes, at) < vocab_size)
        at++;
    return tide_fail(TIDE_ERROR_CORRUPT, "data %s: token %u at position %llu is outside the vocabulary of %u",
                     file->path, load_token(piece, file->token_bytes, at), (unsigned long long)(first + at),
                     vocab_size);
}

/* Reads and checks tokens, and stores them unless `tokens` is NULL. It checks the bytes that it has read
 * and does not read again to check, since another process may change the file at any time. */
static tide_status read_tokens(const tide_token_file *file, uint64_t first, uint64_t count,
                               uint32_t vocab_size, int32_t *tokens)
{
    uint8_t piece[TIDE_TOKEN_PIECE_BYTES];
    assert(first <= file->token_count && count <= file->token_count - first);
    for (uint64_t done = 0, part; done < count; done += part) {
        const uint64_t most = TIDE_TOKEN_PIECE_BYTES / file->token_bytes, at = first + done;
        uint32_t highest = 0;
        part = tide_min_u64(count - done, most);
        const tide_status status = tide_token_file_read(file, file->first_byte + file->token_bytes * at,
                                                        piece, (size_t)part * file->token_bytes);
        if (status != TIDE_OK)
            return status;
        for (size_t i = 0; i < part; i++) {
            const uint32_t token = load_token(piece, file->token_bytes, i);
            highest = tide_max_u32(token, highest);
            if (tokens != NULL)
                tokens[done + i] = (int32_t)token;
        }
        if (highest >= vocab_size)
            return refuse_outside(file, piece, at, vocab_size);
    }
    return TIDE_OK;
}

tide_status tide_token_file_check(const tide_token_file *file, uint64_t first, uint64_t count,
                                  uint32_t vocab_size)
{
    const bool any_token_is_inside = vocab_size >= 1ull << 8 * file->token_bytes;
    return any_token_is_inside ? TIDE_OK : read_tokens(file, first, count, vocab_size, NULL);
}

tide_status tide_token_file_copy(const tide_token_file *file, uint64_t first, uint64_t count,
                                 uint32_t vocab_size, int32_t *tokens)
{
    return read_tokens(file, first, count, vocab_size, tokens);
}

/* The bits of a mask: of the tokens from token 8 x first_byte on. */
typedef struct mask_part {
    uint8_t bytes[TIDE_TOKEN_PIECE_BYTES];
    uint64_t first_byte;
} mask_part;

/* Reads the bits of tokens [first, first + count), or of as many as fit; returns how many in *count. */
static tide_status read_mask(const tide_token_file *file, uint64_t first, uint64_t *count, mask_part *part)
{
    part->first_byte = first / 8;
    const uint64_t most = 8 * sizeof part->bytes - first % 8;
    *count = tide_min_u64(*count, most);
    return tide_token_file_read(file, file->mask_byte + part->first_byte, part->bytes,
                                (size_t)((first + *count - 1) / 8 - part->first_byte + 1));
}

static bool is_learned(const mask_part *part, uint64_t token)
{
    return part->bytes[token / 8 - part->first_byte] >> token % 8 & 1;
}

tide_status tide_token_file_targets(const tide_token_file *file, uint64_t first, uint64_t count,
                                    uint32_t vocab_size, int32_t *targets)
{
    tide_status status = read_tokens(file, first, count, vocab_size, targets);
    mask_part part;
    for (uint64_t done = 0, here; file->mask_byte != 0 && done < count && status == TIDE_OK; done += here) {
        here = count - done;
        status = read_mask(file, first + done, &here, &part);
        for (uint64_t i = done; i < done + here && status == TIDE_OK; i++)
            targets[i] = is_learned(&part, first + i) ? targets[i] : -1;
    }
    return status;
}

tide_status tide_token_file_learned(const tide_token_file *file, uint64_t first, uint64_t count,
                                    uint64_t *learned)
{
    tide_status status = TIDE_OK;
    uint64_t found = file->mask_byte == 0 ? count : 0;
    mask_part part;
    for (uint64_t done = 0, here; file->mask_byte != 0 && done < count && status == TIDE_OK; done += here) {
        here = count - done;
        status = read_mask(file, first + done, &here, &part);
        for (uint64_t i = done; i < done + here && status == TIDE_OK; i++)
            found += is_learned(&part, first + i);
    }
    if (status == TIDE_OK)
        *learned = found;
    return status;
}

tide_status tide_token_file_starts(const tide_token_file *file, uint64_t first, uint64_t count,
                                   uint64_t *starts)
{
    assert(first <= file->documents && count <= file->documents - first);
    uint8_t *bytes = (uint8_t *)starts; /* each start is read where its own bytes stand */
    const tide_status status = tide_token_file_read(file, file->starts_byte + 8 * first, bytes, 8 * count);
    for (uint64_t i = 0; i < count && status == TIDE_OK; i++)
        starts[i] = tide_load_u64(bytes + 8 * i);
    return status;
}
