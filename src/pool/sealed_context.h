/* What stands still: the options, and what seal makes of them. Device, kernels, layout, and where everything is.
 *
 *     region   | non-model | shared accumulators | norm blocks | scalars | workspace and accumulators of the open op |
 *     spaces   [ chunk 0 | chunk 1 | ... ] each, at addresses that are reserved once
 *
 * Written by pool.c, plan.c and seal.c; everybody reads it, without a lock, and nobody changes it after seal. It calls the
 * layout's queries and nobody else.
 */
#ifndef TIDE_POOL_SEALED_CONTEXT_H
#define TIDE_POOL_SEALED_CONTEXT_H

#include "chunk/layout.h"
#include "kernels/kernels.h"
#include "offload/device.h"
#include "src/pool/device_factory.h"
#include "tidepool/pool.h"

#include <assert.h>

/* Offsets in the region, bytes: the parts follow each other. */
typedef struct tide_region_layout {
    uint64_t shared_offset; /* accumulators that several ops share */
    uint64_t blocks_offset;
    uint64_t blocks_count;
    uint64_t scalars_offset;
    uint64_t workspace_offset; /* the largest op's workspace and accumulators */
    uint64_t total_bytes;
} tide_region_layout;

typedef struct tide_sealed_context {
    tide_pool_options options;
    char *device_name;           /* options.device */
    tide_device_factory factory; /* known at create */
    const tide_kernels
        *kernels; /* known at create; of all streams but the host executor, which has the CPU's */
    tide_device *device;
    tide_layout *layout;
    tide_pool_plan plan;
    tide_region_layout region_layout;
    char *region;
    uint32_t region_object;
    char *space_address[TIDE_SPACE_COUNT];
    tide_chunk first_chunk[TIDE_SPACE_COUNT]; /* of spaces that have any */
} tide_sealed_context;

/* Where a chunk stands when it is resident. */
static inline char *tide_sealed_place(const tide_sealed_context *context, tide_chunk chunk)
{
    assert(chunk < tide_layout_chunk_count(context->layout));
    return context->space_address[tide_layout_chunk_space(context->layout, chunk)] +
           tide_layout_chunk_index(context->layout, chunk) * context->plan.chunk_bytes;
}

static inline uint64_t tide_sealed_element_bytes(const tide_sealed_context *context)
{
    return tide_dtype_bytes(context->options.dtype);
}

/* What an element takes in one plane; a pool's planes have whole bytes. */
static inline uint64_t tide_sealed_plane_bytes(const tide_state_format *format, uint32_t plane)
{
    assert(plane < format->planes && format->bytes[plane] % 32 == 0);
    return format->bytes[plane] / 32;
}

/* And in all. */
static inline uint64_t tide_sealed_state_bytes(const tide_state_format *format)
{
    uint64_t bytes = 0;
    for (uint32_t plane = 0; plane < format->planes; plane++)
        bytes += tide_sealed_plane_bytes(format, plane);
    return bytes;
}

/* Memory traffic of an element's update: gradient in, param out, its state in and out. AdamW's 28 in bf16, 32 in fp32. */
static inline uint64_t tide_sealed_update_bytes(const tide_sealed_context *context, tide_chunk param_chunk)
{
    return 2 * (tide_sealed_element_bytes(context) +
                tide_sealed_state_bytes(tide_layout_chunk_format(context->layout, param_chunk)));
}

/* Budget = slots x chunk + region + reserves, in both tiers; the region's parts follow each other. */
bool tide_sealed_context_is_valid(const tide_sealed_context *context);

#endif
