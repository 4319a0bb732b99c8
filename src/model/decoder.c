/* Describes a model: params under Hugging Face's names in creation order, and activations that outlive an
 * op as ACTIVATION tensors. Sets initial values and runs the ops of a step. decoder_ops.c declares each op's
 * accesses; decoder_block.c and decoder_embedding_head.c have the ops' code. */
#include "src/model/decoder_internal.h"

#include "base/align.h"
#include "base/team.h"
#include "src/model/rope.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Initial values pass through one buffer of INIT_RANGE_ELEMENTS, which the threads of the CPU's kernels
 * fill in slices. The random numbers are counter-based, so any thread may make any element. Each
 * tide_param_set waits for the pool's engine, so ranges are large. gpt2 started in 10.4 s with ranges of 64
 * Ki elements on one thread, in 6.0 s with these ranges, in 3.3 s with two threads on 2 cores, and in 1.3 s
 * since the CPU's kernels make normals in vectors and both threads touch the slots. */
enum { INIT_RANGE_ELEMENTS = 1 << 20, INIT_SLICE_ELEMENTS = 1 << 14 };

/* Elements of padding that one call sets to zero: gpt2's 47 rows take nine calls. */
enum { ZEROS = 4096 };

/* --- sizes --- */

static uint64_t micro_batch_rows(const tide_decoder_options *options)
{
    return (uint64_t)options->seq_len * options->micro_batch_sequences;
}

/* How many positions tokens have. */
static uint32_t positions(const tide_decoder_options *options)
{
    return tide_decoder_generates(options) ? options->cache_tokens : options->seq_len;
}

/* Elements of the table of rotary positions. */
static uint64_t rope_elements(const tide_decoder_options *options)
{
    return options->config.family->rotary ? (uint64_t)positions(options) * options->config.head_width : 0;
}

/* Neither targets nor losses, but a residual and the cache. */
static tide_decoder_region generating_layout(const tide_decoder_options *options)
{
    const uint64_t rows = micro_batch_rows(options);
    tide_decoder_region region = {.inputs_offset = 0};
    region.logits_offset = tide_align_up(rows * sizeof(int32_t));
    region.rope_offset = region.logits_offset + tide_align_up(options->config.vocab_size * sizeof(float));
    region.residual_offset = region.rope_offset + tide_align_up(rope_elements(options) * sizeof(float));
    region.keys_offset = region.residual_offset + tide_align_up(tide_decoder_residual_part_bytes(options));
    region.values_offset =
        region.keys_offset + options->config.layers * tide_decoder_cache_layer_bytes(options);
    region.bytes = region.values_offset + options->config.layers * tide_decoder_cache_layer_bytes(options);
    return region;
}

tide_decoder_region tide_decoder_region_layout(const tide_decoder_options *options)
{
    if (tide_decoder_generates(options))
        return generating_layout(options);
    const uint64_t rows = micro_batch_rows(options);
    const uint64_t token_bytes = tide_align_up(rows * options->micro_batches * sizeof(int32_t));
    tide_decoder_region region = {.inputs_offset = 0};
    region.targets_offset = region.inputs_offset + token_bytes;
    region.starts_offset = region.targets_offset + token_bytes;
    region.losses_offset = region.starts_offset + token_bytes;
    region.loss_sums_offset = region.losses_offset + tide_align_up(rows * sizeof(float));
    region.logits_offset = region.loss_sums_offset + tide_align_up(options->micro_batches * sizeof(double));
    region.rope_offset = region.logits_offset + tide_align_up(options->config.vocab_size * sizeof(float));
    region.bytes = region.rope_offset + tide_align_up(rope_elements(options) * sizeof(float));
    return region;
}

uint64_t tide_decoder_residual_part_bytes(const tide_decoder_options *options)
{
    return micro_batch_rows(options) * options->config.width * tide_dtype_bytes(options->dtype);
}

uint64_t tide_decoder_saved_part_bytes(const tide_decoder_options *options)
{
    uintptr_t end = 0;
    tide_decoder_activations activations;
    tide_decoder_activations_place(options, options->micro_batch_sequences, &end, &activations);
    return end;
}

static tide_status describe_params(tide_decoder *model)
{
    const tide_model_config *config = &model->options.config;
    for (size_t i = 0; i < tide_model_param_count(config); i++) {
        tide_model_param param;
        tide_model_param_describe(config, i, &param);
        param.shape[0] = param.memory_rows;
        const tide_param_class of_class = {.frozen = model->frozen[i],
                                           .decay = param.decays && !model->frozen[i]};
        const tide_status status = tide_description_add_param(model->description, param.name, param.shape,
                                                              param.rank, &of_class, &model->params[i]);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

static tide_status describe_activation(tide_decoder *model, const char *kind, uint32_t index,
                                       uint64_t part_bytes, tide_activation *activation)
{
    char name[48];
    snprintf(name, sizeof name, "%s %u", kind, index);
    return tide_description_add_activation(model->description, name, model->options.micro_batches, part_bytes,
                                           activation);
}

/* Describes a block's saved activations next to its residual: forward writes both, backward reads both. A
 * decoder that generates has its residual in the region. */
static tide_status describe_activations(tide_decoder *model)
{
    if (tide_decoder_generates(&model->options))
        return TIDE_OK;
    const uint64_t residual_bytes = tide_decoder_residual_part_bytes(&model->options);
    const uint64_t saved_bytes = tide_decoder_saved_part_bytes(&model->options);
    const uint32_t layers = model->options.config.layers;
    for (uint32_t i = 0; i <= layers; i++) {
        tide_status status = describe_activation(model, "residual", i, residual_bytes, &model->residuals[i]);
        if (status == TIDE_OK && i < layers && !model->recompute[i])
            status = describe_activation(model, "activations", i, saved_bytes, &model->saved[i]);
        if (status != TIDE_OK)
            return status;
    }
    return TIDE_OK;
}

uint32_t tide_decoder_lowest_trained(const tide_model_config *config, const bool *frozen)
{
    uint32_t lowest = config->layers;
    for (size_t i = 0; i < tide_model_param_count(config); i++) {
        tide_model_param param;
        tide_model_param_describe(config, i, &param);
        const bool is_end = param.role >= TIDE_ROLE_NORM_F_WEIGHT;
        if (!(frozen && frozen[param.first_tensor]) && !is_end && param.layer < lowest)
            lowest = param.layer; /* 0 for the embeddings */
    }
    return lowest;
}

/* Sets model->indices and layer_params, which tell where the params of each role are. */
static void place_roles(tide_decoder *model)
{
    const tide_model_config *config = &model->options.config;
    for (tide_role role = 0; role < TIDE_ROLES; role++)
        model->indices[role] =
            tide_model_has(config, role) ? (int)tide_model_param_index(config, role, 0) : -1;
    model->layer_params = config->layers == 1
                              ? 0
                              : (int)(tide_model_param_index(config, TIDE_ROLE_NORM_1_WEIGHT, 1) -
                                      tide_model_param_index(config, TIDE_ROLE_NORM_1_WEIGHT, 0));
}

/* Sets which params are frozen, and how far backward goes for the others. */
static void place_backward(tide_decoder *model, const bool *frozen)
{
    const tide_model_config *config = &model->options.config;
    const bool generates = tide_decoder_generates(&model->options);
    for (size_t i = 0; (generates || frozen) && i < tide_model_param_count(config); i++) {
        tide_model_param param;
        tide_model_param_describe(config, i, &param);
        model->frozen[i] = generates || frozen[param.first_tensor];
    }
    model->options.frozen = model->frozen;
    model->lowest_trained = generates ? config->layers : tide_decoder_lowest_trained(config, frozen);
    model->trains_embedding = tide_decoder_is_trained(model, TIDE_ROLE_TOKEN_EMBEDDING, 0) ||
                              tide_decoder_is_trained(model, TIDE_ROLE_POSITION_EMBEDDING, 0);
    /* blocks that backward does not reach save nothing */
    for (uint32_t layer = 0; layer < config->layers; layer++)
        model->recompute[layer] = model->recompute[layer] || layer < model->lowest_trained;
}

static tide_status allocate(const tide_decoder_options *options, tide_decoder **model)
{
    const size_t layers = options->config.layers, params = tide_model_param_count(&options->config);
    tide_decoder *made = calloc(1, sizeof *made);
    if (!made)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a model");
    made->options = *options;
    made->region = tide_decoder_region_layout(options);
    made->recompute = calloc(layers, sizeof *made->recompute);
    made->frozen = calloc(params, sizeof *made->frozen);
    made->params = calloc(params, sizeof *made->params);
    made->residuals = calloc(layers + 1, sizeof *made->residuals);
    made->saved = calloc(layers, sizeof *made->saved);
    made->ops = calloc(3 * layers + 5, sizeof *made->ops);
    const uint64_t rope = rope_elements(options);
    made->rope_table = rope ? malloc(rope * sizeof *made->rope_table) : NULL;
    made->loss_sums = calloc(options->micro_batches * (1 + (size_t)tide_comm_ranks(options->comm)),
                             sizeof *made->loss_sums);
    if (!made->recompute || !made->frozen || !made->params || !made->residuals || !made->saved ||
        !made->ops || (rope && !made->rope_table) || !made->loss_sums) {
        tide_decoder_destroy(made);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a model of %zu layers", layers);
    }
    if (!tide_decoder_generates(options))
        memcpy(made->recompute, options->recompute, layers * sizeof *made->recompute);
    made->options.recompute = made->recompute;
    place_roles(made);
    place_backward(made, options->frozen);
    *model = made;
    return TIDE_OK;
}

tide_status tide_decoder_create(const tide_decoder_options *options, tide_decoder **model)
{
    assert(options->sum_groups > 0 && options->micro_batches % options->sum_groups == 0);
    assert(tide_model_config_is_valid(&options->config));
    assert(options->seq_len > 0 && options->seq_len <= options->config.context);
    assert(options->micro_batch_sequences > 0 && options->micro_batches > 0);
    assert(!tide_decoder_generates(options) || (options->seq_len == 1 && options->micro_batches == 1 &&
                                                options->micro_batch_sequences <= options->cache_tokens &&
                                                options->cache_tokens <= options->config.context));
    tide_decoder *made = NULL;
    tide_status status = allocate(options, &made);
    if (status != TIDE_OK)
        return status;
    status = tide_description_create(options->dtype, made->region.bytes, &made->description);
    if (status == TIDE_OK)
        status = describe_params(made);
    if (status == TIDE_OK)
        status = describe_activations(made);
    if (status == TIDE_OK)
        status = tide_decoder_describe_ops(made);
    if (status != TIDE_OK) {
        tide_decoder_destroy(made);
        return status;
    }
    *model = made;
    return TIDE_OK;
}

void tide_decoder_destroy(tide_decoder *model)
{
    if (!model)
        return;
    tide_description_destroy(model->description);
    free(model->recompute);
    free(model->frozen);
    free(model->params);
    free(model->residuals);
    free(model->saved);
    free(model->ops);
    free(model->rope_table);
    free(model->loss_sums);
    free(model);
}

tide_description *tide_decoder_description(tide_decoder *model)
{
    return model->description;
}

void tide_decoder_attach(tide_decoder *model, tide_pool *pool)
{
    model->pool = pool;
}

tide_param tide_decoder_param_handle(const tide_decoder *model, size_t index)
{
    assert(index < tide_model_param_count(&model->options.config));
    return model->params[index];
}

uint32_t tide_decoder_training_ops(const tide_decoder *model)
{
    return model->order.last_trained + 1;
}

double tide_decoder_step_flops(const tide_decoder *model)
{
    double flops = 0;
    for (uint32_t i = model->order.embedding; i <= model->order.last_trained; i++)
        flops += model->ops[i].flops;
    return flops;
}

/* --- values --- */

/* Sets the padding behind a param's last row to zero. The padding never has other values, but a poisoned pool
 * recovers only when every element has been set. */
static tide_status zero_padding(tide_decoder *model, size_t index, const tide_model_param *param,
                                tide_value value)
{
    static const float zeros[ZEROS];
    tide_status status = TIDE_OK;
    for (uint64_t first = param->elements; status == TIDE_OK && first < param->memory_elements;
         first += ZEROS) {
        const uint64_t left = param->memory_elements - first;
        status = tide_param_set(model->pool, model->params[index], value, first, left < ZEROS ? left : ZEROS,
                                zeros);
    }
    return status;
}

/* The pool keeps no MASTER of a frozen param; its PARAM value stands for it. */
static tide_value held_value(const tide_decoder *model, const tide_model_tensor *tensor, tide_value value)
{
    assert(!model->frozen[tensor->param] || value == TIDE_VALUE_MASTER);
    return model->frozen[tensor->param] ? TIDE_VALUE_PARAM : value;
}

tide_status tide_decoder_values_set(tide_decoder *model, size_t tensor, tide_value value, uint64_t first,
                                    uint64_t count, const float *values)
{
    return tide_decoder_values_set_as(model, tensor, value, first, count, TIDE_DTYPE_FP32, values);
}

tide_status tide_decoder_values_set_as(tide_decoder *model, size_t tensor, tide_value value, uint64_t first,
                                       uint64_t count, tide_dtype dtype, const void *values)
{
    tide_model_tensor about;
    tide_model_param param;
    tide_model_tensor_describe(&model->options.config, tensor, &about);
    tide_model_param_describe(&model->options.config, about.param, &param);
    assert(first <= about.elements && count <= about.elements - first);
    const tide_value held = held_value(model, &about, value);
    const tide_status status = tide_param_set_as(model->pool, model->params[about.param], held,
                                                 about.first + first, count, dtype, values);
    if (status != TIDE_OK || about.first + first + count < param.elements)
        return status;
    return zero_padding(model, about.param, &param, held);
}

tide_status tide_decoder_values_get(const tide_decoder *model, size_t tensor, tide_value value,
                                    uint64_t first, uint64_t count, float *values)
{
    tide_model_tensor about;
    tide_model_tensor_describe(&model->options.config, tensor, &about);
    return tide_param_get(model->pool, model->params[about.param], held_value(model, &about, value),
                          about.first + first, count, values);
}

bool tide_decoder_tensor_is_frozen(const tide_decoder *model, size_t tensor)
{
    tide_model_tensor about;
    tide_model_tensor_describe(&model->options.config, tensor, &about);
    return model->frozen[about.param];
}

/* A range of one tensor's initial values, and the buffer that they are made in. */
typedef struct init_range {
    const tide_model_config *config;
    uint64_t seed;
    size_t tensor;
    uint64_t first, count;
    float *values; /* [count] */
} init_range;

static void init_slice(const void *arguments, size_t index)
{
    const init_range *range = arguments;
    const uint64_t done = index * INIT_SLICE_ELEMENTS, left = range->count - done;
    tide_model_init_range(range->config, range->seed, range->tensor, range->first + done,
                          left < INIT_SLICE_ELEMENTS ? left : INIT_SLICE_ELEMENTS, range->values + done);
}

static void make_range(const init_range *range)
{
    const uint64_t slices = tide_ceil_div(range->count, INIT_SLICE_ELEMENTS);
    tide_team_run(slices, range->count, init_slice, range);
}

/* The state of tide_decoder_init. */
typedef struct init_work {
    tide_decoder *model;
    uint64_t seed;
    float *values;                   /* [INIT_RANGE_ELEMENTS] */
    tide_progress_callback progress; /* or NULL */
    void *progress_context;
    uint64_t done_elements, elements;
} init_work;

static void init_tell(const init_work *work)
{
    if (work->progress != NULL)
        work->progress(work->progress_context, "initial values", work->done_elements * sizeof(float),
                       work->elements * sizeof(float));
}

static tide_status init_tensor(init_work *work, size_t index)
{
    tide_decoder *model = work->model;
    tide_model_tensor tensor;
    tide_model_tensor_describe(&model->options.config, index, &tensor);
    for (uint64_t first = 0; first < tensor.elements; first += INIT_RANGE_ELEMENTS) {
        const uint64_t left = tensor.elements - first;
        const uint64_t count = left < INIT_RANGE_ELEMENTS ? left : INIT_RANGE_ELEMENTS;
        const init_range range = {&model->options.config, work->seed, index, first, count, work->values};
        make_range(&range);
        const tide_status status =
            tide_decoder_values_set(model, index, TIDE_VALUE_MASTER, first, count, work->values);
        if (status != TIDE_OK)
            return status;
        work->done_elements += count;
        init_tell(work);
    }
    return TIDE_OK;
}

tide_status tide_decoder_init(tide_decoder *model, uint64_t seed, tide_progress_callback progress,
                              void *progress_context)
{
    init_work work = {.model = model,
                      .seed = seed,
                      .values = malloc(INIT_RANGE_ELEMENTS * sizeof *work.values),
                      .progress = progress,
                      .progress_context = progress_context,
                      .elements = tide_model_element_count(&model->options.config)};
    if (!work.values)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %d initial values", INIT_RANGE_ELEMENTS);
    tide_status status = TIDE_OK;
    init_tell(&work);
    for (size_t i = 0; status == TIDE_OK && i < tide_model_tensor_count(&model->options.config); i++)
        status = init_tensor(&work, i);
    free(work.values);
    return status;
}

/* --- running --- */

static void *region_at(const tide_decoder *model, uint64_t offset)
{
    return (char *)tide_region(model->pool) + offset;
}

static tide_status write_tokens(tide_decoder *model, uint64_t offset, const int32_t *tokens, uint64_t count)
{
    return tide_write(model->pool, region_at(model, offset), tokens, count * sizeof *tokens);
}

tide_status tide_decoder_write_rope(tide_decoder *model)
{
    if (!model->rope_table)
        return TIDE_OK;
    tide_rope_table(&model->options.config, positions(&model->options), model->rope_table);
    const tide_status status =
        tide_write(model->pool, region_at(model, model->region.rope_offset), model->rope_table,
                   rope_elements(&model->options) * sizeof *model->rope_table);
    if (status == TIDE_OK) {
        free(model->rope_table);
        model->rope_table = NULL;
    }
    return status;
}

tide_status tide_decoder_upload(tide_decoder *model, const tide_decoder_batch *batch)
{
    const tide_decoder_region *region = &model->region;
    const uint64_t tokens = micro_batch_rows(&model->options) * model->options.micro_batches;
    model->learned = batch->learned;
    model->has_documents = batch->starts != NULL;
    tide_status status = tide_decoder_write_rope(model);
    if (status == TIDE_OK)
        status = write_tokens(model, region->inputs_offset, batch->inputs, tokens);
    if (status == TIDE_OK)
        status = write_tokens(model, region->targets_offset, batch->targets, tokens);
    if (status == TIDE_OK && model->has_documents)
        status = write_tokens(model, region->starts_offset, batch->starts, tokens);
    return status;
}

static tide_status run_slice(tide_decoder *model, const tide_decoder_op *op, tide_op_builder *builder)
{
    const bool has_slices = !tide_decoder_generates(&model->options);
    const tide_status status = has_slices ? tide_op_slice(model->pool, builder->micro_batch) : TIDE_OK;
    if (status != TIDE_OK)
        return status;
    builder->workspace = (uintptr_t)tide_workspace(model->pool);
    builder->cursor = builder->workspace;
    op->code(builder);
    return builder->status;
}

/* Runs one op for all micro-batches of the local batch. */
static tide_status run_op(tide_decoder *model, uint32_t index)
{
    const tide_decoder_op *op = &model->ops[index];
    tide_op_builder builder = tide_op_builder_of(model, op);
    tide_status status = tide_op_begin(model->pool, op->handle);
    for (uint32_t m = 0; status == TIDE_OK && m < model->options.micro_batches; m++) {
        builder.micro_batch = m;
        status = run_slice(model, op, &builder);
    }
    return status == TIDE_OK ? tide_op_end(model->pool) : status;
}

static tide_status run_ops(tide_decoder *model, uint32_t first, uint32_t last)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = first; status == TIDE_OK && i <= last; i++)
        status = run_op(model, i);
    return status;
}

tide_status tide_decoder_train(tide_decoder *model, float loss_scale)
{
    model->loss_scale = loss_scale;
    return run_ops(model, model->order.embedding, model->order.last_trained);
}

tide_status tide_decoder_evaluate(tide_decoder *model)
{
    const tide_status status = run_op(model, model->order.embedding);
    return status == TIDE_OK
               ? run_ops(model, model->order.first_evaluation_block, model->order.evaluation_head)
               : status;
}

static size_t loss_sums_bytes(const tide_decoder *model)
{
    return model->options.micro_batches * sizeof *model->loss_sums;
}

tide_status tide_decoder_read_losses(tide_decoder *model)
{
    return tide_read(model->pool, model->loss_sums, region_at(model, model->region.loss_sums_offset),
                     loss_sums_bytes(model));
}

tide_status tide_decoder_exchange_losses(tide_decoder *model, double *loss)
{
    tide_comm *comm = model->options.comm;
    const uint32_t micro_batches = model->options.micro_batches;
    double *all = model->loss_sums + micro_batches;
    const tide_status status = tide_comm_exchange(comm, model->loss_sums, loss_sums_bytes(model), all);
    if (status != TIDE_OK)
        return status;
    double sum = 0.0;
    for (uint32_t m = 0; m < micro_batches * tide_comm_ranks(comm); m++)
        sum += all[m];
    *loss = model->learned > 0 ? sum / (double)model->learned : 0.0;
    return TIDE_OK;
}

tide_status tide_decoder_loss(tide_decoder *model, double *loss)
{
    const tide_status status = tide_decoder_read_losses(model);
    return status == TIDE_OK ? tide_decoder_exchange_losses(model, loss) : status;
}

tide_status tide_decoder_run_one(tide_decoder *model, uint32_t index, const tide_op_builder *shape)
{
    const tide_decoder_op *op = &model->ops[index];
    tide_op_builder builder = tide_op_builder_of(model, op);
    builder.sequences = shape->sequences;
    builder.first = shape->first;
    builder.position = shape->position;
    tide_status status = tide_op_begin(model->pool, op->handle);
    if (status == TIDE_OK)
        status = run_slice(model, op, &builder);
    return status == TIDE_OK ? tide_op_end(model->pool) : status;
}

tide_status tide_decoder_logits(tide_decoder *model, const int32_t *tokens, uint32_t position, float *logits)
{
    assert(position < model->options.seq_len && !tide_decoder_generates(&model->options));
    const tide_decoder_order *order = &model->order;
    /* a single sequence takes the place of the first micro-batch */
    const tide_op_builder one = {.sequences = 1, .position = position};
    model->has_documents = false;
    tide_status status = tide_decoder_write_rope(model);
    if (status == TIDE_OK)
        status = write_tokens(model, model->region.inputs_offset, tokens, model->options.seq_len);
    if (status == TIDE_OK)
        status = tide_decoder_run_one(model, order->embedding, &one);
    for (uint32_t layer = 0; status == TIDE_OK && layer < model->options.config.layers; layer++)
        status = tide_decoder_run_one(model, order->first_evaluation_block + layer, &one);
    if (status == TIDE_OK)
        status = tide_decoder_run_one(model, order->logits, &one);
    if (status != TIDE_OK)
        return status;
    return tide_read(model->pool, logits, region_at(model, model->region.logits_offset),
                     model->options.config.vocab_size * sizeof *logits);
}
