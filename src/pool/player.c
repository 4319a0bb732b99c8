#include "src/pool/player.h"

#include "src/pool/internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

struct tide_player {
    tide_pool *pool;
    tide_course course;
    tide_device_options machine; /* the last play's; updates may be launched after it */
    bool times_all;              /* the last play's */
    double next_ns;              /* with times_all: how long the pool's next kernel lasts */
};

static const char unit_label[] = "unit";

/* --- create and destroy --- */

/* An upper bound for the commands that one step enqueues on one stream: a few kernels, waits and event
 * records for each op, each of its params, each of its slices and each sum group. */
static uint32_t step_commands(const tide_packing *packing)
{
    uint64_t count = 64;
    for (uint32_t i = 0; i < packing->op_count; i++) {
        const tide_op_description *op = packing->ops[i].description;
        count += 8 + 4 * (uint64_t)op->param_count + (2 + 2 * (uint64_t)op->activation_count) * op->slices;
        if (packing->sum_groups > 1)
            count += 4 * (uint64_t)packing->sum_groups * (1 + op->param_count);
    }
    return count < UINT32_MAX / 2 ? (uint32_t)count : UINT32_MAX / 2;
}

static tide_status allocate(tide_player **player)
{
    *player = calloc(1, sizeof **player);
    return *player != NULL
               ? TIDE_OK
               : tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to play steps (%zu bytes)", sizeof **player);
}

/* Returns `status`; if it is a failure, destroys the player that was being made. */
static tide_status made(tide_status status, tide_player *making, tide_player **player)
{
    if (status == TIDE_OK)
        *player = making;
    else
        tide_player_destroy(making);
    return status;
}

tide_status tide_player_create(const tide_pool_options *options, tide_description *description,
                               tide_player **player)
{
    tide_player *making = NULL;
    tide_status status = allocate(&making);
    if (status == TIDE_OK)
        status = tide_pool_make(options, description, &making->pool);
    return made(status, making, player);
}

tide_status tide_player_of(const tide_pool *pool, tide_player **player)
{
    const tide_pool_options *real = &pool->context.options;
    const tide_pool_options options = {.device = "null",
                                       .device_memory_bytes = pool->context.plan.device_memory_bytes,
                                       .host_memory_bytes = pool->context.plan.host_memory_bytes,
                                       .chunk_bytes = real->chunk_bytes,
                                       .staging_bytes = real->staging_bytes,
                                       .prefetch = real->prefetch,
                                       .placement = real->placement,
                                       .threads = real->threads,
                                       .sum_groups = real->sum_groups,
                                       .reduce_dtype = real->reduce_dtype,
                                       .ranks = {.count = real->ranks.count,
                                                 .zero_stage = real->ranks.zero_stage,
                                                 .reshard = real->ranks.reshard},
                                       .update =
                                           real->update /* never called: the null device calls nothing */};
    tide_player *making = NULL;
    tide_status status = allocate(&making);
    if (status == TIDE_OK)
        status = tide_pool_make_sharing(pool, &options, &making->pool);
    if (status == TIDE_OK)
        status = tide_device_null_reserve(making->pool->context.device, step_commands(pool->context.packing));
    return made(status, making, player);
}

void tide_player_destroy(tide_player *player)
{
    if (player != NULL)
        tide_pool_unmake(player->pool);
    free(player);
}

tide_pool *tide_player_pool(tide_player *player)
{
    return player->pool;
}

tide_status tide_player_script(const tide_description *description, uint32_t ops, bool clips,
                               tide_script *script)
{
    size_t lines = 0;
    for (tide_op op = 0; op < ops; op++)
        lines += (size_t)description->ops[op].slices + 2;
    *script = (tide_script){.lines = calloc(lines, sizeof *script->lines), .clips = clips};
    if (script->lines == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to play %u ops", ops);
    for (tide_op op = 0; op < ops; op++) {
        script->lines[script->length++] = (tide_script_line){op, TIDE_SCRIPT_OP};
        for (uint32_t slice = 0; slice < description->ops[op].slices; slice++)
            script->lines[script->length++] = (tide_script_line){op, (int32_t)slice};
        script->lines[script->length++] = (tide_script_line){op, TIDE_SCRIPT_END};
    }
    return TIDE_OK;
}

/* --- a step --- */

static tide_status never_called(void *stream, const void *arguments)
{
    (void)stream;
    (void)arguments;
    return tide_fail(TIDE_ERROR_INTERNAL, "the null device called a kernel");
}

/* The time that the machine gives a kernel; -1: by the machine's rates. */
static double machine_ns(const tide_device_options *machine, tide_stream stream, const tide_work *work,
                         const void *arguments)
{
    return machine->kernel_time != NULL
               ? machine->kernel_time(machine->kernel_time_context, stream, work, never_called, arguments)
               : -1;
}

/* The device's tide_kernel_time. A unit's arguments are its time. */
static double kernel_ns(void *context, tide_stream stream, const tide_work *work, tide_kernel fn,
                        const void *arguments)
{
    tide_player *player = context;
    (void)fn;
    if (work->label == unit_label)
        return *(const double *)arguments;
    if (stream != TIDE_STREAM_COMPUTE || !player->times_all)
        return machine_ns(&player->machine, stream, work, arguments);
    const double ns = player->next_ns;
    player->next_ns = 0;
    return ns;
}

/* Let the pool's next kernel last as long as all of its kernels in the series. */
static void let_last(tide_player *player, const tide_play *play, uint32_t series)
{
    player->next_ns = play->times_all ? play->times_ns[series] : 0;
}

static tide_status line_play(tide_player *player, const tide_play *play, const tide_script_line *line)
{
    const tide_measure *series = &player->pool->telemetry.measure;
    if (line->slice == TIDE_SCRIPT_OP) {
        let_last(player, play, tide_series_of_begin(series, line->op));
        return tide_op_begin(player->pool, line->op);
    }
    assert(line > play->script->lines); /* its begin comes before */
    const bool ends = line->slice == TIDE_SCRIPT_END, was_sliced = line[-1].slice >= 0;
    tide_status status = ends ? TIDE_OK : tide_op_slice(player->pool, (uint32_t)line->slice);
    if (status == TIDE_OK && !(ends && was_sliced))
        status = tide_launch(player->pool, unit_label, never_called,
                             &play->times_ns[tide_series_of_op(line->op)], sizeof(double), 0, 0);
    if (status != TIDE_OK || !ends)
        return status;
    let_last(player, play, tide_series_of_end(series, line->op));
    return tide_op_end(player->pool);
}

static tide_status step_play(tide_player *player, const tide_play *play)
{
    const tide_script *script = play->script;
    const tide_step_options options = {.training = true, .epsilon = 1, .clip_norm = script->clips ? 1 : 0};
    let_last(player, play, TIDE_SERIES_BEFORE);
    tide_status status = tide_step_begin(player->pool, &options);
    for (uint32_t i = 0; i < script->length && status == TIDE_OK; i++)
        status = line_play(player, play, &script->lines[i]);
    let_last(player, play, TIDE_SERIES_AFTER);
    return status == TIDE_OK ? tide_step_end(player->pool) : status;
}

/* Give up a step that could not be played, so that another can be; returns `status` with the message of the
 * failure. */
static tide_status failed(tide_player *player, tide_status status)
{
    char message[512];
    snprintf(message, sizeof message, "%s", tide_message());
    (void)tide_step_abort(player->pool);   /* `message` matters more than this status */
    player->pool->engine.poisoned = false; /* a played pool has no params that could be undefined */
    return tide_fail(status, "%s", message);
}

/* Set the machine of the player's device, with the times of `play`. */
static tide_status imitate(tide_player *player, const tide_play *play)
{
    tide_device_options machine = player->machine = *play->machine;
    player->times_all = play->times_all;
    machine.kernel_time = kernel_ns;
    machine.kernel_time_context = player;
    return tide_device_null_imitate(player->pool->context.device, &machine);
}

tide_status tide_player_step(tide_player *player, const tide_play *play)
{
    tide_status status = imitate(player, play);
    if (status == TIDE_OK)
        status = step_play(player, play);
    return status == TIDE_OK ? TIDE_OK : failed(player, status);
}

/* --- steps until they repeat --- */

tide_status tide_player_play(tide_player *player, const tide_play *play, uint32_t equal_steps,
                             tide_pool_counters *step, uint32_t *steps)
{
    tide_course *course = &player->course;
    *course = (tide_course){.enough = equal_steps,
                            .most = TIDE_COURSE_STEPS_MAX,
                            .first = player->pool->telemetry.tracer.step + 1};
    while (!tide_course_is_over(course)) {
        if (play->go_on != NULL && !play->go_on(play->context))
            return tide_fail(TIDE_ERROR_STATE, "a prediction was ended before its steps repeated");
        const tide_status status = tide_player_step(player, play);
        if (status != TIDE_OK)
            return status;
        tide_course_take(course, player->pool);
    }
    if (step != NULL)
        tide_course_mean(course, step);
    if (steps != NULL)
        *steps = course->count;
    return TIDE_OK;
}
