/* Documents packed into sequences: which tokens an epoch reads and where its padding is, the validation data,
 * and the same shards without packing. */
#include "tests/files/test_data_documents.h"

#include "base/hash.h"
#include "tests/support/fake_memory.h"

#include <math.h>
#include <sys/stat.h>

/* ---- epochs ---- */

static void an_epoch_reads_each_document_once_whatever_their_lengths_and_masks(void **state)
{
    const scratch *at = *state;
    for (uint32_t round = 0; round < 60; round++) {
        tide_data_options options = options_of(at->root);
        options.seq_len = 1 + draw(round % 2 == 0 ? 12 : 80);
        options.drops_long = round % 3 == 0;
        options.seed = round;
        begin();
        const uint32_t files = 1 + draw(3);
        for (uint32_t i = 0; i < files; i++) {
            add_random_documents(add_shard(draw(2) == 0 ? 2 : 4), 1 + draw(60),
                                 1 + draw(3 * options.seq_len));
        }
        write_folder(at);
        tide_data *data = open_with(&options);
        const tide_data_counts counts = tide_data_count(data);
        const uint64_t pieces =
            expect_pieces(0, shard_count, 0, UINT64_MAX, options.seq_len, options.drops_long).pieces;
        const uint64_t out = pieces * 5 / 100 > 0 ? pieces * 5 / 100 : 1;
        assert_int_equal(counts.format, TIDE_DATA_FORMAT_DOCUMENTS);
        assert_int_equal(counts.tokens, next_id - 1);
        assert_int_equal(counts.shards, files);
        assert_true(counts.packed && counts.drops_long == options.drops_long);
        tide_data_documents wanted =
            expect_pieces(0, shard_count, pieces - out, pieces, options.seq_len, options.drops_long);
        assert_held_out(&counts.validation_documents, wanted);
        check_validation(data, 1 + draw(4));
        wanted = expect_pieces(0, shard_count, 0, pieces - out, options.seq_len, options.drops_long);
        assert_documents(&counts.training_documents, &wanted);
        for (uint64_t epoch = 0; epoch < 3; epoch++)
            check_epoch(data, epoch, 1 + draw(9));
        tide_data_close(data);
        for (uint32_t i = 0; i < files; i++) {
            char name[16];
            snprintf(name, sizeof name, "%u.bin", i);
            assert_int_equal(unlink(path_in(at, name)), 0);
        }
    }
}

/* More documents than are read at once, and a mask longer than is read at once: its middle alone is
 * learned. */
static void long_lists_of_documents_and_long_documents_are_read_to_their_ends(void **state)
{
    const scratch *at = *state;
    begin();
    made_shard *many = add_shard(4);
    for (uint32_t i = 0; i < 5000; i++)
        add_document(many, 1 + draw(9), 6);
    add_document(many, 5, 8);
    const uint64_t first = add_document(add_shard(4), 200001, 0);
    for (uint64_t i = 65530; i < 65545; i++)
        shards[1].learned[first + i] = true;
    shards[1].learned[first + 200000] = true;
    add_document(&shards[1], 2, 8);
    write_folder(at);
    tide_data_options options = options_of(at->root);
    options.seq_len = 250000;
    tide_data *data = open_with(&options);
    const uint64_t pieces = expect_pieces(0, 2, 0, UINT64_MAX, options.seq_len, false).pieces;
    const uint64_t out = pieces / 20;
    const tide_data_documents wanted = expect_pieces(0, 2, pieces - out, pieces, options.seq_len, false);
    const tide_data_counts counts = tide_data_count(data);
    assert_true(pieces > 3000);
    assert_held_out(&counts.validation_documents, wanted);
    check_validation(data, 1);
    expect_pieces(0, 2, 0, pieces - out, options.seq_len, false);
    check_epoch(data, 0, 1);
    tide_data_close(data);
}

/* By hand, with sequences of 8: documents of 1, 9, 10, 17, 18 tokens, and one of 5 held out. */
static void documents_are_cut_or_dropped_and_counted(void **state)
{
    const scratch *at = *state;
    static const uint64_t lengths[] = {1, 9, 10, 17, 18, 5};
    begin();
    add_shard(2);
    for (int i = 0; i < 6; i++)
        add_document(&shards[0], lengths[i], 8);
    write_shard(at->path, &shards[0]);
    tide_data_options options = options_of(at->path);
    tide_data *data = open_with(&options);
    tide_data_documents found = tide_data_count(data).training_documents;
    static const tide_data_documents cut = {6, 8, 3, 1, 8 + 9 + 16 + 17, 8 + 9 + 16 + 17};
    assert_documents(&found, &cut);
    assert_int_equal(tide_data_count(data).training_sequences, 7); /* 8; 8, 1; 8, 8; 8, 8, 1: both 1 in one */
    expect_pieces(0, 1, 0, 8, SEQ_LEN, false);
    check_epoch(data, 0, 2);
    tide_data_close(data);
    options.drops_long = true;
    data = open_with(&options);
    found = tide_data_count(data).training_documents;
    static const tide_data_documents dropped = {6, 1, 3, 1, 8, 8};
    assert_documents(&found, &dropped);
    assert_int_equal(tide_data_count(data).training_sequences, 1);
    assert_true(tide_data_count(data).drops_long);
    found = tide_data_count(data).validation_documents;
    static const tide_data_documents held_out = {0, 1, 0, 0, 4, 4};
    assert_documents(&found, &held_out);
    tide_data_close(data);
}

static void documents_and_parts_without_learned_targets_are_left_out_and_counted(void **state)
{
    const scratch *at = *state;
    begin();
    made_shard *shard = add_shard(2);
    add_document(shard, 6, 0);
    const uint64_t first_only = add_document(shard, 6, 0); /* learned: its first token, which is no target */
    shard->learned[first_only] = true;
    const uint64_t middle = add_document(shard, 25, 0); /* three parts: targets 1 .. 8, 9 .. 16, 17 .. 24 */
    shard->learned[middle + 9] = shard->learned[middle + 16] = true;
    const uint64_t border =
        add_document(shard, 17, 0); /* its first part's last target, an input of the next */
    shard->learned[border + 8] = true;
    add_document(shard, 4, 8);
    write_shard(at->path, shard);
    tide_data *data = open_path(at->path);
    const tide_data_documents found = tide_data_count(data).training_documents;
    static const tide_data_documents wanted = {5, 2, 2, 2 + 2 + 1, 16, 3};
    assert_documents(&found, &wanted);
    expect_pieces(0, 1, 0, 2, SEQ_LEN, false);
    assert_int_equal(piece_at[shard->ids[middle + 8]], 8);
    assert_int_equal(piece_at[shard->ids[border]], 8);
    check_epoch(data, 0, 3);
    tide_data_close(data);
}

static void the_mask_bit_of_a_first_token_does_not_matter(void **state)
{
    const scratch *at = *state;
    begin();
    add_shard(2);
    for (int i = 0; i < 40; i++)
        add_document(&shards[0], 2 + draw(6), 8);
    for (int bit = 0; bit < 2; bit++) {
        for (uint64_t d = 0; d < 40; d++)
            shards[0].learned[shards[0].starts[d]] = bit == 1;
        write_shard(at->path, &shards[0]);
        tide_data *data = open_path(at->path);
        assert_int_equal(tide_data_count(data).training_documents.learned,
                         tide_data_count(data).training_documents.positions);
        expect_pieces(0, 1, 0, 38, SEQ_LEN, false);
        check_epoch(data, 0, 4);
        tide_data_close(data);
    }
}

/* Hashes the inputs of an epoch's batches. */
static uint64_t epoch_hash(tide_data *data, uint64_t epoch, uint32_t sequences)
{
    const uint64_t steps = (tide_data_count(data).training_sequences + sequences - 1) / sequences;
    uint64_t hash = 0;
    for (uint64_t step = steps; step-- > 0;) {
        held_batch held = hold(data, sequences);
        assert_ok(tide_data_batch(data, epoch * steps + step, sequences, &held.batch));
        for (size_t i = 0; i < held.elements; i++)
            hash = tide_hash_u64(hash, (uint64_t)held.batch.inputs[i]);
        drop(&held);
    }
    return hash;
}

/* A run that another version of tidepool resumes must read the same batches. */
static void batches_are_a_function_of_seed_and_step_and_the_same_in_every_version(void **state)
{
    const scratch *at = *state;
    write_forty_documents(at);
    tide_data_options options = options_of(at->path);
    tide_data *data = open_with(&options), *again = open_with(&options);
    options.seed++;
    tide_data *other = open_with(&options);
    const uint64_t first = epoch_hash(data, 0, 3);
    for (uint64_t epoch = 5; epoch-- > 0;)
        assert_true(epoch_hash(data, epoch, 3) == epoch_hash(again, epoch, 3));
    assert_true(epoch_hash(data, 0, 3) != epoch_hash(data, 1, 3));
    assert_true(epoch_hash(data, 0, 3) != epoch_hash(other, 0, 3));
    assert_int_equal(first, 0xc00a333159f9603d);
    tide_data_close(data);
    tide_data_close(again);
    tide_data_close(other);
}

/* Documents of 4 and of 6 tokens take 3 and 5 of 8 positions: each sequence has one of both. */
static void epochs_put_other_documents_together(void **state)
{
    const scratch *at = *state;
    enum { PAIRS = 100, EPOCHS = 3 };
    static uint32_t partner[EPOCHS][2048];
    uint32_t same_partner = 0;
    begin();
    add_shard(2);
    for (int i = 0; i < 2 * PAIRS; i++)
        add_document(&shards[0], i % 2 == 0 ? 4 : 6, 8);
    add_documents(&shards[0], 10, 5); /* held out */
    write_shard(at->path, &shards[0]);
    tide_data *data = open_path(at->path);
    assert_int_equal(tide_data_count(data).training_sequences, PAIRS);
    for (uint32_t epoch = 0; epoch < EPOCHS; epoch++) {
        held_batch held = hold(data, PAIRS);
        assert_ok(tide_data_batch(data, epoch, PAIRS, &held.batch));
        for (size_t i = 0; i < PAIRS; i++) {
            assert_int_equal(held.batch.starts[i * SEQ_LEN + 5], 5);
            const uint32_t first = (uint32_t)held.batch.inputs[i * SEQ_LEN];
            partner[epoch][first] = (uint32_t)held.batch.inputs[i * SEQ_LEN + 5];
            same_partner += epoch > 0 && partner[epoch][first] == partner[epoch - 1][first];
        }
        drop(&held);
    }
    assert_true(same_partner < 12);
    tide_data_close(data);
}

/* Documents of all different lengths, each over half a sequence long: only their order can differ. */
static void epochs_read_sequences_in_other_orders(void **state)
{
    const scratch *at = *state;
    enum { COUNT = 60, LONGEST = 200 };
    uint32_t same_place = 0, in_order = 0, order[3][COUNT];
    tide_data_options options = options_of(at->path);
    options.seq_len = LONGEST;
    begin();
    add_shard(2);
    for (uint32_t i = 0; i < COUNT; i++)
        add_document(&shards[0], LONGEST / 2 + 2 + i, 8);
    add_documents(&shards[0], 3, 5); /* held out */
    write_shard(at->path, &shards[0]);
    tide_data *data = open_with(&options);
    assert_int_equal(tide_data_count(data).training_sequences, COUNT);
    for (uint32_t epoch = 0; epoch < 3; epoch++) {
        held_batch held = hold(data, COUNT);
        assert_ok(tide_data_batch(data, epoch, COUNT, &held.batch));
        for (size_t i = 0; i < COUNT; i++) {
            order[epoch][i] = (uint32_t)held.batch.inputs[i * LONGEST];
            same_place += epoch > 0 && order[epoch][i] == order[epoch - 1][i];
            in_order += i > 0 && order[epoch][i] > order[epoch][i - 1];
        }
        drop(&held);
    }
    assert_true(same_place < 10 && in_order > COUNT && in_order < 2 * COUNT);
    tide_data_close(data);
}

static void the_next_epoch_begins_with_the_next_batch(void **state)
{
    const scratch *at = *state;
    begin();
    add_shard(2);
    add_documents(&shards[0], 12, 9);
    write_shard(at->path, &shards[0]);
    tide_data *data = open_path(at->path); /* 11 sequences: batches of 4, 4, 3 */
    expect_pieces(0, 1, 0, 11, SEQ_LEN, false);
    for (uint64_t step = 0; step < 9; step++) {
        held_batch held = hold(data, 4);
        assert_ok(tide_data_batch(data, step, 4, &held.batch));
        assert_int_equal(check_batch(&held, 4), step % 3 == 2 ? 3 : 4);
        assert_true(step % 3 == 2 || held.batch.inputs[3 * SEQ_LEN] != 0);
        drop(&held);
        if (step % 3 == 2)
            assert_all_seen((uint32_t)step / 3 + 1);
    }
    assert_true(tide_data_count(data).whole_epochs);
    static const uint64_t epochs[][4] = {/* steps, sequences, steps of an epoch, epochs that are over */
                                         {0, 4, 3, 0},
                                         {2, 4, 3, 0},
                                         {3, 4, 3, 1},
                                         {8, 4, 3, 2},
                                         {9, 4, 3, 3},
                                         {10, 1, 11, 0},
                                         {11, 1, 11, 1},
                                         {1, 11, 1, 1},
                                         {7, 64, 1, 7},
                                         {9, 10, 2, 4},
                                         {UINT64_MAX, 64, 1, UINT64_MAX}};
    for (size_t i = 0; i < sizeof epochs / sizeof epochs[0]; i++) {
        const uint32_t sequences = (uint32_t)epochs[i][1];
        assert_int_equal(tide_data_epoch_steps(data, sequences), epochs[i][2]);
        assert_int_equal(tide_data_epochs_done(data, epochs[i][0], sequences), epochs[i][3]);
    }
    check_epoch(data, 0, 64); /* a batch larger than an epoch */
    check_epoch(data, 12345678901, 64);
    tide_data_close(data);
}

static void batches_of_documents_allocate_nothing(void **state)
{
    const scratch *at = *state;
    write_forty_documents(at);
    tide_data *data = open_path(at->path);
    held_batch held = hold(data, 4);
    fake_memory_clear();
    for (uint64_t step = 0; step < 50; step++) {
        assert_ok(tide_data_batch(data, step, 4, &held.batch));
        assert_ok(tide_data_validation_batch(data, step, 4, &held.batch));
    }
    assert_int_equal(fake_memory_clear(), 0);
    drop(&held);
    tide_data_close(data);
}

static void no_sequences_and_steps_beyond_all_numbers_are_refused(void **state)
{
    const scratch *at = *state;
    write_forty_documents(at);
    tide_data *data = open_path(at->path);
    held_batch held = hold(data, 3);
    assert_fails(tide_data_batch(data, UINT64_MAX / 2, 3, &held.batch), TIDE_ERROR_ARGUMENT, "beyond 2^64");
    assert_fails(tide_data_batch(data, 0, 0, &held.batch), TIDE_ERROR_ARGUMENT, "0 sequences");
    assert_fails(tide_data_validation_batch(data, UINT64_MAX, 3, &held.batch), TIDE_ERROR_ARGUMENT, "beyond");
    assert_ok(tide_data_batch(data, UINT64_MAX / 3 - 1, 3, &held.batch));
    assert_ok(tide_data_validation_batch(data, UINT64_MAX / 3 - 1, 3, &held.batch));
    assert_int_equal(held.batch.learned, 0);
    drop(&held);
    tide_data_close(data);
}

/* ---- validation data ---- */

static void five_percent_of_the_documents_are_held_out_and_at_least_one(void **state)
{
    static const uint32_t cases[][2] = {{2, 1},  {10, 1},  {20, 1},  {39, 1},
                                        {40, 2}, {100, 5}, {119, 5}, {5000, 250}};
    const scratch *at = *state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin();
        add_shard(4);
        add_documents(&shards[0], cases[i][0], 5);
        write_shard(at->path, &shards[0]);
        tide_data *data = open_path(at->path);
        const tide_data_counts counts = tide_data_count(data);
        assert_int_equal(counts.split, TIDE_DATA_SPLIT_HELD_OUT);
        assert_int_equal(counts.validation_shards, 0);
        assert_int_equal(counts.validation_documents.pieces, cases[i][1]);
        assert_int_equal(counts.training_documents.pieces, cases[i][0] - cases[i][1]);
        assert_int_equal(counts.training_documents.documents, cases[i][0]);
        tide_data_close(data);
    }
    /* One document is cut into parts, of which one is held out. */
    begin();
    add_shard(2);
    add_documents(&shards[0], 1, 50);
    write_shard(at->path, &shards[0]);
    tide_data *data = open_path(at->path);
    assert_int_equal(tide_data_count(data).training_documents.pieces, 6);
    assert_int_equal(tide_data_count(data).validation_documents.pieces, 1);
    tide_data_close(data);
}

static void splits_without_anything_to_learn_are_refused(void **state)
{
    const scratch *at = *state;
    begin();
    made_shard *shard = add_shard(2);
    for (int i = 0; i < 10; i++)
        add_document(shard, 5, 0);
    shard->learned[shard->tokens - 1] = true;
    write_shard(at->path, shard);
    assert_refused(at->path, TIDE_ERROR_CORRUPT,
                   "of its 10 documents 1 fit sequences of 8 and hold something to learn");
    shard->learned[1] = true;
    write_shard(at->path, shard);
    tide_data *data = open_path(at->path);
    assert_int_equal(tide_data_count(data).training_documents.pieces, 1);
    tide_data_close(data);
    begin();
    shard = add_shard(2);
    add_documents(shard, 10, 20);
    write_shard(at->path, shard);
    tide_data_options options = options_of(at->path);
    options.drops_long = true;
    assert_refused_with(&options, TIDE_ERROR_CORRUPT, at->path,
                        "whole or as parts (10 are longer): one is needed for training and one to hold out");
}

static void validation_documents_may_have_files_of_their_own(void **state)
{
    const scratch *at = *state;
    char eval[256], train[256];
    for (int given = 0; given < 2; given++) {
        tide_data_options options = options_of(at->root);
        if (given) {
            snprintf(train, sizeof train, "%s/train", at->root);
            snprintf(eval, sizeof eval, "%s/eval.bin", at->root);
            assert_int_equal(mkdir(train, 0777), 0);
            write_named(at, "train/a.bin", "train/b.bin", "eval.bin");
            options.path = train;
            options.eval_path = eval;
        } else {
            write_named(at, "x_train_0.bin", "x_train_1.bin", "x_val_0.bin");
        }
        tide_data *data = open_with(&options);
        const tide_data_counts counts = tide_data_count(data);
        assert_int_equal(counts.split, given ? TIDE_DATA_SPLIT_GIVEN : TIDE_DATA_SPLIT_NAMED);
        assert_int_equal(counts.shards, 2);
        assert_int_equal(counts.validation_shards, 1);
        tide_data_documents wanted = expect_pieces(2, 3, 0, UINT64_MAX, SEQ_LEN, false);
        assert_documents(&counts.validation_documents, &wanted);
        check_validation(data, 4);
        wanted = expect_pieces(0, 2, 0, UINT64_MAX, SEQ_LEN, false);
        assert_documents(&counts.training_documents, &wanted);
        check_epoch(data, 0, 4);
        check_epoch(data, 1, 3);
        tide_data_close(data);
    }
}

static void validation_batches_come_in_a_fixed_order_and_end_with_padding(void **state)
{
    const scratch *at = *state;
    tide_data_options options = options_of(at->root);
    write_named(at, "x_train_0.bin", "x_train_1.bin", "x_val_0.bin");
    tide_data *data = open_with(&options);
    options.seed = 99;
    tide_data *other_seed = open_with(&options);
    const uint32_t all = (uint32_t)tide_data_count(data).validation_sequences;
    held_batch whole = hold(data, all), one = hold(data, 1);
    expect_pieces(2, 3, 0, UINT64_MAX, SEQ_LEN, false);
    assert_ok(tide_data_validation_batch(data, 0, all, &whole.batch));
    for (size_t i = 0; i < all + 3; i++) {
        assert_ok(tide_data_validation_batch(other_seed, i, 1, &one.batch));
        assert_int_equal(check_batch(&one, 1), i < all);
        for (size_t t = 0; t < SEQ_LEN && i < all; t++) {
            assert_int_equal(one.batch.inputs[t], whole.batch.inputs[i * SEQ_LEN + t]);
            assert_int_equal(one.batch.targets[t], whole.batch.targets[i * SEQ_LEN + t]);
            assert_int_equal(one.batch.starts[t], whole.batch.starts[i * SEQ_LEN + t]);
        }
    }
    drop(&whole);
    drop(&one);
    tide_data_close(data);
    tide_data_close(other_seed);
}

/* Best fit makes the sequences of one long document first; an evaluation of a few batches must see others. */
static void the_first_validation_sequences_stand_for_all(void **state)
{
    const scratch *at = *state;
    uint32_t of_one = 0;
    begin();
    add_documents(add_shard(2), 20, 5);
    add_documents(add_shard(2), 60, SEQ_LEN + 1);
    add_documents(&shards[1], 240, 3); /* four to a sequence */
    write_shard(path_in(at, "x_train_0.bin"), &shards[0]);
    write_shard(path_in(at, "x_val_0.bin"), &shards[1]);
    tide_data *data = open_path(at->root);
    assert_int_equal(tide_data_count(data).validation_sequences, 120);
    held_batch held = hold(data, 30);
    assert_ok(tide_data_validation_batch(data, 0, 30, &held.batch));
    for (uint32_t i = 0; i < 30; i++)
        of_one += held.batch.starts[(i + 1) * SEQ_LEN - 1] == 0;
    assert_in_range(of_one, 8, 22);
    drop(&held);
    tide_data_close(data);
}

static void the_unigram_entropy_is_that_of_the_learned_validation_targets(void **state)
{
    const scratch *at = *state;
    double nats = -1;
    begin();
    made_shard *shard = add_shard(2);
    add_documents(shard, 57, 4);
    /* Three documents of 9 tokens; learned are 9 targets: five of 50, two of 51, two of 52. */
    static const uint32_t learned_ids[9] = {50, 51, 50, 52, 52, 50, 51, 50, 50};
    for (uint64_t d = 0, next = 0; d < 3; d++) {
        const uint64_t first = add_document(shard, 9, 0);
        shard->learned[first] = true; /* no target */
        for (uint64_t i = 1; i < 9 && next < 9; i += 2, next++) {
            shard->ids[first + i] = learned_ids[next];
            shard->learned[first + i] = true;
        }
    }
    write_shard(at->path, shard);
    tide_data *data = open_path(at->path);
    assert_int_equal(tide_data_count(data).validation_documents.learned, 9);
    assert_ok(tide_data_unigram_entropy(data, &nats));
    assert_true(fabs(nats + (5 * log(5.0 / 9) + 4 * log(2.0 / 9)) / 9) < 1e-12);
    fake_memory_fail(0);
    assert_fails(tide_data_unigram_entropy(data, &nats), TIDE_ERROR_NO_MEMORY, "no memory");
    fake_memory_clear();
    tide_data_close(data);
}

/* ---- without packing ---- */

/* Checks unpacked sequences of one shard: consecutive tokens, whose targets the mask chooses. */
static void check_as_one_text(tide_data *data, const made_shard *shard)
{
    const tide_data_counts counts = tide_data_count(data);
    int32_t inputs[SEQ_LEN], targets[SEQ_LEN];
    tide_token_batch batch = {.inputs = inputs, .targets = targets};
    assert_false(counts.packed);
    assert_int_equal(counts.training_documents.documents, 0);
    assert_int_equal(counts.training_sequences + counts.validation_sequences, (shard->tokens - 1) / SEQ_LEN);
    for (uint64_t step = 0; step < counts.training_sequences + 5; step++) {
        uint64_t learned = 0;
        assert_ok(tide_data_batch(data, step, 1, &batch));
        const uint64_t first = (uint64_t)inputs[0] - shard->ids[0];
        assert_int_equal(first % SEQ_LEN, 0);
        for (uint64_t i = 0; i < SEQ_LEN; i++) {
            const bool is_learned = shard->learned[first + i + 1];
            assert_int_equal(inputs[i], shard->ids[first + i]);
            assert_int_equal(targets[i], is_learned ? (int32_t)shard->ids[first + i + 1] : -1);
            learned += is_learned;
        }
        assert_int_equal(batch.learned, learned);
    }
}

static void the_mask_holds_without_packing_too(void **state)
{
    const scratch *at = *state;
    tide_data_options options = options_of(at->path);
    options.packing = TIDE_DATA_PACKING_OFF;
    begin();
    add_shard(2);
    for (int i = 0; i < 40; i++)
        add_document(&shards[0], 1 + draw(30), 4);
    write_shard(at->path, &shards[0]);
    tide_data *data = open_with(&options);
    check_as_one_text(data, &shards[0]);
    tide_data_close(data);
}

/* 37 training sequences in batches of 8: five steps, of which the last has three sequences of padding. */
static void whole_epochs_without_packing_begin_with_a_batch_and_end_with_padding(void **state)
{
    const scratch *at = *state;
    tide_data_options options = options_of(at->path);
    options.packing = TIDE_DATA_PACKING_OFF;
    options.whole_epochs = true;
    begin();
    add_document(add_shard(2), 38 * SEQ_LEN + 1, 8);
    write_shard(at->path, &shards[0]);
    tide_data *data = open_with(&options);
    assert_true(tide_data_count(data).whole_epochs && !tide_data_count(data).packed);
    assert_int_equal(tide_data_count(data).training_sequences, 37);
    assert_int_equal(tide_data_epoch_steps(data, 8), 5);
    uint32_t seen[38] = {0};
    for (uint64_t step = 0; step < 15; step++) {
        held_batch held = hold(data, 8);
        assert_ok(tide_data_batch(data, step, 8, &held.batch));
        assert_int_equal(tide_data_epochs_done(data, step + 1, 8), (step + 1) / 5);
        const size_t full = step % 5 == 4 ? 5 : 8;
        assert_int_equal(held.batch.learned, full * SEQ_LEN);
        for (size_t i = 0; i < 8 * SEQ_LEN; i++) {
            assert_int_equal(held.batch.targets[i], i < full * SEQ_LEN ? held.batch.inputs[i] + 1 : -1);
            assert_int_equal(held.batch.starts[i], 0x5a5a5a5a); /* not written */
            assert_true(i < full * SEQ_LEN || held.batch.inputs[i] == 0);
        }
        for (size_t i = 0; i < full; i++)
            seen[(held.batch.inputs[i * SEQ_LEN] - 1) / SEQ_LEN]++;
        for (int i = 0; i < 38 && step % 5 == 4; i++)
            assert_int_equal(seen[i], i < 37 ? step / 5 + 1 : 0);
        drop(&held);
    }
    tide_data_close(data);
}

static void a_shard_that_does_not_say_where_documents_begin_is_one_text(void **state)
{
    const scratch *at = *state;
    begin();
    made_shard *shard = add_shard(4);
    add_document(shard, 300, 4);
    shard->documents = shard->said_documents = 0;
    write_shard(at->path, shard);
    tide_data *data = open_path(at->path);
    assert_int_equal(tide_data_count(data).format, TIDE_DATA_FORMAT_DOCUMENTS);
    check_as_one_text(data, shard);
    tide_data_close(data);
    tide_data_options options = options_of(at->path);
    options.packing = TIDE_DATA_PACKING_ON;
    assert_refused_with(&options, TIDE_ERROR_ARGUMENT, at->path, "it does not say where documents begin");
}

/* Writes a shard of llm.c's with uint16 tokens 1, 2, 3, ... */
static void write_llmc(const char *path, uint32_t count)
{
    static uint8_t bytes[TIDE_DATA_SHARD_HEADER_BYTES + 2 * 1000];
    const uint32_t header[3] = {TIDE_DATA_SHARD_MAGIC, TIDE_DATA_SHARD_VERSION, count};
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, header, sizeof header);
    for (uint32_t i = 0; i < count; i++)
        bytes[TIDE_DATA_SHARD_HEADER_BYTES + 2 * i] = (uint8_t)(i + 1);
    write_bytes(path, bytes, TIDE_DATA_SHARD_HEADER_BYTES + 2 * count);
}

static void files_without_documents_are_not_packed_nor_taken_beside_files_with(void **state)
{
    const scratch *at = *state;
    char without[256];
    tide_data_options options = options_of(without);
    snprintf(without, sizeof without, "%s", path_in(at, "b.bin"));
    options.packing = TIDE_DATA_PACKING_ON;
    write_llmc(without, 200);
    assert_refused_with(&options, TIDE_ERROR_ARGUMENT, without, "so there is nothing to pack");
    begin();
    add_shard(2);
    add_documents(&shards[0], 30, 6);
    write_shard(path_in(at, "a.bin"), &shards[0]);
    options.path = at->root;
    assert_refused_with(&options, TIDE_ERROR_ARGUMENT, without, "both must, or say --packing off");
    options.packing = TIDE_DATA_PACKING_AUTO;
    assert_refused_with(&options, TIDE_ERROR_ARGUMENT, without, "both must, or say --packing off");
    expect_words("a.bin does");
    options.path = path_in(at, "a.bin");
    options.eval_path = without;
    assert_refused_with(&options, TIDE_ERROR_ARGUMENT, without, "both must, or say --packing off");
    options.packing = TIDE_DATA_PACKING_OFF;
    tide_data *data = open_with(&options);
    assert_int_equal(tide_data_count(data).training_sequences, 179 / SEQ_LEN);
    assert_int_equal(tide_data_count(data).validation_sequences, 199 / SEQ_LEN);
    tide_data_close(data);
}

static void a_shard_with_documents_has_a_header_whatever_its_name(void **state)
{
    const scratch *at = *state;
    write_forty_documents(at);
    tide_data_options options = options_of(at->path);
    options.encoding = TIDE_DATA_ENCODING_U16;
    assert_refused_with(&options, TIDE_ERROR_CORRUPT, at->path, "it is a token shard with a header");
    options.encoding = TIDE_DATA_ENCODING_U32;
    assert_refused_with(&options, TIDE_ERROR_CORRUPT, at->path, "it is a token shard with a header");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        in_scratch(an_epoch_reads_each_document_once_whatever_their_lengths_and_masks),
        in_scratch(long_lists_of_documents_and_long_documents_are_read_to_their_ends),
        in_scratch(documents_are_cut_or_dropped_and_counted),
        in_scratch(documents_and_parts_without_learned_targets_are_left_out_and_counted),
        in_scratch(the_mask_bit_of_a_first_token_does_not_matter),
        in_scratch(batches_are_a_function_of_seed_and_step_and_the_same_in_every_version),
        in_scratch(epochs_put_other_documents_together),
        in_scratch(epochs_read_sequences_in_other_orders),
        in_scratch(the_next_epoch_begins_with_the_next_batch),
        in_scratch(batches_of_documents_allocate_nothing),
        in_scratch(no_sequences_and_steps_beyond_all_numbers_are_refused),
        in_scratch(five_percent_of_the_documents_are_held_out_and_at_least_one),
        in_scratch(splits_without_anything_to_learn_are_refused),
        in_scratch(validation_documents_may_have_files_of_their_own),
        in_scratch(validation_batches_come_in_a_fixed_order_and_end_with_padding),
        in_scratch(the_first_validation_sequences_stand_for_all),
        in_scratch(the_unigram_entropy_is_that_of_the_learned_validation_targets),
        in_scratch(the_mask_holds_without_packing_too),
        in_scratch(whole_epochs_without_packing_begin_with_a_batch_and_end_with_padding),
        in_scratch(a_shard_that_does_not_say_where_documents_begin_is_one_text),
        in_scratch(files_without_documents_are_not_packed_nor_taken_beside_files_with),
        in_scratch(a_shard_with_documents_has_a_header_whatever_its_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
