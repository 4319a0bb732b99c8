/* Training data: a text file as bytes, token shards in llm.c's two formats, tokens without a header, or
 * shards with documents and a mask of the tokens to learn (TIDETOK1, token_documents.c).
 *
 * A sequence is seq_len + 1 consecutive tokens of one shard, at stride seq_len: the first seq_len are inputs,
 * the last seq_len targets, so each target is trained once an epoch. The validation split is data of its own
 * (tide_data_split), or else the last 5% of the sequences, at least one; in that case no validation target is
 * ever a training target. The training order is a pure function of (seed, step, batch): the data position is
 * the step number, and nothing else has to be saved.
 *
 * Packed, a sequence holds whole documents (sequence_packing.h), and the held-out 5% are documents, or parts
 * of documents that are cut. A document of n tokens takes n - 1 positions. One longer than a sequence is cut
 * into parts of seq_len + 1 tokens, each of which begins with the last target of the part before, or is left
 * out. Parts without a learned target are left out. The free end of a sequence is padding: tokens 0 that are
 * not learned, each a document of its own. An epoch's last batch is filled up with sequences of padding.
 *
 * The files stay open and must not change. Each file is checked after every read: if its size or content has
 * changed, the call fails with CORRUPT, and the message names the file. Once the file has its old content
 * again, the call succeeds. A file that is unlinked or renamed can be read on, with its old content.
 *
 * Only one thread at a time may use a tide_data.
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
    TIDE_DATA_FORMAT_DOCUMENTS = 3,  /* tidepool-tokenize's: tokens, mask, starts of documents */
} tide_data_format;

/* How the files are to be read. */
typedef enum tide_data_encoding {
    TIDE_DATA_ENCODING_AUTO = 0, /* a shard by magic or a name that ends in ".bin", else text */
    TIDE_DATA_ENCODING_U16,      /* little-endian tokens without a header, whatever the name */
    TIDE_DATA_ENCODING_U32,
} tide_data_encoding;

/* Where the validation sequences come from. */
typedef enum tide_data_split {
    TIDE_DATA_SPLIT_HELD_OUT = 0, /* the last 5% of the training data */
    /* the folder's files with val in their names, beside those with train: shard_folder.c */
    TIDE_DATA_SPLIT_NAMED,
    TIDE_DATA_SPLIT_GIVEN, /* eval_path */
} tide_data_split;

/* Are documents packed into sequences? */
typedef enum tide_data_packing {
    TIDE_DATA_PACKING_AUTO = 0, /* if the files say where documents begin */
    TIDE_DATA_PACKING_ON,
    TIDE_DATA_PACKING_OFF, /* documents follow each other as one text; the mask holds all the same */
} tide_data_packing;

enum {
    TIDE_DATA_TOKENIZER_BYTES = 24, /* of the SHA-256 of the tokenizer's file, in a shard with documents */
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
    const char *path; /* a text file, a shard, or a folder of *.bin shards taken in name order */
    /* NULL, or the path of validation data; of a split folder only the files with val in their names */
    const char *eval_path;
    tide_data_encoding encoding; /* of all files */
    uint32_t vocab_size;         /* every token must be below it */
    uint32_t seq_len;            /* inputs per sequence */
    uint64_t seed;               /* of the training order */
    tide_data_packing packing;
    bool drops_long; /* packed: leave out documents that are longer than a sequence, rather than cut them */
    /* each epoch begins with a batch, and its last batch is filled up with padding: as if packed */
    bool whole_epochs;
    /* NULL, or the model's tokenizer.json: shards made with another one are refused. A file that is not there
     * and a shard without a hash are not compared */
    const char *tokenizer;
} tide_data_options;

/* How one split's documents were packed. */
typedef struct tide_data_documents {
    uint64_t documents;      /* in the split's files; of a part held out, all are counted for training */
    uint64_t pieces;         /* those packed: documents, and parts of documents that are cut */
    uint64_t long_documents; /* those longer than a sequence: cut, or left out */
    uint64_t unlearned;      /* documents and parts left out because nothing in them is learned */
    uint64_t positions;      /* that an epoch's sequences use, without padding */
    uint64_t learned;        /* targets that an epoch learns */
} tide_data_documents;

typedef struct tide_data_counts {
    tide_data_format format;
    tide_data_split split;
    uint64_t shards;            /* of the training data; 1 for a text file */
    uint64_t validation_shards; /* 0: part of the training data is held out */
    uint64_t tokens;            /* in all files; the tail of a shard that fills no sequence is not used */
    uint64_t training_sequences;
    uint64_t validation_sequences;
    uint64_t seq_len;
    bool packed;
    bool drops_long;
    bool whole_epochs;                                            /* true if packed */
    tide_data_documents training_documents, validation_documents; /* zeros unless packed */
} tide_data_counts;

/* Open and validate. Every file stays open, and takes one descriptor. On failure *data is unchanged.
 *
 *   ARGUMENT   the vocabulary or the sequence length is zero or too small; or only one of training and
 *              validation data is text; or files without documents are to be packed, or beside files with
 *   MISMATCH   a shard was made with another tokenizer
 *   IO         missing, unreadable, not a file or folder, or more files than the process may open
 *   CORRUPT    empty, too short for one training and one validation sequence, a bad magic, version or token
 *              count, no whole number of tokens, a folder without shards or with unclear names
 *              (shard_folder.h), a token outside the vocabulary (the message names file, position and token)
 *   NO_MEMORY */
TIDE_NODISCARD tide_status tide_data_open(const tide_data_options *options, tide_data **data);

/* Would tide_data_open take data as text, whose tokens are bytes? Opens the file at `path` and reads its
 * begin; a folder is never text. IO, CORRUPT (it is empty), NO_MEMORY. */
TIDE_NODISCARD tide_status tide_data_is_text(const char *path, tide_data_encoding encoding, bool *is_text);

/* Check: the shards' sequences follow each other without a gap and split into training and validation; no
 * file has both unless part of the training data is held out. */
bool tide_data_is_valid(const tide_data *data);

/* `data` may be NULL. */
void tide_data_close(tide_data *data);

tide_data_counts tide_data_count(const tide_data *data);

/* A batch; the caller owns the arrays, of [sequences, seq_len] each. */
typedef struct tide_token_batch {
    int32_t *inputs;
    int32_t *targets; /* -1: not learned */
    /* packed: the place in its sequence at which each token's document begins; else not written, and may be
     * NULL */
    int32_t *starts;
    uint64_t learned; /* how many targets are learned */
} tide_token_batch;

/* The batch of step `step` (from 0). Each epoch is shuffled by a permutation of its own. Epochs follow each
 * other without a gap, or, if they are whole, each begins with a batch. Allocates nothing.
 *
 *   CORRUPT    a token outside the vocabulary, or a changed file; the batch is then undefined
 *   IO         a file can't be read
 *   ARGUMENT   sequences is 0, or step * sequences does not fit 64 bits */
TIDE_NODISCARD tide_status tide_data_batch(tide_data *data, uint64_t step, uint32_t sequences,
                                           tide_token_batch *batch);

/* How many steps a whole epoch takes, at least 1. */
uint64_t tide_data_epoch_steps(const tide_data *data, uint32_t sequences);

/* How many epochs are over after so many steps. */
uint64_t tide_data_epochs_done(const tide_data *data, uint64_t steps, uint32_t sequences);

/* Validation sequences [index * sequences, ...), in file order; packed, in an order that is the same for
 * every run and mixes full sequences with others. Behind the end of the split it starts over, or, packed, has
 * padding, so any batch size works. Statuses of tide_data_batch. */
TIDE_NODISCARD tide_status tide_data_validation_batch(tide_data *data, uint64_t index, uint32_t sequences,
                                                      tide_token_batch *batch);

/* 64-bit hash of the training data as it was at open: format, shard sizes, sampled content (all of it up
 * to 64 MiB a shard), and whether a part of the data is held out. A resume uses it to tell data sets
 * apart. Independent of path, sequence length, seed and validation data. */
uint64_t tide_data_fingerprint(const tide_data *data);

/* A hash of the validation data's own files, as they were at open; the same for all data that hold out a part
 * of the training data. Losses of other validation data can't be compared. */
uint64_t tide_data_validation_fingerprint(const tide_data *data);

/* Is `fingerprint` that of the same files with another split? Compares it with these: if 5% is held out,
 * none held out; if validation data has files of its own, the training files with 5% held out and, of a
 * split folder (SPLIT_NAMED), all files with 5% held out. IO, CORRUPT: as tide_data_batch. */
TIDE_NODISCARD tide_status tide_data_was_split_otherwise(const tide_data *data, uint64_t fingerprint,
                                                         bool *was);

/* Entropy of the learned validation targets under their own frequencies, in nats per token: the loss of a
 * model that knows only these frequencies. Reads the validation split once, and checks it. CORRUPT, IO: as
 * tide_data_batch. NO_MEMORY: for a sequence, and one counter per token of the vocabulary. */
TIDE_NODISCARD tide_status tide_data_unigram_entropy(tide_data *data, double *nats);

/* Write a token of a sample as readable text. BYTES: printable ASCII, newline and tab stay as they are, other
 * bytes become \xNN. A token over 255, and every token of another format (whose vocabulary is not in the
 * file), becomes <NNN>. Adds a terminating zero; returns the length, which is below TIDE_DATA_SHOWN_BYTES. */
enum { TIDE_DATA_SHOWN_BYTES = 16 };
size_t tide_data_show(tide_data_format format, int32_t token, char shown[TIDE_DATA_SHOWN_BYTES]);

/* The token of a prompt's byte in text mode; other formats have none. */
static inline int32_t tide_data_byte_token(char byte)
{
    return (int32_t)(unsigned char)byte;
}

#endif
