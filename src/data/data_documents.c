/* Cuts documents into pieces that fit a sequence, and packs them; and checks which tokenizer made them. */
#include "src/data/data_internal.h"

#include "base/array.h"
#include "base/minmax.h"
#include "base/sha256.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STARTS_AT_ONCE = 1024, TOKENIZER_PART_BYTES = 65536 };

/* The pieces of one split while they are collected. Documents are numbered over the split's shards. */
typedef struct collection {
    const tide_data *data;
    uint64_t begin, end; /* the documents to take */
    tide_piece *pieces;
    uint64_t count;
    tide_data_documents *found;
} collection;

/* Take the part of a document with inputs [first, first + positions) of the shard, if something in it is
 * learned. */
static tide_status piece_add(collection *of, const data_shard *shard, uint64_t first, uint32_t positions)
{
    uint64_t learned = 0;
    const tide_status status = tide_token_file_learned(&shard->file, first + 1, positions, &learned);
    if (status != TIDE_OK)
        return status;
    if (learned == 0) {
        of->found->unlearned++;
        return TIDE_OK;
    }
    if (!tide_array_grow(&of->pieces, of->count, sizeof *of->pieces))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data: no memory for %llu documents",
                         (unsigned long long)of->count + 1);
    of->pieces[of->count++] = (tide_piece){.first = shard->first_token + first, .positions = positions};
    of->found->positions += positions;
    of->found->learned += learned;
    return TIDE_OK;
}

/* Take the document of tokens [first, end) of the shard. */
static tide_status document_add(collection *of, const data_shard *shard, uint64_t first, uint64_t end)
{
    const uint64_t positions = end - first - 1, most = of->data->seq_len;
    of->found->documents++;
    of->found->long_documents += positions > most;
    if (positions == 0)
        of->found->unlearned++;
    if (positions > most && of->data->drops_long)
        return TIDE_OK;
    tide_status status = TIDE_OK;
    for (uint64_t done = 0, part; done < positions && status == TIDE_OK; done += part) {
        part = tide_min_u64(positions - done, most);
        status = piece_add(of, shard, first + done, (uint32_t)part);
    }
    return status;
}

/* Take those documents of the shard that the collection wants; the shard's first one has the number
 * `number`. */
static tide_status shard_add(collection *of, const data_shard *shard, uint64_t number)
{
    const tide_token_file *file = &shard->file;
    const uint64_t begin = tide_max_u64(of->begin, number),
                   end = tide_min_u64(of->end, number + file->documents);
    uint64_t starts[STARTS_AT_ONCE + 1]; /* and where the last of them ends */
    tide_status status = TIDE_OK;
    for (uint64_t done = begin, part; done < end && status == TIDE_OK; done += part) {
        part = tide_min_u64(end - done, STARTS_AT_ONCE);
        const uint64_t first = done - number, left = file->documents - first;
        starts[part] = file->token_count;
        status = tide_token_file_starts(file, first, tide_min_u64(part + 1, left), starts);
        for (uint64_t i = 0; i < part && status == TIDE_OK; i++) {
            /* they rose when the file was opened */
            if (starts[i] >= starts[i + 1] || starts[i + 1] > file->token_count)
                return tide_fail(
                    TIDE_ERROR_CORRUPT,
                    "data %s: its documents changed while it was opened; a data file must stay as "
                    "it is while a run reads it",
                    file->path);
            status = document_add(of, shard, starts[i], starts[i + 1]);
        }
    }
    return status;
}

/* Pack documents [begin, end) of shards [first_shard, end_shard), which are numbered from 0 on. */
static tide_status split_pack(const tide_data *data, size_t first_shard, size_t end_shard, uint64_t begin,
                              uint64_t end, tide_data_documents *found, tide_sequence_packing **packing)
{
    collection of = {.data = data, .begin = begin, .end = end, .found = found};
    tide_status status = TIDE_OK;
    uint64_t number = 0;
    for (size_t i = first_shard; i < end_shard && status == TIDE_OK; i++) {
        status = shard_add(&of, &data->shards[i], number);
        number += data->shards[i].file.documents;
    }
    if (status == TIDE_OK)
        status = tide_sequence_packing_make(of.pieces, of.count, data->seq_len, packing);
    free(of.pieces);
    return status;
}

static uint64_t documents_of(const tide_data *data, size_t first_shard, size_t end_shard)
{
    uint64_t documents = 0;
    for (size_t i = first_shard; i < end_shard; i++)
        documents += data->shards[i].file.documents;
    return documents;
}

/* How many of the training shards' documents are held out for validation. */
static uint64_t held_out(const tide_data *data, uint64_t documents)
{
    if (data->split != TIDE_DATA_SPLIT_HELD_OUT)
        return 0;
    return tide_max_u64(documents / 100 * TIDE_DATA_VALIDATION_PERCENT +
                            documents % 100 * TIDE_DATA_VALIDATION_PERCENT / 100,
                        1);
}

tide_status tide_data_pack(tide_data *data, const char *path)
{
    const size_t training = data->training_shards, all = data->shard_count;
    const uint64_t documents = documents_of(data, 0, training), out = held_out(data, documents);
    tide_status status =
        split_pack(data, 0, training, 0, documents - out, &data->training_documents, &data->training);
    if (status == TIDE_OK && out > 0)
        status = split_pack(data, 0, training, documents - out, documents, &data->validation_documents,
                            &data->validation);
    else if (status == TIDE_OK)
        status = split_pack(data, training, all, 0, documents_of(data, training, all),
                            &data->validation_documents, &data->validation);
    if (status != TIDE_OK)
        return status;
    data->training_sequences = tide_sequence_packing_sequences(data->training);
    data->validation_sequences = tide_sequence_packing_sequences(data->validation);
    if (data->training_sequences > 0 && data->validation_sequences > 0)
        return TIDE_OK;
    const tide_data_documents *empty =
        data->training_sequences == 0 ? &data->training_documents : &data->validation_documents;
    return tide_fail(
        TIDE_ERROR_CORRUPT,
        "data %s: of its %llu documents for %s none has a token to learn in a sequence of %u (%llu "
        "are longer)",
        path, (unsigned long long)empty->documents, data->training_sequences == 0 ? "training" : "validation",
        data->seq_len, (unsigned long long)empty->long_documents);
}

/* ---- the tokenizer ---- */

static tide_status tokenizer_hash(FILE *file, const char *path, uint8_t digest[TIDE_SHA256_BYTES])
{
    uint8_t *part = malloc(TOKENIZER_PART_BYTES);
    if (part == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "tokenizer %s: no memory to read it", path);
    tide_sha256 hash;
    tide_sha256_begin(&hash);
    for (size_t got; (got = fread(part, 1, TOKENIZER_PART_BYTES, file)) > 0;)
        tide_sha256_add(&hash, part, got);
    free(part);
    if (ferror(file))
        return tide_fail(TIDE_ERROR_IO, "tokenizer %s: can't be read: %s", path, strerror(errno));
    tide_sha256_end(&hash, digest);
    return TIDE_OK;
}

tide_status tide_data_tokenizer_check(const tide_data *data, const char *tokenizer)
{
    static const uint8_t unknown[TIDE_DATA_TOKENIZER_BYTES];
    uint8_t digest[TIDE_SHA256_BYTES];
    FILE *file = tokenizer != NULL ? fopen(tokenizer, "rbe") : NULL;
    if (tokenizer == NULL || (file == NULL && (errno == ENOENT || errno == ENOTDIR)))
        return TIDE_OK;
    if (file == NULL)
        return tide_fail(TIDE_ERROR_IO, "tokenizer %s: can't be opened: %s", tokenizer, strerror(errno));
    tide_status status = tokenizer_hash(file, tokenizer, digest);
    fclose(file); /* opened for reading: nothing can be lost */
    for (size_t i = 0; i < data->shard_count && status == TIDE_OK; i++) {
        const tide_token_file *of = &data->shards[i].file;
        if (memcmp(of->tokenizer, unknown, sizeof unknown) != 0 &&
            memcmp(of->tokenizer, digest, sizeof unknown) != 0)
            status = tide_fail(TIDE_ERROR_MISMATCH,
                               "data %s: its tokens were made with another tokenizer than %s; "
                               "--any-tokenizer takes them all the same",
                               of->path, tokenizer);
    }
    return status;
}
