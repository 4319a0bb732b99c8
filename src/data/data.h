/* Training data: a text file as bytes, token shards in llm.c's two formats, or tokens without a header.
 *
 * A sequence is seq_len + 1 consecutive tokens of one shard, at stride seq_len: the first seq_len are
 * inputs, the last seq_len targets, so each target is trained once an epoch. The validation split is data of
 * its own (tide_data_split) or else the last 5% of the sequences, at least one; its targets are never a
 * training target then. The training order is a pure function of (seed, step, batch): the data position is
 * the step number and nothing else has to be saved.
 *
 * The files stay open and must stay as they are. Each is looked at whenever it was read: one that has
 * another size, or other content, ends that call with CORRUPT, naming the file. Nothing else is lost: once
 * the file is as it was, the call succeeds. A file that is unlinked or renamed is read on as it was.
 *
 * One thread at a time.
 */
#ifndef TIDE_DATA_DATA_H
#define TIDE_DATA_DATA_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tide_data tide_data;

typedef enum tide_data_format {
    TIDE_DATA_FORMAT_BYTES = 0,      /* a text file: one token a byte, vocabulary of at least 256 */
    TIDE_DATA_FORMAT_SHARDS = 1,     /* llm.c's: a header of 256 x int32, then uint16 or uint32 tokens */
    TIDE_DATA_FORMAT_HEADERLESS = 2, /* uint16 or uint32 tokens from the first byte on */
} tide_data_format;

/* How the files are to be read. */
typedef enum tide_data_encoding {
    TIDE_DATA_ENCODING_AUTO = 0, /* a shard by its magic or a name that ends in ".bin", else text */
    TIDE_DATA_ENCODING_U16,      /* little-endian tokens without a header, whatever the name */
    TIDE_DATA_ENCODING_U32,
} tide_data_encoding;

/* Where the validation sequences come from. */
typedef enum tide_data_split {
    TIDE_DATA_SPLIT_HELD_OUT = 0, /* the last 5% of the training data */
    TIDE_DATA_SPLIT_NAMED,        /* the folder's files named val, beside those named train: shard_folder.c */
    TIDE_DATA_SPLIT_GIVEN,        /* eval_path */
} tide_data_split;

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
    const char *path;            /* a text file, a shard, or a folder of *.bin shards taken in name order */
    const char *eval_path;       /* NULL; or validation data; of a split folder the files named val */
    tide_data_encoding encoding; /* of all files */
    uint32_t vocab_size;         /* every token must be below */
    uint32_t seq_len;            /* tokens a sequence */
    uint64_t seed;               /* of the training order */
} tide_data_options;

typedef struct tide_data_counts {
    tide_data_format format;
    tide_data_split split;
    uint64_t shards;            /* of the training data; 1 for a text file */
    uint64_t validation_shards; /* 0: part of the training data is held out */
    uint64_t tokens;            /* in all files; the tail of a shard that fills no sequence is not used */
    uint64_t training_sequences;
    uint64_t validation_sequences;
    uint64_t seq_len;
} tide_data_counts;

/* Open and validate. Every file stays open, and takes one descriptor.
 *   ARGUMENT   a zero or too small vocabulary or sequence length; one of training and validation data is
 * text, the other is not
 *   IO         missing, unreadable, not a file or folder, or more files than the process may open
 *   CORRUPT    empty, too short for one training and one validation sequence, a bad magic, version or token
 * count, no whole number of tokens, a folder without shards or of unclear names (shard_folder.h), a token
 * outside the vocabulary (file, position and token are named)
 *   NO_MEMORY
 * On failure *data is unchanged. */
TIDE_NODISCARD tide_status tide_data_open(const tide_data_options *options, tide_data **data);

/* Sequences follow each other through the shards without a gap, and split into training and validation; no
 * file has both unless part of the training data is held out. */
bool tide_data_is_valid(const tide_data *data);

/* NULL is allowed. */
void tide_data_close(tide_data *data);

tide_data_counts tide_data_count(const tide_data *data);

/* The batch of step `step` (from 0): `sequences` sequences of seq_len tokens each, inputs[s * seq_len + t].
 * Epochs follow each other without a gap, each shuffled by a permutation of its own. Allocates nothing.
 *   CORRUPT    a token outside the vocabulary, or a file that was changed; inputs and targets mean nothing
 *   IO         a file can't be read
 *   ARGUMENT   sequences is 0, or step * sequences does not fit 64 bits */
TIDE_NODISCARD tide_status tide_data_batch(tide_data *data, uint64_t step, uint32_t sequences,
                                           int32_t *inputs, int32_t *targets);

/* Validation sequences [index * sequences, ...) in file order, wrapping around at the end of the split, so
 * any batch size works. Same statuses. */
TIDE_NODISCARD tide_status tide_data_validation_batch(tide_data *data, uint64_t index, uint32_t sequences,
                                                      int32_t *inputs, int32_t *targets);

/* 64-bit hash of the training data as it was at open: format, shard sizes, sampled content (all of it up to
 * 64 MiB a shard), and whether a part of it is held out. Tells one data set from another at a resume.
 * Independent of path, sequence length, seed and validation data. */
uint64_t tide_data_fingerprint(const tide_data *data);

/* Whether `fingerprint` is that of the same files with another split: where validation data has files of its
 * own, of the training files, or of all files of a split folder, with 5% held out; where 5% is held out, of
 * the same files with none held out. IO, CORRUPT: as tide_data_batch. */
TIDE_NODISCARD tide_status tide_data_was_split_otherwise(const tide_data *data, uint64_t fingerprint,
                                                         bool *was);

/* Entropy of the validation targets under their own frequencies, nats a token: the loss that a model which
 * knows nothing but the frequencies reaches. One pass over the split, which it also checks. CORRUPT, IO: as
 * tide_data_batch. NO_MEMORY: no room for a counter a token of the vocabulary. */
TIDE_NODISCARD tide_status tide_data_unigram_entropy(tide_data *data, double *nats);

/* How a token of a sample is shown to people. BYTES: printable ASCII, newline and tab as they are, others
 * \xNN; a token over 255 and every token of another format (its vocabulary is not in the file) as <NNN>.
 * Writes the length and a terminating zero, returns the length, under TIDE_DATA_SHOWN_BYTES. */
enum { TIDE_DATA_SHOWN_BYTES = 16 };
size_t tide_data_show(tide_data_format format, int32_t token, char shown[TIDE_DATA_SHOWN_BYTES]);

/* The token of a prompt's byte in text mode; other formats have none. */
static inline int32_t tide_data_byte_token(char byte)
{
    return (int32_t)(unsigned char)byte;
}

#endif
