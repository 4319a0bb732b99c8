/* Creates, fills and destroys a trainer. Its training steps are in trainer_step.c. */
#include "src/train/trainer_internal.h"

#include "src/checkpoint/loss_scale.h"
#include "src/pool/device_factory.h"
#include "src/train/weights_import.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tide_status open_data(const tide_trainer_options *options, tide_data **data)
{
    char tokenizer[4096];
    if (!options->data)
        return TIDE_OK;
    const bool compares = options->weights && !options->any_tokenizer;
    if (compares &&
        snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", options->weights) >= (int)sizeof tokenizer)
        return tide_fail(TIDE_ERROR_ARGUMENT, "model folder %.200s...: its path is too long",
                         options->weights);
    const tide_data_options of_data = {.path = options->data,
                                       .eval_path = options->eval_data,
                                       .encoding = options->data_encoding,
                                       .vocab_size = options->model.vocab_size,
                                       .seq_len = options->seq_len,
                                       .seed = options->seed,
                                       .packing = options->packing,
                                       .drops_long = options->drops_long,
                                       .whole_epochs = options->epochs > 0,
                                       .tokenizer = compares ? tokenizer : NULL};
    return tide_data_open(&of_data, data);
}

/* How many steps were done when the run took its data: those of a checkpoint from which it resumes. */
static tide_status find_first_step(const tide_trainer_options *options, uint64_t *first)
{
    tide_checkpoint_found from;
    tide_train_state saved;
    tide_status status = tide_trainer_find(options, &from);
    *first = 0;
    if (status != TIDE_OK || !from.exists)
        return status;
    status = tide_checkpoint_peek(options->files, from.path, &saved);
    if (status == TIDE_OK)
        *first = options->new_data ? saved.step : saved.data_first_step;
    return status;
}

static tide_status count_epoch_steps(const tide_trainer_options *options, uint64_t *steps)
{
    tide_data *data = NULL;
    const tide_status status = open_data(options, &data);
    if (status == TIDE_OK)
        *steps = tide_data_epoch_steps(data, (uint32_t)(options->global_batch_tokens / options->seq_len));
    tide_data_close(data);
    return status;
}

tide_status tide_trainer_adopt_epochs(tide_trainer_options *options, uint64_t *epoch_steps)
{
    const uint64_t steps_most = INT64_MAX / 2;
    tide_trainer_options resolved = *options;
    uint64_t first = 0, steps = 0;
    if (options->epochs == 0)
        return TIDE_OK;
    if (!options->data)
        return tide_fail(TIDE_ERROR_ARGUMENT, "epochs need data: without it only steps can be counted");
    resolved.hyper.schedule.steps = steps_most; /* until they are known, any schedule fits */
    tide_status status = tide_trainer_resolve(&resolved, &resolved);
    if (status == TIDE_OK)
        status = find_first_step(&resolved, &first);
    if (status == TIDE_OK)
        status = count_epoch_steps(&resolved, &steps);
    if (status != TIDE_OK)
        return status;
    if (first > steps_most || options->epochs > (steps_most - first) / steps)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%llu epochs of %llu steps: too many",
                         (unsigned long long)options->epochs, (unsigned long long)steps);
    options->hyper.schedule.steps = first + options->epochs * steps;
    *epoch_steps = steps;
    return TIDE_OK;
}

/* The loss scale of the first step; 0 if the dtype needs none. */
static double first_loss_scale(const tide_trainer_options *options)
{
    if (options->dtype != TIDE_DTYPE_FP16)
        return 0;
    return options->hyper.loss_scale_fixed != 0 ? options->hyper.loss_scale_fixed : TIDE_LOSS_SCALE_FIRST;
}

static tide_train_packing packing_of(const tide_data *data)
{
    const tide_data_counts counts = data ? tide_data_count(data) : (tide_data_counts){0};
    if (!counts.packed)
        return TIDE_TRAIN_PACKING_OFF;
    return counts.drops_long ? TIDE_TRAIN_PACKING_DROP : TIDE_TRAIN_PACKING_CUT;
}

static tide_train_state state_at_start(const tide_trainer_options *options, const tide_data *data)
{
    return (tide_train_state){
        .model = options->model,
        .seed = options->seed,
        .data_fingerprint = data ? tide_data_fingerprint(data) : 0,
        .validation_fingerprint = data ? tide_data_validation_fingerprint(data) : 0,
        .packing = packing_of(data),
        .whole_epochs = data && tide_data_count(data).whole_epochs,
        .seq_len = options->seq_len,
        .global_batch_tokens = options->global_batch_tokens,
        .micro_batch_sequences = options->micro_batch_sequences,
        .sum_groups = options->pool.sum_groups,
        .reduce_dtype = options->pool.reduce_dtype,
        .dtype = options->dtype,
        .hyper = options->hyper,
        .loss_scale = first_loss_scale(options),
    };
}

/* Allocates the batch and fills it with made-up tokens, on which a trainer without data trains. They are
 * spread over the whole vocabulary, so that a step accesses the embedding as with a real text. */
static tide_status allocate_batch(tide_trainer *trainer, uint64_t tokens, uint32_t vocab_size)
{
    tide_token_batch *batch = &trainer->batch;
    batch->inputs = malloc(tokens * sizeof *batch->inputs);
    batch->targets = malloc(tokens * sizeof *batch->targets);
    batch->starts = malloc(tokens * sizeof *batch->starts);
    batch->learned = tokens;
    if (!batch->inputs || !batch->targets || !batch->starts)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a batch of %llu tokens",
                         (unsigned long long)tokens);
    for (uint64_t i = 0; i < tokens; i++)
        batch->inputs[i] = batch->targets[i] = (int32_t)((i * 2654435761u & UINT32_MAX) % vocab_size);
    return TIDE_OK;
}

/* Opens and checks the source of the params' values, a checkpoint or a folder of weights, before anything is
 * built. */
static tide_status find_values(tide_trainer *trainer, const tide_trainer_options *options,
                               tide_weights_import **weights)
{
    if (!trainer->computes)
        return TIDE_OK;
    const tide_status status = tide_trainer_find(options, &trainer->resumed.from);
    if (status != TIDE_OK || trainer->resumed.from.exists || !options->weights)
        return status;
    return tide_weights_import_open(&options->model, options->weights, weights);
}

/* Sets the params to the checkpoint's values, else to those of the folder of weights, else to initial
 * ones, which the seed gives. With several ranks sets *hash to a hash of the first two. */
static tide_status fill(tide_trainer *trainer, const tide_trainer_options *options,
                        const tide_weights_import *weights, uint64_t *hash)
{
    if (!trainer->computes)
        return TIDE_OK;
    if (trainer->resumed.from.exists) {
        *hash = trainer->resumed.from.hash;
        return tide_trainer_load(trainer);
    }
    if (weights)
        return tide_weights_import_run(weights, trainer->model, trainer->progress, trainer->progress_context,
                                       tide_comm_ranks(trainer->comm) > 1 ? hash : NULL);
    return tide_decoder_init(trainer->model, options->seed, options->pool.progress,
                             options->pool.progress_context);
}

/* The values that all ranks must have. */
enum { AGREED_MAX = 96 };
typedef struct agreed_values {
    uint32_t count;
    const char *names[AGREED_MAX];
    char texts[AGREED_MAX][TIDE_TRAIN_FIELD_TEXT_BYTES];
} agreed_values;

static void add_number(agreed_values *values, const char *name, uint64_t number)
{
    assert(values->count < AGREED_MAX);
    values->names[values->count] = name;
    snprintf(values->texts[values->count++], sizeof values->texts[0], "%" PRIu64, number);
}

static agreed_values values_to_agree(const tide_trainer *trainer, uint64_t loaded)
{
    agreed_values values = {.count = 0};
    for (const char *name; (name = tide_train_state_field(&trainer->state, values.count,
                                                          values.texts[values.count])) != NULL;) {
        values.names[values.count++] = name;
        assert(values.count < AGREED_MAX);
    }
    add_number(&values, "evaluation batches", trainer->eval_batches);
    add_number(&values, "loaded params with hash", loaded);
    return values;
}

/* Compare with the other ranks what decides the run; `loaded` is a hash of the values that the params have
 * been set to. PEER: the message says which rank has what. */
static tide_status agree(const tide_trainer *trainer, uint64_t loaded)
{
    const uint32_t ranks = tide_comm_ranks(trainer->comm);
    const agreed_values mine = values_to_agree(trainer, loaded);
    const size_t bytes = mine.count * sizeof mine.texts[0];
    char *all = calloc(ranks, bytes);
    if (all == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to compare %u ranks", ranks);
    tide_status status = tide_comm_exchange(trainer->comm, mine.texts, bytes, all);
    for (uint32_t rank = 1; rank < ranks && status == TIDE_OK; rank++)
        for (size_t i = 0; i < mine.count && status == TIDE_OK; i++) {
            const char *text = all + rank * bytes + i * sizeof mine.texts[0];
            const char *text_of_0 = all + i * sizeof mine.texts[0];
            if (strncmp(text, text_of_0, sizeof mine.texts[0]) != 0)
                status =
                    tide_fail(TIDE_ERROR_PEER, "rank %u has %s %.32s, rank 0 has %.32s: they must be equal",
                              rank, mine.names[i], text, text_of_0);
        }
    free(all);
    return status;
}

static tide_status create(const tide_trainer_options *options, tide_trainer **trainer)
{
    tide_trainer_options resolved;
    tide_status status = tide_trainer_resolve(options, &resolved);
    if (status != TIDE_OK)
        return status;
    tide_trainer *made = calloc(1, sizeof *made);
    if (!made)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a trainer");
    made->files = resolved.files;
    made->progress = resolved.pool.progress;
    made->progress_context = resolved.pool.progress_context;
    made->save_weights_only = resolved.save_weights_only;
    made->new_data = resolved.new_data;
    made->eval_batches = resolved.eval_batches;
    made->comm = resolved.pool.ranks.comm;
    made->predicts = resolved.pool.predict;
    made->computes = !tide_device_factory_is_null(resolved.pool.device);
    tide_weights_import *weights = NULL;
    uint64_t loaded = 0;
    tide_comm_doing(made->comm, TIDE_PHASE_READING, "opens checkpoint, weights and data");
    status = find_values(made, &resolved, &weights);
    if (status == TIDE_OK)
        status = open_data(&resolved, &made->data);
    if (status == TIDE_OK)
        status = allocate_batch(made, resolved.global_batch_tokens, resolved.model.vocab_size);
    if (status == TIDE_OK)
        status = tide_trainer_build(&resolved, &made->pool, &made->model, &made->plan);
    if (status == TIDE_OK) {
        made->state = state_at_start(&resolved, made->data);
        made->state.model.names_otherwise = weights && tide_weights_import_named_otherwise(weights);
        tide_comm_doing(made->comm, TIDE_PHASE_LOADING, "sets the params");
        status = fill(made, &resolved, weights, &loaded);
    }
    tide_weights_import_close(weights);
    tide_comm_doing(made->comm, TIDE_PHASE_COMPUTING, "has its params");
    if (status == TIDE_OK)
        status = agree(made, loaded);
    if (status != TIDE_OK) {
        tide_trainer_destroy(made);
        return status;
    }
    *trainer = made;
    return TIDE_OK;
}

tide_status tide_trainer_create(const tide_trainer_options *options, tide_trainer **trainer)
{
    const tide_status status = create(options, trainer);
    if (status != TIDE_OK)
        tide_comm_abort(options->pool.ranks.comm, tide_message()); /* the others wait for this rank */
    return status;
}

void tide_trainer_destroy(tide_trainer *trainer)
{
    if (!trainer)
        return;
    tide_pool_destroy(trainer->pool);
    tide_decoder_destroy(trainer->model);
    tide_data_close(trainer->data);
    free(trainer->batch.inputs);
    free(trainer->batch.targets);
    free(trainer->batch.starts);
    free(trainer);
}

const tide_trainer_plan *tide_trainer_plan_get(const tide_trainer *trainer)
{
    return &trainer->plan;
}

tide_pool *tide_trainer_pool(tide_trainer *trainer)
{
    return trainer->pool;
}

const tide_train_state *tide_trainer_state(const tide_trainer *trainer)
{
    return &trainer->state;
}

tide_comm *tide_trainer_comm(const tide_trainer *trainer)
{
    return trainer->comm;
}

void tide_trainer_best_set(tide_trainer *trainer, uint64_t step, double loss)
{
    trainer->state.best_step = step;
    trainer->state.best_loss = loss;
}

bool tide_trainer_computes(const tide_trainer *trainer)
{
    return trainer->computes;
}

tide_data_format tide_trainer_data_format(const tide_trainer *trainer)
{
    return trainer->data ? tide_data_count(trainer->data).format : TIDE_DATA_FORMAT_SHARDS;
}

tide_data *tide_trainer_data(tide_trainer *trainer)
{
    return trainer->data;
}

const tide_trainer_resumed *tide_trainer_resumed_get(const tide_trainer *trainer)
{
    return &trainer->resumed;
}
