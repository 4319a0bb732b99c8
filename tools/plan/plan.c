/* tidepool plan: predicts a run's memory and step time from its command line.
 *
 *   1. Turn the command line into the run's options, as tidepool train does, and find the machine; measure it
 *      if it is this one.
 *   2. Create the run on the null device, and let that simulate steps (src/perf).
 *   3. Print the prediction, then the proposals, as they are found.
 */
#include "src/model/family.h"
#include "src/model/params.h"
#include "tools/command.h"
#include "tools/plan/accounting.h"
#include "tools/plan/plan_machine.h"
#include "tools/plan/plan_options.h"
#include "tools/plan/plan_print.h"
#include "tools/train/stop.h"
#include "tools/units.h"

#include <stdlib.h>
#include <string.h>

static const char command_name[] = "tidepool plan";

typedef struct planning {
    tide_plan_settings settings;
    tide_plan_machine machine;
    tide_trainer_options options; /* the run's; the defaults that do not depend on memory are filled in */
} planning;

/* ---- 1: run and machine ---- */

static bool has_ranks(const planning *run)
{
    return run->options.pool.ranks.count > 1;
}

/* Finds the machine; if it is this one, measures it with one rank. */
static tide_status machine_open(planning *run)
{
    tide_train_settings one = run->settings.run;
    tide_trainer_options options = run->options;
    if (has_ranks(run)) {
        tide_pool_options usual;
        tide_pool_options_default(&usual);
        one.trainer.pool.ranks = options.pool.ranks = usual.ranks;
        one.trainer.pool.chunk_bytes = options.pool.chunk_bytes = usual.chunk_bytes;
    }
    return tide_plan_machine_find(run->settings.machine, &one, &options, &run->machine);
}

static tide_status run_open(planning *run)
{
    const tide_plan_settings *settings = &run->settings;
    const tide_train_settings *train = &settings->run;
    tide_status status = tide_train_settings_apply(train, "null", &run->options);
    if (status == TIDE_OK)
        status = machine_open(run);
    if (status == TIDE_OK)
        status = tide_performance_resolve(&run->options);
    if (status != TIDE_OK)
        return status;
    tide_plan_machine_memory(&run->machine, settings->ram_bytes, &run->options);
    return TIDE_OK;
}

/* ---- 2 and 3: one run ---- */

static tide_plan plan_of(const planning *run)
{
    return (tide_plan){.options = &run->options,
                       .profile = &run->machine.profile,
                       .device = run->machine.device,
                       .no_gpu = run->machine.no_gpu};
}

/* Predicts the run. A run that does not fit its budgets is an answer; any other error is a failure. */
static tide_status performance(const tide_trainer_options *options, const tide_machine_profile *profile,
                               tide_plan *plan)
{
    const bool alone = options->pool.ranks.count <= 1;
    const tide_status status = alone ? tide_performance_make(options, profile, NULL, &plan->performance)
                                     : tide_performance_memory(options, profile, &plan->performance);
    plan->fits = status == TIDE_OK;
    if (status != TIDE_ERROR_BUDGET)
        return status;
    snprintf(plan->refusal, sizeof plan->refusal, "%s", tide_message());
    return TIDE_OK;
}

static void advise(const planning *run, tide_plan *plan)
{
    const tide_performance_how how = {.go_on = tide_stop_not_wanted};
    if (plan->fits && has_ranks(run))
        return;
    if (plan->fits) {
        plan->free_batch = tide_advise_free_batch(&run->options, plan->profile, &how, &plan->performance);
        plan->has_free_batch = !tide_stop_wanted();
        plan->proposal_count = tide_advise_trainer(&run->options, plan->profile, &how, &plan->performance,
                                                   false, plan->proposals);
    } else {
        plan->proposal_count = tide_advise_fit(&run->options, plan->profile, plan->proposals);
    }
}

static tide_status one_print(const planning *run, tide_plan *plan)
{
    if (run->settings.json) {
        advise(run, plan);
        return tide_plan_print_json(plan, stdout);
    }
    if (run->machine.no_gpu[0] != '\0')
        printf("auto takes the host: %s\n", run->machine.no_gpu);
    if (!plan->fits) {
        advise(run, plan);
        tide_plan_print_refusal(plan, stdout);
        return TIDE_OK;
    }
    const tide_status status = tide_plan_print_memory(plan, stdout);
    if (status != TIDE_OK)
        return status;
    if (has_ranks(run)) {
        tide_plan_print_ranks(plan, stdout);
        return TIDE_OK;
    }
    tide_plan_print_time(plan, stdout);
    fflush(stdout); /* finding the proposals takes a while */
    advise(run, plan);
    tide_plan_print_advice(plan, stdout);
    return TIDE_OK;
}

/* Prints the plan of one run. Sets *fits, which also becomes the exit status. */
static tide_status one_plan(planning *run, bool *fits)
{
    static tide_plan plan; /* too large for the stack */
    plan = plan_of(run);
    tide_status status = performance(&run->options, &run->machine.profile, &plan);
    if (status == TIDE_OK)
        status = one_print(run, &plan);
    *fits = plan.fits;
    return status;
}

/* ---- several budgets ---- */

static tide_status row_print(const planning *run, const char *name, const tide_plan *plan, bool *begun)
{
    if (run->settings.json)
        return tide_plan_print_json(plan, stdout);
    if (!*begun)
        tide_plan_print_row_head(stdout);
    *begun = true;
    tide_plan_print_row(name, &plan->performance, plan->fits ? NULL : plan->refusal, stdout);
    fflush(stdout);
    return TIDE_OK;
}

/* Parses "8GiB" or "8GiB+64GiB". */
static tide_status budgets_parse(const char *text, uint64_t *device, uint64_t *host)
{
    char first[64];
    const size_t length = strcspn(text, "+");
    *host = 0;
    if (length < sizeof first) {
        memcpy(first, text, length);
        first[length] = '\0';
        if (tide_size_parse(first, device) && *device > 0 &&
            (text[length] == '\0' || (tide_size_parse(text + length + 1, host) && *host > 0)))
            return TIDE_OK;
    }
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s: --compare %s: must be sizes, as 8GiB,16GiB or 8GiB+64GiB",
                     command_name, text);
}

static tide_status compared_print(const planning *run, const char *text, bool *begun, bool *fits)
{
    static tide_plan plan; /* too large for the stack */
    tide_trainer_options options = run->options;
    uint64_t device, host;
    tide_status status = budgets_parse(text, &device, &host);
    if (status != TIDE_OK)
        return status;
    options.pool.device_memory_bytes = device;
    if (host != 0)
        options.pool.host_memory_bytes = host;
    plan = plan_of(run);
    plan.options = &options;
    status = performance(&options, &run->machine.profile, &plan);
    *fits = *fits || plan.fits;
    return status == TIDE_OK ? row_print(run, text, &plan, begun) : status;
}

/* Calls compared_print, or only checks the syntax if not `play`, for each budget of --compare. */
static tide_status budgets_visit(const planning *run, bool play, bool *fits)
{
    char *list = strdup(run->settings.compare), *rest = list;
    bool begun = false;
    uint64_t device, host;
    tide_status status = TIDE_OK;
    if (list == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the budgets of --compare");
    for (char *item; status == TIDE_OK && (item = strsep(&rest, ",")) != NULL;)
        status = play ? compared_print(run, item, &begun, fits) : budgets_parse(item, &device, &host);
    free(list);
    return status;
}

/* ---- the largest model of a family ---- */

/* Lists the presets of the model's family by layers x width^2, which rises with the number of params; the
 * smallest first. */
static uint32_t family_list(const tide_model_config *model, const tide_model_config *list[], uint32_t most)
{
    uint32_t count = 0;
    for (const tide_model_config *preset = model->family->presets; preset->family != NULL && count < most;
         preset++) {
        uint32_t place = count++;
        for (; place > 0 &&
               list[place - 1]->layers * (uint64_t)list[place - 1]->width * list[place - 1]->width >
                   preset->layers * (uint64_t)preset->width * preset->width;
             place--)
            list[place] = list[place - 1];
        list[place] = preset;
    }
    return count;
}

static tide_trainer_options options_with(const planning *run, const tide_model_config *model, uint32_t layers)
{
    tide_trainer_options options = run->options;
    options.model = *model;
    tide_model_config_complete(&options.model);
    options.model.layers = layers;
    if (run->settings.run.vocab_size != 0)
        options.model.vocab_size = run->settings.run.vocab_size;
    /* keep the number of sequences, as long as this model allows */
    if (options.seq_len > options.model.context) {
        options.global_batch_tokens = options.global_batch_tokens / options.seq_len * options.model.context;
        options.seq_len = options.model.context;
    }
    return options;
}

/* Sets *fitting to the largest number of the model's blocks that fit; 0: not even one. An error other than
 * too little memory is a failure. */
static tide_status layers_fitting(const planning *run, const tide_model_config *model, uint32_t *fitting)
{
    uint32_t refused = model->layers + 1;
    *fitting = 0;
    while (refused - *fitting > 1) {
        const uint32_t middle = *fitting + (refused - *fitting) / 2;
        const tide_trainer_options options = options_with(run, model, middle);
        tide_performance memory;
        const tide_status status = tide_performance_memory(&options, &run->machine.profile, &memory);
        if (status != TIDE_OK && status != TIDE_ERROR_BUDGET)
            return status;
        *(status == TIDE_OK ? fitting : &refused) = middle;
    }
    return TIDE_OK;
}

static tide_status largest_print(const planning *run, const tide_model_config *model, uint32_t layers,
                                 bool *begun)
{
    static tide_plan plan; /* too large for the stack */
    tide_trainer_options options = options_with(run, model, layers);
    char name[96], whole[64] = "";
    if (layers < model->layers)
        snprintf(whole, sizeof whole, ", %u of %u blocks", layers, model->layers);
    plan = plan_of(run);
    plan.options = &options;
    snprintf(name, sizeof name, "%s%s", model->name, whole);
    snprintf(options.model.name, sizeof options.model.name, "%.*s", (int)sizeof options.model.name - 1, name);
    const tide_status status = performance(&options, &run->machine.profile, &plan);
    return status == TIDE_OK ? row_print(run, name, &plan, begun) : status;
}

static tide_status none_print(const planning *run)
{
    static tide_plan plan; /* too large for the stack */
    plan = plan_of(run);
    snprintf(plan.refusal, sizeof plan.refusal, "no model of the family %s fits",
             run->options.model.family->name);
    if (run->settings.json)
        return tide_plan_print_json(&plan, stdout);
    printf("%s\n", plan.refusal);
    return TIDE_OK;
}

/* Prints every preset of the family that fits and, for the first one that does not, its largest number of
 * blocks that fit. */
static tide_status largest(const planning *run, bool *fits)
{
    enum { PRESETS_MAX = 32 };
    const tide_model_config *list[PRESETS_MAX];
    const uint32_t count = family_list(&run->options.model, list, PRESETS_MAX);
    bool begun = false;
    tide_status status = TIDE_OK;
    *fits = false;
    if (count == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: --largest: the family %s has no presets", command_name,
                         run->options.model.family->name);
    for (uint32_t i = 0; i < count && status == TIDE_OK; i++) {
        uint32_t layers;
        status = layers_fitting(run, list[i], &layers);
        if (status != TIDE_OK)
            break;
        if (layers > 0)
            status = largest_print(run, list[i], layers, &begun);
        *fits = *fits || layers > 0;
        if (layers < list[i]->layers)
            break;
    }
    if (!*fits && status == TIDE_OK)
        status = none_print(run);
    return status;
}

/* ---- accounting ---- */

static tide_status accounting_print(const tide_plan_settings *settings)
{
    static const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32};
    static const char *const papers[] = {"", "ZeRO", "tidepool", "PatrickStar"};
    double params = settings->params;
    tide_accounting_line line;
    if (params <= 0) {
        tide_trainer_options options;
        const tide_status status = tide_train_settings_apply(&settings->run, "null", &options);
        if (status != TIDE_OK)
            return status;
        params = (double)tide_model_element_count(&options.model);
    }
    printf("%s: model data of %.4g parameters, on each of %llu ranks\n", papers[settings->accounting], params,
           (unsigned long long)settings->ranks);
    for (uint32_t i = 0; tide_accounting_at((tide_accounting)settings->accounting, params, settings->ranks,
                                            dtypes[settings->run.dtype], i, &line);
         i++)
        printf("  %-28s %10.1f GB\n", line.what, line.bytes / 1e9);
    return TIDE_OK;
}

/* ---- the command ---- */

static tide_status plan(planning *run, bool *fits)
{
    *fits = true;
    if (run->settings.accounting != TIDE_ACCOUNTING_NONE)
        return accounting_print(&run->settings);
    tide_status status = run->settings.compare != NULL ? budgets_visit(run, false, fits) : TIDE_OK;
    if (status == TIDE_OK)
        status = run_open(run);
    if (status != TIDE_OK)
        return status;
    *fits = false;
    if (run->settings.compare != NULL)
        return budgets_visit(run, true, fits);
    return run->settings.largest ? largest(run, fits) : one_plan(run, fits);
}

int tide_command_plan(int count, char *const *arguments)
{
    static planning run; /* too large for the stack */
    bool fits = true;
    if (tide_options_asked(count, arguments, "--help") || tide_options_asked(count, arguments, "-h")) {
        tide_options_help(&tide_plan_table, stdout);
        return TIDE_EXIT_OK;
    }
    tide_status status = tide_plan_settings_parse(count, arguments, &run.settings);
    if (status == TIDE_OK)
        status = plan(&run, &fits);
    tide_plan_machine_free(&run.machine);
    if (status != TIDE_OK)
        return tide_command_failed(command_name, status);
    return fits ? TIDE_EXIT_OK : TIDE_EXIT_FAILURE;
}
