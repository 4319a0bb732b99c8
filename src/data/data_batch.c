/* Batches of data.
 *
 * Order. Position p = step x sequences + i of the training stream belongs to epoch p / T and is sequence
 * permutation(seed, epoch)[p mod T], T being the number of training sequences. The permutation is a function,
 * not a table (random.c), so memory does not grow with the data and step 10^6 costs as much as step 0.
 *
 * Whole epochs begin with a batch: the epoch is then step / ceil(T / sequences). Packed, sequence_packing.h
 * says which documents a sequence holds in an epoch.
 *
 * Changed files. Another process may write to a file while a run reads it. A resumed run could not repeat
 * a batch that mixes old and new content, so each read of a sequence or document is followed by a check
 * whether its file has changed. */
#include "src/data/data_internal.h"

#include "base/align.h"
#include "base/array.h"
#include "src/data/random.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The number of the shard's first token or, unless packed, of its first sequence. */
static uint64_t shard_begin(const tide_data *data, const data_shard *shard)
{
    return data->packed ? shard->first_token : shard->first_sequence;
}

/* The shard that holds a token or sequence: the last one that begins with this number or a lower one. A shard
 * without sequences has the same first sequence as the next one, so it is never the last. */
static data_shard *shard_of(const tide_data *data, uint64_t number)
{
    size_t low = 0, high = data->shard_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (shard_begin(data, &data->shards[middle]) <= number)
            low = middle;
        else
            high = middle;
    }
    return &data->shards[low];
}

/* Verify the file after a read that returned `status`. If the file has changed, that failure is returned in
 * place of `status`, because it explains any other. */
static tide_status file_verify(data_shard *shard, tide_status status)
{
    const tide_status verified = tide_token_file_verify(&shard->file);
    return verified != TIDE_OK ? verified : status;
}

/* Read tokens [first, first + count) of the shard as inputs, and the token after each as its target. */
static tide_status tokens_copy(const tide_data *data, data_shard *shard, uint64_t first, uint64_t count,
                               int32_t *inputs, int32_t *targets)
{
    tide_status status = tide_token_file_copy(&shard->file, first, count, data->vocab_size, inputs);
    if (status == TIDE_OK)
        status = tide_token_file_targets(&shard->file, first + 1, count, data->vocab_size, targets);
    return file_verify(shard, status);
}

static tide_status sequence_copy(const tide_data *data, uint64_t sequence, const tide_token_batch *to)
{
    data_shard *shard = shard_of(data, sequence);
    assert(sequence - shard->first_sequence < shard->sequences);
    const uint64_t first = (sequence - shard->first_sequence) * data->seq_len;
    return tokens_copy(data, shard, first, data->seq_len, to->inputs, to->targets);
}

static tide_status piece_copy(const tide_data *data, const tide_piece *piece, uint32_t place,
                              const tide_token_batch *to)
{
    data_shard *shard = shard_of(data, piece->first);
    for (uint32_t i = 0; i < piece->positions; i++)
        to->starts[place + i] = (int32_t)place;
    return tokens_copy(data, shard, piece->first - shard->first_token, piece->positions, to->inputs + place,
                       to->targets + place);
}

static void padding_fill(const tide_data *data, uint32_t place, const tide_token_batch *to)
{
    for (; place < data->seq_len; place++) {
        to->inputs[place] = 0;
        to->targets[place] = -1;
        if (data->packed)
            to->starts[place] = (int32_t)place;
    }
}

static tide_status packed_copy(const tide_data *data, const tide_sequence_packing *packing,
                               const tide_piece_order *order, uint64_t sequence, const tide_token_batch *to)
{
    const uint32_t pieces = tide_sequence_packing_count(packing, sequence);
    uint32_t place = 0;
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < pieces && status == TIDE_OK; i++) {
        const tide_piece piece = tide_sequence_packing_piece(packing, order, sequence, i);
        status = piece_copy(data, &piece, place, to);
        place += piece.positions;
    }
    padding_fill(data, place, to);
    return status;
}

/* The part of a batch that holds its sequence `index`. */
static tide_token_batch part_of(const tide_data *data, const tide_token_batch *batch, uint32_t index)
{
    const size_t place = (size_t)index * data->seq_len;
    return (tide_token_batch){.inputs = batch->inputs + place,
                              .targets = batch->targets + place,
                              .starts = data->packed ? batch->starts + place : NULL};
}

static void learned_count(const tide_data *data, uint32_t sequences, tide_token_batch *batch)
{
    uint64_t learned = 0;
    for (size_t i = 0; i < (size_t)sequences * data->seq_len; i++)
        learned += batch->targets[i] >= 0;
    batch->learned = learned;
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

uint64_t tide_data_epoch_steps(const tide_data *data, uint32_t sequences)
{
    return tide_ceil_div(data->training_sequences, sequences);
}

uint64_t tide_data_epochs_done(const tide_data *data, uint64_t steps, uint32_t sequences)
{
    return data->whole_epochs ? steps / tide_data_epoch_steps(data, sequences)
                              : steps * sequences / data->training_sequences;
}

/* A place in the training order. */
typedef struct training_place {
    uint64_t epoch;
    uint64_t index; /* in the epoch; training_sequences and above: padding */
} training_place;

static training_place place_of(const tide_data *data, uint64_t step, uint32_t sequences, uint32_t i)
{
    const uint64_t epoch_steps = tide_data_epoch_steps(data, sequences), position = step * sequences + i;
    if (data->whole_epochs)
        return (training_place){step / epoch_steps, step % epoch_steps * sequences + i};
    return (training_place){position / data->training_sequences, position % data->training_sequences};
}

/* Epochs from 2^32 on repeat the orders of the first ones. */
tide_status tide_data_batch(tide_data *data, uint64_t step, uint32_t sequences, tide_token_batch *batch)
{
    tide_status status = position_check(step, sequences);
    tide_permutation shuffle = {0};
    uint64_t shuffled_epoch = 0;
    for (uint32_t i = 0; i < sequences && status == TIDE_OK; i++) {
        const training_place at = place_of(data, step, sequences, i);
        const tide_token_batch part = part_of(data, batch, i);
        if (shuffle.size == 0 || at.epoch != shuffled_epoch) {
            shuffle = tide_permutation_make(data->seed, (uint32_t)at.epoch, data->training_sequences);
            shuffled_epoch = at.epoch;
        }
        if (at.index >= data->training_sequences) {
            padding_fill(data, 0, &part);
            continue;
        }
        const uint64_t sequence = tide_permutation_at(&shuffle, at.index);
        const tide_piece_order order = {.shuffled = true, .seed = data->seed, .epoch = (uint32_t)at.epoch};
        status = data->packed ? packed_copy(data, data->training, &order, sequence, &part)
                              : sequence_copy(data, sequence, &part);
    }
    if (status == TIDE_OK)
        learned_count(data, sequences, batch);
    return status;
}

/* The validation sequence of this number. Best fit has the sequences of the longest documents first, so that
 * packed ones are shuffled: an evaluation of some batches stands for all. */
static uint64_t validation_sequence(const tide_data *data, uint64_t number)
{
    const tide_permutation shuffle = tide_permutation_make(0, 0, data->validation_sequences);
    return data->packed ? tide_permutation_at(&shuffle, number)
                        : data->training_sequences + number % data->validation_sequences;
}

tide_status tide_data_validation_batch(tide_data *data, uint64_t index, uint32_t sequences,
                                       tide_token_batch *batch)
{
    tide_status status = position_check(index, sequences);
    for (uint32_t i = 0; i < sequences && status == TIDE_OK; i++) {
        const tide_token_batch part = part_of(data, batch, i);
        const uint64_t number = index * sequences + i;
        if (data->packed && number >= data->validation_sequences) {
            padding_fill(data, 0, &part);
            continue;
        }
        const uint64_t sequence = validation_sequence(data, number);
        const tide_piece_order order = {.shuffled = false};
        status = data->packed ? packed_copy(data, data->validation, &order, sequence, &part)
                              : sequence_copy(data, sequence, &part);
    }
    if (status == TIDE_OK)
        learned_count(data, sequences, batch);
    return status;
}

/* ---- the entropy to compare validation losses with ---- */

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

/* Count the learned targets of the validation split. `one` has arrays for one sequence. */
static tide_status targets_count(tide_data *data, tide_token_batch *one, uint64_t *counts, uint64_t *total)
{
    tide_status status = TIDE_OK;
    for (uint64_t i = 0; i < data->validation_sequences && status == TIDE_OK; i++) {
        status = tide_data_validation_batch(data, i, 1, one);
        for (uint32_t t = 0; t < data->seq_len && status == TIDE_OK; t++)
            if (one->targets[t] >= 0)
                counts[one->targets[t]]++;
        *total += status == TIDE_OK ? one->learned : 0;
    }
    return status;
}

tide_status tide_data_unigram_entropy(tide_data *data, double *nats)
{
    tide_arrays arrays = {0};
    uint64_t *counts = tide_arrays_add(&arrays, data->vocab_size, sizeof *counts), total = 0;
    tide_token_batch one = {.inputs = tide_arrays_add(&arrays, data->seq_len, sizeof *one.inputs),
                            .targets = tide_arrays_add(&arrays, data->seq_len, sizeof *one.targets),
                            .starts = tide_arrays_add(&arrays, data->seq_len, sizeof *one.starts)};
    tide_status status = TIDE_OK;
    if (arrays.lacks)
        status = tide_fail(TIDE_ERROR_NO_MEMORY, "data: no memory for %u token counters", data->vocab_size);
    if (status == TIDE_OK)
        status = targets_count(data, &one, counts, &total);
    if (status == TIDE_OK)
        *nats = counts_entropy(counts, data->vocab_size, (double)total);
    tide_arrays_free(&arrays);
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
