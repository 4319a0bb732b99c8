/* A training program of a user's own: a small multi-layer perceptron, its own kernels, libtidepool for the
 * memory.
 *
 *     mlp adamw|sgd full|least
 *
 * `adamw` takes the built-in optimizer; `sgd` supplies one (momentum) as an update callback. `full` keeps
 * everything on the device; `least` takes the smallest device budget that works, a fraction of the model
 * data. The last line,
 *
 *     first LOSS last LOSS weights HASH device BYTES model BYTES
 *
 * is the same for both budgets up to `device`: residency never changes a bit.
 *
 *     x0 (region) -> [hidden 0] -> x1 -> [hidden 1] -> x2 ... -> [head] -> loss     x1 ... xL: CHECKPOINT tensors
 *     backward: the gradient of x_l overwrites x_l in place, from the head down to hidden 0
 */
#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tidepool/tidepool.h>

enum {
    LAYERS = 8,
    WIDTH = 256,
    INPUTS = 256,
    ROWS = 16, /* of a micro-batch */
    MICRO_BATCHES = 2,
    BATCH = ROWS * MICRO_BATCHES,
    STEPS = 40,
    CHUNK_BYTES = 256 * 1024,
};

typedef struct model {
    tide_pool *pool;
    tide_param weight[LAYERS + 1], bias[LAYERS + 1]; /* the last is the head: one output */
    tide_checkpoint x[LAYERS + 1];                   /* x[0] is not used: the input is in the region */
    tide_op forward[LAYERS], head, backward[LAYERS];
} model;

/* The caller's part of the region. */
typedef struct region {
    float input[BATCH][INPUTS];
    float target[BATCH];
    double loss;
} region;

/* ---- kernels: run on the device's compute stream ---- */

typedef struct dense_args {
    const float *x, *weight, *bias;
    float *y;
    uint32_t rows, in, out;
} dense_args;

/* y = tanh(x W + b) */
static tide_status dense_forward(void *stream, const void *arguments)
{
    const dense_args *a = arguments;
    (void)stream;
    for (uint32_t r = 0; r < a->rows; r++) {
        float *y = a->y + (size_t)r * a->out;
        memcpy(y, a->bias, a->out * sizeof *y);
        for (uint32_t i = 0; i < a->in; i++)
            for (uint32_t j = 0; j < a->out; j++)
                y[j] += a->x[(size_t)r * a->in + i] * a->weight[(size_t)i * a->out + j];
        for (uint32_t j = 0; j < a->out; j++)
            y[j] = tanhf(y[j]);
    }
    return TIDE_OK;
}

typedef struct dense_backward_args {
    const float *x, *weight;
    const float *dz;        /* gradient before tanh, [rows, out] */
    float *dweight, *dbias; /* accumulators: added to */
    float *dx;              /* takes x's own place: gradient before x's tanh; NULL for the first layer */
    uint32_t rows, in, out;
} dense_backward_args;

static tide_status dense_backward(void *stream, const void *arguments)
{
    const dense_backward_args *a = arguments;
    (void)stream;
    for (uint32_t r = 0; r < a->rows; r++) {
        const float *dz = a->dz + (size_t)r * a->out, *x = a->x + (size_t)r * a->in;
        for (uint32_t j = 0; j < a->out; j++)
            a->dbias[j] += dz[j];
        for (uint32_t i = 0; i < a->in; i++) {
            float sum = 0, value = x[i];
            for (uint32_t j = 0; j < a->out; j++)
                a->dweight[(size_t)i * a->out + j] += value * dz[j];
            for (uint32_t j = 0; j < a->out && a->dx != NULL; j++)
                sum += a->weight[(size_t)i * a->out + j] * dz[j];
            if (a->dx != NULL)
                a->dx[(size_t)r * a->in + i] = sum * (1 - value * value);
        }
    }
    return TIDE_OK;
}

typedef struct loss_args {
    const float *x, *weight, *bias, *target;
    float *dz;    /* [rows]: gradient of the output */
    double *loss; /* mean over the batch, added to */
    uint32_t rows;
} loss_args;

/* output = x w + b; loss += (output - target)^2 / BATCH */
static tide_status loss_kernel(void *stream, const void *arguments)
{
    const loss_args *a = arguments;
    (void)stream;
    for (uint32_t r = 0; r < a->rows; r++) {
        float output = a->bias[0];
        for (uint32_t i = 0; i < WIDTH; i++)
            output += a->x[(size_t)r * WIDTH + i] * a->weight[i];
        float error = output - a->target[r];
        *a->loss += (double)error * error / BATCH;
        a->dz[r] = 2 * error / BATCH;
    }
    return TIDE_OK;
}

static tide_status zero_loss(void *stream, const void *arguments)
{
    double *const *loss = arguments;
    (void)stream;
    **loss = 0;
    return TIDE_OK;
}

/* ---- an optimizer of the user's own ---- */

static tide_status sgd_update(void *context, const tide_step_options *step, uint64_t update,
                              float gradient_scale, const tide_update_segment *segments, uint32_t count)
{
    (void)context, (void)update;
    for (uint32_t s = 0; s < count; s++) {
        float *values = segments[s].values, *master = segments[s].master, *momentum = segments[s].states[0];
        for (uint64_t i = 0; i < segments[s].elements; i++) {
            float gradient = segments[s].zero_gradient ? 0 : values[i] * gradient_scale;
            momentum[i] = 0.9f * momentum[i] + gradient;
            master[i] -= step->learning_rate * momentum[i];
            values[i] = master[i];
        }
    }
    return TIDE_OK;
}

/* ---- the model, described once ---- */

static tide_status register_layer(model *m, int layer)
{
    bool is_head = layer == LAYERS;
    char name[32];
    uint64_t weight[2] = {layer == 0 ? INPUTS : WIDTH, is_head ? 1 : WIDTH};
    uint64_t bias[1] = {is_head ? 1 : WIDTH};
    snprintf(name, sizeof name, "layer.%d.weight", layer);
    tide_status status = tide_param_register(m->pool, name, weight, 2, true, &m->weight[layer]);
    snprintf(name, sizeof name, "layer.%d.bias", layer);
    if (status == TIDE_OK)
        status = tide_param_register(m->pool, name, bias, 1, false, &m->bias[layer]);
    snprintf(name, sizeof name, "x.%d", layer);
    if (status == TIDE_OK && layer > 0)
        status = tide_checkpoint_register(m->pool, name, MICRO_BATCHES,
                                          (uint64_t)ROWS * WIDTH * sizeof(float), &m->x[layer]);
    return status;
}

static tide_status register_op(model *m, const char *kind, int layer, tide_pass pass,
                               const tide_use *checkpoints, uint32_t checkpoint_count, tide_op *op)
{
    uint32_t access = TIDE_ACCESS_READ | (pass == TIDE_PASS_FORWARD ? 0 : TIDE_ACCESS_GRAD);
    tide_use params[2] = {{m->weight[layer], access}, {m->bias[layer], access}};
    char name[32];
    snprintf(name, sizeof name, "%s.%d", kind, layer);
    tide_op_description description = {.name = name,
                                       .pass = pass,
                                       .params = params,
                                       .param_count = 2,
                                       .checkpoints = checkpoints,
                                       .checkpoint_count = checkpoint_count,
                                       .slices = MICRO_BATCHES,
                                       .workspace_bytes = pass == TIDE_PASS_BOTH ? ROWS * sizeof(float) : 0};
    return tide_op_register(m->pool, &description, op);
}

/* In the order in which a step runs them. */
static tide_status register_ops(model *m)
{
    tide_status status = TIDE_OK;
    for (int l = 0; l < LAYERS && status == TIDE_OK; l++) {
        tide_use uses[2] = {{m->x[l + 1], TIDE_ACCESS_WRITE}, {m->x[l], TIDE_ACCESS_READ}};
        status = register_op(m, "forward", l, TIDE_PASS_FORWARD, uses, l == 0 ? 1 : 2, &m->forward[l]);
    }
    if (status == TIDE_OK) {
        tide_use uses[1] = {{m->x[LAYERS], TIDE_ACCESS_READ | TIDE_ACCESS_WRITE}};
        status = register_op(m, "head", LAYERS, TIDE_PASS_BOTH, uses, 1, &m->head);
    }
    for (int l = LAYERS - 1; l >= 0 && status == TIDE_OK; l--) {
        tide_use uses[2] = {{m->x[l + 1], TIDE_ACCESS_READ | TIDE_ACCESS_LAST},
                            {m->x[l], TIDE_ACCESS_READ | TIDE_ACCESS_WRITE}};
        status = register_op(m, "backward", l, TIDE_PASS_BACKWARD, uses, l == 0 ? 1 : 2, &m->backward[l]);
    }
    return status;
}

/* Random numbers of our own, the same everywhere. */
static float uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / 8388608.0f - 1.0f; /* [-1, 1) */
}

static tide_status set_values(model *m)
{
    static float values[WIDTH * WIDTH];
    uint64_t state = 1;
    tide_status status = TIDE_OK;
    for (int l = 0; l <= LAYERS && status == TIDE_OK; l++) {
        uint64_t count = tide_param_elements(m->pool, m->weight[l]);
        for (uint64_t i = 0; i < count; i++)
            values[i] = uniform(&state) * sqrtf(3.0f / WIDTH);
        status = tide_param_set(m->pool, m->weight[l], TIDE_VALUE_MASTER, 0, count, values);
    }
    return status; /* biases are zero until set */
}

static tide_status model_create(model *m, bool sgd, bool least, tide_pool_plan *plan)
{
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.chunk_bytes = CHUNK_BYTES;
    options.dtype = TIDE_DTYPE_FP32;
    options.nonmodel_bytes = sizeof(region);
    options.hazard_check = true;
    options.guard = true;
    options.update = sgd ? sgd_update : NULL;
    options.update_states = sgd ? 1 : 0;
    tide_status status = tide_pool_create(&options, &m->pool);
    for (int l = 0; l <= LAYERS && status == TIDE_OK; l++)
        status = register_layer(m, l);
    if (status == TIDE_OK)
        status = register_ops(m);
    if (status == TIDE_OK)
        status = tide_pool_plan_get(m->pool, 0, plan);
    if (status == TIDE_OK)
        status =
            tide_pool_set_budgets(m->pool, least ? plan->least_device_bytes : plan->full_device_bytes, 0);
    if (status == TIDE_OK)
        status = tide_pool_seal(m->pool);
    if (status == TIDE_OK)
        status = tide_pool_plan_get(m->pool, 0, plan);
    if (status == TIDE_OK)
        status = set_values(m);
    return status;
}

/* ---- a step ---- */

static const float *layer_input(const model *m, int layer, uint32_t micro_batch)
{
    region *shared = tide_region(m->pool);
    if (layer == 0)
        return shared->input[micro_batch * ROWS];
    return tide_checkpoint_data(m->pool, m->x[layer], micro_batch);
}

static tide_status run_forward(const model *m, int l)
{
    tide_status status = tide_op_begin(m->pool, m->forward[l]);
    for (uint32_t b = 0; b < MICRO_BATCHES && status == TIDE_OK; b++) {
        dense_args args = {.x = layer_input(m, l, b),
                           .weight = tide_param_data(m->pool, m->weight[l]),
                           .bias = tide_param_data(m->pool, m->bias[l]),
                           .y = tide_checkpoint_data(m->pool, m->x[l + 1], b),
                           .rows = ROWS,
                           .in = l == 0 ? INPUTS : WIDTH,
                           .out = WIDTH};
        status = tide_op_slice(m->pool, b);
        if (status == TIDE_OK)
            status = tide_launch(m->pool, "dense forward", dense_forward, &args, sizeof args,
                                 2.0 * ROWS * args.in * WIDTH, 0);
    }
    return status == TIDE_OK ? tide_op_end(m->pool) : status;
}

static tide_status run_head(const model *m)
{
    region *shared = tide_region(m->pool);
    tide_status status = tide_op_begin(m->pool, m->head);
    for (uint32_t b = 0; b < MICRO_BATCHES && status == TIDE_OK; b++) {
        float *x = tide_checkpoint_data(m->pool, m->x[LAYERS], b);
        loss_args loss = {.x = x,
                          .weight = tide_param_data(m->pool, m->weight[LAYERS]),
                          .bias = tide_param_data(m->pool, m->bias[LAYERS]),
                          .target = &shared->target[b * ROWS],
                          .dz = tide_workspace(m->pool),
                          .loss = &shared->loss,
                          .rows = ROWS};
        dense_backward_args backward = {.x = x,
                                        .weight = loss.weight,
                                        .dz = loss.dz,
                                        .dweight = tide_param_gradient(m->pool, m->weight[LAYERS]),
                                        .dbias = tide_param_gradient(m->pool, m->bias[LAYERS]),
                                        .dx = x,
                                        .rows = ROWS,
                                        .in = WIDTH,
                                        .out = 1};
        status = tide_op_slice(m->pool, b);
        if (status == TIDE_OK)
            status = tide_launch(m->pool, "loss", loss_kernel, &loss, sizeof loss, 2.0 * ROWS * WIDTH, 0);
        if (status == TIDE_OK)
            status = tide_launch(m->pool, "dense backward", dense_backward, &backward, sizeof backward,
                                 4.0 * ROWS * WIDTH, 0);
    }
    return status == TIDE_OK ? tide_op_end(m->pool) : status;
}

static tide_status run_backward(const model *m, int l)
{
    tide_status status = tide_op_begin(m->pool, m->backward[l]);
    for (uint32_t b = 0; b < MICRO_BATCHES && status == TIDE_OK; b++) {
        dense_backward_args args = {.x = layer_input(m, l, b),
                                    .weight = tide_param_data(m->pool, m->weight[l]),
                                    .dz = tide_checkpoint_data(m->pool, m->x[l + 1], b),
                                    .dweight = tide_param_gradient(m->pool, m->weight[l]),
                                    .dbias = tide_param_gradient(m->pool, m->bias[l]),
                                    .dx = l == 0 ? NULL : tide_checkpoint_data(m->pool, m->x[l], b),
                                    .rows = ROWS,
                                    .in = l == 0 ? INPUTS : WIDTH,
                                    .out = WIDTH};
        status = tide_op_slice(m->pool, b);
        if (status == TIDE_OK)
            status = tide_launch(m->pool, "dense backward", dense_backward, &args, sizeof args,
                                 4.0 * ROWS * args.in * WIDTH, 0);
    }
    return status == TIDE_OK ? tide_op_end(m->pool) : status;
}

/* A smooth function of a few inputs; the others are noise to be ignored. */
static tide_status write_batch(const model *m, uint64_t *state)
{
    static float input[BATCH][INPUTS], target[BATCH];
    region *shared = tide_region(m->pool);
    for (int r = 0; r < BATCH; r++) {
        for (int i = 0; i < INPUTS; i++)
            input[r][i] = i < 4 ? uniform(state) : 0.05f * uniform(state);
        target[r] = input[r][0] + 0.5f * input[r][1] * input[r][2] - 0.7f * input[r][3];
    }
    tide_status status = tide_write(m->pool, shared->input, input, sizeof input);
    return status == TIDE_OK ? tide_write(m->pool, shared->target, target, sizeof target) : status;
}

static tide_status run_step(const model *m, const tide_step_options *options, uint64_t *state, double *loss)
{
    region *shared = tide_region(m->pool);
    double *loss_place = &shared->loss;
    tide_step_result result;
    tide_status status = tide_step_begin(m->pool, options);
    if (status == TIDE_OK)
        status = write_batch(m, state);
    if (status == TIDE_OK)
        status =
            tide_launch(m->pool, "zero loss", zero_loss, &loss_place, sizeof loss_place, 0, sizeof(double));
    for (int l = 0; l < LAYERS && status == TIDE_OK; l++)
        status = run_forward(m, l);
    if (status == TIDE_OK)
        status = run_head(m);
    for (int l = LAYERS - 1; l >= 0 && status == TIDE_OK; l--)
        status = run_backward(m, l);
    if (status == TIDE_OK)
        status = tide_read(m->pool, loss, &shared->loss, sizeof *loss);
    if (status == TIDE_OK)
        status = tide_step_end(m->pool);
    return status == TIDE_OK ? tide_step_result_get(m->pool, &result) : status;
}

static tide_status hash_weights(const model *m, uint64_t *hash)
{
    static float values[WIDTH * WIDTH];
    tide_status status = TIDE_OK;
    *hash = 14695981039346656037u; /* FNV-1a */
    for (int l = 0; l <= LAYERS && status == TIDE_OK; l++) {
        uint64_t count = tide_param_elements(m->pool, m->weight[l]);
        status = tide_param_get(m->pool, m->weight[l], TIDE_VALUE_MASTER, 0, count, values);
        for (uint64_t i = 0; i < count * sizeof(float); i++)
            *hash = (*hash ^ ((const unsigned char *)values)[i]) * 1099511628211u;
    }
    return status;
}

static tide_status train(model *m, bool sgd, bool least)
{
    tide_pool_plan plan;
    uint64_t state = 7, hash = 0;
    double first = 0, last = 0;
    tide_step_options options = {.training = true,
                                 .learning_rate = sgd ? 0.02f : 1e-3f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .epsilon = 1e-8f,
                                 .weight_decay = 0.01f,
                                 .clip_norm = 1.0f};
    tide_status status = model_create(m, sgd, least, &plan);
    for (int step = 0; step < STEPS && status == TIDE_OK; step++) {
        status = run_step(m, &options, &state, &last);
        first = step == 0 ? last : first;
    }
    if (status == TIDE_OK)
        status = hash_weights(m, &hash);
    if (status == TIDE_OK)
        printf("first %.17g last %.17g weights %016" PRIx64 " device %" PRIu64 " model %" PRIu64 "\n", first,
               last, hash, plan.device_memory_bytes, plan.model_bytes);
    return status;
}

int main(int count, char **arguments)
{
    model m = {0};
    if (count != 3) {
        fputs("usage: mlp adamw|sgd full|least\n", stderr);
        return 2;
    }
    tide_status status = train(&m, strcmp(arguments[1], "sgd") == 0, strcmp(arguments[2], "least") == 0);
    if (status != TIDE_OK)
        fprintf(stderr, "mlp: %s\n", tide_message());
    tide_pool_destroy(m.pool);
    return status == TIDE_OK ? 0 : 1;
}
