#include "tools/train/train_auto.h"

#include "tools/plan/plan_machine.h"
#include "tools/train/stop.h"
#include "tools/tune/choice_text.h"
#include "tools/units.h"

#include <stdlib.h>
#include <string.h>

static const double search_seconds = 10, worth_telling = 0.005;

static bool go_on(void *context, uint32_t done, uint32_t total)
{
    (void)context, (void)done, (void)total;
    return !tide_stop_wanted();
}

/* The candidate with the choices of the command line; NULL: none. */
static const tide_candidate *given_of(const tide_candidate *list, uint32_t count, const tide_choice *given)
{
    for (uint32_t i = 0; i < count; i++) {
        const tide_choice *choice = &list[i].choice;
        if (choice->chunk_bytes == given->chunk_bytes && choice->recompute == given->recompute &&
            choice->placement == given->placement && choice->prefetch == given->prefetch)
            return &list[i];
    }
    return NULL;
}

static void tell(const tide_candidate *list, uint32_t count, const tide_choice *given)
{
    const tide_candidate *best = &list[0], *was = given_of(list, count, given);
    const tide_performance *performance = &best->performance;
    char size[TIDE_UNITS_TEXT_BYTES], ways[TIDE_UNITS_TEXT_BYTES];
    printf("auto: chunks of %s, recompute %s (%u of %u blocks), optimizer %s, prefetch %s\n",
           tide_size_format_exact(best->choice.chunk_bytes, size),
           tide_recompute_word(best->choice.recompute), performance->plan.recomputed_blocks,
           performance->plan.blocks, tide_placement_word(best->choice.placement),
           best->choice.prefetch ? "on" : "off");
    printf("auto: of %s the fastest by prediction: %.3g s a step, compute stands still %.1f%%, bound by %s",
           tide_count_noun(count, "choice", ways), performance->step.seconds,
           100 * performance->step.stall_seconds / performance->step.seconds,
           tide_resource_name(performance->bound));
    if (was != NULL && !was->fits)
        printf("; as given it would not fit");
    else if (was != NULL && was->performance.step.seconds > (1 + worth_telling) * performance->step.seconds)
        printf("; as given %.3g s", was->performance.step.seconds);
    printf("\n");
    fflush(stdout);
}

static tide_status choose(const tide_train_settings *settings, const tide_plan_machine *machine,
                          tide_trainer_options *options, tide_candidate *list)
{
    const tide_choice given = tide_choice_of(options);
    const tide_tune_options how = {.kept = settings->given, .seconds_most = search_seconds, .go_on = go_on};
    tide_trainer_options planned = *options;
    uint32_t count = 0;
    tide_plan_machine_memory(machine, 0, &planned);
    const tide_status status = tide_tune(&planned, &machine->profile, &how, list, &count);
    if (status != TIDE_OK)
        return status;
    if (count == 0 || !list[0].fits) {
        printf("auto: nothing that fits was found %s; as given\n",
               tide_stop_wanted() ? "yet" : "in ten seconds");
        return TIDE_OK;
    }
    tide_choice_apply(&list[0].choice, options);
    tell(list, count, &given);
    return TIDE_OK;
}

tide_status tide_train_auto(const tide_train_settings *settings, tide_trainer_options *options)
{
    tide_plan_machine machine;
    tide_candidate *list = calloc(TIDE_CANDIDATES_MAX, sizeof *list);
    if (list == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "--auto: no memory for %d choices", TIDE_CANDIDATES_MAX);
    tide_status status = tide_plan_machine_find("this", settings, options, &machine);
    if (status == TIDE_OK)
        status = choose(settings, &machine, options, list);
    tide_plan_machine_free(&machine);
    free(list);
    return status;
}
