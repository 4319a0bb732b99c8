/* Advice: see trace_predict.h.
 *
 *     1  the run is played as it was; if that is not what was measured, to within 15%, the trace is not
 *        understood: no advice
 *     2  changes are played, as long as there is time: more device memory, from two slots more by doubling
 *        up to twice the budget or all that is of use; a full host budget; prefetch, if it was off; the
 *        optimizer elsewhere
 *     3  of each kind the least change that gives half of what the kind can give; of those the one that
 *        gives most, if that is 3% of a step at least
 */
#include "tools/trace_predict.h"

#include "tools/trace_play.h"
#include "tools/units.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const double understood_part = 0.15, worth_part = 0.03, seconds_most = 3;

enum { MEMORIES_MAX = 12, SENTENCE_BYTES = 160 };

typedef struct advice {
    double gain; /* of a step's time */
    char what[SENTENCE_BYTES];
} advice;

typedef struct advice_search {
    const tide_trace_steps *steps;
    tide_trace_player *player;
    double played_seconds; /* as it was */
    double deadline;       /* of the clock */
    advice best;
} advice_search;

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* What the change gives, 0 if it does not work or there is no time. */
static double gain_of(advice_search *adviser, const tide_trace_change *change)
{
    double seconds = 0;
    if (now_seconds() > adviser->deadline ||
        tide_trace_player_play(adviser->player, change, &seconds) != TIDE_OK)
        return 0;
    return (adviser->played_seconds - seconds) / adviser->played_seconds;
}

static void offer(advice_search *adviser, double gain, const char *what)
{
    if (gain < worth_part || gain <= adviser->best.gain)
        return;
    adviser->best.gain = gain;
    (void)snprintf(adviser->best.what, sizeof adviser->best.what, "%s", what);
}

/* Whether the run, given more memory, would do the same work: else blocks that backward has computed again
 * would be kept. */
static bool work_would_stay(const tide_trace_model *model)
{
    const char *recompute = tide_trace_model_setting(model, "recompute");
    const char *blocks = tide_trace_model_setting(model, "recomputed-blocks");
    return recompute == NULL || strcmp(recompute, "auto") != 0 ||
           (blocks != NULL && strcmp(blocks, "0") == 0);
}

static void memory_offer(advice_search *adviser)
{
    const tide_trace_model *model = adviser->steps->model;
    const tide_trace_change given = tide_trace_player_given(adviser->player);
    const uint64_t full = tide_trace_player_full_device_bytes(adviser->player);
    uint64_t more[MEMORIES_MAX];
    double gains[MEMORIES_MAX], most = 0;
    uint32_t count = 0;
    for (uint64_t slots = 2; count < MEMORIES_MAX; slots *= 2) {
        uint64_t bytes = slots * model->chunk_bytes,
                 room = full > given.device_memory_bytes ? full - given.device_memory_bytes : 0;
        tide_trace_change change = given;
        bytes = bytes < room ? bytes : room;
        if (bytes == 0 || bytes > given.device_memory_bytes)
            break;
        change.device_memory_bytes += bytes;
        more[count] = bytes;
        gains[count] = gain_of(adviser, &change);
        most = fmax(most, gains[count++]);
        if (bytes == room)
            break;
    }
    for (uint32_t i = 0; i < count; i++) {
        char what[SENTENCE_BYTES], size[TIDE_UNITS_TEXT_BYTES];
        if (gains[i] < most / 2 || gains[i] < worth_part)
            continue;
        (void)snprintf(what, sizeof what, "%s more device memory", tide_size_format(more[i], size));
        offer(adviser, gains[i], what);
        return;
    }
}

static void host_memory_offer(advice_search *adviser)
{
    tide_trace_change change = tide_trace_player_given(adviser->player);
    const uint64_t full = tide_trace_player_full_host_bytes(adviser->player), had = change.host_memory_bytes;
    char what[SENTENCE_BYTES], size[TIDE_UNITS_TEXT_BYTES];
    if (full <= had)
        return;
    change.host_memory_bytes = full;
    (void)snprintf(what, sizeof what, "%s more host memory", tide_size_format(full - had, size));
    offer(adviser, gain_of(adviser, &change), what);
}

static void settings_offer(advice_search *adviser)
{
    const tide_trace_change given = tide_trace_player_given(adviser->player);
    tide_trace_change change = given;
    if (!given.prefetch) {
        change.prefetch = true;
        offer(adviser, gain_of(adviser, &change), "--prefetch on");
    }
    change = given;
    if (!tide_trace_player_knows(adviser->player, TIDE_TIER_HOST) ||
        !tide_trace_player_knows(adviser->player, TIDE_TIER_DEVICE))
        return;
    if (given.placement != TIDE_PLACEMENT_AUTO) {
        change.placement = TIDE_PLACEMENT_AUTO;
        offer(adviser, gain_of(adviser, &change), "--optimizer-placement auto");
    }
    change.placement = TIDE_PLACEMENT_HOST;
    if (given.placement != TIDE_PLACEMENT_HOST)
        offer(adviser, gain_of(adviser, &change), "--optimizer-placement host");
}

static tide_stall_cause worst_cause(const tide_trace_steps *steps)
{
    double seconds[TIDE_STALL_CAUSE_COUNT] = {0};
    tide_stall_cause worst = TIDE_STALL_LINK;
    for (uint32_t i = steps->steady; i < steps->steady_end; i++)
        for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
            seconds[cause] += steps->steps[i].line->stall_seconds_by[cause];
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        worst = seconds[cause] > seconds[worst] ? (tide_stall_cause)cause : worst;
    return worst;
}

static double measured_seconds(const tide_trace_steps *steps)
{
    double sum = 0;
    for (uint32_t i = steps->steady; i < steps->steady_end; i++)
        sum += steps->steps[i].line->step_seconds;
    return sum / (steps->steady_end - steps->steady);
}

static void advise(advice_search *adviser)
{
    const tide_trace_change given = tide_trace_player_given(adviser->player);
    const double measured = measured_seconds(adviser->steps);
    if (tide_trace_player_play(adviser->player, &given, &adviser->played_seconds) != TIDE_OK ||
        fabs(adviser->played_seconds - measured) > understood_part * measured)
        return;
    if (work_would_stay(adviser->steps->model))
        memory_offer(adviser);
    host_memory_offer(adviser);
    settings_offer(adviser);
}

bool tide_trace_advise(const tide_trace_steps *steps, char text[TIDE_ADVICE_BYTES])
{
    static const char *const waits[TIDE_STALL_CAUSE_COUNT] = {
        "compute waits for the link", "fetches wait for room",  "compute waits for updates",
        "compute waits for the norm", "compute waits for maps", "compute waits for its caller"};
    advice_search adviser = {.steps = steps, .deadline = now_seconds() + seconds_most};
    if (steps->count == 0 || steps->model->ranks > 1 ||
        tide_trace_player_make(steps, &adviser.player) != TIDE_OK)
        return false;
    advise(&adviser);
    tide_trace_player_free(adviser.player);
    if (adviser.best.gain < worth_part)
        return false;
    (void)snprintf(text, TIDE_ADVICE_BYTES, "%s: %s would save about %.0f%% of a step",
                   waits[worst_cause(steps)], adviser.best.what, 100 * adviser.best.gain);
    return true;
}
