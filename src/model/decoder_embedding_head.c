/* A decoder's embedding, and its head with the loss.
 *
 * The head's logits are the largest tensor of a model: 50304 columns per token in GPT-2. The head makes them,
 * turns them into their gradient and uses that in tiles of at most kernels->logit_rows rows. So they take 25
 * MB in bf16 on the CPU (256 rows), whatever the micro-batch is. The tile's size is a constant, because it
 * decides the order in which the gradient of the head's weight is summed.
 *
 *     norm  [rows, width]                 the final norm; tile by tile it becomes its own gradient
 *     tile  [rows, vocabulary padded]     logits, then their gradient
 *
 * All three matmuls run over the padded vocabulary (params.h): 50304 for 50257. The logits of padded columns
 * are computed and never read. Their gradient is zero, as the cross entropy's contract says, so the padded
 * rows of the weight get no gradient and add nothing to the input's.
 */
#include "src/model/decoder_internal.h"

#include "base/minmax.h"

/* Columns of the logits. */
static size_t vocabulary_rows(const tide_op_builder *builder)
{
    return (size_t)tide_model_vocabulary_rows(&builder->model->options.config);
}

static const tide_decoder_norm last_norm = {TIDE_ROLE_NORM_F_WEIGHT, TIDE_ROLE_NORM_F_BIAS};

static const int32_t *inputs(const tide_op_builder *builder)
{
    return tide_decoder_batch_part(builder, builder->model->region.inputs_offset);
}

void tide_decoder_embedding(tide_op_builder *builder)
{
    const tide_decoder_options *options = &builder->model->options;
    const char *wpe = tide_decoder_weight(builder, TIDE_ROLE_POSITION_EMBEDDING);
    const tide_embedding_args args = {
        .tokens = inputs(builder),
        .starts = tide_decoder_starts(builder),
        .wte = tide_decoder_weight(builder, TIDE_ROLE_TOKEN_EMBEDDING),
        .wpe = wpe ? wpe + tide_decoder_bytes(builder, builder->first * tide_decoder_width(builder)) : NULL,
        .out = tide_decoder_residual(builder, 0),
        .rows = tide_decoder_rows(builder),
        .sequence_length = tide_decoder_row_positions(builder),
        .width = options->config.width,
        .vocabulary = options->config.vocab_size,
        .dtype = options->dtype,
    };
    tide_decoder_launch(builder, "embedding", options->kernels->embedding, &args, sizeof args,
                        (double)tide_embedding_flops(&args), (double)tide_embedding_bytes(&args));
}

void tide_decoder_embedding_backward(tide_op_builder *builder)
{
    const tide_decoder_options *options = &builder->model->options;
    const tide_embedding_backward_args args = {
        .tokens = inputs(builder),
        .starts = tide_decoder_starts(builder),
        .dout = tide_decoder_residual(builder, 0),
        .dwte = tide_decoder_gradient(builder, TIDE_ROLE_TOKEN_EMBEDDING),
        .dwpe = tide_decoder_gradient(builder, TIDE_ROLE_POSITION_EMBEDDING),
        .rows = tide_decoder_rows(builder),
        .sequence_length = options->seq_len,
        .width = options->config.width,
        .vocabulary = options->config.vocab_size,
        .dtype = options->dtype,
        .padding_row = options->config.padding_row,
    };
    tide_decoder_launch(builder, "embedding backward", options->kernels->embedding_backward, &args,
                        sizeof args, (double)tide_embedding_backward_flops(&args),
                        (double)tide_embedding_backward_bytes(&args));
    tide_decoder_finish(builder, TIDE_ROLE_TOKEN_EMBEDDING);
    tide_decoder_finish(builder, TIDE_ROLE_POSITION_EMBEDDING);
}

/* logits [rows, vocabulary padded] = norm weight^T */
static void make_logits(tide_op_builder *builder, size_t rows, const void *norm, void *logits)
{
    const tide_decoder_options *options = &builder->model->options;
    const tide_matmul_args product = {
        .a = norm,
        .b = tide_decoder_weight(builder, tide_decoder_head_role(builder->model)),
        .c = logits,
        .m = rows,
        .n = vocabulary_rows(builder),
        .k = options->config.width,
        .lda = options->config.width,
        .ldb = options->config.width,
        .ldc = vocabulary_rows(builder),
        .in_dtype = options->dtype,
        .out_dtype = options->dtype,
        .transpose_b = true,
    };
    tide_decoder_matmul(builder, "logits", &product);
}

/* d weight (+)= dlogits^T norm; then norm is overwritten with its own gradient, dlogits weight. */
static void logits_backward(tide_op_builder *builder, bool is_first, size_t rows, const void *dlogits,
                            void *norm)
{
    const tide_decoder_options *options = &builder->model->options;
    const size_t width = options->config.width;
    const tide_role role = tide_decoder_head_role(builder->model);
    const tide_matmul_args weight = {
        .a = dlogits,
        .b = norm,
        .m = vocabulary_rows(builder),
        .n = width,
        .k = rows,
        .lda = vocabulary_rows(builder),
        .ldb = width,
        .ldc = width,
        .in_dtype = options->dtype,
        .out_dtype = TIDE_DTYPE_FP32,
        .transpose_a = true,
    };
    const tide_matmul_args input = {
        .a = dlogits,
        .b = tide_decoder_weight(builder, role),
        .c = norm,
        .m = rows,
        .n = width,
        .k = vocabulary_rows(builder),
        .lda = vocabulary_rows(builder),
        .ldb = width,
        .ldc = width,
        .in_dtype = options->dtype,
        .out_dtype = options->dtype,
    };
    if (tide_decoder_is_trained(builder->model, role, 0))
        tide_decoder_gradient_matmul(builder, "logits weight gradient", role, is_first, &weight);
    tide_decoder_matmul(builder, "logits input gradient", &input);
}

/* Computes the losses of the tile that starts at `first_row`; with `gradient` the logits become their
 * gradient. */
static void cross_entropy(tide_op_builder *builder, size_t first_row, size_t rows, void *logits,
                          bool gradient)
{
    const tide_decoder_options *options = &builder->model->options;
    const tide_decoder_region *region = &builder->model->region;
    const uint64_t learned = builder->model->learned > 0 ? builder->model->learned : 1;
    const tide_cross_entropy_args args = {
        .logits = logits,
        .targets = tide_decoder_batch_part(builder, region->targets_offset) + first_row,
        .losses = tide_decoder_region_at(builder, region->losses_offset + first_row * sizeof(float)),
        .rows = rows,
        .vocabulary = options->config.vocab_size,
        .leading_dimension = vocabulary_rows(builder),
        .gradient_scale = (float)(1.0 / (double)learned) * builder->model->loss_scale,
        .gradient = gradient,
        .dtype = options->dtype,
    };
    tide_decoder_launch(builder, "cross entropy", options->kernels->cross_entropy, &args, sizeof args,
                        (double)tide_cross_entropy_flops(&args), (double)tide_cross_entropy_bytes(&args));
}

static void sum_losses(tide_op_builder *builder)
{
    const tide_loss_sum_args args = {
        .losses = tide_decoder_region_at(builder, builder->model->region.losses_offset),
        .sum = tide_decoder_region_at(builder, builder->model->region.loss_sums_offset +
                                                   builder->micro_batch * sizeof(double)),
        .rows = tide_decoder_rows(builder),
    };
    tide_decoder_launch(builder, "loss sum", builder->model->options.kernels->loss_sum, &args, sizeof args,
                        (double)tide_loss_sum_flops(&args), (double)tide_loss_sum_bytes(&args));
}

/* Computes the loss from the last residual; with `gradient` the residual becomes its gradient. */
static void head(tide_op_builder *builder, bool gradient)
{
    const size_t rows = tide_decoder_rows(builder);
    const size_t row_bytes = tide_decoder_bytes(builder, tide_decoder_width(builder));
    void *x = tide_decoder_residual(builder, builder->model->options.config.layers);
    void *norm = tide_decoder_take(&builder->cursor, rows * row_bytes);
    float *mean = tide_decoder_take(&builder->cursor, rows * sizeof(float));
    float *rstd = tide_decoder_take(&builder->cursor, rows * sizeof(float));
    const size_t tile_rows_most = tide_min_u64(rows, builder->model->options.kernels->logit_rows);
    void *tile = tide_decoder_take(&builder->cursor,
                                   tide_decoder_bytes(builder, tile_rows_most * vocabulary_rows(builder)));

    tide_decoder_norm_forward(builder, &last_norm, rows, x, norm, mean, rstd);
    for (size_t first = 0; first < rows; first += tile_rows_most) {
        const size_t tile_rows = tide_min_u64(rows - first, tile_rows_most);
        void *tile_norm = (void *)((uintptr_t)norm + first * row_bytes);
        make_logits(builder, tile_rows, tile_norm, tile);
        cross_entropy(builder, first, tile_rows, tile, gradient);
        if (gradient)
            logits_backward(builder, first == 0, tile_rows, tile, tile_norm);
    }
    sum_losses(builder);
    if (!gradient)
        return;
    if (tide_decoder_head_role(builder->model) == TIDE_ROLE_HEAD) /* the embedding's op closes another */
        tide_decoder_finish(builder, TIDE_ROLE_HEAD);
    const bool passes_on = tide_decoder_passes_on(builder->model, builder->model->options.config.layers);
    tide_decoder_norm_backward(builder, &last_norm, x, norm, mean, rstd, passes_on ? norm : NULL, false);
    if (passes_on)
        tide_decoder_copy(builder, x, norm, rows * row_bytes);
}

void tide_decoder_head(tide_op_builder *builder)
{
    head(builder, true);
}

void tide_decoder_head_evaluation(tide_op_builder *builder)
{
    head(builder, false);
}

/* Computes the logits of the builder's position alone: one row passes through the final norm and the head's
 * matmul; the logits go to the region as fp32. */
void tide_decoder_head_logits(tide_op_builder *builder)
{
    const tide_decoder_options *options = &builder->model->options;
    const size_t row_bytes = tide_decoder_bytes(builder, tide_decoder_width(builder));
    const uintptr_t x =
        (uintptr_t)tide_decoder_residual(builder, options->config.layers) + builder->position * row_bytes;
    void *norm = tide_decoder_take(&builder->cursor, row_bytes);
    void *logits = tide_decoder_take(&builder->cursor, tide_decoder_bytes(builder, vocabulary_rows(builder)));
    tide_decoder_norm_forward(builder, &last_norm, 1, (const void *)x, norm, NULL, NULL);
    make_logits(builder, 1, norm, logits);
    const tide_cast_args args = {
        .in = logits,
        .out = tide_decoder_region_at(builder, builder->model->region.logits_offset),
        .elements = options->config.vocab_size,
        .in_dtype = options->dtype,
        .out_dtype = TIDE_DTYPE_FP32,
    };
    tide_decoder_launch(builder, "logits to fp32", options->kernels->cast, &args, sizeof args, 0,
                        (double)tide_cast_bytes(&args));
}
