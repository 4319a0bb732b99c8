/* The model as the pool sees it: params under Hugging Face's names in creation order, activations that
 * outlive an op as CHECKPOINT tensors, and ops with exact accesses. What an op computes is in gpt2_block.c
 * and gpt2_ends.c; here is who runs when, and who may touch what.
 *
 *     op                   params                     residuals                        kept activations
 *     embedding            READ wte wpe               0 WRITE
 *     block i              READ all 12                i READ, i + 1 WRITE              WRITE
 *     head                 READ GRAD wte ln_f         L READ WRITE
 *     block i backward     GRAD all 12, READ what     i READ WRITE,                    READ LAST
 *                          it multiplies by           i + 1 READ WRITE LAST
 *     embedding backward   GRAD wte wpe               0 READ LAST
 *     evaluation block i   READ all 12                i READ LAST, i + 1 WRITE
 *     evaluation head      READ wte ln_f              L READ LAST
 *     logits               READ wte ln_f              L READ LAST
 */
#include "src/model/gpt2_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USES_MAX = 16, INIT_RANGE_ELEMENTS = 1 << 16 };

/* An op's description while it is being put together. */
typedef struct declaration {
    char name[48];
    tide_pass pass;
    tide_use params[USES_MAX];
    tide_use checkpoints[USES_MAX];
    uint32_t param_count, checkpoint_count;
    bool sampled; /* sampling runs it too, with one sequence */
    bool sampled_only;
} declaration;

/* --- sizes --- */

static uint64_t micro_batch_rows(const tide_gpt2_options *options)
{
    return (uint64_t)options->seq_len * options->micro_batch_sequences;
}

tide_gpt2_region tide_gpt2_region_layout(const tide_gpt2_options *options)
{
    const uint64_t rows = micro_batch_rows(options);
    const uint64_t token_bytes = tide_align_up(rows * options->micro_batches * sizeof(int32_t));
    tide_gpt2_region region = {.inputs_offset = 0};
    region.targets_offset = region.inputs_offset + token_bytes;
    region.losses_offset = region.targets_offset + token_bytes;
    region.loss_sum_offset = region.losses_offset + tide_align_up(rows * sizeof(float));
    region.logits_offset = region.loss_sum_offset + tide_align_up(sizeof(double));
    region.bytes = region.logits_offset + tide_align_up(options->config.vocab_size * sizeof(float));
    return region;
}

uint64_t tide_gpt2_residual_part_bytes(const tide_gpt2_options *options)
{
    return micro_batch_rows(options) * options->config.width * tide_dtype_bytes(options->dtype);
}

uint64_t tide_gpt2_saved_part_bytes(const tide_gpt2_options *options)
{
    uintptr_t end = 0;
    tide_gpt2_activations activations;
    tide_gpt2_activations_place(options, options->micro_batch_sequences, &end, &activations);
    return end;
}

/* --- declaring --- */

static void declare_param(const tide_gpt2 *model, declaration *op, tide_gpt2_role role, uint32_t layer,
                          uint32_t access)
{
    assert(op->param_count < USES_MAX);
    const size_t index = tide_gpt2_param_index(&model->options.config, role, layer);
    op->params[op->param_count++] = (tide_use){.tensor = model->params[index], .access = access};
}

static void declare_layer(const tide_gpt2 *model, declaration *op, uint32_t layer)
{
    for (int role = TIDE_GPT2_LN_1_WEIGHT; role <= TIDE_GPT2_MLP_PROJ_BIAS; role++)
        declare_param(model, op, (tide_gpt2_role)role, layer, TIDE_ACCESS_READ);
}

static void declare_head(const tide_gpt2 *model, declaration *op, uint32_t access)
{
    declare_param(model, op, TIDE_GPT2_WTE, 0, access);
    declare_param(model, op, TIDE_GPT2_LN_F_WEIGHT, 0, access);
    declare_param(model, op, TIDE_GPT2_LN_F_BIAS, 0, access);
}

static void declare_checkpoint(declaration *op, tide_checkpoint checkpoint, uint32_t access)
{
    assert(op->checkpoint_count < USES_MAX);
    op->checkpoints[op->checkpoint_count++] = (tide_use){.tensor = checkpoint, .access = access};
}

/* Backward multiplies by every weight; a bias is needed only to make the activations again, and the last one
 * not even then. */
static bool backward_reads(tide_gpt2_role role, bool recompute)
{
    switch (role) {
    case TIDE_GPT2_LN_1_BIAS:
    case TIDE_GPT2_ATTN_QKV_BIAS:
    case TIDE_GPT2_ATTN_PROJ_BIAS:
    case TIDE_GPT2_LN_2_BIAS:
    case TIDE_GPT2_MLP_FC_BIAS:
        return recompute;
    case TIDE_GPT2_MLP_PROJ_BIAS:
        return false;
    default:
        return true;
    }
}

static declaration embedding_op(const tide_gpt2 *model, uint32_t layer)
{
    (void)layer;
    declaration op = {.name = "embedding", .pass = TIDE_PASS_FORWARD, .sampled = true};
    declare_param(model, &op, TIDE_GPT2_WTE, 0, TIDE_ACCESS_READ);
    declare_param(model, &op, TIDE_GPT2_WPE, 0, TIDE_ACCESS_READ);
    declare_checkpoint(&op, model->residuals[0], TIDE_ACCESS_WRITE);
    return op;
}

static declaration block_op(const tide_gpt2 *model, uint32_t layer)
{
    declaration op = {.pass = TIDE_PASS_FORWARD};
    snprintf(op.name, sizeof op.name, "block %u forward", layer);
    declare_layer(model, &op, layer);
    declare_checkpoint(&op, model->residuals[layer], TIDE_ACCESS_READ);
    declare_checkpoint(&op, model->residuals[layer + 1], TIDE_ACCESS_WRITE);
    if (!model->recompute[layer])
        declare_checkpoint(&op, model->saved[layer], TIDE_ACCESS_WRITE);
    return op;
}

static declaration head_op(const tide_gpt2 *model, uint32_t layer)
{
    (void)layer;
    declaration op = {.name = "head", .pass = TIDE_PASS_BOTH};
    declare_head(model, &op, TIDE_ACCESS_READ | TIDE_ACCESS_GRAD);
    declare_checkpoint(&op, model->residuals[model->options.config.layers],
                       TIDE_ACCESS_READ | TIDE_ACCESS_WRITE);
    return op;
}

static declaration backward_op(const tide_gpt2 *model, uint32_t layer)
{
    const bool recompute = model->recompute[layer];
    declaration op = {.pass = TIDE_PASS_BACKWARD};
    snprintf(op.name, sizeof op.name, "block %u backward", layer);
    for (int role = TIDE_GPT2_LN_1_WEIGHT; role <= TIDE_GPT2_MLP_PROJ_BIAS; role++) {
        const uint32_t read = backward_reads((tide_gpt2_role)role, recompute) ? TIDE_ACCESS_READ : 0;
        declare_param(model, &op, (tide_gpt2_role)role, layer, TIDE_ACCESS_GRAD | read);
    }
    declare_checkpoint(&op, model->residuals[layer], TIDE_ACCESS_READ | TIDE_ACCESS_WRITE);
    declare_checkpoint(&op, model->residuals[layer + 1],
                       TIDE_ACCESS_READ | TIDE_ACCESS_WRITE | TIDE_ACCESS_LAST);
    if (!recompute)
        declare_checkpoint(&op, model->saved[layer], TIDE_ACCESS_READ | TIDE_ACCESS_LAST);
    return op;
}

static declaration embedding_backward_op(const tide_gpt2 *model, uint32_t layer)
{
    (void)layer;
    declaration op = {.name = "embedding backward", .pass = TIDE_PASS_BACKWARD};
    declare_param(model, &op, TIDE_GPT2_WTE, 0, TIDE_ACCESS_GRAD);
    declare_param(model, &op, TIDE_GPT2_WPE, 0, TIDE_ACCESS_GRAD);
    declare_checkpoint(&op, model->residuals[0], TIDE_ACCESS_READ | TIDE_ACCESS_LAST);
    return op;
}

static declaration evaluation_block_op(const tide_gpt2 *model, uint32_t layer)
{
    declaration op = {.pass = TIDE_PASS_FORWARD, .sampled = true};
    snprintf(op.name, sizeof op.name, "block %u evaluation", layer);
    declare_layer(model, &op, layer);
    declare_checkpoint(&op, model->residuals[layer], TIDE_ACCESS_READ | TIDE_ACCESS_LAST);
    declare_checkpoint(&op, model->residuals[layer + 1], TIDE_ACCESS_WRITE);
    return op;
}

static declaration evaluation_head_op(const tide_gpt2 *model, uint32_t layer)
{
    (void)layer;
    declaration op = {.name = "head evaluation", .pass = TIDE_PASS_FORWARD};
    declare_head(model, &op, TIDE_ACCESS_READ);
    declare_checkpoint(&op, model->residuals[model->options.config.layers],
                       TIDE_ACCESS_READ | TIDE_ACCESS_LAST);
    return op;
}

static declaration logits_op(const tide_gpt2 *model, uint32_t layer)
{
    declaration op = evaluation_head_op(model, layer);
    snprintf(op.name, sizeof op.name, "logits");
    op.sampled_only = true;
    return op;
}

/* --- registering --- */

static tide_gpt2_tape tape_of(tide_gpt2 *model, const tide_gpt2_op *op)
{
    return (tide_gpt2_tape){.model = model,
                            .layer = op->layer,
                            .sequences = model->options.micro_batch_sequences,
                            .workspace_bytes = op->workspace_bytes};
}

/* Run the op's code for its sizes alone; the workspace becomes the largest seen so far. */
static tide_status measure(tide_gpt2 *model, tide_gpt2_op *op, uint32_t sequences)
{
    tide_gpt2_tape tape = tape_of(model, op);
    tape.sequences = sequences;
    tape.measuring = true;
    op->code(&tape);
    const uint64_t workspace_bytes = tape.cursor + tide_align_up(tape.scratch_bytes);
    if (op->workspace_bytes < workspace_bytes)
        op->workspace_bytes = workspace_bytes;
    op->flops = tape.flops * model->options.micro_batches;
    op->bytes = tape.bytes * model->options.micro_batches;
    return tape.status;
}

static tide_status measure_all(tide_gpt2 *model, const declaration *declared, tide_gpt2_op *op)
{
    const uint32_t sequences = model->options.micro_batch_sequences;
    if (declared->sampled || declared->sampled_only) {
        const tide_status status = measure(model, op, 1);
        if (status != TIDE_OK || declared->sampled_only || sequences == 1)
            return status;
    }
    return measure(model, op, sequences);
}

static tide_status register_op(tide_gpt2 *model, const declaration *declared, uint32_t layer,
                               tide_gpt2_op_code code)
{
    tide_gpt2_op *op = &model->ops[model->order.count];
    *op = (tide_gpt2_op){.layer = layer, .code = code};
    const tide_status status = measure_all(model, declared, op);
    if (status != TIDE_OK)
        return status;
    const tide_op_description description = {
        .name = declared->name,
        .pass = declared->pass,
        .params = declared->params,
        .param_count = declared->param_count,
        .checkpoints = declared->checkpoints,
        .checkpoint_count = declared->checkpoint_count,
        .slices = model->options.micro_batches,
        .workspace_bytes = op->workspace_bytes,
        .flops = op->flops,
        .bytes = op->bytes,
    };
    const tide_status registered = tide_op_register(model->pool, &description, &op->handle);
    if (registered == TIDE_OK)
        model->order.count++;
    return registered;
}

typedef declaration (*declare)(const tide_gpt2 *model, uint32_t layer);

/* One op, whose place in the order is *first; or one a layer, upwards or downwards, from *first on. */
static tide_status register_one(tide_gpt2 *model, declare declare_op, tide_gpt2_op_code code, uint32_t *first)
{
    *first = model->order.count;
    const declaration declared = declare_op(model, 0);
    return register_op(model, &declared, 0, code);
}

static tide_status register_layers(tide_gpt2 *model, declare declare_op, tide_gpt2_op_code code,
                                   bool downwards, uint32_t *first)
{
    const uint32_t layers = model->options.config.layers;
    *first = model->order.count;
    for (uint32_t i = 0; i < layers; i++) {
        const uint32_t layer = downwards ? layers - 1 - i : i;
        const declaration declared = declare_op(model, layer);
        const tide_status status = register_op(model, &declared, layer, code);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

static tide_status register_ops(tide_gpt2 *model)
{
    tide_gpt2_order *order = &model->order;
    tide_status status = register_one(model, embedding_op, tide_gpt2_embedding, &order->embedding);
    if (status == TIDE_OK)
        status = register_layers(model, block_op, tide_gpt2_block_forward, false, &order->first_block);
    if (status == TIDE_OK)
        status = register_one(model, head_op, tide_gpt2_head, &order->head);
    if (status == TIDE_OK)
        status = register_layers(model, backward_op, tide_gpt2_block_backward, true, &order->first_backward);
    if (status == TIDE_OK)
        status = register_one(model, embedding_backward_op, tide_gpt2_embedding_backward,
                              &order->embedding_backward);
    if (status == TIDE_OK)
        status = register_layers(model, evaluation_block_op, tide_gpt2_block_evaluation, false,
                                 &order->first_evaluation_block);
    if (status == TIDE_OK)
        status = register_one(model, evaluation_head_op, tide_gpt2_head_evaluation, &order->evaluation_head);
    if (status == TIDE_OK)
        status = register_one(model, logits_op, tide_gpt2_head_logits, &order->logits);
    return status;
}

static tide_status register_params(tide_gpt2 *model)
{
    const tide_gpt2_config *config = &model->options.config;
    for (size_t i = 0; i < tide_gpt2_param_count(config); i++) {
        tide_gpt2_param param;
        tide_gpt2_param_describe(config, i, &param);
        const tide_status status = tide_param_register(model->pool, param.name, param.shape, param.rank,
                                                       param.decays, &model->params[i]);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

static tide_status register_checkpoint(tide_gpt2 *model, const char *kind, uint32_t index,
                                       uint64_t part_bytes, tide_checkpoint *checkpoint)
{
    char name[48];
    snprintf(name, sizeof name, "%s %u", kind, index);
    return tide_checkpoint_register(model->pool, name, model->options.micro_batches, part_bytes, checkpoint);
}

/* A block's kept activations lie beside its residual: forward writes both, backward reads both. */
static tide_status register_checkpoints(tide_gpt2 *model)
{
    const uint64_t residual_bytes = tide_gpt2_residual_part_bytes(&model->options);
    const uint64_t saved_bytes = tide_gpt2_saved_part_bytes(&model->options);
    const uint32_t layers = model->options.config.layers;
    for (uint32_t i = 0; i <= layers; i++) {
        tide_status status = register_checkpoint(model, "residual", i, residual_bytes, &model->residuals[i]);
        if (status == TIDE_OK && i < layers && !model->recompute[i])
            status = register_checkpoint(model, "activations", i, saved_bytes, &model->saved[i]);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

static tide_status allocate(const tide_gpt2_options *options, tide_gpt2 **model)
{
    const size_t layers = options->config.layers;
    tide_gpt2 *made = calloc(1, sizeof *made);
    if (!made)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a model");
    made->options = *options;
    made->region = tide_gpt2_region_layout(options);
    made->recompute = calloc(layers, sizeof *made->recompute);
    made->params = calloc(tide_gpt2_param_count(&options->config), sizeof *made->params);
    made->residuals = calloc(layers + 1, sizeof *made->residuals);
    made->saved = calloc(layers, sizeof *made->saved);
    made->ops = calloc(3 * layers + 5, sizeof *made->ops);
    if (!made->recompute || !made->params || !made->residuals || !made->saved || !made->ops) {
        tide_gpt2_destroy(made);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a model of %zu layers", layers);
    }
    memcpy(made->recompute, options->recompute, layers * sizeof *made->recompute);
    made->options.recompute = made->recompute;
    *model = made;
    return TIDE_OK;
}

tide_status tide_gpt2_create(tide_pool *pool, const tide_gpt2_options *options, tide_gpt2 **model)
{
    assert(tide_gpt2_config_is_valid(&options->config));
    assert(options->seq_len > 0 && options->seq_len <= options->config.context);
    assert(options->micro_batch_sequences > 0 && options->micro_batches > 0);
    tide_gpt2 *made = NULL;
    tide_status status = allocate(options, &made);
    if (status != TIDE_OK)
        return status;
    made->pool = pool;
    status = register_params(made);
    if (status == TIDE_OK)
        status = register_checkpoints(made);
    if (status == TIDE_OK)
        status = register_ops(made);
    if (status != TIDE_OK) {
        tide_gpt2_destroy(made);
        return status;
    }
    *model = made;
    return TIDE_OK;
}

void tide_gpt2_destroy(tide_gpt2 *model)
{
    if (!model)
        return;
    free(model->recompute);
    free(model->params);
    free(model->residuals);
    free(model->saved);
    free(model->ops);
    free(model);
}

tide_param tide_gpt2_param_handle(const tide_gpt2 *model, size_t index)
{
    assert(index < tide_gpt2_param_count(&model->options.config));
    return model->params[index];
}

double tide_gpt2_step_flops(const tide_gpt2 *model)
{
    double flops = 0;
    for (uint32_t i = model->order.embedding; i <= model->order.embedding_backward; i++)
        flops += model->ops[i].flops;
    return flops;
}

/* --- values --- */

static tide_status init_param(tide_gpt2 *model, uint64_t seed, size_t index, float *values)
{
    tide_gpt2_param param;
    tide_gpt2_param_describe(&model->options.config, index, &param);
    for (uint64_t first = 0; first < param.elements; first += INIT_RANGE_ELEMENTS) {
        const uint64_t left = param.elements - first;
        const uint64_t count = left < INIT_RANGE_ELEMENTS ? left : INIT_RANGE_ELEMENTS;
        tide_gpt2_init_range(&model->options.config, seed, index, first, count, values);
        const tide_status status =
            tide_param_set(model->pool, model->params[index], TIDE_SPACE_MASTER, first, count, values);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

tide_status tide_gpt2_init(tide_gpt2 *model, uint64_t seed)
{
    float *values = malloc(INIT_RANGE_ELEMENTS * sizeof *values);
    if (!values)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %d initial values", INIT_RANGE_ELEMENTS);
    tide_status status = TIDE_OK;
    for (size_t i = 0; status == TIDE_OK && i < tide_gpt2_param_count(&model->options.config); i++)
        status = init_param(model, seed, i, values);
    free(values);
    return status;
}

/* --- running --- */

static void *region_at(const tide_gpt2 *model, uint64_t offset)
{
    return (char *)tide_region(model->pool) + offset;
}

static tide_status write_tokens(tide_gpt2 *model, uint64_t offset, const int32_t *tokens, uint64_t count)
{
    return tide_write(model->pool, region_at(model, offset), tokens, count * sizeof *tokens);
}

tide_status tide_gpt2_upload(tide_gpt2 *model, const int32_t *inputs, const int32_t *targets)
{
    const uint64_t tokens = micro_batch_rows(&model->options) * model->options.micro_batches;
    const tide_status status = write_tokens(model, model->region.inputs_offset, inputs, tokens);
    return status == TIDE_OK ? write_tokens(model, model->region.targets_offset, targets, tokens) : status;
}

static tide_status run_slice(tide_gpt2 *model, const tide_gpt2_op *op, tide_gpt2_tape *tape)
{
    const tide_status status = tide_op_slice(model->pool, tape->micro_batch);
    if (status != TIDE_OK)
        return status;
    tape->workspace = (uintptr_t)tide_workspace(model->pool);
    tape->cursor = tape->workspace;
    op->code(tape);
    return tape->status;
}

/* All micro-batches of the batch through one op. */
static tide_status run_op(tide_gpt2 *model, uint32_t index)
{
    const tide_gpt2_op *op = &model->ops[index];
    tide_gpt2_tape tape = tape_of(model, op);
    tide_status status = tide_op_begin(model->pool, op->handle);
    for (uint32_t m = 0; status == TIDE_OK && m < model->options.micro_batches; m++) {
        tape.micro_batch = m;
        status = run_slice(model, op, &tape);
    }
    return status == TIDE_OK ? tide_op_end(model->pool) : status;
}

static tide_status run_ops(tide_gpt2 *model, uint32_t first, uint32_t last)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = first; status == TIDE_OK && i <= last; i++)
        status = run_op(model, i);
    return status;
}

static tide_status zero_loss(tide_gpt2 *model)
{
    const tide_zero_args args = {.data = region_at(model, model->region.loss_sum_offset),
                                 .bytes = sizeof(double)};
    return tide_launch(model->pool, "zero loss", model->options.kernels->zero, &args, sizeof args, 0,
                       (double)tide_zero_bytes(&args));
}

tide_status tide_gpt2_train(tide_gpt2 *model)
{
    const tide_status status = zero_loss(model);
    return status == TIDE_OK ? run_ops(model, model->order.embedding, model->order.embedding_backward)
                             : status;
}

tide_status tide_gpt2_evaluate(tide_gpt2 *model)
{
    tide_status status = zero_loss(model);
    if (status == TIDE_OK)
        status = run_op(model, model->order.embedding);
    if (status == TIDE_OK)
        status = run_ops(model, model->order.first_evaluation_block, model->order.evaluation_head);
    return status;
}

tide_status tide_gpt2_loss(tide_gpt2 *model, double *loss)
{
    const uint64_t tokens = micro_batch_rows(&model->options) * model->options.micro_batches;
    double sum;
    const tide_status status =
        tide_read(model->pool, &sum, region_at(model, model->region.loss_sum_offset), sizeof sum);
    if (status == TIDE_OK)
        *loss = sum / (double)tokens;
    return status;
}

/* One sequence, in the place of the first micro-batch. */
static tide_status run_sample_op(tide_gpt2 *model, uint32_t index, uint32_t position)
{
    const tide_gpt2_op *op = &model->ops[index];
    tide_gpt2_tape tape = tape_of(model, op);
    tape.sequences = 1;
    tape.position = position;
    tide_status status = tide_op_begin(model->pool, op->handle);
    if (status == TIDE_OK)
        status = run_slice(model, op, &tape);
    return status == TIDE_OK ? tide_op_end(model->pool) : status;
}

tide_status tide_gpt2_logits(tide_gpt2 *model, const int32_t *tokens, uint32_t position, float *logits)
{
    assert(position < model->options.seq_len);
    const tide_gpt2_order *order = &model->order;
    tide_status status = write_tokens(model, model->region.inputs_offset, tokens, model->options.seq_len);
    if (status == TIDE_OK)
        status = run_sample_op(model, order->embedding, position);
    for (uint32_t layer = 0; status == TIDE_OK && layer < model->options.config.layers; layer++)
        status = run_sample_op(model, order->first_evaluation_block + layer, position);
    if (status == TIDE_OK)
        status = run_sample_op(model, order->logits, position);
    if (status != TIDE_OK)
        return status;
    return tide_read(model->pool, logits, region_at(model, model->region.logits_offset),
                     model->options.config.vocab_size * sizeof *logits);
}
