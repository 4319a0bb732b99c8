/* Best-fit packing.
 *
 *     places     0 1 | 2 3 4 | 5 6 7 8 ...     one for each piece, longest first
 *     first      token at which the piece of that rank begins, in the order given among equal lengths
 *     placed     places of sequence 0, then those of sequence 1, ...
 *
 * A place asks for a length and not for a piece. In an epoch, place p of length n holds the piece of rank
 * begin(n) + permutation(seed, n, epoch)(p - begin(n)).
 *
 * Best fit keeps the open sequences in stacks by their free space, and a bitset of the stacks that are not
 * empty: the next bit at or after a piece's length is the best fit. */
#include "src/data/sequence_packing.h"

#include "base/array.h"
#include "base/hash.h"
#include "src/data/random.h"

#include <assert.h>
#include <stdlib.h>

#define NONE UINT32_MAX

struct tide_sequence_packing {
    uint32_t seq_len;
    uint64_t pieces, sequences;
    uint64_t
        *begin; /* [seq_len + 1]: of positions n, how many pieces are longer; the first place of length n */
    uint64_t *first;          /* [pieces], by rank */
    uint32_t *placed;         /* [pieces] */
    uint64_t *sequence_begin; /* [sequences + 1], in `placed` */
    tide_arrays arrays;       /* holds these */
};

/* The open sequences while best fit runs. */
typedef struct open_sequences {
    uint32_t *top;   /* [seq_len + 1] the last sequence with so much free space, or NONE */
    uint32_t *below; /* [pieces] the one under it on the same stack */
    uint64_t *bits;  /* is the stack not empty? */
    uint32_t words;
} open_sequences;

/* The least free space of at least `least` that a sequence has; NONE if there is none. */
static uint32_t best_space(const open_sequences *open, uint32_t least)
{
    uint32_t word = least / 64;
    uint64_t found = open->bits[word] & ~UINT64_C(0) << least % 64;
    while (found == 0 && ++word < open->words)
        found = open->bits[word];
    return found == 0 ? NONE : word * 64 + (uint32_t)__builtin_ctzll(found);
}

static void push(open_sequences *open, uint32_t space, uint32_t sequence)
{
    open->below[sequence] = open->top[space];
    open->top[space] = sequence;
    open->bits[space / 64] |= UINT64_C(1) << space % 64;
}

static uint32_t pop(open_sequences *open, uint32_t space)
{
    const uint32_t sequence = open->top[space];
    open->top[space] = open->below[sequence];
    if (open->top[space] == NONE)
        open->bits[space / 64] &= ~(UINT64_C(1) << space % 64);
    return sequence;
}

/* Sets begin and first: a counting sort by length. */
static void rank_pieces(tide_sequence_packing *packing, const tide_piece *pieces)
{
    uint64_t *begin = packing->begin;
    for (uint64_t i = 0; i < packing->pieces; i++) {
        assert(pieces[i].positions > 0 && pieces[i].positions <= packing->seq_len);
        begin[pieces[i].positions - 1]++; /* pieces of length n + 1 at [n], for now */
    }
    for (uint32_t n = packing->seq_len; n-- > 0;)
        begin[n] += begin[n + 1]; /* those longer than n */
    for (uint64_t i = 0; i < packing->pieces; i++)
        packing->first[begin[pieces[i].positions]++] = pieces[i].first;
    /* each begin[n] is now where length n ends, which is where length n - 1 begins */
    for (uint32_t n = 0; n < packing->seq_len; n++)
        begin[n] = begin[n + 1];
    begin[packing->seq_len] = 0;
}

/* Gives each place its sequence. */
static void fit(tide_sequence_packing *packing, open_sequences *open, uint32_t *sequence_of)
{
    for (uint32_t space = 0; space <= packing->seq_len; space++)
        open->top[space] = NONE;
    uint32_t positions = packing->seq_len;
    for (uint64_t place = 0; place < packing->pieces; place++) {
        while (place >= packing->begin[positions - 1])
            positions--;
        const uint32_t space = best_space(open, positions);
        const uint32_t sequence = space != NONE ? pop(open, space) : (uint32_t)packing->sequences++;
        const uint32_t left = (space != NONE ? space : packing->seq_len) - positions;
        if (left > 0)
            push(open, left, sequence);
        sequence_of[place] = sequence;
    }
}

/* Sets placed and sequence_begin: a counting sort of the places by their sequences. */
static void list_places(tide_sequence_packing *packing, const uint32_t *sequence_of)
{
    uint64_t *begin = packing->sequence_begin;
    for (uint64_t place = 0; place < packing->pieces; place++)
        begin[sequence_of[place] + 1]++;
    for (uint64_t sequence = 0; sequence < packing->sequences; sequence++)
        begin[sequence + 1] += begin[sequence];
    for (uint64_t place = 0; place < packing->pieces; place++)
        packing->placed[begin[sequence_of[place]]++] = (uint32_t)place;
    for (uint64_t sequence = packing->sequences; sequence > 0; sequence--)
        begin[sequence] = begin[sequence - 1];
    begin[0] = 0;
}

static tide_status pack(tide_sequence_packing *packing, const tide_piece *pieces)
{
    tide_arrays scratch = {0};
    open_sequences open = {.words = packing->seq_len / 64 + 1};
    open.top = tide_arrays_add(&scratch, packing->seq_len + UINT64_C(1), sizeof *open.top);
    open.below = tide_arrays_add(&scratch, packing->pieces, sizeof *open.below);
    open.bits = tide_arrays_add(&scratch, open.words, sizeof *open.bits);
    uint32_t *sequence_of = tide_arrays_add(&scratch, packing->pieces, sizeof *sequence_of);
    packing->begin =
        tide_arrays_add(&packing->arrays, packing->seq_len + UINT64_C(1), sizeof *packing->begin);
    packing->first = tide_arrays_add(&packing->arrays, packing->pieces, sizeof *packing->first);
    packing->placed = tide_arrays_add(&packing->arrays, packing->pieces, sizeof *packing->placed);
    if (!scratch.lacks && !packing->arrays.lacks) {
        rank_pieces(packing, pieces);
        fit(packing, &open, sequence_of);
        packing->sequence_begin =
            tide_arrays_add(&packing->arrays, packing->sequences + 1, sizeof *packing->sequence_begin);
    }
    const bool lacks = scratch.lacks || packing->arrays.lacks;
    if (!lacks)
        list_places(packing, sequence_of);
    tide_arrays_free(&scratch);
    if (lacks)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data: no memory to pack %llu documents",
                         (unsigned long long)packing->pieces);
    return TIDE_OK;
}

tide_status tide_sequence_packing_make(const tide_piece *pieces, uint64_t count, uint32_t seq_len,
                                       tide_sequence_packing **packing)
{
    if (count >= NONE)
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "data: %llu documents are too many to pack, below %u are not",
                         (unsigned long long)count, NONE);
    tide_sequence_packing *made = calloc(1, sizeof *made);
    if (made == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "data: no memory to pack documents");
    made->seq_len = seq_len;
    made->pieces = count;
    const tide_status status = pack(made, pieces);
    if (status == TIDE_OK)
        *packing = made;
    else
        tide_sequence_packing_destroy(made);
    return status;
}

void tide_sequence_packing_destroy(tide_sequence_packing *packing)
{
    if (packing == NULL)
        return;
    tide_arrays_free(&packing->arrays);
    free(packing);
}

uint64_t tide_sequence_packing_sequences(const tide_sequence_packing *packing)
{
    return packing->sequences;
}

uint32_t tide_sequence_packing_count(const tide_sequence_packing *packing, uint64_t sequence)
{
    assert(sequence < packing->sequences);
    return (uint32_t)(packing->sequence_begin[sequence + 1] - packing->sequence_begin[sequence]);
}

/* The length that a place asks for: the least n with begin[n] <= place. */
static uint32_t place_length(const tide_sequence_packing *packing, uint64_t place)
{
    uint32_t low = 1, high = packing->seq_len;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (packing->begin[middle] <= place)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

tide_piece tide_sequence_packing_piece(const tide_sequence_packing *packing, const tide_piece_order *order,
                                       uint64_t sequence, uint32_t index)
{
    assert(index < tide_sequence_packing_count(packing, sequence));
    const uint64_t place = packing->placed[packing->sequence_begin[sequence] + index];
    const uint32_t positions = place_length(packing, place);
    const uint64_t begin = packing->begin[positions], of_length = packing->begin[positions - 1] - begin;
    uint64_t rank = place;
    if (order->shuffled) {
        const uint64_t seed = tide_hash_u64(order->seed, positions);
        const tide_permutation permutation = tide_permutation_make(seed, order->epoch, of_length);
        rank = begin + tide_permutation_at(&permutation, place - begin);
    }
    return (tide_piece){.first = packing->first[rank], .positions = positions};
}
