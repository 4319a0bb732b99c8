/* Several ranks, each of which holds all params and state (ZeRO stage 0): their sums of a gradient are added
 * when the op that closes it ends. Gradients are cut at blocks of the norm. A block has one owner, which adds
 * the ranks' sums, rounds the result and computes the block's norm; then it sends both to all. All that an op
 * closes goes in one collective there and one back.
 *
 *     every rank's sums ---reduce---> the owner's sum ---> rounded, norm ---gather---> every rank
 *
 * The ranks also compare their calls: each step begins with an exchange of a hash of the calls so far, since
 * ranks that call different things would wait for each other or add different gradients.
 */
#include "src/pool/internal.h"

#include "base/align.h"
#include "base/hash.h"
#include "base/minmax.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kinds of ranges in the table of an op. */
enum { SUMS, ROUNDED, BLOCKS, KINDS };

/* Each piece of a gradient that one rank owns is a range of each kind. Every param adds at most one piece to
 * those that the ranks' ends cut. */
static uint64_t most_pieces(const tide_pool *pool)
{
    return pool->ranks.most_params + (uint64_t)tide_context_ranks(&pool->context);
}

/* The open op's ranges. No collective uses those of an op's last run any more: an op closes gradients once in
 * a step, and a step begins when the norm of the one before is known. ROUNDED and BLOCKS lie side by side. */
static tide_comm_range *table_of(const tide_pool *pool)
{
    return &pool->ranks.ranges[pool->op.number * KINDS * most_pieces(pool)];
}

/* --- the cut --- */

static uint64_t blocks_of(const tide_packed_param *param)
{
    return tide_ceil_div(param->elements, TIDE_NORM_BLOCK_ELEMENTS);
}

static bool closes(const tide_pool *pool, uint32_t use)
{
    return tide_gradients_closes(tide_manager_gradients(pool->engine.manager), pool->op.number,
                                 &tide_op_open(pool)->description->params[use]);
}

static const tide_packed_param *param_of(const tide_pool *pool, uint32_t use)
{
    return &pool->context.packing->params[tide_op_open(pool)->description->params[use].tensor];
}

/* A part of a gradient that one rank owns. */
typedef struct piece {
    uint32_t use; /* of the open op */
    uint64_t first, count;
    uint32_t owner;
} piece;

typedef tide_status (*visit_piece)(tide_pool *pool, const piece *part);

/* Calls `visit` for each piece of the gradients that the open op closes. The ranks own equally many blocks,
 * up to one. */
static tide_status for_each_piece(tide_pool *pool, visit_piece visit)
{
    const uint32_t uses = tide_op_open(pool)->description->param_count;
    const uint64_t ranks = tide_context_ranks(&pool->context);
    uint64_t all = 0, before = 0; /* blocks */
    tide_status status = TIDE_OK;
    for (uint32_t use = 0; use < uses; use++)
        all += closes(pool, use) ? blocks_of(param_of(pool, use)) : 0;
    uint64_t owner = 0;
    for (uint32_t use = 0; use < uses; use++) {
        if (!closes(pool, use))
            continue;
        const uint64_t elements = param_of(pool, use)->elements, blocks = blocks_of(param_of(pool, use));
        for (uint64_t block = 0; block < blocks && status == TIDE_OK;) {
            while ((owner + 1) * all / ranks <= before + block)
                owner++;
            const uint64_t end = tide_min_u64(blocks, (owner + 1) * all / ranks - before);
            const uint64_t first = block * TIDE_NORM_BLOCK_ELEMENTS;
            const piece part = {use, first, tide_min_u64(end * TIDE_NORM_BLOCK_ELEMENTS, elements) - first,
                                (uint32_t)owner};
            assert(end > block && owner < ranks);
            status = visit(pool, &part);
            block = end;
        }
        before += blocks;
    }
    return status;
}

/* Add the piece to the open op's table. */
static tide_status note_piece(tide_pool *pool, const piece *part)
{
    const tide_pool_context *context = &pool->context;
    const tide_packed_param *param = param_of(pool, part->use);
    const uint64_t dtype_bytes = tide_dtype_bytes(context->packing->description->dtype);
    double *blocks = (double *)(void *)(context->region + context->packing->region.blocks_offset);
    tide_comm_range *table = table_of(pool);
    const uint64_t at = pool->ranks.pieces++, most = most_pieces(pool);
    assert(at < most);
    table[SUMS * most + at] = (tide_comm_range){
        context->region + tide_op_open(pool)->accumulator_offsets[part->use] + part->first * sizeof(float),
        part->count * sizeof(float), part->owner};
    table[ROUNDED * most + 2 * at] = (tide_comm_range){
        context->space_address[TIDE_SPACE_PARAM] + param->data_offset_bytes + part->first * dtype_bytes,
        part->count * dtype_bytes, part->owner};
    table[ROUNDED * most + 2 * at + 1] =
        (tide_comm_range){blocks + param->first_block + part->first / TIDE_NORM_BLOCK_ELEMENTS,
                          tide_ceil_div(part->count, TIDE_NORM_BLOCK_ELEMENTS) * sizeof *blocks, part->owner};
    return TIDE_OK;
}

static tide_status finish_own(tide_pool *pool, const piece *part)
{
    return part->owner == tide_context_rank(&pool->context)
               ? tide_gradient_round(pool, part->use, part->first, part->count)
               : TIDE_OK;
}

/* --- collectives --- */

typedef struct collective_args {
    tide_comm *comm;
    tide_comm_reduction reduction; /* a gather needs only the ranges */
} collective_args;

/* On the collective stream's thread. */
static tide_status run_reduce(void *stream, const void *arguments)
{
    const collective_args *args = arguments;
    (void)stream;
    return tide_comm_reduce(args->comm, &args->reduction);
}

static tide_status run_gather(void *stream, const void *arguments)
{
    const collective_args *args = arguments;
    (void)stream;
    return tide_comm_gather(args->comm, args->reduction.of, args->reduction.ranges, args->reduction.count);
}

/* Count bytes that this rank receives. */
static void count_bytes(tide_pool *pool, uint64_t bytes)
{
    tide_monitor_lock(&pool->monitor);
    pool->telemetry.counters.sums.collective_bytes += bytes;
    tide_monitor_unlock(&pool->monitor);
}

static tide_status launch(tide_pool *pool, const char *label, tide_kernel kernel,
                          const tide_comm_range *ranges, uint64_t count)
{
    const tide_pool_context *context = &pool->context;
    const tide_region_layout *region = &context->packing->region;
    const bool rounded =
        context->options.reduce_dtype == TIDE_DTYPE_BF16 && context->packing->sum_groups == 1;
    const collective_args args = {
        .comm = context->options.ranks.comm,
        .reduction = {.of = tide_op_open(pool)->description->name,
                      .ranges = ranges,
                      .count = (uint32_t)count,
                      .travels_as = rounded ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32,
                      .scratch = context->region + region->workspace_offset - region->ring_bytes,
                      .scratch_bytes = region->ring_bytes}};
    uint64_t all = 0, own = 0;
    for (uint64_t i = 0; i < count; i++) {
        all += ranges[i].bytes;
        own += ranges[i].owner == tide_context_rank(context) ? ranges[i].bytes : 0;
    }
    const uint64_t sums = own * (tide_context_ranks(context) - 1) / (rounded ? 2 : 1);
    count_bytes(pool, kernel == run_reduce ? sums : all - own);
    const tide_kernel_work work = {label, kernel, &args, sizeof args, 0, (double)all, TIDE_PART_END};
    return tide_launch_kernel(pool, &work);
}

tide_status tide_ranks_reduce(tide_pool *pool)
{
    const tide_comm_range *table = table_of(pool);
    const uint64_t most = most_pieces(pool);
    pool->ranks.pieces = 0;
    (void)for_each_piece(pool, note_piece);
    const uint64_t pieces = pool->ranks.pieces;
    if (pieces == 0)
        return TIDE_OK;
    tide_status status = launch(pool, "gradient reduce", run_reduce, &table[SUMS * most], pieces);
    if (status == TIDE_OK)
        status = for_each_piece(pool, finish_own);
    return status == TIDE_OK ? launch(pool, "gradient gather", run_gather, &table[ROUNDED * most], 2 * pieces)
                             : status;
}

/* --- agreement --- */

/* STATE or the comm's failure if the ranks' numbers differ; the message says that `what` differs. */
static tide_status agree(const tide_pool *pool, uint64_t number, const char *what)
{
    tide_comm *comm = pool->context.options.ranks.comm;
    uint64_t *numbers = pool->ranks.numbers;
    tide_status status = tide_comm_exchange(comm, &number, sizeof number, numbers);
    for (uint32_t rank = 0; rank < tide_comm_ranks(comm) && status == TIDE_OK; rank++)
        if (numbers[rank] != number)
            status = tide_comm_fail(comm, tide_fail(TIDE_ERROR_PEER, "rank %u has %s than rank %u", rank,
                                                    what, tide_comm_rank(comm)));
    return status;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    return tide_hash_end(hash, text, strlen(text), strlen(text));
}

static uint64_t hash_param(uint64_t hash, const tide_packed_param *param)
{
    hash = tide_hash_u64(hash_text(hash, param->name), param->elements);
    hash = tide_hash_u64(hash, param->decays);
    for (uint32_t plane = 0; plane < param->state.planes; plane++)
        hash = tide_hash_u64(hash, param->state.bytes[plane]);
    return tide_hash_u64(hash, param->state.planes);
}

/* A hash of all that must be equal: budgets, chunk size and placement may differ. */
static uint64_t hash_model(const tide_pool *pool)
{
    const tide_packing *packing = pool->context.packing;
    const tide_pool_options *options = &pool->context.options;
    uint64_t hash = tide_hash_u64((uint64_t)packing->description->dtype, options->sum_groups);
    hash = tide_hash_u64(hash, (uint64_t)options->reduce_dtype);
    hash = tide_hash_u64(hash, options->ranks.zero_stage);
    hash = tide_hash_u64(hash, options->update != NULL);
    for (uint32_t i = 0; i < packing->param_count; i++)
        hash = hash_param(hash, &packing->params[i]);
    for (uint32_t i = 0; i < packing->op_count; i++) {
        const tide_op_description *op = packing->ops[i].description;
        hash = tide_hash_u64(hash_text(hash, op->name), op->slices);
        hash = tide_hash_u64(hash, (uint64_t)op->pass);
        for (uint32_t use = 0; use < op->param_count; use++)
            hash = tide_hash_u64(hash, (uint64_t)op->params[use].tensor << 32 | op->params[use].access);
    }
    return hash;
}

/* The comm cuts the words if the op's name is long. */
static void say_op(const tide_pool *pool, tide_op op)
{
    char words[64];
    const int length =
        snprintf(words, sizeof words, "computes %s", pool->context.packing->ops[op].description->name);
    assert(length > 0);
    (void)length;
    tide_comm_doing(pool->context.options.ranks.comm, TIDE_PHASE_COMPUTING, words);
}

void tide_ranks_call(tide_pool *pool, tide_rank_call call, uint64_t number)
{
    if (!tide_context_has_peers(&pool->context))
        return;
    pool->ranks.calls = tide_hash_u64(tide_hash_u64(pool->ranks.calls, (uint64_t)call), number);
    if (call == TIDE_CALL_OP_BEGIN)
        say_op(pool, (tide_op)number);
}

tide_status tide_ranks_step_begins(tide_pool *pool, const tide_step_options *options)
{
    if (!tide_context_has_peers(&pool->context) || pool->context.options.ranks.comm == NULL)
        return TIDE_OK;
    const float numbers[] = {options->learning_rate, options->beta1,     options->beta2,     options->epsilon,
                             options->weight_decay,  options->clip_norm, options->loss_scale};
    tide_ranks_call(pool, TIDE_CALL_STEP_BEGIN, options->training);
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0] && options->training; i++) {
        uint32_t bits;
        memcpy(&bits, &numbers[i], sizeof bits);
        tide_ranks_call(pool, TIDE_CALL_STEP_BEGIN, bits);
    }
    return agree(pool, pool->ranks.calls, "made other calls, or calls with other values,");
}

/* --- create --- */

tide_status tide_ranks_create(tide_pool *pool)
{
    const tide_pool_context *context = &pool->context;
    const tide_packing *packing = context->packing;
    tide_pool_ranks *ranks = &pool->ranks;
    if (!tide_context_has_peers(context))
        return TIDE_OK;
    for (tide_op op = 0; op < packing->op_count; op++)
        ranks->most_params = tide_max_u32(ranks->most_params, packing->ops[op].description->param_count);
    ranks->ranges = calloc(packing->op_count * KINDS * most_pieces(pool), sizeof *ranks->ranges);
    ranks->numbers = calloc(tide_context_ranks(context), sizeof *ranks->numbers);
    if (ranks->ranges == NULL || ranks->numbers == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %u ranks", tide_context_ranks(context));
    return context->options.ranks.comm == NULL ? TIDE_OK
                                               : agree(pool, hash_model(pool), "another model or options");
}

void tide_ranks_destroy(tide_pool *pool)
{
    free(pool->ranks.ranges);
    free(pool->ranks.numbers);
    pool->ranks = (tide_pool_ranks){.ranges = NULL};
}
