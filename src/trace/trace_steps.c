#include "src/trace/trace_steps.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Sums of seconds may differ by one in a hundred or by a thousandth of the step: a command that runs across
 * a step's border may count for either step. */
static const double equal_part = 0.01, equal_of_step = 0.001;

static double seconds_of(const tide_trace_event *event)
{
    return (double)(event->end_ns - event->begin_ns) * 1e-9;
}

tide_step_account *tide_trace_steps_find(const tide_trace_steps *steps, uint64_t step)
{
    uint32_t low = 0, high = steps->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (steps->steps[middle].line->step < step)
            low = middle + 1;
        else
            high = middle;
    }
    return low < steps->count && steps->steps[low].line->step == step ? &steps->steps[low] : NULL;
}

bool tide_trace_is_steady(const tide_trace_steps *steps, const tide_trace_event *event)
{
    tide_step_account *account = tide_trace_steps_find(steps, event->step);
    return account != NULL && account >= steps->steps + steps->steady &&
           account < steps->steps + steps->steady_end;
}

/* ---- an event's part ---- */

static void copy_add(tide_trace_steps *steps, tide_step_account *account, const tide_trace_event *event)
{
    tide_tier to = event->tier;
    tide_space space = steps->model->chunks[event->chunk].space;
    account->bytes[to] += event->bytes;
    account->bytes_by_reason[to][event->reason] += event->bytes;
    account->bytes_by_space[to][space] += event->bytes;
    account->planned_copies[to] += space != TIDE_SPACE_STATE;
    if (!tide_trace_is_steady(steps, event))
        return;
    steps->moves[event->chunk]++;
    steps->moved_bytes[event->chunk] += event->bytes;
}

static void move_add(tide_step_account *account, const tide_trace_event *event)
{
    bool fetch = event->move == TIDE_TRACE_FETCH;
    account->evictions += event->move == TIDE_TRACE_EVICT;
    account->demand_fetches += fetch && event->reason == TIDE_REASON_DEMAND;
    account->prefetches += fetch && event->reason == TIDE_REASON_PREFETCH;
}

static void event_add(tide_trace_steps *steps, tide_step_account *account, const tide_trace_event *event)
{
    switch (event->kind) {
    case TIDE_TRACE_COPY:
        copy_add(steps, account, event);
        break;
    case TIDE_TRACE_MOVE:
        move_add(account, event);
        break;
    case TIDE_TRACE_OP:
        account->compute_seconds += (double)event->busy_ns * 1e-9;
        break;
    case TIDE_TRACE_STALL:
        account->stall_seconds_by[event->cause] += seconds_of(event);
        break;
    case TIDE_TRACE_UPDATE:
        account->update_seconds[event->tier] += seconds_of(event);
        break;
    case TIDE_TRACE_REQUEST:
        account->asked += event->chunks;
        account->lacked += event->lacked;
        break;
    default:
        break;
    }
}

/* Give each step the plan that it followed: the last plan for training steps that was made before the step's
 * pass. */
static void plans_find(tide_trace_steps *steps)
{
    const tide_trace_model *model = steps->model;
    const tide_trace_event *plan = NULL;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->kind == TIDE_TRACE_PLAN && event->training)
            plan = event;
        if (event->kind != TIDE_TRACE_PASS || !event->training)
            continue;
        tide_step_account *account = tide_trace_steps_find(steps, event->number);
        if (account != NULL)
            account->plan = plan;
    }
}

static void events_add(tide_trace_steps *steps)
{
    const tide_trace_model *model = steps->model;
    tide_step_account *account = NULL;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        if (event->step == 0)
            continue;
        if (account == NULL || account->line->step != event->step)
            account = tide_trace_steps_find(steps, event->step);
        if (account != NULL)
            event_add(steps, account, event);
    }
}

/* ---- against the metrics line ---- */

static void count_compare(tide_step_account *account, const char *member, uint64_t said, uint64_t told)
{
    if (account->difference.member == NULL && said != told)
        account->difference = (tide_step_difference){member, (double)said, (double)told};
}

static void seconds_compare(tide_step_account *account, const char *member, double said, double told)
{
    double allowed = fmax(equal_part * said, equal_of_step * account->line->step_seconds);
    if (account->difference.member == NULL && fabs(said - told) > allowed)
        account->difference = (tide_step_difference){member, said, told};
}

static void account_check(tide_step_account *account)
{
    static const char *const stalls[] = {"stall_link_seconds",  "stall_slot_seconds", "stall_update_seconds",
                                         "stall_norm_seconds",  "stall_map_seconds",  "stall_peer_seconds",
                                         "stall_caller_seconds"};
    static_assert(sizeof stalls / sizeof stalls[0] == TIDE_STALL_CAUSE_COUNT, "a name for each cause");
    const tide_traced_step *line = account->line;
    count_compare(account, "h2d_bytes", line->h2d_bytes, account->bytes[TIDE_TIER_DEVICE]);
    count_compare(account, "d2h_bytes", line->d2h_bytes, account->bytes[TIDE_TIER_HOST]);
    count_compare(account, "evictions", line->evictions, account->evictions);
    count_compare(account, "demand_fetches", line->demand_fetches, account->demand_fetches);
    count_compare(account, "prefetches", line->prefetches, account->prefetches);
    seconds_compare(account, "compute_seconds", line->compute_seconds, account->compute_seconds);
    for (int cause = 0; cause < TIDE_STALL_CAUSE_COUNT; cause++)
        seconds_compare(account, stalls[cause], line->stall_seconds_by[cause],
                        account->stall_seconds_by[cause]);
    seconds_compare(account, "adam_host_seconds", line->adam_host_seconds,
                    account->update_seconds[TIDE_TIER_HOST]);
    seconds_compare(account, "adam_device_seconds", line->adam_device_seconds,
                    account->update_seconds[TIDE_TIER_DEVICE]);
}

/* ---- all of them ---- */

/* Does the trace have the pass before the step's, in which fetches for the step may have been made? */
static bool is_exact(const tide_trace_model *model, const tide_traced_step *line)
{
    assert(line->pass < model->pass_count);
    uint64_t pass = model->passes[line->pass].pass;
    return model->dropped == 0 &&
           (pass <= 1 || (line->pass > 0 && model->passes[line->pass - 1].pass == pass - 1));
}

static void accounts_begin(tide_trace_steps *steps)
{
    const tide_trace_model *model = steps->model;
    for (uint32_t i = 0; i < model->step_count; i++) {
        const tide_traced_step *line = &model->steps[i];
        if (!line->is_whole)
            continue;
        steps->steps[steps->count++] = (tide_step_account){
            .line = line,
            .rest_seconds = fmax(line->step_seconds - line->compute_seconds - line->stall_seconds, 0),
            .is_exact = is_exact(model, line)};
    }
}

/* Does no training pass follow the step's? */
static bool is_last(const tide_trace_model *model, const tide_traced_step *line)
{
    for (uint32_t i = line->pass + 1; i < model->pass_count; i++)
        if (model->passes[i].training)
            return false;
    return true;
}

/* Find the steady steps. The warm-up is the step that records the schedule and the step after it. */
static void steady_find(tide_trace_steps *steps)
{
    enum { WARM_UP = 2 };
    uint32_t first = steps->count;
    while (first > 0 && (first == steps->count ||
                         steps->steps[first - 1].line->step + 1 == steps->steps[first].line->step))
        first--;
    while (first + 1 < steps->count && steps->steps[first].line->step <= WARM_UP)
        first++;
    steps->steady = first;
    steps->steady_end = steps->count;
    if (first + 1 < steps->count && is_last(steps->model, steps->steps[steps->count - 1].line))
        steps->steady_end--;
}

tide_status tide_trace_steps_make(const tide_trace_model *model, tide_trace_steps *steps)
{
    *steps = (tide_trace_steps){.model = model};
    steps->steps = calloc((size_t)model->step_count + 1, sizeof *steps->steps);
    steps->moves = calloc((size_t)model->chunk_count + 1, sizeof *steps->moves);
    steps->moved_bytes = calloc((size_t)model->chunk_count + 1, sizeof *steps->moved_bytes);
    if (steps->steps == NULL || steps->moves == NULL || steps->moved_bytes == NULL) {
        tide_trace_steps_free(steps);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory for the accounts of its steps", model->path);
    }
    accounts_begin(steps);
    steady_find(steps);
    plans_find(steps);
    events_add(steps);
    for (uint32_t i = 0; i < steps->count; i++)
        if (steps->steps[i].is_exact)
            account_check(&steps->steps[i]);
    return TIDE_OK;
}

void tide_trace_steps_free(tide_trace_steps *steps)
{
    free(steps->steps);
    free(steps->moves);
    free(steps->moved_bytes);
    *steps = (tide_trace_steps){0};
}

/* ---- longest stalls, most moved chunks ---- */

static int numbers_compare(uint64_t left, uint64_t right)
{
    return left < right ? -1 : left > right;
}

/* Order by series; within a series the longest first, of equally long ones the earliest. */
static int stalls_compare(const void *a, const void *b)
{
    const tide_trace_event *left = *(const tide_trace_event *const *)a;
    const tide_trace_event *right = *(const tide_trace_event *const *)b;
    int order = numbers_compare(left->op, right->op);
    order = order != 0 ? order : numbers_compare(left->slice, right->slice);
    order = order != 0 ? order : numbers_compare(left->chunk, right->chunk);
    order = order != 0 ? order : numbers_compare(left->cause, right->cause);
    order =
        order != 0 ? order : numbers_compare(right->end_ns - right->begin_ns, left->end_ns - left->begin_ns);
    return order != 0 ? order : numbers_compare(left->begin_ns, right->begin_ns);
}

static bool is_one_series(const tide_trace_event *a, const tide_trace_event *b)
{
    return a->op == b->op && a->slice == b->slice && a->chunk == b->chunk && a->cause == b->cause;
}

/* Keep the series among the `most` with the longest stalls. */
static void series_keep(const tide_stall_series *series, tide_stall_series *longest, uint32_t most,
                        uint32_t *count)
{
    uint32_t at = *count;
    while (at > 0 && seconds_of(longest[at - 1].longest) < seconds_of(series->longest))
        at--;
    if (at == most)
        return;
    *count += *count < most;
    memmove(&longest[at + 1], &longest[at], (*count - 1 - at) * sizeof *longest);
    longest[at] = *series;
}

tide_status tide_trace_longest_stalls(const tide_trace_steps *steps, tide_stall_series *longest,
                                      uint32_t most, uint32_t *count)
{
    const tide_trace_model *model = steps->model;
    const tide_trace_event **stalls = malloc((model->event_count + 1) * sizeof *stalls);
    uint64_t found = 0;
    if (stalls == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory for its stalls", model->path);
    for (uint64_t i = 0; i < model->event_count; i++)
        if (model->events[i].kind == TIDE_TRACE_STALL &&
            model->events[i].end_ns > model->events[i].begin_ns &&
            tide_trace_is_steady(steps, &model->events[i]))
            stalls[found++] = &model->events[i];
    qsort(stalls, found, sizeof *stalls, stalls_compare);
    *count = 0;
    for (uint64_t begin = 0, end = 0; begin < found; begin = end) {
        tide_stall_series series = {.longest = stalls[begin]};
        for (; end < found && is_one_series(stalls[begin], stalls[end]); end++)
            series.count++, series.seconds += seconds_of(stalls[end]);
        series_keep(&series, longest, most, count);
    }
    free(stalls);
    return TIDE_OK;
}

uint32_t tide_trace_most_moved(const tide_trace_steps *steps, uint32_t *chunks, uint32_t most)
{
    uint32_t count = 0;
    for (uint32_t chunk = 0; chunk < steps->model->chunk_count; chunk++) {
        uint32_t at = count;
        if (steps->moved_bytes[chunk] == 0)
            continue;
        while (at > 0 && steps->moved_bytes[chunks[at - 1]] < steps->moved_bytes[chunk])
            at--;
        if (at == most)
            continue;
        count += count < most;
        memmove(&chunks[at + 1], &chunks[at], (count - 1 - at) * sizeof *chunks);
        chunks[at] = chunk;
    }
    return count;
}
