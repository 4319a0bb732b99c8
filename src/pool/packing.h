/* A description laid out in chunks of one size: the place of each param and activation in the chunks, the
 * memory that each op needs, and every offset in the region.
 *
 *   region  | non-model | shared accumulators | norm blocks | scalars | ring | op: workspace, accumulators |
 *
 * Accumulators come in sets (tidepool/pool.h, section 5, defines sum groups). Of V sum groups each has a set
 * of its own of a shared accumulator, since its op may not close the gradient. An op's own accumulators need
 * fewer sets, because a group that has ended is added to those before it as soon as the tree allows: group g
 * begins in set popcount(g), and after it one addition for each trailing one bit of g moves the sums down. (A
 * binary counter; with V = 2^k it needs k + 1 sets.)
 *
 * The region's size depends neither on the chunk size nor on budgets, so the results of kernels that work
 * there cannot depend on them either. Nothing changes a packing after it is made: a plan reads it, a pool
 * owns it, and the pool that predicts its steps shares it. Calls the layout, the ops and the manager's needs.
 */
#ifndef TIDE_POOL_PACKING_H
#define TIDE_POOL_PACKING_H

#include "chunk/manager.h"

/* The parts of the region that the hazard checker tells apart. The two ends are one range of addresses, in
 * which ops lay their accumulators from both ends in turn; with one end an op's workspace is there, too, and
 * WORKSPACE and HIGH are empty. */
typedef enum tide_region_part {
    TIDE_REGION_NONMODEL = 0,
    TIDE_REGION_SHARED, /* accumulators that several ops share */
    TIDE_REGION_NORM,   /* norm blocks, scalars */
    TIDE_REGION_WORKSPACE,
    TIDE_REGION_LOW,
    TIDE_REGION_HIGH,
    TIDE_REGION_PARTS,
} tide_region_part;

/* Offsets in the region in bytes; its parts follow each other without gaps. */
typedef struct tide_region_layout {
    uint64_t shared_offset; /* accumulators that several ops share */
    uint64_t blocks_offset;
    uint64_t blocks_count;
    uint64_t scalars_offset;
    uint64_t workspace_offset; /* the largest op's workspace and accumulators */
    uint64_t ends_offset;      /* with two ends where LOW begins, else workspace_offset */
    uint64_t total_bytes;
    uint64_t sets_bytes; /* of total_bytes, the share of sets beyond the first */
    uint64_t ring_bytes; /* behind the scalars, for gradients that arrive from other ranks */
} tide_region_layout;

enum { TIDE_SCALAR_BYTES = TIDE_ALIGNMENT_BYTES }; /* of the norm's scalar, in the region and on the host */

typedef struct tide_packed_param {
    const char *name;
    uint64_t elements;
    tide_state_format state; /* no planes: frozen */
    bool decays;
    uint64_t first_block;               /* index of its first norm block in the region */
    tide_chunk first_chunk, last_chunk; /* in the PARAM space */
    uint64_t data_offset_bytes;         /* from the PARAM space's start */
    /* its shared accumulator in the region, one set after another; UINT64_MAX: none */
    uint64_t shared_offset_bytes;
} tide_packed_param;

typedef struct tide_packed_op {
    const tide_op_description *description;
    /* of the first set, in the region, per param use; UINT64_MAX: the param has no gradient */
    uint64_t *accumulator_offsets;
    bool makes_gradients, uses_shared; /* has GRAD access to a param; to a shared accumulator, or closes it */
    tide_region_part end;              /* LOW or HIGH: where its own accumulators lie */
    uint32_t turn; /* its number among the ops with accumulators of their own, from 1; 0: it has none */
    uint64_t set_offset, set_bytes; /* its own accumulators: the first set, and how long each is */
} tide_packed_op;

typedef struct tide_packing {
    tide_description *description; /* fixed */
    tide_layout *layout;
    tide_slot_needs needs;
    uint32_t sum_groups; /* at least 1 */
    bool two_ends;
    tide_region_layout region;
    tide_packed_param *params;
    uint32_t param_count;
    tide_packed_op *ops;
    uint32_t op_count;
    tide_arrays arrays; /* of the tables above */
} tide_packing;

static inline bool tide_packed_param_is_frozen(const tide_packed_param *param)
{
    return param->state.planes == 0;
}

static inline uint64_t tide_packed_param_accumulator_bytes(const tide_packed_param *param)
{
    return tide_align_up(param->elements * sizeof(float));
}

/* The set of an op's own accumulators in which a sum group begins: the count of one bits in its number. */
static inline uint32_t tide_packing_set(uint32_t group)
{
    uint32_t set = 0;
    for (; group != 0; group &= group - 1)
        set++;
    return set;
}

/* Has the op GRAD access to a param? */
bool tide_packing_makes_gradients(const tide_op_description *op);
/* STATE, naming the call, if the description has no op or no param. */
TIDE_NODISCARD tide_status tide_packing_check(const tide_description *description, const char *call);
/* Where a part of the region lies, in bytes from the region's start. */
typedef struct tide_region_range {
    uint64_t begin, end;
} tide_region_range;
tide_region_range tide_packing_part(const tide_packing *packing, tide_region_part part);

typedef struct tide_packing_options {
    uint64_t chunk_bytes;
    tide_shard shard;
    tide_placement placement;
    uint32_t sum_groups; /* of this rank */
    bool two_ends;
    uint64_t ring_bytes; /* for gradients that arrive from other ranks */
} tide_packing_options;

/* Pack a description that tide_packing_check allows; fixes it. Statuses of tide_layout_create. After a
 * failure nothing is left to destroy. */
TIDE_NODISCARD tide_status tide_packing_create(tide_packing *packing, tide_description *description,
                                               const tide_packing_options *options);
void tide_packing_destroy(tide_packing *packing); /* zeroed: allowed */
/* The parts of the region follow each other, each aligned. */
bool tide_packing_is_valid(const tide_packing *packing);

#endif
