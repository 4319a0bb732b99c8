/* The fixed data of a pool, set at create: options, device, kernels, packing, plan, and all addresses.
 *
 *     region   as packing.h lays it out
 *     spaces   [ chunk 0 | chunk 1 | ... ] each, at addresses that are reserved once
 *
 * Only make.c and build.c write it; afterwards all threads read it without a lock. Calls only the layout's
 * queries.
 */
#ifndef TIDE_POOL_CONTEXT_H
#define TIDE_POOL_CONTEXT_H

#include "kernels/kernels.h"
#include "offload/device.h"
#include "src/comm/comm.h"
#include "src/pool/device_factory.h"
#include "src/pool/packing.h"
#include "tidepool/pool.h"

#include <assert.h>

typedef struct tide_pool_context {
    tide_pool_options options;
    char *device_name;           /* options.device */
    tide_device_factory factory; /* known at create */
    const tide_kernels *kernels; /* known at create; the host executor has the CPU's */
    tide_device *device;
    const tide_packing *packing;
    tide_pool_plan plan;
    char *region;
    uint32_t region_objects[TIDE_REGION_PARTS]; /* UINT32_MAX: the part is empty */
    char *space_address[TIDE_SPACE_COUNT];
    tide_chunk first_chunk[TIDE_SPACE_COUNT]; /* of spaces that have chunks */
} tide_pool_context;

/* The address in the chunk's space at which the chunk is mapped while it is resident on the device. */
static inline char *tide_context_place(const tide_pool_context *context, tide_chunk chunk)
{
    assert(chunk < tide_layout_chunk_count(context->packing->layout));
    return context->space_address[tide_layout_chunk_space(context->packing->layout, chunk)] +
           tide_layout_chunk_offset_bytes(context->packing->layout, chunk);
}

/* Add an access to a part of the region to `accesses`, unless the part is empty. Returns the new count. */
static inline uint32_t tide_context_add_part(const tide_pool_context *context, tide_region_part part,
                                             bool write, tide_access *accesses, uint32_t count)
{
    if (context->region_objects[part] != UINT32_MAX)
        accesses[count++] = (tide_access){TIDE_OBJECT_REGION, context->region_objects[part], write};
    return count;
}

static inline uint32_t tide_context_ranks(const tide_pool_context *context)
{
    return context->options.ranks.count;
}

/* This rank's number; 0 in a plan. */
static inline uint32_t tide_context_rank(const tide_pool_context *context)
{
    return tide_comm_rank(context->options.ranks.comm);
}

static inline bool tide_context_has_peers(const tide_pool_context *context)
{
    return tide_context_ranks(context) > 1;
}

/* Give up on all ranks; with one rank do nothing. */
static inline void tide_context_abort(const tide_pool_context *context, const char *reason)
{
    if (tide_context_has_peers(context))
        tide_comm_abort(context->options.ranks.comm, reason);
}

/* The shard of the params that this rank owns; a plan of several ranks is that of rank 0. */
static inline tide_shard tide_context_shard(const tide_pool_context *context)
{
    const tide_ranks_options *ranks = &context->options.ranks;
    return (tide_shard){.ranks = ranks->zero_stage == 0 ? 1 : ranks->count, .rank = 0};
}

/* The sum groups of this rank. */
static inline uint32_t tide_context_sum_groups(const tide_pool_context *context)
{
    return context->options.sum_groups / context->options.ranks.count;
}

/* The stream on which gradients are finished. */
static inline tide_stream tide_context_finish_stream(const tide_pool_context *context)
{
    return context->options.checks.finish_beside || tide_context_has_peers(context) ? TIDE_STREAM_COLLECTIVE
                                                                                    : TIDE_STREAM_COMPUTE;
}

static inline uint64_t tide_context_element_bytes(const tide_pool_context *context)
{
    return tide_dtype_bytes(context->packing->description->dtype);
}

/* Bytes that one element takes in one plane of the state: a whole number, since create refuses other
 * formats. */
static inline uint64_t tide_context_plane_bytes(const tide_state_format *format, uint32_t plane)
{
    assert(plane < format->planes && format->bytes[plane] % 32 == 0);
    return format->bytes[plane] / 32;
}

/* Bytes that one element takes in all planes of the state together. */
static inline uint64_t tide_context_state_bytes(const tide_state_format *format)
{
    uint64_t bytes = 0;
    for (uint32_t plane = 0; plane < format->planes; plane++)
        bytes += tide_context_plane_bytes(format, plane);
    return bytes;
}

/* Bytes of memory traffic to update one element: read its gradient, write its param, read and write its
 * state. For AdamW 28 bytes in bf16, 32 in fp32. */
static inline uint64_t tide_context_update_bytes(const tide_pool_context *context, tide_chunk param_chunk)
{
    return 2 * (tide_context_element_bytes(context) +
                tide_context_state_bytes(tide_layout_chunk_format(context->packing->layout, param_chunk)));
}

/* Checks that in both tiers the budget is at least slots x chunk + region (device) or + buffers (host), and
 * that the parts of the region follow each other. */
bool tide_pool_context_is_valid(const tide_pool_context *context);

#endif
