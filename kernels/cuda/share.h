/* How rows of equal units are dealt to threads, for kernels that go element by element but need to know the row: a
 * block takes neighbouring rows, as many as give each of its threads a few units, or one row; its threads go through
 * their units one after another. */
#ifndef TIDEPOOL_KERNELS_CUDA_SHARE_H
#define TIDEPOOL_KERNELS_CUDA_SHARE_H

#include "kernels/cuda/launch.h"

enum { SHARE_THREADS = 256, SHARE_UNITS = 4 /* a thread's, about */ };

struct row_share {
    size_t rows;
    unsigned each;  /* rows of a block */
    unsigned units; /* of a row */
};

static inline row_share row_share_of(size_t rows, size_t units)
{
    const size_t fitting = SHARE_THREADS * SHARE_UNITS / units;
    assert(units > 0 && units <= UINT32_MAX - SHARE_THREADS);
    return {rows, (unsigned)(fitting > 0 ? fitting : 1), (unsigned)units};
}

static inline unsigned row_share_blocks(const row_share &share)
{
    return (unsigned)((share.rows + share.each - 1) / share.each);
}

/* visit(row, unit) for each of this thread's. */
template <typename Visit>
static __device__ __forceinline__ void row_share_each(const row_share &share, Visit visit)
{
    const size_t first = (size_t)blockIdx.x * share.each, left = share.rows - first;
    const unsigned rows = left < share.each ? (unsigned)left : share.each;
    for (unsigned i = threadIdx.x; i < rows * share.units; i += SHARE_THREADS)
        visit(first + i / share.units, i % share.units);
}

#endif
