/* The gradient norm: summed on the device, read once a step, and what follows from it.
 *
 * With clipping, and in fp16, the updates wait for it: the clip factor is computed here, once, in float64, and a step
 * whose norm is not finite is skipped (params rewritten from MASTER). Otherwise the updates run during
 * backward already; a norm that is not finite then means that params may be spoilt: the pool is torn.
 *
 * Loss scale. Stored gradients are the loss scale times too large. It is a power of two, so taking it out again is exact:
 * of the norm here, of the gradients in the factor that an update multiplies them by anyway. Where nothing over- or
 * underflows, any loss scale gives the same bits.
 *
 * Skipped in a row. A dynamic loss scale begins high and falls by half with each overflow, 16 times from 65536 to 1;
 * those steps do not say that training can't go on. So a step that is skipped at a lower scale than the one skipped
 * before it begins the count anew: ten in a row are ten that found no lower scale, at the least scale there is or with a
 * scale that does not move. (PyTorch's scaler has no end; Megatron-LM's stops falling at its least scale and goes on.)
 */
#include "src/pool/internal.h"

#include <assert.h>
#include <math.h>

tide_status tide_pool_norm_enqueue(tide_pool *pool)
{
    const tide_region_layout *region = &pool->ground.region_layout;
    const tide_access access = tide_writes(TIDE_OBJECT_REGION, pool->ground.region_object);
    const tide_norm_sum_args sum = {.blocks =
                                        (const double *)(void *)(pool->ground.region + region->blocks_offset),
                                    .sum = (double *)(void *)(pool->ground.region + region->scalars_offset),
                                    .blocks_count = region->blocks_count};
    tide_status status = tide_pool_compute_launch(pool, "norm", pool->ground.kernels->norm_sum, &sum,
                                                  sizeof sum, (double)tide_norm_sum_flops(&sum),
                                                  (double)tide_norm_sum_bytes(&sum), &access, 1);
    if (status == TIDE_OK)
        status = tide_order_record(&pool->order, TIDE_STREAM_COMPUTE, &pool->norm.number);
    if (status == TIDE_OK)
        pool->norm.phase = TIDE_NORM_ASKED;
    return status;
}

/* On the engine's thread, which also reads the mailbox: so the next step's copy into it comes after that reading. No
 * work of an op comes between sum and copy, since a step begins when the norm before is settled. */
static tide_status copy_to_host(tide_pool *pool)
{
    const tide_access accesses[] = {tide_reads(TIDE_OBJECT_REGION, pool->ground.region_object),
                                    tide_writes(TIDE_OBJECT_BUFFER, pool->norm.mailbox_object)};
    const tide_work work = {
        .label = tide_label_norm_to_host, .tag = UINT32_MAX, .accesses = accesses, .access_count = 2};
    tide_status status = pool->ground.device->ops->copy_bytes(
        pool->ground.device, TIDE_STREAM_COMPUTE, &work, pool->norm.mailbox,
        pool->ground.region + pool->ground.region_layout.scalars_offset, sizeof(double), false);
    if (status != TIDE_OK)
        return status;
    status = tide_order_record(&pool->order, TIDE_STREAM_COMPUTE, &pool->norm.number);
    if (status == TIDE_OK)
        pool->norm.phase = TIDE_NORM_PENDING;
    return status;
}

bool tide_pool_norm_known(const tide_pool *pool)
{
    return pool->norm.phase == TIDE_NORM_IDLE || pool->norm.phase == TIDE_NORM_KNOWN;
}

tide_status tide_pool_settle(tide_pool *pool)
{
    const tide_status status = tide_engine_wait(pool, tide_pool_norm_known);
    return status == TIDE_OK ? tide_engine_wait(pool, tide_pool_updates_done) : status;
}

bool tide_pool_updates_ended(const tide_pool *pool)
{
    return !tide_jobs_busy(&pool->jobs) && tide_pool_updates_done(pool);
}

bool tide_pool_updates_done(const tide_pool *pool)
{
    return tide_manager_updates_open(pool->engine.manager) == 0;
}

void tide_pool_updates_let_go(tide_pool *pool, float gradient_scale)
{
    tide_records_let_go(&pool->journal.records);
    pool->jobs.terms.update = pool->engine.updates + 1;
    pool->journal.tracer.let_go_step = pool->journal.tracer.step;
    pool->jobs.terms.step = pool->step.options;
    pool->jobs.terms.scale = gradient_scale;
}

/* As PyTorch's clip_grad_norm_: max / (norm + 1e-6), at most 1. A max of 0 does not clip. */
static float clip_factor(double norm, double max)
{
    if (!(max > 0))
        return 1.0F;
    const double factor = max / (norm + 1e-6);
    return factor < 1.0 ? (float)factor : 1.0F;
}

static void count_step(tide_pool *pool)
{
    pool->engine.updates = pool->jobs.terms.update;
    pool->engine.is_counted = true;
}

static tide_status skip(tide_pool *pool)
{
    const double scale = (double)pool->norm.result.loss_scale;
    pool->norm.result.skipped = true;
    pool->journal.records.sums.skipped++;
    const bool lower = pool->norm.skipped_in_row > 0 && scale < pool->norm.skipped_scale;
    pool->norm.skipped_in_row = lower ? 1 : pool->norm.skipped_in_row + 1;
    pool->norm.skipped_scale = scale;
    tide_records_let_go(&pool->journal.records);
    return tide_manager_skip_updates(pool->engine.manager);
}

static tide_status let_go(tide_pool *pool)
{
    pool->norm.result.gradient_scale =
        clip_factor(pool->norm.result.gradient_norm, pool->step.options.clip_norm) /
        pool->norm.result.loss_scale;
    pool->norm.skipped_in_row = 0;
    tide_pool_updates_let_go(pool, pool->norm.result.gradient_scale);
    count_step(pool);
    return tide_manager_release_updates(pool->engine.manager);
}

/* Where updates do not wait they run already. */
static tide_status check_immediate(tide_pool *pool, bool finite)
{
    pool->norm.skipped_in_row = finite ? 0 : pool->norm.skipped_in_row;
    pool->norm.result.gradient_scale = pool->jobs.terms.scale;
    if (finite) {
        count_step(pool);
        return TIDE_OK;
    }
    tide_pool_tear(pool);
    return tide_fail(
        TIDE_ERROR_NONFINITE,
        "step %llu: the gradient norm is not finite, and updates did not wait for it; the pool is torn",
        (unsigned long long)pool->journal.tracer.step);
}

static tide_status decide(tide_pool *pool)
{
    const tide_access access = tide_reads(TIDE_OBJECT_BUFFER, pool->norm.mailbox_object);
    const tide_work work = {.label = "norm on host", .accesses = &access, .access_count = 1};
    tide_status status = pool->ground.device->ops->host_touch(pool->ground.device, &work);
    if (status != TIDE_OK)
        return status;
    pool->norm.phase = TIDE_NORM_KNOWN;
    const double square = pool->ground.device->ops->has_data ? pool->norm.mailbox[0] : 0.0;
    const float loss_scale = tide_pool_loss_scale(&pool->step.options);
    pool->norm.result = (tide_step_result){.gradient_norm = sqrt(square) / (double)loss_scale,
                                           .loss_scale = loss_scale,
                                           .zero_gradients = pool->norm.zero_gradients};
    pool->norm.has_result = true;
    const bool finite = isfinite(square);
    if (!tide_pool_step_waits(pool, &pool->step.options))
        return check_immediate(pool, finite);
    status = finite ? let_go(pool) : skip(pool);
    pool->norm.result.skipped_in_row = pool->norm.skipped_in_row;
    return status;
}

static tide_status norm_arrived(tide_pool *pool, bool *arrived)
{
    const tide_status status = tide_order_query(&pool->order, TIDE_STREAM_COMPUTE, pool->norm.number,
                                                TIDE_SITE_NORM_COMPUTE, arrived);
    return status == TIDE_OK && *arrived ? pool->ground.device->ops->failure(pool->ground.device) : status;
}

bool tide_pool_norm_poll(tide_pool *pool)
{
    tide_status status = TIDE_OK;
    bool arrived = false;
    /* Without room the sum is still to come: its passing brings the engine here again. */
    if (pool->norm.phase == TIDE_NORM_ASKED &&
        pool->ground.device->ops->room(pool->ground.device, TIDE_STREAM_COMPUTE, false))
        status = copy_to_host(pool);
    if (status == TIDE_OK && pool->norm.phase != TIDE_NORM_PENDING)
        return false;
    if (status == TIDE_OK)
        status = norm_arrived(pool, &arrived);
    if (status == TIDE_OK && !arrived)
        return false;
    if (status == TIDE_OK)
        status = decide(pool);
    if (status != TIDE_OK)
        tide_monitor_fail(&pool->monitor,
                          status); /* what has not come as far as decide is lost, and not known */
    tide_monitor_progress(&pool->monitor);
    return true;
}

/* --- the caller's side --- */

/* The first param with a norm block that is not finite; NULL if none. Reads the blocks through the staging
 * buffer. */
static const char *find_nonfinite(tide_pool *pool)
{
    enum { PIECE = 512 };
    double blocks[PIECE];
    const double *all =
        (const double *)(void *)(pool->ground.region + pool->ground.region_layout.blocks_offset);
    for (uint32_t i = 0; i < pool->model.param_count; i++) {
        const uint64_t count = tide_norm_blocks(pool->model.params[i].elements);
        for (uint64_t done = 0; done < count; done += PIECE) {
            const size_t piece = (size_t)(count - done < PIECE ? count - done : PIECE);
            if (tide_pool_read_region(pool, blocks, all + pool->model.params[i].first_block + done,
                                      piece * sizeof *blocks) != TIDE_OK)
                return NULL;
            for (size_t j = 0; j < piece; j++) {
                if (!isfinite(blocks[j]))
                    return pool->model.params[i].name;
            }
        }
    }
    return NULL;
}

static tide_status nonfinite(tide_pool *pool, const char *what)
{
    tide_monitor_unlock(&pool->monitor);
    const char *param = find_nonfinite(pool);
    tide_monitor_lock(&pool->monitor);
    return tide_fail(TIDE_ERROR_NONFINITE, "step %llu: the gradient of param %s is not finite; %s",
                     (unsigned long long)pool->journal.tracer.step, param == NULL ? "(unknown)" : param,
                     what);
}

tide_status tide_step_result_get(tide_pool *pool, tide_step_result *result)
{
    tide_status status = tide_pool_given("tide_step_result_get", result == NULL ? "result" : NULL);
    if (status == TIDE_OK)
        status = tide_pool_callable(pool, "tide_step_result_get");
    if (status != TIDE_OK && status != TIDE_ERROR_NONFINITE)
        return status;
    tide_monitor_lock(&pool->monitor);
    if (status == TIDE_OK && pool->step.is_open)
        status = tide_fail(TIDE_ERROR_STATE, "tide_step_result_get: a step is open");
    if (status == TIDE_OK)
        status = tide_engine_wait_held(pool, tide_pool_norm_known);
    if (status == TIDE_ERROR_NONFINITE && pool->engine.torn)
        status = nonfinite(pool, "updates did not wait for the norm, so the pool is torn");
    else if (status == TIDE_OK && pool->norm.skipped_in_row >= TIDE_SKIPS_MAX)
        status = nonfinite(pool, "ten steps in a row were skipped");
    if (status == TIDE_OK && !pool->norm.has_result)
        status = tide_fail(TIDE_ERROR_STATE,
                           "tide_step_result_get: no training step has ended, or the last was given up");
    if (status == TIDE_OK)
        *result = pool->norm.result;
    tide_monitor_unlock(&pool->monitor);
    return status;
}
