/* Tests of the fake CUDA runtime: it keeps CUDA's rules and notices callers that break them. Otherwise a
 * test that passes on the fake would prove little. */
#include "tests/gpu/fake_cudart.h"
#include "tests/support/assert_ok.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <time.h>

enum { UNIT = FAKE_CUDART_GRANULARITY };

#define assert_cuda(call) assert_int_equal((int)(call), 0)

static struct {
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 free;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
} driver;

static const CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                               .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
static const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE},
                                       .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};

static void find(const char *name, void *entry)
{
    enum cudaDriverEntryPointQueryResult found;
    void *address;
    assert_cuda(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found));
    assert_int_equal(found, cudaDriverEntryPointSuccess);
    memcpy(entry, &address, sizeof address);
}

static int begin(void **state)
{
    const fake_cudart_options options = fake_cudart_defaults();
    fake_cudart_start(&options);
    find("cuMemAddressReserve", &driver.reserve);
    find("cuMemAddressFree", &driver.free);
    find("cuMemCreate", &driver.create);
    find("cuMemRelease", &driver.release);
    find("cuMemMap", &driver.map);
    find("cuMemUnmap", &driver.unmap);
    find("cuMemSetAccess", &driver.set_access);
    return 0;
}

static void expect_clean(void)
{
    char text[256];
    if (fake_cudart_live(text, sizeof text) > 0 || fake_cudart_misuse(text, sizeof text) > 0)
        fail_msg("%s", text);
}

static void expect_misuse(const char *words)
{
    char text[256];
    assert_int_equal(fake_cudart_misuse(text, sizeof text), 1);
    if (strstr(text, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", text, words);
}

static char *bytes_at(CUdeviceptr address)
{
    return (char *)(uintptr_t)address;
}

/* --- memory --- */

static void mappings_of_one_handle_hold_the_same_bytes(void **state)
{
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle;
    assert_cuda(driver.reserve(&range, 4 * UNIT, 0, 0, 0));
    assert_cuda(driver.create(&handle, UNIT, &properties, 0));
    assert_cuda(driver.map(range, UNIT, 0, handle, 0));
    assert_cuda(driver.map(range + 2 * UNIT, UNIT, 0, handle, 0));
    assert_cuda(driver.set_access(range, UNIT, &access, 1));
    assert_cuda(driver.set_access(range + 2 * UNIT, UNIT, &access, 1));
    assert_int_equal((unsigned char)bytes_at(range)[5], 0xA5);
    bytes_at(range)[5] = 7;
    assert_int_equal(bytes_at(range + 2 * UNIT)[5], 7);
    assert_cuda(driver.release(handle));
    assert_cuda(driver.unmap(range, UNIT));
    /* The handle is released, but its last mapping keeps the memory. */
    assert_int_equal(bytes_at(range + 2 * UNIT)[5], 7);
    assert_cuda(driver.unmap(range + 2 * UNIT, UNIT));
    assert_cuda(driver.free(range, 4 * UNIT));
    expect_clean();
}

static void device_memory_has_an_end_and_comes_back(void **state)
{
    fake_cudart_options options = fake_cudart_defaults();
    options.memory_bytes = 2 * UNIT;
    fake_cudart_start(&options);
    CUmemGenericAllocationHandle handle, other;
    void *address;
    size_t free_bytes, total_bytes;
    assert_cuda(driver.create(&handle, UNIT, &properties, 0));
    assert_int_equal(driver.create(&other, 2 * UNIT, &properties, 0), CUDA_ERROR_OUT_OF_MEMORY);
    assert_cuda(cudaMalloc(&address, UNIT));
    assert_int_equal(cudaMalloc(&address, 1), cudaErrorMemoryAllocation);
    assert_cuda(driver.release(handle));
    assert_cuda(cudaMemGetInfo(&free_bytes, &total_bytes));
    assert_int_equal(free_bytes, UNIT);
    assert_cuda(cudaFree(address));
    expect_clean();
}

/* Each line breaks one of the driver's rules. */
static void breaches_of_the_drivers_rules_are_refused_and_noted(void **state)
{
    CUdeviceptr range;
    CUmemGenericAllocationHandle handle;
    size_t misuses = 0;
    char text[256];
    assert_cuda(driver.reserve(&range, 4 * UNIT, 0, 0, 0));
    assert_cuda(driver.create(&handle, UNIT, &properties, 0));
    assert_cuda(driver.map(range, UNIT, 0, handle, 0));
#define BREACH(call)                                                                                         \
    assert_int_equal((call), CUDA_ERROR_INVALID_VALUE);                                                      \
    assert_int_equal(fake_cudart_misuse(text, sizeof text), ++misuses)
    CUdeviceptr other;
    CUmemGenericAllocationHandle more;
    BREACH(driver.reserve(&other, UNIT / 2, 0, 0, 0));
    BREACH(driver.create(&more, UNIT + 1, &properties, 0));
    BREACH(driver.map(range, UNIT, 0, handle, 0));               /* mapped already */
    BREACH(driver.map(range + UNIT + 4096, UNIT, 0, handle, 0)); /* misaligned */
    BREACH(driver.map(range + 4 * UNIT, UNIT, 0, handle, 0));    /* not reserved */
    BREACH(driver.map(range + UNIT, 2 * UNIT, 0, handle, 0));    /* larger than the handle */
    BREACH(driver.map(range + UNIT, UNIT, UNIT, handle, 0));     /* an offset other than 0 */
    BREACH(driver.map(range + UNIT, UNIT, 0, handle + 1, 0));    /* no such handle */
    BREACH(driver.set_access(range, 2 * UNIT, &access, 1));      /* half of the range is not mapped */
    BREACH(driver.unmap(range, UNIT / 2));                       /* a part of a mapping */
    BREACH(driver.unmap(range + UNIT, UNIT));                    /* not mapped */
    BREACH(driver.free(range, 4 * UNIT));                        /* the reservation has a mapping */
    assert_cuda(driver.unmap(range, UNIT));
    BREACH(driver.free(range, 2 * UNIT)); /* a part of the reservation */
    assert_cuda(driver.free(range, 4 * UNIT));
    BREACH(driver.free(range, 4 * UNIT)); /* freed before */
    assert_cuda(driver.release(handle));
    BREACH(driver.release(handle));
#undef BREACH
    assert_int_equal(fake_cudart_live(text, sizeof text), 0);
}

static void what_is_live_is_counted_by_kind(void **state)
{
    char text[256];
    cudaEvent_t events[2];
    cudaStream_t stream;
    void *address, *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_cuda(cudaEventCreateWithFlags(&events[0], cudaEventDisableTiming));
    assert_cuda(cudaEventCreateWithFlags(&events[1], cudaEventDisableTiming));
    assert_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    assert_cuda(cudaMalloc(&address, 100));
    assert_cuda(cudaHostRegister(page, 4096, cudaHostRegisterDefault));
    assert_int_equal(cudaHostRegister(page, 100, cudaHostRegisterDefault),
                     cudaErrorHostMemoryAlreadyRegistered);
    assert_int_equal(fake_cudart_live(text, sizeof text), 5);
    assert_string_equal(text, "1 stream, 2 events, 1 allocation, 1 registration");
    assert_cuda(cudaHostUnregister(page));
    assert_cuda(cudaFree(address));
    assert_cuda(cudaStreamDestroy(stream));
    assert_cuda(cudaEventDestroy(events[0]));
    assert_cuda(cudaEventDestroy(events[1]));
    assert_int_equal(munmap(page, 4096), 0);
    expect_clean();
    assert_int_equal(cudaEventDestroy(events[1]), cudaErrorInvalidResourceHandle);
    expect_misuse("an event that is no more");
}

/* --- streams --- */

typedef struct fixture {
    cudaStream_t streams[2];
    cudaEvent_t event, timed[2];
    char *device, *host;
    atomic_bool open;
} fixture;

static fixture fixture_make(void)
{
    fixture it = {0};
    for (int i = 0; i < 2; i++) {
        assert_cuda(cudaStreamCreateWithFlags(&it.streams[i], cudaStreamNonBlocking));
        assert_cuda(cudaEventCreateWithFlags(&it.timed[i], cudaEventDefault));
    }
    assert_cuda(cudaEventCreateWithFlags(&it.event, cudaEventDisableTiming));
    assert_cuda(cudaMalloc((void **)&it.device, 4096));
    assert_cuda(cudaHostAlloc((void **)&it.host, 4096, cudaHostAllocDefault));
    return it;
}

static int wait_open(void *arguments)
{
    atomic_bool *open = *(atomic_bool **)arguments;
    while (!atomic_load(open))
        ;
    return 0;
}

static void hold(fixture *it, int stream)
{
    atomic_bool *open = &it->open;
    assert_int_equal(fake_cudart_launch(it->streams[stream], wait_open, &open, sizeof open), 0);
}

static void copies_run_later_and_in_order(void **state)
{
    fixture it = fixture_make();
    hold(&it, 0);
    memset(it.host, 1, 4096);
    assert_cuda(cudaMemcpyAsync(it.device, it.host, 4096, cudaMemcpyHostToDevice, it.streams[0]));
    assert_cuda(cudaEventRecord(it.event, it.streams[0]));
    assert_int_equal(cudaEventQuery(it.event), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    /* The copy has not run yet. */
    memset(it.host, 2, 4096);
    atomic_store(&it.open, true);
    assert_cuda(cudaEventSynchronize(it.event));
    assert_int_equal(it.device[4095], 2);
}

static void a_wait_captures_the_latest_record_and_none_if_there_is_none(void **state)
{
    fixture it = fixture_make();
    assert_cuda(cudaStreamWaitEvent(it.streams[1], it.event, 0));
    assert_cuda(cudaStreamSynchronize(it.streams[1]));
    assert_cuda(cudaEventRecord(it.event, it.streams[1]));
    assert_cuda(cudaStreamWaitEvent(it.streams[1], it.event, 0));
    hold(&it, 0);
    /* This later record does not extend the wait above. */
    assert_cuda(cudaEventRecord(it.event, it.streams[0]));
    assert_cuda(cudaStreamSynchronize(it.streams[1]));
    assert_cuda(cudaStreamWaitEvent(it.streams[1], it.event, 0));
    assert_int_equal(cudaStreamQuery(it.streams[1]), cudaErrorNotReady);
    atomic_store(&it.open, true);
    assert_cuda(cudaStreamSynchronize(it.streams[1]));
}

static int sleep_a_while(void *arguments)
{
    (void)arguments;
    return nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

static void times_are_those_of_execution(void **state)
{
    fixture it = fixture_make();
    float ms;
    assert_cuda(cudaEventRecord(it.timed[0], it.streams[0]));
    assert_int_equal(fake_cudart_launch(it.streams[0], sleep_a_while, NULL, 0), 0);
    assert_cuda(cudaEventRecord(it.timed[1], it.streams[0]));
    assert_int_equal(cudaEventElapsedTime(&ms, it.timed[0], it.timed[1]), cudaErrorNotReady);
    assert_cuda(cudaStreamSynchronize(it.streams[0]));
    assert_cuda(cudaEventElapsedTime(&ms, it.timed[0], it.timed[1]));
    assert_true(ms >= 19.99f && ms < 2000.0f);
    assert_int_equal(cudaEventElapsedTime(&ms, it.timed[0], it.event), cudaErrorInvalidResourceHandle);
}

/* --- misuse and failures --- */

static void freeing_under_an_enqueued_copy_is_misuse_and_an_illegal_address(void **state)
{
    fixture it = fixture_make();
    hold(&it, 0);
    assert_cuda(cudaMemcpyAsync(it.device, it.host, 4096, cudaMemcpyHostToDevice, it.streams[0]));
    assert_cuda(cudaFree(it.device));
    expect_misuse("cudaFree under an enqueued copy");
    atomic_store(&it.open, true);
    assert_int_equal(cudaStreamSynchronize(it.streams[0]), cudaErrorIllegalAddress);
    /* The error is sticky. */
    assert_int_equal(cudaEventQuery(it.event), cudaErrorIllegalAddress);
}

static void copies_beyond_an_allocation_or_of_pageable_memory_are_misuse(void **state)
{
    fixture it = fixture_make();
    char text[256], pageable[16];
    assert_cuda(cudaMemcpyAsync(it.device + 1, it.host, 4096, cudaMemcpyHostToDevice, it.streams[0]));
    expect_misuse("which is not device memory");
    assert_int_equal(cudaPeekAtLastError(), cudaErrorIllegalAddress);
    begin(state);
    it = fixture_make();
    assert_cuda(cudaMemcpyAsync(pageable, it.device, 16, cudaMemcpyDeviceToHost, it.streams[0]));
    assert_int_equal(fake_cudart_misuse(text, sizeof text), 1);
}

static void a_command_that_fails_breaks_everything_after_it(void **state)
{
    fixture it = fixture_make();
    memset(it.host, 1, 4096);
    fake_cudart_fail_command(2, cudaErrorLaunchFailure);
    for (int i = 0; i < 3; i++)
        (void)!cudaMemcpyAsync(it.device + i, it.host, 1, cudaMemcpyHostToDevice, it.streams[0]);
    assert_int_equal(cudaStreamSynchronize(it.streams[0]), cudaErrorLaunchFailure);
    assert_int_equal(it.device[0], 1);
    assert_int_equal((unsigned char)it.device[1], 0xA5);
    assert_int_equal((unsigned char)it.device[2], 0xA5);
    /* The call returns the sticky error, but frees the memory. */
    assert_int_equal(cudaFree(it.device), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
    assert_int_equal(cudaGetLastError(), cudaErrorLaunchFailure);
}

static void the_nth_call_of_a_name_fails_once(void **state)
{
    void *address[3];
    fake_cudart_fail("cudaMalloc", 2, cudaErrorMemoryAllocation, false);
    assert_cuda(cudaMalloc(&address[0], 1));
    assert_int_equal(cudaMalloc(&address[1], 1), cudaErrorMemoryAllocation);
    assert_cuda(cudaMalloc(&address[1], 1));
    assert_true(fake_cudart_has_failed());
    assert_int_equal(fake_cudart_count("cudaMalloc"), 3);
    assert_cuda(cudaFree(address[0]));
    assert_cuda(cudaFree(address[1]));
    expect_clean();
}

static void another_gpu_than_the_threads_own_is_misuse(void **state)
{
    fake_cudart_options options = fake_cudart_defaults();
    void *address;
    options.gpus = 2;
    options.gpu = 1;
    fake_cudart_start(&options);
    assert_cuda(cudaSetDevice(1));
    assert_cuda(cudaMalloc(&address, 1));
    assert_cuda(cudaFree(address));
    expect_clean();
    assert_cuda(cudaSetDevice(0));
    assert_cuda(cudaMalloc(&address, 1));
    expect_misuse("cudaMalloc is called where the thread's GPU is 0, not 1");
}

static void no_driver_is_an_insufficient_one(void **state)
{
    fake_cudart_options options = fake_cudart_defaults();
    int count = 7;
    void *entry = &count;
    enum cudaDriverEntryPointQueryResult found;
    options.driver = 0;
    fake_cudart_start(&options);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
    assert_int_equal(cudaGetDriverEntryPointByVersion("cuMemMap", &entry, 12000, cudaEnableDefault, &found),
                     cudaErrorInsufficientDriver);
    assert_null(entry);
}

#define rule(name) cmocka_unit_test_setup(name, begin)

int main(void)
{
    const struct CMUnitTest tests[] = {
        rule(mappings_of_one_handle_hold_the_same_bytes),
        rule(device_memory_has_an_end_and_comes_back),
        rule(breaches_of_the_drivers_rules_are_refused_and_noted),
        rule(what_is_live_is_counted_by_kind),
        rule(copies_run_later_and_in_order),
        rule(a_wait_captures_the_latest_record_and_none_if_there_is_none),
        rule(times_are_those_of_execution),
        rule(freeing_under_an_enqueued_copy_is_misuse_and_an_illegal_address),
        rule(copies_beyond_an_allocation_or_of_pageable_memory_are_misuse),
        rule(a_command_that_fails_breaks_everything_after_it),
        rule(the_nth_call_of_a_name_fails_once),
        rule(another_gpu_than_the_threads_own_is_misuse),
        rule(no_driver_is_an_insufficient_one),
    };
    const int failed = cmocka_run_group_tests_name("fake CUDA runtime", tests, NULL, NULL);
    const fake_cudart_options options = fake_cudart_defaults();
    /* destroys everything that the tests left */
    fake_cudart_start(&options);
    return failed;
}
