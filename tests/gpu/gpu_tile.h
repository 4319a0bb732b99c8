/* What tests/gpu/test_gpu_tile.c asks of a warp: the instructions of kernels/cuda/tile.h beside their plain paths. They
 * are kernels with their launchers, like those of the table. */
#ifndef TIDEPOOL_TESTS_CUDA_GPU_TILE_H
#define TIDEPOOL_TESTS_CUDA_GPU_TILE_H

#include "kernels/kernels.h"

enum {
    GPU_TILE_LANES = 32,
    GPU_TILE_ROWS = 64, /* of a tile in shared memory, and its columns */
    GPU_TILE_NUMBERS = GPU_TILE_ROWS * GPU_TILE_ROWS,
    GPU_TILE_GRANULE = 8,
};

/* c + a b, fragments a lane as tile.h draws them. */
typedef struct gpu_tile_product {
    uint32_t a[GPU_TILE_LANES][4], b[GPU_TILE_LANES][2];
    float c[GPU_TILE_LANES][4];
    float by_instruction[GPU_TILE_LANES][4], by_reference[GPU_TILE_LANES][4];
} gpu_tile_product;

/* Four 8 x 8 matrices; own[lane] is where a granule begins. [0]: as they stand, [1]: transposed. */
typedef struct gpu_tile_matrices {
    uint16_t tile[GPU_TILE_NUMBERS];
    int32_t own[GPU_TILE_LANES];
    uint32_t by_instruction[2][GPU_TILE_LANES][4], by_reference[2][GPU_TILE_LANES][4];
} gpu_tile_matrices;

/* Two groups of copies, a granule a lane each, to tile[at[group][lane]]. Nothing is read where `inside` is false. */
typedef struct gpu_tile_copies {
    uint16_t from[2][GPU_TILE_LANES * GPU_TILE_GRANULE];
    int32_t at[2][GPU_TILE_LANES];
    bool inside[2][GPU_TILE_LANES];
    uint16_t early[GPU_TILE_LANES * GPU_TILE_GRANULE]; /* group 0 when it was waited for, but not group 1 */
    uint16_t tile[GPU_TILE_NUMBERS]; /* before: what it holds; after: what it held at the end */
} gpu_tile_copies;

/* Of conversions of a range of fp32 numbers, and of all 16-bit ones up. */
typedef struct gpu_tile_conversions {
    uint32_t wrong_down;  /* numbers that don't get bf16.h's, fp16.h's bits */
    uint32_t wrong_pairs; /* nor in a pair of neighbours; a NaN is any NaN */
    uint32_t wrong_up;    /* likewise */
    uint32_t an_example;  /* bits of one of them */
} gpu_tile_conversions;

typedef struct gpu_tile_args {
    void *data;       /* the kernel's structure, above */
    tide_dtype dtype; /* BF16 or FP16 */
    uint32_t first,
        count; /* convert: the numbers of bits [first, first + count); count: a multiple of 2^16 */
} gpu_tile_args;

tide_status gpu_tile_multiply(void *stream, const void *arguments);
tide_status gpu_tile_load(void *stream, const void *arguments);
tide_status gpu_tile_copy(void *stream, const void *arguments);
tide_status gpu_tile_convert(void *stream, const void *arguments);

#endif
