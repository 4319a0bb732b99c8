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

/* The pieces of some shards' documents, in the order of the files. */
typedef struct collection {
    const tide_data *data;
    tide_piece *pieces;
    uint64_t count;
    tide_data_documents found; /* of positions and learned tokens nothing yet */
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
        of->found.unlearned++;
        return TIDE_OK;
    }
    if (!tide_array_grow(&of->pieces, of->count, sizeof *of->pieces))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data: no memory for %llu documents",
                         (unsigned long long)of->count + 1);
    of->pieces[of->count++] = (tide_piece){
        .first = shard->first_token + first, .positions = positions, .learned = (uint32_t)learned};
    return TIDE_OK;
}

/* Take the document of tokens [first, end) of the shard. */
static tide_status document_add(collection *of, const data_shard *shard, uint64_t first, uint64_t end)
{
    const uint64_t positions = end - first - 1, most = of->data->seq_len;
    of->found.documents++;
    of->found.long_documents += positions > most;
    if (positions == 0)
        of->found.unlearned++;
    if (positions > most && of->data->drops_long)
        return TIDE_OK;
    tide_status status = TIDE_OK;
    for (uint64_t done = 0, part; done < positions && status == TIDE_OK; done += part) {
        part = tide_min_u64(positions - done, most);
        status = piece_add(of, shard, first + done, (uint32_t)part);
    }
    return status;
}

/* Take the shard's documents. */
static tide_status shard_add(collection *of, const data_shard *shard)
{
    const tide_token_file *file = &shard->file;
    uint64_t starts[STARTS_AT_ONCE + 1]; /* and where the last of them ends */
    tide_status status = TIDE_OK;
    for (uint64_t done = 0, part; done < file->documents && status == TIDE_OK; done += part) {
        const uint64_t left = file->documents - done;
        part = tide_min_u64(left, STARTS_AT_ONCE);
        starts[part] = file->token_count;
        status = tide_token_file_starts(file, done, tide_min_u64(part + 1, left), starts);
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

static tide_status collect(collection *of, size_t first_shard, size_t end_shard)
{
    tide_status status = TIDE_OK;
    for (size_t i = first_shard; i < end_shard && status == TIDE_OK; i++)
        status = shard_add(of, &of->data->shards[i]);
    return status;
}

/* Pack pieces [begin, end) of the collection as a split, and add up what they hold. */
static tide_status split_pack(const collection *of, uint64_t begin, uint64_t end, tide_data_documents *found,
                              tide_sequence_packing **packing)
{
    found->pieces = end - begin;
    for (uint64_t i = begin; i < end; i++) {
        found->positions += of->pieces[i].positions;
        found->learned += of->pieces[i].learned;
    }
    return tide_sequence_packing_make(of->pieces + begin, end - begin, of->data->seq_len, packing);
}

/* How many of the training shards' pieces are held out for validation. */
static uint64_t held_out(const tide_data *data, uint64_t pieces)
{
    if (data->split != TIDE_DATA_SPLIT_HELD_OUT)
        return 0;
    return tide_max_u64(
        pieces / 100 * TIDE_DATA_VALIDATION_PERCENT + pieces % 100 * TIDE_DATA_VALIDATION_PERCENT / 100, 1);
}

/* Refuses data of which too little can be learned. */
static tide_status refuse_few(const collection *of, const char *path, const char *what)
{
    return tide_fail(
        TIDE_ERROR_CORRUPT,
        "data %s: of its %llu documents %llu fit sequences of %u and hold something to learn, whole or "
        "as parts (%llu are longer): %s",
        path, (unsigned long long)of->found.documents, (unsigned long long)of->count, of->data->seq_len,
        (unsigned long long)of->found.long_documents, what);
}

static tide_status training_pack(tide_data *data, const char *path)
{
    collection of = {.data = data};
    tide_status status = collect(&of, 0, data->training_shards);
    const uint64_t out = held_out(data, of.count);
    data->training_documents = of.found;
    if (status == TIDE_OK && of.count <= out)
        status = refuse_few(&of, path,
                            out > 0 ? "one is needed for training and one to hold out for validation"
                                    : "none is left for training");
    if (status == TIDE_OK)
        status = split_pack(&of, 0, of.count - out, &data->training_documents, &data->training);
    if (status == TIDE_OK && out > 0)
        status = split_pack(&of, of.count - out, of.count, &data->validation_documents, &data->validation);
    free(of.pieces);
    return status;
}

static tide_status validation_pack(tide_data *data, const char *path)
{
    collection of = {.data = data};
    tide_status status = collect(&of, data->training_shards, data->shard_count);
    data->validation_documents = of.found;
    if (status == TIDE_OK && of.count == 0)
        status = refuse_few(&of, path, "none is left for validation");
    if (status == TIDE_OK)
        status = split_pack(&of, 0, of.count, &data->validation_documents, &data->validation);
    free(of.pieces);
    return status;
}

tide_status tide_data_pack(tide_data *data, const tide_data_options *options)
{
    tide_status status = training_pack(data, options->path);
    if (status == TIDE_OK && data->validation == NULL)
        status = validation_pack(data, options->eval_path != NULL ? options->eval_path : options->path);
    if (status != TIDE_OK)
        return status;
    data->training_sequences = tide_sequence_packing_sequences(data->training);
    data->validation_sequences = tide_sequence_packing_sequences(data->validation);
    return TIDE_OK;
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
    if (tokenizer == NULL)
        return TIDE_OK;
    FILE *file = fopen(tokenizer, "rbe");
    if (file == NULL && (errno == ENOENT || errno == ENOTDIR))
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
