/* Tests of the tests' own memory (tests/kernels/test_mirrors.h): a kernel sees the mirrors of buffers and
 * no other memory of a test. Most tests launch a function that records its arguments and the bytes that
 * they point to; on a GPU it reads and writes the mirrors by copies. */
#include "tests/kernels/test_kernels.h"

#include <signal.h>

typedef struct spied {
    char *inside, *at_end;
    const void *nothing, *elsewhere;
    size_t number;
    tide_adamw_segment *table;
} spied;

enum { BYTES = 1000, SEGMENTS = 3 };

static buffer watched;
static spied seen;
static tide_adamw_segment table_seen[SEGMENTS];
static unsigned char beside_seen, host_seen;

/* Records its arguments, the guard byte behind the buffer and a byte of the host's memory; writes one byte
 * before the buffer, one in it and one behind it. */
static tide_status spy(void *stream, const void *arguments)
{
    (void)stream;
    seen = *(const spied *)arguments;
    if (seen.table)
        memcpy(table_seen, seen.table, sizeof table_seen);
    const char *data = seen.at_end - BYTES;
    test_mirrors_reach(true);
    test_mirror_copy(&beside_seen, data + BYTES, 1);
    host_seen = *(const unsigned char *)watched.data;
    *(unsigned char *)watched.data = 17;
    test_mirror_copy((char *)(uintptr_t)data - 1, "a", 1);
    test_mirror_copy((char *)(uintptr_t)data, "b", 1);
    test_mirror_copy((char *)(uintptr_t)data + BYTES, "c", 1);
    test_mirrors_reach(false);
    return TIDE_OK;
}

static spied arguments_to_watched(void)
{
    char *data = watched.data;
    return (spied){.inside = data + 123, .at_end = data + BYTES, .elsewhere = &watched, .number = 4096};
}

/* Restores the two guard bytes that spy() overwrote, and frees the buffer. */
static void watched_free(void)
{
    ((char *)watched.data)[-1] = ((char *)watched.data)[BYTES] = (char)GUARD;
    buffer_free(watched);
}

static void a_kernel_is_given_the_place_in_the_mirror(void **state)
{
    watched = buffer_bytes(BYTES);
    buffer other = buffer_bytes(BYTES);
    const spied args = arguments_to_watched();
    run_kernel(spy, &args);
    assert_ptr_not_equal(seen.inside, args.inside);
    assert_int_equal((uintptr_t)seen.inside % TIDE_ALIGNMENT_BYTES,
                     (uintptr_t)args.inside % TIDE_ALIGNMENT_BYTES);
    assert_int_equal(seen.at_end - seen.inside, BYTES - 123);
#if defined(TEST_CUDA)
    struct cudaPointerAttributes attributes;
    assert_int_equal(cudaPointerGetAttributes(&attributes, seen.inside), cudaSuccess);
    assert_int_equal(attributes.type, cudaMemoryTypeDevice);
#endif
    buffer_free(other);
    watched_free();
}

static void what_points_into_no_buffer_is_left_as_it_is(void **state)
{
    buffer gone = buffer_bytes(BYTES);
    watched = buffer_bytes(BYTES);
    spied args = arguments_to_watched();
    run_kernel(spy, &args);
    assert_null(seen.nothing);
    assert_ptr_equal(seen.elsewhere, &watched);
    assert_int_equal(seen.number, 4096);
    /* args.elsewhere points into a live buffer, then, once that is freed, into none. */
    args.elsewhere = gone.data;
    run_kernel(spy, &args);
    assert_ptr_not_equal(seen.elsewhere, args.elsewhere);
    buffer_free(gone);
    run_kernel(spy, &args);
    assert_ptr_equal(seen.elsewhere, args.elsewhere);
    watched_free();
}

static void what_a_kernel_writes_comes_back_also_beside_its_buffer(void **state)
{
    watched = buffer_bytes(BYTES);
    const spied args = arguments_to_watched();
    run_kernel(spy, &args);
    const char *data = watched.data;
    assert_int_equal(beside_seen, GUARD);
    assert_int_equal(data[-1], 'a');
    assert_int_equal(data[0], 'b');
    assert_int_equal(data[BYTES], 'c');
    for (size_t i = 1; i < BYTES; i++)
        assert_int_equal((unsigned char)data[i], POISON);
    watched_free();
}

static void a_kernel_finds_garbage_in_host_memory_and_writes_there_in_vain(void **state)
{
    watched = buffer_bytes(BYTES);
    const spied args = arguments_to_watched();
    run_kernel(spy, &args);
    assert_int_equal(host_seen, TEST_HANDED_OVER);
    assert_int_not_equal(*(unsigned char *)watched.data, 17);
    watched_free();
}

static void a_table_for_the_launcher_is_moved_and_stays_on_the_host(void **state)
{
    watched = buffer_bytes(BYTES);
    buffer master = buffer_of(8, TIDE_DTYPE_FP32);
    spied args = arguments_to_watched();
    tide_adamw_segment table[SEGMENTS] = {{.param = args.inside, .master = master.data, .elements = 5}};
    table[2].param = watched.data;
    const tide_adamw_segment before = table[0];
    args.table = table;
    run_kernel_with(spy, &args, sizeof args, table, sizeof table);
    assert_ptr_equal(table_seen[0].param, seen.inside);
    assert_ptr_not_equal(table_seen[0].master, master.data);
    assert_int_equal(table_seen[0].elements, 5);
    assert_null(table_seen[1].param);
    assert_ptr_equal(table_seen[2].param, seen.at_end - BYTES);
    assert_memory_equal(&table[0], &before, sizeof before);
    buffer_free(master);
    watched_free();
}

#if defined(TEST_CUDA_ON_CPU)

/* Launches a kernel without moving its arguments: it works in the overwritten blocks, and take back
 * discards its output. A GPU would report such pointers itself. */
static void a_kernel_that_is_given_the_tests_own_memory_fails_its_test(void **state)
{
    buffer a = buffer_random(100, TIDE_DTYPE_FP32, 1.0), out = buffer_of(100, TIDE_DTYPE_FP32),
           sum = buffer_copy(out);
    const tide_add_args args = {a.data, a.data, sum.data, 100, TIDE_DTYPE_FP32};
    run_kernel(test_table()->add, &args);
    test_hand_over();
    assert_int_equal(
        test_table()->add(NULL, &(tide_add_args){a.data, a.data, out.data, 100, TIDE_DTYPE_FP32}), TIDE_OK);
    test_take_back();
    assert_true(buffer_get(sum, 7) == 2.0 * buffer_get(a, 7));
    assert_true(isnan(buffer_get(out, 7)));
    buffers_free(a, out, sum);
}

static sigjmp_buf away;

static void leave(int signal_number)
{
    siglongjmp(away, signal_number);
}

static bool faults(const volatile char *there)
{
    const struct sigaction leaves = {.sa_handler = leave};
    struct sigaction before;
    volatile bool faulted = true;
    sigaction(SIGSEGV, &leaves, &before);
    if (sigsetjmp(away, 1) == 0) {
        (void)*there;
        faulted = false;
    }
    sigaction(SIGSEGV, &before, NULL);
    return faulted;
}

static bool launcher_faults, kernel_faults, kernel_faults_behind;

/* Reads through a pointer of its arguments, first as a launcher and then as a kernel, and as a kernel also
 * behind the guard bytes; records which reads fault. */
static tide_status read_there(void *stream, const void *arguments)
{
    (void)stream;
    const spied *args = arguments;
    const char *end = args->at_end - BYTES + tide_align_up(BYTES) + GUARD_BYTES;
    launcher_faults = faults(args->inside);
    test_mirrors_reach(true);
    kernel_faults = faults(args->inside) || faults(end - 1);
    kernel_faults_behind = faults(end);
    test_mirrors_reach(false);
    return TIDE_OK;
}

static void a_launcher_that_reads_the_gpus_memory_faults_and_a_kernel_behind_it(void **state)
{
    watched = buffer_bytes(BYTES);
    const spied args = arguments_to_watched();
    run_kernel(read_there, &args);
    assert_true(launcher_faults);
    assert_false(kernel_faults);
    assert_true(kernel_faults_behind);
    watched_free();
}

/* Launches an addition and, before it returns, reads the output's first byte, to see that the kernel has
 * not run yet. */
static tide_status add_and_look(void *stream, const void *arguments)
{
    tide_add_args args = *(const tide_add_args *)arguments;
    const tide_status status = test_table()->add(stream, &args);
    test_mirrors_reach(true);
    host_seen = *(const unsigned char *)args.out;
    test_mirrors_reach(false);
    return status;
}

static void a_kernel_runs_when_its_launcher_has_returned(void **state)
{
    buffer a = buffer_random(100, TIDE_DTYPE_FP32, 1.0), out = buffer_of(100, TIDE_DTYPE_FP32);
    run_kernel(add_and_look, &(tide_add_args){a.data, a.data, out.data, 100, TIDE_DTYPE_FP32});
    assert_int_equal(host_seen, POISON);
    assert_true(buffer_get(out, 0) == 2.0 * buffer_get(a, 0));
    buffers_free(a, out);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kernel_is_given_the_place_in_the_mirror),
        cmocka_unit_test(what_points_into_no_buffer_is_left_as_it_is),
        cmocka_unit_test(what_a_kernel_writes_comes_back_also_beside_its_buffer),
        cmocka_unit_test(a_kernel_finds_garbage_in_host_memory_and_writes_there_in_vain),
        cmocka_unit_test(a_table_for_the_launcher_is_moved_and_stays_on_the_host),
#if defined(TEST_CUDA_ON_CPU)
        cmocka_unit_test(a_kernel_that_is_given_the_tests_own_memory_fails_its_test),
        cmocka_unit_test(a_launcher_that_reads_the_gpus_memory_faults_and_a_kernel_behind_it),
        cmocka_unit_test(a_kernel_runs_when_its_launcher_has_returned),
#endif
    };
    return RUN_KERNEL_TESTS(tests);
}
