/* Each try writes a whole checkpoint, as far as there is space. So after the first try that fails, the next
 * one waits until the free space suffices for a checkpoint, or has at least grown since the last try. If the
 * system can't tell the free space, every try writes. */
#include "tools/train/train_saves.h"

#include "base/clock.h"
#include "tools/train/stop.h"
#include "tools/units.h"

#include <assert.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double told_every_s = 60, pause_first_s = 1, pause_most_s = 30;

tide_status tide_train_saves_begin(tide_train_saves *saves, const tide_train_settings *settings,
                                   const tide_trainer_options *options, tide_trainer *trainer,
                                   tide_progress *progress)
{
    const tide_trainer_resumed *resumed = tide_trainer_resumed_get(trainer);
    tide_train_saves begun = {
        .settings = settings, .trainer = trainer, .progress = progress, .saved_step = TIDE_TRAIN_UNSAVED};
    if (resumed->resumed) {
        begun.saved_step = tide_trainer_state(trainer)->step;
        snprintf(begun.kept, sizeof begun.kept, "%s", resumed->from.path);
    }
    const tide_status status =
        settings->checkpoint != NULL ? tide_trainer_save_bytes(options, &begun.bytes) : TIDE_OK;
    if (status == TIDE_OK)
        *saves = begun;
    return status;
}

bool tide_train_saves_pending(const tide_train_saves *saves)
{
    const uint64_t step = tide_trainer_state(saves->trainer)->step;
    return saves->settings->checkpoint != NULL && tide_trainer_computes(saves->trainer) && step > 0 &&
           saves->saved_step != step && !saves->given_up;
}

bool tide_train_saves_validated(tide_train_saves *saves, double loss)
{
    const tide_train_state *state = tide_trainer_state(saves->trainer);
    saves->found_best = saves->settings->keep_best && tide_train_saves_pending(saves) && isfinite(loss) &&
                        (state->best_step == 0 || loss < state->best_loss);
    saves->validation_loss = loss;
    return saves->found_best;
}

bool tide_train_saves_best_pending(const tide_train_saves *saves)
{
    return saves->found_best && tide_train_saves_pending(saves);
}

/* Saves the present step. Where it is the best so far and can't be saved, the best before stays. */
static tide_status trainer_save(tide_train_saves *saves, tide_checkpoint_saved *saved)
{
    const tide_train_state before = *tide_trainer_state(saves->trainer);
    const tide_train_settings *settings = saves->settings;
    if (saves->found_best)
        tide_trainer_best_set(saves->trainer, before.step, saves->validation_loss);
    const tide_status status =
        tide_trainer_save(saves->trainer, settings->checkpoint, (unsigned)settings->keep, saved);
    if (status != TIDE_OK)
        tide_trainer_best_set(saves->trainer, before.best_step, before.best_loss);
    else
        saves->found_best = false;
    return status;
}

static tide_status save_once(tide_train_saves *saves)
{
    tide_checkpoint_saved saved;
    char size[TIDE_UNITS_TEXT_BYTES];
    tide_pool *pool = tide_trainer_pool(saves->trainer);
    const uint64_t begin_ns = tide_pool_now_ns(pool);
    const tide_status status = trainer_save(saves, &saved);
    tide_pool_trace_work(pool, "save", begin_ns);
    if (status != TIDE_OK)
        return status;
    saves->saved_step = tide_trainer_state(saves->trainer)->step;
    snprintf(saves->kept, sizeof saves->kept, "%s", saved.path);
    tide_progress_line(saves->progress, "saved %s (%s)", saved.path, tide_size_format(saved.bytes, size));
    if (saved.warning[0] != '\0')
        tide_progress_line(saves->progress, "warning: %s", saved.warning);
    return TIDE_OK;
}

/* Whether the cause (space, a disk, memory) may be gone after a pause. */
static bool may_pass(tide_status status)
{
    return status == TIDE_ERROR_IO || status == TIDE_ERROR_NO_MEMORY;
}

typedef char kept_text[TIDE_CHECKPOINT_PATH_BYTES + 32];

/* "run/step-4 is kept", for messages */
static const char *kept_tell(const tide_train_saves *saves, kept_text text)
{
    if (saves->kept[0] == '\0')
        return "no checkpoint was made before";
    if (access(saves->kept, F_OK) != 0)
        return "no checkpoint is there";
    snprintf(text, sizeof(kept_text), "%s is kept", saves->kept);
    return text;
}

tide_status tide_train_save(tide_train_saves *saves)
{
    kept_text kept;
    const tide_status status = save_once(saves);
    saves->found_best = false; /* a later save is of another step */
    if (!may_pass(status) && status != TIDE_ERROR_STATE) {
        saves->given_up = status != TIDE_OK;
        return status;
    }
    tide_progress_warn(saves->progress, "%s; %s, and the run goes on to its next save", tide_message(),
                       kept_tell(saves, kept));
    return TIDE_OK;
}

/* ---- the last save ---- */

typedef struct tide_patience {
    tide_train_saves *saves;
    double begin_s, told_s; /* times of the first failure and of the latest line */
    unsigned stops;         /* signals that had asked for the end before this save */
    uint64_t free_at_try;
    double pause_s;
    char message[1024]; /* of the latest try */
} tide_patience;

/* UINT64_MAX if the system can't tell. */
static uint64_t free_bytes(const tide_train_saves *saves)
{
    const tide_files *files = tide_files_posix();
    uint64_t bytes = UINT64_MAX;
    (void)files->free_space(files->context, saves->settings->checkpoint, &bytes);
    return bytes;
}

static double left_s(const tide_patience *patience)
{
    return patience->begin_s + (double)patience->saves->settings->save_patience - tide_clock_seconds();
}

static bool is_over(const tide_patience *patience)
{
    return left_s(patience) <= 0 || tide_stop_count() != patience->stops;
}

static void wait_tell(tide_patience *patience, const char *how)
{
    const tide_train_saves *saves = patience->saves;
    const uint64_t free_space = free_bytes(saves);
    const double left = left_s(patience);
    char lacks[TIDE_UNITS_TEXT_BYTES], lack[64] = "";
    kept_text kept;
    if (free_space < saves->bytes)
        snprintf(lack, sizeof lack, "; %s more of free space is needed",
                 tide_size_format(saves->bytes - free_space, lacks));
    tide_progress_warn(saves->progress, "%s%s; %s; %s for %.0f s (--save-patience)", patience->message, lack,
                       kept_tell(saves, kept), how, left > 0 ? left : 0);
    patience->told_s = tide_clock_seconds();
}

/* False if the patience ended before the pause did. */
static bool pause_for(tide_patience *patience, double seconds)
{
    const double end_s = tide_clock_seconds() + seconds;
    const struct timespec slice = {.tv_nsec = 100000000};
    while (tide_clock_seconds() < end_s && !is_over(patience)) {
        (void)nanosleep(&slice, NULL);
        if (tide_clock_seconds() - patience->told_s >= told_every_s)
            wait_tell(patience, "still tried");
    }
    return !is_over(patience);
}

/* Pause, each time twice as long, until there is reason to try again. False: the patience has ended. */
static bool wait_for_reason(tide_patience *patience)
{
    while (pause_for(patience, patience->pause_s)) {
        const uint64_t free_space = free_bytes(patience->saves);
        patience->pause_s = fmin(2 * patience->pause_s, pause_most_s);
        if (free_space >= patience->saves->bytes || free_space > patience->free_at_try) {
            patience->free_at_try = free_space;
            return true;
        }
    }
    return false;
}

/* Try again and again. Of several ranks rank 0 writes, and so it decides. */
static tide_status be_patient(tide_patience *patience, tide_status failure)
{
    tide_comm *comm = tide_trainer_comm(patience->saves->trainer);
    tide_status status = failure;
    bool again = true;
    while (may_pass(status)) {
        if (tide_comm_rank(comm) == 0) {
            tide_comm_doing(comm, TIDE_PHASE_SAVING, "waits before it tries to save again");
            again = wait_for_reason(patience);
            tide_comm_doing(comm, TIDE_PHASE_COMPUTING, "has waited to save");
        }
        const tide_status told = tide_comm_broadcast(comm, &again, sizeof again);
        if (told != TIDE_OK)
            return told;
        if (!again)
            return status;
        status = save_once(patience->saves);
        snprintf(patience->message, sizeof patience->message, "%s", tide_message());
    }
    return status;
}

tide_status tide_train_save_last(tide_train_saves *saves)
{
    kept_text kept;
    tide_status status = save_once(saves);
    if (!may_pass(status)) {
        saves->given_up = status != TIDE_OK;
        return status;
    }
    tide_patience patience = {.saves = saves,
                              .begin_s = tide_clock_seconds(),
                              .stops = tide_stop_count(),
                              .free_at_try = free_bytes(saves),
                              .pause_s = pause_first_s};
    snprintf(patience.message, sizeof patience.message, "%s", tide_message());
    if (!is_over(&patience))
        wait_tell(&patience, "tried again");
    status = be_patient(&patience, status);
    saves->given_up = status != TIDE_OK;
    if (!may_pass(status))
        return status;
    return tide_fail(status, "%s; step %llu is not saved, %.4000s", patience.message,
                     (unsigned long long)tide_trainer_state(saves->trainer)->step, kept_tell(saves, kept));
}
