#include "src/pool/measure.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { REPLACING_SAMPLES = 2 };
static const double weight_of_a_sample = 0.25;

tide_status tide_measure_create(tide_measure *measure, uint32_t op_count, uint32_t script_lines)
{
    *measure = (tide_measure){.op_count = op_count, .script_lines = script_lines};
    measure->series = calloc(tide_measure_series_count(measure), sizeof *measure->series);
    tide_script_line *lines = calloc(2 * (size_t)script_lines, sizeof *lines);
    measure->scripts[0].lines = lines;
    if (measure->series == NULL || lines == NULL) {
        tide_measure_destroy(measure);
        return tide_fail(TIDE_ERROR_NO_MEMORY,
                         "pool: no memory to measure %u ops and %u schedule steps of a step", op_count,
                         script_lines);
    }
    measure->scripts[1].lines = lines + script_lines;
    return TIDE_OK;
}

void tide_measure_destroy(tide_measure *measure)
{
    free(measure->series);
    free(measure->scripts[0].lines);
    *measure = (tide_measure){0};
}

/* Checks that no script is longer than its array, that a step is pending only if a script is complete, and
 * that `complete` is set only if there was a sample. */
bool tide_measure_is_valid(const tide_measure *measure)
{
    const tide_script *scripts = measure->scripts;
    return measure->last < 2 && scripts[0].length <= measure->script_lines &&
           scripts[1].length <= measure->script_lines && (!measure->pending || measure->version > 0) &&
           (!measure->complete || measure->samples > 0);
}

/* --- the script --- */

static tide_script *written(tide_measure *measure)
{
    return &measure->scripts[1 - measure->last];
}

void tide_measure_step_begin(tide_measure *measure, bool clips)
{
    tide_script *script = written(measure);
    assert(tide_measure_is_valid(measure));
    script->length = 0;
    script->too_long = false;
    script->clips = clips;
    measure->is_new = measure->version == 0 || clips != tide_measure_script(measure)->clips;
    measure->writing = true;
}

void tide_measure_op(tide_measure *measure, uint32_t op, int32_t slice)
{
    if (!measure->writing)
        return;
    tide_script *script = written(measure);
    const tide_script *last = tide_measure_script(measure);
    const uint32_t at = script->length;
    if (at == measure->script_lines) {
        script->too_long = true;
        return;
    }
    assert(op < measure->op_count && slice >= TIDE_SCRIPT_END);
    script->lines[script->length++] = (tide_script_line){op, slice};
    if (at >= last->length || last->lines[at].op != op || last->lines[at].slice != slice)
        measure->is_new = true;
}

/* Add to each op's series the number of units that the script ran of it. */
static void count_units(tide_measure *measure, const tide_script *script)
{
    bool sliced = false;
    for (uint32_t i = 0; i < script->length; i++) {
        const tide_script_line line = script->lines[i];
        const bool ends = line.slice == TIDE_SCRIPT_END;
        if (line.slice == TIDE_SCRIPT_OP)
            tide_measure_add(measure, tide_series_of_begin(measure, line.op), 0, 1);
        if (ends)
            tide_measure_add(measure, tide_series_of_end(measure, line.op), 0, 1);
        if (line.slice >= 0 || (ends && !sliced))
            tide_measure_add(measure, tide_series_of_op(line.op), 0, 1);
        sliced = line.slice >= 0;
    }
    tide_measure_add(measure, TIDE_SERIES_BEFORE, 0, 1);
    tide_measure_add(measure, TIDE_SERIES_AFTER, 0, 1);
}

void tide_measure_step_end(tide_measure *measure)
{
    tide_script *script = written(measure);
    assert(measure->writing);
    measure->writing = false;
    const tide_script *before = tide_measure_script(measure);
    measure->is_new |= script->length != before->length || script->too_long != before->too_long;
    measure->version += measure->is_new;
    measure->last = 1 - measure->last;
    count_units(measure, script);
    measure->pending = true;
    assert(tide_measure_is_valid(measure));
}

/* --- samples --- */

static void take(tide_series *series, uint64_t *ns, uint64_t *amount)
{
    const uint64_t sum_ns = atomic_load_explicit(&series->ns, memory_order_relaxed);
    const uint64_t sum_amount = atomic_load_explicit(&series->amount, memory_order_relaxed);
    assert(sum_ns >= series->taken_ns && sum_amount >= series->taken_amount);
    *ns = sum_ns - series->taken_ns;
    *amount = sum_amount - series->taken_amount;
    series->taken_ns = sum_ns;
    series->taken_amount = sum_amount;
}

void tide_measure_step_forget(tide_measure *measure)
{
    uint64_t ns, amount;
    measure->writing = measure->pending = false;
    for (uint32_t i = 0; i < tide_measure_series_count(measure); i++)
        take(&measure->series[i], &ns, &amount);
}

void tide_measure_sample(tide_measure *measure, bool updated)
{
    if (!measure->pending)
        return;
    const bool replace = measure->is_new || measure->samples < REPLACING_SAMPLES;
    for (uint32_t i = 0; i < tide_measure_series_count(measure); i++) {
        tide_series *series = &measure->series[i];
        uint64_t ns, amount;
        take(series, &ns, &amount);
        series->step_amount = (double)amount;
        if (amount == 0)
            continue;
        const double ns_each = (double)ns / (double)amount;
        series->mean_ns += (ns_each - series->mean_ns) * (replace ? 1 : weight_of_a_sample);
    }
    measure->pending = false;
    measure->samples++;
    assert(tide_measure_is_valid(measure));
    /* A second sample includes the updates of the first step, which have ended by then. */
    measure->complete = measure->complete || updated || measure->samples > 1;
}
