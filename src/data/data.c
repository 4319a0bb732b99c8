/* Training data as sequences.
 *
 *     shard 0      | s0 | s1 | s2 |tail|          stride seq_len; a sequence's last target is the next one's first
 *     shard 1      | s3 | s4 |t|                  token; sequences never cross shards
 *     sequences    0 ............ training | validation (the last 5%, at least one)
 *
 * Order. Position p = step x sequences + i of the training stream belongs to epoch p / T and is sequence
 * permutation(seed, epoch)[p mod T], T being the number of training sequences. The permutation is a function,
 * not a table (random.c), so memory does not grow with the data and step 10^6 costs what step 0 costs.
 *
 * Vocabulary. Every batch is checked while it is copied, always: the copy touches each token anyway, the
 * check is one maximum a token, and it also holds when the file is changed under the map after open. A check
 * of everything at open only would read a 20 GB set from disk before step 1 and still prove nothing about
 * step 2. But a wrong vocabulary should not surface in the middle of a long run, so open checks the first 512
 * MiB (0.1 s when cached): the mistake is systematic and shows there.
 */
#include "src/data/data.h"

#include "src/data/random.h"
#include "src/data/token_file.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FINGERPRINT_WHOLE_BYTES  (64ull << 20)
#define FINGERPRINT_WINDOW_BYTES 4096ull

enum { FINGERPRINT_WINDOWS = 64, COUNTED_AT_ONCE = 1024 };

typedef struct data_shard {
    tide_token_file file;
    uint64_t first_sequence; /* of all shards, in order */
    uint64_t sequences;      /* may be 0: a shard shorter than a sequence contributes nothing */
} data_shard;

struct tide_data {
    data_shard *shards;
    size_t shard_count;
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
        sequences += data->shards[i].sequences;
    }
    return data->validation_sequences > 0 &&
           data->training_sequences + data->validation_sequences == sequences;
}

/* ---- opening ---- */

static tide_status options_check(const tide_data_options *options)
{
    if (options->path == NULL || options->path[0] == '\0')
        return tide_fail(TIDE_ERROR_ARGUMENT, "data: the path is empty");
    if (options->seq_len == 0 || options->seq_len > INT32_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "data %s: a sequence length of %u is not in 1 .. %d",
                         options->path, options->seq_len, INT32_MAX);
    if (options->vocab_size == 0 || options->vocab_size > INT32_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "data %s: a vocabulary of %u is not in 1 .. %d", options->path,
                         options->vocab_size, INT32_MAX);
    return TIDE_OK;
}

/* Append one file. The caller closes what was appended when a later one fails. */
static tide_status shard_append(tide_data *data, const char *path)
{
    data_shard *grown = realloc(data->shards, (data->shard_count + 1) * sizeof *grown);
    if (grown == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data %s: no memory for %zu shards", path,
                         data->shard_count + 1);
    data->shards = grown;
    data_shard shard = {0};
    tide_status status = tide_token_file_open(path, &shard.file);
    if (status != TIDE_OK)
        return status;
    data->shards[data->shard_count++] = shard;
    return TIDE_OK;
}

static int is_shard_name(const struct dirent *entry)
{
    size_t length = strlen(entry->d_name);
    return length > 4 && entry->d_name[0] != '.' && strcmp(entry->d_name + length - 4, ".bin") == 0;
}

/* Bytewise, not by locale: the order of the shards must be the same for everybody. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static tide_status entry_append(tide_data *data, const char *folder, const char *name)
{
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= sizeof path)
        return tide_fail(TIDE_ERROR_ARGUMENT, "data %s/%s: the path is longer than %zu bytes", folder, name,
                         sizeof path - 1);
    return shard_append(data, path);
}

static tide_status folder_append(tide_data *data, const char *folder)
{
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, is_shard_name, by_name);
    if (count < 0)
        return tide_fail(TIDE_ERROR_IO, "data %s: the folder can't be read: %s", folder, strerror(errno));
    tide_status status = TIDE_OK;
    if (count == 0)
        status = tide_fail(TIDE_ERROR_CORRUPT, "data %s: the folder holds no *.bin token shards", folder);
    for (int i = 0; i < count; i++) {
        if (status == TIDE_OK)
            status = entry_append(data, folder, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static tide_status files_open(tide_data *data, const char *path)
{
    struct stat about;
    if (stat(path, &about) != 0)
        return tide_fail(TIDE_ERROR_IO, "data %s: can't be found: %s", path, strerror(errno));
    return S_ISDIR(about.st_mode) ? folder_append(data, path) : shard_append(data, path);
}

static tide_status format_check(const tide_data *data, const char *path)
{
    if (data->shards[0].file.format == TIDE_DATA_FORMAT_BYTES && data->vocab_size < 256)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "data %s: text is read as bytes and needs a vocabulary of at least 256, the model's is %u", path,
            data->vocab_size);
    return TIDE_OK;
}

/* Share the files out into sequences and those into training and validation. */
static tide_status sequences_lay_out(tide_data *data, const char *path)
{
    uint64_t sequences = 0;
    for (size_t i = 0; i < data->shard_count; i++) {
        data_shard *shard = &data->shards[i];
        shard->first_sequence = sequences;
        shard->sequences = (shard->file.token_count - 1) / data->seq_len;
        sequences += shard->sequences;
        data->tokens += shard->file.token_count;
    }
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
    status = files_open(opened, options->path);
    if (status == TIDE_OK)
        status = format_check(opened, options->path);
    if (status == TIDE_OK)
        status = sequences_lay_out(opened, options->path);
    if (status == TIDE_OK)
        status = vocabulary_check(opened);
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
                              .shards = data->shard_count,
                              .tokens = data->tokens,
                              .training_sequences = data->training_sequences,
                              .validation_sequences = data->validation_sequences,
                              .seq_len = data->seq_len};
}

/* ---- batches ---- */

/* The shard that holds a sequence: the last one that begins at or before it. A shard of no sequences begins
 * where the next one does, so "the last" skips it. */
static const data_shard *sequence_shard(const tide_data *data, uint64_t sequence)
{
    size_t low = 0, high = data->shard_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (data->shards[middle].first_sequence <= sequence)
            low = middle;
        else
            high = middle;
    }
    const data_shard *shard = &data->shards[low];
    assert(sequence - shard->first_sequence < shard->sequences);
    return shard;
}

static tide_status sequence_copy(const tide_data *data, uint64_t sequence, int32_t *inputs, int32_t *targets)
{
    const data_shard *shard = sequence_shard(data, sequence);
    uint64_t first = (sequence - shard->first_sequence) * data->seq_len;
    tide_status status = tide_token_file_copy(&shard->file, first, data->seq_len, data->vocab_size, inputs);
    if (status != TIDE_OK)
        return status;
    return tide_token_file_copy(&shard->file, first + 1, data->seq_len, data->vocab_size, targets);
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

tide_status tide_data_batch(const tide_data *data, uint64_t step, uint32_t sequences, int32_t *inputs,
                            int32_t *targets)
{
    tide_status status = position_check(step, sequences);
    tide_permutation order = {0};
    uint64_t order_epoch = 0;
    for (uint32_t i = 0; i < sequences && status == TIDE_OK; i++) {
        uint64_t position = step * sequences + i;
        uint64_t epoch = position / data->training_sequences;
        if (order.size == 0 || epoch != order_epoch) {
            /* Epochs past 2^32 would repeat the first ones' orders. */
            order = tide_permutation_make(data->seed, (uint32_t)epoch, data->training_sequences);
            order_epoch = epoch;
        }
        uint64_t sequence = tide_permutation_at(&order, position % data->training_sequences);
        size_t place = (size_t)i * data->seq_len;
        status = sequence_copy(data, sequence, inputs + place, targets + place);
    }
    return status;
}

tide_status tide_data_validation_batch(const tide_data *data, uint64_t index, uint32_t sequences,
                                       int32_t *inputs, int32_t *targets)
{
    tide_status status = position_check(index, sequences);
    for (uint32_t i = 0; i < sequences && status == TIDE_OK; i++) {
        uint64_t within = (index * sequences + i) % data->validation_sequences;
        size_t place = (size_t)i * data->seq_len;
        status = sequence_copy(data, data->training_sequences + within, inputs + place, targets + place);
    }
    return status;
}

/* ---- what the data is ---- */

static uint64_t content_hash(uint64_t hash, const tide_token_file *file)
{
    const uint8_t *content = file->tokens;
    uint64_t bytes = file->token_count * file->token_bytes;
    if (bytes <= FINGERPRINT_WHOLE_BYTES)
        return tide_hash_bytes(hash, content, (size_t)bytes);
    for (uint64_t window = 0; window < FINGERPRINT_WINDOWS - 1; window++) {
        uint64_t at = (bytes - FINGERPRINT_WINDOW_BYTES) / (FINGERPRINT_WINDOWS - 1) * window;
        hash = tide_hash_bytes(hash, content + at, (size_t)FINGERPRINT_WINDOW_BYTES);
    }
    return tide_hash_bytes(hash, content + bytes - FINGERPRINT_WINDOW_BYTES,
                           (size_t)FINGERPRINT_WINDOW_BYTES);
}

uint64_t tide_data_fingerprint(const tide_data *data)
{
    uint64_t hash = tide_hash_u64(0x7469646564617461u, (uint64_t)data->shards[0].file.format);
    hash = tide_hash_u64(hash, data->shard_count);
    for (size_t i = 0; i < data->shard_count; i++) {
        hash = tide_hash_u64(hash, data->shards[i].file.token_count);
        hash = content_hash(hash, &data->shards[i].file);
    }
    return hash;
}

/* Count the targets of one validation sequence, in copies: what is checked in the map may be another token a moment later,
 * and have no counter. */
static tide_status targets_count(const tide_data *data, uint64_t sequence, uint64_t *counts)
{
    const data_shard *shard = sequence_shard(data, sequence);
    const uint64_t first = (sequence - shard->first_sequence) * data->seq_len + 1;
    int32_t tokens[COUNTED_AT_ONCE];
    tide_status status = TIDE_OK;
    for (uint64_t done = 0, part; done < data->seq_len && status == TIDE_OK; done += part) {
        part = data->seq_len - done < COUNTED_AT_ONCE ? data->seq_len - done : COUNTED_AT_ONCE;
        status = tide_token_file_copy(&shard->file, first + done, part, data->vocab_size, tokens);
        for (uint64_t i = 0; i < part && status == TIDE_OK; i++)
            counts[tokens[i]]++;
    }
    return status;
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

tide_status tide_data_unigram_entropy(const tide_data *data, double *nats)
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
