/* Best-fit packing against a slow reference and, for a few pieces, against the fewest sequences possible; and
 * the pieces that each epoch chooses.
 *
 * Which sequences have equal free space is determined at every moment, whichever of them takes a piece; which
 * lengths share a sequence is not: in sequences of 20, lengths 17, 9, 8, 2 may end as 17 + 2 and 9 + 8 or as
 * 17 and 9 + 8 + 2. So the tests compare the free space of all sequences, and one fixed value says that no
 * version chooses otherwise. */
#include "src/data/sequence_packing.h"

#include "base/hash.h"
#include "src/data/random.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PIECES = 6000, MAX_LENGTH = 4096, TINY = 9 };

/* Pieces of one case. The first token of a piece is 1000 + 7 x its index, which tells pieces apart. */
static tide_piece pieces[MAX_PIECES];
static uint32_t piece_count, seq_len;

static uint64_t drawn;

static uint32_t draw(uint32_t sides)
{
    return (uint32_t)(tide_random_uniform(42, TIDE_RANDOM_USE_TEST, 7, drawn++) * sides);
}

static void begin(uint32_t length)
{
    seq_len = length;
    piece_count = 0;
}

static void add(uint32_t positions)
{
    assert_true(piece_count < MAX_PIECES && positions >= 1 && positions <= seq_len);
    pieces[piece_count] = (tide_piece){.first = 1000 + UINT64_C(7) * piece_count, .positions = positions};
    piece_count++;
}

static tide_sequence_packing *make(void)
{
    tide_sequence_packing *packing = NULL;
    assert_ok(tide_sequence_packing_make(pieces, piece_count, seq_len, &packing));
    assert_non_null(packing);
    return packing;
}

static uint32_t index_of(const tide_piece *piece)
{
    assert_true(piece->first >= 1000 && (piece->first - 1000) % 7 == 0);
    const uint64_t index = (piece->first - 1000) / 7;
    assert_true(index < piece_count);
    return (uint32_t)index;
}

/* Checks of one epoch: no sequence is empty or over its length, pieces come longest first, every piece occurs
 * once with its own length. Sets sequence_of[piece]. */
static void read_epoch(const tide_sequence_packing *packing, const tide_piece_order *order,
                       uint32_t *sequence_of)
{
    static unsigned char seen[MAX_PIECES];
    const uint64_t sequences = tide_sequence_packing_sequences(packing);
    uint32_t found = 0;
    memset(seen, 0, sizeof seen);
    for (uint64_t sequence = 0; sequence < sequences; sequence++) {
        const uint32_t count = tide_sequence_packing_count(packing, sequence);
        uint64_t used = 0;
        uint32_t before = seq_len;
        assert_true(count >= 1);
        for (uint32_t i = 0; i < count; i++) {
            const tide_piece piece = tide_sequence_packing_piece(packing, order, sequence, i);
            const uint32_t index = index_of(&piece);
            assert_int_equal(piece.positions, pieces[index].positions);
            assert_true(piece.positions <= before);
            assert_int_equal(seen[index]++, 0);
            sequence_of[index] = (uint32_t)sequence;
            before = piece.positions;
            used += piece.positions;
            found++;
        }
        assert_true(used <= seq_len);
    }
    assert_int_equal(found, piece_count);
}

static const tide_piece_order in_order = {.shuffled = false};

static int ascending(const void *a, const void *b)
{
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;
    return (left > right) - (left < right);
}

static int longest_first(const void *a, const void *b)
{
    return -ascending(&((const tide_piece *)a)->positions, &((const tide_piece *)b)->positions);
}

/* The reference: longest first, each piece into a sequence with the least space that is enough. Among equal
 * ones it takes the first, the last or any, as `tie` says. Fills `space` and returns the number of
 * sequences. */
typedef enum tie_rule { TIE_FIRST, TIE_LAST, TIE_ANY, TIE_RULES } tie_rule;

static uint32_t reference_fit(const tide_piece *sorted, uint32_t count, tie_rule tie, uint32_t *space)
{
    uint32_t sequences = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t best = UINT32_MAX;
        for (uint32_t s = 0; s < sequences; s++) {
            if (space[s] < sorted[i].positions || (best != UINT32_MAX && space[s] > space[best]))
                continue;
            const bool is_tie = best != UINT32_MAX && space[s] == space[best];
            if (!is_tie || tie == TIE_LAST || (tie == TIE_ANY && draw(2) == 0))
                best = s;
        }
        if (best == UINT32_MAX) {
            best = sequences++;
            space[best] = seq_len;
        }
        space[best] -= sorted[i].positions;
    }
    return sequences;
}

/* The free space of each sequence when all pieces of at least `least` positions are placed, in rising order,
 * without the sequences that are still empty. */
static uint32_t observed_space(const uint32_t *sequence_of, uint32_t least, uint32_t *space)
{
    static uint32_t used[MAX_PIECES];
    uint32_t sequences = 0;
    memset(used, 0, sizeof used);
    for (uint32_t i = 0; i < piece_count; i++)
        used[sequence_of[i]] += pieces[i].positions >= least ? pieces[i].positions : 0;
    for (uint32_t s = 0; s < piece_count; s++)
        if (used[s] > 0)
            space[sequences++] = seq_len - used[s];
    qsort(space, sequences, sizeof *space, ascending);
    return sequences;
}

/* Packs the case and compares it with the reference, after each length of at least `stages` different ones
 * if there are no more, else after the shortest. */
static void assert_best_fit(uint32_t stages)
{
    static uint32_t sequence_of[MAX_PIECES], space[MAX_PIECES], wanted[MAX_PIECES];
    static tide_piece sorted[MAX_PIECES];
    tide_sequence_packing *packing = make();
    read_epoch(packing, &in_order, sequence_of);
    memcpy(sorted, pieces, piece_count * sizeof *sorted);
    qsort(sorted, piece_count, sizeof *sorted, longest_first);
    for (uint32_t i = piece_count, done = 0; i > 0 && done < stages; i--) {
        const bool ends_a_length = i == piece_count || sorted[i].positions != sorted[i - 1].positions;
        if (!ends_a_length)
            continue;
        const uint32_t sequences = observed_space(sequence_of, sorted[i - 1].positions, space);
        const tie_rule tie = (tie_rule)(done++ % TIE_RULES);
        assert_int_equal(reference_fit(sorted, i, tie, wanted), sequences);
        qsort(wanted, sequences, sizeof *wanted, ascending);
        assert_memory_equal(space, wanted, sequences * sizeof *space);
        if (i == piece_count)
            assert_int_equal(tide_sequence_packing_sequences(packing), sequences);
    }
    tide_sequence_packing_destroy(packing);
}

/* ---- best fit ---- */

static void no_piece_makes_no_sequence(void **unused)
{
    begin(64);
    tide_sequence_packing *packing = make();
    assert_int_equal(tide_sequence_packing_sequences(packing), 0);
    tide_sequence_packing_destroy(packing);
    assert_ok(tide_sequence_packing_make(NULL, 0, 1, &packing));
    assert_int_equal(tide_sequence_packing_sequences(packing), 0);
    tide_sequence_packing_destroy(packing);
    tide_sequence_packing_destroy(NULL);
}

static void a_piece_goes_where_the_least_space_stays_free(void **unused)
{
    /* By hand: 7 | 6 | 6 take a sequence each; 4 fits beside 6 exactly, 3 beside 7 exactly, 2 beside the
     * other 6. */
    static const uint32_t lengths[] = {2, 6, 3, 7, 4, 6};
    uint32_t sequence_of[6];
    begin(10);
    for (int i = 0; i < 6; i++)
        add(lengths[i]);
    tide_sequence_packing *packing = make();
    assert_int_equal(tide_sequence_packing_sequences(packing), 3);
    read_epoch(packing, &in_order, sequence_of);
    assert_int_equal(sequence_of[2], sequence_of[3]);
    assert_true(sequence_of[4] == sequence_of[1] || sequence_of[4] == sequence_of[5]);
    assert_true(sequence_of[0] == sequence_of[1] || sequence_of[0] == sequence_of[5]);
    assert_int_not_equal(sequence_of[0], sequence_of[4]);
    tide_sequence_packing_destroy(packing);
}

static void pieces_of_any_shape_are_packed_as_the_reference_packs_them(void **unused)
{
    static const uint32_t lengths[] = {1, 2, 3, 7, 31, 63, 64, 65, 127, 128, 129, 500, 1000};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++)
        for (uint32_t shape = 0; shape < 60; shape++) {
            begin(lengths[l]);
            const uint32_t count = 1 + draw(shape % 3 == 0 ? 8 : 150), one_length = 1 + draw(seq_len),
                           low = 1 + draw(seq_len), high = low + draw(seq_len - low + 1);
            for (uint32_t i = 0; i < count; i++) {
                const uint32_t half = (seq_len + 1) / 2, skewed = 1 + draw(1 + draw(seq_len));
                const uint32_t by_shape[] = {1 + draw(seq_len),
                                             one_length,
                                             low + draw(high - low + 1),
                                             skewed,
                                             half,
                                             draw(2) == 0 ? one_length : seq_len};
                add(by_shape[shape % 6]);
            }
            assert_best_fit(shape < 30 ? 12 : 3);
        }
}

static void extreme_shapes_are_packed_as_the_reference_packs_them(void **unused)
{
    static const uint32_t lengths[] = {1, 2, 63, 64, 65, 4096};
    for (size_t l = 0; l < sizeof lengths / sizeof lengths[0]; l++) {
        const uint32_t full = lengths[l],
                       fills[] = {1, full, (full + 1) / 2, full / 2 + 1 <= full ? full / 2 + 1 : 1};
        for (uint32_t f = 0; f < 4; f++)
            for (uint32_t count = 1; count <= 130; count += count < 4 ? 1 : 63) {
                begin(full);
                for (uint32_t i = 0; i < count; i++)
                    add(fills[f]);
                assert_best_fit(2);
                tide_sequence_packing *packing = make();
                const uint32_t in_one = full / fills[f];
                assert_int_equal(tide_sequence_packing_sequences(packing), (count + in_one - 1) / in_one);
                tide_sequence_packing_destroy(packing);
            }
    }
}

static void thousands_of_pieces_are_packed_as_the_reference_packs_them(void **unused)
{
    static const uint32_t lengths[] = {64, 300, 4096};
    for (int l = 0; l < 3; l++) {
        begin(lengths[l]);
        for (uint32_t i = 0; i < 5000; i++)
            add(1 + draw(1 + draw(seq_len)));
        assert_best_fit(2);
    }
}

/* The fewest sequences that hold all pieces: for each set of pieces the fewest sequences, and the least that
 * the last of them must hold. */
static uint32_t fewest_sequences(void)
{
    static uint32_t sequences[1 << TINY], used[1 << TINY];
    const uint32_t sets = UINT32_C(1) << piece_count;
    assert_true(piece_count <= TINY);
    sequences[0] = 0;
    used[0] = seq_len; /* full */
    for (uint32_t set = 1; set < sets; set++) {
        sequences[set] = UINT32_MAX;
        for (uint32_t i = 0; i < piece_count; i++) {
            if ((set >> i & 1) == 0)
                continue;
            const uint32_t rest = set & ~(UINT32_C(1) << i), positions = pieces[i].positions;
            const bool fits = used[rest] + positions <= seq_len;
            const uint32_t count = sequences[rest] + !fits, fill = fits ? used[rest] + positions : positions;
            if (count < sequences[set] || (count == sequences[set] && fill < used[set])) {
                sequences[set] = count;
                used[set] = fill;
            }
        }
    }
    return sequences[sets - 1];
}

static void few_pieces_take_at_most_eleven_ninths_of_the_fewest_sequences_and_one(void **unused)
{
    uint32_t optimal = 0, cases = 4000;
    for (uint32_t i = 0; i < cases; i++) {
        begin(2 + draw(30));
        const uint32_t count = 1 + draw(TINY), most = i % 2 == 0 ? seq_len : (seq_len + 1) / 2;
        for (uint32_t p = 0; p < count; p++)
            add(1 + draw(most));
        tide_sequence_packing *packing = make();
        const uint64_t sequences = tide_sequence_packing_sequences(packing);
        const uint32_t fewest = fewest_sequences();
        assert_true(sequences >= fewest);
        assert_true(9 * sequences <= 11 * fewest + 9);
        optimal += sequences == fewest;
        tide_sequence_packing_destroy(packing);
    }
    assert_true(optimal > cases * 9 / 10);
}

/* ---- epochs ---- */

static void every_epoch_has_every_piece_once_in_sequences_of_the_same_lengths(void **unused)
{
    static uint32_t sequence_of[MAX_PIECES];
    for (uint32_t round = 0; round < 40; round++) {
        begin(1 + draw(round % 2 == 0 ? 12 : 200));
        const uint32_t count = 1 + draw(600);
        for (uint32_t i = 0; i < count; i++)
            add(1 + draw(1 + draw(seq_len)));
        tide_sequence_packing *packing = make();
        for (uint32_t epoch = 0; epoch < 4; epoch++) {
            const tide_piece_order order = {
                .shuffled = true, .seed = round, .epoch = epoch < 3 ? epoch : UINT32_MAX};
            read_epoch(packing, &order, sequence_of);
            for (uint64_t s = 0; s < tide_sequence_packing_sequences(packing); s++)
                for (uint32_t i = 0; i < tide_sequence_packing_count(packing, s); i++)
                    assert_int_equal(tide_sequence_packing_piece(packing, &order, s, i).positions,
                                     tide_sequence_packing_piece(packing, &in_order, s, i).positions);
        }
        tide_sequence_packing_destroy(packing);
    }
}

/* Without a shuffle the pieces of a length take its places in the order in which they were given. */
static void unshuffled_pieces_of_a_length_keep_their_order(void **unused)
{
    begin(10);
    for (int i = 0; i < 30; i++)
        add(i % 2 == 0 ? 10 : 3);
    tide_sequence_packing *packing = make();
    uint64_t next = 1000;
    for (uint64_t s = 0; s < 15; s++, next += 14)
        assert_int_equal(tide_sequence_packing_piece(packing, &in_order, s, 0).first, next);
    tide_sequence_packing_destroy(packing);
}

/* In how many pieces do two orders put another piece in a place? */
static uint32_t differences(const tide_sequence_packing *packing, const tide_piece_order *a,
                            const tide_piece_order *b)
{
    uint32_t found = 0;
    for (uint64_t s = 0; s < tide_sequence_packing_sequences(packing); s++)
        for (uint32_t i = 0; i < tide_sequence_packing_count(packing, s); i++)
            found += tide_sequence_packing_piece(packing, a, s, i).first !=
                     tide_sequence_packing_piece(packing, b, s, i).first;
    return found;
}

static void epochs_and_seeds_choose_other_pieces_of_a_length_and_the_same_epoch_the_same(void **unused)
{
    begin(100);
    for (uint32_t i = 0; i < 400; i++)
        add(1 + i % 4 * 20); /* 100 of each length */
    tide_sequence_packing *packing = make(), *again = make();
    const tide_piece_order order = {.shuffled = true, .seed = 5, .epoch = 1}, same = order,
                           other_epoch = {.shuffled = true, .seed = 5, .epoch = 2},
                           other_seed = {.shuffled = true, .seed = 6, .epoch = 1},
                           high_seed = {.shuffled = true, .seed = 5 + (UINT64_C(1) << 32), .epoch = 1};
    assert_int_equal(differences(packing, &order, &same), 0);
    assert_int_equal(differences(again, &order, &same), 0);
    assert_true(differences(packing, &order, &other_epoch) > 350);
    assert_true(differences(packing, &order, &other_seed) > 350);
    assert_true(differences(packing, &order, &high_seed) > 350);
    assert_true(differences(packing, &order, &in_order) > 350);
    for (uint64_t s = 0; s < tide_sequence_packing_sequences(packing); s++)
        for (uint32_t i = 0; i < tide_sequence_packing_count(packing, s); i++)
            assert_int_equal(tide_sequence_packing_piece(packing, &order, s, i).first,
                             tide_sequence_packing_piece(again, &order, s, i).first);
    tide_sequence_packing_destroy(packing);
    tide_sequence_packing_destroy(again);
}

/* Two lengths with equally many pieces, which meet in pairs. If both had the same permutation, then the pairs
 * would be the same in every epoch, or, where one length takes its places backwards, each pair (a, b) would
 * come with (b, a). */
static void lengths_are_shuffled_apart_from_each_other(void **unused)
{
    enum { PAIRS = 100 };
    static uint32_t sequence_of[MAX_PIECES];
    uint32_t partner[PAIRS] = {0}, partner_before[PAIRS] = {0}, same = 0, mirrored = 0;
    begin(10);
    for (uint32_t i = 0; i < 2 * PAIRS; i++)
        add(i % 2 == 0 ? 6 : 4);
    tide_sequence_packing *packing = make();
    assert_int_equal(tide_sequence_packing_sequences(packing), PAIRS);
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        const tide_piece_order order = {.shuffled = true, .seed = 1, .epoch = epoch};
        memcpy(partner_before, partner, sizeof partner);
        read_epoch(packing, &order, sequence_of);
        for (uint32_t i = 0; i < PAIRS; i++)
            for (uint32_t j = 0; j < PAIRS; j++)
                if (sequence_of[2 * i] == sequence_of[2 * j + 1])
                    partner[i] = j;
    }
    for (uint32_t i = 0; i < PAIRS; i++) {
        same += partner[i] == partner_before[i];
        mirrored += partner[partner[i]] == i;
    }
    assert_true(same < 10 && mirrored < 10);
    tide_sequence_packing_destroy(packing);
}

/* A run that another version of tidepool resumes must read the same sequences. */
static void sequences_are_the_same_in_every_version(void **unused)
{
    uint64_t hash = 0;
    begin(90);
    for (uint32_t i = 0; i < 1000; i++)
        add(1 + i * i % 53 + (i % 7 == 0 ? 37 : 0));
    tide_sequence_packing *packing = make();
    for (uint32_t epoch = 0; epoch < 2; epoch++) {
        const tide_piece_order order = {.shuffled = true, .seed = 11, .epoch = epoch};
        for (uint64_t s = 0; s < tide_sequence_packing_sequences(packing); s++)
            for (uint32_t i = 0; i < tide_sequence_packing_count(packing, s); i++)
                hash = tide_hash_u64(
                    hash, s << 32 | index_of(&(tide_piece){
                                        .first = tide_sequence_packing_piece(packing, &order, s, i).first}));
    }
    assert_int_equal(hash, 0x5dcf95fda06a72f9);
    tide_sequence_packing_destroy(packing);
}

/* ---- failures ---- */

static void too_many_pieces_are_refused(void **unused)
{
    tide_sequence_packing *packing = NULL;
    assert_fails(tide_sequence_packing_make(pieces, UINT64_C(1) << 32, 8, &packing), TIDE_ERROR_UNSUPPORTED,
                 "4294967296 documents are too many");
    assert_fails(tide_sequence_packing_make(pieces, UINT64_MAX, 8, &packing), TIDE_ERROR_UNSUPPORTED,
                 "too many");
    assert_null(packing);
}

static void no_memory_is_reported_and_leaves_nothing(void **unused)
{
    bool met = true;
    unsigned request = 0;
    begin(65);
    for (uint32_t i = 0; i < 300; i++)
        add(1 + draw(seq_len));
    for (; met; request++) {
        tide_sequence_packing *packing = NULL;
        fake_memory_fail(request);
        const tide_status status = tide_sequence_packing_make(pieces, piece_count, seq_len, &packing);
        met = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, met ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        assert_int_equal(packing == NULL, met);
        if (met)
            expect_words("no memory to pack");
        tide_sequence_packing_destroy(packing);
    }
    assert_true(request >= 9); /* 8 arrays and the packing itself */
}

static void reading_sequences_allocates_nothing(void **unused)
{
    static uint32_t sequence_of[MAX_PIECES];
    begin(65);
    for (uint32_t i = 0; i < 300; i++)
        add(1 + draw(seq_len));
    tide_sequence_packing *packing = make();
    fake_memory_clear();
    read_epoch(packing, &(tide_piece_order){.shuffled = true, .seed = 3, .epoch = 4}, sequence_of);
    assert_int_equal(fake_memory_clear(), 0);
    tide_sequence_packing_destroy(packing);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_piece_makes_no_sequence),
        cmocka_unit_test(a_piece_goes_where_the_least_space_stays_free),
        cmocka_unit_test(pieces_of_any_shape_are_packed_as_the_reference_packs_them),
        cmocka_unit_test(extreme_shapes_are_packed_as_the_reference_packs_them),
        cmocka_unit_test(thousands_of_pieces_are_packed_as_the_reference_packs_them),
        cmocka_unit_test(few_pieces_take_at_most_eleven_ninths_of_the_fewest_sequences_and_one),
        cmocka_unit_test(every_epoch_has_every_piece_once_in_sequences_of_the_same_lengths),
        cmocka_unit_test(unshuffled_pieces_of_a_length_keep_their_order),
        cmocka_unit_test(epochs_and_seeds_choose_other_pieces_of_a_length_and_the_same_epoch_the_same),
        cmocka_unit_test(lengths_are_shuffled_apart_from_each_other),
        cmocka_unit_test(sequences_are_the_same_in_every_version),
        cmocka_unit_test(too_many_pieces_are_refused),
        cmocka_unit_test(no_memory_is_reported_and_leaves_nothing),
        cmocka_unit_test(reading_sequences_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
