#include "offload/cuda/cuda_driver.h"

#include <string.h>

/* The version of the interfaces that the types in the header describe, CUDA 12.0; none has changed since. */
enum { INTERFACE_VERSION = 12000 };

/* --- errors --- */

static tide_status status_of(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return TIDE_OK;
    case cudaErrorMemoryAllocation:
        return TIDE_ERROR_NO_MEMORY;
    case cudaErrorInsufficientDriver:
    case cudaErrorNoDevice:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
        return TIDE_ERROR_UNSUPPORTED;
    default:
        return TIDE_ERROR_DEVICE;
    }
}

/* Clear the thread's last error. An error that has broken the context stays, whatever is called. */
static void last_error_forget(void)
{
    const cudaError_t forgotten = cudaGetLastError();
    (void)forgotten; /* dropped, since the call that caused this error has returned it, too */
}

tide_status tide_cuda_check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return TIDE_OK;
    last_error_forget();
    return tide_fail(status_of(error), "%s: %s: %s", what, cudaGetErrorName(error),
                     cudaGetErrorString(error));
}

bool tide_cuda_is_pending(cudaError_t error)
{
    if (error != cudaErrorNotReady)
        return false;
    last_error_forget();
    return true;
}

/* The driver's name for an error. */
static const char *driver_error_name(const tide_cuda_driver *driver, CUresult error)
{
    const char *name = NULL;
    const bool found = driver->error_name(error, &name) == CUDA_SUCCESS && name != NULL;
    return found ? name : "an unknown error";
}

tide_status tide_cuda_driver_check(const tide_cuda_driver *driver, CUresult error, const char *what)
{
    if (error == CUDA_SUCCESS)
        return TIDE_OK;
    return tide_fail(error == CUDA_ERROR_OUT_OF_MEMORY ? TIDE_ERROR_NO_MEMORY : TIDE_ERROR_DEVICE, "%s: %s",
                     what, driver_error_name(driver, error));
}

/* Add the failure of an undoing call to the message, but only the first such failure, since later ones mostly
 * follow from it. */
static void remark(const char *what, const char *error_name)
{
    static const char mark[] = " (then, undoing it, ";
    if (strstr(tide_message(), mark) == NULL)
        (void)tide_fail(TIDE_OK, "%s%s%s: %s)", tide_message(), mark, what, error_name);
}

void tide_cuda_undo(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    last_error_forget();
    remark(what, cudaGetErrorName(error));
}

void tide_cuda_driver_undo(const tide_cuda_driver *driver, CUresult error, const char *what)
{
    if (error != CUDA_SUCCESS)
        remark(what, driver_error_name(driver, error));
}

/* --- the driver --- */

/* Does this error mean that the driver has no such call? CUDA may also report that without an error. */
static bool is_missing(cudaError_t error)
{
    return error == cudaErrorSymbolNotFound || error == cudaErrorNotSupported ||
           error == cudaErrorInvalidValue;
}

/* Look up a driver call. `entry` points to a pointer to a function; CUDA, like dlsym, returns the address as
 * a pointer to an object. */
static tide_status entry_find(const char *name, const char *gpu, void *entry)
{
    void *address = NULL;
    enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &address, INTERFACE_VERSION, cudaEnableDefault, &found);
    if (error != cudaSuccess && !is_missing(error))
        return tide_cuda_check(error, gpu);
    if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || address == NULL) {
        last_error_forget();
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "%s: its driver has no %s", gpu, name);
    }
    memcpy(entry, &address, sizeof address);
    return TIDE_OK;
}

tide_status tide_cuda_driver_find(const char *gpu, tide_cuda_driver *driver)
{
    tide_cuda_driver made;
    const struct {
        const char *name;
        void *entry;
    } wanted[] = {
        {"cuGetErrorName", &made.error_name},
        {"cuDeviceGetAttribute", &made.device_attribute},
        {"cuMemGetAllocationGranularity", &made.granularity},
        {"cuMemAddressReserve", &made.address_reserve},
        {"cuMemAddressFree", &made.address_free},
        {"cuMemCreate", &made.create},
        {"cuMemRelease", &made.release},
        {"cuMemMap", &made.map},
        {"cuMemUnmap", &made.unmap},
        {"cuMemSetAccess", &made.set_access},
    };
    tide_status status = TIDE_OK;
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0] && status == TIDE_OK; i++)
        status = entry_find(wanted[i].name, gpu, wanted[i].entry);
    if (status == TIDE_OK)
        *driver = made;
    return status;
}

CUmemAllocationProp tide_cuda_allocation(uint32_t ordinal)
{
    CUmemAllocationProp wanted;
    memset(&wanted, 0, sizeof wanted); /* CUDA wants reserved bytes to be zero */
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    wanted.location.id = (int)ordinal;
    return wanted;
}

tide_status tide_cuda_granularity(const tide_cuda_driver *driver, uint32_t ordinal, uint64_t *bytes)
{
    int supported = 0;
    size_t least = 0;
    const CUmemAllocationProp wanted = tide_cuda_allocation(ordinal);
    /* A device's handle is its ordinal; runtime and driver number the same GPUs (CUDA_VISIBLE_DEVICES). */
    tide_status status = tide_cuda_driver_check(
        driver,
        driver->device_attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                                 (CUdevice)ordinal),
        "cuDeviceGetAttribute");
    if (status == TIDE_OK && supported != 0)
        status = tide_cuda_driver_check(
            driver, driver->granularity(&least, &wanted, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
            "cuMemGetAllocationGranularity");
    if (status == TIDE_OK)
        *bytes = least;
    return status;
}

tide_status tide_cuda_use(uint32_t ordinal)
{
    /* CUDA may return GPU 0 for a thread that has never chosen one and has no context of that GPU. */
    static _Thread_local bool said;
    int current = -1;
    tide_status status = tide_cuda_check(cudaGetDevice(&current), "cudaGetDevice");
    if (status != TIDE_OK || (said && current == (int)ordinal))
        return status;
    status = tide_cuda_check(cudaSetDevice((int)ordinal), "cudaSetDevice");
    said = said || status == TIDE_OK;
    return status;
}
