/* A transformer block, forward and backward.
 *
 *     x ---------------- + ----------------- + --> next residual
 *      \ norm 1          | \ norm 2          |
 *       qkv, attention   |  fc, activation   |
 *       projection ------+  projection ------+
 *                    `middle'
 *
 * The family decides which norm and which activation function a block uses, and whether it norms and rotates
 * queries and keys (op_builder.c and decoder_parts.c ask it).
 *
 * Backward goes the same way back. When its op begins, the next residual's memory holds that residual's
 * gradient. Both branches add to it there (a norm's backward accumulates), and at the end it is copied over
 * x, which is no longer needed. Gradients inside the block overwrite activations that are no longer needed.
 * So backward takes no memory of its own, except where attention is wider than the MLP.
 *
 * All activations of a block lie in one piece of memory with one layout: an ACTIVATION part that lives
 * until backward, or the workspace of the op that computes them. A block saves all of them (15 widths per
 * token in GPT-2) or none: there is no mode that saves some and recomputes the others. */
#include "src/model/decoder_internal.h"

static const tide_decoder_norm norm_1 = {TIDE_ROLE_NORM_1_WEIGHT, TIDE_ROLE_NORM_1_BIAS};
static const tide_decoder_norm norm_2 = {TIDE_ROLE_NORM_2_WEIGHT, TIDE_ROLE_NORM_2_BIAS};

static const tide_decoder_linear qkv_linear = {
    .forward_name = "qkv",
    .weight_name = "qkv weight gradient",
    .bias_name = "qkv bias gradient",
    .input_name = "qkv input gradient",
    .weight = TIDE_ROLE_QKV_WEIGHT,
    .bias = TIDE_ROLE_QKV_BIAS,
    .in = TIDE_DIMENSION_WIDTH,
    .out = TIDE_DIMENSION_QKV,
};

static const tide_decoder_linear attention_linear = {
    .forward_name = "attention projection",
    .weight_name = "attention projection weight gradient",
    .bias_name = "attention projection bias gradient",
    .input_name = "attention projection input gradient",
    .weight = TIDE_ROLE_ATTENTION_WEIGHT,
    .bias = TIDE_ROLE_ATTENTION_BIAS,
    .in = TIDE_DIMENSION_QUERY,
    .out = TIDE_DIMENSION_WIDTH,
};

static const tide_decoder_linear fc_linear = {
    .forward_name = "mlp fc",
    .weight_name = "mlp fc weight gradient",
    .bias_name = "mlp fc bias gradient",
    .input_name = "mlp fc input gradient",
    .weight = TIDE_ROLE_FC_WEIGHT,
    .bias = TIDE_ROLE_FC_BIAS,
    .in = TIDE_DIMENSION_WIDTH,
    .out = TIDE_DIMENSION_FC,
};

static const tide_decoder_linear mlp_linear = {
    .forward_name = "mlp projection",
    .weight_name = "mlp projection weight gradient",
    .bias_name = "mlp projection bias gradient",
    .input_name = "mlp projection input gradient",
    .weight = TIDE_ROLE_MLP_WEIGHT,
    .bias = TIDE_ROLE_MLP_BIAS,
    .in = TIDE_DIMENSION_MLP,
    .out = TIDE_DIMENSION_WIDTH,
};

void tide_decoder_activations_place(const tide_decoder_options *options, uint32_t sequences,
                                    uintptr_t *cursor, tide_decoder_activations *at)
{
    const tide_model_config *config = &options->config;
    const bool layer_norm = !config->family->rms_norm,
               head_norms = tide_model_has(config, TIDE_ROLE_Q_NORM_WEIGHT);
    const size_t rows = (size_t)sequences * options->seq_len;
    const size_t element_bytes = rows * tide_dtype_bytes(options->dtype);
    const size_t statistic_bytes = rows * sizeof(float);
    const size_t width_bytes = config->width * element_bytes;
    const size_t query_bytes = tide_model_query_width(config) * element_bytes;
    const size_t kv_bytes = tide_model_kv_width(config) * element_bytes;
    *at = (tide_decoder_activations){
        .norm_1 = tide_decoder_take(cursor, width_bytes),
        .qkv = tide_decoder_take(cursor, query_bytes + 2 * kv_bytes),
        .qk = head_norms ? tide_decoder_take(cursor, query_bytes + kv_bytes) : NULL,
        .attention = tide_decoder_take(cursor, query_bytes),
        .middle = tide_decoder_take(cursor, width_bytes),
        .norm_2 = tide_decoder_take(cursor, width_bytes),
        .fc = tide_decoder_take(cursor, tide_model_dimension(config, TIDE_DIMENSION_FC) * element_bytes),
        .act = tide_decoder_take(cursor, config->mlp_width * element_bytes),
    };
    at->overwritable_end = *cursor;
    at->logsumexp = tide_decoder_take(cursor, config->heads * statistic_bytes);
    at->mean_1 = layer_norm ? tide_decoder_take(cursor, statistic_bytes) : NULL;
    at->rstd_1 = tide_decoder_take(cursor, statistic_bytes);
    at->mean_2 = layer_norm ? tide_decoder_take(cursor, statistic_bytes) : NULL;
    at->rstd_2 = tide_decoder_take(cursor, statistic_bytes);
    at->q_rstd = head_norms ? tide_decoder_take(cursor, config->heads * statistic_bytes) : NULL;
    at->k_rstd = head_norms ? tide_decoder_take(cursor, config->kv_heads * statistic_bytes) : NULL;
}

/* Makes all activations that backward needs from the block's input. Recompute calls this alone, without
 * make_output. */
static void make_activations(tide_op_builder *builder, const void *x, const tide_decoder_activations *at)
{
    const size_t rows = tide_decoder_rows(builder);
    tide_decoder_norm_forward(builder, &norm_1, rows, x, at->norm_1, at->mean_1, at->rstd_1);
    tide_decoder_linear_forward(builder, &qkv_linear, at->norm_1, at->qkv);
    tide_decoder_attention(builder, at);
    tide_decoder_linear_forward(builder, &attention_linear, at->attention, at->middle);
    tide_decoder_add_to(builder, at->middle, x, rows * tide_decoder_width(builder));
    tide_decoder_norm_forward(builder, &norm_2, rows, at->middle, at->norm_2, at->mean_2, at->rstd_2);
    tide_decoder_activate(builder, &fc_linear, at->norm_2, at);
}

static void make_output(tide_op_builder *builder, const tide_decoder_activations *at, void *out)
{
    tide_decoder_linear_forward(builder, &mlp_linear, at->act, out);
    tide_decoder_add_to(builder, out, at->middle, tide_decoder_rows(builder) * tide_decoder_width(builder));
}

/* Finds the block's activations: saved ones lie in their ACTIVATION part, others in the workspace. */
static void find_activations(tide_op_builder *builder, bool saved, tide_decoder_activations *at)
{
    const tide_decoder *model = builder->model;
    uintptr_t part = 0;
    if (saved)
        part =
            (uintptr_t)tide_activation_data(model->pool, model->saved[builder->layer], builder->micro_batch);
    tide_decoder_activations_place(&model->options, builder->sequences, saved ? &part : &builder->cursor, at);
}

static void forward(tide_op_builder *builder, bool keep)
{
    tide_decoder_activations at;
    find_activations(builder, keep, &at);
    make_activations(builder, tide_decoder_residual(builder, builder->layer), &at);
    make_output(builder, &at, tide_decoder_residual(builder, builder->layer + 1));
}

void tide_decoder_block_forward(tide_op_builder *builder)
{
    forward(builder, !builder->model->recompute[builder->layer]);
}

void tide_decoder_block_evaluation(tide_op_builder *builder)
{
    forward(builder, false);
}

/* Buffers of attention's backward. `narrow` holds the gradient of attention's output and later that of norm
 * 1's output; `dqkv` holds that of qkv. */
typedef struct attention_gradients {
    void *narrow, *dqkv;
} attention_gradients;

/* Places these buffers over norm 2, fc and act, which backward no longer needs by then, or in the workspace
 * if attention is too wide for that. */
static attention_gradients place_gradients(tide_op_builder *builder, const tide_decoder_activations *at)
{
    const size_t width = tide_decoder_width(builder),
                 query = tide_decoder_length(builder, TIDE_DIMENSION_QUERY);
    const size_t narrow =
        tide_decoder_bytes(builder, tide_decoder_rows(builder) * (width > query ? width : query));
    const size_t wide = tide_decoder_bytes(builder, tide_decoder_rows(builder) *
                                                        tide_decoder_length(builder, TIDE_DIMENSION_QKV));
    uintptr_t overwritten = (uintptr_t)at->norm_2;
    const bool fits = overwritten + tide_align_up(narrow) + tide_align_up(wide) <= at->overwritable_end;
    uintptr_t *cursor = fits ? &overwritten : &builder->cursor;
    void *first = tide_decoder_take(cursor, narrow);
    return (attention_gradients){.narrow = first, .dqkv = tide_decoder_take(cursor, wide)};
}

/* `gradient` is that of the residual. A layer's input is needed last for the gradient of the layer's weight,
 * so the input's own gradient may then overwrite it: d act overwrites act, d norm 2 overwrites norm 2, and
 * attention's gradients overwrite all of these again. */
static void mlp_backward(tide_op_builder *builder, const tide_decoder_activations *at, void *gradient)
{
    const void *dfc = tide_decoder_activate_backward(builder, &mlp_linear, at, gradient);
    tide_decoder_linear_backward(builder, &fc_linear, at->norm_2, dfc, at->norm_2);
    tide_decoder_norm_backward(builder, &norm_2, at->middle, at->norm_2, at->mean_2, at->rstd_2, gradient,
                               true);
}

static void attention_backward(tide_op_builder *builder, const tide_decoder_activations *at,
                               const attention_gradients *to, const void *x, void *gradient)
{
    const tide_decoder *model = builder->model;
    const bool passes_on = tide_decoder_passes_on(model, builder->layer);
    tide_decoder_linear_backward(builder, &attention_linear, at->attention, gradient, to->narrow);
    tide_decoder_attention_backward(builder, at, to->narrow, to->dqkv);
    if (!passes_on && !tide_decoder_is_trained(model, norm_1.weight, builder->layer) &&
        !tide_decoder_is_trained(model, norm_1.bias, builder->layer)) {
        tide_decoder_linear_params_backward(builder, &qkv_linear, at->norm_1, to->dqkv);
        return;
    }
    tide_decoder_linear_backward(builder, &qkv_linear, at->norm_1, to->dqkv, to->narrow);
    tide_decoder_norm_backward(builder, &norm_1, x, to->narrow, at->mean_1, at->rstd_1,
                               passes_on ? gradient : NULL, passes_on);
}

void tide_decoder_block_backward(tide_op_builder *builder)
{
    const bool saved = !builder->model->recompute[builder->layer];
    void *x = tide_decoder_residual(builder, builder->layer);
    void *gradient = tide_decoder_residual(builder, builder->layer + 1);
    tide_decoder_activations at;
    find_activations(builder, saved, &at);
    const attention_gradients to = place_gradients(builder, &at);
    if (!saved)
        make_activations(builder, x, &at);
    mlp_backward(builder, &at, gradient);
    attention_backward(builder, &at, &to, x, gradient);
    if (tide_decoder_passes_on(builder->model, builder->layer))
        tide_decoder_copy(
            builder, x, gradient,
            tide_decoder_bytes(builder, tide_decoder_rows(builder) * tide_decoder_width(builder)));
}
