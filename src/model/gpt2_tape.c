/* Launches of a tape: each fills a kernel's arguments from the model's sizes, declares operations and bytes,
 * and is either counted (measuring) or made.
 *
 * A failure sticks to the tape: the code of an op is a plain sequence, and its status is read once at its
 * end.
 */
#include "src/model/gpt2_internal.h"

tide_gpt2_tape tide_gpt2_tape_of(tide_gpt2 *model, const tide_gpt2_op *op)
{
    return (tide_gpt2_tape){.model = model,
                            .layer = op->layer,
                            .sequences = model->options.micro_batch_sequences,
                            .workspace_bytes = op->workspace_bytes};
}

void *tide_gpt2_weight(const tide_gpt2_tape *tape, tide_gpt2_role role)
{
    const tide_gpt2 *model = tape->model;
    return tide_param_data(model->pool,
                           model->params[tide_gpt2_param_index(&model->options.config, role, tape->layer)]);
}

bool tide_gpt2_is_trained(const tide_gpt2 *model, tide_gpt2_role role, uint32_t layer)
{
    return !model->frozen[tide_gpt2_param_index(&model->options.config, role, layer)];
}

float *tide_gpt2_gradient(const tide_gpt2_tape *tape, tide_gpt2_role role)
{
    const tide_gpt2 *model = tape->model;
    if (!tide_gpt2_is_trained(model, role, tape->layer))
        return NULL;
    return tide_param_gradient(
        model->pool, model->params[tide_gpt2_param_index(&model->options.config, role, tape->layer)]);
}

void *tide_gpt2_residual(const tide_gpt2_tape *tape, uint32_t index)
{
    return tide_checkpoint_data(tape->model->pool, tape->model->residuals[index], tape->micro_batch);
}

void *tide_gpt2_region_at(const tide_gpt2_tape *tape, uint64_t offset)
{
    const uintptr_t region = tape->measuring ? 0 : (uintptr_t)tide_region(tape->model->pool);
    return (void *)(region + offset);
}

void *tide_gpt2_take(uintptr_t *cursor, size_t bytes)
{
    void *taken = (void *)*cursor;
    *cursor += tide_align_up(bytes);
    return taken;
}

void tide_gpt2_launch(tide_gpt2_tape *tape, const char *name, tide_kernel kernel, const void *arguments,
                      size_t argument_bytes, double flops, double bytes)
{
    if (tape->status != TIDE_OK)
        return;
    if (tape->measuring) {
        tape->flops += flops;
        return;
    }
    tape->status = tide_launch(tape->model->pool, name, kernel, arguments, argument_bytes, flops, bytes);
}

/* Scratch for a kernel that needs `bytes`: behind all that the op has taken. */
static void *scratch(tide_gpt2_tape *tape, size_t bytes)
{
    if (tape->measuring) {
        if (tape->scratch_bytes < bytes)
            tape->scratch_bytes = bytes;
    } else {
        tape->scratch_bytes = tape->workspace_bytes - (tape->cursor - tape->workspace);
        assert(bytes <= tape->scratch_bytes);
    }
    return (void *)tape->cursor;
}

void tide_gpt2_layer_norm(tide_gpt2_tape *tape, tide_gpt2_role weight, tide_gpt2_role bias, size_t rows,
                          const void *in, void *out, float *mean, float *rstd)
{
    const tide_layer_norm_args args = {
        .in = in,
        .weight = tide_gpt2_weight(tape, weight),
        .bias = tide_gpt2_weight(tape, bias),
        .out = out,
        .mean = mean,
        .rstd = rstd,
        .rows = rows,
        .width = tide_gpt2_width(tape),
        .epsilon = (float)tape->model->options.config.layer_norm_epsilon,
        .dtype = tape->model->options.dtype,
    };
    tide_gpt2_launch(tape, "layer norm", tape->model->options.kernels->layer_norm, &args, sizeof args,
                     (double)tide_layer_norm_flops(&args), (double)tide_layer_norm_bytes(&args));
}

void tide_gpt2_layer_norm_backward(tide_gpt2_tape *tape, tide_gpt2_role weight, tide_gpt2_role bias,
                                   const tide_layer_norm_backward_args *tensors)
{
    tide_layer_norm_backward_args args = *tensors;
    args.weight = tide_gpt2_weight(tape, weight);
    args.dweight = tide_gpt2_gradient(tape, weight);
    args.dbias = tide_gpt2_gradient(tape, bias);
    args.rows = tide_gpt2_rows(tape);
    args.width = tide_gpt2_width(tape);
    args.dtype = tape->model->options.dtype;
    tide_gpt2_launch(tape, "layer norm backward", tape->model->options.kernels->layer_norm_backward, &args,
                     sizeof args, (double)tide_layer_norm_backward_flops(&args),
                     (double)tide_layer_norm_backward_bytes(&args));
}

void tide_gpt2_matmul(tide_gpt2_tape *tape, const char *name, const tide_matmul_args *product)
{
    tide_matmul_args args = *product;
    size_t workspace_bytes = 0;
    if (tape->status == TIDE_OK && tape->measuring)
        tape->status = tape->model->options.kernels->matmul_prepare(&args, &workspace_bytes);
    args.workspace = scratch(tape, workspace_bytes);
    args.workspace_bytes = tape->scratch_bytes;
    tide_gpt2_launch(tape, name, tape->model->options.kernels->matmul, &args, sizeof args,
                     (double)tide_matmul_flops(&args), (double)tide_matmul_bytes(&args));
}

static tide_matmul_args forward_product(const tide_gpt2_tape *tape, const tide_gpt2_linear *linear,
                                        const void *in, void *out)
{
    const size_t in_width = linear->in_widths * tide_gpt2_width(tape);
    const size_t out_width = linear->out_widths * tide_gpt2_width(tape);
    const tide_dtype dtype = tape->model->options.dtype;
    return (tide_matmul_args){
        .a = in,
        .b = tide_gpt2_weight(tape, linear->weight),
        .bias = tide_gpt2_weight(tape, linear->bias),
        .c = out,
        .m = tide_gpt2_rows(tape),
        .n = out_width,
        .k = in_width,
        .lda = in_width,
        .ldb = out_width,
        .ldc = out_width,
        .in_dtype = dtype,
        .out_dtype = dtype,
        .has_bias = true,
    };
}

/* out = in weight + bias */
void tide_gpt2_linear_forward(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in, void *out)
{
    const tide_matmul_args product = forward_product(tape, linear, in, out);
    tide_gpt2_matmul(tape, linear->forward_name, &product);
}

static void gelu(tide_gpt2_tape *tape, const void *in, void *out, size_t elements)
{
    const tide_gelu_args args = {
        .in = in, .out = out, .elements = elements, .dtype = tape->model->options.dtype};
    tide_gpt2_launch(tape, "gelu", tape->model->options.kernels->gelu, &args, sizeof args,
                     (double)tide_gelu_flops(&args), (double)tide_gelu_bytes(&args));
}

/* gelu_in = in weight + bias, out = gelu(gelu_in) */
void tide_gpt2_linear_gelu(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in,
                           void *gelu_in, void *out)
{
    if (tape->model->options.kernels->fuses_gelu) {
        tide_matmul_args product = forward_product(tape, linear, in, out);
        product.gelu = TIDE_MATMUL_GELU_FORWARD;
        product.gelu_in = gelu_in;
        tide_gpt2_matmul(tape, linear->forward_name, &product);
        return;
    }
    tide_gpt2_linear_forward(tape, linear, in, gelu_in);
    gelu(tape, gelu_in, out, linear->out_widths * tide_gpt2_width(tape) * tide_gpt2_rows(tape));
}

/* dweight += in^T dout, unless it is frozen */
static void linear_weight_backward(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in,
                                   const void *dout)
{
    if (!tide_gpt2_is_trained(tape->model, linear->weight, tape->layer))
        return;
    const size_t in_width = linear->in_widths * tide_gpt2_width(tape);
    const size_t out_width = linear->out_widths * tide_gpt2_width(tape);
    const tide_matmul_args product = {
        .a = in,
        .b = dout,
        .c = tide_gpt2_gradient(tape, linear->weight),
        .m = in_width,
        .n = out_width,
        .k = tide_gpt2_rows(tape),
        .lda = in_width,
        .ldb = out_width,
        .ldc = out_width,
        .in_dtype = tape->model->options.dtype,
        .out_dtype = TIDE_DTYPE_FP32,
        .transpose_a = true,
        .accumulate = true,
    };
    tide_gpt2_matmul(tape, linear->weight_name, &product);
}

/* dbias += column sums of dout, unless it is frozen */
static void linear_bias_backward(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *dout)
{
    if (!tide_gpt2_is_trained(tape->model, linear->bias, tape->layer))
        return;
    const tide_bias_backward_args args = {
        .dout = dout,
        .dbias = tide_gpt2_gradient(tape, linear->bias),
        .rows = tide_gpt2_rows(tape),
        .width = linear->out_widths * tide_gpt2_width(tape),
        .dtype = tape->model->options.dtype,
    };
    tide_gpt2_launch(tape, linear->bias_name, tape->model->options.kernels->bias_backward, &args, sizeof args,
                     (double)tide_bias_backward_flops(&args), (double)tide_bias_backward_bytes(&args));
}

void tide_gpt2_linear_params_backward(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in,
                                      const void *dout)
{
    linear_weight_backward(tape, linear, in, dout);
    linear_bias_backward(tape, linear, dout);
}

static tide_matmul_args input_product(const tide_gpt2_tape *tape, const tide_gpt2_linear *linear,
                                      const void *dout, void *din)
{
    const size_t in_width = linear->in_widths * tide_gpt2_width(tape);
    const size_t out_width = linear->out_widths * tide_gpt2_width(tape);
    const tide_dtype dtype = tape->model->options.dtype;
    return (tide_matmul_args){
        .a = dout,
        .b = tide_gpt2_weight(tape, linear->weight),
        .c = din,
        .m = tide_gpt2_rows(tape),
        .n = in_width,
        .k = out_width,
        .lda = out_width,
        .ldb = out_width,
        .ldc = in_width,
        .in_dtype = dtype,
        .out_dtype = dtype,
        .transpose_b = true,
    };
}

/* din = dout weight^T, behind the gradients of weight and bias: din may be in. */
void tide_gpt2_linear_backward(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in,
                               const void *dout, void *din)
{
    const tide_matmul_args product = input_product(tape, linear, dout, din);
    tide_gpt2_linear_params_backward(tape, linear, in, dout);
    tide_gpt2_matmul(tape, linear->input_name, &product);
}

static void gelu_backward(tide_gpt2_tape *tape, const void *in, void *gradient, size_t elements)
{
    const tide_gelu_backward_args args = {.in = in,
                                          .dout = gradient,
                                          .din = gradient,
                                          .elements = elements,
                                          .dtype = tape->model->options.dtype};
    tide_gpt2_launch(tape, "gelu backward", tape->model->options.kernels->gelu_backward, &args, sizeof args,
                     (double)tide_gelu_backward_flops(&args), (double)tide_gelu_backward_bytes(&args));
}

/* din = (dout weight^T) x gelu'(gelu_in), the layer's input being gelu(gelu_in); otherwise as above. */
void tide_gpt2_linear_gelu_backward(tide_gpt2_tape *tape, const tide_gpt2_linear *linear, const void *in,
                                    const void *dout, void *gelu_in, void *din)
{
    if (tape->model->options.kernels->fuses_gelu) {
        tide_matmul_args product = input_product(tape, linear, dout, din);
        product.gelu = TIDE_MATMUL_GELU_BACKWARD;
        product.gelu_in = gelu_in;
        tide_gpt2_linear_params_backward(tape, linear, in, dout);
        tide_gpt2_matmul(tape, linear->input_name, &product);
        return;
    }
    tide_gpt2_linear_backward(tape, linear, in, dout, din);
    gelu_backward(tape, gelu_in, din, linear->in_widths * tide_gpt2_width(tape) * tide_gpt2_rows(tape));
}

void tide_gpt2_attention(tide_gpt2_tape *tape, const tide_gpt2_activations *at)
{
    const tide_gpt2_options *options = &tape->model->options;
    tide_attention_args args = {
        .qkv = at->qkv,
        .out = at->attention,
        .logsumexp = at->logsumexp,
        .batch = tape->sequences,
        .sequence_length = options->seq_len,
        .heads = options->config.heads,
        .head_width = options->config.width / options->config.heads,
        .dtype = options->dtype,
    };
    args.workspace = scratch(tape, options->kernels->attention_workspace_bytes(&args));
    args.workspace_bytes = tape->scratch_bytes;
    tide_gpt2_launch(tape, "attention", options->kernels->attention, &args, sizeof args,
                     (double)tide_attention_flops(&args), (double)tide_attention_bytes(&args));
}

void tide_gpt2_attention_backward(tide_gpt2_tape *tape, const tide_gpt2_activations *at, const void *dout,
                                  void *dqkv)
{
    const tide_gpt2_options *options = &tape->model->options;
    tide_attention_backward_args args = {
        .qkv = at->qkv,
        .out = at->attention,
        .dout = dout,
        .logsumexp = at->logsumexp,
        .dqkv = dqkv,
        .batch = tape->sequences,
        .sequence_length = options->seq_len,
        .heads = options->config.heads,
        .head_width = options->config.width / options->config.heads,
        .dtype = options->dtype,
    };
    args.workspace = scratch(tape, options->kernels->attention_backward_workspace_bytes(&args));
    args.workspace_bytes = tape->scratch_bytes;
    tide_gpt2_launch(tape, "attention backward", options->kernels->attention_backward, &args, sizeof args,
                     (double)tide_attention_backward_flops(&args),
                     (double)tide_attention_backward_bytes(&args));
}

void tide_gpt2_add_to(tide_gpt2_tape *tape, void *sum, const void *term, size_t elements)
{
    const tide_add_args args = {
        .a = sum, .b = term, .out = sum, .elements = elements, .dtype = tape->model->options.dtype};
    tide_gpt2_launch(tape, "residual add", tape->model->options.kernels->add, &args, sizeof args,
                     (double)tide_add_flops(&args), (double)tide_add_bytes(&args));
}

void tide_gpt2_copy(tide_gpt2_tape *tape, void *out, const void *in, size_t bytes)
{
    const tide_copy_args args = {.in = in, .out = out, .bytes = bytes};
    tide_gpt2_launch(tape, "residual gradient", tape->model->options.kernels->copy, &args, sizeof args, 0,
                     (double)tide_copy_bytes(&args));
}
