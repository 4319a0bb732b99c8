/* The parts of a block in which families differ: the MLP's activation function, and attention with the norms
 * and rotary positions of queries and keys. */
#include "src/model/decoder_internal.h"

/* --- activations --- */

static size_t act_elements(const tide_op_builder *builder)
{
    return tide_decoder_rows(builder) * tide_decoder_length(builder, TIDE_DIMENSION_MLP);
}

static void gelu(tide_op_builder *builder, const void *in, void *out)
{
    const tide_gelu_args args = {
        .in = in, .out = out, .elements = act_elements(builder), .dtype = builder->model->options.dtype};
    tide_decoder_launch(builder, "gelu", builder->model->options.kernels->gelu, &args, sizeof args,
                        (double)tide_gelu_flops(&args), (double)tide_gelu_bytes(&args));
}

static void gelu_backward(tide_op_builder *builder, const void *in, void *gradient)
{
    const tide_gelu_backward_args args = {.in = in,
                                          .dout = gradient,
                                          .din = gradient,
                                          .elements = act_elements(builder),
                                          .dtype = builder->model->options.dtype};
    tide_decoder_launch(builder, "gelu backward", builder->model->options.kernels->gelu_backward, &args,
                        sizeof args, (double)tide_gelu_backward_flops(&args),
                        (double)tide_gelu_backward_bytes(&args));
}

static void swiglu(tide_op_builder *builder, const void *in, void *out)
{
    const tide_swiglu_args args = {.in = in,
                                   .out = out,
                                   .rows = tide_decoder_rows(builder),
                                   .width = tide_decoder_length(builder, TIDE_DIMENSION_MLP),
                                   .dtype = builder->model->options.dtype};
    tide_decoder_launch(builder, "swiglu", builder->model->options.kernels->swiglu, &args, sizeof args,
                        (double)tide_swiglu_flops(&args), (double)tide_swiglu_bytes(&args));
}

static void swiglu_backward(tide_op_builder *builder, void *in, const void *dout)
{
    const tide_swiglu_backward_args args = {.in = in,
                                            .dout = dout,
                                            .din = in,
                                            .rows = tide_decoder_rows(builder),
                                            .width = tide_decoder_length(builder, TIDE_DIMENSION_MLP),
                                            .dtype = builder->model->options.dtype};
    tide_decoder_launch(builder, "swiglu backward", builder->model->options.kernels->swiglu_backward, &args,
                        sizeof args, (double)tide_swiglu_backward_flops(&args),
                        (double)tide_swiglu_backward_bytes(&args));
}

void tide_decoder_activate(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                           const tide_decoder_activations *at)
{
    const tide_mlp mlp = builder->model->options.config.family->mlp;
    if (mlp == TIDE_MLP_GELU && builder->model->options.kernels->fuses_gelu) {
        tide_decoder_linear_gelu(builder, linear, in, at->fc, at->act);
        return;
    }
    tide_decoder_linear_forward(builder, linear, in, at->fc);
    switch (mlp) {
    case TIDE_MLP_GELU:
        gelu(builder, at->fc, at->act);
        break;
    case TIDE_MLP_SWIGLU:
        swiglu(builder, at->fc, at->act);
        break;
    }
}

void *tide_decoder_activate_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                     const tide_decoder_activations *at, const void *dout)
{
    const tide_mlp mlp = builder->model->options.config.family->mlp;
    if (mlp == TIDE_MLP_GELU && builder->model->options.kernels->fuses_gelu) {
        tide_decoder_linear_gelu_backward(builder, linear, at->act, dout, at->fc, at->act);
        return at->act;
    }
    tide_decoder_linear_backward(builder, linear, at->act, dout, at->act);
    switch (mlp) {
    case TIDE_MLP_GELU:
        gelu_backward(builder, at->fc, at->act);
        break;
    case TIDE_MLP_SWIGLU:
        swiglu_backward(builder, at->fc, at->act);
        break;
    }
    return tide_mlp_is_gated(mlp) ? at->fc : at->act;
}

/* --- attention --- */

/* The address of element `elements` of a matrix of activations. */
static void *beyond(const tide_op_builder *builder, const void *matrix, size_t elements)
{
    return (void *)((uintptr_t)matrix + tide_decoder_bytes(builder, elements));
}

/* Norms every head of the queries, or of the keys. */
static void head_norm(tide_op_builder *builder, tide_role role, size_t heads, const void *in, void *out,
                      float *rstd)
{
    const tide_model_config *config = &builder->model->options.config;
    const tide_rms_norm_args args = {.in = in,
                                     .weight = tide_decoder_weight(builder, role),
                                     .out = out,
                                     .rstd = rstd,
                                     .rows = tide_decoder_rows(builder),
                                     .heads = heads,
                                     .width = config->head_width,
                                     .in_row = tide_decoder_length(builder, TIDE_DIMENSION_QKV),
                                     .out_row = tide_model_query_width(config) + tide_model_kv_width(config),
                                     .epsilon = (float)config->norm_epsilon,
                                     .dtype = builder->model->options.dtype};
    tide_decoder_launch(builder, "head norm", builder->model->options.kernels->rms_norm, &args, sizeof args,
                        (double)tide_rms_norm_flops(&args), (double)tide_rms_norm_bytes(&args));
}

/* `gradient` is the part of qkv's gradient for these heads, which is changed in place. */
static void head_norm_backward(tide_op_builder *builder, tide_role role, size_t heads, const void *in,
                               void *gradient, const float *rstd)
{
    const tide_rms_norm_backward_args args = {.in = in,
                                              .weight = tide_decoder_weight(builder, role),
                                              .dout = gradient,
                                              .rstd = rstd,
                                              .din = gradient,
                                              .dweight = tide_decoder_gradient(builder, role),
                                              .rows = tide_decoder_rows(builder),
                                              .heads = heads,
                                              .width = builder->model->options.config.head_width,
                                              .in_row = tide_decoder_length(builder, TIDE_DIMENSION_QKV),
                                              .dout_row = tide_decoder_length(builder, TIDE_DIMENSION_QKV),
                                              .dtype = builder->model->options.dtype};
    tide_decoder_rms_norm_backward(builder, "head norm backward", &args);
    tide_decoder_finish(builder, role);
}

/* Rotates queries and keys, which lie side by side in rows of `row` elements. */
static void rope(tide_op_builder *builder, void *qk, size_t row, bool backward)
{
    const tide_decoder_options *options = &builder->model->options;
    const uint64_t first_bytes = (uint64_t)builder->first * options->config.head_width * sizeof(float);
    const tide_rope_args args = {
        .data = qk,
        .table = tide_decoder_region_at(builder, builder->model->region.rope_offset + first_bytes),
        .starts = tide_decoder_starts(builder),
        .rows = tide_decoder_rows(builder),
        .sequence_length = tide_decoder_row_positions(builder),
        .heads = options->config.heads + options->config.kv_heads,
        .head_width = options->config.head_width,
        .row = row,
        .backward = backward,
        .dtype = options->dtype};
    tide_decoder_launch(builder, backward ? "rope backward" : "rope", options->kernels->rope, &args,
                        sizeof args, (double)tide_rope_flops(&args), (double)tide_rope_bytes(&args));
}

/* Attention's inputs: queries and keys, normed and rotated if the family does that, and values. */
typedef struct attention_inputs {
    void *q, *k, *v;
    size_t qk_row, v_row;
} attention_inputs;

static attention_inputs find_inputs(const tide_op_builder *builder, const tide_decoder_activations *at)
{
    const tide_model_config *config = &builder->model->options.config;
    const size_t query = tide_model_query_width(config), kv = tide_model_kv_width(config);
    void *qk = at->qk ? at->qk : at->qkv;
    return (attention_inputs){.q = qk,
                              .k = beyond(builder, qk, query),
                              .v = beyond(builder, at->qkv, query + kv),
                              .qk_row = at->qk ? query + kv : query + 2 * kv,
                              .v_row = query + 2 * kv};
}

/* Attention of a generating pass's tokens to the layer's cache, to which it adds theirs. */
static void attend_cached(tide_op_builder *builder, const attention_inputs *in, void *out)
{
    const tide_decoder_options *options = &builder->model->options;
    const tide_decoder_region *region = &builder->model->region;
    const uint64_t layer_offset = builder->layer * tide_decoder_cache_layer_bytes(options);
    tide_attention_cached_args args = {
        .q = in->q,
        .k = in->k,
        .v = in->v,
        .keys = tide_decoder_region_at(builder, region->keys_offset + layer_offset),
        .values = tide_decoder_region_at(builder, region->values_offset + layer_offset),
        .out = out,
        .rows = tide_decoder_rows(builder),
        .first = builder->first,
        .heads = options->config.heads,
        .kv_heads = options->config.kv_heads,
        .head_width = options->config.head_width,
        .qk_row = in->qk_row,
        .v_row = in->v_row,
        .dtype = options->dtype,
    };
    args.workspace = tide_decoder_scratch(builder, options->kernels->attention_cached_workspace_bytes(&args));
    args.workspace_bytes = builder->scratch_bytes;
    tide_decoder_launch(builder, "attention to the cache", options->kernels->attention_cached, &args,
                        sizeof args, (double)tide_attention_cached_flops(&args),
                        (double)tide_attention_cached_bytes(&args));
}

void tide_decoder_attention(tide_op_builder *builder, const tide_decoder_activations *at)
{
    const tide_decoder_options *options = &builder->model->options;
    const tide_model_config *config = &options->config;
    const attention_inputs in = find_inputs(builder, at);
    if (at->qk) {
        head_norm(builder, TIDE_ROLE_Q_NORM_WEIGHT, config->heads, at->qkv, in.q, at->q_rstd);
        head_norm(builder, TIDE_ROLE_K_NORM_WEIGHT, config->kv_heads,
                  beyond(builder, at->qkv, tide_model_query_width(config)), in.k, at->k_rstd);
    }
    if (config->family->rotary)
        rope(builder, in.q, in.qk_row, false);
    if (tide_decoder_generates(options)) {
        attend_cached(builder, &in, at->attention);
        return;
    }
    tide_attention_args args = {
        .q = in.q,
        .k = in.k,
        .v = in.v,
        .out = at->attention,
        .logsumexp = at->logsumexp,
        .starts = tide_decoder_starts(builder),
        .batch = builder->sequences,
        .sequence_length = options->seq_len,
        .heads = config->heads,
        .kv_heads = config->kv_heads,
        .head_width = config->head_width,
        .qk_row = in.qk_row,
        .v_row = in.v_row,
        .dtype = options->dtype,
    };
    args.workspace = tide_decoder_scratch(builder, options->kernels->attention_workspace_bytes(&args));
    args.workspace_bytes = builder->scratch_bytes;
    tide_decoder_launch(builder, "attention", options->kernels->attention, &args, sizeof args,
                        (double)tide_attention_flops(&args), (double)tide_attention_bytes(&args));
}

void tide_decoder_attention_backward(tide_op_builder *builder, const tide_decoder_activations *at,
                                     const void *dout, void *dqkv)
{
    const tide_decoder_options *options = &builder->model->options;
    const tide_model_config *config = &options->config;
    const attention_inputs in = find_inputs(builder, at);
    const size_t query = tide_model_query_width(config), kv = tide_model_kv_width(config);
    void *dk = beyond(builder, dqkv, query);
    tide_attention_backward_args args = {
        .q = in.q,
        .k = in.k,
        .v = in.v,
        .out = at->attention,
        .dout = dout,
        .logsumexp = at->logsumexp,
        .starts = tide_decoder_starts(builder),
        .dq = dqkv,
        .dk = dk,
        .dv = beyond(builder, dqkv, query + kv),
        .batch = builder->sequences,
        .sequence_length = options->seq_len,
        .heads = config->heads,
        .kv_heads = config->kv_heads,
        .head_width = config->head_width,
        .qk_row = in.qk_row,
        .v_row = in.v_row,
        .dqkv_row = query + 2 * kv,
        .dtype = options->dtype,
    };
    args.workspace =
        tide_decoder_scratch(builder, options->kernels->attention_backward_workspace_bytes(&args));
    args.workspace_bytes = builder->scratch_bytes;
    tide_decoder_launch(builder, "attention backward", options->kernels->attention_backward, &args,
                        sizeof args, (double)tide_attention_backward_flops(&args),
                        (double)tide_attention_backward_bytes(&args));
    if (config->family->rotary)
        rope(builder, dqkv, query + 2 * kv, true);
    if (!at->qk)
        return;
    head_norm_backward(builder, TIDE_ROLE_Q_NORM_WEIGHT, config->heads, at->qkv, dqkv, at->q_rstd);
    head_norm_backward(builder, TIDE_ROLE_K_NORM_WEIGHT, config->kv_heads, beyond(builder, at->qkv, query),
                       dk, at->k_rstd);
}
