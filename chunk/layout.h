/* Where every tensor of a description lies: in which space, chunk and piece, at which offset.
 *
 * A space is one contiguous range of addresses cut into chunks of one size. Chunks are numbered across all
 * spaces (tide_chunk): those of PARAM first, then STATE, then ACTIVATION.
 *
 * The params of a class (description.h) lie one after another in creation order, each from a 256-byte
 * boundary of the PARAM space on. A param may lie in several chunks, so no chunk's end is wasted, except that
 * each class begins with a new chunk. Elements are numbered from the class's first one. A STATE chunk holds
 * the optimizer state of E consecutive elements: one plane after another, each from a 256-byte boundary on. E
 * is the largest multiple of 256 that fits. The planes of a class's last STATE chunk are only as long as its
 * remaining elements need, so that its used part is contiguous.
 *
 *     elements  0              P             2P            P = elements of a PARAM chunk
 *     PARAM     |   chunk 0    |   chunk 1    | ...
 *     STATE     | 4  | 5  | 6  | 7  | 8  | ...             [master E | momentum E | variance E]
 *     pieces    | 0  | 1  |2|0 | 1  | ...                  chunk 0 has three; its last one shares
 *                                                          STATE chunk 6 with chunk 1's first
 *
 * A piece is a range of elements whose params lie in one PARAM chunk and whose state lies in one STATE chunk.
 * Every trained element is in exactly one piece. With 64 MiB chunks and 12 bytes of state per element E is
 * 5,592,320, and a bf16 PARAM chunk of 32 Mi elements has seven pieces.
 *
 * With several ranks G chunks of PARAM that follow each other in the space are a group, and each rank owns
 * one of them (ZeRO: Rajbhandari et al. 2020; PatrickStar: Fang et al. 2021). Rank r's layout has a PARAM
 * chunk for each group: its r-th member. A class begins with a new group.
 *
 *     elements  0            P            2P           3P           4P                      G = 2
 *     group     |            0            |            1            | ...
 *     PARAM     | 0 of rank 0| 0 of rank 1| 1 of rank 0| 1 of rank 1| ...
 *
 * Pieces and STATE chunks cover the elements that the rank owns, numbered without those of others. In a
 * class's last group a rank may own no element; its chunk then holds 256 elements of no param, so that every
 * chunk of a trained class has a piece. With one rank a group is a chunk.
 *
 * In ACTIVATION lie tensors of `parts` equal parts, one per micro-batch, each from a 256-byte boundary on.
 *
 * Pure bookkeeping: no threads, no clock, no device. Not thread-safe; the owner locks.
 */
#ifndef TIDE_CHUNK_LAYOUT_H
#define TIDE_CHUNK_LAYOUT_H

#include "chunk/description.h"

#include <stdbool.h>

const char *tide_space_name(tide_space space); /* "param", "state", "activation" */

typedef uint32_t tide_chunk;
#define TIDE_CHUNK_NONE UINT32_MAX

typedef struct tide_layout tide_layout;

/* The part of the params that a layout is for: chunk `rank` of each group of `ranks` PARAM chunks. */
typedef struct tide_shard {
    uint32_t ranks; /* at least 1 */
    uint32_t rank;  /* below `ranks` */
} tide_shard;

#define TIDE_SHARD_ALL ((tide_shard){.ranks = 1, .rank = 0})

/* A part of a param that lies in one chunk. Offsets in elements. */
typedef struct tide_segment {
    uint32_t param;
    uint64_t param_offset_elements; /* first element, counted from the param's start */
    uint64_t chunk_offset_elements; /* the same element, counted from the PARAM chunk's start */
    uint64_t elements;
} tide_segment;

typedef struct tide_piece {
    tide_chunk param_chunk, state_chunk;
    uint64_t param_offset_elements; /* counted from the PARAM chunk's start; a multiple of 256 */
    uint64_t state_offset_elements; /* from each plane's start in the STATE chunk; a multiple of 256 */
    uint64_t elements;
} tide_piece;

/* Lay a rank's shard of a description out in chunks of `chunk_bytes`, a power of two of at least 4096 (the
 * pool asks for more). Fixes the description, which must outlive the layout. ARGUMENT: another chunk size; no
 * param; the state of 256 elements does not fit into a chunk; more than 2^32 chunks. NO_MEMORY. Freed with
 * tide_layout_destroy (NULL allowed). */
tide_status tide_layout_create(tide_description *description, uint64_t chunk_bytes, tide_shard shard,
                               tide_layout **layout);
void tide_layout_destroy(tide_layout *layout);

const tide_description *tide_layout_description(const tide_layout *layout);
tide_shard tide_layout_shard(const tide_layout *layout);

uint64_t tide_layout_chunk_bytes(const tide_layout *layout);
uint32_t tide_layout_chunk_count(const tide_layout *layout); /* of all spaces together */
uint32_t tide_layout_space_chunks(const tide_layout *layout, tide_space space);
tide_chunk tide_layout_chunk(const tide_layout *layout, tide_space space, uint32_t index);
tide_space tide_layout_chunk_space(const tide_layout *layout, tide_chunk chunk);
/* the chunk's number within its space */
uint32_t tide_layout_chunk_index(const tide_layout *layout, tide_chunk chunk);
/* The chunk's address, counted from its space's start. */
uint64_t tide_layout_chunk_offset_bytes(const tide_layout *layout, tide_chunk chunk);
/* The bytes from a chunk's start to the end of its content, which is the part that copies move. */
uint64_t tide_layout_chunk_used_bytes(const tide_layout *layout, tide_chunk chunk);

/* The state format of a PARAM or STATE chunk's class. */
const tide_state_format *tide_layout_chunk_format(const tide_layout *layout, tide_chunk chunk);
/* The number of pieces of a PARAM chunk, 0 if its class is frozen; and its i-th piece, in the order of
 * elements. */
uint32_t tide_layout_pieces(const tide_layout *layout, tide_chunk param_chunk);
tide_piece tide_layout_piece(const tide_layout *layout, tide_chunk param_chunk, uint32_t i);
/* The most pieces that any PARAM chunk has. */
uint32_t tide_layout_pieces_most(const tide_layout *layout);
/* The first and the last PARAM chunk that has a piece in common with this STATE chunk. */
void tide_layout_state_owners(const tide_layout *layout, tide_chunk state_chunk, tide_chunk *first,
                              tide_chunk *last);
/* The offset of a plane from the STATE chunk's start. */
uint64_t tide_layout_plane_offset_bytes(const tide_layout *layout, tide_chunk state_chunk, uint32_t plane);

uint32_t tide_layout_params(const tide_layout *layout);
/* A param of the description; its size is in elements. */
const tide_named *tide_layout_param(const tide_layout *layout, uint32_t param);
/* The number of a param's first element, counted from the PARAM space's start. */
uint64_t tide_layout_param_offset(const tide_layout *layout, uint32_t param);
/* The first and the last PARAM chunk in whose group a part of the param lies. */
void tide_layout_param_chunks(const tide_layout *layout, uint32_t param, tide_chunk *first, tide_chunk *last);
/* The params of which a part lies in a PARAM chunk's group, in the order in which they lie there: how many,
 * and the i-th one. */
uint32_t tide_layout_chunk_params(const tide_layout *layout, tide_chunk chunk);
uint32_t tide_layout_chunk_param(const tide_layout *layout, tide_chunk chunk, uint32_t i);
/* The parts of params in the chunk itself, or in a piece of it. The first call returns how many, and sets
 * *first so that they are of the group's params *first, *first + 1, ...; the second returns the part of the
 * i-th param of the group. */
uint32_t tide_layout_chunk_segments(const tide_layout *layout, tide_chunk chunk, uint32_t *first);
tide_segment tide_layout_chunk_segment(const tide_layout *layout, tide_chunk chunk, uint32_t i);
uint32_t tide_layout_piece_segments(const tide_layout *layout, const tide_piece *piece, uint32_t *first);
tide_segment tide_layout_piece_segment(const tide_layout *layout, const tide_piece *piece, uint32_t i);

uint32_t tide_layout_activations(const tide_layout *layout);
/* An ACTIVATION tensor; its size and offset are in bytes. */
const tide_named *tide_layout_activation(const tide_layout *layout, uint32_t activation);
uint32_t tide_layout_parts(const tide_layout *layout); /* how many parts all activations have together */
void tide_layout_activation_chunks(const tide_layout *layout, uint32_t activation, uint32_t part,
                                   tide_chunk *first, tide_chunk *last);

#endif
