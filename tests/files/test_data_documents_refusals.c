/* Shards with documents that are refused: another tokenizer's, damaged ones, those that contradict themselves
 * or change during a run; and reads and requests for memory that fail. */
#include "tests/files/test_data_documents.h"

#include "tests/support/fake_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>

/* ---- faults ---- */

ssize_t __wrap_pread(int descriptor, void *bytes, size_t count, off_t at);
ssize_t __wrap_pread64(int descriptor, void *bytes, size_t count, off_t at);

typedef enum read_fault { READ_WELL, READ_ERROR, READ_SHORT, READ_AFTER_A_CHANGE } read_fault;

static read_fault fault;
static unsigned reads, faulty_read; /* ERROR, AFTER_A_CHANGE: the number of the read, from 0 */
static bool met_fault;
static const char *changing_path; /* AFTER_A_CHANGE: gets `encoded` before the read */
static size_t changed_bytes;
static uint8_t sound[4096]; /* the content before the change */
static size_t sound_bytes;

static void set_fault(read_fault wanted, unsigned read)
{
    fault = wanted;
    faulty_read = read;
    reads = 0;
    met_fault = false;
}

static ssize_t faulty_pread(int descriptor, void *bytes, size_t count, off_t at)
{
    const bool is_now = reads++ == faulty_read;
    if (fault == READ_SHORT && reads % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    if (fault == READ_SHORT && count > 1)
        count = count / 2;
    if (fault == READ_ERROR && is_now) {
        met_fault = true;
        errno = EIO;
        return -1;
    }
    if (fault == READ_AFTER_A_CHANGE && is_now) {
        met_fault = true;
        const int writer = open(changing_path, O_WRONLY);
        if (writer < 0 || write(writer, encoded, changed_bytes) != (ssize_t)changed_bytes)
            abort();
        close(writer);
    }
    return preadv(descriptor, &(struct iovec){.iov_base = bytes, .iov_len = count}, 1, at);
}

ssize_t __wrap_pread(int descriptor, void *bytes, size_t count, off_t at)
{
    return faulty_pread(descriptor, bytes, count, at);
}

ssize_t __wrap_pread64(int descriptor, void *bytes, size_t count, off_t at)
{
    return faulty_pread(descriptor, bytes, count, at);
}

/* ---- the tokenizer and the vocabulary ---- */

static const char tokenizer_text[] = "{\"model\": \"tiny\"}\n";

static void shards_of_another_tokenizer_are_refused(void **state)
{
    /* by Python's hashlib */
    static const uint8_t hash[TIDE_DATA_TOKENIZER_BYTES] = {0xe8, 0xc9, 0x94, 0xc6, 0xc6, 0x4c, 0x0c, 0x28,
                                                            0x0b, 0x7b, 0x67, 0xc6, 0x72, 0xa9, 0x79, 0xb5,
                                                            0xeb, 0xa7, 0x94, 0xa0, 0xce, 0xef, 0xfe, 0x34};
    const scratch *at = *state;
    char tokenizer[256];
    tide_data_options options = options_of(at->root);
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", at->root);
    write_bytes(tokenizer, tokenizer_text, sizeof tokenizer_text - 1);
    options.tokenizer = tokenizer;
    begin();
    add_documents(add_shard(2), 20, 6);
    add_documents(add_shard(2), 20, 6);
    write_folder(at); /* neither shard names a tokenizer */
    tide_data_close(open_with(&options));
    memcpy(shards[0].tokenizer, hash, sizeof hash);
    write_folder(at);
    tide_data_close(open_with(&options));
    memcpy(shards[1].tokenizer, hash, sizeof hash);
    for (size_t byte = 0; byte < sizeof hash; byte++) {
        shards[1].tokenizer[byte] ^= 0x10;
        write_folder(at);
        assert_refused_with(&options, TIDE_ERROR_MISMATCH, "1.bin",
                            "its tokens were made with another tokenizer than");
        expect_words(tokenizer);
        expect_words("--any-tokenizer");
        shards[1].tokenizer[byte] ^= 0x10;
    }
    write_folder(at);
    tide_data_close(open_with(&options));
    write_bytes(tokenizer, tokenizer_text, sizeof tokenizer_text - 2);
    assert_refused_with(&options, TIDE_ERROR_MISMATCH, "0.bin", "another tokenizer");
    options.packing = TIDE_DATA_PACKING_OFF;
    assert_refused_with(&options, TIDE_ERROR_MISMATCH, "0.bin", "another tokenizer");
    options.tokenizer = NULL;
    tide_data_close(open_with(&options));
    options.tokenizer = "/nowhere/tokenizer.json";
    tide_data_close(open_with(&options));
}

/* Beside a shard without a hash, too: the file is wrong whoever made the shard. */
static void a_tokenizer_that_cannot_be_read_is_refused(void **state)
{
    const scratch *at = *state;
    tide_data_options options = options_of(at->path);
    write_forty_documents(at);
    options.tokenizer = at->root;
    assert_refused_with(&options, TIDE_ERROR_IO, at->root, "can't be read");
    char loop[256]; /* a file is there that cannot be opened */
    snprintf(loop, sizeof loop, "%s/loop", at->root);
    assert_int_equal(symlink(loop, loop), 0);
    options.tokenizer = loop;
    assert_refused_with(&options, TIDE_ERROR_IO, loop, "can't be");
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    const scratch *at = *state;
    for (uint32_t wide = 0; wide < 2; wide++) {
        begin();
        add_documents(add_shard(wide ? 4 : 2), 20, 6);
        tide_data_options options = options_of(at->path);
        options.vocab_size = 1000;
        shards[0].ids[77] = 999;
        write_shard(at->path, &shards[0]);
        tide_data_close(open_with(&options));
        shards[0].ids[77] = wide ? UINT32_MAX : 1000;
        write_shard(at->path, &shards[0]);
        assert_refused_with(&options, TIDE_ERROR_CORRUPT, at->path,
                            wide ? "token 4294967295 at position 77 is outside the vocabulary of 1000"
                                 : "token 1000 at position 77 is outside the vocabulary of 1000");
    }
}

/* ---- damage ---- */

/* A shard of odd sizes: 3 documents, 13 tokens, so that each section needs padding. */
static const char *write_small(const scratch *at, uint32_t token_bytes, size_t *bytes)
{
    const char *path = path_in(at, "small.bin");
    begin();
    add_documents(add_shard(token_bytes), 2, 4);
    add_document(&shards[0], 5, 8);
    *bytes = write_shard(path, &shards[0]);
    return path;
}

static void a_flip_of_any_bit_is_refused(void **state)
{
    const scratch *at = *state;
    for (uint32_t token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        size_t bytes;
        const char *path = write_small(at, token_bytes, &bytes);
        tide_data_close(open_path(path));
        const int writer = open(path, O_WRONLY);
        for (size_t byte = 0; byte < bytes; byte++)
            for (int bit = 0; bit < 8; bit++) {
                const uint8_t flipped = encoded[byte] ^ (uint8_t)(1 << bit);
                assert_int_equal(pwrite(writer, &flipped, 1, (off_t)byte), 1);
                assert_refused(path, TIDE_ERROR_CORRUPT, "data ");
                assert_int_equal(pwrite(writer, &encoded[byte], 1, (off_t)byte), 1);
            }
        close(writer);
        tide_data_close(open_path(path));
    }
}

/* A shard is read in blocks. */
static void damage_is_found_in_every_block_of_a_large_shard(void **state)
{
    enum { MANY = 3000 };
    const scratch *at = *state;
    begin();
    made_shard *shard = add_shard(2);
    add_documents(shard, MANY, 5);
    const size_t bytes = write_shard(at->path, shard);
    tide_data_close(open_path(at->path));
    const int writer = open(at->path, O_WRONLY);
    for (size_t byte = 64; byte < bytes; byte += 997) {
        const uint8_t flipped = encoded[byte] ^ 1;
        assert_int_equal(pwrite(writer, &flipped, 1, (off_t)byte), 1);
        assert_refused(at->path, TIDE_ERROR_CORRUPT, "its checksum is not that of its content");
        assert_int_equal(pwrite(writer, &encoded[byte], 1, (off_t)byte), 1);
    }
    close(writer);
    static const uint64_t places[] = {1, 1022, 1023, 1024, 1025, 2047, 2048, 2049, MANY - 1};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        char words[64];
        const uint64_t was = shard->starts[places[i]];
        shard->starts[places[i]] = shard->starts[places[i] - 1];
        write_shard(at->path, shard);
        snprintf(words, sizeof words, "document %llu begins", (unsigned long long)places[i]);
        assert_refused(at->path, TIDE_ERROR_CORRUPT, words);
        shard->starts[places[i]] = was;
    }
}

static void a_shard_that_is_cut_off_or_too_long_is_refused(void **state)
{
    const scratch *at = *state;
    for (uint32_t token_bytes = 2; token_bytes <= 4; token_bytes += 2) {
        size_t bytes;
        const char *path = write_small(at, token_bytes, &bytes);
        for (size_t left = bytes; left-- > 0;) {
            assert_int_equal(truncate(path, (off_t)left), 0);
            assert_refused(path, TIDE_ERROR_CORRUPT, "data ");
        }
        /* However the checksum is mended: at its new end the shard's sections are missing. */
        for (size_t left = 4; left < bytes; left++) {
            write_small(at, token_bytes, &bytes);
            write_bytes(path, encoded, put_crc(left - 4));
            assert_refused(path, TIDE_ERROR_CORRUPT, "data ");
        }
        write_small(at, token_bytes, &bytes);
        for (uint8_t more = 0; more < 9; more++) {
            encoded[bytes + more] = 0;
            write_bytes(path, encoded, bytes + more + 1);
            assert_refused(path, TIDE_ERROR_CORRUPT, "data ");
            write_bytes(path, encoded, put_crc(bytes - 4 + more + 1));
            assert_refused(path, TIDE_ERROR_CORRUPT, "data ");
            write_small(at, token_bytes, &bytes);
        }
    }
}

/* Each case changes fields of a sound shard, and the checksum is right. */
static void shards_that_contradict_themselves_are_refused(void **state)
{
    enum { VERSION = 8, TOKEN_BYTES = 12, TOKENS = 16, DOCUMENTS = 24, FLAGS = 36, STARTS = 64 + 32 + 8 };
    static const struct {
        size_t at;
        uint32_t bytes;
        uint64_t value;
        const char *words;
    } cases[] = {
        {VERSION, 4, 0, "version 0 with flags 0; only version 1 without flags is known"},
        {VERSION, 4, 2, "version 2 with flags 0"},
        {VERSION, 4, UINT32_MAX, "version 4294967295"},
        {FLAGS, 4, 1, "version 1 with flags 1"},
        {FLAGS, 4, 1u << 31, "flags 2147483648"},
        {TOKEN_BYTES, 4, 0, "neither 2 nor 4 bytes a token"},
        {TOKEN_BYTES, 4, 1, "neither 2 nor 4 bytes a token"},
        {TOKEN_BYTES, 4, 3, "neither 2 nor 4 bytes a token"},
        {TOKEN_BYTES, 4, 8, "neither 2 nor 4 bytes a token"},
        {TOKEN_BYTES, 4, 0x80000002, "neither 2 nor 4 bytes a token"},
        {TOKEN_BYTES, 4, 4, "the header says 13 tokens of 4 bytes in 3 documents"},
        {TOKENS, 8, 0, "its header says 0 tokens"},
        {TOKENS, 8, 2, "the header says 2 tokens"},
        {TOKENS, 8, 17, "the header says 17 tokens"},
        {TOKENS, 8, UINT64_C(1) << 63, "the header says 9223372036854775808 tokens"},
        {TOKENS, 8, UINT64_C(1) << 62, "tokens of 2 bytes"},
        {TOKENS, 8, UINT64_MAX, "the header says 18446744073709551615 tokens"},
        {TOKENS, 8, UINT64_MAX - 6, "tokens of 2 bytes"},
        {DOCUMENTS, 8, 0, "in 0 documents"},
        {DOCUMENTS, 8, 2, "in 2 documents"},
        {DOCUMENTS, 8, 4, "in 4 documents"},
        {DOCUMENTS, 8, 14, "in 14 documents"},
        {DOCUMENTS, 8, (UINT64_C(1) << 61) + 3, "in 2305843009213693955 documents"},
        {DOCUMENTS, 8, UINT64_MAX, "in 18446744073709551615 documents"},
        {STARTS, 8, 1, "document 0 begins at token 1 of 13"},
        {STARTS, 8, UINT64_MAX, "document 0 begins at token 18446744073709551615"},
        {STARTS + 8, 8, 0,
         "document 1 begins at token 0 of 13, the one before at 0: starts must rise from 0"},
        {STARTS + 8, 8, 8, "document 2 begins at token 8 of 13, the one before at 8"},
        {STARTS + 8, 8, 9, "document 2 begins at token 8 of 13, the one before at 9"},
        {STARTS + 16, 8, 3, "document 2 begins at token 3 of 13, the one before at 4"},
        {STARTS + 16, 8, 13, "document 2 begins at token 13 of 13"},
        {STARTS + 16, 8, (UINT64_C(1) << 32) + 8, "document 2 begins at token 4294967304 of 13"},
        {STARTS + 16, 8, UINT64_MAX, "document 2 begins at token 18446744073709551615 of 13"},
    };
    const scratch *at = *state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes;
        const char *path = write_small(at, 2, &bytes);
        assert_int_equal(bytes, STARTS + 3 * 8 + 4);
        put(cases[i].at, cases[i].value, cases[i].bytes);
        write_bytes(path, encoded, put_crc(bytes - 4));
        assert_refused(path, TIDE_ERROR_CORRUPT, cases[i].words);
    }
}

/* Both counts together describe a file of this very size, if one calculates in 64 bits. */
static void counts_that_overflow_are_refused(void **state)
{
    const scratch *at = *state;
    size_t bytes;
    const char *path = write_small(at, 2, &bytes);
    put(16, (UINT64_C(1) << 63) + 13, 8);
    put(24, (UINT64_C(1) << 61) - (UINT64_C(1) << 57) + 3, 8);
    write_bytes(path, encoded, put_crc(bytes - 4));
    assert_refused(path, TIDE_ERROR_CORRUPT, "the header says 9223372036854775821 tokens");
    write_small(at, 4, &bytes);
    put(16, (UINT64_C(1) << 62) + 13, 8);
    put(24, (UINT64_C(1) << 61) - (UINT64_C(1) << 56) + 3, 8);
    write_bytes(path, encoded, put_crc(bytes - 4));
    assert_refused(path, TIDE_ERROR_CORRUPT, "the header says 4611686018427387917 tokens");
}

/* A header that says as many documents as tokens, or more, with the starts that this takes. */
static void there_are_no_more_documents_than_tokens(void **state)
{
    const scratch *at = *state;
    begin();
    made_shard *shard = add_shard(2);
    add_documents(shard, 10, 1);
    shard->starts[shard->documents] = 9;
    shard->said_documents = ++shard->documents;
    write_shard(at->path, shard);
    assert_refused(at->path, TIDE_ERROR_CORRUPT, "the header says 10 tokens of 2 bytes in 11 documents");
    shard->said_documents = --shard->documents;
    write_shard(at->path, shard); /* sound, but with nothing to learn */
    assert_refused(at->path, TIDE_ERROR_CORRUPT, "hold something to learn");
}

/* ---- fingerprints ---- */

static uint64_t fingerprint_of(const char *path)
{
    tide_data *data = open_path(path);
    const uint64_t fingerprint = tide_data_fingerprint(data);
    tide_data_close(data);
    return fingerprint;
}

static void the_fingerprint_covers_ids_mask_and_starts_and_not_the_path(void **state)
{
    const scratch *at = *state;
    write_forty_documents(at);
    made_shard *shard = &shards[0];
    const uint64_t was = fingerprint_of(at->path);
    assert_int_equal(was, 0x1ca94bd37f70dcf1); /* checkpoints store it, so no version may change it */
    write_shard(path_in(at, "copy.bin"), shard);
    assert_true(fingerprint_of(path_in(at, "copy.bin")) == was);
    for (uint64_t i = 0; i < shard->tokens; i += 11) {
        shard->ids[i] ^= 1;
        write_shard(at->path, shard);
        assert_true(fingerprint_of(at->path) != was);
        shard->ids[i] ^= 1;
        shard->learned[i] = !shard->learned[i];
        write_shard(at->path, shard);
        assert_true(fingerprint_of(at->path) != was);
        shard->learned[i] = !shard->learned[i];
    }
    shard->starts[39]++;
    write_shard(at->path, shard);
    assert_true(fingerprint_of(at->path) != was);
    shard->starts[39]--;
    write_shard(at->path, shard);
    assert_true(fingerprint_of(at->path) == was);
    shard->token_bytes = 4;
    write_shard(at->path, shard);
    assert_true(fingerprint_of(at->path) != was);
    shard->documents = shard->said_documents = 0;
    shard->token_bytes = 2;
    write_shard(at->path, shard);
    assert_true(fingerprint_of(at->path) != was);
}

static void the_fingerprint_tells_how_documents_were_split(void **state)
{
    const scratch *at = *state;
    char train[256], val[256], folder[128];
    bool was = true;
    snprintf(folder, sizeof folder, "%s/all", at->root);
    assert_int_equal(mkdir(folder, 0777), 0);
    write_named(at, "all/a_train.bin", "all/c_train.bin", "all/b_val.bin");
    tide_data *named = open_path(folder);
    assert_ok(tide_data_was_split_otherwise(named, tide_data_fingerprint(named), &was));
    assert_false(was);
    /* Now the three files are one data set of the same order, of which 5% are held out. */
    static const char *const names[3][2] = {
        {"a_train.bin", "a.bin"}, {"b_val.bin", "b.bin"}, {"c_train.bin", "c.bin"}};
    for (int i = 0; i < 3; i++) {
        snprintf(train, sizeof train, "%s/%s", folder, names[i][0]);
        snprintf(val, sizeof val, "%s/%s", folder, names[i][1]);
        assert_int_equal(rename(train, val), 0);
    }
    tide_data *held_out = open_path(folder);
    assert_int_equal(tide_data_count(held_out).split, TIDE_DATA_SPLIT_HELD_OUT);
    assert_ok(tide_data_was_split_otherwise(named, tide_data_fingerprint(held_out), &was));
    assert_true(was);
    assert_ok(tide_data_was_split_otherwise(named, tide_data_fingerprint(held_out) + 1, &was));
    assert_false(was);
    /* All three train, and the validation documents stand elsewhere. */
    write_shard(at->path, &shards[2]);
    tide_data_options options = options_of(folder);
    options.eval_path = at->path;
    tide_data *given = open_with(&options);
    assert_true(tide_data_fingerprint(given) != tide_data_fingerprint(held_out));
    assert_ok(tide_data_was_split_otherwise(given, tide_data_fingerprint(held_out), &was));
    assert_true(was);
    assert_ok(tide_data_was_split_otherwise(held_out, tide_data_fingerprint(given), &was));
    assert_true(was);
    assert_ok(tide_data_was_split_otherwise(given, tide_data_fingerprint(given), &was));
    assert_false(was);
    tide_data_close(named);
    tide_data_close(held_out);
    tide_data_close(given);
}

/* ---- files that change ---- */

/* Writes `encoded` until the file's time of modification changes; that clock ticks in milliseconds. */
static void rewrite(const char *path, size_t bytes)
{
    struct stat before, now;
    const int writer = open(path, O_WRONLY);
    assert_int_equal(fstat(writer, &before), 0);
    do {
        assert_int_equal(pwrite(writer, encoded, bytes, 0), bytes);
        assert_int_equal(fstat(writer, &now), 0);
    } while (now.st_mtim.tv_sec == before.st_mtim.tv_sec && now.st_mtim.tv_nsec == before.st_mtim.tv_nsec);
    close(writer);
}

static void a_shard_that_changes_during_the_run_is_refused_until_it_has_its_old_content(void **state)
{
    const scratch *at = *state;
    double nats;
    write_forty_documents(at);
    const size_t bytes = encode(&shards[0]);
    tide_data *data = open_path(at->path);
    held_batch held = hold(data, 4);
    for (int section = 0; section < 3; section++) {
        made_shard *shard = &shards[0];
        shard->ids[20] ^= section == 0;
        shard->learned[20] ^= section == 1;
        shard->starts[5] += section == 2;
        encode(shard);
        rewrite(at->path, bytes);
        static const char words[] = "bytes are not the content that it had when it was opened";
        assert_fails(tide_data_batch(data, 0, 4, &held.batch), TIDE_ERROR_CORRUPT, words);
        expect_words(at->path);
        assert_fails(tide_data_validation_batch(data, 0, 4, &held.batch), TIDE_ERROR_CORRUPT, words);
        assert_fails(tide_data_unigram_entropy(data, &nats), TIDE_ERROR_CORRUPT, words);
        shard->ids[20] ^= section == 0;
        shard->learned[20] ^= section == 1;
        shard->starts[5] -= section == 2;
        encode(shard);
        rewrite(at->path, bytes);
        expect_pieces(0, 1, 0, 38, SEQ_LEN, false);
        check_epoch(data, 0, 4);
    }
    assert_int_equal(truncate(at->path, (off_t)bytes / 2), 0);
    assert_fails(tide_data_batch(data, 0, 4, &held.batch), TIDE_ERROR_CORRUPT, at->path);
    assert_fails(tide_data_validation_batch(data, 0, 4, &held.batch), TIDE_ERROR_CORRUPT, at->path);
    drop(&held);
    tide_data_close(data);
}

/* In a child process: opens the data and reads an epoch and the validation data while the file changes before
 * read `read`. Exit status 0: the change was met, and refused or harmless; 1: all was read before it; else a
 * failure. */
static int read_while_it_changes(const tide_data_options *options, unsigned read)
{
    tide_data *data = NULL;
    set_fault(READ_AFTER_A_CHANGE, read);
    tide_status status = tide_data_open(options, &data);
    if (status == TIDE_OK) {
        held_batch held = hold(data, 4);
        for (uint64_t step = 0; step < 2 && status == TIDE_OK; step++)
            status = tide_data_batch(data, step, 4, &held.batch);
        if (status == TIDE_OK)
            status = tide_data_validation_batch(data, 0, 4, &held.batch);
        drop(&held);
    }
    tide_data_close(data);
    if (status != TIDE_OK && status != TIDE_ERROR_CORRUPT)
        return 2;
    return met_fault ? 0 : 1;
}

static void assert_change_does_no_harm(const tide_data_options *options)
{
    int ended = 0;
    for (unsigned read = 0; ended == 0; read++) {
        int how = 0;
        write_bytes(options->path, sound, sound_bytes);
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0)
            _exit(read_while_it_changes(options, read));
        assert_int_equal(waitpid(child, &how, 0), child);
        if (!WIFEXITED(how) || WEXITSTATUS(how) > 1)
            fail_msg("before read %u: wait status 0x%x", read, (unsigned)how);
        ended = WEXITSTATUS(how);
    }
}

static size_t write_eleven_documents(const scratch *at)
{
    begin();
    add_shard(2);
    for (uint32_t i = 0; i < 10; i++)
        add_document(&shards[0], 2 + i * i % 7, 8);
    add_document(&shards[0], 2, 8);
    return write_shard(at->path, &shards[0]);
}

/* Opening reads starts twice, to check them and to cut documents. The new content is a sound shard with other
 * starts, or one whose starts fall, or lie far or a little beyond the tokens. */
static void a_shard_that_changes_between_any_two_reads_does_no_harm(void **state)
{
    const scratch *at = *state;
    tide_data_options options = options_of(at->path);
    sound_bytes = changed_bytes = write_eleven_documents(at);
    memcpy(sound, encoded, sound_bytes);
    options.eval_path = path_in(at, "eval.bin");
    write_bytes(options.eval_path, sound, sound_bytes);
    changing_path = at->path;
    for (int change = 0; change < 4; change++)
        for (int drops = 0; drops < 2; drops++) {
            write_eleven_documents(at);
            uint64_t *const starts = shards[0].starts;
            starts[5] += change == 0;
            for (uint64_t d = 1; (change == 1 || change == 2) && d < 11; d++)
                starts[d] = change == 1 ? 11 - d : UINT64_MAX / 2 + 1000 * d;
            starts[10] = change == 3 ? shards[0].tokens + 1 : starts[10];
            encode(&shards[0]);
            options.drops_long = drops == 1;
            assert_change_does_no_harm(&options);
        }
}

/* ---- memory and reads that fail ---- */

static void write_with_tokenizer(const scratch *at, char tokenizer[256], tide_data_options *options)
{
    snprintf(tokenizer, 256, "%s/tokenizer.json", at->root);
    write_bytes(tokenizer, tokenizer_text, sizeof tokenizer_text - 1);
    write_named(at, "x_train_0.bin", "x_train_1.bin", "x_val_0.bin");
    *options = options_of(at->root);
    options->tokenizer = tokenizer;
}

static void opening_without_memory_is_reported_and_leaves_nothing(void **state)
{
    const scratch *at = *state;
    const int lowest = lowest_free_descriptor();
    char tokenizer[256];
    tide_data_options options;
    bool met = true;
    unsigned request = 0;
    write_with_tokenizer(at, tokenizer, &options);
    for (; met; request++) {
        tide_data *data = NULL;
        fake_memory_fail(request);
        const tide_status status = tide_data_open(&options, &data);
        met = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, met ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        assert_int_equal(data == NULL, met);
        if (met) {
            assert_true(strstr(tide_message(), "memory") != NULL && strchr(tide_message(), '\n') == NULL);
            assert_int_equal(lowest_free_descriptor(), lowest);
        }
        tide_data_close(data);
    }
    assert_true(request > 25);
    assert_int_equal(lowest_free_descriptor(), lowest);
}

static void a_read_that_fails_is_reported_and_leaves_nothing(void **state)
{
    const scratch *at = *state;
    const int lowest = lowest_free_descriptor();
    char tokenizer[256];
    tide_data_options options;
    unsigned read = 0;
    write_with_tokenizer(at, tokenizer, &options);
    for (bool met = true; met; read++) {
        tide_data *data = NULL;
        set_fault(READ_ERROR, read);
        const tide_status status = tide_data_open(&options, &data);
        met = met_fault;
        set_fault(READ_WELL, 0);
        assert_int_equal(status, met ? TIDE_ERROR_IO : TIDE_OK);
        assert_int_equal(data == NULL, met);
        if (met)
            expect_words(at->root);
        tide_data_close(data);
        assert_int_equal(lowest_free_descriptor(), lowest);
    }
    assert_true(read > 20);
    tide_data *data = open_with(&options);
    held_batch held = hold(data, 4);
    read = 0;
    for (bool met = true; met; read++) {
        set_fault(READ_ERROR, read);
        const tide_status status = tide_data_batch(data, 1, 4, &held.batch);
        met = met_fault;
        set_fault(READ_WELL, 0);
        assert_int_equal(status, met ? TIDE_ERROR_IO : TIDE_OK);
    }
    assert_true(read > 12);
    drop(&held);
    tide_data_close(data);
}

static void short_and_interrupted_reads_are_continued(void **state)
{
    const scratch *at = *state;
    write_forty_documents(at);
    set_fault(READ_SHORT, 0);
    tide_data *data = open_path(at->path);
    expect_pieces(0, 1, 0, 38, SEQ_LEN, false);
    check_epoch(data, 0, 4);
    set_fault(READ_WELL, 0);
    tide_data_close(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scratch(shards_of_another_tokenizer_are_refused),
        in_scratch(a_tokenizer_that_cannot_be_read_is_refused),
        in_scratch(ids_outside_the_vocabulary_are_refused),
        in_scratch(a_flip_of_any_bit_is_refused),
        in_scratch(damage_is_found_in_every_block_of_a_large_shard),
        in_scratch(a_shard_that_is_cut_off_or_too_long_is_refused),
        in_scratch(shards_that_contradict_themselves_are_refused),
        in_scratch(counts_that_overflow_are_refused),
        in_scratch(there_are_no_more_documents_than_tokens),
        in_scratch(the_fingerprint_covers_ids_mask_and_starts_and_not_the_path),
        in_scratch(the_fingerprint_tells_how_documents_were_split),
        in_scratch(a_shard_that_changes_during_the_run_is_refused_until_it_has_its_old_content),
        in_scratch(a_shard_that_changes_between_any_two_reads_does_no_harm),
        in_scratch(opening_without_memory_is_reported_and_leaves_nothing),
        in_scratch(a_read_that_fails_is_reported_and_leaves_nothing),
        in_scratch(short_and_interrupted_reads_are_continued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
