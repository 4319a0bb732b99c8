/* Sums over the columns of a matrix, for gradients of biases and norms.
 *
 * Each task sums all rows of one "bite", a strip of columns that is BITE_LANES vectors wide. There are
 * thus no partial sums to join, and any thread count gives the same bits. A task first sums groups of
 * ROW_GROUP rows and then the groups, since a plain fp32 sum over thousands of rows would lose digits. The
 * order is fixed. */
#ifndef TIDEPOOL_KERNELS_CPU_COLUMNS_H
#define TIDEPOOL_KERNELS_CPU_COLUMNS_H

#include "base/align.h"
#include "base/team.h"
#include "kernels/cpu/lanes.h"

enum { BITE_LANES = 2, BITE_COLUMNS = BITE_LANES * LANES, ROW_GROUP = 32 };

static inline size_t columns_bites(size_t width)
{
    return tide_ceil_div(width, BITE_COLUMNS);
}

/* accumulator[begin, begin + BITE_COLUMNS) += sums, up to column `end`. */
LANES_INLINE void columns_add(float *accumulator, size_t begin, size_t end, const lanes sums[BITE_LANES])
{
    for (size_t bite = 0; bite < BITE_LANES; bite++) {
        const size_t column = begin + bite * LANES;
        if (column >= end)
            break;
        const lanes total = lanes_load_until(accumulator, column, end, TIDE_DTYPE_FP32) + sums[bite];
        lanes_store_until(accumulator, column, end, total, TIDE_DTYPE_FP32);
    }
}

/* BITE_COLUMNS elements of a row from column `begin`; zeros past `end`. */
LANES_INLINE void columns_load(lanes out[BITE_LANES], const void *row, size_t begin, size_t end,
                               tide_dtype dtype)
{
    for (size_t bite = 0; bite < BITE_LANES; bite++) {
        const size_t column = begin + bite * LANES;
        out[bite] = column < end ? lanes_load_until(row, column, end, dtype) : lanes_all(0.0f);
    }
}

#endif
