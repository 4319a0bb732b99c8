/* Training data: which files are opened and which refused, the order of training, the validation split,
 * the vocabulary. */
#include "src/data/data.h"

#include "src/data/random.h"
#include "src/data/token_file.h"
#include "tests/files/scratch.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* A batch of data that is not packed. */
#define BATCH(in, out) (&(tide_token_batch){.inputs = (in), .targets = (out)})

enum { SEQ_LEN = 8 };

static int32_t inputs[16 * SEQ_LEN], targets[16 * SEQ_LEN]; /* the last batch */

/* Returns the path of a file in the folder; the next call overwrites it. */
static const char *path_in(const scratch *at, const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", at->root, name);
    return path;
}

static void write_bytes(const char *path, const void *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

/* Writes a text whose byte at i is i modulo 251. */
static void write_text(const char *path, size_t count)
{
    unsigned char *text = malloc(count);
    assert_non_null(text);
    for (size_t i = 0; i < count; i++)
        text[i] = (unsigned char)(i % 251);
    write_bytes(path, text, count);
    free(text);
}

/* Writes a shard whose tokens count up from `first`. */
static void write_shard(const char *path, uint32_t magic, uint32_t version, uint32_t claimed, size_t count,
                        uint16_t first)
{
    size_t bytes = TIDE_DATA_SHARD_HEADER_BYTES + 2 * count;
    unsigned char *shard = calloc(1, bytes);
    const uint32_t header[3] = {magic, version, claimed};
    assert_non_null(shard);
    memcpy(shard, header, sizeof header);
    for (size_t i = 0; i < count; i++) {
        uint16_t token = (uint16_t)(first + i);
        memcpy(shard + TIDE_DATA_SHARD_HEADER_BYTES + 2 * i, &token, 2);
    }
    write_bytes(path, shard, bytes);
    free(shard);
}

static void write_good_shard(const char *path, size_t count, uint16_t first)
{
    write_shard(path, TIDE_DATA_SHARD_MAGIC, TIDE_DATA_SHARD_VERSION, (uint32_t)count, count, first);
}

static void write_in(const scratch *at, const char *name, size_t count, uint16_t first)
{
    write_good_shard(path_in(at, name), count, first);
}

/* Writes a shard of uint32 tokens that count up from `first`. */
static void write_wide_shard(const char *path, uint32_t version, uint32_t claimed, size_t count,
                             uint32_t first)
{
    enum { HEADER = TIDE_DATA_SHARD_HEADER_BYTES / 4 };
    uint32_t *shard = calloc(HEADER + count, sizeof *shard);
    assert_non_null(shard);
    shard[0] = TIDE_DATA_WIDE_SHARD_MAGIC, shard[1] = version, shard[2] = claimed;
    for (size_t i = 0; i < count; i++)
        shard[HEADER + i] = (uint32_t)(first + i);
    write_bytes(path, shard, (HEADER + count) * sizeof *shard);
    free(shard);
}

static tide_data *open_with(const tide_data_options *options)
{
    tide_data *data = NULL;
    if (tide_data_open(options, &data) != TIDE_OK)
        fail_msg("%s", tide_message());
    return data;
}

static tide_data *open_data(const char *path, uint32_t vocab_size, uint64_t seed)
{
    const tide_data_options options = {
        .path = path, .vocab_size = vocab_size, .seq_len = SEQ_LEN, .seed = seed};
    return open_with(&options);
}

static void assert_refused_with(const tide_data_options *options, tide_status wanted, const char *path,
                                const char *message)
{
    tide_data *data = NULL;
    tide_status status = tide_data_open(options, &data);
    if (status != wanted || strstr(tide_message(), message) == NULL || strstr(tide_message(), path) == NULL)
        fail_msg("status %s: \"%s\" does not say \"%s\"", tide_status_name(status), tide_message(), message);
    assert_null(data);
    assert_null(strchr(tide_message(), '\n'));
}

static void assert_refused(const char *path, uint32_t vocab_size, tide_status wanted, const char *message)
{
    const tide_data_options options = {.path = path, .vocab_size = vocab_size, .seq_len = SEQ_LEN};
    assert_refused_with(&options, wanted, path, message);
}

/* ---- opening ---- */

static void a_text_file_is_one_token_a_byte(void **state)
{
    const scratch *at = *state;
    write_text(at->path, 100 * SEQ_LEN + 1);
    tide_data *data = open_data(at->path, 256, 1);
    tide_data_counts counts = tide_data_count(data);
    assert_int_equal(counts.format, TIDE_DATA_FORMAT_BYTES);
    assert_int_equal(counts.tokens, 801);
    assert_int_equal(counts.training_sequences, 95);
    assert_int_equal(counts.validation_sequences, 5);
    assert_int_equal(tide_data_validation_batch(data, 0, 1, BATCH(inputs, targets)), TIDE_OK);
    for (int i = 0; i < SEQ_LEN; i++) {
        assert_int_equal(inputs[i], (95 * SEQ_LEN + i) % 251);
        assert_int_equal(targets[i], (95 * SEQ_LEN + i + 1) % 251);
    }
    tide_data_close(data);
}

static void shards_of_a_folder_are_taken_in_name_order(void **state)
{
    const scratch *at = *state;
    write_in(at, "b.bin", 10 * SEQ_LEN + 3, 1000);
    write_in(at, "a.bin", 10 * SEQ_LEN + 1, 0);
    write_in(at, "aa.bin", 2, 500); /* too short for a sequence */
    write_text(path_in(at, "readme.txt"), 10);
    tide_data *data = open_data(at->root, 50257, 1);
    tide_data_counts counts = tide_data_count(data);
    assert_int_equal(counts.format, TIDE_DATA_FORMAT_SHARDS);
    assert_int_equal(counts.shards, 3);
    assert_int_equal(counts.training_sequences + counts.validation_sequences, 20);
    assert_int_equal(tide_data_validation_batch(data, 0, 1, BATCH(inputs, targets)), TIDE_OK);
    assert_int_equal(inputs[0], 1000 + 9 * SEQ_LEN);
    assert_int_equal(targets[SEQ_LEN - 1], 1000 + 10 * SEQ_LEN);
    tide_data_close(data);
}

/* Such a shard has its own magic, serves vocabularies above 65536, and may stand beside shards of 16 bits
 * in a folder. */
static void a_shard_may_have_tokens_of_32_bits(void **state)
{
    const scratch *at = *state;
    write_wide_shard(at->path, 7, 20 * SEQ_LEN + 1, 20 * SEQ_LEN + 1, 128000);
    tide_data *data = open_data(at->path, 128256, 1);
    assert_int_equal(tide_data_count(data).format, TIDE_DATA_FORMAT_SHARDS);
    assert_int_equal(tide_data_count(data).tokens, 20 * SEQ_LEN + 1);
    assert_int_equal(tide_data_validation_batch(data, 0, 1, BATCH(inputs, targets)), TIDE_OK);
    for (int i = 0; i < SEQ_LEN; i++) {
        assert_int_equal(inputs[i], 128000 + 19 * SEQ_LEN + i);
        assert_int_equal(targets[i], inputs[i] + 1);
    }
    tide_data_close(data);
    write_wide_shard(path_in(at, "a.bin"), 7, 10 * SEQ_LEN + 1, 10 * SEQ_LEN + 1, 16777000);
    write_good_shard(path_in(at, "b.bin"), 10 * SEQ_LEN + 1, 1000);
    data = open_data(at->root, 16777216, 1);
    assert_int_equal(tide_data_validation_batch(data, 0, 1, BATCH(inputs, targets)), TIDE_OK);
    assert_int_equal(inputs[0], 1000 + 9 * SEQ_LEN);
    for (uint64_t step = 0; step < 19; step++) {
        assert_int_equal(tide_data_batch(data, step, 1, BATCH(inputs, targets)), TIDE_OK);
        assert_true((inputs[0] >= 16777000 && inputs[0] % SEQ_LEN == 16777000 % SEQ_LEN) || inputs[0] < 1080);
    }
    tide_data_close(data);
}

/* A sparse file of 1.1 x 2^30 + 40 tokens, 2.2 GiB, whose tokens are zeros up to its end. */
static void a_shard_over_two_gib_is_read_to_its_end(void **state)
{
    const scratch *at = *state;
    const char *path = path_in(at, "big.bin");
    uint32_t count = 1181116006u;
    write_shard(path, TIDE_DATA_SHARD_MAGIC, TIDE_DATA_SHARD_VERSION, count, 0, 0);
    off_t bytes = TIDE_DATA_SHARD_HEADER_BYTES + 2 * (off_t)count;
    assert_true(bytes > (off_t)2 << 30);
    assert_int_equal(truncate(path, bytes), 0);
    uint64_t sequences = (count - 1) / SEQ_LEN;
    int descriptor = open(path, O_WRONLY);
    const uint16_t mark = 12345;
    off_t place = TIDE_DATA_SHARD_HEADER_BYTES + 2 * (off_t)(sequences * SEQ_LEN);
    assert_int_equal(pwrite(descriptor, &mark, 2, place), 2);
    close(descriptor);
    tide_data *data = open_data(path, 65536, 1);
    tide_data_counts counts = tide_data_count(data);
    assert_int_equal(counts.tokens, count);
    assert_int_equal(
        tide_data_validation_batch(data, counts.validation_sequences - 1, 1, BATCH(inputs, targets)),
        TIDE_OK);
    assert_int_equal(targets[SEQ_LEN - 1], mark);
    assert_int_equal(inputs[SEQ_LEN - 1], 0);
    /* Checkpoints store this fingerprint, so no version may change it. */
    assert_int_equal(tide_data_fingerprint(data), 0x336bf20265e1b547);
    tide_data_close(data);
}

static void texts_and_folders_that_hold_no_tokens_are_refused(void **state)
{
    const scratch *at = *state;
    assert_refused(at->path, 256, TIDE_ERROR_IO, "No such file");
    assert_refused(at->root, 256, TIDE_ERROR_CORRUPT, "no *.bin token shards");
    write_text(at->path, 0);
    assert_refused(at->path, 256, TIDE_ERROR_CORRUPT, "the file is empty");
    write_text(at->path, 2 * SEQ_LEN);
    assert_refused(at->path, 256, TIDE_ERROR_CORRUPT,
                   "16 tokens are too few: one training and one validation sequence of 8 tokens need 17");
    write_text(at->path, 2 * SEQ_LEN + 1);
    assert_refused(at->path, 255, TIDE_ERROR_ARGUMENT, "at least 256");
    unlink(at->path);
    assert_int_equal(mkfifo(at->path, 0666), 0);
    assert_refused(at->path, 256, TIDE_ERROR_IO, "neither a file nor a folder");
}

static void bad_shards_are_refused_with_what_would_be_right(void **state)
{
    static const struct {
        uint32_t magic, version, claimed, count;
        const char *message;
    } cases[] = {
        {20240522, 1, 100, 100, "magic 20240520 (uint16 tokens) or 20240801 (uint32), this one has 20240522"},
        {TIDE_DATA_SHARD_MAGIC, 2, 100, 100,
         "shard version 2; with magic 20240520 only version 1 (uint16 tokens) is known"},
        {TIDE_DATA_WIDE_SHARD_MAGIC, 1, 100, 200,
         "shard version 1; with magic 20240801 only version 7 (uint32 tokens) is known"},
        {TIDE_DATA_WIDE_SHARD_MAGIC, 7, 99, 200,
         "the header says 99 tokens, so 1420 bytes, but the file has 1424"},
        {TIDE_DATA_SHARD_MAGIC, 1, 101, 100,
         "the header says 101 tokens, so 1226 bytes, but the file has 1224"},
        {TIDE_DATA_SHARD_MAGIC, 1, 0, 0, "the shard is empty"},
    };
    const scratch *at = *state;
    const char *path = path_in(at, "x.bin");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_shard(path, cases[i].magic, cases[i].version, cases[i].claimed, cases[i].count, 0);
        assert_refused(path, 256, TIDE_ERROR_CORRUPT, cases[i].message);
    }
    assert_int_equal(truncate(path, TIDE_DATA_SHARD_HEADER_BYTES - 1), 0);
    assert_refused(path, 256, TIDE_ERROR_CORRUPT, "1023 bytes are too few for a shard's header of 1024");
    write_text(path, 3);
    assert_refused(path, 256, TIDE_ERROR_CORRUPT,
                   "this one has 131328; if it is tokens without a header, as nanoGPT writes them, say "
                   "--data-format u16 (or u32)");
}

static void an_unreadable_file_is_refused(void **state)
{
    const scratch *at = *state;
    if (geteuid() == 0) {
        print_message("skipped: root reads every file\n");
        skip();
    }
    write_text(at->path, 100);
    assert_int_equal(chmod(at->path, 0), 0);
    assert_refused(at->path, 256, TIDE_ERROR_IO, "Permission denied");
}

static void no_memory_is_reported(void **state)
{
    const scratch *at = *state;
    char path[256];
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%d.bin", at->root, i);
        write_good_shard(path, 5 * SEQ_LEN, 0);
    }
    bool met = true;
    unsigned request = 0;
    for (; met; request++) {
        tide_data_options options = {.path = at->root, .vocab_size = 256, .seq_len = SEQ_LEN};
        tide_data *data = NULL;
        fake_memory_fail(request);
        tide_status status = tide_data_open(&options, &data);
        met = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, met ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        tide_data_close(data);
    }
    assert_true(request >= 5);
}

/* Counts this process's open descriptors. */
static unsigned open_files(void)
{
    unsigned count = 0;
    for (int i = 0; i < 1000; i++)
        count += fcntl(i, F_GETFD) >= 0;
    return count;
}

static void more_shards_than_the_process_may_open_are_refused_and_none_stays_open(void **state)
{
    const scratch *at = *state;
    char path[256];
    struct rlimit limit, low;
    for (int i = 0; i < 40; i++) {
        snprintf(path, sizeof path, "%s/%02d.bin", at->root, i);
        write_good_shard(path, 5 * SEQ_LEN, 0);
    }
    const unsigned before = open_files();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = before + 20;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    char message[128];
    snprintf(message, sizeof message,
             "this process may open %u files: raise that limit (ulimit -n), or join shards", before + 20);
    assert_refused(at->root, 256, TIDE_ERROR_IO, message);
    assert_int_equal(open_files(), before);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    tide_data_close(open_data(at->root, 256, 1));
    assert_int_equal(open_files(), before);
}

/* ---- tokens without a header ---- */

static void write_tokens(const char *path, uint32_t token_bytes, size_t count, uint32_t first)
{
    unsigned char *tokens = malloc(count * token_bytes);
    assert_non_null(tokens);
    for (size_t i = 0; i < count * token_bytes; i++)
        tokens[i] = (unsigned char)((first + i / token_bytes) >> 8 * (i % token_bytes));
    write_bytes(path, tokens, count * token_bytes);
    free(tokens);
}

static void tokens_without_a_header_are_read_from_the_first_byte_on(void **state)
{
    const scratch *at = *state;
    static const uint32_t firsts[] = {50000, 128000};
    for (uint32_t wide = 0; wide < 2; wide++) {
        write_tokens(at->path, wide ? 4 : 2, 20 * SEQ_LEN + 1, firsts[wide]);
        const tide_data_options options = {.path = at->path,
                                           .encoding = wide ? TIDE_DATA_ENCODING_U32 : TIDE_DATA_ENCODING_U16,
                                           .vocab_size = firsts[wide] + 20 * SEQ_LEN + 1,
                                           .seq_len = SEQ_LEN};
        tide_data *data = open_with(&options);
        assert_int_equal(tide_data_count(data).format, TIDE_DATA_FORMAT_HEADERLESS);
        assert_int_equal(tide_data_count(data).tokens, 20 * SEQ_LEN + 1);
        assert_int_equal(tide_data_validation_batch(data, 0, 1, BATCH(inputs, targets)), TIDE_OK);
        for (int i = 0; i < SEQ_LEN; i++) {
            assert_int_equal(inputs[i], firsts[wide] + 19 * SEQ_LEN + (uint32_t)i);
            assert_int_equal(targets[i], inputs[i] + 1);
        }
        tide_data_close(data);
    }
}

static void what_can_be_no_tokens_without_a_header_is_refused(void **state)
{
    const scratch *at = *state;
    tide_data_options options = {.path = at->path, .vocab_size = 65536, .seq_len = SEQ_LEN};
    options.encoding = TIDE_DATA_ENCODING_U16;
    write_text(at->path, 101);
    assert_refused_with(&options, TIDE_ERROR_CORRUPT, at->path,
                        "its 101 bytes are no whole number of uint16 tokens (--data-format u16)");
    write_good_shard(at->path, 100, 0);
    assert_refused_with(&options, TIDE_ERROR_CORRUPT, at->path,
                        "it is a token shard with a header, so not --data-format u16: leave that out");
    options.encoding = TIDE_DATA_ENCODING_U32;
    write_text(at->path, 402);
    assert_refused_with(&options, TIDE_ERROR_CORRUPT, at->path,
                        "its 402 bytes are no whole number of uint32 tokens (--data-format u32)");
}

static void the_fingerprint_covers_the_format(void **state)
{
    const scratch *at = *state;
    uint64_t fingerprints[4];
    tide_data_options options = {.path = at->path, .vocab_size = 1 << 30, .seq_len = 1};
    write_tokens(at->path, 4, 100, 0);
    for (int i = 0; i < 4; i++) {
        options.encoding = (tide_data_encoding)i;
        if (i == 3) {
            options.encoding = TIDE_DATA_ENCODING_AUTO; /* the same tokens in a shard */
            write_wide_shard(at->path, 7, 100, 100, 0);
        }
        tide_data *data = open_with(&options);
        fingerprints[i] = tide_data_fingerprint(data);
        tide_data_close(data);
        for (int before = 0; before < i; before++)
            assert_int_not_equal(fingerprints[before], fingerprints[i]);
    }
}

/* ---- validation data of its own ---- */

/* Checks that an epoch has `count` sequences, which begin with tokens `first`, `first` + SEQ_LEN, ...,
 * each once. */
static void assert_trains(tide_data *data, uint32_t first, uint32_t count)
{
    unsigned char seen[256] = {0};
    assert_int_equal(tide_data_count(data).training_sequences, count);
    for (uint32_t step = 0; step < count; step++) {
        assert_int_equal(tide_data_batch(data, step, 1, BATCH(inputs, targets)), TIDE_OK);
        const uint32_t sequence = ((uint32_t)inputs[0] - first) / SEQ_LEN;
        assert_true(sequence < count && seen[sequence]++ == 0);
    }
}

static void files_named_val_beside_files_named_train_are_the_validation_data(void **state)
{
    const scratch *at = *state;
    static const char *const names[][3] = {
        {"web_train_000001.bin", "web_train_000002.bin", "web_val_000000.bin"},
        {"tiny-train.bin", "tiny_train2_train.bin", "tiny-val.bin"},
        {"a.train.bin", "train.bin", "val.bin"},
        {"x_train_1.bin", "x_train_2.bin", "x_validation.bin"},
        {"train_0.bin", "train_1.bin", "valid_0.bin"},
        {"Train_0.bin", "TRAIN_1.bin", "Val_0.bin"},
        {"train.a.bin", "train.b.bin", "dev.bin"}};
    double nats;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        write_in(at, names[i][0], 40 * SEQ_LEN + 1, 0);
        write_in(at, names[i][1], 20 * SEQ_LEN + 1, 40 * SEQ_LEN);
        write_in(at, names[i][2], 10 * SEQ_LEN + 1, 30000);
        tide_data *data = open_data(at->root, 50257, 1);
        const tide_data_counts counts = tide_data_count(data);
        assert_int_equal(counts.split, TIDE_DATA_SPLIT_NAMED);
        assert_int_equal(counts.shards, 2);
        assert_int_equal(counts.validation_shards, 1);
        assert_int_equal(counts.validation_sequences, 10);
        assert_trains(data, 0, 60);
        assert_int_equal(tide_data_validation_batch(data, 11, 1, BATCH(inputs, targets)), TIDE_OK);
        assert_int_equal(inputs[0], 30000 + SEQ_LEN);
        assert_int_equal(tide_data_unigram_entropy(data, &nats), TIDE_OK);
        assert_true(fabs(nats - log(10 * SEQ_LEN)) < 1e-9);
        tide_data_close(data);
        for (int n = 0; n < 3; n++) {
            unlink(path_in(at, names[i][n]));
        }
    }
}

static void one_of_the_two_words_alone_splits_no_folder(void **state)
{
    const scratch *at = *state;
    write_in(at, "a_val_0.bin", 40 * SEQ_LEN + 1, 0);
    write_in(at, "b_training_value.bin", 60 * SEQ_LEN + 1, 1000);
    tide_data *data = open_data(at->root, 50257, 1);
    assert_int_equal(tide_data_count(data).split, TIDE_DATA_SPLIT_HELD_OUT);
    assert_int_equal(tide_data_count(data).shards, 2);
    assert_int_equal(tide_data_count(data).validation_sequences, 5);
    tide_data_close(data);
}

static void a_split_folder_must_make_sense(void **state)
{
    const scratch *at = *state;
    write_in(at, "a_train.bin", 40 * SEQ_LEN + 1, 0);
    write_in(at, "a_val.bin", SEQ_LEN, 0);
    assert_refused(at->root, 50257, TIDE_ERROR_CORRUPT,
                   "no file for validation has the 9 tokens of a sequence of 8");
    write_in(at, "a_val.bin", 40 * SEQ_LEN + 1, 0);
    write_in(at, "a_train.bin", SEQ_LEN, 0);
    assert_refused(at->root, 50257, TIDE_ERROR_CORRUPT,
                   "no file for training has the 9 tokens of a sequence of 8");
    write_in(at, "a_test.bin", 40 * SEQ_LEN + 1, 0);
    assert_refused(at->root, 50257, TIDE_ERROR_CORRUPT,
                   "a_test.bin: other files of the folder are called train or val, and this name says "
                   "neither: rename it or take it away");
    unlink(path_in(at, "a_test.bin"));
    write_in(at, "a_train_val.bin", 40 * SEQ_LEN + 1, 0);
    assert_refused(at->root, 50257, TIDE_ERROR_CORRUPT, "a_train_val.bin: other files");
    assert_non_null(strstr(tide_message(), "this name says both"));
}

static void validation_data_may_be_named_and_then_all_else_trains(void **state)
{
    const scratch *at = *state;
    char folder[128], eval[256];
    snprintf(folder, sizeof folder, "%s/folder", at->root);
    assert_int_equal(mkdir(folder, 0777), 0);
    write_in(at, "a.bin", 40 * SEQ_LEN + 1, 0);
    write_in(at, "folder/eval_train.bin", 20 * SEQ_LEN + 1, 2000);
    write_in(at, "folder/eval_val.bin", 10 * SEQ_LEN + 1, 3000);
    snprintf(eval, sizeof eval, "%s/a.bin", at->root);
    tide_data_options options = {
        .path = at->root, .eval_path = folder, .vocab_size = 50257, .seq_len = SEQ_LEN};
    tide_data *data = open_with(&options); /* validates with the files named val alone */
    assert_int_equal(tide_data_count(data).split, TIDE_DATA_SPLIT_GIVEN);
    assert_int_equal(tide_data_count(data).validation_sequences, 10);
    assert_int_equal(tide_data_validation_batch(data, 0, 1, BATCH(inputs, targets)), TIDE_OK);
    assert_int_equal(inputs[0], 3000);
    assert_trains(data, 0, 40);
    tide_data_close(data);
    options.path = folder;
    options.eval_path = eval;
    data = open_with(&options); /* training leaves out the val files here too */
    assert_int_equal(tide_data_count(data).validation_sequences, 40);
    assert_trains(data, 2000, 20);
    tide_data_close(data);
}

static void validation_data_is_checked_as_training_data_is(void **state)
{
    const scratch *at = *state;
    char shard[128];
    snprintf(shard, sizeof shard, "%s/a.bin", at->root);
    write_good_shard(shard, 40 * SEQ_LEN + 1, 0);
    write_text(at->path, 40 * SEQ_LEN + 1);
    tide_data_options options = {
        .path = shard, .eval_path = at->path, .vocab_size = 50257, .seq_len = SEQ_LEN};
    assert_refused_with(&options, TIDE_ERROR_ARGUMENT, at->path, "it is text, and the training data");
    options.path = at->path;
    options.eval_path = shard;
    assert_refused_with(&options, TIDE_ERROR_ARGUMENT, shard, "it is token ids, and the training data");
    options.eval_path = "/nowhere/at all";
    assert_refused_with(&options, TIDE_ERROR_IO, "/nowhere/at all", "can't be found");
    options.eval_path = "";
    assert_refused_with(&options, TIDE_ERROR_ARGUMENT, "", "validation data: the path is empty");
    char few[128];
    snprintf(few, sizeof few, "%s/few", at->root);
    write_text(few, SEQ_LEN);
    options.eval_path = few;
    assert_refused_with(&options, TIDE_ERROR_CORRUPT, few, "no file for validation has the 9 tokens");
    snprintf(few, sizeof few, "%s/few.bin", at->root);
    write_good_shard(few, 10 * SEQ_LEN + 1, 50200);
    options.path = shard;
    options.eval_path = few;
    assert_refused_with(&options, TIDE_ERROR_CORRUPT, few,
                        "token 50257 at position 57 is outside the vocabulary of 50257");
}

/* ---- the order ---- */

/* Returns the numbers of the sequences in a step's batch. The first two bytes of each sequence are its
 * number. */
static void batch_sequences(tide_data *data, uint64_t step, uint32_t count, unsigned *sequences)
{
    assert_true(count <= 16);
    assert_int_equal(tide_data_batch(data, step, count, BATCH(inputs, targets)), TIDE_OK);
    for (uint32_t i = 0; i < count; i++)
        sequences[i] = (unsigned)inputs[i * SEQ_LEN] * 256 + (unsigned)inputs[i * SEQ_LEN + 1];
}

static tide_data *open_numbered(const char *path, unsigned sequences, uint64_t seed)
{
    size_t bytes = sequences * SEQ_LEN + 1;
    unsigned char *text = calloc(1, bytes);
    assert_non_null(text);
    for (unsigned i = 0; i < sequences; i++) {
        text[i * SEQ_LEN] = (unsigned char)(i / 256);
        text[i * SEQ_LEN + 1] = (unsigned char)(i % 256);
    }
    write_bytes(path, text, bytes);
    free(text);
    return open_data(path, 256, seed);
}

static void an_epoch_takes_every_training_sequence_once_and_no_other(void **state)
{
    const scratch *at = *state;
    enum { SEQUENCES = 1000, TRAINING = 950 };
    tide_data *data = open_numbered(at->path, SEQUENCES, 5);
    assert_int_equal(tide_data_count(data).training_sequences, TRAINING);
    for (unsigned epoch = 0; epoch < 3; epoch++) {
        unsigned seen[SEQUENCES] = {0};
        for (unsigned step = 0; step < TRAINING / 10; step++) {
            unsigned sequences[10];
            batch_sequences(data, epoch * (TRAINING / 10) + step, 10, sequences);
            for (int i = 0; i < 10; i++)
                seen[sequences[i]]++;
        }
        for (unsigned i = 0; i < SEQUENCES; i++)
            assert_int_equal(seen[i], i < TRAINING ? 1 : 0);
    }
    tide_data_close(data);
}

static void the_order_is_a_function_of_seed_and_step_and_differs_by_epoch(void **state)
{
    const scratch *at = *state;
    unsigned first[16], again[16], other_seed[16], next_epoch[16], in_order = 0;
    tide_data *data = open_numbered(at->path, 1000, 5);
    tide_data *same = open_data(at->path, 256, 5);
    tide_data *other = open_data(at->path, 256, 6);
    batch_sequences(same, 3, 16, again);
    batch_sequences(data, 0, 16, first);
    batch_sequences(data, 3, 16, first);
    batch_sequences(other, 3, 16, other_seed);
    assert_memory_equal(first, again, sizeof first);
    assert_memory_not_equal(first, other_seed, sizeof first);
    batch_sequences(data, 0, 10, first);
    batch_sequences(data, 95, 10, next_epoch); /* 950 / 10 steps later */
    assert_memory_not_equal(first, next_epoch, 10 * sizeof first[0]);
    for (int i = 0; i + 1 < 10; i++)
        in_order += first[i] + 1 == first[i + 1];
    assert_true(in_order < 3);
    tide_data_close(data);
    tide_data_close(same);
    tide_data_close(other);
}

static void a_batch_may_span_epochs_and_be_larger_than_one(void **state)
{
    const scratch *at = *state;
    unsigned sequences[16], seen[16] = {0};
    tide_data *data = open_numbered(at->path, 6, 1); /* 5 for training */
    /* Positions 16 to 31: the rest of epoch 3, up to epoch 6. */
    batch_sequences(data, 1, 16, sequences);
    for (int i = 0; i < 16; i++)
        seen[sequences[i]]++;
    for (int i = 0; i < 5; i++)
        assert_in_range(seen[i], 2, 4);
    assert_int_equal(seen[5], 0);
    tide_data_close(data);
}

static void a_step_beyond_all_numbers_is_refused(void **state)
{
    const scratch *at = *state;
    int32_t tokens[SEQ_LEN];
    tide_data *data = open_numbered(at->path, 10, 1);
    assert_int_equal(tide_data_batch(data, UINT64_MAX / 2, 3, BATCH(tokens, tokens)), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_data_batch(data, 0, 0, BATCH(tokens, tokens)), TIDE_ERROR_ARGUMENT);
    tide_data_close(data);
}

static void a_permutation_of_any_size_is_one(void **unused)
{
    for (uint64_t size = 1; size < 300; size += 1 + size / 16) {
        unsigned char seen[300] = {0};
        tide_permutation permutation = tide_permutation_make(size, 3, size);
        for (uint64_t i = 0; i < size; i++)
            seen[tide_permutation_at(&permutation, i)]++;
        for (uint64_t i = 0; i < size; i++)
            assert_int_equal(seen[i], 1);
    }
    tide_permutation huge = tide_permutation_make(1, 0, 1ull << 62);
    assert_true(tide_permutation_at(&huge, (1ull << 62) - 1) < 1ull << 62);
}

/* Over many epochs each place gets each sequence about equally often: chi-square of 7 x 7 cells with 36
 * degrees of freedom is below 80 (p = 3e-5) for this fixed seed. */
static void epochs_shuffle_evenly(void **unused)
{
    enum { SIZE = 7, EPOCHS = 7000 };
    unsigned cells[SIZE][SIZE] = {{0}};
    double chi_square = 0;
    for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
        tide_permutation permutation = tide_permutation_make(9, epoch, SIZE);
        for (unsigned i = 0; i < SIZE; i++)
            cells[i][tide_permutation_at(&permutation, i)]++;
    }
    for (int i = 0; i < SIZE * SIZE; i++) {
        double apart = (double)cells[i / SIZE][i % SIZE] - EPOCHS / SIZE;
        chi_square += apart * apart / (EPOCHS / SIZE);
    }
    assert_true(chi_square < 80);
}

static void batches_allocate_nothing(void **state)
{
    const scratch *at = *state;
    tide_data *data = open_numbered(at->path, 100, 1);
    fake_memory_clear();
    for (uint64_t step = 0; step < 100; step++) {
        assert_int_equal(tide_data_batch(data, step, 4, BATCH(inputs, targets)), TIDE_OK);
        assert_int_equal(tide_data_validation_batch(data, step, 4, BATCH(inputs, targets)), TIDE_OK);
    }
    assert_int_equal(fake_memory_clear(), 0);
    tide_data_close(data);
}

static void validation_batches_come_in_order_and_wrap_around(void **state)
{
    const scratch *at = *state;
    tide_data *data = open_numbered(at->path, 60, 1); /* 57 for training, 3 for validation */
    assert_int_equal(tide_data_validation_batch(data, 1, 4, BATCH(inputs, targets)), TIDE_OK);
    static const int32_t wanted[4] = {58, 59, 57, 58};
    for (int i = 0; i < 4; i++)
        assert_int_equal(inputs[i * SEQ_LEN + 1], wanted[i]);
    tide_data_close(data);
}

/* ---- the vocabulary ---- */

static void a_token_outside_is_refused_at_open_with_its_place(void **state)
{
    const scratch *at = *state;
    const char *path = path_in(at, "x.bin");
    write_good_shard(path, 1000, 0);
    assert_refused(path, 777, TIDE_ERROR_CORRUPT,
                   "token 777 at position 777 is outside the vocabulary of 777");
    tide_data_close(open_data(path, 1000, 1));
}

/* A sparse shard whose last sequence, which is for validation, has a bad token. Opening does not check so
 * many tokens. */
static void a_token_outside_that_open_did_not_see_never_leaves_a_batch(void **state)
{
    const scratch *at = *state;
    enum { LENGTH = 1 << 20, COUNT = 300 << 20, AT = COUNT - LENGTH - 1 };
    static int32_t long_inputs[LENGTH], long_targets[LENGTH];
    double nats;
    write_shard(at->path, TIDE_DATA_SHARD_MAGIC, TIDE_DATA_SHARD_VERSION, COUNT, 0, 0);
    assert_int_equal(truncate(at->path, TIDE_DATA_SHARD_HEADER_BYTES + 2 * (off_t)COUNT), 0);
    int descriptor = open(at->path, O_WRONLY);
    const uint16_t bad = 100;
    assert_int_equal(pwrite(descriptor, &bad, 2, TIDE_DATA_SHARD_HEADER_BYTES + 2 * (off_t)AT), 2);
    close(descriptor);
    const tide_data_options options = {.path = at->path, .vocab_size = 100, .seq_len = LENGTH};
    tide_data *data = open_with(&options);
    assert_int_equal(tide_data_count(data).validation_sequences, 14);
    assert_int_equal(tide_data_batch(data, 0, 1, BATCH(long_inputs, long_targets)), TIDE_OK);
    assert_int_equal(tide_data_validation_batch(data, 13, 1, BATCH(long_inputs, long_targets)),
                     TIDE_ERROR_CORRUPT);
    assert_non_null(
        strstr(tide_message(), "token 100 at position 313524223 is outside the vocabulary of 100"));
    assert_int_equal(tide_data_unigram_entropy(data, &nats), TIDE_ERROR_CORRUPT);
    tide_data_close(data);
}

static void a_token_of_32_bits_may_be_outside_any_vocabulary(void **state)
{
    const scratch *at = *state;
    const char *path = path_in(at, "x.bin");
    double nats;
    write_wide_shard(path, 7, 100, 100, 70000);
    assert_refused(path, 70050, TIDE_ERROR_CORRUPT,
                   "token 70050 at position 50 is outside the vocabulary of 70050");
    write_wide_shard(path, 7, 100, 100, UINT32_MAX - 99);
    assert_refused(path, INT32_MAX, TIDE_ERROR_CORRUPT, "token 4294967196 at position 0 is outside");
    write_wide_shard(path, 7, 10 * SEQ_LEN + 1, 10 * SEQ_LEN + 1, 0);
    tide_data *data = open_data(path, 65536, 1);
    int descriptor = open(path, O_WRONLY);
    const uint32_t bad = UINT32_MAX;
    assert_int_equal(pwrite(descriptor, &bad, 4, TIDE_DATA_SHARD_HEADER_BYTES + 4 * 77), 4);
    close(descriptor);
    assert_int_equal(tide_data_validation_batch(data, 0, 1, BATCH(inputs, targets)), TIDE_ERROR_CORRUPT);
    assert_int_equal(tide_data_unigram_entropy(data, &nats), TIDE_ERROR_CORRUPT);
    tide_data_close(data);
}

/* ---- files that change under a run ---- */

/* The training batch, the validation batch and the entropy all fail with this message. */
static void assert_changed(tide_data *data, const char *path, const char *message)
{
    double nats;
    for (int call = 0; call < 3; call++) {
        const tide_status status = call == 0 ? tide_data_batch(data, 0, 1, BATCH(inputs, targets))
                                   : call == 1
                                       ? tide_data_validation_batch(data, 0, 1, BATCH(inputs, targets))
                                       : tide_data_unigram_entropy(data, &nats);
        if (status != TIDE_ERROR_CORRUPT || strstr(tide_message(), message) == NULL ||
            strstr(tide_message(), path) == NULL || strchr(tide_message(), '\n') != NULL)
            fail_msg("call %d: %s: \"%s\" does not say \"%s\"", call, tide_status_name(status),
                     tide_message(), message);
    }
}

/* Checks that batch 0 still reads the same. */
static void assert_batch(tide_data *data, const int32_t truth[SEQ_LEN])
{
    if (tide_data_batch(data, 0, 1, BATCH(inputs, targets)) != TIDE_OK)
        fail_msg("%s", tide_message());
    assert_memory_equal(inputs, truth, SEQ_LEN * sizeof truth[0]);
}

/* Writes the byte until the file's time of modification changes; that clock ticks in milliseconds. */
static void write_until_seen(const char *path, off_t at, unsigned char byte)
{
    struct stat before, now;
    const int descriptor = open(path, O_WRONLY);
    assert_int_equal(fstat(descriptor, &before), 0);
    do {
        assert_int_equal(pwrite(descriptor, &byte, 1, at), 1);
        assert_int_equal(fstat(descriptor, &now), 0);
    } while (now.st_mtim.tv_sec == before.st_mtim.tv_sec && now.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
    close(descriptor);
}

static void another_size_is_told_with_both_and_the_old_content_goes_on(void **state)
{
    const scratch *at = *state;
    static const size_t sizes[] = {0, 1, 12, 100, 800, 802, 5000};
    int32_t truth[SEQ_LEN];
    char message[128];
    write_text(at->path, 801);
    tide_data *data = open_data(at->path, 256, 1);
    assert_int_equal(tide_data_batch(data, 0, 1, BATCH(truth, targets)), TIDE_OK);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        snprintf(message, sizeof message,
                 "it had 801 bytes when it was opened and has %zu now; a data file must stay", sizes[i]);
        assert_int_equal(truncate(at->path, (off_t)sizes[i]), 0);
        assert_changed(data, at->path, message);
        write_text(at->path, 801); /* in place, as > does in a shell */
        assert_batch(data, truth);
    }
    tide_data_close(data);
}

static void other_content_of_the_same_size_is_refused_and_the_same_content_goes_on(void **state)
{
    const scratch *at = *state;
    int32_t truth[SEQ_LEN];
    write_text(at->path, 801);
    tide_data *data = open_data(at->path, 256, 1);
    assert_int_equal(tide_data_batch(data, 0, 1, BATCH(truth, targets)), TIDE_OK);
    write_until_seen(at->path, 500, 500 % 251);
    assert_batch(data, truth);
    write_until_seen(at->path, 500, 'X');
    assert_changed(data, at->path, "its 801 bytes are not the content that it had when it was opened");
    write_until_seen(at->path, 500, 500 % 251);
    assert_batch(data, truth);
    tide_data_close(data);
}

/* A file of up to 64 MiB is hashed again only once after its times have changed, and not for each
 * sequence. */
static void the_same_content_is_read_again_once_a_change_of_times(void **state)
{
    const scratch *at = *state;
    struct stat now;
    tide_token_file file;
    uint64_t hash = 1;
    write_text(at->path, 801);
    assert_int_equal(tide_token_file_open(at->path, TIDE_DATA_ENCODING_AUTO, &file), TIDE_OK);
    assert_int_equal(tide_token_file_fingerprint(&file, &hash), TIDE_OK);
    write_until_seen(at->path, 500, 500 % 251);
    assert_int_equal(fstat(file.descriptor, &now), 0);
    assert_true(file.modified.tv_sec != now.st_mtim.tv_sec || file.modified.tv_nsec != now.st_mtim.tv_nsec);
    assert_int_equal(tide_token_file_verify(&file), TIDE_OK);
    assert_memory_equal(&file.modified, &now.st_mtim, sizeof now.st_mtim);
    assert_memory_equal(&file.changed, &now.st_ctim, sizeof now.st_ctim);
    tide_token_file_close(&file);
}

/* Above 64 MiB the fingerprint is of samples. So any write is refused, since it may lie between the
 * samples; a change of the mode is not. */
static void a_large_file_that_is_written_to_is_refused(void **state)
{
    const scratch *at = *state;
    write_text(at->path, 801);
    assert_int_equal(truncate(at->path, 70 << 20), 0); /* a hole behind the text, which takes no disk space */
    tide_data *data = open_data(at->path, 256, 1);
    assert_int_equal(chmod(at->path, 0640), 0);
    assert_int_equal(tide_data_batch(data, 0, 1, BATCH(inputs, targets)), TIDE_OK);
    write_until_seen(at->path, (70 << 20) / 2, 'X');
    assert_changed(data, at->path, "its 73400320 bytes were written to after it was opened");
    tide_data_close(data);
}

static void a_changed_shard_of_validation_data_is_seen_when_it_is_read(void **state)
{
    const scratch *at = *state;
    write_in(at, "x_train.bin", 20 * SEQ_LEN + 1, 0);
    write_in(at, "x_val.bin", 20 * SEQ_LEN + 1, 1000);
    tide_data *data = open_data(at->root, 50257, 1);
    write_until_seen(path_in(at, "x_val.bin"), TIDE_DATA_SHARD_HEADER_BYTES + 100, 7);
    assert_int_equal(tide_data_batch(data, 0, 1, BATCH(inputs, targets)), TIDE_OK);
    assert_int_equal(tide_data_validation_batch(data, 0, 1, BATCH(inputs, targets)), TIDE_ERROR_CORRUPT);
    assert_non_null(strstr(tide_message(), path_in(at, "x_val.bin")));
    tide_data_close(data);
}

static void a_file_that_is_removed_or_replaced_is_read_on_as_it_was(void **state)
{
    const scratch *at = *state;
    char other[256];
    int32_t truth[SEQ_LEN];
    double nats;
    write_text(at->path, 801);
    tide_data *data = open_data(at->path, 256, 1);
    assert_int_equal(tide_data_batch(data, 0, 1, BATCH(truth, targets)), TIDE_OK);
    snprintf(other, sizeof other, "%s/other", at->root);
    write_bytes(other, "short", 5);
    assert_int_equal(rename(other, at->path), 0);
    assert_batch(data, truth);
    assert_int_equal(unlink(at->path), 0);
    assert_batch(data, truth);
    assert_int_equal(tide_data_unigram_entropy(data, &nats), TIDE_OK);
    tide_data_close(data);
}

/* ---- fingerprints and entropy ---- */

/* Checkpoints store fingerprints, so no version may change them. */
static void the_fingerprint_is_the_same_in_every_version(void **state)
{
    const scratch *at = *state;
    char path[128];
    bool was;
    write_text(at->path, 100000);
    tide_data *data = open_data(at->path, 256, 1);
    assert_int_equal(tide_data_fingerprint(data), 0x05af54bd1959bcbd);
    tide_data_close(data);
    write_in(at, "a.bin", 40000, 0);
    write_in(at, "b.bin", 5000, 1000);
    data = open_data(at->root, 50257, 1);
    const uint64_t held_out = tide_data_fingerprint(data);
    assert_int_equal(held_out, 0x67f05dcc553cdc81);
    tide_data_close(data);

    const tide_data_options options = {
        .path = at->root, .eval_path = at->root, .vocab_size = 50257, .seq_len = SEQ_LEN};
    data = open_with(&options);
    const uint64_t all_train = tide_data_fingerprint(data);
    assert_int_not_equal(all_train, held_out); /* the order of training differs */
    assert_int_equal(tide_data_was_split_otherwise(data, held_out, &was), TIDE_OK);
    assert_true(was);
    assert_int_equal(tide_data_was_split_otherwise(data, held_out + 1, &was), TIDE_OK);
    assert_false(was);
    tide_data_close(data);
    data = open_data(at->root, 50257, 1);
    assert_int_equal(tide_data_was_split_otherwise(data, all_train, &was), TIDE_OK);
    assert_true(was);
    tide_data_close(data);
    snprintf(path, sizeof path, "rm %s/*.bin", at->root);
    assert_int_equal(system(path), 0);

    write_in(at, "x_train_0.bin", 20 * SEQ_LEN + 1, 0);
    write_in(at, "x_train_1.bin", 20 * SEQ_LEN + 1, 1000);
    write_in(at, "x_val_0.bin", 10 * SEQ_LEN + 1, 2000);
    data = open_data(at->root, 50257, 1);
    const uint64_t named = tide_data_fingerprint(data);
    assert_int_equal(tide_data_was_split_otherwise(data, 0xd30ca81966cca5fe, &was), TIDE_OK);
    assert_true(was); /* an older tidepool, which knew no files for validation, trained on all three */
    tide_data_close(data);
    write_in(at, "x_val_0.bin", 12 * SEQ_LEN + 1, 3000);
    data = open_data(at->root, 50257, 1);
    assert_int_equal(tide_data_fingerprint(data), named);
    tide_data_close(data);
}

static void the_fingerprint_tells_content_from_place_and_seed(void **state)
{
    const scratch *at = *state;
    const char *path = path_in(at, "copy");
    write_text(at->path, 1000);
    write_text(path, 1000);
    tide_data *data = open_data(at->path, 256, 1), *copy = open_data(path, 300, 2);
    assert_true(tide_data_fingerprint(data) == tide_data_fingerprint(copy));
    tide_data_close(copy);
    int descriptor = open(path, O_WRONLY);
    assert_int_equal(pwrite(descriptor, "!", 1, 501), 1);
    close(descriptor);
    copy = open_data(path, 256, 1);
    assert_true(tide_data_fingerprint(data) != tide_data_fingerprint(copy));
    tide_data_close(copy);
    write_text(path, 1001);
    copy = open_data(path, 256, 1);
    assert_true(tide_data_fingerprint(data) != tide_data_fingerprint(copy));
    tide_data_close(copy);
    tide_data_close(data);
}

static void the_unigram_entropy_is_that_of_the_validation_targets(void **state)
{
    const scratch *at = *state;
    double nats;
    char text[40 * SEQ_LEN + 1];
    memset(text, 'x', sizeof text);
    /* 40 sequences, 2 for validation: 16 targets, half of them 'a', a quarter each 'b' and 'c'. */
    memcpy(text + 38 * SEQ_LEN + 1, "aaaaaaaabbbbcccc", 16);
    write_bytes(at->path, text, sizeof text);
    tide_data *data = open_data(at->path, 256, 1);
    assert_int_equal(tide_data_unigram_entropy(data, &nats), TIDE_OK);
    assert_true(fabs(nats - 1.5 * log(2)) < 1e-12);
    tide_data_close(data);
}

/* The sequences are longer than the block in which tokens are counted: 20 x 2500 + 1 different tokens,
 * 2500 targets. */
static void each_token_of_a_large_vocabulary_has_a_counter(void **state)
{
    const scratch *at = *state;
    enum { LENGTH = 2500, COUNT = 20 * LENGTH + 1, FIRST = 16777216 - COUNT };
    double nats = -1;
    tide_data *data = NULL;
    write_wide_shard(at->path, 7, COUNT, COUNT, FIRST);
    const tide_data_options options = {.path = at->path, .vocab_size = 16777216, .seq_len = LENGTH};
    assert_int_equal(tide_data_open(&options, &data), TIDE_OK);
    fake_memory_fail(0);
    assert_int_equal(tide_data_unigram_entropy(data, &nats), TIDE_ERROR_NO_MEMORY);
    assert_non_null(strstr(tide_message(), "16777216 token counters"));
    fake_memory_clear();
    assert_int_equal(tide_data_unigram_entropy(data, &nats), TIDE_OK);
    assert_true(fabs(nats - log(LENGTH)) < 1e-9);
    tide_data_close(data);
}

static void samples_are_shown_in_printable_form(void **unused)
{
    char shown[TIDE_DATA_SHOWN_BYTES];
    assert_int_equal(tide_data_show(TIDE_DATA_FORMAT_BYTES, 'A', shown), 1);
    assert_string_equal(shown, "A");
    tide_data_show(TIDE_DATA_FORMAT_BYTES, '\n', shown);
    assert_string_equal(shown, "\n");
    assert_int_equal(tide_data_show(TIDE_DATA_FORMAT_BYTES, 27, shown), 4);
    assert_string_equal(shown, "\\x1b");
    tide_data_show(TIDE_DATA_FORMAT_BYTES, 300, shown);
    assert_string_equal(shown, "<300>");
    tide_data_show(TIDE_DATA_FORMAT_SHARDS, 65, shown);
    assert_string_equal(shown, "<65>");
    assert_int_equal(tide_data_show(TIDE_DATA_FORMAT_SHARDS, INT32_MIN, shown), 13);
    assert_int_equal(tide_data_byte_token((char)0xff), 255);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scratch(a_text_file_is_one_token_a_byte),
        in_scratch(shards_of_a_folder_are_taken_in_name_order),
        in_scratch(a_shard_may_have_tokens_of_32_bits),
        in_scratch(a_shard_over_two_gib_is_read_to_its_end),
        in_scratch(texts_and_folders_that_hold_no_tokens_are_refused),
        in_scratch(bad_shards_are_refused_with_what_would_be_right),
        in_scratch(an_unreadable_file_is_refused),
        in_scratch(no_memory_is_reported),
        in_scratch(more_shards_than_the_process_may_open_are_refused_and_none_stays_open),
        in_scratch(tokens_without_a_header_are_read_from_the_first_byte_on),
        in_scratch(what_can_be_no_tokens_without_a_header_is_refused),
        in_scratch(the_fingerprint_covers_the_format),
        in_scratch(files_named_val_beside_files_named_train_are_the_validation_data),
        in_scratch(one_of_the_two_words_alone_splits_no_folder),
        in_scratch(a_split_folder_must_make_sense),
        in_scratch(validation_data_may_be_named_and_then_all_else_trains),
        in_scratch(validation_data_is_checked_as_training_data_is),
        in_scratch(an_epoch_takes_every_training_sequence_once_and_no_other),
        in_scratch(the_order_is_a_function_of_seed_and_step_and_differs_by_epoch),
        in_scratch(a_batch_may_span_epochs_and_be_larger_than_one),
        in_scratch(a_step_beyond_all_numbers_is_refused),
        cmocka_unit_test(a_permutation_of_any_size_is_one),
        cmocka_unit_test(epochs_shuffle_evenly),
        in_scratch(batches_allocate_nothing),
        in_scratch(validation_batches_come_in_order_and_wrap_around),
        in_scratch(a_token_outside_is_refused_at_open_with_its_place),
        in_scratch(a_token_outside_that_open_did_not_see_never_leaves_a_batch),
        in_scratch(a_token_of_32_bits_may_be_outside_any_vocabulary),
        in_scratch(another_size_is_told_with_both_and_the_old_content_goes_on),
        in_scratch(other_content_of_the_same_size_is_refused_and_the_same_content_goes_on),
        in_scratch(the_same_content_is_read_again_once_a_change_of_times),
        in_scratch(a_changed_shard_of_validation_data_is_seen_when_it_is_read),
        in_scratch(a_large_file_that_is_written_to_is_refused),
        in_scratch(a_file_that_is_removed_or_replaced_is_read_on_as_it_was),
        in_scratch(the_fingerprint_is_the_same_in_every_version),
        in_scratch(the_fingerprint_tells_content_from_place_and_seed),
        in_scratch(the_unigram_entropy_is_that_of_the_validation_targets),
        in_scratch(each_token_of_a_large_vocabulary_has_a_counter),
        cmocka_unit_test(samples_are_shown_in_printable_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
