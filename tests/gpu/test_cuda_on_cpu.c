/* Tests of the emulation that runs CUDA kernels on the CPU (cuda_on_cpu.h): correct kernels give CUDA's
 * results, and each kind of mistake is an error that names its thread. */
#include "tests/gpu/test_cuda_on_cpu.h"
#include "tests/gpu/cuda_on_cpu.h"
#include "tests/support/assert_ok.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum { THREADS = 256 };

static void every_thread_runs_once_and_knows_where_it_is(void **state)
{
    enum { BLOCKS = 2 * 3 * 2, BLOCK = 5 * 3 * 2 };
    uint32_t out[BLOCKS * BLOCK];
    memset(out, 0xff, sizeof out);
    assert_ok(test_where(out, (unsigned[]){2, 3, 2}, (unsigned[]){5, 3, 2}));
    for (uint32_t i = 0; i < BLOCKS * BLOCK; i++)
        assert_int_equal(out[i], i / BLOCK << 16 | i % BLOCK);
}

static void a_launch_of_an_impossible_shape_is_refused(void **state)
{
    static const unsigned shapes[][6] = {{0, 1, 1, 32, 1, 1},   {1, 1, 1, 0, 1, 1},  {1, 1, 1, 1025, 1, 1},
                                         {1, 1, 1, 32, 33, 1},  {1, 1, 1, 1, 1, 65}, {1, 65536, 1, 1, 1, 1},
                                         {1, 1, 65536, 1, 1, 1}};
    uint32_t out;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        assert_fails(test_where(&out, shapes[i], shapes[i] + 3), TIDE_ERROR_DEVICE,
                     "where: invalid configuration");
    }
}

static void a_sum_through_shared_memory_with_barriers_is_right(void **state)
{
    enum { BLOCKS = 7 };
    static uint32_t in[BLOCKS * THREADS], out[BLOCKS], expected[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS * THREADS; i++)
        expected[i / THREADS] += in[i] = i * 2654435761u;
    assert_ok(test_sum(in, out, BLOCKS));
    assert_memory_equal(out, expected, sizeof out);
}

static void a_sum_of_floats_has_the_same_bits_in_every_order(void **state)
{
    enum { BLOCKS = 7 };
    static float in[BLOCKS * THREADS], first[BLOCKS], out[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS * THREADS; i++)
        in[i] = 1.0f / (float)(i + 3);
    assert_ok(test_sum_float(in, first, BLOCKS));
    for (cuda_on_cpu_seed = 1; cuda_on_cpu_seed < 9; cuda_on_cpu_seed++) {
        assert_ok(test_sum_float(in, out, BLOCKS));
        assert_memory_equal(out, first, sizeof out);
    }
    cuda_on_cpu_seed = 0;
}

static void a_missing_barrier_is_a_race(void **state)
{
    uint32_t in[THREADS] = {0}, out;
    for (cuda_on_cpu_seed = 0; cuda_on_cpu_seed < 9; cuda_on_cpu_seed++) {
        assert_fails(test_sum_without_barriers(in, &out), TIDE_ERROR_DEVICE, "race: ");
        expect_words("partial[");
    }
    cuda_on_cpu_seed = 0;
}

static void shuffles_and_votes_give_what_cuda_says(void **state)
{
    static uint32_t out[4][TEST_SHUFFLES][32];
    assert_ok(test_shuffles(&out[0][0][0], 4 * 32));
    for (uint32_t warp = 0; warp < 4; warp++)
        for (uint32_t lane = 0; lane < 32; lane++) {
            uint32_t(*got)[32] = out[warp];
            assert_int_equal(got[0][lane], 105);
            assert_int_equal(got[1][lane], 100 + (lane ^ 16));
            assert_int_equal(got[2][lane], 100 + (lane < 3 ? lane : lane - 3));
            assert_int_equal(got[3][lane], 100 + (lane < 29 ? lane + 3 : lane));
            assert_int_equal(got[4][lane], 100 + lane / 8 * 8 + 1);
            assert_int_equal(got[5][lane], 100 + (lane % 8 < 5 ? lane + 3 : lane));
            assert_int_equal(got[6][lane], 100 + (lane % 8 < 3 ? lane : lane - 3));
            assert_int_equal(got[7][lane], 0x49249249u);
            assert_int_equal(got[8][lane], 2);
            assert_int_equal(got[9][lane], 2);
            assert_int_equal(got[10][lane], 100 + (lane ^ 1));
        }
}

static void a_shuffle_in_a_warp_that_is_not_full_is_found(void **state)
{
    static uint32_t out[2 * TEST_SHUFFLES * 32];
    assert_fails(test_shuffles(out, 40), TIDE_ERROR_DEVICE, "in a warp of 8 threads");
}

static void syncwarp_orders_shared_memory_within_a_warp(void **state)
{
    uint32_t out[THREADS];
    for (cuda_on_cpu_seed = 0; cuda_on_cpu_seed < 9; cuda_on_cpu_seed++) {
        assert_ok(test_warp_order(out, 1));
        for (uint32_t i = 0; i < THREADS; i++)
            assert_int_equal(out[i], 2 + i / 32);
        assert_fails(test_warp_order(out, 0), TIDE_ERROR_DEVICE, "race: ");
    }
    cuda_on_cpu_seed = 0;
}

static void atomics_count_in_shared_and_in_global_memory(void **state)
{
    enum { BLOCKS = 3 };
    static uint32_t in[BLOCKS * THREADS];
    uint32_t counts[4] = {0}, expected[4] = {0}, largest = 0, expected_largest = 0;
    for (uint32_t i = 0; i < BLOCKS * THREADS; i++) {
        in[i] = i * 7919 % 1009;
        expected[in[i] % 4]++;
        expected_largest = in[i] > expected_largest ? in[i] : expected_largest;
    }
    assert_ok(test_count(in, counts, &largest, BLOCKS));
    assert_memory_equal(counts, expected, sizeof counts);
    assert_int_equal(largest, expected_largest);
}

static void vectors_go_through_shared_memory(void **state)
{
    _Alignas(16) uint32_t in[128], out[128];
    for (uint32_t i = 0; i < 128; i++)
        in[i] = i;
    assert_ok(test_vectors(in, out, 0));
    for (uint32_t i = 0; i < 128; i++)
        assert_int_equal(out[i], 127 - i);
}

static void a_vector_that_is_not_aligned_or_beyond_the_end_is_found(void **state)
{
    _Alignas(16) uint32_t in[128] = {0}, out[128];
    assert_fails(test_vectors(in, out, 1), TIDE_ERROR_DEVICE, "not aligned");
    assert_fails(test_vectors(in, out, 4), TIDE_ERROR_DEVICE, "tile[131] of 128 elements is out of range");
}

static void shared_memory_is_poisoned_when_a_block_begins(void **state)
{
    uint32_t out[3];
    assert_ok(test_poison(out, 3));
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(out[i], 0xffffffffu);
}

/* In each of 30 blocks, the threads before the barrier and the threads after it are a permutation of all;
 * forward, backward and other orders occur. */
static void the_order_of_threads_changes_with_blocks_and_barriers(void **state)
{
    enum { BLOCKS = 30, N = TEST_ORDER_THREADS };
    static uint32_t out[BLOCKS * 2 * N];
    uint32_t next = 0, forwards = 0, backwards = 0, changes = 0;
    assert_ok(test_order(out, &next, BLOCKS));
    assert_int_equal(next, BLOCKS * 2 * N);
    for (uint32_t half = 0; half < 2 * BLOCKS; half++) {
        const uint32_t *order = out + half * N;
        uint64_t seen = 0;
        for (uint32_t i = 0; i < N; i++)
            seen |= (uint64_t)1 << order[i];
        assert_true(seen == UINT64_MAX);
        forwards += order[0] == 0 && order[1] == 1;
        backwards += order[0] == N - 1 && order[1] == N - 2;
        changes += half % 2 && memcmp(order, order - N, N * sizeof *order) != 0;
    }
    assert_in_range(forwards, 8, 32);
    assert_in_range(backwards, 8, 32);
    assert_in_range(changes, 10, BLOCKS);
}

/* A mistake and two parts of the message about it. */
static const struct {
    test_mistake mistake;
    const char *first, *second;
} mistakes[] = {
    {TEST_RETURNS_BEFORE_BARRIER, "wrong: block (2, 0, 0), thread (0, 0, 0), test_cuda_on_cpu_kernels.cc:",
     "waits at barrier but thread (77, 0, 0) has returned"},
    {TEST_OTHER_BARRIER, "wrong: block (2, 0, 0), thread (", "waits at the one in line"},
    {TEST_BARRIER_AGAINST_SHUFFLE, "wrong: block (2, 0, 0), thread (", "thread (77, 0, 0) waits at barrier"},
    {TEST_LANE_MISSING, "waits at __shfl_xor_sync but thread (77, 0, 0) has returned", "block (2, 0, 0)"},
    {TEST_OTHER_SHUFFLE, "comes to __shfl_sync but thread (", "of its warp waits at __shfl_sync in line"},
    {TEST_PARTIAL_MASK, "__shfl_sync with mask 0000ffff", "block (2, 0, 0)"},
    {TEST_READS_BEYOND, "block (2, 0, 0), thread (77, 0, 0)", "cells[256] of 256 elements is out of range"},
    {TEST_WRITES_BEFORE, "block (2, 0, 0), thread (77, 0, 0)", "cells[-1] of 256 elements is out of range"},
    {TEST_TWO_WRITE, "block (2, 0, 0)", "race: writes cells[76] that thread (7"},
    {TEST_READS_UNORDERED, "block (2, 0, 0)", "s cells[3] that thread ("},
    {TEST_WRITES_UNORDERED, "block (2, 0, 0)", "s cells[3] that "},
    {TEST_TOO_MUCH_SHARED, "shared arrays need", "with large, a block has 49152"},
};

static void every_mistake_ends_its_launch_with_an_error_and_the_next_launch_works(void **state)
{
    uint32_t out[THREADS], sum, ones[THREADS];
    for (unsigned i = 0; i < THREADS; i++)
        ones[i] = 1;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++)
        for (cuda_on_cpu_seed = 0; cuda_on_cpu_seed < 6; cuda_on_cpu_seed++) {
            if (test_wrong(mistakes[i].mistake, out) != TIDE_ERROR_DEVICE)
                fail_msg("not found: %s", mistakes[i].first);
            expect_words(mistakes[i].first);
            expect_words(mistakes[i].second);
            assert_ok(test_sum(ones, &sum, 1));
            assert_int_equal(sum, THREADS);
        }
    cuda_on_cpu_seed = 0;
}

/* ---- launches passed to cuda_on_cpu_enqueue ---- */

static struct handed {
    void *stream;
    void (*run)(void *closure);
    void *closure;
} handed[4];
static unsigned handed_count;
static char failure[512];

static int keep(void *stream, const char *label, void (*run)(void *closure), void *closure)
{
    assert_non_null(label);
    handed[handed_count++] = (struct handed){stream, run, closure};
    return 0;
}

static int keep_and_fail(void *stream, const char *label, void (*run)(void *closure), void *closure)
{
    (void)keep(stream, label, run, closure);
    return 719;
}

static void note_failure(void *stream, const char *message)
{
    snprintf(failure, sizeof failure, "%s", message);
}

static void *run_handed(void *which)
{
    const struct handed *launch = which;
    launch->run(launch->closure);
    return NULL;
}

static void launches_that_are_handed_over_run_on_other_threads_at_the_same_time(void **state)
{
    enum { BLOCKS = 200 };
    static uint32_t in[2][BLOCKS * THREADS], out[2][BLOCKS];
    pthread_t threads[2];
    handed_count = 0;
    cuda_on_cpu_enqueue = keep;
    for (uint32_t i = 0; i < BLOCKS * THREADS; i++) {
        in[0][i] = 1;
        in[1][i] = 2;
    }
    for (unsigned i = 0; i < 2; i++)
        assert_ok(test_sum(in[i], out[i], BLOCKS));
    cuda_on_cpu_enqueue = NULL;
    assert_int_equal(out[0][0], 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run_handed, &handed[i]), 0);
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        assert_int_equal(out[0][b], THREADS);
        assert_int_equal(out[1][b], 2 * THREADS);
    }
}

static void a_launch_that_is_not_taken_fails(void **state)
{
    uint32_t in[THREADS] = {0}, out = 0;
    handed_count = 0;
    cuda_on_cpu_enqueue = keep_and_fail;
    assert_fails(test_sum(in, &out, 1), TIDE_ERROR_DEVICE, "719");
    cuda_on_cpu_enqueue = NULL;
    run_handed(&handed[0]); /* running it destroys it */
}

static void an_error_in_a_launch_that_was_handed_over_is_told(void **state)
{
    uint32_t out[THREADS];
    handed_count = 0;
    cuda_on_cpu_enqueue = keep;
    cuda_on_cpu_failed = note_failure;
    assert_ok(test_wrong(TEST_READS_BEYOND, out));
    assert_string_equal(failure, "");
    run_handed(&handed[0]);
    assert_non_null(strstr(failure, "cells[256] of 256 elements is out of range"));
    cuda_on_cpu_enqueue = NULL;
    cuda_on_cpu_failed = NULL;
}

/* ---- cost ---- */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { COST_MATTERS = 0 }; /* the emulation reports every switch to the sanitizer, which takes long */
#else
enum { COST_MATTERS = 1 };
#endif

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void a_block_of_256_threads_with_ten_barriers_takes_less_than_a_millisecond(void **state)
{
    enum { BLOCKS = 100 };
    uint32_t out[THREADS];
    double least = 1.0;
    for (unsigned round = 0; round < 5; round++) {
        const double begin = seconds();
        assert_ok(test_barriers(out, BLOCKS, 10));
        const double taken = (seconds() - begin) / BLOCKS;
        least = taken < least ? taken : least;
    }
    print_message("a block of 256 threads with 10 barriers: %.1f us\n", 1e6 * least);
    /* An optimised build on an idle machine takes 50 us. */
    assert_true(!COST_MATTERS || least < 1e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_runs_once_and_knows_where_it_is),
        cmocka_unit_test(a_launch_of_an_impossible_shape_is_refused),
        cmocka_unit_test(a_sum_through_shared_memory_with_barriers_is_right),
        cmocka_unit_test(a_sum_of_floats_has_the_same_bits_in_every_order),
        cmocka_unit_test(a_missing_barrier_is_a_race),
        cmocka_unit_test(shuffles_and_votes_give_what_cuda_says),
        cmocka_unit_test(a_shuffle_in_a_warp_that_is_not_full_is_found),
        cmocka_unit_test(syncwarp_orders_shared_memory_within_a_warp),
        cmocka_unit_test(atomics_count_in_shared_and_in_global_memory),
        cmocka_unit_test(vectors_go_through_shared_memory),
        cmocka_unit_test(a_vector_that_is_not_aligned_or_beyond_the_end_is_found),
        cmocka_unit_test(shared_memory_is_poisoned_when_a_block_begins),
        cmocka_unit_test(the_order_of_threads_changes_with_blocks_and_barriers),
        cmocka_unit_test(every_mistake_ends_its_launch_with_an_error_and_the_next_launch_works),
        cmocka_unit_test(launches_that_are_handed_over_run_on_other_threads_at_the_same_time),
        cmocka_unit_test(a_launch_that_is_not_taken_fails),
        cmocka_unit_test(an_error_in_a_launch_that_was_handed_over_is_told),
        cmocka_unit_test(a_block_of_256_threads_with_ten_barriers_takes_less_than_a_millisecond),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
