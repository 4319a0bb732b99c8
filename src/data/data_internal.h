/* Declarations that the files of data.h share.
 *
 *     data.c -> { data_documents.c, data_fingerprint.c }
 *     data_batch.c
 */
#ifndef TIDE_DATA_DATA_INTERNAL_H
#define TIDE_DATA_DATA_INTERNAL_H

#include "src/data/data.h"
#include "src/data/sequence_packing.h"
#include "src/data/token_file.h"

typedef struct data_shard {
    tide_token_file file;
    /* the number of its first sequence; all shards' sequences are numbered in order */
    uint64_t first_sequence;
    uint64_t sequences;   /* 0 if the shard is shorter than a sequence */
    uint64_t first_token; /* the number of its first token; all shards' tokens are numbered in order */
} data_shard;

struct tide_data {
    data_shard *shards;
    size_t shard_count;
    /* how many shards hold training data, the first ones; the others are for validation. All of them if 5%
     * is held out */
    size_t training_shards;
    tide_data_split split;
    uint64_t fingerprint, validation_fingerprint;
    uint32_t vocab_size;
    uint32_t seq_len;
    uint64_t seed;
    uint64_t tokens;
    uint64_t training_sequences;
    uint64_t validation_sequences;
    /* packed: the shards' sequences have no meaning */
    bool packed, drops_long;
    bool whole_epochs;                            /* does each epoch begin with a batch? Always if packed */
    tide_sequence_packing *training, *validation; /* pieces begin at numbered tokens (first_token) */
    tide_data_documents training_documents, validation_documents;
};

/* Pack the documents of training and validation. CORRUPT: one of them has nothing to learn; `path` is named.
 * IO, NO_MEMORY, UNSUPPORTED. */
TIDE_NODISCARD tide_status tide_data_pack(tide_data *data, const tide_data_options *options);

/* MISMATCH: a shard says that another tokenizer than this file (NULL: any) made it. IO. */
TIDE_NODISCARD tide_status tide_data_tokenizer_check(const tide_data *data, const char *tokenizer);

/* Set data->fingerprint. IO, CORRUPT. */
TIDE_NODISCARD tide_status tide_data_fingerprint_make(tide_data *data);

#endif
