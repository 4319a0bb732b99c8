/* The parts of the fake runtime that every call needs: counts, injected failures and errors; also GPUs,
 * their properties, and the functions by which tests control the fake. */
#include "tests/gpu/fake_cudart_state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULTS                                                                                             \
    {                                                                                                        \
        .gpus = 1, .driver = 99000, .capability = 90, .memory_bytes = 256u << 20                             \
    }

fake_state fake = {
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .changed = PTHREAD_COND_INITIALIZER,
    .options = DEFAULTS,
};
_Thread_local int fake_last_error;
/* fake_cudart_start() does not reset it, since it could not reset other threads'. */
static _Thread_local int current_gpu;

/* --- controls --- */

fake_cudart_options fake_cudart_defaults(void)
{
    return (fake_cudart_options)DEFAULTS;
}

void fake_cudart_start(const fake_cudart_options *options)
{
    fake_streams_destroy();
    pthread_mutex_lock(&fake.lock);
    fake_memory_destroy();
    fake.options = *options;
    fake.fault = (fake_fault){0};
    fake.command_countdown = 0;
    fake.sticky = 0;
    fake.calls_count = fake.commands = 0;
    memset(fake.calls, 0, sizeof fake.calls);
    fake.misuse = 0;
    fake.misuse_text[0] = '\0';
    pthread_mutex_unlock(&fake.lock);
    fake_last_error = 0;
}

void fake_cudart_fail(const char *name, uint64_t countdown, int error, bool refuses)
{
    pthread_mutex_lock(&fake.lock);
    fake.fault = (fake_fault){.name = name, .countdown = countdown, .error = error, .refuses = refuses};
    pthread_mutex_unlock(&fake.lock);
}

bool fake_cudart_has_failed(void)
{
    pthread_mutex_lock(&fake.lock);
    const bool has_failed = fake.fault.has_failed;
    pthread_mutex_unlock(&fake.lock);
    return has_failed;
}

void fake_cudart_fail_command(uint64_t countdown, int error)
{
    pthread_mutex_lock(&fake.lock);
    fake.command_countdown = countdown;
    fake.command_error = error;
    pthread_mutex_unlock(&fake.lock);
}

void fake_cudart_break(int error)
{
    pthread_mutex_lock(&fake.lock);
    fake.sticky = error;
    pthread_cond_broadcast(&fake.changed);
    pthread_mutex_unlock(&fake.lock);
}

uint64_t fake_cudart_count(const char *name)
{
    pthread_mutex_lock(&fake.lock);
    uint64_t count = name == NULL ? fake.calls_count : 0;
    for (size_t i = 0; name != NULL && i < FAKE_CALLS_MAX && fake.calls[i].name != NULL; i++)
        if (strcmp(fake.calls[i].name, name) == 0)
            count = fake.calls[i].count;
    pthread_mutex_unlock(&fake.lock);
    return count;
}

const char *fake_cudart_called(size_t index)
{
    pthread_mutex_lock(&fake.lock);
    const char *name = index < FAKE_CALLS_MAX ? fake.calls[index].name : NULL;
    pthread_mutex_unlock(&fake.lock);
    return name;
}

uint64_t fake_cudart_commands(void)
{
    pthread_mutex_lock(&fake.lock);
    const uint64_t commands = fake.commands;
    pthread_mutex_unlock(&fake.lock);
    return commands;
}

static size_t live_add(size_t count, const char *noun, char *text, size_t text_bytes)
{
    const size_t length = strlen(text);
    if (count > 0)
        (void)snprintf(text + length, text_bytes - length, "%s%zu %s%s", length > 0 ? ", " : "", count, noun,
                       count > 1 ? "s" : "");
    return count;
}

size_t fake_cudart_live(char *text, size_t text_bytes)
{
    size_t streams = 0, events = 0, handles = 0, all;
    pthread_mutex_lock(&fake.lock);
    text[0] = '\0';
    for (size_t i = 0; i < fake.stream_count; i++)
        streams += !fake.streams[i].dead;
    for (size_t i = 0; i < fake.event_count; i++)
        events += !fake.events[i].dead;
    for (int gpu = 0; gpu < FAKE_CUDART_GPUS_MAX; gpu++)
        streams -= fake.default_stream[gpu] != NULL;
    for (const fake_handle *handle = fake.handles; handle != NULL; handle = handle->next)
        handles += !handle->released;
    all = live_add(streams, "stream", text, text_bytes) + live_add(events, "event", text, text_bytes) +
          live_add(handles, "handle", text, text_bytes);
    for (int kind = 0; kind < FAKE_KIND_COUNT; kind++) {
        size_t count = 0;
        for (const fake_range *range = fake.ranges[kind]; range != NULL; range = range->next)
            count++;
        all += live_add(count, fake_kind_name((fake_kind)kind), text, text_bytes);
    }
    pthread_mutex_unlock(&fake.lock);
    return all;
}

size_t fake_cudart_misuse(char *text, size_t text_bytes)
{
    pthread_mutex_lock(&fake.lock);
    const size_t misuse = fake.misuse;
    (void)snprintf(text, text_bytes, "%s", fake.misuse_text);
    pthread_mutex_unlock(&fake.lock);
    return misuse;
}

/* --- begin and end of a call --- */

void fake_misused(const char *format, ...)
{
    if (fake.misuse++ > 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(fake.misuse_text, sizeof fake.misuse_text, format, arguments);
    va_end(arguments);
}

int fake_current_gpu(void)
{
    return current_gpu;
}

void fake_set_current_gpu(int gpu)
{
    current_gpu = gpu;
}

void fake_check_gpu(const char *what, int gpu)
{
    if (fake_current_gpu() != gpu)
        fake_misused("%s belongs to GPU %d, but the calling thread's is %d", what, gpu, fake_current_gpu());
}

void fake_wait_changed(void)
{
    pthread_cond_wait(&fake.changed, &fake.lock);
}

uint64_t fake_now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void fake_sleep_us(uint64_t us)
{
    const struct timespec time = {(time_t)(us / 1000000), (long)(us % 1000000) * 1000};
    (void)nanosleep(&time, NULL);
}

static void count_call(const char *name)
{
    size_t i = 0;
    while (i < FAKE_CALLS_MAX && fake.calls[i].name != NULL && fake.calls[i].name != name &&
           strcmp(fake.calls[i].name, name) != 0)
        i++;
    /* The table is too small: enlarge FAKE_CALLS_MAX. */
    if (i == FAKE_CALLS_MAX)
        abort();
    fake.calls[i].name = name;
    fake.calls[i].count++;
    fake.calls_count++;
}

/* Counts down the injected failure and returns whether it hits this call. */
static bool is_to_fail(const char *name)
{
    fake_fault *fault = &fake.fault;
    if (fault->countdown == 0 || (fault->name != NULL && strcmp(fault->name, name) != 0))
        return false;
    fault->has_failed |= --fault->countdown == 0;
    return fault->countdown == 0;
}

fake_call fake_enter(const char *name, unsigned what)
{
    pthread_mutex_lock(&fake.lock);
    count_call(name);
    if ((what & FAKE_NO_DRIVER) == 0) {
        if (fake.options.driver / 1000 < CUDART_VERSION / 1000)
            return (fake_call){cudaErrorInsufficientDriver, true};
        if (fake.options.gpus == 0)
            return (fake_call){cudaErrorNoDevice, true};
    }
    if ((what & FAKE_ANY_GPU) == 0 && fake.options.gpu >= 0 && fake_current_gpu() != fake.options.gpu)
        fake_misused("%s is called where the thread's GPU is %d, not %d", name, fake_current_gpu(),
                     fake.options.gpu);
    const bool gives_back = (what & FAKE_GIVES_BACK) != 0;
    if (is_to_fail(name))
        return (fake_call){fake.fault.error, !gives_back || fake.fault.refuses};
    if (fake.sticky != 0 && (what & FAKE_NO_DRIVER) == 0)
        return (fake_call){fake.sticky, !gives_back};
    return (fake_call){0, false};
}

cudaError_t fake_leave(fake_call call, cudaError_t error)
{
    const int result = call.error != 0 ? call.error : (int)error;
    if (result != 0)
        fake_last_error = result;
    pthread_mutex_unlock(&fake.lock);
    return (cudaError_t)result;
}

CUresult fake_leave_driver(fake_call call, CUresult error)
{
    pthread_mutex_unlock(&fake.lock);
    return call.error != 0 ? (CUresult)call.error : error;
}

/* --- GPUs --- */

static cudaError_t check_gpu_number(int gpu)
{
    return gpu >= 0 && gpu < fake.options.gpus ? cudaSuccess : cudaErrorInvalidDevice;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    fake_call call = fake_enter("cudaGetDeviceCount", FAKE_ANY_GPU);
    *count = call.refused ? 0 : fake.options.gpus;
    return fake_leave(call, cudaSuccess);
}

cudaError_t cudaSetDevice(int device)
{
    fake_call call = fake_enter("cudaSetDevice", FAKE_ANY_GPU);
    cudaError_t error = check_gpu_number(device);
    if (!call.refused && error == cudaSuccess)
        fake_set_current_gpu(device);
    return fake_leave(call, error);
}

cudaError_t cudaGetDevice(int *device)
{
    fake_call call = fake_enter("cudaGetDevice", FAKE_ANY_GPU);
    if (!call.refused)
        *device = fake_current_gpu();
    return fake_leave(call, cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    fake_call call = fake_enter("cudaGetDeviceProperties", FAKE_ANY_GPU);
    cudaError_t error = check_gpu_number(device);
    if (!call.refused && error == cudaSuccess) {
        memset(prop, 0, sizeof *prop);
        (void)snprintf(prop->name, sizeof prop->name, "Fake GPU %d", device);
        prop->totalGlobalMem = fake.options.memory_bytes;
        prop->major = fake.options.capability / 10;
        prop->minor = fake.options.capability % 10;
        prop->multiProcessorCount = 4;
        prop->pciBusID = 0x1b + device;
    }
    return fake_leave(call, error);
}

/* In capitals, as CUDA writes it; Linux uses small letters. */
cudaError_t cudaDeviceGetPCIBusId(char *pciBusId, int len, int device)
{
    fake_call call = fake_enter("cudaDeviceGetPCIBusId", FAKE_ANY_GPU);
    cudaError_t error = check_gpu_number(device);
    if (error == cudaSuccess && len < 13)
        error = cudaErrorInvalidValue;
    if (!call.refused && error == cudaSuccess)
        (void)snprintf(pciBusId, (size_t)len, "0000:%02X:00.0", (unsigned)(0x1b + device) & 0xffu);
    return fake_leave(call, error);
}

cudaError_t cudaDriverGetVersion(int *driverVersion)
{
    fake_call call = fake_enter("cudaDriverGetVersion", FAKE_ANY_GPU | FAKE_NO_DRIVER);
    if (!call.refused)
        *driverVersion = fake.options.driver;
    return fake_leave(call, cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *runtimeVersion)
{
    fake_call call = fake_enter("cudaRuntimeGetVersion", FAKE_ANY_GPU | FAKE_NO_DRIVER);
    if (!call.refused)
        *runtimeVersion = CUDART_VERSION;
    return fake_leave(call, cudaSuccess);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **funcPtr, unsigned int cudaVersion,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *driverStatus)
{
    fake_call call = fake_enter("cudaGetDriverEntryPointByVersion", FAKE_ANY_GPU);
    const char *missing = fake.options.missing_symbol;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSuccess;
    void *entry = call.refused ? NULL : fake_driver_entry(symbol);
    if (entry == NULL || (missing != NULL && strcmp(symbol, missing) == 0))
        found = cudaDriverEntryPointSymbolNotFound;
    else if (cudaVersion < 10020)
        found = cudaDriverEntryPointVersionNotSufficent;
    *funcPtr = found == cudaDriverEntryPointSuccess ? entry : NULL;
    if (driverStatus != NULL)
        *driverStatus = found;
    cudaError_t error = flags != cudaEnableDefault ? cudaErrorInvalidValue : cudaSuccess;
    if (driverStatus == NULL && found != cudaDriverEntryPointSuccess)
        error = cudaErrorSymbolNotFound;
    return fake_leave(call, error);
}

/* --- errors --- */

cudaError_t cudaPeekAtLastError(void)
{
    pthread_mutex_lock(&fake.lock);
    const int error = fake.sticky != 0 ? fake.sticky : fake_last_error;
    pthread_mutex_unlock(&fake.lock);
    return (cudaError_t)error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t error = cudaPeekAtLastError();
    fake_last_error = 0;
    return error;
}

static const struct {
    int error;
    const char *name, *text;
} error_names[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

static size_t error_index(int error)
{
    size_t i = 0;
    while (i < sizeof error_names / sizeof error_names[0] - 1 && error_names[i].error != error)
        i++;
    return i;
}

const char *cudaGetErrorName(cudaError_t error)
{
    return error_names[error_index((int)error)].name;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error_names[error_index((int)error)].text;
}
