/* Where the kernels' tests have their memory: blocks that a test reads and writes, and their twins, which the GPU's kernels see.
 *
 * A block is plain host memory. Its twin is the GPU's own; where the GPU's kernels run on the CPU, other memory of the CPU, so
 * that all this is tried there too. Both begin at multiples of 256. A launch goes
 *
 *     1. hand over    every live block to its twin, guard bytes and all; the block is overwritten
 *     2. move         each 8-byte word of the arguments that points into a block: as far into its twin
 *     3. launch       and the arguments are gone as soon as the launcher has returned
 *     4. take back    when the kernel has run: every twin to its block
 *
 * So a test reads and writes its buffers as if there were no GPU, and what a kernel writes beside its outputs comes back with
 * them. A kernel that gets hold of host memory finds garbage there and writes in vain, also where the driver lets a GPU reach
 * any memory of the host.
 *
 * A table that a launcher itself reads, as adamw's segments, is moved like the arguments: a copy of it stays on the host.
 *
 * All live blocks are copied at every launch, so a test keeps few. A twin is made at the first launch that its block sees.
 * Tests have one thread.
 */
#ifndef TIDEPOOL_TESTS_TEST_TWINS_H
#define TIDEPOOL_TESTS_TEST_TWINS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tidepool/types.h"

#if defined(TEST_CUDA)
#include <cuda_runtime_api.h>
#endif

enum { TEST_HANDED_OVER = 0x5a }; /* every byte of a block while a kernel has its twin */

typedef struct test_block {
    char *host;
    char *twin; /* NULL until a launch */
    size_t bytes;
    struct test_block *next; /* one made before */
} test_block;

/* The newest live block. */
static inline test_block **test_blocks(void)
{
    static test_block *newest;
    return &newest;
}

/* ---- the twins' memory ---- */

#if defined(TEST_CUDA)

static inline void test_cuda_ok(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fail_msg("%s: %s", what, cudaGetErrorString(error));
}

static inline void *test_twin_allocate(size_t bytes)
{
    void *made = NULL;
    test_cuda_ok(cudaMalloc(&made, bytes), "a buffer on the GPU");
    return made;
}

static inline void test_twin_free(void *twin)
{
    test_cuda_ok(cudaFree(twin), "giving a buffer back");
}

/* Either side may be a twin. */
static inline void test_twin_copy(void *to, const void *from, size_t bytes)
{
    test_cuda_ok(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "a copy");
}

static inline void test_wait(void)
{
    test_cuda_ok(cudaStreamSynchronize(NULL), "the kernel");
}

#else

static inline void *test_twin_allocate(size_t bytes)
{
    void *made = aligned_alloc(TIDE_ALIGNMENT_BYTES, tide_align_up(bytes));
    assert_non_null(made);
    return made;
}

static inline void test_twin_free(void *twin)
{
    free(twin);
}

static inline void test_twin_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static inline void test_wait(void)
{
}

#endif

/* ---- blocks ---- */

/* `bytes`: a multiple of 256. Ends the test where there is no memory. */
static inline void *test_allocate(size_t bytes)
{
    test_block *made = malloc(sizeof *made), **blocks = test_blocks();
    assert_non_null(made);
    *made = (test_block){.host = aligned_alloc(TIDE_ALIGNMENT_BYTES, bytes), .bytes = bytes, .next = *blocks};
    assert_non_null(made->host);
    *blocks = made;
    return made->host;
}

static inline void test_release(void *host)
{
    test_block **at = test_blocks();
    while (*at && (*at)->host != host)
        at = &(*at)->next;
    assert_non_null(*at);
    test_block *released = *at;
    *at = released->next;
    if (released->twin)
        test_twin_free(released->twin);
    free(released->host);
    free(released);
}

/* ---- a launch ---- */

/* 1. */
static inline void test_hand_over(void)
{
    for (test_block *block = *test_blocks(); block; block = block->next) {
        if (!block->twin)
            block->twin = test_twin_allocate(block->bytes);
        assert_true((uintptr_t)block->twin % TIDE_ALIGNMENT_BYTES == 0);
        test_twin_copy(block->twin, block->host, block->bytes);
        memset(block->host, TEST_HANDED_OVER, block->bytes);
    }
}

/* What is in the twin's memory at the place of `host` in its block; `host` itself where it is in none of them. */
static inline void *test_twin_of(const test_block *blocks, void *host)
{
    for (const test_block *block = blocks; block; block = block->next) {
        const uintptr_t offset = (uintptr_t)host - (uintptr_t)block->host;
        if (offset < block->bytes)
            return block->twin + offset;
    }
    return host;
}

/* 2. Anything else that looks like a pointer into a block would be moved too: counts and factors do not. */
static inline void test_move(const test_block *blocks, void *words, size_t bytes)
{
    assert_true(bytes % sizeof(void *) == 0);
    for (size_t at = 0; at < bytes; at += sizeof(void *)) {
        void *word;
        memcpy(&word, (char *)words + at, sizeof word);
        word = test_twin_of(blocks, word);
        memcpy((char *)words + at, &word, sizeof word);
    }
}

/* 3. `table` is what the arguments point at that the launcher reads, or NULL. */
static inline tide_status test_launch_moved(tide_kernel kernel, const void *arguments, size_t bytes, const void *table,
                                            size_t table_bytes)
{
    _Alignas(16) char moved[TIDE_LAUNCH_ARGUMENTS_MAX_BYTES];
    char *moved_table = malloc(table_bytes + 1);
    assert_non_null(moved_table);
    assert_in_range(bytes, 1, sizeof moved);
    const test_block with_table = {(char *)(uintptr_t)table, moved_table, table_bytes, *test_blocks()};
    memcpy(moved, arguments, bytes);
    test_move(&with_table, moved, bytes);
    if (table_bytes > 0)
        memcpy(moved_table, table, table_bytes);
    test_move(*test_blocks(), moved_table, table_bytes);
    const tide_status status = kernel(NULL, moved);
    memset(moved, TEST_HANDED_OVER, sizeof moved);
    memset(moved_table, TEST_HANDED_OVER, table_bytes);
    free(moved_table);
    return status;
}

/* 4. */
static inline void test_take_back(void)
{
    test_wait();
    for (test_block *block = *test_blocks(); block; block = block->next)
        test_twin_copy(block->host, block->twin, block->bytes);
}

#endif
