/* Types that the pool, the devices and the kernels share. */
#ifndef TIDEPOOL_TYPES_H
#define TIDEPOOL_TYPES_H

#include "tidepool/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Element types of parameters, gradients and activations. Masters, moments and accumulators are always fp32. */
typedef enum tide_dtype {
    TIDE_DTYPE_FP32 = 0,
    TIDE_DTYPE_BF16 = 1,
} tide_dtype;

/* Bytes of one element: 4 or 2. */
static inline size_t tide_dtype_bytes(tide_dtype dtype)
{
    return dtype == TIDE_DTYPE_BF16 ? 2u : 4u;
}

/* Every tensor starts on this many bytes, in every space and in the region. */
enum { TIDE_ALIGNMENT_BYTES = 256 };

static inline uint64_t tide_align_up(uint64_t bytes)
{
    return (bytes + TIDE_ALIGNMENT_BYTES - 1) / TIDE_ALIGNMENT_BYTES * TIDE_ALIGNMENT_BYTES;
}

/* A kernel, or the launcher of one. Host device: called on the stream's thread with `stream` NULL, does the work.
 * CUDA device: called at once in the launching thread with the cudaStream_t, enqueues the work. `arguments` points at a
 * copy of the caller's struct, aligned to 16 bytes, valid during the call only. It must not block on anything. A status other than
 * TIDE_OK makes the device fail, with the message the kernel set. */
typedef tide_status (*tide_kernel)(void *stream, const void *arguments);

/* The largest argument struct a launch copies, bytes. */
enum { TIDE_LAUNCH_ARGUMENTS_MAX_BYTES = 256 };

#ifdef __cplusplus
}
#endif

#endif
