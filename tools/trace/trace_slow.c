#include "tools/trace/trace_slow.h"

#include <stdlib.h>
#include <string.h>

static const double slow_factor = 1.5, slow_part = 1e-3;

typedef struct op_time {
    uint64_t series; /* 2 * op, plus 1 for a slice */
    uint64_t busy_ns;
} op_time;

static bool is_counted(const tide_trace_steps *steps, const tide_trace_event *event)
{
    return event->kind == TIDE_TRACE_OP && event->op != TIDE_TRACE_NONE && tide_trace_is_steady(steps, event);
}

static uint64_t series_of(const tide_trace_event *event)
{
    return 2 * (uint64_t)event->op + (event->slice != TIDE_TRACE_NONE);
}

static int times_compare(const void *a, const void *b)
{
    const op_time *left = a, *right = b;
    if (left->series != right->series)
        return left->series < right->series ? -1 : 1;
    return left->busy_ns < right->busy_ns ? -1 : left->busy_ns > right->busy_ns;
}

static double median_of(const op_time *times, uint64_t count)
{
    return ((double)times[(count - 1) / 2].busy_ns + (double)times[count / 2].busy_ns) / 2;
}

tide_status tide_trace_op_medians(const tide_trace_steps *steps, double *medians)
{
    const tide_trace_model *model = steps->model;
    op_time *times = malloc((model->event_count + 1) * sizeof *times);
    uint64_t count = 0;
    if (times == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory for the times of its ops", model->path);
    memset(medians, 0, 2 * (size_t)model->op_count * sizeof *medians);
    for (uint64_t i = 0; i < model->event_count; i++)
        if (is_counted(steps, &model->events[i]))
            times[count++] = (op_time){series_of(&model->events[i]), model->events[i].busy_ns};
    qsort(times, count, sizeof *times, times_compare);
    for (uint64_t begin = 0, end = 0; begin < count; begin = end) {
        while (end < count && times[end].series == times[begin].series)
            end++;
        medians[times[begin].series] = median_of(times + begin, end - begin);
    }
    free(times);
    return TIDE_OK;
}

static double lost_ns(const tide_slow_op *slow)
{
    return (double)slow->event->busy_ns - 1e9 * slow->median_seconds;
}

tide_status tide_trace_slow_ops(const tide_trace_steps *steps, tide_slow_op *slow, uint32_t most,
                                uint64_t *all)
{
    const tide_trace_model *model = steps->model;
    double *medians = calloc(2 * (size_t)model->op_count + 1, sizeof *medians);
    uint32_t kept = 0;
    if (medians == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory for the times of its ops", model->path);
    tide_status status = tide_trace_op_medians(steps, medians);
    *all = 0;
    for (uint64_t i = 0; i < model->event_count && status == TIDE_OK; i++) {
        const tide_trace_event *event = &model->events[i];
        if (!is_counted(steps, event))
            continue;
        tide_slow_op found = {event, 1e-9 * medians[series_of(event)]};
        double step_ns = 1e9 * tide_trace_steps_find(steps, event->step)->line->step_seconds;
        if ((double)event->busy_ns <= slow_factor * 1e9 * found.median_seconds ||
            lost_ns(&found) < slow_part * step_ns)
            continue;
        ++*all;
        uint32_t at = kept;
        while (at > 0 && lost_ns(&slow[at - 1]) < lost_ns(&found))
            at--;
        if (at == most)
            continue;
        kept += kept < most;
        memmove(&slow[at + 1], &slow[at], (kept - 1 - at) * sizeof *slow);
        slow[at] = found;
    }
    free(medians);
    return status;
}
