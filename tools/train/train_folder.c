/* Checks of the checkpoint folder that `tidepool train` makes before it trains.
 *
 *   1  Refuse a folder that is a checkpoint itself, or has a checkpoint's name in a run's folder. Create the
 *      folder if necessary, then create a file in it and remove it, so that a folder that can't be written is
 *      found now and not at the first save. Lock the folder, because the saves of two runs would disturb each
 *      other.
 *   2  Find the checkpoint to resume from. Refuse a folder that holds another run's checkpoints, a later
 *      checkpoint that is not damaged, or a file that has the name of a later checkpoint.
 *   3  Simulate the run's saves, and compare the space that they need with the free space.
 *
 * With --resume-from no later checkpoint is ever lost. A sound one ends the run here; a damaged one is
 * renamed, and only after the checkpoint to resume from has been loaded. So a user whose newest checkpoint is
 * damaged needs one command to go on.
 */
#include "tools/train/train_folder.h"

#include "base/array.h"
#include "base/minmax.h"
#include "src/checkpoint/check.h"
#include "src/checkpoint/folder.h"
#include "src/checkpoint/free_space.h"
#include "src/export/export.h"
#include "tools/train/file_use.h"
#include "tools/train/train_report.h"
#include "tools/units.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- 1: can the folder be written? ---- */

/* Sets *is: is `path`, called step-N, in a folder of checkpoints? Sets `run` to that folder. */
static tide_status is_in_run(const char *path, char run[TIDE_CHECKPOINT_PATH_BYTES], bool *is)
{
    tide_folder held;
    tide_folder_parent(path, run);
    const tide_status status = tide_folder_open(tide_files_posix(), run, &held);
    if (status != TIDE_OK)
        return status;
    *is = held.step_count > 0;
    tide_folder_close(&held);
    return TIDE_OK;
}

static tide_status itself_refuse(const char *dir, const char *path, const char *run, bool is_whole)
{
    char from[TIDE_CHECKPOINT_PATH_BYTES] = "";
    if (run == NULL)
        return tide_fail(
            TIDE_ERROR_ARGUMENT,
            "--checkpoint %.400s: that is a checkpoint itself; to go on from it, give --resume-from "
            "%.400s and another folder as --checkpoint",
            dir, dir);
    if (is_whole)
        snprintf(from, sizeof from, "; from that one, --resume-from %.250s --checkpoint %.250s", path, run);
    return tide_fail(
        TIDE_ERROR_ARGUMENT,
        "--checkpoint %.250s: that is the place of one checkpoint; to go on from the newest, give "
        "--checkpoint %.250s --resume%s",
        dir, run, from);
}

/* Refuses a --checkpoint folder that is a checkpoint itself: whoever removes that checkpoint would remove
 * this run's, too. */
static tide_status itself_check(const char *dir)
{
    char run[TIDE_CHECKPOINT_PATH_BYTES];
    tide_train_state state;
    uint64_t step;
    bool is_step = false;
    if (strlen(dir) + 64 > sizeof run)
        return TIDE_OK; /* the call that creates the folder reports this */
    const tide_status peeked = tide_checkpoint_peek(tide_files_posix(), dir, &state);
    if (peeked == TIDE_ERROR_IO || peeked == TIDE_ERROR_NO_MEMORY)
        return peeked;
    char *real = tide_folder_step_of(dir, &step) ? NULL : realpath(dir, NULL);
    const char *path = real != NULL && tide_folder_step_of(real, &step) ? real : dir;
    tide_status status = tide_folder_step_of(path, &step) ? is_in_run(path, run, &is_step) : TIDE_OK;
    if (status == TIDE_OK && (is_step || peeked == TIDE_OK))
        status = itself_refuse(dir, path, is_step ? run : NULL, peeked == TIDE_OK);
    free(real);
    return status;
}

static tide_status folder_probe(const tide_files *files, const char *dir, bool *folder_made)
{
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    int handle = 0, error = files->make_folder(files->context, dir);
    bool made = error == 0;
    if (error != 0 && error != EEXIST)
        return tide_fail(TIDE_ERROR_IO, "--checkpoint %s: can't be made: %s", dir, strerror(error));
    if ((size_t)snprintf(path, sizeof path, "%s/.tmp-probe-%ld", dir, (long)getpid()) >= sizeof path)
        return tide_fail(TIDE_ERROR_ARGUMENT, "--checkpoint %s: the path is too long", dir);
    error = files->create(files->context, path, &handle);
    if (error == 0) {
        error = files->close(files->context, handle);
        (void)files->remove_file(files->context, path);
    }
    if (error != 0 && made)
        (void)files->remove_folder(files->context, dir);
    if (error != 0)
        return tide_fail(TIDE_ERROR_IO, "--checkpoint %s: can't be written: %s", dir, strerror(error));
    *folder_made = made;
    return TIDE_OK;
}

/* Locks the folder; the system removes the lock when the process ends, however that happens. On file systems
 * without locks (some shared ones) the run goes on without a lock. */
static tide_status folder_lock(const char *dir, tide_train_folder *folder)
{
    const int descriptor = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0)
        return tide_fail(TIDE_ERROR_IO, "--checkpoint %s: can't be opened: %s", dir, strerror(errno));
    if (flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        (void)close(descriptor);
        return tide_fail(TIDE_ERROR_STATE,
                         "--checkpoint %s: another run saves to it now; take another folder, or wait", dir);
    }
    folder->locked = true;
    folder->lock = descriptor;
    return TIDE_OK;
}

/* ---- 2: does the folder hold checkpoints that forbid this run? ---- */

static tide_status refuse_used(const char *dir, const char *held)
{
    return tide_fail(TIDE_ERROR_STATE,
                     "--checkpoint %s: already holds %s; add --resume or take another folder", dir, held);
}

static tide_status damaged_add(tide_train_folder *folder, uint64_t step)
{
    if (!tide_array_grow(&folder->damaged, folder->damaged_count, sizeof *folder->damaged))
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a list of damaged checkpoints");
    folder->damaged[folder->damaged_count++] = step;
    return TIDE_OK;
}

static void check_show(void *making, uint64_t done_bytes, uint64_t total_bytes)
{
    tide_making_show(making, "checksums of a later checkpoint", done_bytes, total_bytes);
}

/* Verifies all checksums of a checkpoint that is later than the one to resume from: a sound one is refused, a
 * damaged one is listed. */
static tide_status later_check(const tide_folder *held, uint64_t step, tide_train_folder *folder)
{
    char path[TIDE_CHECKPOINT_PATH_BYTES];
    tide_checkpoint_check check;
    tide_making making;
    tide_folder_step_path(held, step, path);
    tide_making_begin(&making, stderr);
    const tide_status status =
        tide_checkpoint_check_run(held->files, path, TIDE_CHECKPOINT_BYTES, check_show, &making, &check);
    tide_making_end(&making);
    if (status != TIDE_OK)
        return status;
    if (!check.damaged)
        return tide_fail(TIDE_ERROR_STATE,
                         "--resume-from: %.900s is later and not damaged; move it away, or save to another "
                         "--checkpoint folder",
                         path);
    return damaged_add(folder, step);
}

static tide_status later_checks(const tide_train_settings *settings, const tide_checkpoint_found *from,
                                tide_train_folder *folder)
{
    tide_folder held;
    char own[TIDE_CHECKPOINT_PATH_BYTES], path[TIDE_CHECKPOINT_PATH_BYTES];
    tide_status status = tide_folder_open(tide_files_posix(), settings->checkpoint, &held);
    if (status != TIDE_OK)
        return status;
    bool same = false;
    tide_folder_step_path(&held, from->step, own);
    status = tide_file_is_same(own, from->path, &same);
    if (status == TIDE_OK && held.step_count > 0 && !same) {
        tide_folder_step_path(&held, held.steps[0], path);
        status = refuse_used(settings->checkpoint, path);
    }
    for (size_t i = 0; i < held.step_count && held.steps[i] > from->step && status == TIDE_OK; i++)
        status = later_check(&held, held.steps[i], folder);
    tide_folder_close(&held);
    return status;
}

static tide_status held_check(const tide_train_settings *settings, tide_train_folder *folder,
                              tide_checkpoint_found *from)
{
    const tide_files *files = tide_files_posix();
    if (settings->trainer.resume_from != NULL) {
        const tide_status status = tide_checkpoint_at(files, settings->trainer.resume_from, from);
        if (status != TIDE_OK || settings->checkpoint == NULL)
            return status;
        return later_checks(settings, from, folder);
    }
    const tide_status status = tide_checkpoint_newest(files, settings->checkpoint, from);
    if (status == TIDE_OK && from->exists && !settings->resume)
        return refuse_used(settings->checkpoint, from->path);
    /* a run without steps left needs no moments */
    if (status == TIDE_OK && from->weights_only && from->step < settings->trainer.hyper.schedule.steps)
        return tide_fail(TIDE_ERROR_STATE,
                         "--resume: %.900s holds weights alone, and --resume goes on to the last bit; "
                         "--resume-from %.900s begins "
                         "with zero moments",
                         from->path, from->path);
    return settings->resume ? tide_train_folder_advise(settings, status) : status;
}

/* Refuses a file in the folder that has the name of a checkpoint that the run will save, after step
 * `from`. */
static tide_status way_check(const tide_train_settings *settings, uint64_t from)
{
    tide_folder held;
    tide_status status = tide_folder_open(tide_files_posix(), settings->checkpoint, &held);
    if (status != TIDE_OK)
        return status;
    status = tide_folder_way_check(&held, from + 1, settings->trainer.hyper.schedule.steps);
    tide_folder_close(&held);
    return status;
}

/* ---- 3: is there enough free space? ---- */

/* The number of saves after step `from`: those of --save-every, and the last one. */
static uint64_t saves_of(const tide_train_settings *settings, uint64_t from)
{
    const uint64_t steps = settings->trainer.hyper.schedule.steps, every = settings->save_every;
    if (from >= steps)
        return 0;
    const uint64_t scheduled = every == 0 ? 1 : steps / every - from / every + (steps % every != 0);
    /* each evaluation may find a better one */
    return settings->keep_best ? scheduled + (steps - from) / settings->eval_every : scheduled;
}

/* How many checkpoints are kept; 0: all. */
static unsigned kept_of(const tide_train_settings *settings)
{
    return (unsigned)settings->keep + (settings->keep > 0 && settings->keep_best);
}

/* Writes "--keep 1, which needs 2.0 GiB, or " to `advice` if `free_bytes` suffice for that, else "". */
static tide_status advise(const char *dir, const tide_checkpoint_saves *saves, const char *option,
                          uint64_t free_bytes, char *advice, size_t size)
{
    char text[TIDE_UNITS_TEXT_BYTES];
    uint64_t needed = 0;
    advice[0] = '\0';
    const tide_status status = tide_checkpoint_space_needed(tide_files_posix(), dir, saves, &needed);
    if (status == TIDE_OK && needed <= free_bytes)
        snprintf(advice, size, "%s, which needs %s, or ", option, tide_size_format(needed, text));
    return status;
}

/* Sets *bytes to the size of the export if it goes to the same disk as `dir`; else leaves it. */
static tide_status beside(const char *dir, const tide_export *export, uint64_t *bytes)
{
    char parent[TIDE_CHECKPOINT_PATH_BYTES];
    struct stat at_dir, at_export;
    if (export == NULL || strlen(export->out) >= sizeof parent)
        return TIDE_OK;
    tide_folder_parent(export->out, parent);
    if (stat(dir, &at_dir) != 0 || stat(parent, &at_export) != 0)
        return tide_files_is_absent(errno)
                   ? TIDE_OK
                   : tide_fail(TIDE_ERROR_IO, "--checkpoint %.900s, --export: can't be looked at: %s", dir,
                               strerror(errno));
    return at_dir.st_dev == at_export.st_dev ? tide_export_bytes(export, bytes) : TIDE_OK;
}

static tide_status space_refuse(const tide_train_settings *settings, const tide_trainer_options *options,
                                const tide_checkpoint_saves *saves, uint64_t needed, uint64_t free_bytes,
                                bool shared)
{
    char needs[TIDE_UNITS_TEXT_BYTES], has[TIDE_UNITS_TEXT_BYTES], one[TIDE_UNITS_TEXT_BYTES],
        count[TIDE_UNITS_TEXT_BYTES], keep_one[128], weights[128];
    const char *dir = settings->checkpoint;
    tide_checkpoint_saves fewer = *saves, smaller = *saves;
    tide_trainer_options no_moments = *options;
    fewer.keep = 1 + settings->keep_best;
    no_moments.save_weights_only = true;
    tide_status status = tide_trainer_save_bytes(&no_moments, &smaller.bytes);
    if (status == TIDE_OK)
        status = advise(dir, &fewer, "--keep 1", free_bytes, keep_one, sizeof keep_one);
    if (status == TIDE_OK)
        status = advise(dir, &smaller, "--save weights", free_bytes, weights, sizeof weights);
    if (status != TIDE_OK)
        return status;
    return tide_fail(
        TIDE_ERROR_IO,
        "--checkpoint %.700s: %s of %s with --keep %llu%s need %s of space there, %s is free%s; take "
        "%s%sanother folder",
        dir, tide_count_noun(saves->count, "save", count), tide_size_format(saves->bytes, one),
        (unsigned long long)settings->keep, settings->keep_best ? " and --keep-best" : "",
        tide_size_format(needed, needs), tide_size_format(free_bytes, has),
        shared ? " beside what --export needs" : "", keep_one, weights);
}

static tide_status free_space_check(const tide_train_settings *settings, const tide_trainer_options *options,
                                    const tide_export *export, uint64_t from)
{
    const tide_files *files = tide_files_posix();
    tide_checkpoint_saves saves = {
        .count = saves_of(settings, from), .keep = kept_of(settings), .from_step = from};
    uint64_t needed = 0, free_bytes = 0, beside_bytes = 0;
    tide_status status = tide_trainer_save_bytes(options, &saves.bytes);
    if (status == TIDE_OK)
        status = tide_checkpoint_space_needed(files, settings->checkpoint, &saves, &needed);
    if (status == TIDE_OK)
        status = beside(settings->checkpoint, export, &beside_bytes);
    if (status != TIDE_OK)
        return status;
    const int error = files->free_space(files->context, settings->checkpoint, &free_bytes);
    free_bytes -= tide_min_u64(beside_bytes, free_bytes);
    if (error != 0 || needed <= free_bytes)
        return TIDE_OK; /* if the system can't tell the free space, a save that fails will */
    return space_refuse(settings, options, &saves, needed, free_bytes, beside_bytes > 0);
}

/* ---- does --export keep out of the folder? ---- */

/* Refuses an --export in the checkpoint folder under a name that runs use. tide_export_begin checks the same
 * only once checkpoints exist. */
static tide_status export_check(const tide_train_settings *settings, const tide_export *export)
{
    char parent[TIDE_CHECKPOINT_PATH_BYTES];
    if (export == NULL || strlen(export->out) >= sizeof parent)
        return TIDE_OK;
    bool same = false;
    tide_folder_parent(export->out, parent);
    const tide_status status = tide_file_is_same(parent, settings->checkpoint, &same);
    if (status != TIDE_OK || !same || !tide_export_is_runs_own(export->out))
        return status;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "--export %.900s: that name in a folder of checkpoints is a run's own; take another",
                     export->out);
}

/* Sets folder->source to the copy of the source model's files beside the checkpoint to resume from, and
 * folder->elsewhere. */
static tide_status source_find(const tide_checkpoint_found *from, tide_train_folder *folder)
{
    char dir[TIDE_CHECKPOINT_PATH_BYTES];
    bool kept = false, same = false;
    if (!from->exists)
        return TIDE_OK;
    tide_folder_parent(from->path, dir);
    tide_status status = folder->path != NULL ? tide_file_is_same(dir, folder->path, &same) : TIDE_OK;
    if (status != TIDE_OK)
        return status;
    folder->elsewhere = folder->path != NULL && !same;
    status = tide_export_source_kept(tide_files_posix(), dir, folder->source, &kept);
    if (status != TIDE_OK || !kept)
        folder->source[0] = '\0';
    return status;
}

/* ---- all checks ---- */

tide_status tide_train_folder_check(const tide_train_settings *settings, const tide_trainer_options *options,
                                    const tide_export *export, tide_train_folder *folder)
{
    tide_checkpoint_found from = {.exists = false};
    const bool saves = settings->checkpoint != NULL;
    tide_status status = TIDE_OK;
    if (tide_train_settings_predict(settings) || !(saves || settings->trainer.resume_from != NULL))
        return TIDE_OK;
    folder->path = settings->checkpoint;
    if (saves)
        status = itself_check(settings->checkpoint);
    if (status == TIDE_OK && saves)
        status = folder_probe(tide_files_posix(), settings->checkpoint, &folder->made);
    if (status == TIDE_OK && saves)
        status = folder_lock(settings->checkpoint, folder);
    if (status == TIDE_OK && saves)
        status = export_check(settings, export);
    if (status == TIDE_OK)
        status = held_check(settings, folder, &from);
    if (status == TIDE_OK && saves)
        status = way_check(settings, from.step);
    if (status == TIDE_OK)
        status = source_find(&from, folder);
    folder->finished = from.exists && from.step >= settings->trainer.hyper.schedule.steps;
    if (status == TIDE_OK && saves)
        status = free_space_check(settings, options, export, from.step);
    return status;
}

tide_status tide_train_folder_begin(const tide_train_folder *folder, FILE *out)
{
    tide_status status = TIDE_OK;
    for (size_t i = 0; i < folder->damaged_count && status == TIDE_OK; i++) {
        char path[TIDE_CHECKPOINT_PATH_BYTES], aside[TIDE_CHECKPOINT_PATH_BYTES];
        if ((size_t)snprintf(path, sizeof path, "%s/step-%llu", folder->path,
                             (unsigned long long)folder->damaged[i]) >= sizeof path)
            return tide_fail(TIDE_ERROR_ARGUMENT, "--checkpoint %.900s: the path is too long", folder->path);
        status = tide_checkpoint_set_aside(tide_files_posix(), path, aside);
        if (status == TIDE_OK)
            fprintf(out, "%s is damaged: set aside as %s\n", path, aside);
    }
    return status;
}

/* Finds the newest checkpoint before the last one whose manifest and file sizes are right. */
static bool earlier_find(const char *dir, tide_checkpoint_found *found)
{
    tide_folder held;
    bool is_there = false;
    if (tide_folder_open(tide_files_posix(), dir, &held) != TIDE_OK)
        return false;
    for (size_t i = 1; i < held.step_count && !is_there; i++) {
        char path[TIDE_CHECKPOINT_PATH_BYTES];
        tide_folder_step_path(&held, held.steps[i], path);
        is_there = tide_checkpoint_at(tide_files_posix(), path, found) == TIDE_OK;
    }
    tide_folder_close(&held);
    return is_there;
}

tide_status tide_train_folder_advise(const tide_train_settings *settings, tide_status status)
{
    char message[1024];
    tide_checkpoint_found earlier;
    static const char is_checkpoints[] = "checkpoint ";
    snprintf(message, sizeof message, "%s", tide_message());
    if (status == TIDE_ERROR_MISMATCH && strstr(message, "data_fingerprint") != NULL)
        return tide_fail(
            status, "%.900s; to go on with other data, give --resume-from and the checkpoint with --new-data",
            message);
    if (status != TIDE_ERROR_CORRUPT || !settings->resume || settings->checkpoint == NULL ||
        strncmp(message, is_checkpoints, strlen(is_checkpoints)) != 0)
        return status;
    if (earlier_find(settings->checkpoint, &earlier))
        return tide_fail(
            status, "%.600s; to go on from the one before, give --resume-from %.300s in place of --resume",
            message, earlier.path);
    return tide_fail(status, "%.600s; %.300s holds none before it", message, settings->checkpoint);
}

void tide_train_folder_close(tide_train_folder *folder)
{
    if (folder->locked)
        (void)close(folder->lock); /* nothing was written through this descriptor */
    folder->locked = false;
    free(folder->damaged);
    folder->damaged = NULL;
    folder->damaged_count = 0;
}
