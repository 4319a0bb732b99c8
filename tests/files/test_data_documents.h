/* Shards with documents and a mask (TIDETOK1), which the tests write themselves, and a simple model of
 * data.h's rules that says which pieces an epoch must hold. A token's id is 1 + its number over all shards of
 * the case, so an input tells its place. */
#ifndef TIDE_TESTS_TEST_DATA_DOCUMENTS_H
#define TIDE_TESTS_TEST_DATA_DOCUMENTS_H

#include "src/data/data.h"

#include "src/data/random.h"
#include "tests/files/scratch.h"
#include "tests/support/assert_ok.h"

#include <stdbool.h>
#include <string.h>

enum { MAX_TOKENS = 300000, MAX_DOCUMENTS = 6000, MAX_SHARDS = 4, SEQ_LEN = 8, HEADER_BYTES = 64 };

/* ---- shards ---- */

typedef struct made_shard {
    uint32_t version, token_bytes, flags;
    uint64_t tokens, documents;           /* that it has */
    uint64_t said_tokens, said_documents; /* that its header says */
    uint32_t ids[MAX_TOKENS];
    bool learned[MAX_TOKENS];
    uint64_t starts[MAX_DOCUMENTS];
    uint8_t tokenizer[TIDE_DATA_TOKENIZER_BYTES];
} made_shard;

static made_shard shards[MAX_SHARDS];
static size_t shard_count;
static uint32_t next_id;

static uint64_t drawn;

static inline uint32_t draw(uint32_t sides)
{
    return (uint32_t)(tide_random_uniform(7, TIDE_RANDOM_USE_TEST, 9, drawn++) * sides);
}

static inline void begin(void)
{
    shard_count = 0;
    next_id = 1;
}

static inline made_shard *add_shard(uint32_t token_bytes)
{
    assert_true(shard_count < MAX_SHARDS);
    made_shard *shard = &shards[shard_count++];
    shard->version = 1;
    shard->token_bytes = token_bytes;
    shard->flags = 0;
    shard->tokens = shard->documents = shard->said_tokens = shard->said_documents = 0;
    memset(shard->tokenizer, 0, sizeof shard->tokenizer);
    return shard;
}

/* Adds a document, each token of which is learned with a chance of `eighths` / 8. Returns the place of its
 * first token. */
static inline uint64_t add_document(made_shard *shard, uint64_t tokens, uint32_t eighths)
{
    const uint64_t first = shard->tokens;
    assert_true(first + tokens <= MAX_TOKENS && shard->documents < MAX_DOCUMENTS);
    for (uint64_t i = first; i < first + tokens; i++) {
        shard->ids[i] = next_id++;
        shard->learned[i] = draw(8) < eighths;
    }
    shard->starts[shard->documents++] = first;
    shard->tokens += tokens;
    shard->said_tokens = shard->tokens;
    shard->said_documents = shard->documents;
    return first;
}

static inline void add_documents(made_shard *shard, uint32_t count, uint64_t tokens)
{
    for (uint32_t i = 0; i < count; i++)
        add_document(shard, tokens, 8);
}

static inline uint32_t slow_crc32c(const uint8_t *bytes, size_t count)
{
    uint32_t crc = UINT32_MAX;
    for (size_t i = 0; i < count; i++) {
        crc ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78 : crc >> 1;
    }
    return ~crc;
}

static uint8_t encoded[HEADER_BYTES + 4 * MAX_TOKENS + MAX_TOKENS / 8 + 8 * MAX_DOCUMENTS + 32];

static inline size_t put(size_t at, uint64_t value, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        encoded[at + i] = (uint8_t)(value >> 8 * i);
    return at + bytes;
}

static inline size_t align8(size_t at)
{
    while (at % 8 != 0)
        encoded[at++] = 0;
    return at;
}

static inline size_t put_crc(size_t bytes)
{
    return put(bytes, slow_crc32c(encoded, bytes), 4);
}

/* Encodes the shard; returns its size. */
static inline size_t encode(const made_shard *shard)
{
    memcpy(encoded, "TIDETOK1", 8);
    size_t at = put(8, shard->version, 4);
    at = put(at, shard->token_bytes, 4);
    at = put(at, shard->said_tokens, 8);
    at = put(at, shard->said_documents, 8);
    at = put(at, 49152, 4); /* the tokenizer's vocabulary, which no reader needs */
    at = put(at, shard->flags, 4);
    memcpy(encoded + at, shard->tokenizer, sizeof shard->tokenizer);
    at += sizeof shard->tokenizer;
    for (uint64_t i = 0; i < shard->tokens; i++)
        at = put(at, shard->ids[i], shard->token_bytes);
    at = align8(at);
    for (uint64_t i = 0; i < shard->tokens; i += 8) {
        uint8_t bits = 0;
        for (uint64_t bit = 0; bit < 8 && i + bit < shard->tokens; bit++)
            bits = (uint8_t)(bits | shard->learned[i + bit] << bit);
        at = put(at, bits, 1);
    }
    at = align8(at);
    for (uint64_t i = 0; i < shard->documents; i++)
        at = put(at, shard->starts[i], 8);
    return put_crc(at);
}

static const char *path_in(const scratch *at, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", at->root, name);
    return path;
}

static inline void write_bytes(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static inline size_t write_shard(const char *path, const made_shard *shard)
{
    const size_t bytes = encode(shard);
    write_bytes(path, encoded, bytes);
    return bytes;
}

/* Writes the shards as 0.bin, 1.bin, ... */
static inline void write_folder(const scratch *at)
{
    char name[32];
    for (size_t i = 0; i < shard_count; i++) {
        snprintf(name, sizeof name, "%zu.bin", i);
        write_shard(path_in(at, name), &shards[i]);
    }
}

/* Adds documents of random lengths; the first and the last can be learned from. */
static inline void add_random_documents(made_shard *shard, uint32_t count, uint32_t most_tokens)
{
    const uint32_t eighths = 1 + draw(8);
    add_document(shard, 2, 8);
    for (uint32_t i = 0; i < count; i++)
        add_document(shard, 1 + draw(draw(4) == 0 ? most_tokens : 1 + most_tokens / 4),
                     draw(5) == 0 ? 0 : eighths);
    add_document(shard, 2, 8);
}

static inline void write_forty_documents(const scratch *at)
{
    begin();
    add_shard(2);
    for (uint32_t i = 0; i < 40; i++)
        add_document(&shards[0], 2 + i * i % 7, 8);
    write_shard(at->path, &shards[0]);
}

/* Writes shards 0 and 1 for training and shard 2 for validation under these names. */
static inline void write_named(const scratch *at, const char *first, const char *second,
                               const char *validation)
{
    begin();
    add_random_documents(add_shard(2), 30, 20);
    add_random_documents(add_shard(4), 20, 20);
    add_random_documents(add_shard(2), 25, 20);
    write_shard(path_in(at, first), &shards[0]);
    write_shard(path_in(at, second), &shards[1]);
    write_shard(path_in(at, validation), &shards[2]);
}

/* ---- opening ---- */

static inline tide_data_options options_of(const char *path)
{
    return (tide_data_options){.path = path, .vocab_size = 1 << 24, .seq_len = SEQ_LEN, .seed = 3};
}

static inline tide_data *open_with(const tide_data_options *options)
{
    tide_data *data = NULL;
    assert_ok(tide_data_open(options, &data));
    assert_true(tide_data_is_valid(data));
    return data;
}

static inline tide_data *open_path(const char *path)
{
    const tide_data_options options = options_of(path);
    return open_with(&options);
}

static inline int lowest_free_descriptor(void)
{
    const int lowest = dup(STDERR_FILENO);
    assert_true(lowest >= 0);
    close(lowest);
    return lowest;
}

/* The message is one line that names the path, and no file stays open. */
static inline void assert_refused_with(const tide_data_options *options, tide_status wanted, const char *path,
                                       const char *words)
{
    tide_data *data = NULL;
    const int lowest = lowest_free_descriptor();
    assert_fails(tide_data_open(options, &data), wanted, words);
    expect_words(path);
    assert_null(strchr(tide_message(), '\n'));
    assert_null(data);
    assert_int_equal(lowest_free_descriptor(), lowest);
}

static inline void assert_refused(const char *path, tide_status wanted, const char *words)
{
    const tide_data_options options = options_of(path);
    assert_refused_with(&options, wanted, path, words);
}

/* ---- the model ---- */

/* By id: how many positions a piece has that begins with this token, 0 if none does; how often one began
 * here. */
static uint32_t piece_at[MAX_SHARDS * MAX_TOKENS + 1], seen_at[MAX_SHARDS * MAX_TOKENS + 1];
static bool learned_at[MAX_SHARDS * MAX_TOKENS + 1];

/* The pieces that a split should have: those numbered [begin, end), of all that have something to learn. */
typedef struct wanted_pieces {
    uint64_t begin, end, number;
    tide_data_documents found;
} wanted_pieces;

static inline void expect_document(const made_shard *shard, uint64_t document, uint32_t seq_len,
                                   bool drops_long, wanted_pieces *of)
{
    tide_data_documents *wanted = &of->found;
    const bool is_last = document + 1 == shard->documents;
    const uint64_t first = shard->starts[document],
                   stop = is_last ? shard->tokens : shard->starts[document + 1];
    wanted->documents++;
    wanted->long_documents += stop - first > seq_len + UINT64_C(1);
    if (stop - first > seq_len + UINT64_C(1) && drops_long)
        return;
    if (stop - first == 1)
        wanted->unlearned++;
    for (uint64_t at = first; at + 1 < stop; at += seq_len) {
        uint32_t positions = 0, learned = 0;
        for (; positions < seq_len && at + positions + 1 < stop; positions++)
            learned += shard->learned[at + positions + 1];
        wanted->unlearned += learned == 0;
        if (learned == 0)
            continue;
        const uint64_t number = of->number++;
        if (number < of->begin || number >= of->end)
            continue;
        wanted->pieces++;
        piece_at[shard->ids[at]] = positions;
        wanted->positions += positions;
        wanted->learned += learned;
    }
}

/* Expects pieces [begin, end) of the documents of shards [first_shard, end_shard). All of these documents
 * count as the split's. */
static inline tide_data_documents expect_pieces(size_t first_shard, size_t end_shard, uint64_t begin,
                                                uint64_t end, uint32_t seq_len, bool drops_long)
{
    wanted_pieces of = {.begin = begin, .end = end};
    memset(piece_at, 0, next_id * sizeof *piece_at);
    memset(seen_at, 0, next_id * sizeof *seen_at);
    for (size_t s = 0; s < shard_count; s++)
        for (uint64_t i = 0; i < shards[s].tokens; i++)
            learned_at[shards[s].ids[i]] = shards[s].learned[i];
    for (size_t s = first_shard; s < end_shard; s++)
        for (uint64_t d = 0; d < shards[s].documents; d++)
            expect_document(&shards[s], d, seq_len, drops_long, &of);
    return of.found;
}

static inline void assert_documents(const tide_data_documents *found, const tide_data_documents *wanted)
{
    assert_int_equal(found->documents, wanted->documents);
    assert_int_equal(found->pieces, wanted->pieces);
    assert_int_equal(found->long_documents, wanted->long_documents);
    assert_int_equal(found->unlearned, wanted->unlearned);
    assert_int_equal(found->positions, wanted->positions);
    assert_int_equal(found->learned, wanted->learned);
}

/* Of a part held out, the documents count for training. */
static inline void assert_held_out(const tide_data_documents *found, tide_data_documents wanted)
{
    wanted.documents = wanted.long_documents = wanted.unlearned = 0;
    assert_documents(found, &wanted);
}

/* A batch in allocations of exactly its size. */
typedef struct held_batch {
    tide_token_batch batch;
    size_t elements;
} held_batch;

static inline held_batch hold(const tide_data *data, uint32_t sequences)
{
    held_batch held = {.elements = (size_t)sequences * tide_data_count(data).seq_len};
    int32_t **const arrays[] = {&held.batch.inputs, &held.batch.targets, &held.batch.starts};
    for (int i = 0; i < 3; i++) {
        *arrays[i] = malloc(held.elements * sizeof(int32_t));
        assert_non_null(*arrays[i]);
        memset(*arrays[i], 0x5a, held.elements * sizeof(int32_t));
    }
    return held;
}

static inline void drop(held_batch *held)
{
    free(held->batch.inputs);
    free(held->batch.targets);
    free(held->batch.starts);
}

/* Checks a sequence against the model and counts its pieces; returns how many positions they take. */
static inline uint32_t check_sequence(const int32_t *inputs, const int32_t *targets, const int32_t *starts,
                                      uint32_t seq_len, uint64_t *learned)
{
    uint32_t at = 0;
    while (at < seq_len && inputs[at] != 0) {
        assert_in_range(inputs[at], 1, next_id - 1);
        const uint32_t id = (uint32_t)inputs[at], positions = piece_at[id];
        assert_true(positions > 0 && positions <= seq_len - at);
        seen_at[id]++;
        for (uint32_t i = 0; i < positions; i++) {
            assert_int_equal(inputs[at + i], id + i);
            assert_int_equal(starts[at + i], at);
            assert_int_equal(targets[at + i], learned_at[id + i + 1] ? (int32_t)(id + i + 1) : -1);
            *learned += learned_at[id + i + 1];
        }
        at += positions;
    }
    for (uint32_t i = at; i < seq_len; i++) {
        assert_int_equal(inputs[i], 0);
        assert_int_equal(targets[i], -1);
        assert_int_equal(starts[i], i);
    }
    return at;
}

/* Checks a batch; returns how many of its sequences are not padding alone. */
static inline uint32_t check_batch(const held_batch *held, uint32_t sequences)
{
    const uint32_t seq_len = (uint32_t)(held->elements / sequences);
    uint64_t learned = 0;
    uint32_t full = 0;
    for (size_t i = 0; i < sequences; i++)
        full += check_sequence(held->batch.inputs + i * seq_len, held->batch.targets + i * seq_len,
                               held->batch.starts + i * seq_len, seq_len, &learned) > 0;
    assert_int_equal(held->batch.learned, learned);
    return full;
}

/* Every expected piece was seen `times` times, and no other. */
static inline void assert_all_seen(uint32_t times)
{
    for (uint32_t id = 0; id < next_id; id++)
        assert_int_equal(seen_at[id], piece_at[id] > 0 ? times : 0);
}

/* Reads an epoch and checks it; expect_pieces has said what it must hold. */
static inline void check_epoch(tide_data *data, uint64_t epoch, uint32_t sequences)
{
    const tide_data_counts counts = tide_data_count(data);
    const uint64_t steps = (counts.training_sequences + sequences - 1) / sequences;
    uint64_t learned = 0, full = 0;
    memset(seen_at, 0, next_id * sizeof *seen_at);
    for (uint64_t step = 0; step < steps; step++) {
        held_batch held = hold(data, sequences);
        assert_ok(tide_data_batch(data, epoch * steps + step, sequences, &held.batch));
        const uint32_t here = check_batch(&held, sequences);
        assert_true(here == sequences || step + 1 == steps);
        full += here;
        learned += held.batch.learned;
        drop(&held);
    }
    assert_int_equal(full, counts.training_sequences);
    assert_int_equal(learned, counts.training_documents.learned);
    assert_all_seen(1);
}

static inline void check_validation(tide_data *data, uint32_t sequences)
{
    const tide_data_counts counts = tide_data_count(data);
    uint64_t learned = 0, full = 0;
    memset(seen_at, 0, next_id * sizeof *seen_at);
    for (uint64_t index = 0; index * sequences < counts.validation_sequences + 2 * sequences; index++) {
        held_batch held = hold(data, sequences);
        assert_ok(tide_data_validation_batch(data, index, sequences, &held.batch));
        const uint32_t here = check_batch(&held, sequences);
        const uint64_t first = index * sequences,
                       left = first < counts.validation_sequences ? counts.validation_sequences - first : 0;
        assert_int_equal(here, left < sequences ? left : sequences);
        full += here;
        learned += held.batch.learned;
        drop(&held);
    }
    assert_int_equal(full, counts.validation_sequences);
    assert_int_equal(learned, counts.validation_documents.learned);
    assert_all_seen(1);
}

#endif
