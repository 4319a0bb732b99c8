/* The kernels of gpu_tile.cu, which test_gpu_tile.c launches: the instructions of kernels/cuda/tile.h and
 * the plain code with the same results. They are kernels with launchers, like those of the table of
 * kernels. */
#ifndef TIDEPOOL_TESTS_CUDA_GPU_TILE_H
#define TIDEPOOL_TESTS_CUDA_GPU_TILE_H

#include "kernels/kernels.h"

enum {
    GPU_TILE_LANES = 32,
    /* rows of a tile in shared memory, and its columns */
    GPU_TILE_ROWS = 64,
    GPU_TILE_NUMBERS = GPU_TILE_ROWS * GPU_TILE_ROWS,
    GPU_TILE_GRANULE = 8,
};

/* c + a b: the fragments of each lane, as tile.h draws them; numbers that the dtype holds. */
typedef struct gpu_tile_product {
    float a[GPU_TILE_LANES][4][2], b[GPU_TILE_LANES][2][2];
    float c[GPU_TILE_LANES][4];
    float by_instruction[GPU_TILE_LANES][4], by_reference[GPU_TILE_LANES][4];
} gpu_tile_product;

/* Four 8 x 8 matrices. own[lane] is the index where the lane's granule begins. Results [0] are the
 * matrices as they lie in the tile, [1] their transposes. */
typedef struct gpu_tile_matrices {
    uint16_t tile[GPU_TILE_NUMBERS];
    int32_t own[GPU_TILE_LANES];
    uint32_t by_instruction[2][GPU_TILE_LANES][4], by_reference[2][GPU_TILE_LANES][4];
} gpu_tile_matrices;

/* Two groups of copies. In group g each lane copies one granule to tile[at[g][lane]], or zeros, without
 * reading, where `inside` is false. */
typedef struct gpu_tile_copies {
    uint16_t from[2][GPU_TILE_LANES * GPU_TILE_GRANULE];
    int32_t at[2][GPU_TILE_LANES];
    bool inside[2][GPU_TILE_LANES];
    /* group 0's granules after a wait for group 0 and before the wait for group 1 */
    uint16_t early[GPU_TILE_LANES * GPU_TILE_GRANULE];
    uint16_t tile[GPU_TILE_NUMBERS]; /* input: the tile's contents before; output: at the end */
} gpu_tile_copies;

/* Conversions of a range of fp32 numbers to a 16-bit dtype, and of all 16-bit numbers to fp32. */
typedef struct gpu_tile_conversions {
    uint32_t wrong_down;  /* fp32 numbers that do not get the bits of bf16.h or fp16.h */
    uint32_t wrong_pairs; /* fp32 numbers that do not get them in a pair; all NaNs count as equal */
    uint32_t wrong_up;    /* 16-bit numbers that do not get the bits of bf16.h or fp16.h */
    uint32_t an_example;  /* the bits of one wrong number */
} gpu_tile_conversions;

typedef struct gpu_tile_args {
    void *data;       /* one of the structures above, by the kernel */
    tide_dtype dtype; /* BF16 or FP16; for products FP32 as well */
    /* convert: the range of bits is [first, first + count); count is a multiple of 2^16 */
    uint32_t first, count;
} gpu_tile_args;

tide_status gpu_tile_multiply(void *stream, const void *arguments);
tide_status gpu_tile_load(void *stream, const void *arguments);
tide_status gpu_tile_copy(void *stream, const void *arguments);
tide_status gpu_tile_convert(void *stream, const void *arguments);

#endif
