#include "tools/trace/trace_advice.h"

#include "src/pool/player.h"
#include "tools/trace/trace_slow.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    EQUAL_STEPS = 4,
    LINES_MOST = 1000000,
    SCRIPT_MAX = 1 << 22,
    SLOTS_MAX = 1 << 20,
    PARTS_MAX = 1 << 22
};

static const double understood_part = 0.15, worth_part = 0.03;

/* A recorded run as the player takes it. */
typedef struct recorded {
    const tide_trace_steps *steps;
    const tide_trace_model *model;
    tide_description *description;
    tide_script script;
    double *times_ns; /* by series */
    tide_device_options machine;
    tide_pool_options options;
    uint64_t full_device_bytes, tokens;
    uint32_t device_updates;
    bool knows_host, knows_device; /* does the trace say how fast the optimizer is there? */
    uint64_t lines_played;
} recorded;

/* The traced pass of the last steady step. */
static const tide_traced_pass *last_pass(const recorded *run)
{
    return &run->model->passes[run->steps->steps[run->steps->steady_end - 1].line->pass];
}

/* ---- the description ---- */

/* Do tables and budgets agree with the trace's chunks and slots? A pool of them is then no larger than the
 * run's. */
static bool is_plausible(const tide_trace_model *model)
{
    double chunks[TIDE_SPACE_COUNT] = {0}, bytes[TIDE_SPACE_COUNT] = {0}, parts = 0;
    const double chunk_bytes = (double)model->chunk_bytes;
    for (uint32_t i = 0; i < model->chunk_count; i++)
        chunks[model->chunks[i].space] += chunk_bytes;
    for (uint32_t i = 0; i < model->param_count; i++) {
        const tide_traced_param *param = &model->params[i];
        bytes[TIDE_SPACE_PARAM] += (double)param->elements * (double)tide_dtype_bytes(model->dtype);
        for (uint32_t plane = 0; plane < param->plane_count && !param->frozen; plane++)
            bytes[TIDE_SPACE_STATE] += (double)param->elements / 32 * param->planes[plane];
    }
    for (uint32_t i = 0; i < model->activation_count; i++) {
        const tide_traced_activation *activation = &model->activations[i];
        bytes[TIDE_SPACE_ACTIVATION] += (double)activation->parts * (double)activation->part_bytes;
        parts += activation->parts;
    }
    for (int space = 0; space < TIDE_SPACE_COUNT; space++)
        if (bytes[space] > chunks[space])
            return false;
    return chunk_bytes > 0 && parts <= PARTS_MAX &&
           (double)model->device_memory_bytes <= SLOTS_MAX * chunk_bytes &&
           (double)model->host_memory_bytes <= SLOTS_MAX * chunk_bytes;
}

static tide_status params_describe(const tide_trace_model *model, tide_description *description)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < model->param_count && status == TIDE_OK; i++) {
        const tide_traced_param *param = &model->params[i];
        tide_param_class of_class = {.frozen = param->frozen, .decay = param->decays && !param->frozen};
        tide_param number;
        of_class.state.planes = param->frozen ? 0 : param->plane_count;
        for (uint32_t plane = 0; plane < of_class.state.planes; plane++)
            of_class.state.bytes[plane] = param->planes[plane];
        status =
            tide_description_add_param(description, param->name, &param->elements, 1, &of_class, &number);
    }
    for (uint32_t i = 0; i < model->activation_count && status == TIDE_OK; i++) {
        const tide_traced_activation *activation = &model->activations[i];
        tide_activation number;
        status = tide_description_add_activation(description, activation->name, activation->parts,
                                                 activation->part_bytes, &number);
    }
    return status;
}

static tide_use *uses_copy(const tide_traced_use *from, uint32_t count)
{
    tide_use *uses = malloc(((size_t)count + 1) * sizeof *uses);
    for (uint32_t i = 0; i < count && uses != NULL; i++)
        uses[i] = (tide_use){from[i].tensor, from[i].access};
    return uses;
}

static tide_status op_describe(const tide_traced_op *op, tide_description *description)
{
    tide_use *params = uses_copy(op->params, op->param_count),
             *activations = uses_copy(op->activations, op->activation_count);
    tide_status status = TIDE_ERROR_NO_MEMORY;
    tide_op number;
    if (params != NULL && activations != NULL) {
        const tide_op_description of_op = {.name = op->name,
                                           .pass = op->pass,
                                           .params = params,
                                           .param_count = op->param_count,
                                           .activations = activations,
                                           .activation_count = op->activation_count,
                                           .slices = op->activation_count > 0 ? op->slices : 0,
                                           .workspace_bytes = op->workspace_bytes};
        status = tide_description_add_op(description, &of_op, &number);
    }
    free(params);
    free(activations);
    return status;
}

static tide_status describe(recorded *run, uint64_t nonmodel_bytes)
{
    const tide_trace_model *model = run->model;
    tide_description_destroy(run->description);
    run->description = NULL;
    tide_status status = tide_description_create(model->dtype, nonmodel_bytes, &run->description);
    if (status == TIDE_OK)
        status = params_describe(model, run->description);
    for (uint32_t i = 0; i < model->op_count && status == TIDE_OK; i++)
        status = op_describe(&model->ops[i], run->description);
    return status;
}

static tide_status never_called_update(void *context, const tide_step_options *step, uint64_t update,
                                       float scale, const tide_update_segment *segments, uint32_t count)
{
    (void)context, (void)step, (void)update, (void)scale, (void)segments, (void)count;
    return tide_fail(TIDE_ERROR_INTERNAL, "the null device called an optimizer");
}

/* Is any param's state another than AdamW's, so that the run had an optimizer of its own? */
static bool has_other_state(const tide_trace_model *model)
{
    for (uint32_t i = 0; i < model->param_count; i++) {
        const tide_traced_param *param = &model->params[i];
        const bool adam = param->plane_count == 3 && param->planes[0] == 128 && param->planes[1] == 128 &&
                          param->planes[2] == 128;
        if (!param->frozen && !adam)
            return true;
    }
    return false;
}

static bool setting_is(const tide_trace_model *model, const char *name, const char *value)
{
    const char *set = tide_trace_model_setting(model, name);
    return set != NULL && strcmp(set, value) == 0;
}

/* Describes the run and its options. The run's non-model data is the rest of the traced region, beside the
 * pool's own parts and workspaces. */
static tide_status run_describe(recorded *run)
{
    const tide_trace_model *model = run->model;
    tide_pool_options *options = &run->options;
    tide_pool_plan plan;
    tide_pool_options_default(options);
    options->device = "null";
    options->device_memory_bytes = model->device_memory_bytes;
    options->host_memory_bytes = model->host_memory_bytes;
    options->chunk_bytes = model->chunk_bytes;
    options->prefetch = !setting_is(model, "prefetch", "off");
    options->placement = setting_is(model, "optimizer", "host")     ? TIDE_PLACEMENT_HOST
                         : setting_is(model, "optimizer", "device") ? TIDE_PLACEMENT_DEVICE
                                                                    : TIDE_PLACEMENT_AUTO;
    options->threads = 1;
    options->update = has_other_state(model) ? never_called_update : NULL;
    tide_status status = describe(run, 0);
    if (status == TIDE_OK)
        status = tide_pool_plan_make(options, run->description, &plan);
    if (status == TIDE_OK && plan.region_bytes < model->region_bytes)
        status = describe(run, model->region_bytes - plan.region_bytes);
    if (status == TIDE_OK)
        status = tide_pool_plan_make(options, run->description, &plan);
    if (status == TIDE_OK)
        run->full_device_bytes = plan.full_device_bytes;
    return status;
}

/* ---- the script and its times ---- */

static bool tells_order(const tide_trace_event *event, uint64_t pass)
{
    return event->pass == pass && (event->kind == TIDE_TRACE_REQUEST || event->kind == TIDE_TRACE_OP) &&
           event->op != TIDE_TRACE_NONE;
}

static void script_add(tide_script *script, uint32_t op, int32_t slice)
{
    script->lines[script->length++] = (tide_script_line){op, slice};
}

/* Writes the ops and slices of the last steady step in the order in which they began. False: the trace lacks
 * some, or there is no memory. */
static bool script_write(recorded *run)
{
    const tide_trace_model *model = run->model;
    const tide_traced_pass *pass = last_pass(run);
    const tide_trace_event **begun = NULL;
    uint32_t count = 0, open = TIDE_TRACE_NONE;
    for (uint64_t i = 0; i < model->event_count; i++)
        if (tells_order(&model->events[i], pass->pass) && model->events[i].schedule_step >= count)
            count = model->events[i].schedule_step + 1;
    if (count == 0 || count > SCRIPT_MAX)
        return false;
    run->script = (tide_script){.lines = calloc(2 * (size_t)count + 1, sizeof *run->script.lines),
                                .clips = pass->clips};
    begun = calloc(count, sizeof *begun);
    bool is_whole = run->script.lines != NULL && begun != NULL;
    for (uint64_t i = 0; i < model->event_count && is_whole; i++)
        if (tells_order(&model->events[i], pass->pass))
            begun[model->events[i].schedule_step] = &model->events[i];
    for (uint32_t i = 0; i < count && is_whole; i++) {
        const tide_trace_event *event = begun[i];
        if (event == NULL)
            continue;
        if (event->slice != TIDE_TRACE_NONE) {
            is_whole = event->op == open;
            script_add(&run->script, event->op, (int32_t)event->slice);
            continue;
        }
        if (open != TIDE_TRACE_NONE)
            script_add(&run->script, open, TIDE_SCRIPT_END);
        script_add(&run->script, open = event->op, TIDE_SCRIPT_OP);
    }
    if (is_whole && open != TIDE_TRACE_NONE)
        script_add(&run->script, open, TIDE_SCRIPT_END);
    free(begun);
    return is_whole && open != TIDE_TRACE_NONE;
}

/* A unit lasts as long as the median slice. The pool's kernels in an op with slices last as long as all
 * kernels in the op outside its slices; the trace does not tell those at its begin from those at its end. */
static tide_status times_read(recorded *run)
{
    const uint32_t ops = run->model->op_count;
    double *medians = calloc(2 * (size_t)ops, sizeof *medians);
    run->times_ns = calloc((size_t)TIDE_SERIES_FIRST_OP + 3 * (size_t)ops, sizeof *run->times_ns);
    tide_status status = TIDE_ERROR_NO_MEMORY;
    if (medians != NULL && run->times_ns != NULL)
        status = tide_trace_op_medians(run->steps, medians);
    for (uint32_t op = 0; op < ops && status == TIDE_OK; op++) {
        const tide_measure series = {.op_count = ops};
        const double outside = medians[2 * (size_t)op], slice = medians[2 * (size_t)op + 1];
        run->times_ns[tide_series_of_op(op)] = slice > 0 ? slice : outside;
        run->times_ns[tide_series_of_end(&series, op)] = slice > 0 ? outside : 0;
    }
    free(medians);
    return status;
}

/* ---- the machine ---- */

static double per_second(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds : 0; /* 0: no limit */
}

/* Bytes of memory traffic to update all of a PARAM chunk. */
static double update_bytes(const tide_trace_model *model, uint32_t chunk)
{
    const tide_traced_chunk *of = &model->chunks[chunk];
    double bytes = 0;
    for (uint32_t i = 0; i < of->param_count; i++) {
        const tide_traced_param *param = &model->params[of->params[i].param];
        double element = (double)tide_dtype_bytes(model->dtype);
        for (uint32_t plane = 0; plane < param->plane_count; plane++)
            element += param->planes[plane] / 32.0;
        bytes += 2 * element * (double)of->params[i].elements;
    }
    return bytes;
}

/* Reads the speeds from the steady steps' events. */
static void machine_read(recorded *run)
{
    const tide_trace_steps *steps = run->steps;
    double copied[TIDE_TIER_COUNT] = {0}, copy_seconds[TIDE_TIER_COUNT] = {0};
    double updated[TIDE_TIER_COUNT] = {0}, update_seconds[TIDE_TIER_COUNT] = {0};
    double map_ns[2] = {0}, maps[2] = {0};
    for (uint64_t i = 0; i < run->model->event_count; i++) {
        const tide_trace_event *event = &run->model->events[i];
        const double ns = (double)(event->end_ns - event->begin_ns);
        if (!tide_trace_is_steady(steps, event))
            continue;
        if (event->kind == TIDE_TRACE_COPY) {
            copied[event->tier] += (double)event->bytes;
            copy_seconds[event->tier] += 1e-9 * ns;
        } else if (event->kind == TIDE_TRACE_MAP && event->map != TIDE_TRACE_REMAPPED) {
            map_ns[event->map == TIDE_TRACE_UNMAPPED] += ns;
            maps[event->map == TIDE_TRACE_UNMAPPED]++;
        } else if (event->kind == TIDE_TRACE_UPDATE && event->piece == 0) /* a chunk is updated in pieces */
            updated[event->tier] += update_bytes(run->model, event->chunk);
    }
    for (uint32_t i = steps->steady; i < steps->steady_end; i++) {
        update_seconds[TIDE_TIER_HOST] += steps->steps[i].line->adam_host_seconds;
        update_seconds[TIDE_TIER_DEVICE] += steps->steps[i].line->adam_device_seconds;
    }
    tide_device_options *machine = &run->machine;
    machine->link_bytes_per_second = per_second(copied[TIDE_TIER_DEVICE], copy_seconds[TIDE_TIER_DEVICE]);
    machine->machine.link_out_bytes_per_second =
        per_second(copied[TIDE_TIER_HOST], copy_seconds[TIDE_TIER_HOST]);
    machine->machine.host_bytes_per_second =
        per_second(updated[TIDE_TIER_HOST], update_seconds[TIDE_TIER_HOST]);
    machine->machine.device_bytes_per_second =
        per_second(updated[TIDE_TIER_DEVICE], update_seconds[TIDE_TIER_DEVICE]);
    machine->machine.map_ns = maps[0] > 0 ? (uint64_t)(map_ns[0] / maps[0] + 0.5) : 0;
    machine->machine.unmap_ns = maps[1] > 0 ? (uint64_t)(map_ns[1] / maps[1] + 0.5) : machine->machine.map_ns;
    /* Where nothing was updated, the trace of a null device still says the machine's speed. AdamW is bound by
     * memory, so on the device memory's rate stands for it. */
    if (update_seconds[TIDE_TIER_HOST] == 0)
        machine->machine.host_bytes_per_second = run->model->machine.host_bytes_per_second;
    if (update_seconds[TIDE_TIER_DEVICE] == 0)
        machine->machine.device_bytes_per_second = run->model->machine.device_bytes_per_second;
    run->knows_host = machine->machine.host_bytes_per_second > 0;
    run->knows_device = machine->machine.device_bytes_per_second > 0;
}

/* ---- playing ---- */

static bool may_play_on(void *context)
{
    recorded *run = context;
    run->lines_played += run->script.length;
    return run->lines_played <= LINES_MOST;
}

/* Plays the run with these options; 0: it is not possible, or LINES_MOST were played. */
static double play(recorded *run, const tide_pool_options *options)
{
    const tide_play play = {.script = &run->script,
                            .machine = &run->machine,
                            .times_ns = run->times_ns,
                            .times_all = true,
                            .go_on = may_play_on,
                            .context = run};
    tide_player *player = NULL;
    tide_pool_counters step = {.seconds = 0};
    tide_pool_plan plan;
    tide_status status = tide_player_create(options, run->description, &player);
    if (status == TIDE_OK)
        status = tide_pool_plan_get(tide_player_pool(player), &plan);
    if (status == TIDE_OK)
        status = tide_player_play(player, &play, EQUAL_STEPS, &step, NULL);
    if (status == TIDE_OK)
        run->device_updates = plan.device_updates;
    tide_player_destroy(player);
    return status == TIDE_OK ? step.seconds : 0;
}

/* A tide_advised's predict. */
static void predict(void *context, tide_proposal *proposal, double least)
{
    recorded *run = context;
    tide_pool_options options = run->options;
    (void)least;
    switch (proposal->change) {
    case TIDE_CHANGE_DEVICE_MEMORY:
        options.device_memory_bytes = proposal->value;
        break;
    case TIDE_CHANGE_CHUNK_SIZE:
        options.chunk_bytes = proposal->value;
        break;
    case TIDE_CHANGE_PLACEMENT:
        options.placement = (tide_placement)proposal->value;
        break;
    default:
        options.prefetch = true;
        break;
    }
    proposal->step_seconds = play(run, &options);
    if (proposal->step_seconds > 0)
        proposal->tokens_per_second = (double)run->tokens / proposal->step_seconds;
}

static double measured_seconds(const tide_trace_steps *steps)
{
    double sum = 0;
    for (uint32_t i = steps->steady; i < steps->steady_end; i++)
        sum += steps->steps[i].line->step_seconds;
    return sum / (steps->steady_end - steps->steady);
}

/* Would the run do the same work with more memory or other chunks? Else blocks that it computed again might
 * be kept. */
static bool work_would_stay(const tide_trace_model *model)
{
    return !setting_is(model, "recompute", "auto") || setting_is(model, "recomputed-blocks", "0");
}

/* The memory of the device that the run could have used at most; 0: no limit is known. */
static uint64_t device_available(const tide_trace_model *model)
{
    const char *bytes = tide_trace_model_setting(model, "device-available");
    return bytes != NULL ? strtoull(bytes, NULL, 10) : 0;
}

/* Traces of older programs do not say how much memory the GPU has. */
static bool knows_available(const tide_trace_model *model)
{
    return tide_trace_model_setting(model, "device-available") != NULL || strcmp(model->device, "host") == 0;
}

static bool advise(recorded *run, tide_proposal *best)
{
    const double measured = measured_seconds(run->steps), as_it_was = play(run, &run->options);
    tide_proposal found[TIDE_PROPOSALS];
    if (as_it_was <= 0 || fabs(as_it_was - measured) > understood_part * measured)
        return false;
    tide_advised advised = {.changes = 1u << TIDE_CHANGE_PREFETCH,
                            .gpu_bytes = device_available(run->model),
                            .chunk_bytes = run->options.chunk_bytes,
                            .device_memory_bytes = run->options.device_memory_bytes,
                            .full_device_bytes = run->full_device_bytes,
                            .device_updates = run->device_updates,
                            .placement = run->options.placement,
                            .prefetches = run->options.prefetch,
                            .tokens_per_second = (double)run->tokens / as_it_was,
                            .predict = predict,
                            .context = run};
    if (work_would_stay(run->model))
        advised.changes |= 1u << TIDE_CHANGE_CHUNK_SIZE;
    if (work_would_stay(run->model) && knows_available(run->model))
        advised.changes |= 1u << TIDE_CHANGE_DEVICE_MEMORY;
    if (run->knows_host && run->knows_device)
        advised.changes |= 1u << TIDE_CHANGE_PLACEMENT;
    if (tide_advise(&advised, found) == 0 || found[0].gain < worth_part)
        return false;
    *best = found[0];
    return true;
}

bool tide_trace_advise(const tide_trace_steps *steps, tide_proposal *best)
{
    const tide_trace_model *model = steps->model;
    recorded run = {.steps = steps, .model = model};
    if (steps->count == 0 || model->ranks > 1 || model->op_count == 0 || model->param_count == 0 ||
        !is_plausible(model))
        return false;
    run.tokens = steps->steps[steps->steady_end - 1].line->tokens;
    machine_read(&run);
    const bool found = run_describe(&run) == TIDE_OK && script_write(&run) && times_read(&run) == TIDE_OK &&
                       run.tokens > 0 && advise(&run, best);
    tide_description_destroy(run.description);
    free(run.script.lines);
    free(run.times_ns);
    return found;
}
