/* A transformer block, forward and backward.
 *
 *     x ---------------- + ---------------- + --> next residual
 *      \ norm 1          | \ norm 2         |
 *       qkv, attention   |  fc, gelu        |     (one product where the kernels' table takes GELU along)
 *       projection ------+  projection -----+
 *                    `middle'
 *
 * Backward walks the same way back. The gradient of the residual stands in the next residual's place when the
 * op begins; both branches are added to it there (layer norm's backward accumulates), and at the end it is
 * copied over x, which nobody needs any more. Gradients inside the block are written over activations that are
 * spent. So backward costs no memory of its own.
 *
 * All activations of a block lie in one piece, the same whether it is a CHECKPOINT part that lives until
 * backward or the workspace of an op that makes them for itself. They are kept whole (15 widths a token)
 * rather than rebuilt in part: recompute is the mode for saving memory, and there are only these two modes.
 */
#include "src/model/gpt2_internal.h"

static const tide_gpt2_linear qkv_linear = {
    .forward_name = "qkv",
    .weight_name = "qkv weight gradient",
    .bias_name = "qkv bias gradient",
    .input_name = "qkv input gradient",
    .weight = TIDE_GPT2_ATTN_QKV_WEIGHT,
    .bias = TIDE_GPT2_ATTN_QKV_BIAS,
    .in_widths = 1,
    .out_widths = 3,
};

static const tide_gpt2_linear attention_linear = {
    .forward_name = "attention projection",
    .weight_name = "attention projection weight gradient",
    .bias_name = "attention projection bias gradient",
    .input_name = "attention projection input gradient",
    .weight = TIDE_GPT2_ATTN_PROJ_WEIGHT,
    .bias = TIDE_GPT2_ATTN_PROJ_BIAS,
    .in_widths = 1,
    .out_widths = 1,
};

static const tide_gpt2_linear fc_linear = {
    .forward_name = "mlp fc",
    .weight_name = "mlp fc weight gradient",
    .bias_name = "mlp fc bias gradient",
    .input_name = "mlp fc input gradient",
    .weight = TIDE_GPT2_MLP_FC_WEIGHT,
    .bias = TIDE_GPT2_MLP_FC_BIAS,
    .in_widths = 1,
    .out_widths = 4,
};

static const tide_gpt2_linear mlp_linear = {
    .forward_name = "mlp projection",
    .weight_name = "mlp projection weight gradient",
    .bias_name = "mlp projection bias gradient",
    .input_name = "mlp projection input gradient",
    .weight = TIDE_GPT2_MLP_PROJ_WEIGHT,
    .bias = TIDE_GPT2_MLP_PROJ_BIAS,
    .in_widths = 4,
    .out_widths = 1,
};

void tide_gpt2_activations_place(const tide_gpt2_options *options, uint32_t sequences, uintptr_t *cursor,
                                 tide_gpt2_activations *activations)
{
    const size_t rows = (size_t)sequences * options->seq_len;
    const size_t row_bytes = options->config.width * tide_dtype_bytes(options->dtype);
    const size_t statistic_bytes = rows * sizeof(float);
    *activations = (tide_gpt2_activations){
        .norm_1 = tide_gpt2_take(cursor, rows * row_bytes),
        .qkv = tide_gpt2_take(cursor, 3 * rows * row_bytes),
        .attention = tide_gpt2_take(cursor, rows * row_bytes),
        .middle = tide_gpt2_take(cursor, rows * row_bytes),
        .norm_2 = tide_gpt2_take(cursor, rows * row_bytes),
        .fc = tide_gpt2_take(cursor, 4 * rows * row_bytes),
        .gelu = tide_gpt2_take(cursor, 4 * rows * row_bytes),
        .logsumexp = tide_gpt2_take(cursor, options->config.heads * statistic_bytes),
        .mean_1 = tide_gpt2_take(cursor, statistic_bytes),
        .rstd_1 = tide_gpt2_take(cursor, statistic_bytes),
        .mean_2 = tide_gpt2_take(cursor, statistic_bytes),
        .rstd_2 = tide_gpt2_take(cursor, statistic_bytes),
    };
}

/* All activations of the block from its input: what backward needs, so recompute stops here too. */
static void make_activations(tide_gpt2_tape *tape, const void *x, const tide_gpt2_activations *at)
{
    const size_t rows = tide_gpt2_rows(tape);
    tide_gpt2_layer_norm(tape, TIDE_GPT2_LN_1_WEIGHT, TIDE_GPT2_LN_1_BIAS, rows, x, at->norm_1, at->mean_1,
                         at->rstd_1);
    tide_gpt2_linear_forward(tape, &qkv_linear, at->norm_1, at->qkv);
    tide_gpt2_attention(tape, at);
    tide_gpt2_linear_forward(tape, &attention_linear, at->attention, at->middle);
    tide_gpt2_add_to(tape, at->middle, x, rows * tide_gpt2_width(tape));
    tide_gpt2_layer_norm(tape, TIDE_GPT2_LN_2_WEIGHT, TIDE_GPT2_LN_2_BIAS, rows, at->middle, at->norm_2,
                         at->mean_2, at->rstd_2);
    tide_gpt2_linear_gelu(tape, &fc_linear, at->norm_2, at->fc, at->gelu);
}

static void make_output(tide_gpt2_tape *tape, const tide_gpt2_activations *at, void *out)
{
    tide_gpt2_linear_forward(tape, &mlp_linear, at->gelu, out);
    tide_gpt2_add_to(tape, out, at->middle, tide_gpt2_rows(tape) * tide_gpt2_width(tape));
}

/* Where the activations are: kept ones in their CHECKPOINT part, others in the workspace. */
static void find_activations(tide_gpt2_tape *tape, bool kept, tide_gpt2_activations *at)
{
    const tide_gpt2 *model = tape->model;
    uintptr_t part = 0;
    if (kept)
        part = (uintptr_t)tide_checkpoint_data(model->pool, model->saved[tape->layer], tape->micro_batch);
    tide_gpt2_activations_place(&model->options, tape->sequences, kept ? &part : &tape->cursor, at);
}

static void forward(tide_gpt2_tape *tape, bool keep)
{
    tide_gpt2_activations at;
    find_activations(tape, keep, &at);
    make_activations(tape, tide_gpt2_residual(tape, tape->layer), &at);
    make_output(tape, &at, tide_gpt2_residual(tape, tape->layer + 1));
}

void tide_gpt2_block_forward(tide_gpt2_tape *tape)
{
    forward(tape, !tape->model->recompute[tape->layer]);
}

void tide_gpt2_block_evaluation(tide_gpt2_tape *tape)
{
    forward(tape, false);
}

/* `gradient` is the residual's. Each activation is needed last by the gradient of the weight that it meets, so
 * the gradient of a layer's input may be written over an activation that is spent: d gelu over gelu, d norm 2
 * over norm 2, and attention's over both again. */
static void mlp_backward(tide_gpt2_tape *tape, const tide_gpt2_activations *at, void *gradient)
{
    tide_gpt2_linear_gelu_backward(tape, &mlp_linear, at->gelu, gradient, at->fc, at->gelu);
    tide_gpt2_linear_backward(tape, &fc_linear, at->norm_2, at->gelu, at->norm_2);
    const tide_layer_norm_backward_args norm = {.in = at->middle,
                                                .dout = at->norm_2,
                                                .mean = at->mean_2,
                                                .rstd = at->rstd_2,
                                                .din = gradient,
                                                .accumulate = true};
    tide_gpt2_layer_norm_backward(tape, TIDE_GPT2_LN_2_WEIGHT, TIDE_GPT2_LN_2_BIAS, &norm);
}

static void attention_backward(tide_gpt2_tape *tape, const tide_gpt2_activations *at, const void *x,
                               void *gradient)
{
    void *dqkv = at->gelu, *narrow = at->norm_2;
    tide_gpt2_linear_backward(tape, &attention_linear, at->attention, gradient, narrow);
    tide_gpt2_attention_backward(tape, at, narrow, dqkv);
    const tide_gpt2 *model = tape->model;
    const bool passes_on = tide_gpt2_passes_on(model, tape->layer);
    if (!passes_on && !tide_gpt2_is_trained(model, TIDE_GPT2_LN_1_WEIGHT, tape->layer) &&
        !tide_gpt2_is_trained(model, TIDE_GPT2_LN_1_BIAS, tape->layer)) {
        tide_gpt2_linear_params_backward(tape, &qkv_linear, at->norm_1, dqkv);
        return;
    }
    tide_gpt2_linear_backward(tape, &qkv_linear, at->norm_1, dqkv, narrow);
    const tide_layer_norm_backward_args norm = {.in = x,
                                                .dout = narrow,
                                                .mean = at->mean_1,
                                                .rstd = at->rstd_1,
                                                .din = passes_on ? gradient : NULL,
                                                .accumulate = passes_on};
    tide_gpt2_layer_norm_backward(tape, TIDE_GPT2_LN_1_WEIGHT, TIDE_GPT2_LN_1_BIAS, &norm);
}

void tide_gpt2_block_backward(tide_gpt2_tape *tape)
{
    const bool kept = !tape->model->recompute[tape->layer];
    void *x = tide_gpt2_residual(tape, tape->layer);
    void *gradient = tide_gpt2_residual(tape, tape->layer + 1);
    tide_gpt2_activations at;
    find_activations(tape, kept, &at);
    if (!kept)
        make_activations(tape, x, &at);
    mlp_backward(tape, &at, gradient);
    attention_backward(tape, &at, x, gradient);
    if (tide_gpt2_passes_on(tape->model, tape->layer))
        tide_gpt2_copy(tape, x, gradient,
                       tide_gpt2_bytes(tape, tide_gpt2_rows(tape) * tide_gpt2_width(tape)));
}
