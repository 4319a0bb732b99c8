/* Save and resume: the pool's values by name, and the training state, through src/checkpoint. Values are read
 * and written in ranges, so a run with any budget and chunk size can load the checkpoint of a run with any
 * other. */
#include "src/train/trainer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tensors for a checkpoint, and the model's descriptions, which own the tensors' names. */
typedef struct tensor_list {
    tide_checkpoint_tensors tensors;
    tide_checkpoint_tensor *array;
    tide_model_tensor *described;
} tensor_list;

static void tensor_list_free(tensor_list *list)
{
    free(list->array);
    free(list->described);
}

/* `frozen`: for each tensor whether it is frozen; NULL: none is. */
static tide_status tensor_list_make(const tide_model_config *config, const bool *frozen, tensor_list *list)
{
    const size_t count = tide_model_tensor_count(config);
    *list = (tensor_list){.array = calloc(count, sizeof *list->array),
                          .described = calloc(count, sizeof *list->described)};
    if (!list->array || !list->described) {
        tensor_list_free(list);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the names of %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        tide_model_tensor *tensor = &list->described[i];
        tide_model_tensor_describe(config, i, tensor);
        list->array[i] = (tide_checkpoint_tensor){
            .name = tensor->name, .rank = tensor->rank, .frozen = frozen != NULL && frozen[i]};
        memcpy(list->array[i].shape, tensor->shape, tensor->rank * sizeof tensor->shape[0]);
    }
    list->tensors = (tide_checkpoint_tensors){.tensors = list->array, .count = count};
    return TIDE_OK;
}

static tide_status trainer_tensors(const tide_trainer *trainer, tensor_list *list)
{
    const tide_status status = tensor_list_make(&trainer->state.model, NULL, list);
    for (size_t i = 0; status == TIDE_OK && i < list->tensors.count; i++)
        list->array[i].frozen = tide_decoder_tensor_is_frozen(trainer->model, i);
    return status;
}

tide_status tide_trainer_save_bytes(const tide_trainer_options *options, uint64_t *bytes)
{
    bool *frozen;
    tensor_list list;
    tide_status status = tide_model_config_check(&options->model, options->model.name);
    if (status == TIDE_OK)
        status = tide_trainer_frozen(options, &frozen);
    if (status != TIDE_OK)
        return status;
    status = tensor_list_make(&options->model, frozen, &list);
    if (status == TIDE_OK) {
        status = tide_checkpoint_bytes(&list.tensors, options->save_weights_only, bytes);
        tensor_list_free(&list);
    }
    free(frozen);
    return status;
}

static tide_status read_values(void *context, size_t tensor, tide_value value, uint64_t first, uint64_t count,
                               float *values)
{
    const tide_trainer *trainer = context;
    return tide_decoder_values_get(trainer->model, tensor, value, first, count, values);
}

static tide_status write_values(void *context, size_t tensor, tide_value value, uint64_t first,
                                uint64_t count, const float *values)
{
    const tide_trainer *trainer = context;
    return tide_decoder_values_set(trainer->model, tensor, value, first, count, values);
}

static void tell_loaded(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    const tide_trainer *trainer = context;
    if (trainer->progress != NULL)
        trainer->progress(trainer->progress_context, "values from the checkpoint", done_bytes, total_bytes);
}

static tide_status save(tide_trainer *trainer, const char *dir, unsigned keep, tide_checkpoint_saved *saved)
{
    tensor_list list;
    tide_status status = trainer_tensors(trainer, &list);
    if (status != TIDE_OK)
        return status;
    status = (trainer->save_weights_only ? tide_checkpoint_save_weights : tide_checkpoint_save)(
        trainer->files, dir, &trainer->state, &list.tensors, keep, read_values, trainer, saved);
    tensor_list_free(&list);
    return status;
}

/* Rank 0 saves; all ranks return its status with its message. */
tide_status tide_trainer_save(tide_trainer *trainer, const char *dir, unsigned keep,
                              tide_checkpoint_saved *saved)
{
    struct {
        tide_status status;
        char message[1024];
        tide_checkpoint_saved saved;
    } told = {.status = TIDE_OK};
    tide_status status = tide_trainer_check_computes(trainer, "save");
    if (status == TIDE_OK)
        status = tide_pool_drain(trainer->pool);
    if (status != TIDE_OK)
        return status;
    if (tide_comm_rank(trainer->comm) == 0) {
        tide_trainer_doing(trainer, TIDE_PHASE_SAVING, "saves", trainer->state.step);
        told.status = save(trainer, dir, keep, &told.saved);
        tide_trainer_doing(trainer, TIDE_PHASE_COMPUTING, "has saved", trainer->state.step);
        snprintf(told.message, sizeof told.message, "%s", tide_message());
    }
    status = tide_comm_broadcast(trainer->comm, &told, sizeof told);
    if (status != TIDE_OK)
        return status;
    if (saved != NULL)
        *saved = told.saved;
    return told.status == TIDE_OK ? TIDE_OK : tide_fail(told.status, "%s", told.message);
}

/* Take over the values that the checkpoint has and the options do not: progress, and the dynamic loss
 * scale. */
static void take_progress(tide_train_state *state, const tide_train_state *loaded, bool new_data)
{
    state->step = loaded->step;
    state->data_first_step = new_data ? loaded->step : loaded->data_first_step;
    state->tokens = loaded->tokens;
    state->adam_step = loaded->adam_step;
    state->skipped = loaded->skipped;
    if (!new_data)
        state->epoch = loaded->epoch;
    if (!new_data && loaded->validation_fingerprint == state->validation_fingerprint) {
        state->best_step = loaded->best_step;
        state->best_loss = loaded->best_loss;
    }
    state->model.names_otherwise = loaded->model.names_otherwise;
    if (state->hyper.loss_scale_fixed != 0)
        return;
    state->loss_scale = loaded->loss_scale;
    state->loss_scale_good_steps = loaded->loss_scale_good_steps;
}

/* Sets *current to the state with which that of the checkpoint must agree: the run's own or, with
 * new_data, the same with the checkpoint's data set. */
static tide_status state_to_meet(const tide_trainer *trainer, const tide_checkpoint_found *found,
                                 tide_train_state *current)
{
    tide_train_state saved;
    *current = trainer->state;
    if (!trainer->new_data)
        return TIDE_OK;
    const tide_status status = tide_checkpoint_peek(trainer->files, found->path, &saved);
    if (status == TIDE_OK)
        current->data_fingerprint = saved.data_fingerprint;
    if (status == TIDE_OK) {
        current->packing = saved.packing;
        current->whole_epochs = saved.whole_epochs;
    }
    return status;
}

static tide_status load_found(tide_trainer *trainer, const tide_checkpoint_found *found)
{
    tensor_list list;
    tide_train_state current, loaded;
    tide_status status = state_to_meet(trainer, found, &current);
    if (status == TIDE_OK)
        status = trainer_tensors(trainer, &list);
    if (status != TIDE_OK)
        return status;
    status = tide_checkpoint_load(trainer->files, found->path, &current, &list.tensors, write_values,
                                  tell_loaded, trainer, &loaded, &trainer->resumed.changes);
    tensor_list_free(&list);
    if (status == TIDE_OK)
        status = tide_update_count_set(trainer->pool, loaded.adam_step);
    if (status == TIDE_OK)
        take_progress(&trainer->state, &loaded, trainer->new_data);
    return status;
}

tide_status tide_trainer_find(const tide_trainer_options *options, tide_checkpoint_found *from)
{
    const tide_files *files = options->files != NULL ? options->files : tide_files_posix();
    from->exists = false;
    if (options->resume_from != NULL)
        return tide_checkpoint_at(files, options->resume_from, from);
    return options->resume_dir != NULL ? tide_checkpoint_newest(files, options->resume_dir, from) : TIDE_OK;
}

tide_status tide_trainer_adopt_sums(tide_trainer_options *options)
{
    const bool open = options->sum_groups == 0 || options->reduce == TIDE_REDUCE_AUTO;
    tide_checkpoint_found from = {.exists = false};
    tide_train_state saved = {.sum_groups = tide_trainer_ranks(options), .reduce_dtype = TIDE_DTYPE_FP32};
    tide_status status = open ? tide_trainer_find(options, &from) : TIDE_OK;
    if (status == TIDE_OK && from.exists)
        status = tide_checkpoint_peek(options->files != NULL ? options->files : tide_files_posix(), from.path,
                                      &saved);
    if (status != TIDE_OK)
        return status;
    if (options->sum_groups == 0)
        options->sum_groups = saved.sum_groups;
    if (options->reduce == TIDE_REDUCE_AUTO)
        options->reduce = saved.reduce_dtype == TIDE_DTYPE_BF16 ? TIDE_REDUCE_BF16 : TIDE_REDUCE_FP32;
    return TIDE_OK;
}

/* Keep the mismatch's message. If the run and the checkpoint split the same data differently, add that. */
static tide_status explain_split(const tide_trainer *trainer, const char *path, tide_status mismatch)
{
    static const char *const here[] = {
        [TIDE_DATA_SPLIT_HELD_OUT] = "holds out its last 5% for validation",
        [TIDE_DATA_SPLIT_NAMED] =
            "takes the files called val for validation and trains on those called train alone",
        [TIDE_DATA_SPLIT_GIVEN] = "has validation data of its own and trains on all of it",
    };
    char message[1024];
    tide_train_state saved;
    bool was = false;
    snprintf(message, sizeof message, "%s", tide_message());
    if (trainer->data == NULL || tide_checkpoint_peek(trainer->files, path, &saved) != TIDE_OK ||
        tide_data_was_split_otherwise(trainer->data, saved.data_fingerprint, &was) != TIDE_OK || !was)
        return tide_fail(mismatch, "%s", message);
    return tide_fail(mismatch, "%s (it is the same data: this run %s, that one %s)", message,
                     here[tide_data_count(trainer->data).split],
                     tide_data_count(trainer->data).split == TIDE_DATA_SPLIT_HELD_OUT
                         ? "had validation data of its own"
                         : "held out the last 5% of it");
}

tide_status tide_trainer_load(tide_trainer *trainer)
{
    tide_status status = load_found(trainer, &trainer->resumed.from);
    if (status == TIDE_ERROR_MISMATCH)
        status = explain_split(trainer, trainer->resumed.from.path, status);
    trainer->resumed.resumed = status == TIDE_OK;
    return status;
}
