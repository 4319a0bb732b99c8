/* The module's interface (kernels/cuda/module.c) on a fake CUDA runtime: which GPUs and hosts it accepts,
 * and its messages for the others. The CUDA device and cuBLASLt have tests of their own; here they are
 * fakes that count calls. */
#include "kernels/cuda/launchers.h"
#include "offload/cuda/cuda_device.h"
#include "offload/module.h"
#include "tests/gpu/fake_cudart.h"
#include "tests/support/assert_ok.h"

#include <cuda_runtime_api.h>
#include <stdio.h>

const tide_module *tide_cuda_module(const tide_module_host *host, uint32_t version);

/* --- fakes behind the interface --- */

static const tide_kernels fake_gpu_kernels = {.name = "fake"};
static tide_device fake_gpu_device;
static int matmul_opens, device_opens;
static tide_status matmul_answer;

const tide_kernels *tide_kernels_cuda(void)
{
    return &fake_gpu_kernels;
}

tide_status tide_cuda_matmul_open(void)
{
    matmul_opens++;
    return matmul_answer == TIDE_OK ? TIDE_OK : tide_fail(matmul_answer, "no cuBLASLt today");
}

tide_status tide_device_cuda_open(const tide_device_options *options, uint32_t ordinal, tide_device **device)
{
    assert_non_null(options);
    assert_int_equal(ordinal, 1);
    device_opens++;
    *device = &fake_gpu_device;
    return TIDE_OK;
}

/* --- the process that opens the module --- */

static char message[1024];

static tide_status host_fail(tide_status status, const char *text)
{
    snprintf(message, sizeof message, "%s", text);
    return status;
}

static const char *host_message(void)
{
    return message;
}

static const tide_module_host host = {.fail = host_fail, .message = host_message};

static const tide_module *module_on(fake_cudart_options options)
{
    options.gpu = -1;
    fake_cudart_start(&options);
    message[0] = 0;
    matmul_opens = device_opens = 0;
    matmul_answer = TIDE_OK;
    return tide_cuda_module(&host, TIDE_MODULE_VERSION);
}

static fake_cudart_options two_gpus(void)
{
    fake_cudart_options options = fake_cudart_defaults();
    options.gpus = 2;
    options.capability = 89;
    return options;
}

static void assert_says(const char *words)
{
    if (strstr(message, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", message, words);
}

/* Checks that prepare() fails with this status and message and sets no output. */
static void assert_refused(const tide_module *module, uint32_t ordinal, tide_status expected,
                           const char *words)
{
    const tide_kernels *kernels = NULL;
    uint64_t available = 12345;
    assert_int_equal(module->prepare(ordinal, &kernels, &available), expected);
    assert_null(kernels);
    assert_int_equal(available, 12345);
    assert_says(words);
}

/* --- finding GPUs --- */

static void another_version_is_not_served(void **state)
{
    assert_null(tide_cuda_module(&host, TIDE_MODULE_VERSION + 1));
    const tide_module *module = module_on(two_gpus());
    assert_int_equal(module->version, TIDE_MODULE_VERSION);
    assert_int_equal(module->options_bytes, sizeof(tide_device_options));
    assert_int_equal(module->ops_bytes, sizeof(tide_device_ops));
    assert_string_equal(module->architectures, TIDE_CUDA_ARCHITECTURES);
}

static void a_machine_without_a_driver_is_told_so(void **state)
{
    fake_cudart_options options = two_gpus();
    uint32_t count = 12345;
    options.driver = 0;
    const tide_module *module = module_on(options);
    assert_int_equal(module->gpu_count(&count), TIDE_ERROR_UNSUPPORTED);
    assert_int_equal(count, 12345);
    assert_says("no NVIDIA driver");
    assert_refused(module, 0, TIDE_ERROR_UNSUPPORTED, "no NVIDIA driver");
}

static void a_driver_too_old_is_named_with_what_is_needed(void **state)
{
    fake_cudart_options options = two_gpus();
    uint32_t count;
    options.driver = 11040;
    assert_int_equal(module_on(options)->gpu_count(&count), TIDE_ERROR_UNSUPPORTED);
    assert_says("serves CUDA 11.4");
}

static void no_gpu_at_all_is_a_count_of_none(void **state)
{
    fake_cudart_options options = fake_cudart_defaults();
    tide_gpu gpu;
    uint32_t count = 12345;
    options.gpus = 0;
    const tide_module *module = module_on(options);
    assert_int_equal(module->gpu_count(&count), TIDE_OK);
    assert_int_equal(count, 0);
    assert_int_equal(module->gpu_read(0, &gpu), TIDE_ERROR_ARGUMENT);
    assert_says("no cuda:0: CUDA sees 0 GPUs");
}

static void a_gpu_is_described_without_a_context(void **state)
{
    fake_cudart_options options = two_gpus();
    tide_gpu gpu;
    options.memory_bytes = UINT64_C(3) << 30;
    const tide_module *module = module_on(options);
    assert_int_equal(module->gpu_read(1, &gpu), TIDE_OK);
    assert_int_equal(gpu.ordinal, 1);
    assert_true(strlen(gpu.name) > 0);
    assert_int_equal(gpu.capability_major, 8);
    assert_int_equal(gpu.capability_minor, 9);
    assert_int_equal(gpu.memory_bytes, UINT64_C(3) << 30);
    assert_int_equal(gpu.granularity_bytes, FAKE_CUDART_GRANULARITY);
    assert_int_equal(strlen(gpu.pci), strlen("0000:00:00.0"));
    assert_int_equal(gpu.runtime, CUDART_VERSION);
    assert_int_equal(fake_cudart_count("cudaFree") + fake_cudart_count("cudaSetDevice"), 0);
}

static void a_gpu_without_vmm_is_listed_and_refused_by_name(void **state)
{
    fake_cudart_options options = two_gpus();
    tide_gpu gpu;
    options.no_vmm = true;
    const tide_module *module = module_on(options);
    assert_int_equal(module->gpu_read(1, &gpu), TIDE_OK);
    assert_int_equal(gpu.granularity_bytes, 0);
    assert_refused(module, 1, TIDE_ERROR_UNSUPPORTED, "virtual memory management");
    assert_says("cuda:1");
    assert_says(gpu.name);
}

static void a_driver_without_a_call_is_refused_by_the_calls_name(void **state)
{
    fake_cudart_options options = two_gpus();
    tide_gpu gpu;
    options.missing_symbol = "cuMemSetAccess";
    const tide_module *module = module_on(options);
    assert_int_equal(module->gpu_read(1, &gpu), TIDE_OK);
    assert_int_equal(gpu.granularity_bytes, 0);
    assert_refused(module, 1, TIDE_ERROR_UNSUPPORTED, "cuMemSetAccess");
}

static void a_look_up_that_fails_is_no_missing_call(void **state)
{
    tide_gpu gpu;
    const tide_module *module = module_on(two_gpus());
    fake_cudart_fail("cudaGetDriverEntryPointByVersion", 3, cudaErrorUnknown, true);
    assert_int_equal(module->gpu_read(1, &gpu), TIDE_ERROR_DEVICE);
    assert_non_null(strstr(message, "cudaErrorUnknown"));
}

/* This test is built with code for "sm_75 sm_89 ptx_100". */
static void a_gpu_that_no_code_runs_on_is_refused_with_what_there_is(void **state)
{
    static const struct {
        int capability;
        bool runs;
    } cases[] = {{70, false}, {75, true},  {80, false}, {86, false}, {89, true},
                 {90, false}, {100, true}, {103, true}, {120, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake_cudart_options options = two_gpus();
        options.capability = cases[i].capability;
        const tide_module *module = module_on(options);
        matmul_answer = TIDE_ERROR_DEVICE; /* makes prepare() fail behind the check of the architecture */
        assert_int_equal(module->prepare(1, NULL, NULL),
                         cases[i].runs ? TIDE_ERROR_DEVICE : TIDE_ERROR_UNSUPPORTED);
        assert_says(cases[i].runs ? "no cuBLASLt today" : "sm_75 sm_89 ptx_100");
    }
}

/* --- prepare: nothing is prepared before these tests; after them the process has its GPU --- */

/* The N-th call fails, for N = 1, 2, 3... until a run has no fault and succeeds. */
static void every_failing_call_is_reported_and_a_later_try_succeeds(void **state)
{
    uint64_t calls = 0;
    for (bool failed = true; failed; calls++) {
        const tide_module *module = module_on(two_gpus());
        const tide_kernels *kernels = NULL;
        uint64_t available = 12345;
        fake_cudart_fail(NULL, calls + 1, cudaErrorUnknown, true);
        const tide_status status = module->prepare(1, &kernels, &available);
        failed = fake_cudart_has_failed();
        assert_true(failed == (status != TIDE_OK));
        assert_true(failed == (kernels == NULL));
        assert_true(failed == (available == 12345));
        assert_true(failed == (message[0] != 0));
    }
    assert_true(calls > 15);
}

static void what_is_available_leaves_the_reserve(void **state)
{
    fake_cudart_options options = two_gpus();
    const tide_kernels *kernels = NULL;
    uint64_t available = 0;
    options.memory_bytes = UINT64_C(2) << 30;
    const tide_module *module = module_on(options);
    assert_int_equal(module->prepare(1, &kernels, &available), TIDE_OK);
    assert_int_equal(available, (UINT64_C(2) << 30) - TIDE_MODULE_RESERVE_BYTES);
    assert_ptr_equal(kernels, &fake_gpu_kernels);
    options.memory_bytes = UINT64_C(256) << 20;
    module = module_on(options);
    assert_int_equal(module->prepare(1, NULL, &available), TIDE_OK);
    assert_int_equal(available, 0);
}

static void a_process_keeps_to_its_gpu(void **state)
{
    const tide_module *module = module_on(two_gpus());
    assert_int_equal(module->prepare(1, NULL, NULL), TIDE_OK);
    assert_int_equal(matmul_opens, 0);
    assert_refused(module, 0, TIDE_ERROR_UNSUPPORTED, "cuda:1 already");
}

static void opening_prepares_and_gives_the_device(void **state)
{
    const tide_module *module = module_on(two_gpus());
    const tide_device_options options = {.chunk_bytes = 2 << 20};
    tide_device *device = NULL;
    assert_int_equal(module->open(1, &options, &device), TIDE_OK);
    assert_ptr_equal(device, &fake_gpu_device);
    device = NULL;
    assert_int_equal(module->open(0, &options, &device), TIDE_ERROR_UNSUPPORTED);
    assert_null(device);
    assert_int_equal(device_opens, 1);
}

int main(void)
{
    /* The order matters: prepare succeeds once per process. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_version_is_not_served),
        cmocka_unit_test(a_machine_without_a_driver_is_told_so),
        cmocka_unit_test(a_driver_too_old_is_named_with_what_is_needed),
        cmocka_unit_test(no_gpu_at_all_is_a_count_of_none),
        cmocka_unit_test(a_gpu_is_described_without_a_context),
        cmocka_unit_test(a_gpu_without_vmm_is_listed_and_refused_by_name),
        cmocka_unit_test(a_driver_without_a_call_is_refused_by_the_calls_name),
        cmocka_unit_test(a_look_up_that_fails_is_no_missing_call),
        cmocka_unit_test(a_gpu_that_no_code_runs_on_is_refused_with_what_there_is),
        cmocka_unit_test(every_failing_call_is_reported_and_a_later_try_succeeds),
        cmocka_unit_test(what_is_available_leaves_the_reserve),
        cmocka_unit_test(a_process_keeps_to_its_gpu),
        cmocka_unit_test(opening_prepares_and_gives_the_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
