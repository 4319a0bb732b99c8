/* The memory of the kernels' tests: blocks, which a test reads and writes, and their mirrors, which the
 * GPU's kernels see.
 *
 * A block is plain host memory. On a GPU its mirror lies in the GPU's memory. Where the GPU's kernels run
 * on the CPU, the mirror lies in pages that only kernels and copies can access, so that these tests also
 * catch a launcher that reads device memory. Blocks and mirrors begin at multiples of 256 bytes.
 * run_kernel_with() launches a kernel in four steps:
 *
 *     1. hand over    copy every live block to its mirror, guard bytes included, and overwrite the block
 *     2. move         redirect each 8-byte word of the arguments that points into a block to its mirror
 *     3. launch       call the launcher and destroy the arguments as soon as it has returned
 *     4. take back    wait for the kernel and copy every mirror to its block
 *
 * So a test reads and writes its buffers as if there were no GPU. Bytes that a kernel writes beside its
 * outputs come back with them; a kernel that goes beyond the guard bytes faults, on a GPU at least under
 * its sanitizer. A kernel that gets a pointer to host memory finds garbage there, and its writes there are
 * lost, also where the driver lets a GPU access any host memory.
 *
 * A table that the launcher itself reads, such as adamw's segments, is moved like the arguments; its copy
 * stays on the host.
 *
 * Every launch copies all live blocks, so a test should keep few. A block gets its mirror at the first
 * launch after its allocation. Tests have one thread. The CPU's kernels work in the blocks directly. */
#ifndef TIDEPOOL_TESTS_TEST_MIRRORS_H
#define TIDEPOOL_TESTS_TEST_MIRRORS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tidepool/types.h"

#if defined(TEST_CUDA)
#include <cuda_runtime_api.h>
#elif defined(TEST_CUDA_ON_CPU)
#include <sys/mman.h>
#include <unistd.h>

#include "tests/gpu/cuda_on_cpu.h"
#include "tests/gpu/fake_cublaslt.h"
#pragma weak fake_cublaslt_enqueue /* weak: a test without matmuls does not link it */
#endif

#if defined(TEST_CUDA) || defined(TEST_CUDA_ON_CPU)
#define TEST_ON_CPU 0
#else
#define TEST_ON_CPU 1
#endif

#if TEST_ON_CPU

static inline void *test_allocate(size_t bytes)
{
    void *made = aligned_alloc(TIDE_ALIGNMENT_BYTES, bytes);
    assert_non_null(made);
    return made;
}

static inline void test_release(void *block)
{
    free(block);
}

#else

/* each byte of a block from hand over to take back */
enum { TEST_HANDED_OVER = 0x5a };

typedef struct test_block {
    char *host;
    char *mirror; /* NULL until the first launch */
    size_t bytes;
    struct test_block *next; /* the block allocated before this one */
} test_block;

/* Head of the list of live blocks: the one allocated last. */
static inline test_block **test_blocks(void)
{
    static test_block *newest;
    return &newest;
}

/* ---- the mirrors' memory ---- */

#if defined(TEST_CUDA)

static inline void test_cuda_ok(cudaError_t error, const char *what)
{
    if (error != cudaSuccess)
        fail_msg("%s: %s", what, cudaGetErrorString(error));
}

static inline void *test_mirror_allocate(size_t bytes)
{
    void *made = NULL;
    test_cuda_ok(cudaMalloc(&made, bytes), "a buffer on the GPU");
    return made;
}

static inline void test_mirror_free(void *mirror, size_t bytes)
{
    (void)bytes;
    test_cuda_ok(cudaFree(mirror), "giving a buffer back");
}

/* Copies between blocks and mirrors; a mirror must be accessible (test_mirrors_reach). */
static inline void test_mirror_copy(void *to, const void *from, size_t bytes)
{
    test_cuda_ok(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "a copy");
}

static inline void test_mirrors_reach(bool reached)
{
    (void)reached;
}

static inline void test_launches_begin(void) {}

static inline void test_launches_end(void)
{
    test_cuda_ok(cudaStreamSynchronize(NULL), "the kernel");
}

#else

/* A mirror's bytes rounded up to whole pages. Behind them lies a page that neither tests nor kernels can
 * access. */
static inline size_t test_mirror_span(size_t bytes)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (bytes + page - 1) / page * page;
}

static inline void *test_mirror_allocate(size_t bytes)
{
    const size_t span = test_mirror_span(bytes);
    char *made = mmap(NULL, span + 1, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(made, MAP_FAILED);
    return made + span - bytes;
}

static inline void test_mirror_free(void *mirror, size_t bytes)
{
    const size_t span = test_mirror_span(bytes);
    assert_int_equal(munmap((char *)mirror + bytes - span, span + 1), 0);
}

static inline void test_mirror_copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}

static inline void test_mirrors_reach(bool reached)
{
    const int protection = reached ? PROT_READ | PROT_WRITE : PROT_NONE;
    for (const test_block *block = *test_blocks(); block; block = block->next) {
        const size_t span = test_mirror_span(block->bytes);
        if (block->mirror)
            assert_int_equal(mprotect(block->mirror + block->bytes - span, span, protection), 0);
    }
}

/* Kernels wait here until their launcher has returned, as they may on a GPU. */
typedef struct test_queue {
    struct {
        void (*run)(void *closure);
        void *closure;
    } launches[64];
    size_t count;
    char error[512]; /* error of the first kernel that failed */
} test_queue;

static inline test_queue *test_launches(void)
{
    static test_queue queue;
    return &queue;
}

static inline int test_enqueue(void *stream, const char *label, void (*run)(void *closure), void *closure)
{
    test_queue *queue = test_launches();
    (void)stream, (void)label;
    assert_in_range(queue->count, 0, sizeof queue->launches / sizeof queue->launches[0] - 1);
    queue->launches[queue->count].run = run;
    queue->launches[queue->count++].closure = closure;
    return 0;
}

static inline void test_note_error(void *stream, const char *message)
{
    test_queue *queue = test_launches();
    (void)stream;
    if (!queue->error[0])
        strncpy(queue->error, message, sizeof queue->error - 1);
}

static inline void test_launches_redirect(int (*enqueue)(void *, const char *, void (*)(void *), void *))
{
    cuda_on_cpu_enqueue = enqueue;
    cuda_on_cpu_failed = enqueue ? test_note_error : NULL;
    if (&fake_cublaslt_enqueue)
        fake_cublaslt_enqueue = enqueue;
}

static inline void test_launches_begin(void)
{
    *test_launches() = (test_queue){0};
    test_launches_redirect(test_enqueue);
}

static inline void test_launches_end(void)
{
    test_queue *queue = test_launches();
    test_mirrors_reach(true);
    for (size_t i = 0; i < queue->count; i++)
        queue->launches[i].run(queue->launches[i].closure);
    test_mirrors_reach(false);
    test_launches_redirect(NULL);
    if (queue->error[0])
        fail_msg("%s", queue->error);
}

#endif

/* ---- blocks ---- */

/* `bytes` is a multiple of 256. The test fails where memory is lacking. */
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
    if (released->mirror)
        test_mirror_free(released->mirror, released->bytes);
    free(released->host);
    free(released);
}

/* ---- a launch ---- */

/* Step 1. */
static inline void test_hand_over(void)
{
    for (test_block *block = *test_blocks(); block; block = block->next)
        if (!block->mirror)
            block->mirror = test_mirror_allocate(block->bytes);
    test_mirrors_reach(true);
    for (test_block *block = *test_blocks(); block; block = block->next) {
        assert_true((uintptr_t)block->mirror % TIDE_ALIGNMENT_BYTES == 0);
        test_mirror_copy(block->mirror, block->host, block->bytes);
        memset(block->host, TEST_HANDED_OVER, block->bytes);
    }
    test_mirrors_reach(false);
    test_launches_begin();
}

/* The address in the mirror's memory that corresponds to `host`; `host` itself if it points into no block. */
static inline void *test_mirror_of(const test_block *blocks, void *host)
{
    for (const test_block *block = blocks; block; block = block->next) {
        const uintptr_t offset = (uintptr_t)host - (uintptr_t)block->host;
        if (offset < block->bytes)
            return block->mirror + offset;
    }
    return host;
}

/* Step 2. Any word whose value happens to lie within a block would be moved too; counts and factors are
 * too small for that. */
static inline void test_move(const test_block *blocks, void *words, size_t bytes)
{
    assert_true(bytes % sizeof(void *) == 0);
    for (size_t at = 0; at < bytes; at += sizeof(void *)) {
        void *word;
        memcpy(&word, (char *)words + at, sizeof word);
        word = test_mirror_of(blocks, word);
        memcpy((char *)words + at, &word, sizeof word);
    }
}

/* Step 3. `table` is the memory that the launcher reads through a pointer in the arguments, or NULL. */
static inline tide_status test_launch_moved(tide_kernel kernel, const void *arguments, size_t bytes,
                                            const void *table, size_t table_bytes)
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

/* Step 4. */
static inline void test_take_back(void)
{
    test_launches_end();
    test_mirrors_reach(true);
    for (test_block *block = *test_blocks(); block; block = block->next)
        test_mirror_copy(block->host, block->mirror, block->bytes);
    test_mirrors_reach(false);
}

#endif

#endif
