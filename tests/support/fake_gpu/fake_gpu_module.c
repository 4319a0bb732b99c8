/* A libtidepool_cuda.so that needs neither GPU nor CUDA. With it the tests check everything between the
 * module's interface and the user: the loader, "auto", budgets, the pool, the program. Its devices are
 * host devices of the kind "cuda"; its kernels are a copy of the CPU's, with one thread.
 *
 * Where the processor has protection keys, only the device's own threads may touch device memory. A caller
 * or engine that reads a slot or the region, which no CPU can do on a real GPU, dies by SIGSEGV. Functions
 * on the host executor may not call kernels of the GPU's table; with "strict" the other streams may call
 * only those.
 *
 * The environment variable TIDE_FAKE_GPU holds words that change its behaviour:
 *
 *     null                        the entry function returns NULL
 *     version options ops         it states another version, or another size of tide_device_options or
 *                                 of tide_device_ops
 *     no-driver no-gpu            gpu_count fails, or finds no GPU; without them it finds 2
 *     no-vmm                      GPU 0 has no virtual memory management
 *     unprepared                  prepare fails
 *     memory=N                    free bytes that prepare reports; 8 GiB without it
 *     fail=N                      the N-th call through the interface fails, once
 *     slow                        pinning host memory takes more than a second
 *     strict                      other streams than the host executor may run kernels of this module only
 *     unasked                     opening fails unless the options leave the number of threads to the device
 */
#include "kernels/cuda/module_status.h"
#include "kernels/kernels.h"
#include "offload/module.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

TIDE_API const tide_module *tide_cuda_module(const tide_module_host *host, uint32_t version);

enum { GPUS = 2, GRANULARITY_BYTES = 2 << 20 };

static const uint64_t default_available_bytes = UINT64_C(8) << 30;
static tide_device_ops wrapped; /* the host device's table with some functions replaced */
static const tide_device_ops *host_ops;
static tide_kernels kernels;
static uint64_t chunk_bytes;
static int key = -1; /* the protection key of device memory; -1: the processor has none */
static _Atomic uint64_t calls;

/* --- TIDE_FAKE_GPU --- */

/* Returns the text behind the word in TIDE_FAKE_GPU, or NULL if the word is not there. */
static const char *word(const char *name)
{
    const char *words = getenv("TIDE_FAKE_GPU");
    for (const char *at = words; at != NULL; at = strchr(at, ' ')) {
        at += *at == ' ';
        const size_t length = strlen(name);
        if (strncmp(at, name, length) == 0 &&
            (at[length] == ' ' || at[length] == '\0' || name[length - 1] == '='))
            return at + length;
    }
    return NULL;
}

/* Each call through the interface calls this first. */
static tide_status count_call(const char *what)
{
    const char *nth = word("fail=");
    if (nth != NULL && atomic_fetch_add(&calls, 1) + 1 == strtoull(nth, NULL, 10))
        return tide_fail(TIDE_ERROR_DEVICE, "%s failed on purpose", what);
    return TIDE_OK;
}

/* --- GPUs --- */

static tide_status gpu_count(uint32_t *count)
{
    const tide_status status = count_call("counting");
    if (status != TIDE_OK)
        return status;
    if (word("no-driver") != NULL)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "no driver on purpose");
    *count = word("no-gpu") != NULL ? 0 : GPUS;
    return TIDE_OK;
}

static tide_status gpu_read(uint32_t ordinal, tide_gpu *gpu)
{
    const tide_status status = count_call("reading");
    if (status != TIDE_OK)
        return status;
    *gpu = (tide_gpu){.name = "Stand-in",
                      .pci = "0000:1b:00.0",
                      .ordinal = ordinal,
                      .capability_major = 9,
                      .multiprocessors = 132,
                      .memory_bytes = UINT64_C(16) << 30,
                      .granularity_bytes = word("no-vmm") != NULL && ordinal == 0 ? 0 : GRANULARITY_BYTES,
                      .numa_node = -1,
                      .driver = 13000,
                      .runtime = 12040};
    return TIDE_OK;
}

static tide_status adamw(void *stream, const void *arguments);
static tide_status restore(void *stream, const void *arguments);
static tide_status cast(void *stream, const void *arguments);

static tide_status prepare(uint32_t ordinal, const tide_kernels **table, uint64_t *available_bytes)
{
    const tide_status status = count_call("preparing");
    if (status != TIDE_OK)
        return status;
    if (word("unprepared") != NULL)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "cuda:%u is not ready on purpose", ordinal);
    kernels = *tide_kernels_cpu();
    kernels.name = "cuda";
    kernels.adamw = adamw;
    kernels.restore = restore;
    kernels.cast = cast;
    const char *memory = word("memory=");
    if (table != NULL)
        *table = &kernels;
    if (available_bytes != NULL)
        *available_bytes = memory != NULL ? strtoull(memory, NULL, 10) : default_available_bytes;
    return TIDE_OK;
}

/* --- the device --- */

/* Restricts the memory to threads that the device has created. */
static tide_status protect(void *address, uint64_t bytes)
{
    if (key < 0 || pkey_mprotect(address, bytes, PROT_READ | PROT_WRITE, key) == 0)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_INTERNAL, "the fake GPU can't protect %llu bytes", (unsigned long long)bytes);
}

static tide_status slots_create(tide_device *device, tide_tier tier, uint32_t count)
{
    tide_status status = host_ops->slots_create(device, tier, count);
    for (uint32_t i = 0; tier == TIDE_TIER_DEVICE && i < count && status == TIDE_OK; i++)
        status = protect(host_ops->slot_address(device, tier, i), chunk_bytes);
    return status;
}

static tide_status region_create(tide_device *device, uint64_t bytes, void **address)
{
    const tide_status status = host_ops->region_create(device, bytes, address);
    const uint64_t page = 4096;
    return status == TIDE_OK ? protect(*address, (bytes + page - 1) / page * page) : status;
}

static tide_status map(tide_device *device, uint32_t slot, void *place)
{
    const tide_status status = host_ops->map(device, slot, place);
    return status == TIDE_OK ? protect(place, chunk_bytes) : status;
}

/* --- launches --- */

static _Thread_local bool in_executor; /* this thread is running a function of the host executor */

typedef struct executor_args {
    tide_kernel fn;
    char arguments[TIDE_LAUNCH_ARGUMENTS_MAX_BYTES - sizeof(tide_kernel)];
} executor_args;

static tide_status run_in_executor(void *stream, const void *arguments)
{
    const executor_args *executor = arguments;
    in_executor = true;
    const tide_status status = executor->fn(stream, executor->arguments);
    in_executor = false;
    return status;
}

static tide_status launch_on_executor(tide_device *device, const tide_work *work, tide_kernel fn,
                                      const void *arguments, size_t argument_bytes)
{
    executor_args executor = {.fn = fn};
    if (argument_bytes > sizeof executor.arguments)
        return tide_fail(TIDE_ERROR_INTERNAL, "the fake GPU has no room for %zu bytes", argument_bytes);
    memcpy(executor.arguments, arguments, argument_bytes);
    return host_ops->launch(device, TIDE_STREAM_HOST, work, run_in_executor, &executor, sizeof executor);
}

/* Kernels of the GPU's table that the host executor could call by mistake instead of the CPU's run through
 * this function. */
static tide_status not_in_executor(tide_kernel kernel, const char *name, void *stream, const void *arguments)
{
    if (in_executor)
        return tide_fail(TIDE_ERROR_INTERNAL, "the host executor calls the GPU's %s", name);
    return kernel(stream, arguments);
}

static tide_status adamw(void *stream, const void *arguments)
{
    return not_in_executor(tide_kernels_cpu()->adamw, "adamw", stream, arguments);
}

static tide_status restore(void *stream, const void *arguments)
{
    return not_in_executor(tide_kernels_cpu()->restore, "restore", stream, arguments);
}

static tide_status cast(void *stream, const void *arguments)
{
    return not_in_executor(tide_kernels_cpu()->cast, "cast", stream, arguments);
}

static bool is_ours(tide_kernel fn)
{
    union {
        tide_kernel call;
        const void *address;
    } theirs = {.call = fn};
    Dl_info here, there;
    return dladdr(&wrapped, &here) != 0 && dladdr(theirs.address, &there) != 0 &&
           here.dli_fbase == there.dli_fbase;
}

static tide_status launch(tide_device *device, tide_stream stream, const tide_work *work, tide_kernel fn,
                          const void *arguments, size_t argument_bytes)
{
    if (stream == TIDE_STREAM_HOST)
        return launch_on_executor(device, work, fn, arguments, argument_bytes);
    if (word("strict") != NULL && !is_ours(fn))
        return tide_fail(TIDE_ERROR_INTERNAL, "%s on stream %s is no kernel of the GPU's", work->label,
                         tide_stream_name(stream));
    return host_ops->launch(device, stream, work, fn, arguments, argument_bytes);
}

static void pin_slowly(const tide_device_options *options)
{
    const struct timespec pause = {.tv_nsec = 300000000};
    for (uint64_t i = 0; i <= 4 && options->progress != NULL; i++) {
        options->progress(options->progress_context, "pinned host slots", options->host_memory_bytes / 4 * i,
                          options->host_memory_bytes);
        nanosleep(&pause, NULL);
    }
}

static tide_status options_check(const tide_device_options *options)
{
    if (options->checks.hazard_check || options->checks.guard || options->checks.fault_handler ||
        options->checks.delay_max_us > 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "a GPU can't check on purpose");
    if (options->link_bytes_per_second > 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "a GPU can't be slow on purpose");
    if (word("unasked") != NULL && options->threads != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "nobody asked for %u threads", options->threads);
    return TIDE_OK;
}

/* The device creates its threads in here, and they inherit access to its memory. The caller then gives up
 * its own access, and threads that it creates later inherit that. */
static tide_status open_protected(const tide_device_options *options, tide_device **device)
{
    if (key < 0)
        key = pkey_alloc(0, 0);
    if (key >= 0 && pkey_set(key, 0) != 0)
        return tide_fail(TIDE_ERROR_INTERNAL, "the fake GPU can't open its memory");
    const tide_status status = tide_device_host_open(options, device);
    if (key >= 0)
        (void)pkey_set(key, PKEY_DISABLE_ACCESS);
    return status;
}

static tide_status open_device(uint32_t ordinal, const tide_device_options *options, tide_device **device)
{
    (void)ordinal;
    tide_status status = count_call("opening");
    if (status == TIDE_OK)
        status = options_check(options);
    if (status != TIDE_OK)
        return status;
    if (word("slow") != NULL)
        pin_slowly(options);
    status = open_protected(options, device);
    if (status != TIDE_OK)
        return status;
    host_ops = (*device)->ops;
    wrapped = *host_ops;
    wrapped.kind = "cuda";
    wrapped.slots_create = slots_create;
    wrapped.region_create = region_create;
    wrapped.map = map;
    wrapped.launch = launch;
    chunk_bytes = options->chunk_bytes;
    (*device)->ops = &wrapped;
    return TIDE_OK;
}

/* --- the interface --- */

const tide_module *tide_cuda_module(const tide_module_host *host, uint32_t version)
{
    static tide_module module;
    tide_module_status_begin(host);
    module = (tide_module){.version = TIDE_MODULE_VERSION + (word("version") != NULL),
                           .options_bytes = sizeof(tide_device_options) + (word("options") != NULL),
                           .ops_bytes = sizeof(tide_device_ops) - (word("ops") != NULL),
                           .architectures = "sm_80 sm_90 ptx_90",
                           .gpu_count = gpu_count,
                           .gpu_read = gpu_read,
                           .prepare = prepare,
                           .open = open_device};
    return word("null") != NULL || version != TIDE_MODULE_VERSION ? NULL : &module;
}
