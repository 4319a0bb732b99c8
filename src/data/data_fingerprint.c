/* The fingerprint of data, by which a resume knows it again. */
#include "src/data/data_internal.h"

#include "base/hash.h"

#include <string.h>

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

tide_status tide_data_fingerprint_make(tide_data *data)
{
    uint64_t hash = fingerprint_begin(&data->shards[0], data->training_shards), apart = 0;
    tide_status status = TIDE_OK;
    for (size_t i = 0; i < data->shard_count && status == TIDE_OK; i++)
        status =
            tide_token_file_fingerprint(&data->shards[i].file, i < data->training_shards ? &hash : &apart);
    data->validation_fingerprint = apart;
    data->fingerprint = data->split == TIDE_DATA_SPLIT_HELD_OUT ? hash : fingerprint_all_train(hash);
    return status;
}

uint64_t tide_data_fingerprint(const tide_data *data)
{
    return data->fingerprint;
}

uint64_t tide_data_validation_fingerprint(const tide_data *data)
{
    return data->validation_fingerprint;
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
