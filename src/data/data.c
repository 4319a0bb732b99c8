/* Training data as sequences, none of which crosses shards.
 *
 *     shard 0      | s0 | s1 | s2 |tail|          stride seq_len; a sequence's last target
 *     shard 1      | s3 | s4 |t|                  is the next one's first token
 *     sequences    0 ............ training | validation
 *
 * Validation sequences come from files of their own, which follow the training files in the array, or are the
 * last 5% of the training files' sequences, at least one.
 *
 * Order. Position p = step x sequences + i of the training stream belongs to epoch p / T and is sequence
 * permutation(seed, epoch)[p mod T], T being the number of training sequences. The permutation is a function,
 * not a table (random.c), so memory does not grow with the data and step 10^6 costs as much as step 0.
 *
 * Vocabulary. Every batch is checked while it is copied: the copy touches each token anyway, the check costs
 * one maximum per token, and it works even if the file changes after open. To check everything at open
 * instead would read a 20 GB set from disk before step 1 and prove nothing about step 2. But a wrong
 * vocabulary should not show only in the middle of a long run, so open checks the first 512 MiB (0.3 s when
 * cached): such a mistake is systematic and shows there.
 *
 * Changed files. Another process may write to a file while a run reads it. A resumed run could not repeat
 * a batch that mixes old and new content, so data.c checks after each sequence whether its file has
 * changed. */
#include "src/data/data.h"

#include "base/array.h"
#include "base/hash.h"
#include "base/minmax.h"
#include "src/data/random.h"
#include "src/data/shard_folder.h"
#include "src/data/token_file.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { COUNTED_AT_ONCE = 1024 };

typedef struct data_shard {
    tide_token_file file;
    /* the number of its first sequence; all shards' sequences are numbered in order */
    uint64_t first_sequence;
    uint64_t sequences; /* 0 if the shard is shorter than a sequence */
} data_shard;

struct tide_data {
    data_shard *shards;
    size_t shard_count;
    /* how many shards hold training data, the first ones; the others are for validation. All of them if 5%
     * is held out */
    size_t training_shards;
    tide_data_split split;
    uint64_t fingerprint;
    uint32_t vocab_size;
    uint32_t seq_len;
    uint64_t seed;
    uint64_t tokens;
    uint64_t training_sequences;
    uint64_t validation_sequences;
};

bool tide_data_is_valid(const tide_data *data)
{
    if (data->shard_count == 0 || data->seq_len == 0 || data->training_sequences == 0)
        return false;
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
        data->tokens += shard->file.token_count;
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

/* ---- fingerprint ---- */

static uint64_t fingerprint_begin(const data_shard *first, size_t shards)
{
    const uint64_t hash = tide_hash_u64(0x7469646564617461u, (uint64_t)first->file.format);
    return tide_hash_u64(hash, shards);
}

/* The fingerprint, from the hash of the training files, if all their sequences train: differs from the
 * fingerprint with a part held out, since the sequences have another order. */
static uint64_t fingerprint_all_train(uint64_t hash)
{
    return tide_hash_u64(hash, 1);
}

static tide_status fingerprint_make(tide_data *data)
{
    uint64_t hash = fingerprint_begin(&data->shards[0], data->training_shards), apart = 0;
    tide_status status = TIDE_OK;
    for (size_t i = 0; i < data->shard_count && status == TIDE_OK; i++)
        status =
            tide_token_file_fingerprint(&data->shards[i].file, i < data->training_shards ? &hash : &apart);
    data->fingerprint = data->split == TIDE_DATA_SPLIT_HELD_OUT ? hash : fingerprint_all_train(hash);
    return status;
}

uint64_t tide_data_fingerprint(const tide_data *data)
{
    return data->fingerprint;
}

/* The fingerprint that a split folder's files would have without the split: all files in name order, with a
 * part held out. */
static tide_status fingerprint_unsplit(const tide_data *data, uint64_t *hash)
{
    const data_shard *training = data->shards, *end = data->shards + data->shard_count;
    const data_shard *first_validation = training + data->training_shards, *validation = first_validation;
    tide_status status = TIDE_OK;
    *hash = fingerprint_begin(training, data->shard_count);
    while (status == TIDE_OK && (training < first_validation || validation < end)) {
        const bool is_training =
            validation == end ||
            (training < first_validation && strcmp(training->file.path, validation->file.path) < 0);
        status = tide_token_file_hash(is_training ? &training++->file : &validation++->file, hash);
    }
    return status;
}

tide_status tide_data_was_split_otherwise(const tide_data *data, uint64_t fingerprint, bool *was)
{
    const data_shard *last = &data->shards[data->training_shards - 1];
    uint64_t unsplit = 0;
    *was = fingerprint == (data->split == TIDE_DATA_SPLIT_HELD_OUT ? fingerprint_all_train(data->fingerprint)
                                                                   : last->file.hash_behind);
    if (*was || data->split != TIDE_DATA_SPLIT_NAMED)
        return TIDE_OK;
    const tide_status status = fingerprint_unsplit(data, &unsplit);
    *was = status == TIDE_OK && fingerprint == unsplit;
    return status;
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
        status = sequences_lay_out(opened, options);
    if (status == TIDE_OK)
        status = vocabulary_check(opened);
    if (status == TIDE_OK)
        status = fingerprint_make(opened);
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
                              .seq_len = data->seq_len};
}

/* ---- batches ---- */

/* The shard that holds a sequence: the last one whose first sequence has this number or a lower one. A shard
 * without sequences has the same first sequence as the next one, so it is never the last. */
static data_shard *sequence_shard(const tide_data *data, uint64_t sequence)
{
    size_t low = 0, high = data->shard_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (data->shards[middle].first_sequence <= sequence)
            low = middle;
        else
            high = middle;
    }
    data_shard *shard = &data->shards[low];
    assert(sequence - shard->first_sequence < shard->sequences);
    return shard;
}

/* Verify the file after a read that returned `status`. If the file has changed, that failure is returned in
 * place of `status`, because it explains any other. */
static tide_status file_verify(data_shard *shard, tide_status status)
{
    const tide_status verified = tide_token_file_verify(&shard->file);
    return verified != TIDE_OK ? verified : status;
}

static tide_status sequence_copy(tide_data *data, uint64_t sequence, int32_t *inputs, int32_t *targets)
{
    data_shard *shard = sequence_shard(data, sequence);
    uint64_t first = (sequence - shard->first_sequence) * data->seq_len;
    tide_status status = tide_token_file_copy(&shard->file, first, data->seq_len, data->vocab_size, inputs);
    if (status == TIDE_OK)
        status = tide_token_file_copy(&shard->file, first + 1, data->seq_len, data->vocab_size, targets);
    return file_verify(shard, status);
}

static tide_status position_check(uint64_t batch, uint32_t sequences)
{
    if (sequences == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "data: a batch of 0 sequences");
    if (batch > UINT64_MAX / sequences - 1)
        return tide_fail(TIDE_ERROR_ARGUMENT, "data: batch %llu of %u sequences is beyond 2^64 sequences",
                         (unsigned long long)batch, sequences);
    return TIDE_OK;
}

tide_status tide_data_batch(tide_data *data, uint64_t step, uint32_t sequences, int32_t *inputs,
                            int32_t *targets)
{
    tide_status status = position_check(step, sequences);
    tide_permutation order = {0};
    uint64_t order_epoch = 0;
    for (uint32_t i = 0; i < sequences && status == TIDE_OK; i++) {
        uint64_t position = step * sequences + i;
        uint64_t epoch = position / data->training_sequences;
        if (order.size == 0 || epoch != order_epoch) {
            /* Epochs from 2^32 on repeat the orders of the first ones. */
            order = tide_permutation_make(data->seed, (uint32_t)epoch, data->training_sequences);
            order_epoch = epoch;
        }
        uint64_t sequence = tide_permutation_at(&order, position % data->training_sequences);
        size_t place = (size_t)i * data->seq_len;
        status = sequence_copy(data, sequence, inputs + place, targets + place);
    }
    return status;
}

tide_status tide_data_validation_batch(tide_data *data, uint64_t index, uint32_t sequences, int32_t *inputs,
                                       int32_t *targets)
{
    tide_status status = position_check(index, sequences);
    for (uint32_t i = 0; i < sequences && status == TIDE_OK; i++) {
        uint64_t within = (index * sequences + i) % data->validation_sequences;
        size_t place = (size_t)i * data->seq_len;
        status = sequence_copy(data, data->training_sequences + within, inputs + place, targets + place);
    }
    return status;
}

/* ---- the entropy to compare validation losses with ---- */

/* Count the targets of one validation sequence. */
static tide_status targets_count(tide_data *data, uint64_t sequence, uint64_t *counts)
{
    data_shard *shard = sequence_shard(data, sequence);
    const uint64_t first = (sequence - shard->first_sequence) * data->seq_len + 1;
    int32_t tokens[COUNTED_AT_ONCE];
    tide_status status = TIDE_OK;
    for (uint64_t done = 0, part; done < data->seq_len && status == TIDE_OK; done += part) {
        part = tide_min_u64(data->seq_len - done, COUNTED_AT_ONCE);
        status = tide_token_file_copy(&shard->file, first + done, part, data->vocab_size, tokens);
        for (uint64_t i = 0; i < part && status == TIDE_OK; i++)
            counts[tokens[i]]++;
    }
    return file_verify(shard, status);
}

static double counts_entropy(const uint64_t *counts, uint32_t vocab_size, double total)
{
    double nats = 0;
    for (uint32_t token = 0; token < vocab_size; token++) {
        double share = (double)counts[token] / total;
        if (counts[token] > 0)
            nats -= share * log(share);
    }
    return nats;
}

tide_status tide_data_unigram_entropy(tide_data *data, double *nats)
{
    uint64_t *counts = calloc(data->vocab_size, sizeof *counts);
    if (counts == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data: no memory for %u token counters", data->vocab_size);
    tide_status status = TIDE_OK;
    for (uint64_t i = 0; i < data->validation_sequences && status == TIDE_OK; i++)
        status = targets_count(data, data->training_sequences + i, counts);
    if (status == TIDE_OK)
        *nats = counts_entropy(counts, data->vocab_size, (double)data->validation_sequences * data->seq_len);
    free(counts);
    return status;
}

/* ---- showing samples ---- */

static bool is_shown_as_it_is(int32_t token)
{
    return (token >= 0x20 && token < 0x7f) || token == '\n' || token == '\t';
}

size_t tide_data_show(tide_data_format format, int32_t token, char shown[TIDE_DATA_SHOWN_BYTES])
{
    int length = 0;
    if (format != TIDE_DATA_FORMAT_BYTES || token < 0 || token > 255)
        length = snprintf(shown, TIDE_DATA_SHOWN_BYTES, "<%d>", token);
    else if (is_shown_as_it_is(token))
        length = snprintf(shown, TIDE_DATA_SHOWN_BYTES, "%c", (char)token);
    else
        length = snprintf(shown, TIDE_DATA_SHOWN_BYTES, "\\x%02x", (unsigned)token);
    assert(length > 0 && length < TIDE_DATA_SHOWN_BYTES);
    return (size_t)length;
}
