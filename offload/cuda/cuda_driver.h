/* CUDA's two interfaces behind one way of reporting.
 *
 * The runtime is linked; of the driver this code needs only the calls that manage virtual memory, and looks
 * them up by name at run time. So it loads without libcuda, and reports that a machine has no driver.
 *
 * Every status of every call goes through one of these:
 *
 * tide_cuda_check, tide_cuda_driver_check   a failure becomes a status and a message, that names the call and CUDA's
 * error
 *   tide_cuda_is_pending                      for queries: "not ready" is an answer, no failure
 * tide_cuda_undo, tide_cuda_driver_undo     on ways back, where a failure can't change anything any more: added to
 * the
 *                                             message that the caller is about to read
 *
 * A runtime call that fails, or answers "not ready", also leaves its error behind as the thread's last one, for which
 * the thread's next kernel launch would be blamed: all of these take it away.
 */
#ifndef TIDE_OFFLOAD_CUDA_DRIVER_H
#define TIDE_OFFLOAD_CUDA_DRIVER_H

#include "tidepool/types.h"

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>

typedef struct tide_cuda_driver {
    PFN_cuGetErrorName_v6000 error_name;
    PFN_cuDeviceGetAttribute_v2000 device_attribute;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
    PFN_cuMemAddressReserve_v10020 address_reserve;
    PFN_cuMemAddressFree_v10020 address_free;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
} tide_cuda_driver;

/* Look the entry points up. UNSUPPORTED: no driver, one that is too old, or one that lacks a call, which is named.
 * `gpu` is for that message. */
tide_status tide_cuda_driver_find(const char *gpu, tide_cuda_driver *driver);

/* The least unit of the GPU's virtual memory management, in bytes; 0 if it has none. DEVICE. */
tide_status tide_cuda_granularity(const tide_cuda_driver *driver, uint32_t ordinal, uint64_t *bytes);
/* The properties of physical device memory of that GPU, for CUDA's calls that make it. */
CUmemAllocationProp tide_cuda_allocation(uint32_t ordinal);

/* Make the GPU current on the calling thread, unless it is: each call asks CUDA (a read of the thread's own),
 * since other code on this thread may have chosen another GPU. DEVICE, NO_MEMORY, UNSUPPORTED. */
tide_status tide_cuda_use(uint32_t ordinal);

/* TIDE_OK if `error` is cudaSuccess; else a status with the message "what: cudaErrorName: CUDA's words". NO_MEMORY
 * where memory is missing, UNSUPPORTED without a usable driver, otherwise DEVICE. */
tide_status tide_cuda_check(cudaError_t error, const char *what);
tide_status tide_cuda_driver_check(const tide_cuda_driver *driver, CUresult error, const char *what);

/* Is it cudaErrorNotReady? */
bool tide_cuda_is_pending(cudaError_t error);

void tide_cuda_undo(cudaError_t error, const char *what);
void tide_cuda_driver_undo(const tide_cuda_driver *driver, CUresult error, const char *what);

#endif
