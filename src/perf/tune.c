#include "src/perf/tune.h"

#include "base/clock.h"
#include "offload/module.h"

#include <stdio.h>
#include <string.h>

enum { REFINED_CHUNKS = 2, REFINED_EACH = 10, MESSAGE_BYTES = 1024 };

static const double equal_part = 0.005;

typedef struct tuning {
    const tide_trainer_options *options;
    const tide_machine_profile *profile;
    const tide_tune_options *how;
    tide_candidate *candidates;
    uint32_t count, total;
    double begun; /* when the search began, in seconds of the monotonic clock */
    bool is_over;
    char refusal[MESSAGE_BYTES]; /* the message of the run as given, if it does not fit */
} tuning;

tide_choice tide_choice_of(const tide_trainer_options *options)
{
    return (tide_choice){.chunk_bytes = options->pool.chunk_bytes,
                         .recompute = options->recompute,
                         .placement = options->pool.placement,
                         .prefetch = options->pool.prefetch};
}

void tide_choice_apply(const tide_choice *choice, tide_trainer_options *options)
{
    options->pool.chunk_bytes = choice->chunk_bytes;
    options->recompute = choice->recompute;
    options->pool.placement = choice->placement;
    options->pool.prefetch = choice->prefetch;
}

/* Called before each prediction, and between its steps. */
static bool may_go_on(void *context)
{
    tuning *of = context;
    const tide_tune_options *how = of->how;
    if (of->count == TIDE_CANDIDATES_MAX ||
        (how->seconds_most > 0 && of->count > 0 && tide_clock_seconds() - of->begun > how->seconds_most))
        of->is_over = true;
    if (!of->is_over && how->go_on != NULL && !how->go_on(how->context, of->count, of->total))
        of->is_over = true;
    return !of->is_over;
}

static uint32_t differences(const tide_choice *a, const tide_choice *b)
{
    return (uint32_t)(a->chunk_bytes != b->chunk_bytes) + (uint32_t)(a->recompute != b->recompute) +
           (uint32_t)(a->placement != b->placement) + (uint32_t)(a->prefetch != b->prefetch);
}

static bool was_tried(const tuning *of, const tide_choice *choice)
{
    for (uint32_t i = 0; i < of->count; i++)
        if (differences(&of->candidates[i].choice, choice) == 0)
            return true;
    return false;
}

/* Has the same run been predicted under another name? `auto`, for example, may recompute as many blocks as
 * `all`. */
static bool was_played(const tuning *of, const tide_choice *choice, const tide_performance *memory)
{
    for (uint32_t i = 0; i < of->count; i++) {
        const tide_candidate *other = &of->candidates[i];
        if (other->fits && other->choice.chunk_bytes == choice->chunk_bytes &&
            other->choice.placement == choice->placement && other->choice.prefetch == choice->prefetch &&
            other->performance.plan.recomputed_blocks == memory->plan.recomputed_blocks)
            return true;
    }
    return false;
}

/* Predicts a choice and adds it to the candidates, unless it amounts to one of them or the search is over. A
 * choice that does not fit (BUDGET) is a candidate, too, not a failure. */
static tide_status try(tuning *of, const tide_choice *choice)
{
    tide_trainer_options options = *of->options;
    tide_candidate made = {.choice = *choice};
    if (was_tried(of, choice) || !may_go_on(of))
        return TIDE_OK;
    tide_choice_apply(choice, &options);
    tide_status status = tide_performance_memory(&options, of->profile, &made.performance);
    if (status == TIDE_OK && was_played(of, choice, &made.performance))
        return TIDE_OK;
    if (status == TIDE_OK)
        status = tide_performance_make(&options, of->profile,
                                       &(tide_performance_how){.go_on = may_go_on, .context = of},
                                       &made.performance);
    if (of->is_over) /* the prediction is incomplete, so the choice is dropped */
        return TIDE_OK;
    if (status != TIDE_OK && status != TIDE_ERROR_BUDGET)
        return status;
    if (of->count == 0 && status != TIDE_OK)
        snprintf(of->refusal, sizeof of->refusal, "%s", tide_message());
    made.fits = status == TIDE_OK;
    of->candidates[of->count++] = made;
    return TIDE_OK;
}

/* ---- sorting ---- */

static bool is_before(const tide_candidate *a, const tide_candidate *b)
{
    if (a->fits != b->fits)
        return a->fits;
    return a->fits ? a->performance.step.seconds < b->performance.step.seconds
                   : a->choice.chunk_bytes < b->choice.chunk_bytes;
}

static void move(tide_candidate *candidates, uint32_t from, uint32_t to)
{
    const tide_candidate moved = candidates[from];
    memmove(&candidates[to + 1], &candidates[to], (from - to) * sizeof *candidates);
    candidates[to] = moved;
}

static void sort(tuning *of)
{
    tide_candidate *list = of->candidates;
    const tide_choice given = tide_choice_of(of->options);
    for (uint32_t i = 1; i < of->count; i++) {
        uint32_t place = i;
        while (place > 0 && is_before(&list[i], &list[place - 1]))
            place--;
        move(list, i, place);
    }
    if (of->count == 0 || !list[0].fits)
        return;
    uint32_t best = 0;
    const double most = list[0].performance.step.seconds * (1 + equal_part);
    for (uint32_t i = 1; i < of->count && list[i].fits && list[i].performance.step.seconds <= most; i++)
        if (differences(&list[i].choice, &given) < differences(&list[best].choice, &given))
            best = i;
    move(list, best, 0);
}

/* ---- the search ---- */

static tide_status chunks_try(tuning *of, const tide_choice *given)
{
    const uint64_t least = of->profile->gpu_bytes != 0 ? TIDE_GPU_CHUNK_BYTES_LEAST : 0;
    tide_status status = TIDE_OK;
    for (uint64_t bytes = TIDE_TUNE_CHUNK_LEAST; bytes <= TIDE_TUNE_CHUNK_MOST && status == TIDE_OK;
         bytes *= 2) {
        tide_choice choice = *given;
        choice.chunk_bytes = bytes;
        if (bytes != given->chunk_bytes && bytes >= least)
            status = try(of, &choice);
    }
    return status;
}

static tide_status refine(tuning *of, const tide_choice *from)
{
    const tide_tune_options *how = of->how;
    tide_status status = TIDE_OK;
    for (int recompute = TIDE_RECOMPUTE_AUTO; recompute <= TIDE_RECOMPUTE_ALL && status == TIDE_OK;
         recompute++)
        for (int placement = TIDE_PLACEMENT_AUTO; placement <= TIDE_PLACEMENT_DEVICE && status == TIDE_OK;
             placement++) {
            tide_choice choice = *from;
            choice.recompute = how->kept.recompute ? from->recompute : (tide_recompute)recompute;
            choice.placement = how->kept.placement ? from->placement : (tide_placement)placement;
            if (differences(&choice, from) > 0)
                status = try(of, &choice);
        }
    tide_choice other = *from;
    other.prefetch = !from->prefetch;
    if (status == TIDE_OK && !how->kept.prefetch)
        status = try(of, &other);
    return status;
}

static tide_status search(tuning *of)
{
    const tide_choice given = tide_choice_of(of->options);
    tide_choice chosen[REFINED_CHUNKS];
    uint32_t refined = 0;
    tide_status status = try(of, &given);
    if (status == TIDE_OK && !of->how->kept.chunk)
        status = chunks_try(of, &given);
    sort(of);
    for (uint32_t i = 0; i < of->count && refined < REFINED_CHUNKS && of->candidates[i].fits; i++)
        chosen[refined++] = of->candidates[i].choice;
    of->total = of->count + refined * REFINED_EACH;
    for (uint32_t i = 0; i < refined && status == TIDE_OK; i++)
        status = refine(of, &chosen[i]);
    sort(of);
    return status;
}

tide_status tide_tune(const tide_trainer_options *options, const tide_machine_profile *profile,
                      const tide_tune_options *how, tide_candidate candidates[TIDE_CANDIDATES_MAX],
                      uint32_t *count)
{
    tuning of = {.options = options,
                 .profile = profile,
                 .how = how,
                 .candidates = candidates,
                 .total = REFINED_CHUNKS * REFINED_EACH + (how->kept.chunk ? 1 : 10),
                 .begun = tide_clock_seconds()};
    const tide_status status = search(&of);
    *count = of.count;
    if (status != TIDE_OK)
        return status;
    if (of.count > 0 && !candidates[0].fits && !of.is_over)
        return tide_fail(TIDE_ERROR_BUDGET, "%s", of.refusal);
    return TIDE_OK;
}
