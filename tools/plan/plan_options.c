#include "tools/plan/plan_options.h"

#include "src/model/family.h"

#include <string.h>

static const tide_option_table *const table = &tide_plan_table;

/* If --largest comes with a family instead of a model, replaces it by the family's last preset. */
static void model_resolve(tide_plan_settings *settings)
{
    enum { SEQUENCE_MOST = 4096 /* as for a model from a folder */ };
    tide_train_settings *run = &settings->run;
    const tide_family *family = run->model != NULL ? tide_model_family_find(run->model) : NULL;
    if (run->model == NULL)
        run->model = "gpt2-nano"; /* any model: --accounting with --params does not use it */
    if (!settings->largest || family == NULL || family->presets->family == NULL ||
        tide_model_is_preset(run->model))
        return;
    const tide_model_config *last = family->presets;
    while (last[1].family != NULL)
        last++;
    run->model = last->name;
    if (run->trainer.seq_len == 0)
        run->trainer.seq_len = last->context < SEQUENCE_MOST ? last->context : SEQUENCE_MOST;
}

static tide_status check(const tide_plan_settings *settings)
{
    if (settings->accounting == 0 && settings->params > 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool plan: --params needs --accounting");
    if (settings->accounting == 0 && settings->ranks > TIDE_SUM_GROUPS_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool plan: --ranks %llu: at most %d without --accounting",
                         (unsigned long long)settings->ranks, TIDE_SUM_GROUPS_MAX);
    if (settings->accounting == 0 && settings->ranks > 1 && (settings->largest || settings->compare != NULL))
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool plan: %s is of one rank: without --ranks",
                         settings->largest ? "--largest" : "--compare");
    if (settings->run.model == NULL && !(settings->accounting != 0 && settings->params > 0))
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool plan: --model is required%s",
                         settings->accounting != 0 ? ", or --params" : "");
    if (settings->accounting != 0 && (settings->largest || settings->compare != NULL))
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool plan: %s and --accounting: give one of them",
                         settings->largest ? "--largest" : "--compare");
    const tide_ranks_options *ranks = &settings->run.trainer.pool.ranks;
    if (ranks->reshard != TIDE_RESHARD_AUTO && ranks->zero_stage < 3)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "tidepool plan: --reshard-after-forward is of --zero-stage 3, not of %u",
                         ranks->zero_stage);
    if (settings->largest && settings->compare != NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tidepool plan: --largest and --compare: give one of them");
    return tide_train_settings_plan_check(&settings->run, "tidepool plan");
}

tide_status tide_plan_settings_parse(int count, char *const *arguments, tide_plan_settings *settings)
{
    bool given[TIDE_OPTIONS_MAX] = {false};
    tide_plan_settings parsed = {0};
    tide_train_settings_default(&parsed.run);
    tide_status status = tide_options_parse(table, count, arguments, &parsed, given);
    if (status == TIDE_OK)
        status = check(&parsed);
    if (status == TIDE_OK && (parsed.ranks == 1 || parsed.accounting != 0) &&
        (tide_options_given(table, given, "--zero-stage") ||
         tide_options_given(table, given, "--reshard-after-forward")))
        status = tide_fail(
            TIDE_ERROR_ARGUMENT, "tidepool plan: %s needs --ranks N of 2 or more, without --accounting",
            tide_options_given(table, given, "--zero-stage") ? "--zero-stage" : "--reshard-after-forward");
    if (status == TIDE_OK && parsed.accounting == 0) {
        parsed.run.trainer.pool.ranks.count = (uint32_t)parsed.ranks;
        if (parsed.ranks > 1 && !tide_options_given(table, given, "--chunk-size"))
            parsed.run.trainer.pool.chunk_bytes = 0; /* the planner chooses */
    }
    if (status == TIDE_OK && parsed.accounting != 0 &&
        (tide_options_given(table, given, "--machine") || tide_options_given(table, given, "--ram") ||
         parsed.json))
        status =
            tide_fail(TIDE_ERROR_ARGUMENT,
                      "tidepool plan: --accounting is of a model alone: without --machine, --ram and --json");
    if (status != TIDE_OK)
        return status;
    model_resolve(&parsed);
    status = tide_train_settings_find_weights(&parsed.run);
    if (status == TIDE_OK)
        *settings = parsed;
    return status;
}
