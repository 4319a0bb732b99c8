/* tidepool checkpoint: lists the checkpoints in a folder, and checks whether one of them is complete.
 *
 * The list shows all checkpoints, checked by manifest and file sizes. One of them is checked byte by byte
 * (not with --quick). If it is damaged, the command checks the earlier ones in the same way until it finds a
 * complete one, because the user wants to resume from that.
 */
#include "base/json_line.h"
#include "src/checkpoint/check.h"
#include "src/checkpoint/folder.h"
#include "tools/checkpoint/checkpoint_options.h"
#include "tools/command.h"
#include "tools/plan/model_text.h"
#include "tools/train/train_report.h"
#include "tools/units.h"

#include <stdlib.h>
#include <string.h>

static const char command_name[] = "tidepool checkpoint";

enum { JSON_BYTES = 16384, JSON_LISTED_BYTES = 1024 };

typedef struct view {
    tide_checkpoint_settings settings;
    const tide_files *files;
    tide_folder folder;                    /* has no steps if DIR is a checkpoint itself */
    tide_checkpoint_check *listed;         /* [folder.step_count], checked by sizes only */
    char path[TIDE_CHECKPOINT_PATH_BYTES]; /* of the checkpoint that is checked in full */
    tide_checkpoint_check looked;
    /* if that is damaged, an earlier one that is complete; "": none */
    char earlier[TIDE_CHECKPOINT_PATH_BYTES];
} view;

/* ---- checking ---- */

static void show_progress(void *making, uint64_t done_bytes, uint64_t total_bytes)
{
    tide_making_show(making, "checksums", done_bytes, total_bytes);
}

static tide_status look(const view *it, const char *path, bool quick, tide_checkpoint_check *check)
{
    tide_making making;
    tide_making_begin(&making, stderr);
    const tide_status status =
        tide_checkpoint_check_run(it->files, path, quick ? TIDE_CHECKPOINT_SIZES : TIDE_CHECKPOINT_BYTES,
                                  show_progress, &making, check);
    tide_making_end(&making);
    return status;
}

/* Whether the folder is a checkpoint. True also if its manifest exists but can't be opened: the check then
 * reports why. */
static bool is_checkpoint(const view *it, const char *path)
{
    char manifest[TIDE_CHECKPOINT_PATH_BYTES + 32];
    uint64_t step;
    int handle;
    snprintf(manifest, sizeof manifest, "%s/manifest.json", path);
    const int error = it->files->open(it->files->context, manifest, &handle);
    if (error == 0)
        it->files->close(it->files->context, handle);
    return !tide_files_is_absent(error) || tide_folder_step_of(path, &step);
}

static bool has_step(const tide_folder *folder, uint64_t step)
{
    bool is_there = false;
    for (size_t i = 0; i < folder->step_count; i++)
        is_there |= folder->steps[i] == step;
    for (size_t i = 0; i < folder->remain_count; i++)
        is_there |= folder->remains[i] == step;
    return is_there;
}

/* Chooses the checkpoint to check: DIR itself, or step-N in it. */
static tide_status choose(view *it)
{
    const tide_checkpoint_settings *settings = &it->settings;
    if (strlen(settings->dir) + 64 > sizeof it->path)
        return tide_fail(TIDE_ERROR_ARGUMENT, "checkpoint folder: its path is too long");
    if (is_checkpoint(it, settings->dir) && settings->step == 0) {
        snprintf(it->path, sizeof it->path, "%s", settings->dir);
        return TIDE_OK;
    }
    const tide_status status = tide_folder_open(it->files, settings->dir, &it->folder);
    if (status != TIDE_OK)
        return status;
    if (!it->folder.exists)
        return tide_fail(TIDE_ERROR_IO, "%.900s: there is no such folder", settings->dir);
    const uint64_t newest = it->folder.step_count > 0 ? it->folder.steps[0] : 0;
    if (it->folder.step_count == 0 && settings->step == 0)
        return tide_fail(TIDE_ERROR_IO, "%.900s holds no checkpoint", settings->dir);
    if (settings->step > 0 && !has_step(&it->folder, settings->step))
        return tide_fail(TIDE_ERROR_IO, "%.900s holds no step-%llu", settings->dir,
                         (unsigned long long)settings->step);
    tide_folder_step_path(&it->folder, settings->step > 0 ? settings->step : newest, it->path);
    return TIDE_OK;
}

static tide_status list_all(view *it)
{
    tide_status status = TIDE_OK;
    const size_t count = it->folder.step_count;
    it->listed = calloc(count + 1, sizeof *it->listed);
    if (it->listed == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a list of %zu checkpoints", count);
    for (size_t i = 0; i < count && status == TIDE_OK; i++) {
        char path[TIDE_CHECKPOINT_PATH_BYTES];
        tide_folder_step_path(&it->folder, it->folder.steps[i], path);
        status = strcmp(path, it->path) == 0 ? TIDE_OK : look(it, path, true, &it->listed[i]);
        if (status == TIDE_OK && strcmp(path, it->path) == 0)
            it->listed[i] = it->looked;
    }
    return status;
}

/* If the chosen checkpoint is damaged, finds the newest complete one before it. */
static tide_status earlier_find(view *it)
{
    char parent[TIDE_CHECKPOINT_PATH_BYTES], path[TIDE_CHECKPOINT_PATH_BYTES];
    tide_folder held;
    uint64_t step;
    if (it->looked.sound || !tide_folder_step_of(it->path, &step))
        return TIDE_OK;
    tide_folder_parent(it->path, parent);
    tide_status status = tide_folder_open(it->files, parent, &held);
    for (size_t i = 0; status == TIDE_OK && i < held.step_count && it->earlier[0] == '\0'; i++) {
        tide_checkpoint_check check = {.sound = false};
        tide_folder_step_path(&held, held.steps[i], path);
        if (held.steps[i] < step)
            status = look(it, path, it->settings.quick, &check);
        if (status == TIDE_OK && check.sound)
            memcpy(it->earlier, path, sizeof path);
    }
    if (status == TIDE_OK)
        tide_folder_close(&held);
    return status;
}

/* ---- text ---- */

static const char *state_of(const tide_checkpoint_check *check)
{
    return check->sound ? "complete" : check->damaged ? "damaged" : "not readable by this tidepool";
}

static void list_print(const view *it)
{
    const tide_folder *folder = &it->folder;
    char text[TIDE_UNITS_TEXT_BYTES];
    if (folder->path[0] == '\0')
        return;
    printf("%s: %s\n", folder->path, tide_count_noun(folder->step_count, "checkpoint", text));
    for (size_t i = folder->step_count; i > 0; i--)
        printf("  step-%-10llu %10s  %s\n", (unsigned long long)folder->steps[i - 1],
               tide_size_format(it->listed[i - 1].bytes, text), state_of(&it->listed[i - 1]));
    for (size_t i = folder->remain_count; i > 0; i--)
        printf("  step-%-10llu %10s  remains, without a manifest: no checkpoint\n",
               (unsigned long long)folder->remains[i - 1], "");
    for (size_t i = 0; i < folder->stale_count; i++)
        printf("  step-%-10llu %10s  half-written by a process that is gone: the next save removes it\n",
               (unsigned long long)folder->stale[i].step, "");
    printf("\n");
}

static void model_print(const tide_model_config *model)
{
    const char *name = tide_model_shape_name(model);
    char text[TIDE_MODEL_TEXT_BYTES];
    printf("  %-16s %s: %s\n", "model", name != NULL ? name : tide_model_family_name(model->family),
           tide_model_text(model, text));
}

static void state_print(const tide_checkpoint_check *check)
{
    const tide_train_state *state = &check->state;
    const tide_hyperparameters *hyper = &state->hyper;
    const tide_lr_schedule *schedule = &hyper->schedule;
    char text[TIDE_UNITS_TEXT_BYTES];
    model_print(&state->model);
    printf("  %-16s %llu, %s, trained in %s\n", "params", (unsigned long long)check->params,
           tide_count_noun(check->frozen_tensors, "frozen tensor", text), tide_dtype_name(state->dtype));
    printf("  %-16s %llu of %llu, %llu tokens, %llu updates, %llu skipped\n", "step",
           (unsigned long long)state->step, (unsigned long long)schedule->steps,
           (unsigned long long)state->tokens, (unsigned long long)state->adam_step,
           (unsigned long long)state->skipped);
    if (state->epoch > 0)
        printf("  %-16s %llu done\n", "epochs", (unsigned long long)state->epoch);
    if (state->best_step > 0)
        printf("  %-16s step %llu, validation loss %.4f\n", "best", (unsigned long long)state->best_step,
               state->best_loss);
    printf("  %-16s %llu tokens in sequences of %llu, %llu in a micro-batch, seed %llu\n", "batch",
           (unsigned long long)state->global_batch_tokens, (unsigned long long)state->seq_len,
           (unsigned long long)state->micro_batch_sequences, (unsigned long long)state->seed);
    if (state->sum_groups > 1 || state->reduce_dtype != TIDE_DTYPE_FP32)
        printf("  %-16s in %s%s\n", "gradient sums", tide_count_noun(state->sum_groups, "group", text),
               state->reduce_dtype == TIDE_DTYPE_BF16 ? ", each rounded to bf16" : "");
    if (state->data_first_step > 0)
        printf("  %-16s taken new after step %llu\n", "data", (unsigned long long)state->data_first_step);
    printf("  %-16s lr %g to %g, %s, warm-up %llu, weight decay %g, clip %g, betas %g and %g, epsilon %g\n",
           "optimizer", schedule->lr, schedule->lr_min, tide_lr_shape_name(schedule->shape),
           (unsigned long long)schedule->warmup_steps, hyper->weight_decay, hyper->clip, hyper->beta1,
           hyper->beta2, hyper->epsilon);
    if (state->dtype == TIDE_DTYPE_FP16)
        printf("  %-16s %g%s\n", "loss scale", state->loss_scale,
               hyper->loss_scale_fixed == 0 ? " (dynamic)" : "");
    printf("  %-16s fp32 params%s\n", "holds",
           check->weights_only ? " alone: a run that goes on from it begins with zero moments"
                               : ", and momentum and variance of those that are trained");
}

static void files_print(const view *it)
{
    char text[TIDE_UNITS_TEXT_BYTES];
    for (unsigned i = 0; i < it->looked.file_count; i++) {
        const tide_checkpoint_file_check *file = &it->looked.files[i];
        const bool sized_only = it->settings.quick && i > 0;
        printf("  %-22s %10s  %s\n", file->name, tide_size_format(file->bytes, text),
               file->status != TIDE_OK ? file->message
               : sized_only            ? "right size"
                                       : "right checksum");
    }
}

static void people_print(const view *it)
{
    list_print(it);
    printf("%s: %s\n", it->path, state_of(&it->looked));
    if (it->looked.has_state)
        state_print(&it->looked);
    files_print(it);
    if (it->earlier[0] != '\0')
        printf("\nto go on from the one before it:\n\n    tidepool train ... --resume-from %s\n",
               it->earlier);
}

/* ---- JSON ---- */

static void list_json(tide_json_line *line, const view *it)
{
    const tide_folder *folder = &it->folder;
    tide_json_open(line, "checkpoints", '[');
    for (size_t i = folder->step_count; i > 0; i--) {
        tide_json_open(line, NULL, '{');
        tide_json_count(line, "step", folder->steps[i - 1]);
        tide_json_count(line, "bytes", it->listed[i - 1].bytes);
        tide_json_text(line, "state", state_of(&it->listed[i - 1]));
        tide_json_close(line, '}');
    }
    tide_json_close(line, ']');
    tide_json_open(line, "remains", '[');
    for (size_t i = folder->remain_count; i > 0; i--)
        tide_json_count(line, NULL, folder->remains[i - 1]);
    tide_json_close(line, ']');
}

static void state_json(tide_json_line *line, const tide_checkpoint_check *check)
{
    const tide_train_state *state = &check->state;
    const tide_hyperparameters *hyper = &state->hyper;
    const tide_lr_schedule *schedule = &hyper->schedule;
    const char *name = tide_model_shape_name(&state->model);
    tide_json_text(line, "model", name != NULL ? name : "");
    tide_json_text(line, "family", tide_model_family_name(state->model.family));
    tide_json_count(line, "layers", state->model.layers);
    tide_json_count(line, "width", state->model.width);
    tide_json_count(line, "heads", state->model.heads);
    tide_json_count(line, "kv_heads", state->model.kv_heads);
    tide_json_count(line, "head_width", state->model.head_width);
    tide_json_count(line, "mlp_width", state->model.mlp_width);
    tide_json_count(line, "context", state->model.context);
    tide_json_count(line, "vocab_size", state->model.vocab_size);
    tide_json_count(line, "params", check->params);
    tide_json_bool(line, "weights_only", check->weights_only);
    tide_json_count(line, "frozen_tensors", check->frozen_tensors);
    tide_json_text(line, "dtype", tide_dtype_name(state->dtype));
    tide_json_count(line, "step", state->step);
    tide_json_count(line, "steps", schedule->steps);
    tide_json_count(line, "tokens", state->tokens);
    tide_json_count(line, "updates", state->adam_step);
    tide_json_count(line, "skipped", state->skipped);
    tide_json_count(line, "batch_tokens", state->global_batch_tokens);
    tide_json_count(line, "seq_len", state->seq_len);
    tide_json_count(line, "micro_batch_sequences", state->micro_batch_sequences);
    tide_json_count(line, "sum_groups", state->sum_groups);
    tide_json_text(line, "reduce_dtype", tide_dtype_name(state->reduce_dtype));
    tide_json_count(line, "seed", state->seed);
    tide_json_count(line, "data_first_step", state->data_first_step);
    tide_json_count(line, "epoch", state->epoch);
    tide_json_count(line, "best_step", state->best_step);
    tide_json_real(line, "best_loss", state->best_loss);
    tide_json_text(line, "schedule", tide_lr_shape_name(schedule->shape));
    tide_json_count(line, "warmup_steps", schedule->warmup_steps);
    tide_json_count(line, "decay_steps", schedule->decay_steps);
    tide_json_real(line, "lr", schedule->lr);
    tide_json_real(line, "lr_min", schedule->lr_min);
    tide_json_real(line, "weight_decay", hyper->weight_decay);
    tide_json_real(line, "clip", hyper->clip);
    tide_json_real(line, "beta1", hyper->beta1);
    tide_json_real(line, "beta2", hyper->beta2);
    tide_json_real(line, "epsilon", hyper->epsilon);
    tide_json_real(line, "loss_scale", state->loss_scale);
}

static void looked_json(tide_json_line *line, const view *it)
{
    tide_json_text(line, "path", it->path);
    tide_json_text(line, "state", state_of(&it->looked));
    tide_json_bool(line, "checksums", !it->settings.quick);
    if (it->looked.has_state)
        state_json(line, &it->looked);
    tide_json_open(line, "files", '[');
    for (unsigned i = 0; i < it->looked.file_count; i++) {
        const tide_checkpoint_file_check *file = &it->looked.files[i];
        tide_json_open(line, NULL, '{');
        tide_json_text(line, "name", file->name);
        tide_json_count(line, "bytes", file->bytes);
        tide_json_text(line, "wrong", file->message);
        tide_json_close(line, '}');
    }
    tide_json_close(line, ']');
}

static tide_status json_print(const view *it)
{
    const size_t capacity = JSON_BYTES + 8 * sizeof it->path +
                            (it->folder.step_count + it->folder.remain_count) * JSON_LISTED_BYTES;
    char *text = malloc(capacity);
    tide_json_line line;
    if (text == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for %zu bytes of JSON", capacity);
    tide_json_begin(&line, text, capacity);
    tide_json_open(&line, NULL, '{');
    list_json(&line, it);
    tide_json_open(&line, "looked_at", '{');
    looked_json(&line, it);
    tide_json_close(&line, '}');
    if (it->earlier[0] != '\0')
        tide_json_text(&line, "resume_from", it->earlier);
    tide_json_close(&line, '}');
    const bool fits = tide_json_end(&line);
    if (fits)
        fputs(text, stdout);
    free(text);
    return fits ? TIDE_OK
                : tide_fail(TIDE_ERROR_INTERNAL, "%zu bytes are too few for this checkpoint", capacity);
}

/* ---- the command ---- */

/* Returns the first fault, of the chosen checkpoint or, if that has none, of another in the list. */
static tide_status verdict(const view *it)
{
    const tide_checkpoint_file_check *first = tide_checkpoint_check_first(&it->looked);
    for (size_t i = 0; i < it->folder.step_count && first == NULL; i++)
        first = tide_checkpoint_check_first(&it->listed[i]);
    return first == NULL ? TIDE_OK : tide_fail(first->status, "%s", first->message);
}

static tide_status view_run(view *it)
{
    tide_status status = choose(it);
    if (status == TIDE_OK)
        status = look(it, it->path, it->settings.quick, &it->looked);
    if (status == TIDE_OK)
        status = list_all(it);
    if (status == TIDE_OK)
        status = earlier_find(it);
    if (status != TIDE_OK)
        return status;
    if (it->settings.json)
        status = json_print(it);
    else
        people_print(it);
    return status == TIDE_OK ? verdict(it) : status;
}

int tide_command_checkpoint(int count, char *const *arguments)
{
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(&tide_checkpoint_table, stdout);
        return TIDE_EXIT_OK;
    }
    static view it;
    it = (view){.files = tide_files_posix()};
    tide_status status = tide_options_parse(&tide_checkpoint_table, count, arguments, &it.settings, NULL);
    if (status == TIDE_OK)
        status = view_run(&it);
    tide_folder_close(&it.folder);
    free(it.listed);
    return status == TIDE_OK ? TIDE_EXIT_OK : tide_command_failed(command_name, status);
}
