/* tidepool train: from a command line to a trained model.
 *
 *   1. Turn the command line into options of the device and of the trainer.
 *   2. Refuse an output that is also an input or another output. Open the outputs that could fail (checkpoint
 *      folder, metrics, trace) before anything is measured or trained. Then find the machine that the null
 *      device imitates, or let --auto choose.
 *   3. Create the trainer; print where every byte goes; only now empty the old metrics and trace.
 *   4. Run step after step, with evaluations and saves between them; a signal ends the loop after the step.
 *   5. Print the last lines and the summary, save, export, evaluate, sample.
 *
 * The updates of a step may run inside the next step. So the command writes a step's line, on the console and
 * in the metrics, when it has both the trainer's report and the pool's counters of that step. It drains the
 * pool before an evaluation, a save or a sample. This ends the step's counters, so that no step's line
 * includes their time and moves.
 *
 * Signals only set flags (tools/train/stop.h). If an output of a run that has begun can't be written, a line
 * on standard error says so and the run goes on. A run that fails for another reason saves its last complete
 * step before it ends.
 */
#include "src/checkpoint/folder.h"
#include "src/comm/comm.h"
#include "src/train/metrics.h"
#include "tools/command.h"
#include "tools/export/export_options.h"
#include "tools/options.h"
#include "tools/train/file_use.h"
#include "tools/train/launch.h"
#include "tools/train/stop.h"
#include "tools/train/train_auto.h"
#include "tools/train/train_folder.h"
#include "tools/train/train_head.h"
#include "tools/train/train_options.h"
#include "tools/train/train_predict.h"
#include "tools/train/train_ranks.h"
#include "tools/train/train_report.h"
#include "tools/train/train_saves.h"
#include "tools/train/train_trace.h"
#include "tools/units.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char command_name[] = "tidepool train";

/* Most steps whose reports wait for their counters: the last one, and one whose updates still run. */
enum { WAITING_STEPS_MAX = 8 };

/* A step whose line waits for its counters. */
typedef struct waiting_step {
    tide_trainer_report report;
    tide_slowest_rank slowest; /* with several ranks */
} waiting_step;

typedef struct train_run {
    tide_train_settings settings;
    tide_trainer_options options;
    tide_trainer *trainer;
    tide_metrics *metrics; /* NULL: no --metrics */
    tide_trace *trace;     /* NULL: no --trace */
    char device[TIDE_DEVICE_FACTORY_NAME_BYTES];
    char no_gpu[TIDE_DEVICE_FACTORY_REASON_BYTES]; /* why --device auto chose the host; "" otherwise */
    char *freeze;                                  /* --freeze's patterns, separated by blanks */
    tide_making making;
    tide_progress progress;
    tide_train_folder folder;
    tide_export_place exporting;
    tide_train_prediction prediction; /* used with --device null */
    tide_train_saves saves;
    tide_train_ranks ranks;
    char trace_path[4096]; /* with several ranks: --trace with this one's number */
    int stop, save_signal; /* signals that some rank has got, as of the last exchange; 0: none */
    bool of_bytes;         /* the data is text, whose tokens are bytes */
    uint64_t first_step;   /* steps that were done before this run */
    /* step n is at n % WAITING_STEPS_MAX, for n from `lined` to `reported` - 1 */
    waiting_step waiting[WAITING_STEPS_MAX];
    uint64_t reported;
    uint64_t lined; /* steps whose line is written */
    /* entropy of the tokens' frequencies in the validation data, which a model should beat; NAN until
     * computed, and on ranks other than 0 */
    double unigram;
} train_run;

/* ---- 2: outputs ---- */

/* The folder from which this run's exports copy config.json and the tokenizer: the one that the model was
 * loaded from, or the copy that the checkpoint which the run resumes from has kept. NULL: none. */
static const char *source_of(const train_run *run)
{
    if (run->options.weights != NULL)
        return run->options.weights;
    return run->folder.source[0] != '\0' ? run->folder.source : NULL;
}

/* The export that --export asks for, in the dtype of the run's params. */
static tide_export export_of(train_run *run)
{
    return (tide_export){.files = tide_files_posix(),
                         .out = run->settings.export,
                         .model = &run->options.model,
                         .source = source_of(run),
                         .of_bytes = run->of_bytes,
                         .dtype = tide_export_dtype_of(run->options.dtype),
                         .max_shard_bytes = TIDE_EXPORT_SHARD_BYTES,
                         .progress = tide_making_show,
                         .progress_context = &run->making};
}

static tide_status export_open(train_run *run)
{
    tide_export export = export_of(run);
    /* a run that was done is started again */
    export.may_be_there = run->settings.resume && run->folder.finished;
    return run->settings.export != NULL ? tide_export_begin(&export, &run->exporting) : TIDE_OK;
}

/* With several ranks each writes a trace of its own. */
static tide_status trace_name(train_run *run)
{
    tide_train_settings *settings = &run->settings;
    if (run->ranks.ranks == 1 || settings->trace == NULL)
        return TIDE_OK;
    if (snprintf(run->trace_path, sizeof run->trace_path, "%s.rank-%u", settings->trace, run->ranks.rank) >=
        (int)sizeof run->trace_path)
        return tide_fail(TIDE_ERROR_ARGUMENT, "--trace %.100s...: its path is too long", settings->trace);
    settings->trace = run->trace_path;
    return TIDE_OK;
}

static tide_status trace_open(train_run *run)
{
    tide_status status = trace_name(run);
    if (status == TIDE_OK)
        status = tide_train_trace_open(&run->settings, &run->trace);
    if (run->trace != NULL) {
        run->options.pool.trace = tide_trace_record;
        run->options.pool.trace_context = run->trace;
    }
    return status;
}

/* Rank 0 alone writes checkpoints, the export and metrics. */
static tide_status outputs_open(train_run *run)
{
    const tide_train_settings *settings = &run->settings;
    const tide_export export = export_of(run);
    if (run->ranks.rank != 0)
        return trace_open(run);
    if (settings->export != NULL)
        /* so that the checks of free space count the removed files as free */
        tide_export_tidy(export.files, export.out);
    tide_status status = tide_train_folder_check(settings, &run->options,
                                                 settings->export != NULL ? &export : NULL, &run->folder);
    if (status == TIDE_OK)
        status = export_open(run);
    if (status == TIDE_OK && settings->metrics != NULL)
        status = tide_metrics_open(settings->metrics, &run->metrics);
    return status == TIDE_OK ? trace_open(run) : status;
}

/* Removes the checkpoint folder that this run created, if the run failed before its first checkpoint. */
static void folder_withdraw(const train_run *run)
{
    const tide_files *files = tide_files_posix();
    if (run->folder.made && run->saves.saved_step == TIDE_TRAIN_UNSAVED &&
        tide_export_keep_source(files, run->settings.checkpoint, NULL) == TIDE_OK)
        (void)files->remove_folder(files->context, run->settings.checkpoint);
}

/* ---- 3: the trainer ---- */

static tide_status trace_begin(train_run *run)
{
    tide_gpu gpu;
    const char *machine = tide_train_gpu_find(run->device, &gpu) ? gpu.name : NULL;
    if (tide_train_settings_predict(&run->settings))
        machine = run->prediction.machine.profile.name;
    return tide_train_trace_begin(run->trace, &run->settings, &run->options, run->trainer, run->freeze,
                                  machine, run->ranks.run);
}

/* Copies the model's config.json and tokenizer beside the checkpoints, for later exports of them. A run that
 * resumes has the copy already, unless it saves to another folder than it resumes from. */
static tide_status source_keep(const train_run *run)
{
    char source[TIDE_CHECKPOINT_PATH_BYTES];
    const char *folder = run->settings.checkpoint;
    bool kept = false;
    if (folder == NULL || run->ranks.rank != 0 || !tide_trainer_computes(run->trainer))
        return TIDE_OK;
    if (tide_trainer_resumed_get(run->trainer)->resumed && !run->folder.elsewhere) {
        const tide_status status = tide_export_source_kept(tide_files_posix(), folder, source, &kept);
        if (status != TIDE_OK || kept || source_of(run) == NULL)
            return status;
    }
    return tide_export_keep_source(tide_files_posix(), folder, source_of(run));
}

/* Removes from the metrics file the lines of steps that this run computes again (none on the null device,
 * which computes nothing). If a run that resumes can't remove them, because the disk is full, say, it warns
 * and goes on: else a batch system that restarts the run could never continue it. */
static tide_status metrics_begin(train_run *run)
{
    const uint64_t step = tide_train_settings_predict(&run->settings) ? UINT64_MAX : run->first_step;
    const bool continues = run->settings.resume || run->settings.trainer.resume_from;
    const tide_status status = tide_metrics_begin(run->metrics, continues, step);
    if (status == TIDE_OK || !continues)
        return status;
    tide_progress_warn(&run->progress, "%s; the run goes on, and its lines come behind those that are there",
                       tide_message());
    return TIDE_OK;
}

static tide_status trainer_open(train_run *run)
{
    if (run->ranks.rank == 0) {
        run->options.pool.progress = tide_making_show;
        run->options.pool.progress_context = &run->making;
    }
    tide_making_begin(&run->making, stderr);
    tide_status status = tide_trainer_create(&run->options, &run->trainer);
    tide_making_end(&run->making);
    if (status == TIDE_OK && tide_train_settings_predict(&run->settings))
        status = tide_train_predict_begin(&run->prediction, run->trainer);
    if (status == TIDE_OK)
        status = tide_train_folder_begin(&run->folder, stdout);
    if (status == TIDE_OK)
        status = source_keep(run);
    if (status == TIDE_OK) /* rank 0 alone has looked at the folder */
        status = tide_comm_broadcast(run->ranks.comm, &run->folder.elsewhere, sizeof run->folder.elsewhere);
    if (status != TIDE_OK)
        return tide_train_folder_advise(&run->settings, status);
    const tide_train_head head = {.settings = &run->settings,
                                  .options = &run->options,
                                  .trainer = run->trainer,
                                  .device = run->device,
                                  .no_gpu = run->no_gpu,
                                  .threads_differ = run->ranks.threads_differ,
                                  .narrow = &run->ranks.narrow,
                                  .freeze = run->freeze};
    tide_train_head_print(&head, stdout);
    status = tide_report_plan(tide_trainer_plan_get(run->trainer), stdout);
    run->first_step = tide_trainer_state(run->trainer)->step;
    if (run->folder.elsewhere) /* the best checkpoint is not in this run's folder */
        tide_trainer_best_set(run->trainer, 0, 0);
    if (status == TIDE_OK && run->metrics != NULL)
        status = metrics_begin(run);
    if (status == TIDE_OK && run->trace != NULL)
        status = trace_begin(run);
    return status == TIDE_OK ? tide_train_saves_begin(&run->saves, &run->settings, &run->options,
                                                      run->trainer, &run->progress)
                             : status;
}

/* ---- 4: steps ---- */

/* Writes a step's line to the console and to the metrics, and its end to the trace. */
static void step_line(train_run *run, const waiting_step *step, const tide_pool_counters *counters)
{
    const tide_trainer_report *report = &step->report;
    const tide_slowest_rank *slowest = run->ranks.ranks > 1 ? &step->slowest : NULL;
    const uint64_t tokens = tide_trainer_plan_get(run->trainer)->global_batch_tokens;
    bool reader_left;
    tide_progress_step(&run->progress, report, counters);
    if (run->trace != NULL)
        tide_trace_step(run->trace, report, slowest, tokens, counters);
    if (run->metrics == NULL || tide_metrics_step(run->metrics, report, slowest, tokens, counters) == TIDE_OK)
        return;
    if (tide_metrics_lost(run->metrics, &reader_left) == 1)
        tide_progress_warn(&run->progress, "%s; the run goes on without it", tide_message());
}

/* Writes the lines of the steps whose last update has ended, the oldest first. Called after every step,
 * because the pool keeps the counters of 8 steps only. Counters without a report belong to a step that
 * failed. */
static void counters_take(train_run *run)
{
    uint64_t step;
    tide_pool_counters counters;
    while (run->lined < run->reported &&
           tide_pool_step_counters_take(tide_trainer_pool(run->trainer), &step, &counters))
        step_line(run, &run->waiting[run->lined++ % WAITING_STEPS_MAX], &counters);
}

/* The file or folder that this run's params were loaded from; NULL: the run began with initial values. */
static const char *beginning_of(const train_run *run)
{
    const tide_trainer_resumed *resumed = tide_trainer_resumed_get(run->trainer);
    return resumed->resumed ? resumed->from.path : run->options.weights;
}

/* Adds to the message about gradients that are not finite: a likely cause and a remedy. Before the first
 * update the cause can't be the learning rate, so the loaded values are to blame. */
static tide_status nonfinite_advise(const train_run *run, tide_status status)
{
    char message[1024], kept[96] = "";
    if (status != TIDE_ERROR_NONFINITE)
        return status;
    snprintf(message, sizeof message, "%s", tide_message());
    const uint64_t last = run->reported - 1;
    const bool updated =
        run->reported > 0 && run->waiting[last % WAITING_STEPS_MAX].report.skipped_in_row < run->reported;
    if (!updated && beginning_of(run) != NULL)
        return tide_fail(status,
                         "%.600s; no update was made before: look for values that are not finite, or far too "
                         "large, in %.300s",
                         message, beginning_of(run));
    if (run->saves.saved_step != TIDE_TRAIN_UNSAVED)
        snprintf(kept, sizeof kept, "; the checkpoint of step %llu stands, to go on from",
                 (unsigned long long)run->saves.saved_step);
    return tide_fail(status, "%.700s; a lower --lr may help%s%s", message,
                     run->settings.trainer.hyper.clip > 0 ? "" : ", or --clip 1, which skips such steps",
                     kept);
}

/* Looks for signals, which may have come to any rank, and tells all ranks this one's own time for the step;
 * NULL: there was none. All ranks get the same answers, and so do the same. */
static tide_status ranks_exchange(train_run *run, waiting_step *step)
{
    tide_rank_news news = {.own_seconds = step != NULL ? step->report.own_seconds : (double)NAN,
                           .stop = tide_stop_number(),
                           .save_signal = run->save_signal != 0 ? run->save_signal : tide_stop_save_take()};
    const tide_status status =
        tide_train_ranks_exchange(&run->ranks, &news, step != NULL ? &step->slowest : NULL);
    run->stop = news.stop;
    run->save_signal = news.save_signal;
    return status;
}

static tide_status step_run(train_run *run)
{
    assert(run->reported - run->lined < WAITING_STEPS_MAX);
    waiting_step *step = &run->waiting[run->reported % WAITING_STEPS_MAX];
    tide_status status = tide_trainer_step(run->trainer, &step->report);
    if (status != TIDE_OK)
        return nonfinite_advise(run, status);
    status = ranks_exchange(run, step);
    run->reported++;
    /* which may take any time: a terminal stops, a pipe is not read */
    tide_comm_doing(run->ranks.comm, TIDE_PHASE_SAVING, "writes its lines");
    counters_take(run);
    return status;
}

/* Waits for the last step's updates and writes its line, so that later work counts in no step. */
static tide_status steps_settle(train_run *run)
{
    const tide_status status = tide_pool_drain(tide_trainer_pool(run->trainer));
    if (status == TIDE_OK)
        counters_take(run);
    return status;
}

static tide_status evaluate(train_run *run)
{
    double loss = 0;
    const uint64_t begin_ns = tide_pool_now_ns(tide_trainer_pool(run->trainer));
    tide_status status = tide_trainer_evaluate(run->trainer, &loss);
    tide_pool_trace_work(tide_trainer_pool(run->trainer), "evaluate", begin_ns);
    tide_comm_doing(run->ranks.comm, TIDE_PHASE_READING, "counts the validation data");
    if (status == TIDE_OK && isnan(run->unigram) && run->ranks.rank == 0)
        status = tide_data_unigram_entropy(tide_trainer_data(run->trainer), &run->unigram);
    if (status != TIDE_OK)
        return status;
    tide_comm_doing(run->ranks.comm, TIDE_PHASE_SAVING, "writes its lines");
    const bool best = tide_train_saves_validated(&run->saves, loss);
    char unigram[48] = "";
    if (!isnan(run->unigram))
        snprintf(unigram, sizeof unigram, " (unigram entropy %.4f)", run->unigram);
    tide_progress_line(&run->progress, "validation after step %llu: loss %.4f, perplexity %.2f%s%s",
                       (unsigned long long)tide_trainer_state(run->trainer)->step, loss, exp(loss), unigram,
                       best ? ": the best so far" : "");
    return TIDE_OK;
}

static bool is_every(uint64_t every, uint64_t step)
{
    return every != 0 && step % every == 0;
}

/* Saves. If somebody has removed the checkpoint folder, the save creates it again, and this function copies
 * the model's config.json and tokenizer to it again. */
static tide_status save(train_run *run, tide_status (*how)(tide_train_saves *))
{
    const bool was_there = access(run->settings.checkpoint, F_OK) == 0;
    const tide_status status = how(&run->saves);
    if (status == TIDE_OK && !was_there && run->options.weights != NULL && source_keep(run) != TIDE_OK)
        tide_progress_warn(&run->progress, "%s", tide_message());
    return status;
}

/* Whether a signal has asked for a save that is possible; if it is not possible, a line says why. */
static bool save_asked(train_run *run)
{
    const char *signal_name = run->save_signal != 0 ? tide_stop_signal_name(run->save_signal) : NULL;
    run->save_signal = 0;
    if (signal_name != NULL && !tide_trainer_computes(run->trainer))
        tide_progress_line(&run->progress, "%s: nothing was saved: the null device computes nothing",
                           signal_name);
    else if (signal_name != NULL && run->settings.checkpoint == NULL)
        tide_progress_line(&run->progress, "%s: nothing was saved: there is no --checkpoint", signal_name);
    else if (signal_name != NULL && !tide_train_saves_pending(&run->saves))
        tide_progress_line(&run->progress, "%s: nothing was saved: the newest checkpoint is of this step",
                           signal_name);
    return signal_name != NULL && tide_train_saves_pending(&run->saves);
}

/* Evaluates and saves after a step, if it is time for either; both take long, so then it looks for signals
 * again. */
static tide_status between_steps(train_run *run)
{
    const tide_train_settings *settings = &run->settings;
    const tide_train_state *state = tide_trainer_state(run->trainer);
    const uint64_t step = state->step;
    /* epochs begin with the first step on this data */
    const uint64_t evaluated = settings->trainer.epochs > 0 ? step - state->data_first_step : step;
    bool computes = tide_trainer_computes(run->trainer),
         last = step == settings->trainer.hyper.schedule.steps;
    bool evaluate_now = computes && !last && is_every(settings->eval_every, evaluated);
    /* with --keep-best the save of the last step waits for its validation loss */
    bool save_scheduled = is_every(settings->save_every, step) && tide_train_saves_pending(&run->saves);
    bool save_now = (save_asked(run) || save_scheduled) && !(last && settings->keep_best);
    tide_status status = evaluate_now || save_now ? steps_settle(run) : TIDE_OK;
    if (status == TIDE_OK && evaluate_now)
        status = evaluate(run);
    const bool saves_now = save_now || tide_train_saves_best_pending(&run->saves);
    if (status == TIDE_OK && saves_now)
        status = save(run, tide_train_save);
    return status == TIDE_OK && (evaluate_now || saves_now) ? ranks_exchange(run, NULL) : status;
}

static tide_status steps_run(train_run *run)
{
    const tide_train_state *state = tide_trainer_state(run->trainer);
    tide_status status = ranks_exchange(run, NULL);
    while (status == TIDE_OK && state->step < run->settings.trainer.hyper.schedule.steps && run->stop == 0) {
        status = step_run(run);
        if (status == TIDE_OK)
            status = between_steps(run);
    }
    return status;
}

/* ---- 5: the end ---- */

static tide_status sample(train_run *run)
{
    tide_sample_options options;
    char *text = NULL, count[TIDE_UNITS_TEXT_BYTES];
    tide_sample_options_default(&options);
    options.tokens = run->settings.sample;
    const uint64_t begin_ns = tide_pool_now_ns(tide_trainer_pool(run->trainer));
    tide_status status = tide_trainer_sample(run->trainer, &options, &text);
    tide_pool_trace_work(tide_trainer_pool(run->trainer), "sample", begin_ns);
    if (status != TIDE_OK)
        return status;
    tide_progress_line(&run->progress, "sample of %s:\n%s", tide_count_noun(options.tokens, "token", count),
                       text);
    free(text);
    return TIDE_OK;
}

static tide_status ending_save(train_run *run)
{
    uint64_t step = tide_trainer_state(run->trainer)->step;
    if (!tide_trainer_computes(run->trainer))
        return TIDE_OK;
    if (tide_train_saves_pending(&run->saves))
        return save(run, tide_train_save_last);
    if (run->stop != 0 && run->settings.checkpoint == NULL)
        tide_progress_line(&run->progress, "nothing was saved: there is no --checkpoint");
    else if (run->stop != 0)
        tide_progress_line(&run->progress, "nothing was saved: %s",
                           step == 0 ? "no step is done" : "the newest checkpoint is of this step");
    return TIDE_OK;
}

static tide_status export(train_run *run)
{
    const tide_export export = export_of(run);
    const bool compares = run->exporting.is_there;
    tide_making_begin(&run->making, stderr);
    const tide_status status = tide_trainer_export(run->trainer, &export, &run->exporting);
    tide_making_end(&run->making);
    if (status == TIDE_OK && compares)
        tide_progress_line(&run->progress, "%s is there already, and is this run's model: nothing to export",
                           export.out);
    else if (status == TIDE_OK)
        tide_progress_line(&run->progress, "exported %s in %s", export.out,
                           tide_weights_dtype_name(export.dtype));
    return status == TIDE_ERROR_ARGUMENT && !compares ? TIDE_ERROR_STATE
                                                      /* the trained values can't be exported; the command
                                                       * line is right */
                                                      : status;
}

/* Exports although the last save has failed, since --export may be on another disk. Returns the save's
 * failure. */
static tide_status export_in_spite(train_run *run, tide_status failure)
{
    char message[1024];
    (void)snprintf(message, sizeof message, "%s", tide_message());
    (void)export(run);
    return tide_fail(failure, "%s", message);
}

/* Names the rank for which the others waited, if there was one. */
static void straggler_print(train_run *run)
{
    char text[TIDE_STRAGGLER_TEXT_BYTES];
    const double step_seconds = run->progress.sum.seconds / (double)run->progress.lines;
    if (tide_train_ranks_straggler(&run->ranks, step_seconds, text))
        tide_progress_line(&run->progress, "%s", text);
}

static tide_status ending_run(train_run *run)
{
    uint64_t step = tide_trainer_state(run->trainer)->step;
    tide_status status = steps_settle(run);
    if (status == TIDE_OK)
        status = ranks_exchange(run, NULL);
    if (status != TIDE_OK)
        return status;
    if (run->stop != 0)
        tide_progress_line(&run->progress, "%s: stopped after step %llu", tide_stop_signal_name(run->stop),
                           (unsigned long long)step);
    tide_progress_end(&run->progress, &tide_trainer_plan_get(run->trainer)->pool);
    straggler_print(run);
    const bool finished =
        tide_trainer_computes(run->trainer) && step >= run->settings.trainer.hyper.schedule.steps;
    const bool goes_on = finished && run->stop == 0;
    if (goes_on && run->settings.keep_best) /* before the save, which says whether it is the best */
        status = evaluate(run);
    if (status == TIDE_OK)
        status = ending_save(run);
    if (finished && run->settings.export != NULL && run->ranks.rank == 0)
        status = status == TIDE_OK ? export(run) : export_in_spite(run, status);
    else if (status == TIDE_OK && !finished && run->settings.export != NULL)
        tide_progress_line(&run->progress, "nothing was exported: the run is not done");
    if (status == TIDE_OK && goes_on && run->settings.eval_every != 0 && !run->settings.keep_best)
        status = evaluate(run);
    if (status == TIDE_OK && goes_on && run->settings.sample != 0)
        status = sample(run);
    return status;
}

/* Refuses an output that is an input or another output; the message names both options. Called before
 * anything is opened for writing. ARGUMENT, IO, NO_MEMORY. */
static tide_status files_check(const tide_train_settings *settings)
{
    char run[TIDE_CHECKPOINT_PATH_BYTES];
    const char *from = settings->trainer.resume_from;
    const bool resumes = from != NULL && from[0] != '\0' && strlen(from) < sizeof run;
    if (resumes)
        tide_folder_parent(from, run);
    const tide_file_use reads[] = {
        {"--data", settings->trainer.data, TIDE_FILE_DATA},
        {"--eval-data", settings->trainer.eval_data, TIDE_FILE_DATA},
        {"--model", tide_model_is_preset(settings->model) ? NULL : settings->model, TIDE_FILE_MODEL},
        {"--machine", settings->machine, TIDE_FILE_PLAIN},
        {"--checkpoint", settings->checkpoint, TIDE_FILE_RUN},
        {"--resume-from", resumes ? from : NULL, TIDE_FILE_WHOLE},
        {"--resume-from", resumes ? run : NULL, TIDE_FILE_RUN},
    };
    const tide_file_use writes[] = {
        {"--metrics", settings->metrics, TIDE_FILE_PLAIN},
        {"--trace", settings->trace, TIDE_FILE_TRACE},
        {"--checkpoint", settings->checkpoint, TIDE_FILE_PLAIN},
        {"--export", settings->export, TIDE_FILE_PLAIN},
        {"--log-dir", settings->log_folder, TIDE_FILE_LOGS},
    };
    return tide_file_uses_check(command_name, reads, sizeof reads / sizeof reads[0], writes,
                                sizeof writes / sizeof writes[0]);
}

/* With --epochs, finds out how many steps the run has. */
static tide_status epochs_count(train_run *run)
{
    tide_train_settings *settings = &run->settings;
    uint64_t epoch_steps = 0;
    const tide_status status = tide_trainer_adopt_epochs(&run->options, &epoch_steps);
    if (status != TIDE_OK || run->options.epochs == 0)
        return status;
    settings->trainer.hyper.schedule.steps = run->options.hyper.schedule.steps;
    if (settings->eval_every == TIDE_TRAIN_EVAL_EPOCHS)
        settings->eval_every = epoch_steps;
    return TIDE_OK;
}

static tide_status train(train_run *run)
{
    run->freeze = tide_option_texts_join(&run->settings.freeze);
    if (run->freeze == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the patterns of --freeze");
    tide_train_settings_device(&run->settings, run->device, run->no_gpu);
    tide_status status = tide_train_ranks_join(&run->settings, &run->ranks);
    if (status == TIDE_OK)
        status = tide_train_settings_apply(&run->settings, run->device, &run->options);
    if (status == TIDE_OK)
        status = tide_train_ranks_share(&run->ranks, &run->options);
    if (status == TIDE_OK)
        status = files_check(&run->settings);
    if (status == TIDE_OK)
        status = epochs_count(run);
    if (status == TIDE_OK && run->options.data != NULL && run->settings.export != NULL)
        status = tide_data_is_text(run->options.data, run->options.data_encoding, &run->of_bytes);
    if (status == TIDE_OK)
        status = outputs_open(run);
    if (status == TIDE_OK && tide_train_settings_predict(&run->settings))
        status = tide_train_predict_open(&run->settings, &run->options, &run->prediction);
    if (status == TIDE_OK && run->settings.automatic) /* its plans do not see the checkpoint */
        status = tide_trainer_adopt_sums(&run->options);
    if (status == TIDE_OK && run->settings.automatic)
        status = tide_train_auto(&run->settings, &run->options);
    if (status == TIDE_OK)
        status = trainer_open(run);
    if (status != TIDE_OK)
        return status;
    tide_progress_begin(&run->progress, stdout, run->trainer);
    run->progress.quiet = run->ranks.rank != 0;
    if (run->first_step >= run->settings.trainer.hyper.schedule.steps)
        tide_progress_line(&run->progress, "step %llu of %llu is done already",
                           (unsigned long long)run->first_step,
                           (unsigned long long)run->settings.trainer.hyper.schedule.steps);
    status = steps_run(run);
    return status == TIDE_OK ? ending_run(run) : status;
}

/* Called when the failure has been printed: writes the lines of the steps that finished and saves the last of
 * them, if the pool still works. After a loss or norm that is not finite it saves nothing, because --keep
 * would remove an older, good checkpoint for this one. */
static void steps_rescue(train_run *run, tide_status failure)
{
    if (run->trainer == NULL || run->progress.out == NULL)
        return;
    /* False if the device failed, which has been printed. A pool of several ranks has failed for good. */
    const bool settled = run->ranks.ranks == 1 && steps_settle(run) == TIDE_OK;
    if (!settled)
        counters_take(run);
    if (settled && failure != TIDE_ERROR_NONFINITE && tide_train_saves_pending(&run->saves) &&
        save(run, tide_train_save_last) != TIDE_OK)
        tide_progress_warn(&run->progress, "%s", tide_message());
    tide_progress_close(&run->progress);
}

/* Prints at the end how many metrics lines were lost; false if any. */
static bool metrics_arrived(const train_run *run)
{
    bool reader_left = false;
    char lines[TIDE_UNITS_TEXT_BYTES];
    const uint64_t lost = run->metrics != NULL ? tide_metrics_lost(run->metrics, &reader_left) : 0;
    if (lost == 0 || reader_left)
        return true;
    fprintf(stderr, "%s: metrics file %s: %s could not be written\n", command_name, run->settings.metrics,
            tide_count_noun(lost, "line", lines));
    return false;
}

/* Closes trace and metrics. Closing can fail, too (a full disk is noticed late). After one failure has been
 * printed, later ones are not. */
static int outputs_close(train_run *run, int exit_status)
{
    const bool lines_arrived = tide_progress_arrived(&run->progress), metrics_did = metrics_arrived(run);
    if (!lines_arrived || !metrics_did)
        exit_status = TIDE_EXIT_FAILURE;
    uint64_t dropped = 0;
    char events[TIDE_UNITS_TEXT_BYTES];
    tide_status status = tide_trace_finish(run->trace, &dropped);
    if (status != TIDE_OK && exit_status == TIDE_EXIT_OK)
        exit_status = tide_command_failed(command_name, status);
    status = tide_metrics_close(run->metrics);
    if (status != TIDE_OK && exit_status == TIDE_EXIT_OK)
        exit_status = tide_command_failed(command_name, status);
    if (dropped > 0 && exit_status == TIDE_EXIT_OK)
        fprintf(stderr, "%s: warning: trace file %s: dropped %s\n", command_name, run->settings.trace,
                tide_count_noun(dropped, "event", events));
    return exit_status;
}

/* Prints the failure. Before the first step rank 0 alone prints, for all of them, unless this rank has never
 * met the others, or rank 0 is gone or stopped. */
static int failure_print(const train_run *run, tide_status status)
{
    const bool begun = run->progress.out != NULL, alone = run->ranks.comm == NULL;
    if (run->ranks.given_up)
        return TIDE_EXIT_FAILURE;
    if (run->ranks.rank == 0)
        return tide_command_failed(command_name, status);
    fflush(stdout);
    if (alone || begun || !tide_comm_has_told(run->ranks.comm, 0))
        fprintf(stderr, "%s%s\n", run->ranks.name, tide_message());
    return status == TIDE_ERROR_ARGUMENT ? TIDE_EXIT_USAGE : TIDE_EXIT_FAILURE;
}

int tide_command_train(int count, char *const *arguments)
{
    train_run run = {.unigram = NAN, .saves.saved_step = TIDE_TRAIN_UNSAVED};
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_train_help(stdout);
        return TIDE_EXIT_OK;
    }
    tide_status status = tide_train_settings_parse(count, arguments, &run.settings);
    if (status != TIDE_OK)
        return tide_command_failed(command_name, status);
    if (tide_train_ranks_start_here(&run.settings)) {
        status = files_check(&run.settings); /* the ranks empty their logs before they look */
        return status == TIDE_OK ? tide_launch_ranks(run.settings.ranks, count, arguments)
                                 : tide_command_failed(command_name, status);
    }
    tide_stop_install_run();
    tide_launch_take_signals();
    int exit_status = TIDE_EXIT_OK;
    status = train(&run);
    tide_progress_close(&run.progress);
    if (status != TIDE_OK) {
        tide_comm_abort(run.ranks.comm, tide_message());
        exit_status = failure_print(&run, status);
        steps_rescue(&run, status);
    }
    /* the trainer reports its last events to the trace, so the trace is closed later */
    tide_trainer_destroy(run.trainer);
    tide_train_predict_close(&run.prediction);
    exit_status = outputs_close(&run, exit_status);
    /* removes the temporary folder of an export that did not finish */
    tide_export_abandon(tide_files_posix(), &run.exporting);
    if (exit_status != TIDE_EXIT_OK)
        folder_withdraw(&run);
    tide_train_folder_close(&run.folder);
    tide_trace_destroy(run.trace);
    tide_train_ranks_leave(&run.ranks);
    free(run.freeze);
    return exit_status;
}
