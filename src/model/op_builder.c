/* Launches of an op builder. Each function here fills a kernel's arguments from the model's sizes, with the
 * operations and bytes of the launch, and either counts the launch (dry run) or makes it.
 *
 * The builder keeps the first failure and launches nothing after it. So an op's code is a plain sequence, and
 * its caller reads the status once, at its end.
 */
#include "src/model/decoder_internal.h"

#include "base/minmax.h"

tide_op_builder tide_op_builder_of(tide_decoder *model, const tide_decoder_op *op)
{
    return (tide_op_builder){.model = model,
                             .layer = op->layer,
                             .sequences = model->options.micro_batch_sequences,
                             .workspace_bytes = op->workspace_bytes};
}

static tide_param param_of(const tide_op_builder *builder, tide_role role)
{
    return builder->model->params[tide_decoder_index(builder->model, role, builder->layer)];
}

/* An address that a dry run gives to all params: not NULL, since a kernel may count fewer bytes without a
 * param, and aligned like a real one. */
#define DRY_PARAM ((void *)(uintptr_t)TIDE_ALIGNMENT_BYTES)

void *tide_decoder_weight(const tide_op_builder *builder, tide_role role)
{
    if (!tide_decoder_has(builder->model, role))
        return NULL;
    return builder->dry_run ? DRY_PARAM : tide_param_data(builder->model->pool, param_of(builder, role));
}

bool tide_decoder_is_trained(const tide_decoder *model, tide_role role, uint32_t layer)
{
    return tide_decoder_has(model, role) && !model->frozen[tide_decoder_index(model, role, layer)];
}

float *tide_decoder_gradient(const tide_op_builder *builder, tide_role role)
{
    if (!tide_decoder_is_trained(builder->model, role, builder->layer))
        return NULL;
    return builder->dry_run ? DRY_PARAM : tide_param_gradient(builder->model->pool, param_of(builder, role));
}

void *tide_decoder_residual(const tide_op_builder *builder, uint32_t index)
{
    if (tide_decoder_generates(&builder->model->options))
        return tide_decoder_region_at(builder, builder->model->region.residual_offset);
    return tide_activation_data(builder->model->pool, builder->model->residuals[index], builder->micro_batch);
}

void *tide_decoder_region_at(const tide_op_builder *builder, uint64_t offset)
{
    const uintptr_t region = builder->dry_run ? 0 : (uintptr_t)tide_region(builder->model->pool);
    return (void *)(region + offset);
}

const int32_t *tide_decoder_batch_part(const tide_op_builder *builder, uint64_t offset)
{
    const tide_decoder_options *options = &builder->model->options;
    return tide_decoder_region_at(builder, offset + sizeof(int32_t) * options->seq_len *
                                                        options->micro_batch_sequences *
                                                        (uint64_t)builder->micro_batch);
}

void *tide_decoder_take(uintptr_t *cursor, size_t bytes)
{
    void *taken = (void *)*cursor;
    *cursor += tide_align_up(bytes);
    return taken;
}

/* Tell options.seen of a launch in a dry run, unless the dry run is of a sample's one sequence. */
static void tell_seen(const tide_op_builder *builder, const char *name, double flops, double bytes)
{
    const tide_decoder_options *options = &builder->model->options;
    if (options->seen != NULL && builder->sequences == options->micro_batch_sequences)
        options->seen(options->seen_context, (tide_op)builder->model->order.count, name, flops, bytes,
                      builder->times);
}

void tide_decoder_launch(tide_op_builder *builder, const char *name, tide_kernel kernel,
                         const void *arguments, size_t argument_bytes, double flops, double bytes)
{
    if (builder->status != TIDE_OK)
        return;
    if (builder->dry_run) {
        tell_seen(builder, name, flops, bytes);
        builder->flops += flops;
        return;
    }
    builder->status =
        tide_launch(builder->model->pool, name, kernel, arguments, argument_bytes, flops, bytes);
}

void *tide_decoder_scratch(tide_op_builder *builder, size_t bytes)
{
    if (builder->dry_run) {
        if (builder->scratch_bytes < bytes)
            builder->scratch_bytes = bytes;
    } else {
        builder->scratch_bytes = builder->workspace_bytes - (builder->cursor - builder->workspace);
        assert(bytes <= builder->scratch_bytes);
    }
    return (void *)builder->cursor;
}

/* --- norms --- */

static void layer_norm(tide_op_builder *builder, const tide_layer_norm_args *args)
{
    tide_decoder_launch(builder, "layer norm", builder->model->options.kernels->layer_norm, args,
                        sizeof *args, (double)tide_layer_norm_flops(args),
                        (double)tide_layer_norm_bytes(args));
}

static void rms_norm(tide_op_builder *builder, const char *name, const tide_rms_norm_args *args)
{
    tide_decoder_launch(builder, name, builder->model->options.kernels->rms_norm, args, sizeof *args,
                        (double)tide_rms_norm_flops(args), (double)tide_rms_norm_bytes(args));
}

void tide_decoder_norm_forward(tide_op_builder *builder, const tide_decoder_norm *norm, size_t rows,
                               const void *in, void *out, float *mean, float *rstd)
{
    const size_t width = tide_decoder_width(builder);
    const float epsilon = (float)builder->model->options.config.norm_epsilon;
    const void *weight = tide_decoder_weight(builder, norm->weight);
    if (builder->model->options.config.family->rms_norm)
        rms_norm(builder, "rms norm",
                 &(tide_rms_norm_args){.in = in,
                                       .weight = weight,
                                       .out = out,
                                       .rstd = rstd,
                                       .rows = rows,
                                       .heads = 1,
                                       .width = width,
                                       .in_row = width,
                                       .out_row = width,
                                       .epsilon = epsilon,
                                       .dtype = builder->model->options.dtype});
    else
        layer_norm(builder, &(tide_layer_norm_args){.in = in,
                                                    .weight = weight,
                                                    .bias = tide_decoder_weight(builder, norm->bias),
                                                    .out = out,
                                                    .mean = mean,
                                                    .rstd = rstd,
                                                    .rows = rows,
                                                    .width = width,
                                                    .epsilon = epsilon,
                                                    .dtype = builder->model->options.dtype});
}

void tide_decoder_rms_norm_backward(tide_op_builder *builder, const char *name,
                                    const tide_rms_norm_backward_args *norm)
{
    const tide_kernels *kernels = builder->model->options.kernels;
    tide_rms_norm_backward_args args = *norm;
    args.workspace = tide_decoder_scratch(builder, kernels->rms_norm_backward_workspace_bytes(&args));
    args.workspace_bytes = builder->scratch_bytes;
    tide_decoder_launch(builder, name, kernels->rms_norm_backward, &args, sizeof args,
                        (double)tide_rms_norm_backward_flops(&args),
                        (double)tide_rms_norm_backward_bytes(&args));
}

static void layer_norm_backward(tide_op_builder *builder, const tide_layer_norm_backward_args *norm)
{
    const tide_kernels *kernels = builder->model->options.kernels;
    tide_layer_norm_backward_args args = *norm;
    args.workspace = tide_decoder_scratch(builder, kernels->layer_norm_backward_workspace_bytes(&args));
    args.workspace_bytes = builder->scratch_bytes;
    tide_decoder_launch(builder, "layer norm backward", kernels->layer_norm_backward, &args, sizeof args,
                        (double)tide_layer_norm_backward_flops(&args),
                        (double)tide_layer_norm_backward_bytes(&args));
}

void tide_decoder_norm_backward(tide_op_builder *builder, const tide_decoder_norm *norm, const void *in,
                                const void *dout, const float *mean, const float *rstd, void *din,
                                bool accumulate)
{
    const size_t rows = tide_decoder_rows(builder), width = tide_decoder_width(builder);
    const void *weight = tide_decoder_weight(builder, norm->weight);
    float *dweight = tide_decoder_gradient(builder, norm->weight);
    if (builder->model->options.config.family->rms_norm)
        tide_decoder_rms_norm_backward(
            builder, "rms norm backward",
            &(tide_rms_norm_backward_args){.in = in,
                                           .weight = weight,
                                           .dout = dout,
                                           .rstd = rstd,
                                           .din = din,
                                           .dweight = dweight,
                                           .rows = rows,
                                           .heads = 1,
                                           .width = width,
                                           .in_row = width,
                                           .dout_row = width,
                                           .accumulate = accumulate,
                                           .dtype = builder->model->options.dtype});
    else
        layer_norm_backward(
            builder, &(tide_layer_norm_backward_args){.in = in,
                                                      .weight = weight,
                                                      .dout = dout,
                                                      .mean = mean,
                                                      .rstd = rstd,
                                                      .din = din,
                                                      .dweight = dweight,
                                                      .dbias = tide_decoder_gradient(builder, norm->bias),
                                                      .rows = rows,
                                                      .width = width,
                                                      .accumulate = accumulate,
                                                      .dtype = builder->model->options.dtype});
    tide_decoder_finish(builder, norm->weight);
    tide_decoder_finish(builder, norm->bias);
}

/* --- matmuls --- */

/* Sets the matmul's workspace; in a dry run prepares the matmul first. */
static void matmul_prepare(tide_op_builder *builder, tide_matmul_args *args)
{
    size_t workspace_bytes = 0;
    if (builder->status == TIDE_OK && builder->dry_run)
        builder->status = builder->model->options.kernels->matmul_prepare(args, &workspace_bytes);
    args->workspace = tide_decoder_scratch(builder, workspace_bytes);
    args->workspace_bytes = builder->scratch_bytes;
}

void tide_decoder_matmul(tide_op_builder *builder, const char *name, const tide_matmul_args *product)
{
    tide_matmul_args args = *product;
    matmul_prepare(builder, &args);
    tide_decoder_launch(builder, name, builder->model->options.kernels->matmul, &args, sizeof args,
                        (double)tide_matmul_flops(&args), (double)tide_matmul_bytes(&args));
}

void tide_decoder_gradient_matmul(tide_op_builder *builder, const char *name, tide_role role, bool is_first,
                                  const tide_matmul_args *product)
{
    tide_matmul_args adding = *product, writing = *product;
    adding.c = writing.c = tide_decoder_gradient(builder, role);
    adding.accumulate = true;
    const tide_decoder_options *options = &builder->model->options;
    const bool group_begins = builder->micro_batch % (options->micro_batches / options->sum_groups) == 0;
    const bool writes =
        is_first && group_begins && tide_param_gradient_is_new(builder->model->pool, param_of(builder, role));
    if (builder->dry_run) {
        const double flops = builder->flops; /* those of `adding` count for every micro-batch */
        const uint32_t times = builder->times,
                       written = is_first ? (uint32_t)tide_min_u64(options->sum_groups, times) : 0;
        builder->times = written;
        tide_decoder_matmul(builder, name, &writing);
        builder->times = times - written;
        builder->flops = flops;
        tide_decoder_matmul(builder, name, &adding);
        builder->times = times;
        return;
    }
    tide_decoder_matmul(builder, name, writes ? &writing : &adding);
}

void tide_decoder_finish(tide_op_builder *builder, tide_role role)
{
    const tide_decoder_options *options = &builder->model->options;
    if (builder->status != TIDE_OK || builder->dry_run || options->sum_groups == 1 ||
        builder->micro_batch + 1 < options->micro_batches ||
        !tide_decoder_is_trained(builder->model, role, builder->layer))
        return;
    const tide_param param = param_of(builder, role);
    const uint64_t elements = tide_description_param_elements(builder->model->description, param);
    builder->status = tide_gradient_finish(builder->model->pool, param, 0, elements);
}

static tide_matmul_args forward_product(const tide_op_builder *builder, const tide_decoder_linear *linear,
                                        const void *in, void *out)
{
    const size_t in_width = tide_decoder_length(builder, linear->in),
                 out_width = tide_decoder_length(builder, linear->out);
    const tide_dtype dtype = builder->model->options.dtype;
    const bool in_out = builder->model->options.config.family->stored_in_out;
    const bool has_bias = tide_decoder_has(builder->model, linear->bias);
    return (tide_matmul_args){
        .a = in,
        .b = tide_decoder_weight(builder, linear->weight),
        .bias = tide_decoder_weight(builder, linear->bias),
        .c = out,
        .m = tide_decoder_rows(builder),
        .n = out_width,
        .k = in_width,
        .lda = in_width,
        .ldb = in_out ? out_width : in_width,
        .ldc = out_width,
        .in_dtype = dtype,
        .out_dtype = dtype,
        .transpose_b = !in_out,
        .has_bias = has_bias,
    };
}

/* out = in weight + bias */
void tide_decoder_linear_forward(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                                 void *out)
{
    const tide_matmul_args product = forward_product(builder, linear, in, out);
    tide_decoder_matmul(builder, linear->forward_name, &product);
}

/* gelu_in = in weight + bias, out = gelu(gelu_in) */
void tide_decoder_linear_gelu(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                              void *gelu_in, void *out)
{
    tide_matmul_args product = forward_product(builder, linear, in, out);
    product.gelu = TIDE_MATMUL_GELU_FORWARD;
    product.gelu_in = gelu_in;
    tide_decoder_matmul(builder, linear->forward_name, &product);
}

/* dweight (+)= in^T dout, or its transpose, unless the weight is frozen */
static void linear_weight_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                   const void *in, const void *dout)
{
    if (!tide_decoder_is_trained(builder->model, linear->weight, builder->layer))
        return;
    const size_t in_width = tide_decoder_length(builder, linear->in),
                 out_width = tide_decoder_length(builder, linear->out);
    const bool in_out = builder->model->options.config.family->stored_in_out;
    const size_t m = in_out ? in_width : out_width, n = in_out ? out_width : in_width;
    const tide_matmul_args product = {
        .a = in_out ? in : dout,
        .b = in_out ? dout : in,
        .m = m,
        .n = n,
        .k = tide_decoder_rows(builder),
        .lda = m,
        .ldb = n,
        .ldc = n,
        .in_dtype = builder->model->options.dtype,
        .out_dtype = TIDE_DTYPE_FP32,
        .transpose_a = true,
    };
    tide_decoder_gradient_matmul(builder, linear->weight_name, linear->weight, true, &product);
}

/* dbias += column sums of dout, unless the bias is frozen */
static void linear_bias_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                 const void *dout)
{
    if (!tide_decoder_is_trained(builder->model, linear->bias, builder->layer))
        return;
    const tide_bias_backward_args args = {
        .dout = dout,
        .dbias = tide_decoder_gradient(builder, linear->bias),
        .rows = tide_decoder_rows(builder),
        .width = tide_decoder_length(builder, linear->out),
        .dtype = builder->model->options.dtype,
    };
    tide_decoder_launch(builder, linear->bias_name, builder->model->options.kernels->bias_backward, &args,
                        sizeof args, (double)tide_bias_backward_flops(&args),
                        (double)tide_bias_backward_bytes(&args));
}

static void linear_params_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                   const void *in, const void *dout)
{
    linear_weight_backward(builder, linear, in, dout);
    linear_bias_backward(builder, linear, dout);
}

static void linear_finish(tide_op_builder *builder, const tide_decoder_linear *linear)
{
    tide_decoder_finish(builder, linear->weight);
    tide_decoder_finish(builder, linear->bias);
}

void tide_decoder_linear_params_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                         const void *in, const void *dout)
{
    linear_params_backward(builder, linear, in, dout);
    linear_finish(builder, linear);
}

static tide_matmul_args input_product(const tide_op_builder *builder, const tide_decoder_linear *linear,
                                      const void *dout, void *din)
{
    const size_t in_width = tide_decoder_length(builder, linear->in),
                 out_width = tide_decoder_length(builder, linear->out);
    const tide_dtype dtype = builder->model->options.dtype;
    const bool in_out = builder->model->options.config.family->stored_in_out;
    return (tide_matmul_args){
        .a = dout,
        .b = tide_decoder_weight(builder, linear->weight),
        .c = din,
        .m = tide_decoder_rows(builder),
        .n = in_width,
        .k = out_width,
        .lda = out_width,
        .ldb = in_out ? out_width : in_width,
        .ldc = in_width,
        .in_dtype = dtype,
        .out_dtype = dtype,
        .transpose_b = in_out,
    };
}

/* din = dout weight^T. It comes after the gradients of weight and bias, so din may overwrite in. */
void tide_decoder_linear_backward(tide_op_builder *builder, const tide_decoder_linear *linear, const void *in,
                                  const void *dout, void *din)
{
    const tide_matmul_args product = input_product(builder, linear, dout, din);
    linear_params_backward(builder, linear, in, dout);
    tide_decoder_matmul(builder, linear->input_name, &product);
    linear_finish(builder, linear);
}

/* din = (dout weight^T) x gelu'(gelu_in), where the layer's input was gelu(gelu_in); otherwise like
 * tide_decoder_linear_backward. */
void tide_decoder_linear_gelu_backward(tide_op_builder *builder, const tide_decoder_linear *linear,
                                       const void *in, const void *dout, void *gelu_in, void *din)
{
    tide_matmul_args product = input_product(builder, linear, dout, din);
    product.gelu = TIDE_MATMUL_GELU_BACKWARD;
    product.gelu_in = gelu_in;
    linear_params_backward(builder, linear, in, dout);
    tide_decoder_matmul(builder, linear->input_name, &product);
    linear_finish(builder, linear);
}

void tide_decoder_add_to(tide_op_builder *builder, void *sum, const void *term, size_t elements)
{
    const tide_add_args args = {
        .a = sum, .b = term, .out = sum, .elements = elements, .dtype = builder->model->options.dtype};
    tide_decoder_launch(builder, "residual add", builder->model->options.kernels->add, &args, sizeof args,
                        (double)tide_add_flops(&args), (double)tide_add_bytes(&args));
}

void tide_decoder_copy(tide_op_builder *builder, void *out, const void *in, size_t bytes)
{
    const tide_copy_args args = {.in = in, .out = out, .bytes = bytes};
    tide_decoder_launch(builder, "residual gradient", builder->model->options.kernels->copy, &args,
                        sizeof args, 0, (double)tide_copy_bytes(&args));
}
