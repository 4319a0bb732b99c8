/* A shard of tokens with documents and a mask, as tidepool-tokenize writes it. All integers are
 * little-endian; sections begin at multiples of 8 bytes.
 *
 *     byte  0  "TIDETOK1"
 *           8  uint32  version, 1
 *          12  uint32  bytes of a token, 2 or 4
 *          16  uint64  tokens
 *          24  uint64  documents; 0: the shard does not say where they begin
 *          32  uint32  the tokenizer's vocabulary, which no reader needs
 *          36  uint32  flags, 0
 *          40  the first 24 bytes of the SHA-256 of the tokenizer's file; zeros: not known
 *          64  tokens
 *              mask: bit i, least significant bit of a byte first, says whether token i is learned
 *              uint64 for each document: the token with which it begins
 *              uint32 CRC-32C of all bytes before, which ends the file
 *
 * Opening a shard reads it once, to check the CRC. */
#include "src/data/token_file_internal.h"

#include "base/align.h"
#include "base/crc32c.h"
#include "base/minmax.h"

#include <stdbool.h>
#include <string.h>

enum {
    DOCUMENTS_VERSION = 1,
    DOCUMENTS_HEADER_BYTES = 64,
    DOCUMENTS_CRC_BYTES = 4,
    AT_VERSION = 8,
    AT_TOKEN_BYTES = 12,
    AT_TOKENS = 16,
    AT_DOCUMENTS = 24,
    AT_FLAGS = 36,
    AT_TOKENIZER = 40,
};

static tide_status refuse_documents(const tide_token_file *file, const char *why)
{
    return tide_fail(TIDE_ERROR_CORRUPT, "data %s: %s", file->path, why);
}

/* The size of the file that its header describes; 0 if no file is so large. Sets the sections' offsets. */
static uint64_t documents_lay_out(tide_token_file *file)
{
    if (file->token_count > file->file_bytes / file->token_bytes || file->documents > file->token_count)
        return 0;
    file->first_byte = DOCUMENTS_HEADER_BYTES;
    file->mask_byte = tide_round_up(file->first_byte + file->token_bytes * file->token_count, 8);
    file->starts_byte = tide_round_up(file->mask_byte + tide_ceil_div(file->token_count, 8), 8);
    const uint64_t end = file->starts_byte + 8 * file->documents;
    file->content_bytes =
        end + DOCUMENTS_CRC_BYTES - file->first_byte; /* so a sample of it sees any change */
    return end + DOCUMENTS_CRC_BYTES;
}

static tide_status check_crc(const tide_token_file *file)
{
    const uint64_t checked_bytes = file->file_bytes - DOCUMENTS_CRC_BYTES;
    uint8_t piece[TIDE_TOKEN_PIECE_BYTES];
    uint32_t crc = 0;
    tide_status status = TIDE_OK;
    for (uint64_t done = 0, part; done < checked_bytes && status == TIDE_OK; done += part) {
        part = tide_min_u64(checked_bytes - done, sizeof piece);
        status = tide_token_file_read(file, done, piece, part);
        if (status == TIDE_OK)
            crc = tide_crc32c(crc, piece, part);
    }
    if (status == TIDE_OK)
        status = tide_token_file_read(file, checked_bytes, piece, DOCUMENTS_CRC_BYTES);
    if (status == TIDE_OK && tide_load_u32(piece) != crc)
        return refuse_documents(file, "its checksum is not that of its content: the shard is damaged");
    return status;
}

/* The first document begins with the first token, each other one after the one before it. */
static tide_status check_starts(const tide_token_file *file)
{
    uint64_t starts[TIDE_TOKEN_PIECE_BYTES / 8], before = 0;
    tide_status status = TIDE_OK;
    for (uint64_t done = 0, part; done < file->documents && status == TIDE_OK; done += part) {
        part = tide_min_u64(file->documents - done, sizeof starts / sizeof *starts);
        status = tide_token_file_starts(file, done, part, starts);
        for (uint64_t i = 0; i < part && status == TIDE_OK; i++) {
            const bool right = done + i == 0 ? starts[i] == 0 : starts[i] > before;
            if (!right || starts[i] >= file->token_count)
                status = tide_fail(TIDE_ERROR_CORRUPT,
                                   "data %s: document %llu begins at token %llu of %llu, the one before at "
                                   "%llu: starts must rise from 0",
                                   file->path, (unsigned long long)(done + i), (unsigned long long)starts[i],
                                   (unsigned long long)file->token_count, (unsigned long long)before);
            before = starts[i];
        }
    }
    return status;
}

tide_status tide_token_documents_open(tide_token_file *file)
{
    uint8_t header[DOCUMENTS_HEADER_BYTES];
    if (file->file_bytes < sizeof header)
        return refuse_documents(file, "it is too short for the header of a TIDETOK1 shard, 64 bytes");
    const tide_status status = tide_token_file_read(file, 0, header, sizeof header);
    if (status != TIDE_OK)
        return status;
    if (tide_load_u32(header + AT_VERSION) != DOCUMENTS_VERSION || tide_load_u32(header + AT_FLAGS) != 0)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: a TIDETOK1 shard of version %u with flags %u; only version %d without "
                         "flags is known",
                         file->path, tide_load_u32(header + AT_VERSION), tide_load_u32(header + AT_FLAGS),
                         DOCUMENTS_VERSION);
    file->format = TIDE_DATA_FORMAT_DOCUMENTS;
    file->token_bytes = tide_load_u32(header + AT_TOKEN_BYTES);
    file->token_count = tide_load_u64(header + AT_TOKENS);
    file->documents = tide_load_u64(header + AT_DOCUMENTS);
    memcpy(file->tokenizer, header + AT_TOKENIZER, sizeof file->tokenizer);
    if (file->token_bytes != 2 && file->token_bytes != 4)
        return refuse_documents(file, "its header says neither 2 nor 4 bytes a token");
    if (file->token_count == 0)
        return refuse_documents(file, "the shard is empty, its header says 0 tokens");
    const uint64_t need_bytes = documents_lay_out(file);
    if (need_bytes != file->file_bytes)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: the header says %llu tokens of %u bytes in %llu documents, but the file "
                         "has %llu bytes",
                         file->path, (unsigned long long)file->token_count, file->token_bytes,
                         (unsigned long long)file->documents, (unsigned long long)file->file_bytes);
    const tide_status checked = check_crc(file);
    return checked == TIDE_OK ? check_starts(file) : checked;
}
