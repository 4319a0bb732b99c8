/* Training data: a text file as bytes, or token shards in llm.c's two formats, memory-mapped read-only.
 *
 * A sequence is seq_len + 1 consecutive tokens of one shard, at stride seq_len: the first seq_len are inputs,
 * the last seq_len targets, so each target is trained once an epoch. The last 5% of the sequences (at least
 * one) are the validation split; their targets are never a training target. The training order is a pure
 * function of (seed, step, batch): the data position is the step number and nothing else has to be saved.
 *
 * A tide_data is immutable after open: batches may be taken on any thread, also at the same time.
 */
#ifndef TIDE_DATA_DATA_H
#define TIDE_DATA_DATA_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tide_data tide_data;

typedef enum tide_data_format {
    TIDE_DATA_FORMAT_BYTES = 0, /* a text file: one token a byte, vocabulary of at least 256 */
    TIDE_DATA_FORMAT_SHARDS = 1, /* llm.c's: 256 x int32 header, then uint16 or uint32 tokens, see token_file.c */
} tide_data_format;

enum {
    TIDE_DATA_VALIDATION_PERCENT = 5,
    TIDE_DATA_SHARD_MAGIC = 20240520,
    TIDE_DATA_SHARD_VERSION = 1,
    TIDE_DATA_WIDE_SHARD_MAGIC = 20240801, /* its tokens are uint32 */
    TIDE_DATA_WIDE_SHARD_VERSION = 7,
    TIDE_DATA_SHARD_HEADER_BYTES = 1024,
};

/* How many bytes of tokens are checked at open, so that the wrong vocabulary is found before the first step.
 * Every batch is checked again as it is copied, whatever the size: see data.c. */
#define TIDE_DATA_OPEN_CHECK_BYTES (512ull << 20)

typedef struct tide_data_options {
    const char *path;    /* a text file, a shard, or a folder of *.bin shards taken in name order */
    uint32_t vocab_size; /* every token must be below */
    uint32_t seq_len;    /* tokens a sequence */
    uint64_t seed;       /* of the training order */
} tide_data_options;

typedef struct tide_data_counts {
    tide_data_format format;
    uint64_t shards; /* 1 for a text file */
    uint64_t tokens; /* in the files; the tail of a shard that fills no sequence is not used */
    uint64_t training_sequences;
    uint64_t validation_sequences;
    uint64_t seq_len;
} tide_data_counts;

/* Open and validate. A file is a shard when it begins with a magic or its name ends in ".bin", else text.
 *   ARGUMENT   a zero or too small vocabulary or sequence length
 *   IO         missing, unreadable, or not a file or folder
 *   CORRUPT    empty, too short for one training and one validation sequence, a bad magic, version or token
 * count, a folder without shards, a token outside the vocabulary (file, position and token are named)
 *   NO_MEMORY
 * On failure *data is unchanged. The files must not shrink while open: a read past a mapped file's new end
 * raises SIGBUS. */
TIDE_NODISCARD tide_status tide_data_open(const tide_data_options *options, tide_data **data);

/* Sequences follow each other through the shards without a gap, and split into training and validation. */
bool tide_data_is_valid(const tide_data *data);

/* NULL is allowed. */
void tide_data_close(tide_data *data);

tide_data_counts tide_data_count(const tide_data *data);

/* The batch of step `step` (from 0): `sequences` sequences of seq_len tokens each, inputs[s * seq_len + t].
 * Epochs follow each other without a gap, each shuffled by a permutation of its own. Allocates nothing.
 *   CORRUPT    a token outside the vocabulary; inputs and targets hold no meaning then
 *   ARGUMENT   sequences is 0, or step * sequences does not fit 64 bits */
TIDE_NODISCARD tide_status tide_data_batch(const tide_data *data, uint64_t step, uint32_t sequences,
                                           int32_t *inputs, int32_t *targets);

/* Validation sequences [index * sequences, ...) in file order, wrapping around at the end of the split, so
 * any batch size works. Same statuses. */
TIDE_NODISCARD tide_status tide_data_validation_batch(const tide_data *data, uint64_t index,
                                                      uint32_t sequences, int32_t *inputs, int32_t *targets);

/* 64-bit hash of format, shard sizes and sampled content (all of it up to 1 MiB a shard): tells one data set
 * from another at a resume. Independent of path, sequence length and seed. */
uint64_t tide_data_fingerprint(const tide_data *data);

/* Entropy of the validation targets under their own frequencies, nats a token: the loss that a model which
 * knows nothing but the frequencies reaches. One pass over the split, which it also checks. CORRUPT: a
 * token outside the vocabulary. NO_MEMORY: no room for a counter a token of the vocabulary. */
TIDE_NODISCARD tide_status tide_data_unigram_entropy(const tide_data *data, double *nats);

/* How a token of a sample is shown to people. BYTES: printable ASCII, newline and tab as they are, others
 * \xNN; a token over 255 and every SHARDS token (its vocabulary is not in the file) as <NNN>. Writes the
 * length and a terminating zero, returns the length, under TIDE_DATA_SHOWN_BYTES. */
enum { TIDE_DATA_SHOWN_BYTES = 16 };
size_t tide_data_show(tide_data_format format, int32_t token, char shown[TIDE_DATA_SHOWN_BYTES]);

/* The token of a prompt's byte in text mode; TIDE_DATA_FORMAT_SHARDS has none. */
static inline int32_t tide_data_byte_token(char byte)
{
    return (int32_t)(unsigned char)byte;
}

#endif
