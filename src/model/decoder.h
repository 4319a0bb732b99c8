/* A decoder-only transformer on a pool, of any family (family.h): registers its params, activations and ops, and runs them in order.
 *
 * Ops, in the order in which a training step runs them:
 *
 *     embedding            residual 0 is written
 *     block 0 .. L-1       reads residual i, writes residual i + 1; without recompute also its activations
 *     head                 final norm, logits, loss and their gradient: residual L becomes d residual L
 *     block L-1 .. 0 backward   d residual i + 1 ends here, residual i becomes d residual i
 *     embedding backward
 *
 * then the forward-only ones, which keep nothing: evaluation blocks and head, and the logits of one position
 * for sampling. All micro-batches of a batch pass through an op while its params are resident.
 *
 * Frozen params get no gradient. Backward ends at the lowest block that has a param that is trained, or at the head; blocks
 * beneath keep nothing for it. With the token or position embedding trained it goes to the embedding.
 *
 * Recompute. A block either saves its activations in an ACTIVATION tensor or makes them again, in the
 * workspace of its backward op, by the same kernels from the same stored residual: the same bits.
 *
 * The caller opens and closes the pool's steps. Any failure leaves the step open: abort it.
 */
#ifndef TIDE_MODEL_DECODER_H
#define TIDE_MODEL_DECODER_H

#include "kernels/kernels.h"
#include "src/model/params.h"
#include "tidepool/pool.h"

typedef struct tide_decoder tide_decoder;

typedef struct tide_decoder_options {
    tide_model_config config;
    tide_dtype dtype; /* the pool's */
    uint32_t seq_len; /* 1 .. context */
    uint32_t micro_batch_sequences;
    uint32_t micro_batches;
    /* [layers]; read during create only; of blocks that backward does not reach: nothing is saved */
    const bool *recompute;
    /* [tensor_count], a param's tensors alike; NULL: none is. Not all are. Read during create only */
    const bool *frozen;
    const tide_kernels *kernels;
} tide_decoder_options;

/* What the model wants of the pool's region (tide_pool_options.nonmodel_bytes), and where. */
typedef struct tide_decoder_region {
    uint64_t inputs_offset, targets_offset; /* int32 tokens of the whole batch */
    uint64_t losses_offset;                 /* fp32, one micro-batch's rows */
    uint64_t loss_sum_offset;               /* one double */
    uint64_t logits_offset;                 /* one position's, as fp32 */
    uint64_t rope_offset;                   /* the table of rotary positions, if there are any */
    uint64_t bytes;
} tide_decoder_region;

/* Reads neither `recompute` nor `kernels`. */
tide_decoder_region tide_decoder_region_layout(const tide_decoder_options *options);

/* Bytes of an ACTIVATION part: a residual's, and a block's saved activations'. */
uint64_t tide_decoder_residual_part_bytes(const tide_decoder_options *options);
uint64_t tide_decoder_saved_part_bytes(const tide_decoder_options *options);

/* Register all with an unsealed pool, whose region starts with tide_decoder_region_layout, and prepare every
 * matrix product. Statuses of the pool's register calls and of matmul_prepare; NO_MEMORY. The model must be
 * destroyed before the pool or with it, and is useless after a failed seal. */
TIDE_NODISCARD tide_status tide_decoder_create(tide_pool *pool, const tide_decoder_options *options,
                                               tide_decoder **model);
void tide_decoder_destroy(tide_decoder *model);

/* The pool's number of the index-th param of the configuration. Its elements are those of its tensors, and behind them the
 * padding, if it has one. */
tide_param tide_decoder_param_handle(const tide_decoder *model, size_t index);

/* tide_param_set of a range of the index-th tensor's elements; with a param's last element its padding is set
 * to zero. So a caller that sets all tensors recovers a poisoned pool. Statuses of tide_param_set. */
TIDE_NODISCARD tide_status tide_decoder_values_set(tide_decoder *model, size_t tensor, tide_value value,
                                                   uint64_t first, uint64_t count, const float *values);
/* tide_param_set_as likewise. */
TIDE_NODISCARD tide_status tide_decoder_values_set_as(tide_decoder *model, size_t tensor, tide_value value,
                                                      uint64_t first, uint64_t count, tide_dtype dtype,
                                                      const void *values);
/* tide_param_get likewise. Of a frozen tensor both know MASTER alone: its value, rounded once. */
TIDE_NODISCARD tide_status tide_decoder_values_get(const tide_decoder *model, size_t tensor, tide_value value,
                                                   uint64_t first, uint64_t count, float *values);
bool tide_decoder_tensor_is_frozen(const tide_decoder *model, size_t tensor);

/* Floating-point operations of a training step's ops, recompute included. */
double tide_decoder_step_flops(const tide_decoder *model);

/* The lowest block that backward reaches with such frozen tensors: 0 also if it goes on to the embedding; layers: none. */
uint32_t tide_decoder_lowest_trained(const tide_model_config *config, const bool *frozen);

/* Initial values into all params. No step may be open. `progress`, unless NULL, is told of "initial values", in bytes
 * of fp32, by the caller's thread. */
TIDE_NODISCARD tide_status tide_decoder_init(tide_decoder *model, uint64_t seed,
                                             tide_progress_callback progress, void *progress_context);

/* Copy the tokens of one batch (micro-batch after micro-batch) into the region. Inside a step, before its
 * ops. Every token is below vocab_size. */
TIDE_NODISCARD tide_status tide_decoder_upload(tide_decoder *model, const int32_t *inputs,
                                               const int32_t *targets);

/* All ops of a training step, or of an evaluation (forward only). The gradient, not the loss, is multiplied by
 * `loss_scale`: what the step's options say. */
TIDE_NODISCARD tide_status tide_decoder_train(tide_decoder *model, float loss_scale);
TIDE_NODISCARD tide_status tide_decoder_evaluate(tide_decoder *model);

/* Wait for the ops and give the batch's mean loss, nats a token. Inside the step. */
TIDE_NODISCARD tide_status tide_decoder_loss(tide_decoder *model, double *loss);

/* A forward-only pass, inside a forward-only step, over a single sequence of seq_len tokens:
 * logits[vocab_size] of what follows tokens[position]. Later tokens have no influence but must be below
 * vocab_size. */
TIDE_NODISCARD tide_status tide_decoder_logits(tide_decoder *model, const int32_t *tokens, uint32_t position,
                                               float *logits);

#endif
