/* Calls of CUDA's runtime and driver, with their errors turned into statuses.
 *
 * The module links the runtime. Of the driver this code needs only the calls that manage virtual memory, and
 * looks them up by name at run time. So it loads without libcuda, and can report that a machine has no
 * driver.
 *
 * Every result of a CUDA call goes through one of these:
 *
 *   tide_cuda_check, tide_cuda_driver_check   turn a failure into a status and a message that names the call
 *                                             and CUDA's error
 *   tide_cuda_is_pending                      for queries, where "not ready" is an answer and no failure
 *   tide_cuda_undo, tide_cuda_driver_undo     for calls that undo after a failure: add a second failure to
 *                                             the message that the caller will read
 *
 * A runtime call that fails, or answers "not ready", also becomes the thread's last error, and the thread's
 * next kernel launch would report it. All of these functions clear it.
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

/* Look up the entry points. UNSUPPORTED: there is no driver, it is too old, or it lacks a call, which the
 * message names. `gpu` names the GPU in that message. */
tide_status tide_cuda_driver_find(const char *gpu, tide_cuda_driver *driver);

/* The smallest unit of the GPU's virtual memory management, in bytes; 0: it has none. DEVICE. */
tide_status tide_cuda_granularity(const tide_cuda_driver *driver, uint32_t ordinal, uint64_t *bytes);
/* The properties of physical memory on that GPU, for the CUDA calls that make such memory. */
CUmemAllocationProp tide_cuda_allocation(uint32_t ordinal);

/* Make the GPU current on the calling thread. Asks CUDA each time whether it is (which reads only memory of
 * the thread), since other code on this thread may have chosen another GPU. DEVICE, NO_MEMORY,
 * UNSUPPORTED. */
tide_status tide_cuda_use(uint32_t ordinal);

/* TIDE_OK if `error` is cudaSuccess; otherwise a status, with the message "what: cudaErrorName: CUDA's text":
 * NO_MEMORY if memory is missing, UNSUPPORTED without a usable driver, DEVICE for all other errors. */
tide_status tide_cuda_check(cudaError_t error, const char *what);
tide_status tide_cuda_driver_check(const tide_cuda_driver *driver, CUresult error, const char *what);

/* Is `error` cudaErrorNotReady? */
bool tide_cuda_is_pending(cudaError_t error);

void tide_cuda_undo(cudaError_t error, const char *what);
void tide_cuda_driver_undo(const tide_cuda_driver *driver, CUresult error, const char *what);

#endif
