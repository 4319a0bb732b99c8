/* tidepool tune: predicts all choices for a run, measures real steps of the best ones, and prints the command
 * that trains with the best.
 *
 *   1. Turn the command line into the run's options, and find the machine; measure it if it is this one.
 *   2. Search (src/perf/tune.h); on a terminal a bar shows the progress.
 *   3. Measure real steps of the best few choices.
 *   4. Print the table and the command, predict changes that alter the training's results, and draw the plot.
 *
 * A signal ends 2, 3 and the predictions in 4; the command then prints its findings so far.
 */
#include "offload/module.h"
#include "tools/command.h"
#include "tools/plan/plan_machine.h"
#include "tools/plan/proposal_text.h"
#include "tools/train/file_use.h"
#include "tools/train/stop.h"
#include "tools/tune/choice_text.h"
#include "tools/tune/tune_confirm.h"
#include "tools/tune/tune_json.h"
#include "tools/tune/tune_options.h"
#include "tools/tune/tune_plot.h"
#include "tools/units.h"

#include <errno.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char command_name[] = "tidepool tune";

enum { ROWS_MOST = 12, BAR_CELLS = 40 };

static const double noise_part = 0.02;

typedef struct tuning {
    tide_tune_settings settings;
    tide_plan_machine machine;
    tide_trainer_options options; /* the run's */
    tide_candidate candidates[TIDE_CANDIDATES_MAX];
    tide_confirmed confirmed[TIDE_CANDIDATES_MAX];
    uint32_t count;
    uint32_t best; /* index of the chosen candidate */
    bool bar;      /* stderr is a terminal, so the bar is drawn */
} tuning;

/* ---- the bar ---- */

static void bar_draw(const tuning *run, const char *what, uint32_t done, uint32_t total)
{
    char cells[BAR_CELLS + 1];
    if (!run->bar)
        return;
    const uint32_t full = total > 0 && done < total ? BAR_CELLS * done / total : BAR_CELLS;
    memset(cells, '#', full);
    memset(cells + full, '.', BAR_CELLS - full);
    cells[BAR_CELLS] = '\0';
    fprintf(stderr, "\r\033[K[%s] %s %u of %u", cells, what, done, total);
    fflush(stderr);
}

static void bar_clear(const tuning *run)
{
    if (run->bar)
        fputs("\r\033[K", stderr);
}

static bool go_on(void *context, uint32_t done, uint32_t total)
{
    bar_draw(context, "predicted", done, total > done ? total : done + 1);
    return !tide_stop_wanted();
}

/* ---- 1: run and machine ---- */

static tide_status run_open(tuning *run)
{
    const tide_tune_settings *settings = &run->settings;
    const tide_train_settings *train = &settings->run;
    tide_status status = tide_train_settings_apply(train, "null", &run->options);
    if (status == TIDE_OK)
        status = tide_plan_machine_find(settings->machine, train, &run->options, &run->machine);
    if (status == TIDE_OK)
        tide_plan_machine_memory(&run->machine, settings->ram_bytes, &run->options);
    return status;
}

/* ---- 2: the search ---- */

static tide_status search(tuning *run)
{
    const tide_tune_settings *settings = &run->settings;
    const tide_tune_options how = {
        .kept = settings->run.given,
        .go_on = go_on,
        .context = run,
    };
    const tide_status status =
        tide_tune(&run->options, &run->machine.profile, &how, run->candidates, &run->count);
    bar_clear(run);
    return status;
}

/* ---- 3: real steps ---- */

/* Chooses the first candidate, by prediction, whose real steps are as fast as the fastest ones, within the
 * noise of measuring. */
static void best_choose(tuning *run)
{
    double least = 0;
    for (uint32_t i = 0; i < run->count; i++) {
        const double seconds = run->confirmed[i].step_seconds;
        if (seconds > 0 && (least <= 0 || seconds < least))
            least = seconds;
    }
    run->best = 0;
    while (least > 0 && (run->confirmed[run->best].step_seconds <= 0 ||
                         run->confirmed[run->best].step_seconds > (1 + noise_part) * least))
        run->best++;
}

static tide_status confirm(tuning *run)
{
    tide_trainer_options real = run->options;
    tide_status status = TIDE_OK;
    const uint32_t wanted = run->settings.confirm;
    real.pool.device = run->machine.device;
    real.pool.free_memory_bytes = run->settings.ram_bytes;
    for (uint32_t i = 0; i < wanted && i < run->count && run->candidates[i].fits && status == TIDE_OK; i++) {
        if (tide_stop_wanted())
            break;
        bar_draw(run, "confirmed", i, wanted);
        status = tide_tune_confirm(&real, &run->candidates[i].choice, run->settings.confirm_steps,
                                   &run->confirmed[i]);
        if (status == TIDE_ERROR_BUDGET ||
            status == TIDE_ERROR_NO_MEMORY) { /* other processes have taken memory since the prediction */
            bar_clear(run);
            fprintf(stderr, "%s: not confirmed: %s\n", command_name, tide_message());
            status = TIDE_OK;
        }
    }
    bar_clear(run);
    best_choose(run);
    return status;
}

/* ---- 4: the results ---- */

static void head_print(const tuning *run)
{
    if (run->machine.no_gpu[0] != '\0')
        printf("auto takes the host: %s\n", run->machine.no_gpu);
    printf("%s on %s; %s\n", run->options.model.name, run->machine.profile.name, run->machine.profile.source);
    fflush(stdout);
}

static void row_print(const tuning *run, uint32_t index)
{
    const tide_candidate *candidate = &run->candidates[index];
    const tide_choice *choice = &candidate->choice;
    const tide_trainer_plan *plan = &candidate->performance.plan;
    const tide_pool_counters *step = &candidate->performance.step;
    const tide_confirmed *real = &run->confirmed[index];
    char size[TIDE_UNITS_TEXT_BYTES], recompute[48], confirmed[48] = "";
    snprintf(recompute, sizeof recompute, "%s (%u of %u)", tide_recompute_word(choice->recompute),
             plan->recomputed_blocks, plan->blocks);
    if (real->steps > 0)
        snprintf(confirmed, sizeof confirmed, "%9.4g s %5.1f%%", real->step_seconds,
                 100 * real->stall_seconds / real->step_seconds);
    printf("%c %9s  %-17s %-9s %-8s %9.4g s %9.0f %6.1f%%  %s\n", index == run->best ? '*' : ' ',
           tide_size_format(choice->chunk_bytes, size), recompute, tide_placement_word(choice->placement),
           choice->prefetch ? "on" : "off", step->seconds, candidate->performance.tokens_per_second,
           step->seconds > 0 ? 100 * step->stall_seconds / step->seconds : 0, confirmed);
}

static void table_print(const tuning *run)
{
    uint32_t fitting = 0, shown = 0;
    char count[TIDE_UNITS_TEXT_BYTES];
    for (uint32_t i = 0; i < run->count; i++)
        fitting += run->candidates[i].fits;
    printf("%s predicted", tide_count_noun(run->count, "choice", count));
    if (fitting < run->count)
        printf(", of which %u would not fit", run->count - fitting);
    printf("\n");
    printf("  %9s  %-17s %-9s %-8s %11s %9s %7s  %s\n", "chunk", "recomputed", "optimizer", "prefetch",
           "predicted", "tokens/s", "stall", "in real steps");
    for (uint32_t i = 0; i < fitting && (shown < ROWS_MOST || run->confirmed[i].steps > 0); i++, shown++)
        row_print(run, i);
    if (shown < fitting)
        printf("  ... and %u slower ones\n", fitting - shown);
}

/* The command line that trains with the best choice; NULL: no memory. */
static char *command_of(const tuning *run, int count, char *const *arguments)
{
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    if (out == NULL)
        return NULL;
    tide_tune_command_write(count, arguments, &run->candidates[run->best],
                            run->settings.ram_bytes != 0 || !run->machine.is_this, out);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

static void found_print(const tide_tuned *found, const tuning *run)
{
    if (found->stopped)
        printf("%s: this is what was found so far\n", tide_stop_name());
    table_print(run);
    printf("the best%s:\n  %s\n", run->confirmed[run->best].steps > 0 ? ", in real steps" : " by prediction",
           found->command);
    fflush(stdout); /* predicting the changes takes a while */
}

static void others_print(const tide_tuned *found)
{
    if (found->stopped)
        printf("%s: not all that changes numerics was tried\n", tide_stop_name());
    if (found->other_count > 0)
        printf("faster, but it changes numerics (nothing of this is chosen):\n");
    for (uint32_t i = 0; i < found->other_count; i++) {
        char what[TIDE_PROPOSAL_TEXT_BYTES], option[TIDE_PROPOSAL_OPTION_BYTES];
        tide_proposal_what(&found->others[i], NULL, what);
        tide_proposal_option(&found->others[i], NULL, option);
        printf("  %+5.0f%% tokens/s  %s: %s\n", 100 * found->others[i].gain, what, option);
    }
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = ((const tide_tune_point *)a)->chunk_bytes,
                   y = ((const tide_tune_point *)b)->chunk_bytes;
    return (x > y) - (x < y);
}

/* Draws the best choice of each chunk size. The candidates are sorted, the best first. */
static tide_status plot(const tuning *run)
{
    tide_tune_point points[TIDE_TUNE_POINTS_MAX];
    uint32_t count = 0;
    char title[256];
    for (uint32_t i = 0; i < run->count && run->candidates[i].fits && count < TIDE_TUNE_POINTS_MAX; i++) {
        const tide_candidate *candidate = &run->candidates[i];
        uint32_t place = 0;
        while (place < count && points[place].chunk_bytes != candidate->choice.chunk_bytes)
            place++;
        if (place < count)
            continue;
        points[count++] =
            (tide_tune_point){candidate->choice.chunk_bytes, candidate->performance.step.seconds,
                              candidate->performance.step.stall_seconds, run->confirmed[i].step_seconds};
    }
    qsort(points, count, sizeof points[0], compare);
    snprintf(title, sizeof title, "%s on %s", run->options.model.name, run->machine.profile.name);
    return tide_tune_plot(run->settings.plot, title, points, count);
}

/* Predicts, for the best choice, the changes that are faster but alter the training's results. */
static uint32_t others_find(const tuning *run, tide_proposal others[TIDE_PROPOSALS])
{
    const tide_candidate *best = &run->candidates[run->best];
    tide_trainer_options options = run->options;
    tide_choice_apply(&best->choice, &options);
    return tide_advise_trainer(&options, &run->machine.profile,
                               &(tide_performance_how){.go_on = tide_stop_not_wanted}, &best->performance,
                               true, others);
}

/* Reports that the search ended before it found a choice that fits. */
static tide_status nothing_tell(const tuning *run, const tide_tuned *found)
{
    if (run->settings.json)
        return tide_tune_print_json(found, stdout);
    printf("%s: nothing was found yet\n", found->stopped ? tide_stop_name() : "stopped");
    return TIDE_OK;
}

static tide_status found_tell(const tuning *run, int count, char *const *arguments)
{
    tide_proposal others[TIDE_PROPOSALS];
    tide_tuned found = {.model = run->options.model.name,
                        .machine = &run->machine,
                        .stopped = tide_stop_wanted(),
                        .candidates = run->candidates,
                        .confirmed = run->confirmed,
                        .count = run->count,
                        .best = run->best,
                        .others = others};
    if (run->count == 0 || !run->candidates[0].fits)
        return nothing_tell(run, &found);
    char *command = command_of(run, count, arguments);
    if (command == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for a command");
    found.command = command;
    if (!run->settings.json)
        found_print(&found, run);
    const bool was_stopped = found.stopped;
    found.other_count = was_stopped ? 0 : others_find(run, others);
    found.stopped = tide_stop_wanted();
    tide_status status = TIDE_OK;
    if (run->settings.json)
        status = tide_tune_print_json(&found, stdout);
    else if (!was_stopped)
        others_print(&found);
    free(command);
    return status == TIDE_OK && run->settings.plot != NULL ? plot(run) : status;
}

/* Checks before the search that the plot can be written, without creating the file. */
static tide_status plot_check(const tide_tune_settings *settings)
{
    const char *path = settings->plot, *model = settings->run.model;
    const tide_file_use reads[] = {{"--data", settings->run.trainer.data, TIDE_FILE_DATA},
                                   {"--model", tide_model_is_preset(model) ? NULL : model, TIDE_FILE_MODEL},
                                   {"--machine", settings->machine, TIDE_FILE_PLAIN}},
                        write = {"--plot", path, TIDE_FILE_PLAIN};
    const tide_status status =
        tide_file_uses_check(command_name, reads, sizeof reads / sizeof reads[0], &write, 1);
    if (status != TIDE_OK)
        return status;
    if (path == NULL || access(path, W_OK) == 0)
        return TIDE_OK;
    const int why = errno;
    char *copy = why == ENOENT ? strdup(path) : NULL;
    const bool can = copy != NULL && access(dirname(copy), W_OK | X_OK) == 0;
    const int why_not = errno;
    free(copy);
    return can ? TIDE_OK
               : tide_fail(TIDE_ERROR_IO, "plot %s: can't be written: %s", path,
                           strerror(why == ENOENT ? why_not : why));
}

static tide_status tune(tuning *run, int count, char *const *arguments)
{
    tide_status status = plot_check(&run->settings);
    if (status == TIDE_OK)
        status = run_open(run);
    if (status != TIDE_OK)
        return status;
    if (!run->settings.json)
        head_print(run);
    status = search(run);
    if (status == TIDE_OK && run->settings.confirm > 0)
        status = confirm(run);
    return status == TIDE_OK ? found_tell(run, count, arguments) : status;
}

int tide_command_tune(int count, char *const *arguments)
{
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(&tide_tune_table, stdout);
        return TIDE_EXIT_OK;
    }
    tuning *run = calloc(1, sizeof *run);
    tide_status status = run == NULL
                             ? tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to tune (%zu bytes)", sizeof *run)
                             : tide_tune_settings_parse(count, arguments, &run->settings);
    if (status == TIDE_OK) {
        run->bar = isatty(fileno(stderr)) != 0;
        tide_stop_install();
        status = tune(run, count, arguments);
        tide_plan_machine_free(&run->machine);
    }
    free(run);
    return status == TIDE_OK ? TIDE_EXIT_OK : tide_command_failed(command_name, status);
}
