/* Launches of a tape: each fills a kernel's arguments from the model's sizes, declares operations and bytes,
 * and is either counted (measuring) or made.
 *
 * A failure sticks to the tape: the code of an op is a plain sequence, and its status is read once at its
 * end.
 */
#include "src/model/decoder_internal.h"

tide_decoder_tape tide_decoder_tape_of(tide_decoder *model, const tide_decoder_op *op)
{
    return (tide_decoder_tape){.model = model,
                               .layer = op->layer,
                               .sequences = model->options.micro_batch_sequences,
                               .workspace_bytes = op->workspace_bytes};
}

static tide_param param_of(const tide_decoder_tape *tape, tide_role role)
{
    return tape->model->params[tide_decoder_index(tape->model, role, tape->layer)];
}

void *tide_decoder_weight(const tide_decoder_tape *tape, tide_role role)
{
    return tide_decoder_has(tape->model, role) ? tide_param_data(tape->model->pool, param_of(tape, role))
                                               : NULL;
}

bool tide_decoder_is_trained(const tide_decoder *model, tide_role role, uint32_t layer)
{
    return tide_decoder_has(model, role) && !model->frozen[tide_decoder_index(model, role, layer)];
}

float *tide_decoder_gradient(const tide_decoder_tape *tape, tide_role role)
{
    return tide_decoder_is_trained(tape->model, role, tape->layer)
               ? tide_param_gradient(tape->model->pool, param_of(tape, role))
               : NULL;
}

void *tide_decoder_residual(const tide_decoder_tape *tape, uint32_t index)
{
    return tide_activation_data(tape->model->pool, tape->model->residuals[index], tape->micro_batch);
}

void *tide_decoder_region_at(const tide_decoder_tape *tape, uint64_t offset)
{
    const uintptr_t region = tape->measuring ? 0 : (uintptr_t)tide_region(tape->model->pool);
    return (void *)(region + offset);
}

void *tide_decoder_take(uintptr_t *cursor, size_t bytes)
{
    void *taken = (void *)*cursor;
    *cursor += tide_align_up(bytes);
    return taken;
}

void tide_decoder_launch(tide_decoder_tape *tape, const char *name, tide_kernel kernel, const void *arguments,
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

void *tide_decoder_scratch(tide_decoder_tape *tape, size_t bytes)
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

/* --- norms --- */

static void layer_norm(tide_decoder_tape *tape, const tide_layer_norm_args *args)
{
    tide_decoder_launch(tape, "layer norm", tape->model->options.kernels->layer_norm, args, sizeof *args,
                        (double)tide_layer_norm_flops(args), (double)tide_layer_norm_bytes(args));
}

static void rms_norm(tide_decoder_tape *tape, const char *name, const tide_rms_norm_args *args)
{
    tide_decoder_launch(tape, name, tape->model->options.kernels->rms_norm, args, sizeof *args,
                        (double)tide_rms_norm_flops(args), (double)tide_rms_norm_bytes(args));
}

void tide_decoder_norm_forward(tide_decoder_tape *tape, const tide_decoder_norm *norm, size_t rows,
                               const void *in, void *out, float *mean, float *rstd)
{
    const size_t width = tide_decoder_width(tape);
    const float epsilon = (float)tape->model->options.config.norm_epsilon;
    const void *weight = tide_decoder_weight(tape, norm->weight);
    if (tape->model->options.config.family->rms_norm)
        rms_norm(tape, "rms norm",
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
                                       .dtype = tape->model->options.dtype});
    else
        layer_norm(tape, &(tide_layer_norm_args){.in = in,
                                                 .weight = weight,
                                                 .bias = tide_decoder_weight(tape, norm->bias),
                                                 .out = out,
                                                 .mean = mean,
                                                 .rstd = rstd,
                                                 .rows = rows,
                                                 .width = width,
                                                 .epsilon = epsilon,
                                                 .dtype = tape->model->options.dtype});
}

void tide_decoder_rms_norm_backward(tide_decoder_tape *tape, const char *name,
                                    const tide_rms_norm_backward_args *norm)
{
    const tide_kernels *kernels = tape->model->options.kernels;
    tide_rms_norm_backward_args args = *norm;
    args.workspace = tide_decoder_scratch(tape, kernels->rms_norm_backward_workspace_bytes(&args));
    args.workspace_bytes = tape->scratch_bytes;
    tide_decoder_launch(tape, name, kernels->rms_norm_backward, &args, sizeof args,
                        (double)tide_rms_norm_backward_flops(&args),
                        (double)tide_rms_norm_backward_bytes(&args));
}

static void layer_norm_backward(tide_decoder_tape *tape, const tide_layer_norm_backward_args *norm)
{
    const tide_kernels *kernels = tape->model->options.kernels;
    tide_layer_norm_backward_args args = *norm;
    args.workspace = tide_decoder_scratch(tape, kernels->layer_norm_backward_workspace_bytes(&args));
    args.workspace_bytes = tape->scratch_bytes;
    tide_decoder_launch(tape, "layer norm backward", kernels->layer_norm_backward, &args, sizeof args,
                        (double)tide_layer_norm_backward_flops(&args),
                        (double)tide_layer_norm_backward_bytes(&args));
}

void tide_decoder_norm_backward(tide_decoder_tape *tape, const tide_decoder_norm *norm, const void *in,
                                const void *dout, const float *mean, const float *rstd, void *din,
                                bool accumulate)
{
    const size_t rows = tide_decoder_rows(tape), width = tide_decoder_width(tape);
    const void *weight = tide_decoder_weight(tape, norm->weight);
    float *dweight = tide_decoder_gradient(tape, norm->weight);
    if (tape->model->options.config.family->rms_norm)
        tide_decoder_rms_norm_backward(tape, "rms norm backward",
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
                                                                      .dtype = tape->model->options.dtype});
    else
        layer_norm_backward(tape,
                            &(tide_layer_norm_backward_args){.in = in,
                                                             .weight = weight,
                                                             .dout = dout,
                                                             .mean = mean,
                                                             .rstd = rstd,
                                                             .din = din,
                                                             .dweight = dweight,
                                                             .dbias = tide_decoder_gradient(tape, norm->bias),
                                                             .rows = rows,
                                                             .width = width,
                                                             .accumulate = accumulate,
                                                             .dtype = tape->model->options.dtype});
}

/* --- products --- */

/* Gives the product its workspace. */
static void matmul_prepare(tide_decoder_tape *tape, tide_matmul_args *args)
{
    size_t workspace_bytes = 0;
    if (tape->status == TIDE_OK && tape->measuring)
        tape->status = tape->model->options.kernels->matmul_prepare(args, &workspace_bytes);
    args->workspace = tide_decoder_scratch(tape, workspace_bytes);
    args->workspace_bytes = tape->scratch_bytes;
}

void tide_decoder_matmul(tide_decoder_tape *tape, const char *name, const tide_matmul_args *product)
{
    tide_matmul_args args = *product;
    matmul_prepare(tape, &args);
    tide_decoder_launch(tape, name, tape->model->options.kernels->matmul, &args, sizeof args,
                        (double)tide_matmul_flops(&args), (double)tide_matmul_bytes(&args));
}

void tide_decoder_gradient_matmul(tide_decoder_tape *tape, const char *name, tide_role role, bool is_first,
                                  const tide_matmul_args *product)
{
    tide_matmul_args adding = *product, writing = *product;
    adding.c = writing.c = tide_decoder_gradient(tape, role);
    adding.accumulate = true;
    const bool writes = is_first && tape->micro_batch == 0 &&
                        tide_param_gradient_is_new(tape->model->pool, param_of(tape, role));
    if (tape->measuring)
        matmul_prepare(tape, &writing);
    tide_decoder_matmul(tape, name, writes ? &writing : &adding);
}

static tide_matmul_args forward_product(const tide_decoder_tape *tape, const tide_decoder_linear *linear,
                                        const void *in, void *out)
{
    const size_t in_width = tide_decoder_length(tape, linear->in),
                 out_width = tide_decoder_length(tape, linear->out);
    const tide_dtype dtype = tape->model->options.dtype;
    const bool in_out = tape->model->options.config.family->stored_in_out;
    const bool has_bias = tide_decoder_has(tape->model, linear->bias);
    return (tide_matmul_args){
        .a = in,
        .b = tide_decoder_weight(tape, linear->weight),
        .bias = tide_decoder_weight(tape, linear->bias),
        .c = out,
        .m = tide_decoder_rows(tape),
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
void tide_decoder_linear_forward(tide_decoder_tape *tape, const tide_decoder_linear *linear, const void *in,
                                 void *out)
{
    const tide_matmul_args product = forward_product(tape, linear, in, out);
    tide_decoder_matmul(tape, linear->forward_name, &product);
}

/* gelu_in = in weight + bias, out = gelu(gelu_in) */
void tide_decoder_linear_gelu(tide_decoder_tape *tape, const tide_decoder_linear *linear, const void *in,
                              void *gelu_in, void *out)
{
    tide_matmul_args product = forward_product(tape, linear, in, out);
    product.gelu = TIDE_MATMUL_GELU_FORWARD;
    product.gelu_in = gelu_in;
    tide_decoder_matmul(tape, linear->forward_name, &product);
}

/* dweight (+)= in^T dout, or its transpose, unless it is frozen */
static void linear_weight_backward(tide_decoder_tape *tape, const tide_decoder_linear *linear, const void *in,
                                   const void *dout)
{
    if (!tide_decoder_is_trained(tape->model, linear->weight, tape->layer))
        return;
    const size_t in_width = tide_decoder_length(tape, linear->in),
                 out_width = tide_decoder_length(tape, linear->out);
    const bool in_out = tape->model->options.config.family->stored_in_out;
    const size_t m = in_out ? in_width : out_width, n = in_out ? out_width : in_width;
    const tide_matmul_args product = {
        .a = in_out ? in : dout,
        .b = in_out ? dout : in,
        .m = m,
        .n = n,
        .k = tide_decoder_rows(tape),
        .lda = m,
        .ldb = n,
        .ldc = n,
        .in_dtype = tape->model->options.dtype,
        .out_dtype = TIDE_DTYPE_FP32,
        .transpose_a = true,
    };
    tide_decoder_gradient_matmul(tape, linear->weight_name, linear->weight, true, &product);
}

/* dbias += column sums of dout, unless it is frozen */
static void linear_bias_backward(tide_decoder_tape *tape, const tide_decoder_linear *linear, const void *dout)
{
    if (!tide_decoder_is_trained(tape->model, linear->bias, tape->layer))
        return;
    const tide_bias_backward_args args = {
        .dout = dout,
        .dbias = tide_decoder_gradient(tape, linear->bias),
        .rows = tide_decoder_rows(tape),
        .width = tide_decoder_length(tape, linear->out),
        .dtype = tape->model->options.dtype,
    };
    tide_decoder_launch(tape, linear->bias_name, tape->model->options.kernels->bias_backward, &args,
                        sizeof args, (double)tide_bias_backward_flops(&args),
                        (double)tide_bias_backward_bytes(&args));
}

void tide_decoder_linear_params_backward(tide_decoder_tape *tape, const tide_decoder_linear *linear,
                                         const void *in, const void *dout)
{
    linear_weight_backward(tape, linear, in, dout);
    linear_bias_backward(tape, linear, dout);
}

static tide_matmul_args input_product(const tide_decoder_tape *tape, const tide_decoder_linear *linear,
                                      const void *dout, void *din)
{
    const size_t in_width = tide_decoder_length(tape, linear->in),
                 out_width = tide_decoder_length(tape, linear->out);
    const tide_dtype dtype = tape->model->options.dtype;
    const bool in_out = tape->model->options.config.family->stored_in_out;
    return (tide_matmul_args){
        .a = dout,
        .b = tide_decoder_weight(tape, linear->weight),
        .c = din,
        .m = tide_decoder_rows(tape),
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

/* din = dout times the weight, the other way, behind the gradients of weight and bias: din may be in. */
void tide_decoder_linear_backward(tide_decoder_tape *tape, const tide_decoder_linear *linear, const void *in,
                                  const void *dout, void *din)
{
    const tide_matmul_args product = input_product(tape, linear, dout, din);
    tide_decoder_linear_params_backward(tape, linear, in, dout);
    tide_decoder_matmul(tape, linear->input_name, &product);
}

/* din = (dout times the weight) x gelu'(gelu_in), the layer's input being gelu(gelu_in); otherwise as above. */
void tide_decoder_linear_gelu_backward(tide_decoder_tape *tape, const tide_decoder_linear *linear,
                                       const void *in, const void *dout, void *gelu_in, void *din)
{
    tide_matmul_args product = input_product(tape, linear, dout, din);
    product.gelu = TIDE_MATMUL_GELU_BACKWARD;
    product.gelu_in = gelu_in;
    tide_decoder_linear_params_backward(tape, linear, in, dout);
    tide_decoder_matmul(tape, linear->input_name, &product);
}

void tide_decoder_add_to(tide_decoder_tape *tape, void *sum, const void *term, size_t elements)
{
    const tide_add_args args = {
        .a = sum, .b = term, .out = sum, .elements = elements, .dtype = tape->model->options.dtype};
    tide_decoder_launch(tape, "residual add", tape->model->options.kernels->add, &args, sizeof args,
                        (double)tide_add_flops(&args), (double)tide_add_bytes(&args));
}

void tide_decoder_copy(tide_decoder_tape *tape, void *out, const void *in, size_t bytes)
{
    const tide_copy_args args = {.in = in, .out = out, .bytes = bytes};
    tide_decoder_launch(tape, "residual gradient", tape->model->options.kernels->copy, &args, sizeof args, 0,
                        (double)tide_copy_bytes(&args));
}
