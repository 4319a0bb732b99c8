/* The sums that arrive from all ranks for the ranges of this one, until all ranks' are there and can be
 * added.
 *
 * Each other rank sends its sums for this rank's ranges as one stream, which is cut into parts of a fixed
 * number of elements. The scratch memory is cut into two halves for each rank:
 *
 *     | rank 0: half 0 | half 1 | rank 1: half 0 | half 1 | ...
 *
 * Part k of a rank goes into its half k % 2. When part k of all ranks is there, the ring adds them to this
 * rank's own sums, in the order of tree.h, and the halves are free for part k + 2. A rank that is two parts
 * ahead of the slowest waits. This rank's own two halves serve as memory in which it converts the sums that
 * it sends to bf16, a piece for each other rank. */
#ifndef TIDE_COMM_REDUCE_RING_H
#define TIDE_COMM_REDUCE_RING_H

#include "src/comm/range_cursor.h"
#include "src/comm/tree.h"

typedef struct tide_reduce_ring {
    uint32_t rank, ranks;
    bool is_bf16; /* the sums that arrive */
    uint8_t *memory;
    uint64_t half_bytes;
    uint64_t elements, part_elements;
    uint64_t parts, summed;  /* the first `summed` of the parts are in this rank's ranges */
    uint32_t arrived[2];     /* from how many ranks part k came, for k = summed and summed + 1, at [k % 2] */
    tide_range_cursor own;   /* before the first element that is not summed */
    tide_tree_input *inputs; /* [ranks], the caller's */
} tide_reduce_ring;

void tide_reduce_ring_begin(tide_reduce_ring *ring, const tide_comm_reduction *reduction, uint32_t rank,
                            uint32_t ranks, tide_tree_input *inputs);

/* Has the part a free half? */
bool tide_reduce_ring_takes(const tide_reduce_ring *ring, uint64_t part);
/* Where the part of a rank goes, and its size. */
uint8_t *tide_reduce_ring_half(const tide_reduce_ring *ring, uint32_t rank, uint64_t part);
uint64_t tide_reduce_ring_part_bytes(const tide_reduce_ring *ring, uint64_t part);

/* All of the part has come from one more rank: sum as many parts as are complete. */
void tide_reduce_ring_arrived(tide_reduce_ring *ring, uint64_t part);

/* Memory for the conversion of sums for another rank. */
uint16_t *tide_reduce_ring_staging(const tide_reduce_ring *ring, uint32_t rank, uint32_t *elements);

#endif
