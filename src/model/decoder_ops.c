/* Declares what each op may access (tidepool/pool.h defines the accesses), and adds the ops to the
 * description in the order in which they run.
 *
 *     op                   params                     residuals                        saved activations
 *     embedding            READ embeddings            0 WRITE
 *     block i              READ all of the layer      i READ, i + 1 WRITE              WRITE
 *     head                 READ GRAD head, last norm  L READ WRITE
 *     block i backward     GRAD all of the layer,     i READ WRITE,                    READ WRITE LAST
 *                          READ some (backward_reads) i + 1 READ WRITE LAST
 *     embedding backward   GRAD embeddings            0 READ LAST
 *     evaluation block i   READ all of the layer      i READ LAST, i + 1 WRITE
 *     evaluation head      READ head, last norm       L READ LAST
 *     logits               READ head, last norm       L READ LAST
 *
 * A decoder that generates has embedding, evaluation blocks and logits alone, without residuals.
 *
 * A frozen param has no GRAD. The weights of linear layers and, in the head's op, the head's weight have
 * both GRAD and OVERWRITE.
 *
 * A residual that backward does not use has LAST where it is read last: in a forward block below the lowest
 * trained block (which then saves no activations, either), in the lowest trained block's backward if backward
 * does not go on to the embedding, or in the head if no block is trained. */
#include "src/model/decoder_internal.h"

#include <stdio.h>

enum { USES_MAX = 16 };

/* An op's description under construction. */
typedef struct declaration {
    char name[48];
    tide_pass pass;
    tide_use params[USES_MAX];
    tide_use activations[USES_MAX];
    uint32_t param_count, activation_count;
    bool sampled; /* is it also run for sampling, with one sequence? */
    bool sampled_only;
} declaration;

/* --- declaring --- */

/* Declares nothing if the model lacks the role's param or the access is 0. */
static void declare_param(const tide_decoder *model, declaration *op, tide_role role, uint32_t layer,
                          uint32_t access)
{
    if (!tide_decoder_has(model, role) || access == 0)
        return;
    assert(op->param_count < USES_MAX);
    const size_t index = tide_decoder_index(model, role, layer);
    op->params[op->param_count++] = (tide_use){.tensor = model->params[index], .access = access};
}

/* The access to a param's gradient; 0 if it is not trained. `by_product`: the op makes the gradient by
 * matmuls (tide_decoder_gradient_matmul), which write all of it. */
static uint32_t gradient_access(const tide_decoder *model, tide_role role, uint32_t layer, bool by_product)
{
    if (!tide_decoder_is_trained(model, role, layer))
        return 0;
    return by_product ? TIDE_ACCESS_GRAD | TIDE_ACCESS_OVERWRITE : TIDE_ACCESS_GRAD;
}

static void declare_layer(const tide_decoder *model, declaration *op, uint32_t layer)
{
    for (tide_role role = TIDE_ROLE_NORM_1_WEIGHT; role <= TIDE_ROLE_MLP_BIAS; role++)
        declare_param(model, op, role, layer, TIDE_ACCESS_READ);
}

/* With `backward` it declares the gradients of trained params, too. */
static void declare_head(const tide_decoder *model, declaration *op, bool backward)
{
    const tide_role roles[] = {tide_decoder_head_role(model), TIDE_ROLE_NORM_F_WEIGHT, TIDE_ROLE_NORM_F_BIAS};
    for (int i = 0; i < 3; i++)
        declare_param(model, op, roles[i], 0,
                      TIDE_ACCESS_READ | (backward ? gradient_access(model, roles[i], 0, i == 0) : 0));
}

static void declare_activation(declaration *op, tide_activation activation, uint32_t access)
{
    assert(op->activation_count < USES_MAX);
    op->activations[op->activation_count++] = (tide_use){.tensor = activation, .access = access};
}

/* Does backward read this param? It multiplies by every weight. It needs biases only to make the activations
 * again, and the MLP's last bias not even then. */
static bool backward_reads(tide_role role, bool recompute)
{
    switch (role) {
    case TIDE_ROLE_NORM_1_BIAS:
    case TIDE_ROLE_QKV_BIAS:
    case TIDE_ROLE_ATTENTION_BIAS:
    case TIDE_ROLE_NORM_2_BIAS:
    case TIDE_ROLE_FC_BIAS:
        return recompute;
    case TIDE_ROLE_MLP_BIAS:
        return false;
    default:
        return true;
    }
}

static bool is_linear_weight(tide_role role)
{
    return role == TIDE_ROLE_QKV_WEIGHT || role == TIDE_ROLE_ATTENTION_WEIGHT ||
           role == TIDE_ROLE_FC_WEIGHT || role == TIDE_ROLE_MLP_WEIGHT;
}

static declaration embedding_op(const tide_decoder *model, uint32_t layer)
{
    (void)layer;
    declaration op = {.name = "embedding", .pass = TIDE_PASS_FORWARD, .sampled = true};
    declare_param(model, &op, TIDE_ROLE_TOKEN_EMBEDDING, 0, TIDE_ACCESS_READ);
    declare_param(model, &op, TIDE_ROLE_POSITION_EMBEDDING, 0, TIDE_ACCESS_READ);
    declare_activation(&op, model->residuals[0], TIDE_ACCESS_WRITE);
    return op;
}

static declaration block_op(const tide_decoder *model, uint32_t layer)
{
    declaration op = {.pass = TIDE_PASS_FORWARD};
    snprintf(op.name, sizeof op.name, "block %u forward", layer);
    declare_layer(model, &op, layer);
    declare_activation(&op, model->residuals[layer],
                       TIDE_ACCESS_READ | (layer < model->lowest_trained ? TIDE_ACCESS_LAST : 0));
    declare_activation(&op, model->residuals[layer + 1], TIDE_ACCESS_WRITE);
    if (!model->recompute[layer])
        declare_activation(&op, model->saved[layer], TIDE_ACCESS_WRITE);
    return op;
}

static declaration head_op(const tide_decoder *model, uint32_t layer)
{
    (void)layer;
    declaration op = {.name = "head", .pass = TIDE_PASS_BOTH};
    const uint32_t layers = model->options.config.layers;
    declare_head(model, &op, true);
    declare_activation(&op, model->residuals[layers],
                       TIDE_ACCESS_READ |
                           (tide_decoder_passes_on(model, layers) ? TIDE_ACCESS_WRITE : TIDE_ACCESS_LAST));
    return op;
}

static declaration backward_op(const tide_decoder *model, uint32_t layer)
{
    const bool recompute = model->recompute[layer];
    declaration op = {.pass = TIDE_PASS_BACKWARD};
    snprintf(op.name, sizeof op.name, "block %u backward", layer);
    for (tide_role role = TIDE_ROLE_NORM_1_WEIGHT; role <= TIDE_ROLE_MLP_BIAS; role++) {
        const uint32_t read = backward_reads(role, recompute) ? TIDE_ACCESS_READ : 0;
        const uint32_t gradient = gradient_access(model, role, layer, is_linear_weight(role));
        declare_param(model, &op, role, layer, gradient | read);
    }
    declare_activation(&op, model->residuals[layer],
                       TIDE_ACCESS_READ |
                           (tide_decoder_passes_on(model, layer) ? TIDE_ACCESS_WRITE : TIDE_ACCESS_LAST));
    declare_activation(&op, model->residuals[layer + 1],
                       TIDE_ACCESS_READ | TIDE_ACCESS_WRITE | TIDE_ACCESS_LAST);
    if (!recompute)
        declare_activation(&op, model->saved[layer], TIDE_ACCESS_READ | TIDE_ACCESS_WRITE | TIDE_ACCESS_LAST);
    return op;
}

static declaration embedding_backward_op(const tide_decoder *model, uint32_t layer)
{
    (void)layer;
    declaration op = {.name = "embedding backward", .pass = TIDE_PASS_BACKWARD};
    for (tide_role role = TIDE_ROLE_TOKEN_EMBEDDING; role <= TIDE_ROLE_POSITION_EMBEDDING; role++)
        declare_param(model, &op, role, 0, gradient_access(model, role, 0, false));
    declare_activation(&op, model->residuals[0], TIDE_ACCESS_READ | TIDE_ACCESS_LAST);
    return op;
}

static declaration evaluation_block_op(const tide_decoder *model, uint32_t layer)
{
    declaration op = {.pass = TIDE_PASS_FORWARD, .sampled = true};
    snprintf(op.name, sizeof op.name, "block %u evaluation", layer);
    declare_layer(model, &op, layer);
    declare_activation(&op, model->residuals[layer], TIDE_ACCESS_READ | TIDE_ACCESS_LAST);
    declare_activation(&op, model->residuals[layer + 1], TIDE_ACCESS_WRITE);
    return op;
}

static declaration evaluation_head_op(const tide_decoder *model, uint32_t layer)
{
    (void)layer;
    declaration op = {.name = "head evaluation", .pass = TIDE_PASS_FORWARD};
    declare_head(model, &op, false);
    declare_activation(&op, model->residuals[model->options.config.layers],
                       TIDE_ACCESS_READ | TIDE_ACCESS_LAST);
    return op;
}

static declaration logits_op(const tide_decoder *model, uint32_t layer)
{
    declaration op = evaluation_head_op(model, layer);
    snprintf(op.name, sizeof op.name, "logits");
    op.sampled_only = true;
    return op;
}

/* --- describing --- */

/* Runs the op's code as a dry run, and raises op->workspace_bytes to the workspace that this run needs. */
static tide_status measure(tide_decoder *model, tide_decoder_op *op, uint32_t sequences)
{
    tide_op_builder builder = tide_op_builder_of(model, op);
    builder.sequences = sequences;
    builder.dry_run = true;
    builder.times = model->options.micro_batches;
    op->code(&builder);
    const uint64_t workspace_bytes = builder.cursor + tide_align_up(builder.scratch_bytes);
    if (op->workspace_bytes < workspace_bytes)
        op->workspace_bytes = workspace_bytes;
    op->flops = builder.flops * model->options.micro_batches;
    return builder.status;
}

static tide_status measure_all(tide_decoder *model, const declaration *declared, tide_decoder_op *op)
{
    const uint32_t sequences = model->options.micro_batch_sequences;
    if (declared->sampled || declared->sampled_only) {
        const tide_status status = measure(model, op, 1);
        if (status != TIDE_OK || declared->sampled_only || sequences == 1)
            return status;
    }
    return measure(model, op, sequences);
}

static tide_status describe_op(tide_decoder *model, const declaration *declared, uint32_t layer,
                               tide_decoder_op_code code)
{
    const bool generates = tide_decoder_generates(&model->options);
    tide_decoder_op *op = &model->ops[model->order.count];
    *op = (tide_decoder_op){.layer = layer, .code = code};
    const tide_status status = measure_all(model, declared, op);
    if (status != TIDE_OK)
        return status;
    const tide_op_description description = {
        .name = declared->name,
        .pass = declared->pass,
        .params = declared->params,
        .param_count = declared->param_count,
        .activations = declared->activations,
        .activation_count = generates ? 0 : declared->activation_count, /* its residual is in the region */
        .slices = generates ? 0 : model->options.micro_batches,
        .workspace_bytes = op->workspace_bytes,
    };
    const tide_status added = tide_description_add_op(model->description, &description, &op->handle);
    if (added == TIDE_OK)
        model->order.count++;
    return added;
}

typedef declaration (*declare)(const tide_decoder *model, uint32_t layer);

/* Register one op, or one op per layer: from layer `from` upwards, or from the last layer down to `from`.
 * *first becomes the index of the first op added. */
static tide_status describe_one(tide_decoder *model, declare declare_op, tide_decoder_op_code code,
                                uint32_t *first)
{
    *first = model->order.count;
    const declaration declared = declare_op(model, 0);
    return describe_op(model, &declared, 0, code);
}

static tide_status describe_layers(tide_decoder *model, declare declare_op, tide_decoder_op_code code,
                                   bool downwards, uint32_t from, uint32_t *first)
{
    const uint32_t layers = model->options.config.layers;
    *first = model->order.count;
    for (uint32_t i = 0; i < layers - from; i++) {
        const uint32_t layer = downwards ? layers - 1 - i : from + i;
        const declaration declared = declare_op(model, layer);
        const tide_status status = describe_op(model, &declared, layer, code);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

/* The ops of a decoder that generates. */
static tide_status describe_generating_ops(tide_decoder *model)
{
    tide_decoder_order *order = &model->order;
    tide_status status = describe_one(model, embedding_op, tide_decoder_embedding, &order->embedding);
    if (status == TIDE_OK)
        status = describe_layers(model, evaluation_block_op, tide_decoder_block_evaluation, false, 0,
                                 &order->first_evaluation_block);
    if (status == TIDE_OK)
        status = describe_one(model, logits_op, tide_decoder_head_logits, &order->logits);
    return status;
}

tide_status tide_decoder_describe_ops(tide_decoder *model)
{
    tide_decoder_order *order = &model->order;
    if (tide_decoder_generates(&model->options))
        return describe_generating_ops(model);
    uint32_t one;
    tide_status status = describe_one(model, embedding_op, tide_decoder_embedding, &order->embedding);
    if (status == TIDE_OK)
        status = describe_layers(model, block_op, tide_decoder_block_forward, false, 0, &order->first_block);
    if (status == TIDE_OK)
        status = describe_one(model, head_op, tide_decoder_head, &order->head);
    if (status == TIDE_OK)
        status = describe_layers(model, backward_op, tide_decoder_block_backward, true, model->lowest_trained,
                                 &order->first_backward);
    if (status == TIDE_OK && model->trains_embedding)
        status = describe_one(model, embedding_backward_op, tide_decoder_embedding_backward, &one);
    order->last_trained = order->count - 1;
    if (status == TIDE_OK)
        status = describe_layers(model, evaluation_block_op, tide_decoder_block_evaluation, false, 0,
                                 &order->first_evaluation_block);
    if (status == TIDE_OK)
        status =
            describe_one(model, evaluation_head_op, tide_decoder_head_evaluation, &order->evaluation_head);
    if (status == TIDE_OK)
        status = describe_one(model, logits_op, tide_decoder_head_logits, &order->logits);
    return status;
}
