/* Packs documents into sequences of one length, by best fit (Ding et al. 2024, "Fewer Truncations Improve
 * Language Modeling"): longest first, each goes where the least space stays free.
 *
 * Which lengths share a sequence depends on the lengths alone. An epoch chooses, by a permutation for each
 * length, which documents of a length take its places. So every epoch has the same number of sequences, and a
 * sequence of any epoch is found without building that epoch: a resumed run, and each of several ranks, reads
 * the very same sequences.
 *
 * Immutable once made; any thread. */
#ifndef TIDE_DATA_SEQUENCE_PACKING_H
#define TIDE_DATA_SEQUENCE_PACKING_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct tide_sequence_packing tide_sequence_packing;

/* A document, or a part of one that is longer than a sequence: positions [first, first + positions) of the
 * tokens are its inputs, and the token after each is the input's target. */
typedef struct tide_piece {
    uint64_t first;
    uint32_t positions; /* 1 .. the sequence's length */
    uint32_t learned;   /* how many of the targets are learned; packing does not read it */
} tide_piece;

/* Which pieces take the places: in the order in which they were given, or shuffled by seed and epoch. */
typedef struct tide_piece_order {
    bool shuffled;
    uint64_t seed;
    uint32_t epoch;
} tide_piece_order;

/* Pack pieces[count] into sequences of seq_len positions. Takes a time in proportion to count x (1 + seq_len
 * / 64). Keeps 12 bytes a piece and 8 a sequence. NO_MEMORY; UNSUPPORTED for 2^32 - 1 pieces or more. On
 * failure *packing is unchanged. The caller destroys it. */
TIDE_NODISCARD tide_status tide_sequence_packing_make(const tide_piece *pieces, uint64_t count,
                                                      uint32_t seq_len, tide_sequence_packing **packing);
void tide_sequence_packing_destroy(tide_sequence_packing *packing); /* NULL is allowed */

uint64_t tide_sequence_packing_sequences(const tide_sequence_packing *packing);

/* How many pieces a sequence has, at least 1; and its piece `index`, longest first. */
uint32_t tide_sequence_packing_count(const tide_sequence_packing *packing, uint64_t sequence);
tide_piece tide_sequence_packing_piece(const tide_sequence_packing *packing, const tide_piece_order *order,
                                       uint64_t sequence, uint32_t index);

#endif
