/* Training data as sequences, none of which crosses shards.
 *
 *     shard 0      | s0 | s1 | s2 |tail|          stride seq_len; a sequence's last target
 *     shard 1      | s3 | s4 |t|                  is the next one's first token
 *     sequences    0 ............ training | validation
 *
 * Validation sequences come from files of their own, which follow the training files in the array, or are the
 * last 5% of the training files' sequences, at least one.
 *
 * Vocabulary. Every batch is checked while it is copied: the copy touches each token anyway, the check costs
 * one maximum per token, and it works even if the file changes after open. To check everything at open
 * instead would read a 20 GB set from disk before step 1 and prove nothing about step 2. But a wrong
 * vocabulary should not show only in the middle of a long run, so open checks the first 512 MiB (0.3 s when
 * cached): such a mistake is systematic and shows there. A shard with documents is read once all the same: it
 * has a checksum, and packing has to know every document. */
#include "src/data/data_internal.h"

#include "base/array.h"
#include "src/data/shard_folder.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool tide_data_is_valid(const tide_data *data)
{
    if (data->shard_count == 0 || data->seq_len == 0 || data->training_sequences == 0)
        return false;
    if (data->packed)
        return data->validation_sequences > 0;
    uint64_t sequences = 0;
    for (size_t i = 0; i < data->shard_count; i++) {
        if (data->shards[i].first_sequence != sequences)
            return false;
        if (i == data->training_shards && data->training_sequences != sequences)
            return false;
        sequences += data->shards[i].sequences;
    }
    if ((data->split == TIDE_DATA_SPLIT_HELD_OUT) != (data->training_shards == data->shard_count))
        return false;
    return data->validation_sequences > 0 &&
           data->training_sequences + data->validation_sequences == sequences;
}

/* ---- opening ---- */

static tide_status options_check(const tide_data_options *options)
{
    if (options->path == NULL || options->path[0] == '\0')
        return tide_fail(TIDE_ERROR_ARGUMENT, "data: the path is empty");
    if (options->eval_path != NULL && options->eval_path[0] == '\0')
        return tide_fail(TIDE_ERROR_ARGUMENT, "validation data: the path is empty");
    if (options->seq_len == 0 || options->seq_len > INT32_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "data %s: a sequence length of %u is not in 1 .. %d",
                         options->path, options->seq_len, INT32_MAX);
    if (options->vocab_size == 0 || options->vocab_size > INT32_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "data %s: a vocabulary of %u is not in 1 .. %d", options->path,
                         options->vocab_size, INT32_MAX);
    return TIDE_OK;
}

/* Append one file. If a later one fails, the caller closes those appended before. */
static tide_status shard_append(tide_data *data, const char *path, tide_data_encoding encoding)
{
    if (!tide_array_grow(&data->shards, data->shard_count, sizeof *data->shards))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data %s: no memory for %zu shards", path,
                         data->shard_count + 1);
    data_shard shard = {0};
    tide_status status = tide_token_file_open(path, encoding, &shard.file);
    if (status != TIDE_OK)
        return status;
    data->shards[data->shard_count++] = shard;
    return TIDE_OK;
}

static tide_status entry_append(tide_data *data, const char *folder, const char *name,
                                tide_data_encoding encoding)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return tide_fail(TIDE_ERROR_ARGUMENT, "data %s/%s: the path is longer than %zu bytes", folder, name,
                         sizeof path - 1);
    return shard_append(data, path, encoding);
}

/* Append a split folder's files for training or for validation; of another folder all files. */
static tide_status folder_append(tide_data *data, const char *path, bool validation,
                                 tide_data_encoding encoding, bool *is_split)
{
    tide_shard_folder folder;
    tide_status status = tide_shard_folder_open(path, &folder);
    if (status != TIDE_OK)
        return status;
    for (size_t i = 0; i < folder.count && status == TIDE_OK; i++)
        if (!folder.is_split || tide_shard_folder_validates(&folder, i) == validation)
            status = entry_append(data, path, folder.entries[i]->d_name, encoding);
    *is_split = folder.is_split;
    tide_shard_folder_close(&folder);
    return status;
}

static tide_status files_append(tide_data *data, const char *path, bool validation,
                                tide_data_encoding encoding, bool *is_split)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return tide_fail(TIDE_ERROR_IO, "data %s: can't be found: %s", path, strerror(errno));
    *is_split = false;
    return S_ISDIR(about.st_mode) ? folder_append(data, path, validation, encoding, is_split)
                                  : shard_append(data, path, encoding);
}

static tide_status files_open(tide_data *data, const tide_data_options *options)
{
    bool is_split;
    tide_status status = files_append(data, options->path, false, options->encoding, &is_split);
    if (status != TIDE_OK)
        return status;
    data->training_shards = data->shard_count;
    if (options->eval_path != NULL)
        data->split = TIDE_DATA_SPLIT_GIVEN;
    else if (is_split)
        data->split = TIDE_DATA_SPLIT_NAMED;
    else
        return TIDE_OK;
    const char *validation = options->eval_path != NULL ? options->eval_path : options->path;
    return files_append(data, validation, true, options->encoding, &is_split);
}

tide_status tide_data_is_text(const char *path, tide_data_encoding encoding, bool *is)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return tide_fail(TIDE_ERROR_IO, "data %s: can't be found: %s", path, strerror(errno));
    *is = false;
    if (S_ISDIR(about.st_mode) || encoding != TIDE_DATA_ENCODING_AUTO)
        return TIDE_OK;
    return tide_token_file_is_text(path, is);
}

static bool is_text(const data_shard *shard)
{
    return shard->file.format == TIDE_DATA_FORMAT_BYTES;
}

static tide_status format_check(const tide_data *data, const tide_data_options *options)
{
    const data_shard *first = &data->shards[0], *last = &data->shards[data->shard_count - 1];
    if (is_text(first) && data->vocab_size < 256)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "data %s: text is read as bytes and needs a vocabulary of at least 256, the model's is %u",
            options->path, data->vocab_size);
    if (is_text(first) != is_text(last))
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "validation data %s: it is %s, and the training data %s is %s: both must be of one kind",
            options->eval_path, is_text(last) ? "text" : "token ids", options->path,
            is_text(first) ? "text" : "token ids");
    return TIDE_OK;
}

/* Decide whether documents are packed. */
static tide_status packing_choose(tide_data *data, const tide_data_options *options)
{
    const char *with = NULL, *without = NULL;
    for (size_t i = 0; i < data->shard_count; i++) {
        const tide_token_file *file = &data->shards[i].file;
        if (file->documents > 0)
            with = file->path;
        else
            without = file->path;
    }
    data->packed = options->packing == TIDE_DATA_PACKING_ON ||
                   (options->packing == TIDE_DATA_PACKING_AUTO && with != NULL);
    data->drops_long = options->drops_long;
    data->whole_epochs = data->packed || options->whole_epochs;
    if (data->packed && with == NULL)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "data %s: it does not say where documents begin, so there is nothing to pack; shards of "
            "tidepool-tokenize do",
            without);
    if (data->packed && without != NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "data %s: it does not say where documents begin, and %s does: both must, or say "
                         "--packing off",
                         without, with);
    return TIDE_OK;
}

/* Number the tokens of all shards. */
static void tokens_number(tide_data *data)
{
    for (size_t i = 0; i < data->shard_count; i++) {
        data->shards[i].first_token = data->tokens;
        data->tokens += data->shards[i].file.token_count;
    }
}

/* Divide shards [begin, end) into sequences, which are numbered from `first` on; returns how many there
 * are. */
static uint64_t shards_lay_out(tide_data *data, size_t begin, size_t end, uint64_t first)
{
    uint64_t next = first;
    for (size_t i = begin; i < end; i++) {
        data_shard *shard = &data->shards[i];
        shard->first_sequence = next;
        shard->sequences = (shard->file.token_count - 1) / data->seq_len;
        next += shard->sequences;
    }
    return next - first;
}

/* Hold out part of the training data for validation, since there is no other validation data. */
static tide_status sequences_hold_out(tide_data *data, const char *path)
{
    const uint64_t sequences = data->training_sequences;
    if (sequences < 2)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: %llu tokens are too few: one training and one validation sequence of %u "
                         "tokens need %llu",
                         path, (unsigned long long)data->tokens, data->seq_len, 2ull * data->seq_len + 1);
    data->validation_sequences =
        sequences / 100 * TIDE_DATA_VALIDATION_PERCENT + sequences % 100 * TIDE_DATA_VALIDATION_PERCENT / 100;
    if (data->validation_sequences == 0)
        data->validation_sequences = 1;
    data->training_sequences = sequences - data->validation_sequences;
    return TIDE_OK;
}

static tide_status sequences_lay_out(tide_data *data, const tide_data_options *options)
{
    if (data->packed)
        return tide_data_pack(data, options);
    data->training_sequences = shards_lay_out(data, 0, data->training_shards, 0);
    if (data->split == TIDE_DATA_SPLIT_HELD_OUT)
        return sequences_hold_out(data, options->path);
    data->validation_sequences =
        shards_lay_out(data, data->training_shards, data->shard_count, data->training_sequences);
    const bool trains = data->training_sequences > 0;
    const char *path = trains && options->eval_path != NULL ? options->eval_path : options->path;
    if (!trains || data->validation_sequences == 0)
        return tide_fail(TIDE_ERROR_CORRUPT,
                         "data %s: no file for %s has the %llu tokens of a sequence of %u", path,
                         trains ? "validation" : "training", 1ull + data->seq_len, data->seq_len);
    return TIDE_OK;
}

/* ---- opening: all steps together ---- */

static tide_status vocabulary_check(const tide_data *data)
{
    uint64_t left_bytes = TIDE_DATA_OPEN_CHECK_BYTES;
    for (size_t i = 0; i < data->shard_count && left_bytes > 0; i++) {
        const tide_token_file *file = &data->shards[i].file;
        uint64_t count = left_bytes / file->token_bytes;
        if (count > file->token_count)
            count = file->token_count;
        tide_status status = tide_token_file_check(file, 0, count, data->vocab_size);
        if (status != TIDE_OK)
            return status;
        left_bytes -= count * file->token_bytes;
    }
    return TIDE_OK;
}

tide_status tide_data_open(const tide_data_options *options, tide_data **data)
{
    tide_status status = options_check(options);
    if (status != TIDE_OK)
        return status;
    tide_data *opened = calloc(1, sizeof *opened);
    if (opened == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data %s: no memory for its description", options->path);
    opened->vocab_size = options->vocab_size;
    opened->seq_len = options->seq_len;
    opened->seed = options->seed;
    status = files_open(opened, options);
    if (status == TIDE_OK)
        status = format_check(opened, options);
    if (status == TIDE_OK)
        status = tide_data_tokenizer_check(opened, options->tokenizer);
    if (status == TIDE_OK)
        status = packing_choose(opened, options);
    tokens_number(opened);
    if (status == TIDE_OK)
        status = sequences_lay_out(opened, options);
    if (status == TIDE_OK)
        status = vocabulary_check(opened);
    if (status == TIDE_OK)
        status = tide_data_fingerprint_make(opened);
    if (status != TIDE_OK) {
        tide_data_close(opened);
        return status;
    }
    assert(tide_data_is_valid(opened));
    *data = opened;
    return TIDE_OK;
}

void tide_data_close(tide_data *data)
{
    if (data == NULL)
        return;
    for (size_t i = 0; i < data->shard_count; i++)
        tide_token_file_close(&data->shards[i].file);
    tide_sequence_packing_destroy(data->training);
    tide_sequence_packing_destroy(data->validation);
    free(data->shards);
    free(data);
}

tide_data_counts tide_data_count(const tide_data *data)
{
    return (tide_data_counts){.format = data->shards[0].file.format,
                              .split = data->split,
                              .shards = data->training_shards,
                              .validation_shards = data->shard_count - data->training_shards,
                              .tokens = data->tokens,
                              .training_sequences = data->training_sequences,
                              .validation_sequences = data->validation_sequences,
                              .seq_len = data->seq_len,
                              .packed = data->packed,
                              .drops_long = data->drops_long,
                              .whole_epochs = data->whole_epochs,
                              .training_documents = data->training_documents,
                              .validation_documents = data->validation_documents};
}
