/* Where every tensor lies: spaces and chunks.
 *
 * A space is one contiguous range of addresses cut into chunks of one size. Params are packed back to back in
 * creation order, each on a 256-byte boundary of the PARAM space, so a param may straddle chunks or be larger
 * than one and no chunk end is wasted. The three fp32 spaces hold the same elements at the same element
 * offsets:
 *
 *   PARAM (bf16)        |        chunk 0        |        chunk 1        |
 *   MASTER (fp32)       |  chunk 0  |  chunk 1  |  chunk 2  |  chunk 3  |   parts_per_chunk = 2 (fp32 params: 1)
 *   MOMENTUM, VARIANCE  as MASTER
 *   CHECKPOINT          tensors of `parts` equal slices, one slice a micro-batch, each on a 256-byte boundary
 *
 * Chunks have one number across all spaces (tide_chunk): PARAM first, then MASTER, MOMENTUM, VARIANCE,
 * CHECKPOINT.
 *
 * Pure bookkeeping: no threads, no clock, no device. Not thread-safe; the owner locks.
 */
#ifndef TIDE_CHUNK_LAYOUT_H
#define TIDE_CHUNK_LAYOUT_H

#include "chunk/names.h"
#include "tidepool/types.h"

#include <stdbool.h>

const char *tide_space_name(tide_space space); /* "param", "master", "momentum", "variance", "checkpoint" */

typedef uint32_t tide_chunk;
#define TIDE_CHUNK_NONE UINT32_MAX

typedef struct tide_layout tide_layout;

typedef struct tide_layout_options {
    uint64_t chunk_bytes; /* a power of two, at least 4096 (the pool is stricter) */
    tide_dtype dtype;     /* of all params */
    uint32_t states;      /* fp32 optimizer states beside MASTER: 0, 1 (MOMENTUM) or 2 (and VARIANCE) */
} tide_layout_options;

/* A part of a param that lies in one chunk. Offsets in elements. */
typedef struct tide_segment {
    uint32_t param;
    uint64_t param_offset_elements; /* first element, counted from the param's start */
    uint64_t chunk_offset_elements; /* where it lies, counted from the chunk's start */
    uint64_t elements;
} tide_segment;

/* ARGUMENT for options out of range, NO_MEMORY. Freed with tide_layout_destroy (NULL allowed). */
tide_status tide_layout_create(const tide_layout_options *options, tide_layout **layout);
void tide_layout_destroy(tide_layout *layout);

/* Append a param of `elements` > 0; names are copied, not empty and unique among params (ARGUMENT otherwise). ARGUMENT also
 * if all params are more than 2^48 elements. Before seal. */
tide_status tide_layout_add_param(tide_layout *layout, const char *name, uint64_t elements, uint32_t *param);
/* Append a CHECKPOINT tensor of `parts` >= 1 slices of `part_bytes` > 0 each; names as params', unique among checkpoints.
 * ARGUMENT also if all are more than 2^50 bytes. Before seal. */
tide_status tide_layout_add_checkpoint(tide_layout *layout, const char *name, uint32_t parts,
                                       uint64_t part_bytes, uint32_t *checkpoint);
/* Fix all numbers below. ARGUMENT if there is no param. */
tide_status tide_layout_seal(tide_layout *layout);

/* --- after seal --- */

uint64_t tide_layout_chunk_bytes(const tide_layout *layout);
uint32_t tide_layout_parts_per_chunk(const tide_layout *layout); /* fp32 chunks per PARAM chunk: 2 (bf16) or 1 */
uint32_t tide_layout_fp32_spaces(const tide_layout *layout); /* in use: MASTER and the optimizer's */
uint32_t tide_layout_chunk_count(const tide_layout *layout); /* of all spaces */
uint32_t tide_layout_space_chunks(const tide_layout *layout, tide_space space);
tide_chunk tide_layout_chunk(const tide_layout *layout, tide_space space, uint32_t index);
tide_space tide_layout_chunk_space(const tide_layout *layout, tide_chunk chunk);
uint32_t tide_layout_chunk_index(const tide_layout *layout, tide_chunk chunk); /* inside its space */
/* Bytes of a chunk that hold tensors: chunk_bytes but for the last of a space. Copies move this much. */
uint64_t tide_layout_chunk_used_bytes(const tide_layout *layout, tide_chunk chunk);
/* The fp32 chunk of `space` (MASTER, MOMENTUM or VARIANCE) that pairs with part `part` of PARAM chunk
 * `param_chunk`; TIDE_CHUNK_NONE if the part holds no element (only in the last chunk) or the
 * layout has no such space. */
tide_chunk tide_layout_state_chunk(const tide_layout *layout, tide_chunk param_chunk, tide_space space,
                                   uint32_t part);

uint32_t tide_layout_params(const tide_layout *layout);
/* Its size and offset are in elements; it stays until destroy. */
const tide_named *tide_layout_param(const tide_layout *layout, uint32_t param);
bool tide_layout_find_param(const tide_layout *layout, const char *name, uint32_t *param);
/* First and last PARAM chunk that a param touches. */
void tide_layout_param_chunks(const tide_layout *layout, uint32_t param, tide_chunk *first, tide_chunk *last);
/* The params that overlap a PARAM or fp32 chunk are consecutive: count of them, and the i-th one's segment. */
uint32_t tide_layout_chunk_segments(const tide_layout *layout, tide_chunk chunk);
tide_segment tide_layout_chunk_segment(const tide_layout *layout, tide_chunk chunk, uint32_t i);

uint32_t tide_layout_checkpoints(const tide_layout *layout);
/* In bytes. */
const tide_named *tide_layout_checkpoint(const tide_layout *layout, uint32_t checkpoint);
uint32_t tide_layout_parts(const tide_layout *layout); /* of all checkpoints */
void tide_layout_checkpoint_chunks(const tide_layout *layout, uint32_t checkpoint, uint32_t part, tide_chunk *first,
                                   tide_chunk *last);

#endif
