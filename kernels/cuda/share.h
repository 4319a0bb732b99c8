/* How rows of equal units are distributed over threads, for elementwise kernels that need to know the row. A
 * block takes successive rows, so many that each of its threads has a few units, but at least one row. */
#ifndef TIDEPOOL_KERNELS_CUDA_SHARE_H
#define TIDEPOOL_KERNELS_CUDA_SHARE_H

#include "kernels/cuda/launch.h"

enum { SHARE_THREADS = 256, SHARE_UNITS = 4 /* units of a thread, about */ };

struct row_share {
    size_t rows;
    unsigned each;  /* rows of a block */
    unsigned units; /* units of a row */
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

/* Call visit(row, unit) for each of this thread's units. */
template <typename Visit>
static __device__ __forceinline__ void row_share_each(const row_share &share, Visit visit)
{
    const size_t first = (size_t)blockIdx.x * share.each, left = share.rows - first;
    const unsigned rows = left < share.each ? (unsigned)left : share.each;
    for (unsigned i = threadIdx.x; i < rows * share.units; i += SHARE_THREADS)
        visit(first + i / share.units, i % share.units);
}

#endif
