#include "src/comm/reduce_ring.h"

#include "base/align.h"
#include "base/minmax.h"

#include <assert.h>

enum { ALIGNMENT = 64 };

static uint32_t wire_bytes(const tide_reduce_ring *ring)
{
    return ring->is_bf16 ? sizeof(uint16_t) : sizeof(float);
}

static uint64_t elements_of(const tide_comm_reduction *reduction, uint32_t owner)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < reduction->count; i++)
        bytes += reduction->ranges[i].owner == owner ? reduction->ranges[i].bytes : 0;
    assert(bytes % sizeof(float) == 0);
    return bytes / sizeof(float);
}

void tide_reduce_ring_begin(tide_reduce_ring *ring, const tide_comm_reduction *reduction, uint32_t rank,
                            uint32_t ranks, tide_tree_input *inputs)
{
    assert(reduction->scratch != NULL && (uintptr_t)reduction->scratch % ALIGNMENT == 0);
    *ring = (tide_reduce_ring){
        .rank = rank,
        .ranks = ranks,
        .is_bf16 = reduction->travels_as == TIDE_DTYPE_BF16,
        .memory = reduction->scratch,
        .half_bytes = reduction->scratch_bytes / 2 / ranks / ALIGNMENT * ALIGNMENT,
        .elements = elements_of(reduction, rank),
        .own = tide_range_cursor_begin(reduction->ranges, reduction->count, rank),
        .inputs = inputs,
    };
    assert(ring->half_bytes >= 4096);
    ring->part_elements = ring->half_bytes / wire_bytes(ring);
    ring->parts = tide_ceil_div(ring->elements, ring->part_elements);
}

bool tide_reduce_ring_takes(const tide_reduce_ring *ring, uint64_t part)
{
    return part < ring->parts && part < ring->summed + 2;
}

uint8_t *tide_reduce_ring_half(const tide_reduce_ring *ring, uint32_t rank, uint64_t part)
{
    assert(rank < ring->ranks);
    return ring->memory + (2 * rank + part % 2) * ring->half_bytes;
}

static uint64_t elements_in(const tide_reduce_ring *ring, uint64_t part)
{
    assert(part < ring->parts);
    return tide_min_u64(ring->part_elements, ring->elements - part * ring->part_elements);
}

uint64_t tide_reduce_ring_part_bytes(const tide_reduce_ring *ring, uint64_t part)
{
    return elements_in(ring, part) * wire_bytes(ring);
}

/* Sum elements [done, done + elements) of the part into the memory of this rank, where they are in one
 * range. */
static void sum_piece(tide_reduce_ring *ring, uint64_t done, uint64_t elements, float *own)
{
    for (uint32_t rank = 0; rank < ring->ranks; rank++) {
        const uint8_t *half = tide_reduce_ring_half(ring, rank, ring->summed);
        ring->inputs[rank] = (tide_tree_input){half + done * wire_bytes(ring), ring->is_bf16};
    }
    ring->inputs[ring->rank] = (tide_tree_input){own, false};
    tide_tree_sum(ring->inputs, ring->ranks, elements, own);
}

static void sum_part(tide_reduce_ring *ring)
{
    const uint64_t elements = elements_in(ring, ring->summed);
    for (uint64_t done = 0; done < elements;) {
        struct iovec block;
        const uint32_t found = tide_range_cursor_blocks(&ring->own, &block, 1);
        assert(found == 1);
        (void)found;
        const uint64_t piece = tide_min_u64(block.iov_len / sizeof(float), elements - done);
        sum_piece(ring, done, piece, block.iov_base);
        tide_range_cursor_advance(&ring->own, piece * sizeof(float));
        done += piece;
    }
}

void tide_reduce_ring_arrived(tide_reduce_ring *ring, uint64_t part)
{
    assert(part >= ring->summed && tide_reduce_ring_takes(ring, part));
    ring->arrived[part % 2]++;
    while (ring->arrived[ring->summed % 2] == ring->ranks - 1) {
        sum_part(ring);
        ring->arrived[ring->summed % 2] = 0;
        ring->summed++;
    }
}

uint16_t *tide_reduce_ring_staging(const tide_reduce_ring *ring, uint32_t rank, uint32_t *elements)
{
    assert(rank != ring->rank && ring->ranks > 1);
    uint64_t share = 2 * ring->half_bytes / (ring->ranks - 1) / sizeof(uint16_t);
    share = tide_min_u64(share, 1 << 20);
    *elements = (uint32_t)share;
    const uint32_t index = rank < ring->rank ? rank : rank - 1;
    return (uint16_t *)(void *)tide_reduce_ring_half(ring, ring->rank, 0) + index * share;
}
