/* A decoder-only transformer of any family (family.h): describes its params, activations and ops, and runs
 * the ops in order on a pool.
 *
 * Ops, in the order in which a training step runs them (d x is the gradient of x):
 *
 *     embedding                 writes residual 0
 *     block 0 .. L-1            reads residual i, writes residual i + 1 and, unless recomputing, activations
 *     head                      final norm, logits and loss; overwrites residual L with d residual L
 *     block L-1 .. 0 backward   reads d residual i + 1 a last time, overwrites residual i with d residual i
 *     embedding backward        reads d residual 0
 *
 * The forward-only ops come after these and save nothing for backward: evaluation blocks and head, and the
 * logits of one position for sampling. All micro-batches of the local batch pass through an op while its
 * params are resident.
 *
 * Frozen params get no gradient. Backward ends at the lowest block with a trained param, or at the head if no
 * block has one; blocks below it save nothing for backward. If the token or position embedding is trained,
 * backward goes on to the embedding.
 *
 * Recompute. A block either saves its activations in an ACTIVATION tensor or computes them again in the
 * workspace of its backward op, by the same kernels from the same stored residual. Both give the same bits.
 *
 * A decoder that generates (options.cache_tokens) has other ops: embedding, blocks and logits, for a few
 * tokens of one sequence. Keys and values of the tokens before them lie in a cache in the pool's region, so a
 * token costs a pass of one row (decoder_cached.h). All its params are frozen: it needs neither gradients nor
 * state.
 *
 * The caller opens and closes the pool's steps. A failure leaves the step open; the caller must abort it. */
#ifndef TIDE_MODEL_DECODER_H
#define TIDE_MODEL_DECODER_H

#include "kernels/kernels.h"
#include "src/model/params.h"
#include "tidepool/pool.h"

typedef struct tide_decoder tide_decoder;

/* Called for each launch in an op's code while the op is described: in the slices of one step together the op
 * runs this kernel `times` times, which may be 0. Ops have the numbers of the description. */
typedef void (*tide_decoder_seen)(void *context, tide_op op, const char *label, double flops, double bytes,
                                  uint32_t times);

typedef struct tide_decoder_options {
    tide_model_config config;
    tide_dtype dtype;
    uint32_t seq_len; /* 1 .. context */
    uint32_t micro_batch_sequences;
    uint32_t micro_batches; /* those that this process runs */
    /* 0: the decoder trains. Otherwise it generates, and its cache has space for so many tokens, 1 ..
     * context; seq_len and micro_batches must be 1, micro_batch_sequences is the number of tokens of a
     * long pass, at most cache_tokens, and recompute and frozen are not read */
    uint32_t cache_tokens;
    uint32_t sum_groups; /* of the pool that will run the model (tidepool/pool.h, section 5), at least 1 */
    /* [layers]: does the block recompute its activations? Blocks that backward does not reach save nothing
     * anyway. Read during create only */
    const bool *recompute;
    /* [tensor_count]: is the tensor frozen? All tensors of a param have the same value, and at least one
     * param is trained. NULL: none is frozen. Read during create only */
    const bool *frozen;
    tide_comm *comm; /* the pool's (tide_ranks_options): its ranks' losses are added; NULL: one rank */
    const tide_kernels *kernels;
    tide_decoder_seen seen; /* called during create only; may be NULL */
    void *seen_context;
} tide_decoder_options;

/* The parts of the pool's region (the description's nonmodel_bytes) that the model uses. */
typedef struct tide_decoder_region {
    /* int32s of the local batch (tide_decoder_batch) */
    uint64_t inputs_offset, targets_offset, starts_offset;
    uint64_t losses_offset;    /* fp32, one for each row of a micro-batch */
    uint64_t loss_sums_offset; /* the sum of each micro-batch's losses, doubles */
    uint64_t logits_offset;    /* logits of one position, fp32 */
    uint64_t rope_offset;      /* the table of rotary positions, if the family has them */
    /* of a decoder that generates: the residual of a pass's tokens, and the cache, of each layer in turn */
    uint64_t residual_offset, keys_offset, values_offset;
    uint64_t bytes;
} tide_decoder_region;

/* Lay out these parts. Reads neither options->recompute nor options->kernels. */
tide_decoder_region tide_decoder_region_layout(const tide_decoder_options *options);

/* Bytes of one micro-batch's part of an ACTIVATION tensor: of a residual, and of a block's saved
 * activations. */
uint64_t tide_decoder_residual_part_bytes(const tide_decoder_options *options);
uint64_t tide_decoder_saved_part_bytes(const tide_decoder_options *options);

/* Make a model: describe its params, activations and ops, and prepare every matmul. The caller has set the
 * CPU kernels' number of threads to the pool's (tide_device_factory_threads), which decides the ops'
 * workspaces. Statuses of the description's calls and of matmul_prepare; NO_MEMORY. */
TIDE_NODISCARD tide_status tide_decoder_create(const tide_decoder_options *options, tide_decoder **model);
/* Destroy the model and its description, after the pools that were made from it. */
void tide_decoder_destroy(tide_decoder *model);

/* The model's description, which the model owns. */
tide_description *tide_decoder_description(tide_decoder *model);
/* Run the model on `pool`, which the caller has made from the description and whose device runs
 * options->kernels. Calls below that read or change values or run ops need it. */
void tide_decoder_attach(tide_decoder *model, tide_pool *pool);

/* The pool's handle of the index-th param of the config. The param's elements are those of its tensors and,
 * behind them, its padding, if it has any. */
tide_param tide_decoder_param_handle(const tide_decoder *model, size_t index);

/* tide_param_set for elements [first, first + count) of a tensor. A call that sets a param's last element
 * sets the param's padding to zero, too; so a caller who sets all tensors recovers a poisoned pool. Statuses
 * of tide_param_set. */
TIDE_NODISCARD tide_status tide_decoder_values_set(tide_decoder *model, size_t tensor, tide_value value,
                                                   uint64_t first, uint64_t count, const float *values);
/* Like tide_decoder_values_set, with values of any dtype: tide_param_set_as. */
TIDE_NODISCARD tide_status tide_decoder_values_set_as(tide_decoder *model, size_t tensor, tide_value value,
                                                      uint64_t first, uint64_t count, tide_dtype dtype,
                                                      const void *values);
/* tide_param_get for elements [first, first + count) of a tensor. For a frozen tensor both get and set accept
 * MASTER alone; they then use its only value, which was rounded once to the pool's dtype. */
TIDE_NODISCARD tide_status tide_decoder_values_get(const tide_decoder *model, size_t tensor, tide_value value,
                                                   uint64_t first, uint64_t count, float *values);
bool tide_decoder_tensor_is_frozen(const tide_decoder *model, size_t tensor);

/* How many ops a training step runs: the first ones of the description, in order, each for all its slices. */
uint32_t tide_decoder_training_ops(const tide_decoder *model);

/* Floating-point operations of all ops of a training step, recompute included. */
double tide_decoder_step_flops(const tide_decoder *model);

/* The lowest block that backward reaches if these tensors are frozen (NULL: no tensor is). 0 also if
 * backward goes on to the embedding; `layers` if it reaches no block. */
uint32_t tide_decoder_lowest_trained(const tide_model_config *config, const bool *frozen);

/* Set all params to their initial values. No step may be open. Calls `progress`, unless NULL, on the
 * caller's thread, with the text "initial values" and the values set so far and in all, in bytes of fp32. */
TIDE_NODISCARD tide_status tide_decoder_init(tide_decoder *model, uint64_t seed,
                                             tide_progress_callback progress, void *progress_context);

/* The tokens of the local batch, micro-batch after micro-batch. Every token must be below vocab_size. */
typedef struct tide_decoder_batch {
    const int32_t *inputs;
    const int32_t *targets; /* a target below 0 is not learned */
    const int32_t *starts;  /* of documents (tide_row_position); NULL: each sequence is one document */
    uint64_t learned;       /* learned targets of the global batch: they divide gradients and loss */
} tide_decoder_batch;

/* Copy the batch into the region, for the training ops or the evaluation that follow. Call it inside a step,
 * before the step's ops. */
TIDE_NODISCARD tide_status tide_decoder_upload(tide_decoder *model, const tide_decoder_batch *batch);

/* Run all ops of a training step, or of an evaluation (forward only), on the local batch. The gradient is its
 * part of the gradient of the global batch's mean loss. Training multiplies the gradient, not the loss, by
 * `loss_scale`, which must be that of the step's options. */
TIDE_NODISCARD tide_status tide_decoder_train(tide_decoder *model, float loss_scale);
TIDE_NODISCARD tide_status tide_decoder_evaluate(tide_decoder *model);

/* Wait for the ops and read the sums of losses of this rank's micro-batches. Call it inside the step. Fails
 * as tide_read does. */
TIDE_NODISCARD tide_status tide_decoder_read_losses(tide_decoder *model);
/* After tide_decoder_read_losses: exchange the sums with all ranks. *loss is the global batch's mean loss, in
 * nats per learned token: the sums of all ranks' micro-batches, added in their order. 0 if no token is
 * learned. Fails as tide_comm_exchange does. */
TIDE_NODISCARD tide_status tide_decoder_exchange_losses(tide_decoder *model, double *loss);
/* Read the losses and exchange them. */
TIDE_NODISCARD tide_status tide_decoder_loss(tide_decoder *model, double *loss);

/* Run a forward-only pass over one sequence of seq_len tokens and read logits[vocab_size] of the token after
 * tokens[position]. Call it inside a forward-only step. Later tokens have no influence but must be below
 * vocab_size. */
TIDE_NODISCARD tide_status tide_decoder_logits(tide_decoder *model, const int32_t *tokens, uint32_t position,
                                               float *logits);

#endif
