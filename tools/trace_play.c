/* See trace_play.h. The first play is as it was, with rates as far as the trace tells them; its sums
 * against the trace's give the rates of kernels and updates. What the pool launches of its own accord
 * lasts what memory traffic does on a device that updates there, else no time: kernels' times are scaled,
 * so that all of compute together is what it was.
 */
#include "tools/trace_play.h"

#include "src/pool/course.h"
#include "tools/trace_slow.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_MOST = 20, EQUAL_STEPS = 3, SCRIPT_MAX = 1 << 22 };
/* Flops a second and a nanosecond: so many that what the pool's own kernels declare is nothing beside
 * them. */
static const double kernel_rate = 1e18, flops_per_ns = 1e9;

/* An op or slice, in the order in which they began. */
typedef struct script_line {
    uint32_t op, slice; /* op NONE: not told; slice NONE: the op begins */
} script_line;

struct tide_trace_player {
    const tide_trace_steps *steps;
    const tide_trace_model *model;
    script_line *script;
    uint32_t length;
    double *op_ns; /* tide_trace_op_medians */
    bool clips;
    tide_trace_change given;
    tide_machine machine;
    double link_in;
    uint64_t nonmodel_bytes;
    double compute_scale;
    bool knows[TIDE_TIER_COUNT];
    double compute_seconds, update_seconds[TIDE_TIER_COUNT]; /* of the trace's mean step */
    uint64_t full_device_bytes, full_host_bytes;
};

/* What steps that were played come to. */
typedef struct played {
    double step, compute, updates[TIDE_TIER_COUNT];
} played;

/* ---- what the trace tells ---- */

static void script_line_set(tide_trace_player *player, const tide_trace_event *event)
{
    if (event->op == TIDE_TRACE_NONE || event->moment >= player->length)
        return;
    player->script[event->moment] = (script_line){event->op, event->slice};
}

static bool tells_order(const tide_trace_event *event, uint64_t pass)
{
    return event->pass == pass && (event->kind == TIDE_TRACE_REQUEST || event->kind == TIDE_TRACE_OP) &&
           event->op != TIDE_TRACE_NONE;
}

/* The last steady step's ops and slices, by their moments. */
static tide_status script_make(tide_trace_player *player)
{
    const tide_trace_model *model = player->model;
    const tide_traced_pass *pass =
        &model->passes[player->steps->steps[player->steps->steady_end - 1].line->pass];
    uint32_t last = 0;
    for (uint64_t i = 0; i < model->event_count; i++)
        if (tells_order(&model->events[i], pass->pass) && model->events[i].moment > last)
            last = model->events[i].moment;
    if (last >= SCRIPT_MAX)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "%s: too many ops in a step to play it", model->path);
    player->length = last + 1;
    player->clips = pass->clips;
    player->script = malloc(player->length * sizeof *player->script);
    if (player->script == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory to play its steps", model->path);
    for (uint32_t i = 0; i < player->length; i++)
        player->script[i] = (script_line){TIDE_TRACE_NONE, TIDE_TRACE_NONE};
    for (uint64_t i = 0; i < model->event_count; i++)
        if (tells_order(&model->events[i], pass->pass))
            script_line_set(player, &model->events[i]);
    return TIDE_OK;
}

static double per_second(double amount, double seconds)
{
    return seconds > 0 ? amount / seconds : 0; /* 0: no limit */
}

static void machine_read(tide_trace_player *player)
{
    const tide_trace_model *model = player->model;
    double bytes[2] = {0}, seconds[2] = {0}, map_ns[2] = {0};
    uint64_t maps[2] = {0};
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        double ns = (double)(event->end_ns - event->begin_ns);
        if (event->kind == TIDE_TRACE_COPY) {
            int way = strcmp(event->what, "host") == 0;
            bytes[way] += (double)event->bytes, seconds[way] += 1e-9 * ns;
        } else if (event->kind == TIDE_TRACE_MAP && strcmp(event->what, "remap") != 0) {
            int away = strcmp(event->what, "unmap") == 0;
            maps[away]++, map_ns[away] += ns;
        }
    }
    player->link_in = per_second(bytes[0], seconds[0]);
    player->machine.link_out_bytes_per_second = per_second(bytes[1], seconds[1]);
    player->machine.map_ns = maps[0] > 0 ? (uint64_t)(map_ns[0] / (double)maps[0] + 0.5) : 0;
    player->machine.unmap_ns =
        maps[1] > 0 ? (uint64_t)(map_ns[1] / (double)maps[1] + 0.5) : player->machine.map_ns;
    player->machine.flops_per_second = kernel_rate;
}

static void means_read(tide_trace_player *player)
{
    const tide_trace_steps *steps = player->steps;
    double share = 1.0 / (steps->steady_end - steps->steady);
    for (uint32_t i = steps->steady; i < steps->steady_end; i++) {
        player->compute_seconds += share * steps->steps[i].line->compute_seconds;
        player->update_seconds[TIDE_TIER_HOST] += share * steps->steps[i].line->adam_host_seconds;
        player->update_seconds[TIDE_TIER_DEVICE] += share * steps->steps[i].line->adam_device_seconds;
    }
}

static bool setting_is(const tide_trace_model *model, const char *name, const char *value)
{
    const char *set = tide_trace_model_setting(model, name);
    return set != NULL && strcmp(set, value) == 0;
}

static tide_trace_change given_read(const tide_trace_model *model)
{
    tide_trace_change given = {.device_memory_bytes = model->device_memory_bytes,
                               .host_memory_bytes = model->host_memory_bytes,
                               .placement = TIDE_PLACEMENT_AUTO,
                               .prefetch = !setting_is(model, "prefetch", "off")};
    if (setting_is(model, "optimizer", "host"))
        given.placement = TIDE_PLACEMENT_HOST;
    if (setting_is(model, "optimizer", "device"))
        given.placement = TIDE_PLACEMENT_DEVICE;
    return given;
}

/* Whether tables and budgets fit what the trace says of chunks and slots: a pool of them is then no larger
 * than the run's. */
static bool is_plausible(const tide_trace_model *model)
{
    enum { SLOTS_MAX = 1 << 20, PARTS_MAX = 1 << 22 };
    double chunks[TIDE_SPACE_COUNT] = {0}, bytes[TIDE_SPACE_COUNT] = {0}, parts = 0;
    double chunk_bytes = (double)model->chunk_bytes, slots = SLOTS_MAX;
    for (uint32_t i = 0; i < model->chunk_count; i++)
        chunks[model->chunks[i].space] += chunk_bytes;
    for (uint32_t i = 0; i < model->param_count; i++) {
        const tide_traced_param *param = &model->params[i];
        bytes[TIDE_SPACE_PARAM] += (double)param->elements * (double)tide_dtype_bytes(model->dtype);
        for (uint32_t plane = 0; plane < param->plane_count && !param->frozen; plane++)
            bytes[TIDE_SPACE_STATE] += (double)param->elements / 32 * param->planes[plane];
    }
    for (uint32_t i = 0; i < model->checkpoint_count; i++) {
        const tide_traced_checkpoint *checkpoint = &model->checkpoints[i];
        bytes[TIDE_SPACE_CHECKPOINT] += (double)checkpoint->parts * (double)checkpoint->part_bytes;
        parts += checkpoint->parts;
    }
    for (int space = 0; space < TIDE_SPACE_COUNT; space++)
        if (bytes[space] > chunks[space])
            return false;
    return chunk_bytes > 0 && parts <= PARTS_MAX &&
           (double)model->device_memory_bytes <= slots * chunk_bytes &&
           (double)model->host_memory_bytes <= slots * chunk_bytes;
}

/* ---- a pool like the trace's ---- */

static tide_status never_called_update(void *context, const tide_step_options *step, uint64_t update,
                                       float scale, const tide_update_segment *segments, uint32_t count)
{
    (void)context, (void)step, (void)update, (void)scale, (void)segments, (void)count;
    return tide_fail(TIDE_ERROR_INTERNAL, "the null device called an optimizer");
}

static tide_status never_called_kernel(void *stream, const void *arguments)
{
    (void)stream, (void)arguments;
    return tide_fail(TIDE_ERROR_INTERNAL, "the null device called a kernel");
}

/* AdamW's own state needs no optimizer of the caller's. */
static bool has_other_state(const tide_trace_model *model)
{
    for (uint32_t i = 0; i < model->param_count; i++) {
        const tide_traced_param *param = &model->params[i];
        bool adam = param->plane_count == 3 && param->planes[0] == 128 && param->planes[1] == 128 &&
                    param->planes[2] == 128;
        if (!param->frozen && !adam)
            return true;
    }
    return false;
}

static tide_status params_register(const tide_trace_model *model, tide_pool *pool)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < model->param_count && status == TIDE_OK; i++) {
        const tide_traced_param *param = &model->params[i];
        tide_param_class of_class = {.frozen = param->frozen, .decay = param->decays && !param->frozen};
        tide_param number;
        of_class.state.planes = param->frozen ? 0 : param->plane_count;
        for (uint32_t plane = 0; plane < of_class.state.planes; plane++)
            of_class.state.bytes[plane] = param->planes[plane];
        status = tide_param_register(pool, param->name, &param->elements, 1, &of_class, &number);
    }
    for (uint32_t i = 0; i < model->checkpoint_count && status == TIDE_OK; i++) {
        tide_checkpoint number;
        status = tide_checkpoint_register(pool, model->checkpoints[i].name, model->checkpoints[i].parts,
                                          model->checkpoints[i].part_bytes, &number);
    }
    return status;
}

/* tide_traced_use is tide_use by another name; copied all the same. The caller frees it. */
static tide_use *uses_copy(const tide_traced_use *from, uint32_t count)
{
    tide_use *uses = malloc(((size_t)count + 1) * sizeof *uses);
    for (uint32_t i = 0; i < count && uses != NULL; i++)
        uses[i] = (tide_use){from[i].tensor, from[i].access};
    return uses;
}

static tide_status op_register(const tide_trace_model *model, const tide_traced_op *op, tide_pool *pool)
{
    tide_use *params = uses_copy(op->params, op->param_count);
    tide_use *checkpoints = uses_copy(op->checkpoints, op->checkpoint_count);
    tide_status status = TIDE_ERROR_NO_MEMORY;
    tide_op number;
    if (params != NULL && checkpoints != NULL) {
        const tide_op_description description = {.name = op->name,
                                                 .pass = op->pass,
                                                 .params = params,
                                                 .param_count = op->param_count,
                                                 .checkpoints = checkpoints,
                                                 .checkpoint_count = op->checkpoint_count,
                                                 .slices = op->checkpoint_count > 0 ? op->slices : 0,
                                                 .workspace_bytes = op->workspace_bytes};
        status = tide_op_register(pool, &description, &number);
    } else {
        (void)tide_fail(status, "%s: no memory to play its steps", model->path);
    }
    free(params);
    free(checkpoints);
    return status;
}

/* Updates of unknown length stay where they were. */
static tide_placement placement_of(const tide_trace_player *player, const tide_trace_change *change)
{
    bool moves = change->placement == TIDE_PLACEMENT_AUTO && !player->knows[TIDE_TIER_DEVICE];
    return moves ? TIDE_PLACEMENT_HOST : change->placement;
}

static tide_status pool_register(const tide_trace_player *player, const tide_trace_change *change,
                                 tide_pool **pool)
{
    const tide_trace_model *model = player->model;
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.device = "null";
    options.device_memory_bytes = change->device_memory_bytes;
    options.host_memory_bytes = change->host_memory_bytes;
    options.chunk_bytes = model->chunk_bytes;
    options.dtype = model->dtype;
    options.nonmodel_bytes = player->nonmodel_bytes;
    options.prefetch = change->prefetch;
    options.placement = placement_of(player, change);
    options.threads = 1;
    options.link_bytes_per_second = player->link_in;
    options.machine = player->machine;
    options.update = has_other_state(model) ? never_called_update : NULL;
    tide_status status = tide_pool_create(&options, pool);
    if (status != TIDE_OK)
        return status;
    status = params_register(model, *pool);
    for (uint32_t i = 0; i < model->op_count && status == TIDE_OK; i++)
        status = op_register(model, &model->ops[i], *pool);
    if (status != TIDE_OK)
        tide_pool_destroy(*pool);
    return status;
}

/* What of the region is neither workspace nor the pool's own was declared by the run. */
static tide_status region_match(tide_trace_player *player)
{
    tide_pool *pool = NULL;
    tide_pool_plan plan;
    tide_status status = pool_register(player, &player->given, &pool);
    if (status != TIDE_OK)
        return status;
    status = tide_pool_plan_get(pool, 0, &plan);
    tide_pool_destroy(pool);
    if (status == TIDE_OK && plan.region_bytes < player->model->region_bytes)
        player->nonmodel_bytes = player->model->region_bytes - plan.region_bytes;
    return status;
}

/* ---- steps ---- */

static tide_status launch(const tide_trace_player *player, tide_pool *pool, const script_line *line)
{
    double ns =
        player->op_ns[2 * (size_t)line->op + (line->slice != TIDE_TRACE_NONE)] * player->compute_scale;
    return ns > 0 ? tide_launch(pool, "traced", never_called_kernel, NULL, 0, ns * flops_per_ns, 0) : TIDE_OK;
}

static tide_status step_play(const tide_trace_player *player, tide_pool *pool)
{
    const tide_step_options options = {.training = true, .epsilon = 1, .clip_norm = player->clips ? 1 : 0};
    bool is_open = false;
    tide_status status = tide_step_begin(pool, &options);
    for (uint32_t i = 0; i < player->length && status == TIDE_OK; i++) {
        const script_line *line = &player->script[i];
        if (line->op == TIDE_TRACE_NONE)
            continue;
        if (line->slice != TIDE_TRACE_NONE) {
            status = tide_op_slice(pool, line->slice);
        } else {
            status = is_open ? tide_op_end(pool) : TIDE_OK;
            if (status == TIDE_OK)
                status = tide_op_begin(pool, line->op);
            is_open = true;
        }
        if (status == TIDE_OK)
            status = launch(player, pool, line);
    }
    if (status == TIDE_OK && is_open)
        status = tide_op_end(pool);
    return status == TIDE_OK ? tide_step_end(pool) : status;
}

static tide_status steps_play(const tide_trace_player *player, tide_pool *pool, played *mean)
{
    tide_course course = {.enough = EQUAL_STEPS, .most = STEPS_MOST, .first = 1};
    tide_pool_counters step;
    tide_status status = TIDE_OK;
    while (status == TIDE_OK && !tide_course_is_over(&course)) {
        status = step_play(player, pool);
        tide_course_take(&course, pool);
    }
    if (status != TIDE_OK)
        return status;
    tide_course_mean(&course, &step);
    *mean =
        (played){step.seconds,
                 step.compute_seconds,
                 {[TIDE_TIER_DEVICE] = step.adam_device_seconds, [TIDE_TIER_HOST] = step.adam_host_seconds}};
    return TIDE_OK;
}

static tide_status change_play(tide_trace_player *player, const tide_trace_change *change, played *mean)
{
    tide_pool *pool = NULL;
    tide_pool_plan plan;
    tide_status status = pool_register(player, change, &pool);
    if (status != TIDE_OK)
        return status;
    status = tide_pool_seal(pool);
    if (status == TIDE_OK)
        status = tide_pool_plan_get(pool, 0, &plan);
    if (status == TIDE_OK) {
        player->full_device_bytes = plan.full_device_bytes;
        player->full_host_bytes = plan.full_host_bytes;
        status = steps_play(player, pool, mean);
    }
    tide_pool_destroy(pool);
    return status;
}

/* ---- the player ---- */

/* Seconds that were played and should have been, as a rate that makes them so. */
static double rate_corrected(double rate, double was, double should_be)
{
    return was > 0 && should_be > 0 ? rate * was / should_be : rate;
}

/* Two rounds: what updates on the device take changes what the pool's own kernels do. */
static tide_status calibrate(tide_trace_player *player)
{
    enum { ROUNDS = 2 };
    const double *updates = player->update_seconds;
    tide_machine *machine = &player->machine;
    const tide_traced_machine *told = &player->model->machine; /* by the null device alone */
    machine->host_bytes_per_second = updates[TIDE_TIER_HOST] > 0 ? 1e10 : told->host_bytes_per_second;
    machine->device_bytes_per_second = updates[TIDE_TIER_DEVICE] > 0 ? 1e12 : told->device_bytes_per_second;
    player->knows[TIDE_TIER_HOST] = machine->host_bytes_per_second > 0;
    player->knows[TIDE_TIER_DEVICE] = machine->device_bytes_per_second > 0;
    for (int round = 0; round < ROUNDS; round++) {
        played was;
        tide_status status = change_play(player, &player->given, &was);
        if (status != TIDE_OK)
            return status;
        machine->host_bytes_per_second = rate_corrected(machine->host_bytes_per_second,
                                                        was.updates[TIDE_TIER_HOST], updates[TIDE_TIER_HOST]);
        machine->device_bytes_per_second = rate_corrected(
            machine->device_bytes_per_second, was.updates[TIDE_TIER_DEVICE], updates[TIDE_TIER_DEVICE]);
        if (was.compute > 0)
            player->compute_scale *= player->compute_seconds / was.compute;
    }
    return TIDE_OK;
}

tide_status tide_trace_player_make(const tide_trace_steps *steps, tide_trace_player **player)
{
    const tide_trace_model *model = steps->model;
    if (steps->count == 0 || model->op_count == 0 || model->param_count == 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "%s: no whole step to play", model->path);
    if (!is_plausible(model))
        return tide_fail(TIDE_ERROR_UNSUPPORTED, "%s: its tables are of no run that could be played",
                         model->path);
    tide_trace_player *made = calloc(1, sizeof *made);
    if (made == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory to play its steps", model->path);
    *made =
        (tide_trace_player){.steps = steps, .model = model, .given = given_read(model), .compute_scale = 1};
    made->op_ns = calloc(2 * (size_t)model->op_count, sizeof *made->op_ns);
    tide_status status = made->op_ns == NULL
                             ? tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory to play its steps", model->path)
                             : tide_trace_op_medians(steps, made->op_ns);
    if (status == TIDE_OK)
        status = script_make(made);
    machine_read(made);
    means_read(made);
    if (status == TIDE_OK)
        status = region_match(made);
    if (status == TIDE_OK)
        status = calibrate(made);
    if (status == TIDE_OK)
        *player = made;
    else
        tide_trace_player_free(made);
    return status;
}

void tide_trace_player_free(tide_trace_player *player)
{
    if (player == NULL)
        return;
    free(player->script);
    free(player->op_ns);
    free(player);
}

tide_trace_change tide_trace_player_given(const tide_trace_player *player)
{
    return player->given;
}

bool tide_trace_player_knows(const tide_trace_player *player, tide_tier tier)
{
    return player->knows[tier];
}

tide_status tide_trace_player_play(tide_trace_player *player, const tide_trace_change *change,
                                   double *step_seconds)
{
    played mean;
    tide_status status = change_play(player, change, &mean);
    if (status == TIDE_OK)
        *step_seconds = mean.step;
    return status;
}

uint64_t tide_trace_player_full_device_bytes(const tide_trace_player *player)
{
    return player->full_device_bytes;
}

uint64_t tide_trace_player_full_host_bytes(const tide_trace_player *player)
{
    return player->full_host_bytes;
}
