/* A training program on top of libtidepool, which manages its memory: a small multi-layer perceptron with its
 * own kernels.
 *
 *     mlp adamw|sgd full|least [RANK RANKS PORT]
 *
 * `adamw` uses the built-in optimizer; `sgd` uses momentum SGD, which the program supplies as an update
 * callback. `full` keeps everything on the device; `least` sets the smallest device budget that works, a
 * fraction of the model data. With a rank, as many processes as RANKS train together on this machine: each
 * is started with its own number. The last line of output,
 *
 *     first LOSS last LOSS weights HASH device BYTES model BYTES
 *
 * is the same up to `device` for both budgets and for one or two ranks, since neither ever changes a result.
 *
 *     x0 (region) -> [hidden 0] -> x1 -> [hidden 1] -> x2 ... -> [head] -> loss    x1 ... xL: ACTIVATIONs
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
    ROWS = 16, /* rows of a micro-batch */
    MICRO_BATCHES = 2,
    BATCH = ROWS * MICRO_BATCHES,
    STEPS = 40,
    CHUNK_BYTES = 256 * 1024,
};

typedef struct model {
    tide_description *description;
    tide_pool *pool;
    tide_param weight[LAYERS + 1], bias[LAYERS + 1]; /* the last is the head's, with one output */
    tide_activation x[LAYERS + 1];                   /* x[0] is not used: the input is in the region */
    tide_op forward[LAYERS], head, backward[LAYERS];
    tide_comm *comm;        /* NULL: one rank */
    uint32_t micro_batches; /* of this rank */
} model;

/* The caller's part of the region. */
typedef struct region {
    float input[BATCH][INPUTS];
    float target[BATCH];
    double losses[MICRO_BATCHES];
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
    float *dx;              /* gradient before x's tanh; overwrites x; NULL for the first layer */
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
    double *loss; /* the micro-batch's part of the mean loss over the batch */
    uint32_t rows;
} loss_args;

/* output = x w + b; loss = the sum of (output - target)^2 / BATCH */
static tide_status loss_kernel(void *stream, const void *arguments)
{
    const loss_args *a = arguments;
    (void)stream;
    *a->loss = 0;
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

/* ---- the program's own optimizer: its state is the param and its momentum, both in fp32 ---- */

static const tide_param_class momentum_class = {.state = {2, {128, 128}}};

static tide_status sgd_update(void *context, const tide_step_options *step, uint64_t update,
                              float gradient_scale, const tide_update_segment *segments, uint32_t count)
{
    (void)context, (void)update;
    for (uint32_t s = 0; s < count; s++) {
        float *values = segments[s].values, *param = segments[s].state[0], *momentum = segments[s].state[1];
        for (uint64_t i = 0; i < segments[s].elements; i++) {
            float gradient = segments[s].zero_gradient ? 0 : values[i] * gradient_scale;
            momentum[i] = 0.9f * momentum[i] + gradient;
            param[i] -= step->learning_rate * momentum[i];
            values[i] = param[i];
        }
    }
    return TIDE_OK;
}

/* ---- the model, described once ---- */

/* Exit on failure. The library never exits; a program may. */
static void must(tide_status status)
{
    if (status == TIDE_OK)
        return;
    fprintf(stderr, "mlp: %s\n", tide_message());
    exit(1);
}

static void add_layer(model *m, int layer, bool sgd)
{
    bool is_head = layer == LAYERS;
    char name[32];
    uint64_t weight[2] = {layer == 0 ? INPUTS : WIDTH, is_head ? 1 : WIDTH};
    uint64_t bias[1] = {is_head ? 1 : WIDTH};
    tide_param_class decayed = {.decay = true};
    snprintf(name, sizeof name, "layer.%d.weight", layer);
    must(tide_description_add_param(m->description, name, weight, 2, sgd ? &momentum_class : &decayed,
                                    &m->weight[layer]));
    snprintf(name, sizeof name, "layer.%d.bias", layer);
    must(tide_description_add_param(m->description, name, bias, 1, sgd ? &momentum_class : NULL,
                                    &m->bias[layer]));
    snprintf(name, sizeof name, "x.%d", layer);
    if (layer > 0)
        must(tide_description_add_activation(m->description, name, m->micro_batches,
                                             ROWS * WIDTH * sizeof(float), &m->x[layer]));
}

static tide_op add_op(model *m, const char *kind, int layer, tide_pass pass, const tide_use *activations,
                      uint32_t activation_count)
{
    uint32_t access = TIDE_ACCESS_READ | (pass == TIDE_PASS_FORWARD ? 0 : TIDE_ACCESS_GRAD);
    tide_use params[2] = {{m->weight[layer], access}, {m->bias[layer], access}};
    char name[32];
    snprintf(name, sizeof name, "%s.%d", kind, layer);
    tide_op_description of_op = {.name = name,
                                 .pass = pass,
                                 .params = params,
                                 .param_count = 2,
                                 .activations = activations,
                                 .activation_count = activation_count,
                                 .slices = m->micro_batches,
                                 .workspace_bytes = pass == TIDE_PASS_BOTH ? ROWS * sizeof(float) : 0};
    tide_op op;
    must(tide_description_add_op(m->description, &of_op, &op));
    return op;
}

/* Adds the ops in the order in which a step runs them. */
static void add_ops(model *m)
{
    for (int l = 0; l < LAYERS; l++) {
        tide_use uses[2] = {{m->x[l + 1], TIDE_ACCESS_WRITE}, {m->x[l], TIDE_ACCESS_READ}};
        m->forward[l] = add_op(m, "forward", l, TIDE_PASS_FORWARD, uses, l == 0 ? 1 : 2);
    }
    tide_use last = {m->x[LAYERS], TIDE_ACCESS_READ | TIDE_ACCESS_WRITE};
    m->head = add_op(m, "head", LAYERS, TIDE_PASS_BOTH, &last, 1);
    for (int l = LAYERS - 1; l >= 0; l--) {
        tide_use uses[2] = {{m->x[l + 1], TIDE_ACCESS_READ | TIDE_ACCESS_LAST},
                            {m->x[l], TIDE_ACCESS_READ | TIDE_ACCESS_WRITE}};
        m->backward[l] = add_op(m, "backward", l, TIDE_PASS_BACKWARD, uses, l == 0 ? 1 : 2);
    }
}

/* A random number; our own generator gives the same numbers on every machine. */
static float uniform(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)(*state >> 40) / 8388608.0f - 1.0f; /* [-1, 1) */
}

/* Sets the weights; biases are zero until set. */
static void set_values(model *m)
{
    static float values[WIDTH * WIDTH];
    uint64_t state = 1;
    for (int l = 0; l <= LAYERS; l++) {
        uint64_t count = tide_description_param_elements(m->description, m->weight[l]);
        for (uint64_t i = 0; i < count; i++)
            values[i] = uniform(&state) * sqrtf(3.0f / WIDTH);
        must(tide_param_set(m->pool, m->weight[l], TIDE_VALUE_MASTER, 0, count, values));
    }
}

static void describe(model *m, bool sgd)
{
    must(tide_description_create(TIDE_DTYPE_FP32, sizeof(region), &m->description));
    for (int l = 0; l <= LAYERS; l++)
        add_layer(m, l, sgd);
    add_ops(m);
}

static void model_create(model *m, bool sgd, bool least, tide_pool_plan *plan)
{
    describe(m, sgd);
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.chunk_bytes = CHUNK_BYTES;
    options.sum_groups = MICRO_BATCHES; /* so that two ranks add as one does */
    options.ranks = (tide_ranks_options){.comm = m->comm, .zero_stage = 0};
    options.checks.hazard_check = true;
    options.checks.guard = m->comm == NULL;
    options.update = sgd ? sgd_update : NULL;
    must(tide_pool_plan_make(&options, m->description, plan)); /* takes no memory of the model's */
    options.device_memory_bytes = least ? plan->least_device_bytes : plan->full_device_bytes;
    must(tide_pool_create(&options, m->description, &m->pool));
    must(tide_pool_plan_get(m->pool, plan));
    set_values(m);
}

/* ---- a step ---- */

/* Of the batch that all ranks write, each computes its part. */
static uint32_t first_micro_batch(const model *m)
{
    return tide_comm_rank(m->comm) * m->micro_batches;
}

static const float *layer_input(const model *m, int layer, uint32_t micro_batch)
{
    region *shared = tide_region(m->pool);
    if (layer == 0)
        return shared->input[(first_micro_batch(m) + micro_batch) * ROWS];
    return tide_activation_data(m->pool, m->x[layer], micro_batch);
}

static void run_forward(const model *m, int l)
{
    must(tide_op_begin(m->pool, m->forward[l]));
    for (uint32_t b = 0; b < m->micro_batches; b++) {
        dense_args args = {.x = layer_input(m, l, b),
                           .weight = tide_param_data(m->pool, m->weight[l]),
                           .bias = tide_param_data(m->pool, m->bias[l]),
                           .y = tide_activation_data(m->pool, m->x[l + 1], b),
                           .rows = ROWS,
                           .in = l == 0 ? INPUTS : WIDTH,
                           .out = WIDTH};
        must(tide_op_slice(m->pool, b));
        must(tide_launch(m->pool, "dense forward", dense_forward, &args, sizeof args,
                         2.0 * ROWS * args.in * WIDTH, 0));
    }
    must(tide_op_end(m->pool));
}

static void run_head(const model *m)
{
    region *shared = tide_region(m->pool);
    must(tide_op_begin(m->pool, m->head));
    for (uint32_t b = 0; b < m->micro_batches; b++) {
        must(tide_op_slice(m->pool, b));
        float *x = tide_activation_data(m->pool, m->x[LAYERS], b);
        loss_args loss = {.x = x,
                          .weight = tide_param_data(m->pool, m->weight[LAYERS]),
                          .bias = tide_param_data(m->pool, m->bias[LAYERS]),
                          .target = &shared->target[(first_micro_batch(m) + b) * ROWS],
                          .dz = tide_workspace(m->pool),
                          .loss = &shared->losses[b],
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
        must(tide_launch(m->pool, "loss", loss_kernel, &loss, sizeof loss, 2.0 * ROWS * WIDTH, 0));
        must(tide_launch(m->pool, "dense backward", dense_backward, &backward, sizeof backward,
                         4.0 * ROWS * WIDTH, 0));
    }
    must(tide_op_end(m->pool));
}

static void run_backward(const model *m, int l)
{
    must(tide_op_begin(m->pool, m->backward[l]));
    for (uint32_t b = 0; b < m->micro_batches; b++) {
        must(tide_op_slice(m->pool, b));
        dense_backward_args args = {.x = layer_input(m, l, b),
                                    .weight = tide_param_data(m->pool, m->weight[l]),
                                    .dz = tide_activation_data(m->pool, m->x[l + 1], b),
                                    .dweight = tide_param_gradient(m->pool, m->weight[l]),
                                    .dbias = tide_param_gradient(m->pool, m->bias[l]),
                                    .dx = l == 0 ? NULL : tide_activation_data(m->pool, m->x[l], b),
                                    .rows = ROWS,
                                    .in = l == 0 ? INPUTS : WIDTH,
                                    .out = WIDTH};
        must(tide_launch(m->pool, "dense backward", dense_backward, &args, sizeof args,
                         4.0 * ROWS * args.in * WIDTH, 0));
        if (b + 1 == m->micro_batches)
            must(tide_gradient_finish(m->pool, m->weight[l], 0, (uint64_t)args.in * WIDTH));
    }
    must(tide_op_end(m->pool));
}

/* The target is a smooth function of a few inputs; the other inputs are noise that the model must learn to
 * ignore. */
static void write_batch(const model *m, uint64_t *state)
{
    static float input[BATCH][INPUTS], target[BATCH];
    region *shared = tide_region(m->pool);
    for (int r = 0; r < BATCH; r++) {
        for (int i = 0; i < INPUTS; i++)
            input[r][i] = i < 4 ? uniform(state) : 0.05f * uniform(state);
        target[r] = input[r][0] + 0.5f * input[r][1] * input[r][2] - 0.7f * input[r][3];
    }
    must(tide_write(m->pool, shared->input, input, sizeof input));
    must(tide_write(m->pool, shared->target, target, sizeof target));
}

/* All ranks' losses, added in the order of the micro-batches. */
static double read_loss(const model *m)
{
    double mine[MICRO_BATCHES], all[MICRO_BATCHES], sum = 0;
    size_t bytes = m->micro_batches * sizeof mine[0];
    region *shared = tide_region(m->pool);
    must(tide_read(m->pool, mine, shared->losses, bytes));
    must(tide_comm_exchange(m->comm, mine, bytes, all));
    for (int b = 0; b < MICRO_BATCHES; b++)
        sum += all[b];
    return sum;
}

static double run_step(const model *m, const tide_step_options *options, uint64_t *state)
{
    tide_step_result result;
    must(tide_step_begin(m->pool, options));
    write_batch(m, state);
    for (int l = 0; l < LAYERS; l++)
        run_forward(m, l);
    run_head(m);
    for (int l = LAYERS - 1; l >= 0; l--)
        run_backward(m, l);
    double loss = read_loss(m);
    must(tide_step_end(m->pool));
    must(tide_step_result_get(m->pool, &result));
    return loss;
}

static uint64_t hash_weights(const model *m)
{
    static float values[WIDTH * WIDTH];
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (int l = 0; l <= LAYERS; l++) {
        uint64_t count = tide_description_param_elements(m->description, m->weight[l]);
        must(tide_param_get(m->pool, m->weight[l], TIDE_VALUE_MASTER, 0, count, values));
        for (uint64_t i = 0; i < count * sizeof(float); i++)
            hash = (hash ^ ((const unsigned char *)values)[i]) * 1099511628211u;
    }
    return hash;
}

/* Connects with the other ranks. */
static void join(model *m, char **arguments)
{
    tide_comm_socket_options options = {.rank = (uint32_t)atoi(arguments[0]),
                                        .ranks = (uint32_t)atoi(arguments[1]),
                                        .port = (uint16_t)atoi(arguments[2])};
    if (options.ranks == 0 || MICRO_BATCHES % options.ranks != 0) {
        fprintf(stderr, "mlp: %d micro-batches: RANKS must divide them\n", MICRO_BATCHES);
        exit(2);
    }
    must(tide_comm_socket_create(&options, &m->comm));
}

int main(int count, char **arguments)
{
    if (count != 3 && count != 6) {
        fputs("usage: mlp adamw|sgd full|least [RANK RANKS PORT]\n", stderr);
        return 2;
    }
    bool sgd = strcmp(arguments[1], "sgd") == 0;
    tide_step_options options = {.training = true,
                                 .learning_rate = sgd ? 0.02f : 1e-3f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .epsilon = 1e-8f,
                                 .weight_decay = 0.01f,
                                 .clip_norm = 1.0f};
    tide_pool_plan plan;
    model m = {0};
    if (count == 6)
        join(&m, arguments + 3);
    m.micro_batches = MICRO_BATCHES / tide_comm_ranks(m.comm);
    model_create(&m, sgd, strcmp(arguments[2], "least") == 0, &plan);
    uint64_t state = 7;
    double first = run_step(&m, &options, &state), last = first;
    for (int step = 1; step < STEPS; step++)
        last = run_step(&m, &options, &state);
    printf("first %.17g last %.17g weights %016" PRIx64 " device %" PRIu64 " model %" PRIu64 "\n", first,
           last, hash_weights(&m), plan.device_memory_bytes, plan.model_bytes);
    tide_pool_destroy(m.pool);
    tide_description_destroy(m.description);
    tide_comm_destroy(m.comm);
    return 0;
}
