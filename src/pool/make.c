/* Plans and makes pools: checks and completes the options, creates the objects and connects them. */
#include "src/pool/inspect.h"
#include "src/pool/internal.h"

#include "base/align.h"
#include "base/minmax.h"
#include "base/team.h"
#include "offload/topology.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_CHUNK_BYTES = 256 * 1024, DEFAULT_STAGING_BYTES = 1024 * 1024, ZERO_STAGE_MAX = 3 };
#define MAX_CHUNK_BYTES     (UINT64_C(1) << 30)
#define MAX_STAGING_BYTES   (UINT64_C(1) << 40)
#define DEFAULT_CHUNK_BYTES (UINT64_C(64) << 20)
#define RANKS_CHUNK_BYTES   (UINT64_C(2) << 20) /* no smaller ones are chosen for several ranks */

void tide_pool_options_default(tide_pool_options *options)
{
    if (options == NULL)
        return;
    *options = (tide_pool_options){
        .device = "host",
        .chunk_bytes = DEFAULT_CHUNK_BYTES,
        .staging_bytes = DEFAULT_STAGING_BYTES,
        .prefetch = true,
        .placement = TIDE_PLACEMENT_AUTO,
        .ranks = {.count = 1, .zero_stage = ZERO_STAGE_MAX},
        /* the null device simulates an H200 and its host, with the link of link_bytes_per_second */
        .machine = {.flops_per_second = 790e12,
                    .device_bytes_per_second = 4.8e12,
                    .host_bytes_per_second = 240e9,
                    .map_ns = 50000},
    };
}

static tide_status rates_check(const tide_pool_options *options)
{
    const tide_machine *machine = &options->machine;
    const struct {
        const char *name;
        double per_second;
    } rates[] = {{"link_bytes_per_second", options->link_bytes_per_second},
                 {"machine.flops_per_second", machine->flops_per_second},
                 {"machine.device_bytes_per_second", machine->device_bytes_per_second},
                 {"machine.host_bytes_per_second", machine->host_bytes_per_second},
                 {"machine.link_out_bytes_per_second", machine->link_out_bytes_per_second}};
    for (size_t i = 0; i < sizeof rates / sizeof rates[0]; i++) {
        if (!isfinite(rates[i].per_second) || rates[i].per_second < 0)
            return tide_fail(TIDE_ERROR_ARGUMENT, "pool: %s is %g, it must be finite and at least 0",
                             rates[i].name, rates[i].per_second);
    }
    return TIDE_OK;
}

static tide_status sizes_check(const tide_pool_options *options)
{
    const struct {
        const char *name;
        uint64_t value, most;
    } sizes[] = {{"staging_bytes", options->staging_bytes, MAX_STAGING_BYTES},
                 {"threads", options->threads, TIDE_THREADS_MAX},
                 {"ranks.count", options->ranks.count, TIDE_RANKS_MAX},
                 {"sum_groups", options->sum_groups, TIDE_SUM_GROUPS_MAX},
                 {"ranks.zero_stage", options->ranks.zero_stage, ZERO_STAGE_MAX},
                 {"ranks.reshard", (uint64_t)options->ranks.reshard, TIDE_RESHARD_OFF},
                 {"delay_max_us", options->checks.delay_max_us, TIDE_DELAY_MAX_US}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        if (sizes[i].value > sizes[i].most)
            return tide_fail(TIDE_ERROR_ARGUMENT, "pool: %s is %llu, at most %llu are allowed", sizes[i].name,
                             (unsigned long long)sizes[i].value, (unsigned long long)sizes[i].most);
    }
    return TIDE_OK;
}

static tide_status options_check(const tide_pool_options *options)
{
    const uint64_t chunk = options->chunk_bytes;
    if (options->device == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "pool: no device named; \"host\", \"null\" and \"cuda:N\" exist");
    if (chunk < MIN_CHUNK_BYTES || chunk > MAX_CHUNK_BYTES || !tide_is_power_of_two(chunk))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "pool: chunk size %llu is not a power of two from 256 KiB to 1 GiB",
                         (unsigned long long)chunk);
    if ((unsigned)options->placement > TIDE_PLACEMENT_DEVICE)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: unknown placement %d", (int)options->placement);
    if (options->update != NULL && options->placement == TIDE_PLACEMENT_DEVICE)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "pool: an update callback runs on the host, so its placement can't be the device");
    if (options->reduce_dtype != TIDE_DTYPE_FP32 && options->reduce_dtype != TIDE_DTYPE_BF16)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: reduce_dtype %d is neither fp32 nor bf16",
                         (int)options->reduce_dtype);
    if (options->ranks.comm != NULL && options->ranks.count != tide_comm_ranks(options->ranks.comm))
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: ranks.count is %u, but ranks.comm has %u",
                         options->ranks.count, tide_comm_ranks(options->ranks.comm));
    if (options->sum_groups % options->ranks.count != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: sum_groups is %u, it must be a multiple of %u ranks",
                         options->sum_groups, options->ranks.count);
    if (options->ranks.count > 1 && !tide_is_power_of_two(options->sum_groups / options->ranks.count))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "pool: sum_groups is %u, for each of %u ranks it must be a power of two",
                         options->sum_groups, options->ranks.count);
    if (options->ranks.count > 1 && options->ranks.zero_stage < ZERO_STAGE_MAX &&
        options->ranks.reshard != TIDE_RESHARD_AUTO)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: ranks.reshard is of ZeRO stage 3, the stage is %u",
                         options->ranks.zero_stage);
    if (options->checks.guard && (options->checks.finish_beside || options->ranks.count > 1))
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: checks.guard and %s exclude each other",
                         options->checks.finish_beside ? "checks.finish_beside" : "several ranks");
    if (options->checks.skip_wait_site >= TIDE_SITE_COUNT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: wait site %u does not exist",
                         options->checks.skip_wait_site);
    const tide_status status = sizes_check(options);
    return status == TIDE_OK ? rates_check(options) : status;
}

/* Copy the given options, replace zeros by defaults, and check the result. */
static tide_status options_complete(const tide_pool_options *given, tide_pool_options *options)
{
    *options = *given;
    if (options->chunk_bytes == 0)
        options->chunk_bytes = DEFAULT_CHUNK_BYTES;
    if (options->staging_bytes == 0)
        options->staging_bytes = DEFAULT_STAGING_BYTES;
    if (options->ranks.count <= 1)
        options->ranks.count = tide_comm_ranks(options->ranks.comm);
    if (options->sum_groups == 0)
        options->sum_groups = options->ranks.count;
    tide_status status = options_check(options);
    if (options->update != NULL)
        options->placement = TIDE_PLACEMENT_HOST;
    assert(status != TIDE_OK || tide_is_power_of_two(options->chunk_bytes));
    options->staging_bytes = tide_round_up(options->staging_bytes, 2 * TIDE_ALIGNMENT_BYTES);
    return status;
}

/* Find the device of complete options; a GPU is made ready. */
static tide_status device_find(const tide_pool_options *options, tide_device_factory *factory)
{
    const tide_status status =
        tide_device_factory_find(options->device, options->machine.gpu_memory_bytes, factory);
    if (status == TIDE_OK && options->chunk_bytes < factory->chunk_bytes_min)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "pool: chunk size %llu is too small for %s, it must be at least %llu bytes",
                         (unsigned long long)options->chunk_bytes,
                         tide_device_factory_is_null(options->device) ? "a GPU" : options->device,
                         (unsigned long long)factory->chunk_bytes_min);
    return status;
}

/* Can the optimizer work with the param's state? A plane's elements must be fp32 or of the pool's dtype. */
static tide_status state_check(const tide_pool_options *options, const tide_description *description,
                               tide_param param)
{
    const tide_dtype dtype = description->dtype;
    const uint32_t fp32 = 128, own = 32 * (uint32_t)tide_dtype_bytes(dtype);
    const tide_state_format *state = tide_description_state(description, param);
    const char *name = tide_names_at(&description->params, param)->name;
    bool is_adamw = state->planes == TIDE_STATE_PLANES_MAX;
    for (uint32_t i = 0; i < state->planes; i++) {
        const uint32_t bytes = state->bytes[i];
        is_adamw = is_adamw && bytes == fp32;
        if (bytes != fp32 && bytes != own)
            return tide_fail(
                TIDE_ERROR_ARGUMENT,
                "param %s: plane %u of its state has %u bytes for 32 elements; in a pool of %s it "
                "has %s",
                name, i, bytes, tide_dtype_name(dtype), own == fp32 ? "128" : "64 or 128");
    }
    if (options->update == NULL && !is_adamw && !tide_description_is_frozen(description, param))
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "param %s: AdamW's state is three planes of 128 bytes; another needs options.update",
                         name);
    return TIDE_OK;
}

static tide_status states_check(const tide_pool_options *options, const tide_description *description)
{
    tide_status status = TIDE_OK;
    for (tide_param i = 0; i < description->params.count && status == TIDE_OK; i++)
        status = state_check(options, description, i);
    return status;
}

/* Can each op that makes gradients share its slices out among the sum groups? */
static tide_status groups_check(uint32_t groups, const tide_description *description)
{
    for (tide_op i = 0; i < description->op_count && groups > 1; i++) {
        const tide_op_description *op = &description->ops[i];
        if (tide_packing_makes_gradients(op) && (op->slices == 0 || op->slices % groups != 0))
            return tide_fail(
                TIDE_ERROR_ARGUMENT,
                "pool: sum_groups is %u, but op %s, which makes gradients, has %u slices; it must "
                "have a multiple of %u",
                groups, op->name, op->slices, groups);
    }
    return TIDE_OK;
}

/* Two parts of gradients from each rank: one that arrives while the other is summed. A part need not be
 * larger than a rank's share of all gradients. */
static uint64_t ring_bytes(uint32_t ranks, const tide_description *description)
{
    const uint64_t least = 4096, most = UINT64_C(2) << 20;
    uint64_t elements = 0;
    for (tide_param i = 0; i < description->params.count; i++)
        if (!tide_description_is_frozen(description, i))
            elements += tide_description_param_elements(description, i);
    const uint64_t share = tide_round_up(tide_ceil_div(elements, ranks) * sizeof(float), least);
    return ranks > 1 ? 2 * ranks * tide_min_u64(most, tide_max_u64(share, least)) : 0;
}

static tide_status pack(const tide_pool_context *context, tide_description *description, bool two_ends,
                        tide_packing *packing)
{
    return tide_packing_create(
        packing, description,
        &(tide_packing_options){.chunk_bytes = context->options.chunk_bytes,
                                .shard = tide_context_shard(context),
                                .placement = context->options.placement,
                                .sum_groups = tide_context_sum_groups(context),
                                .two_ends = two_ends,
                                .ring_bytes = ring_bytes(tide_context_ranks(context), description)});
}

static tide_status try_ranks(tide_pool_context *context, tide_description *description, uint64_t chunk_bytes,
                             bool two_ends, tide_packing *packing)
{
    tide_packing_destroy(packing);
    context->options.chunk_bytes = chunk_bytes;
    const tide_status status = pack(context, description, two_ends, packing);
    return status == TIDE_OK ? tide_plan_make(context, false, &context->plan) : status;
}

/* Does the plan fit, and do gathers run ahead if they shall? */
static bool suits(const tide_pool_context *context, bool ahead)
{
    const tide_pool_plan *plan = &context->plan;
    const uint64_t device = tide_min_u64(plan->device_memory_bytes, plan->device_available_bytes);
    return device >= plan->least_device_bytes && plan->host_memory_bytes >= plan->least_host_bytes &&
           (!ahead || plan->gathers_ahead || context->options.ranks.zero_stage == 0);
}

/* Plan several ranks with the largest chunks with which gathers run ahead, else with which the run fits.
 * Accumulators of neighbouring ops lie side by side if that is possible with these chunks. With `any_chunk`
 * chunks may be smaller than those of the options. */
static tide_status plan_of_ranks(tide_pool_context *context, tide_description *description, bool any_chunk,
                                 bool refuse, tide_packing *packing)
{
    const uint64_t largest = context->options.chunk_bytes,
                   smallest = any_chunk ? tide_max_u64(context->factory.chunk_bytes_min, RANKS_CHUNK_BYTES)
                                        : largest;
    bool found = false;
    tide_status status = TIDE_OK;
    for (int ahead = 1; ahead >= 0 && !found; ahead--)
        for (uint64_t chunk = largest; chunk >= smallest && !found; chunk /= 2)
            for (int two_ends = 1; two_ends >= 0 && !found; two_ends--) {
                status = try_ranks(context, description, chunk, two_ends, packing);
                if (status != TIDE_OK)
                    return status;
                found = suits(context, ahead);
            }
    return refuse ? tide_plan_make(context, true, &context->plan) : TIDE_OK;
}

/* Set the fields of a context that are known before its device is open: options, factory, packing and plan.
 * `packing` is the caller's, who destroys it, even after a failure. */
static tide_status context_plan(const char *call, const tide_pool_options *options,
                                tide_description *description, bool refuse, tide_packing *packing,
                                tide_pool_context *context)
{
    *context = (tide_pool_context){.packing = packing};
    tide_status status = options_complete(options, &context->options);
    if (status == TIDE_OK)
        status = tide_packing_check(description, call);
    if (status == TIDE_OK)
        status = states_check(options, description);
    if (status == TIDE_OK)
        status = groups_check(tide_context_sum_groups(context), description);
    if (status == TIDE_OK)
        status = device_find(&context->options, &context->factory);
    context->kernels = context->factory.kernels;
    if (status != TIDE_OK)
        return status;
    if (context->options.ranks.count > 1)
        return plan_of_ranks(context, description, options->chunk_bytes == 0, refuse, packing);
    status = pack(context, description, context->options.checks.finish_beside, packing);
    return status == TIDE_OK ? tide_plan_make(context, refuse, &context->plan) : status;
}

static tide_status plan_make(const char *call, const tide_pool_options *options,
                             tide_description *description, bool refuse, tide_pool_plan *plan)
{
    tide_packing packing = {.description = NULL};
    tide_pool_context context;
    const tide_status status = context_plan(call, options, description, refuse, &packing, &context);
    if (status == TIDE_OK)
        *plan = context.plan;
    tide_packing_destroy(&packing);
    return status;
}

tide_status tide_pool_plan_make(const tide_pool_options *options, tide_description *description,
                                tide_pool_plan *plan)
{
    if (options == NULL || description == NULL || plan == NULL)
        return tide_pool_given("tide_pool_plan_make", options == NULL       ? "options"
                                                      : description == NULL ? "description"
                                                                            : "plan");
    return plan_make("tide_pool_plan_make", options, description, false, plan);
}

tide_status tide_pool_plan_check(const tide_pool_options *options, tide_description *description,
                                 tide_pool_plan *plan)
{
    return plan_make("tide_pool_create", options, description, true, plan);
}

/* Give each object of the pool the pointers to those that it uses. */
static void connect(tide_pool *pool)
{
    tide_pool_context *context = &pool->context;
    tide_monitor *monitor = &pool->monitor;
    tide_order *order = &pool->order;
    tide_telemetry *telemetry = &pool->telemetry;
    tide_engine *engine = &pool->engine;
    tide_monitor_init(monitor);
    telemetry->tracer.context = context;
    telemetry->stalls.tracer = telemetry->counters.tracer = &telemetry->tracer;
    telemetry->counters.stalls = &telemetry->stalls;
    pool->link = (tide_link){.context = context, .monitor = monitor, .order = order, .telemetry = telemetry};
    pool->running_tasks = (tide_running_tasks){
        .context = context, .monitor = monitor, .order = order, .telemetry = telemetry, .link = &pool->link};
    pool->norm = (tide_norm){.context = context, .order = order};
    *engine = (tide_engine){.context = context,
                            .monitor = monitor,
                            .order = order,
                            .telemetry = telemetry,
                            .link = &pool->link,
                            .running_tasks = &pool->running_tasks,
                            .norm = &pool->norm};
    engine->commands = (tide_commands){.monitor = monitor,
                                       .order = order,
                                       .telemetry = telemetry,
                                       .link = &pool->link,
                                       .running_tasks = &pool->running_tasks,
                                       .norm = &pool->norm};
    pool->op.number = TIDE_OP_NONE;
}

/* Copy the device's name, since the caller's string may not outlive the context. */
static tide_status own_name(tide_pool_context *context)
{
    context->options.device = context->device_name = strdup(context->options.device);
    return context->device_name != NULL ? TIDE_OK : tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory");
}

/* Allocate a pool and connect its objects. NULL: there is no memory. */
static tide_pool *pool_allocate(void)
{
    tide_pool *pool = calloc(1, sizeof *pool);
    if (pool != NULL)
        connect(pool);
    else
        (void)tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %zu bytes of bookkeeping", sizeof *pool);
    return pool;
}

/* Can several ranks run, not only be planned? */
static tide_status ranks_check(const tide_pool_context *context)
{
    const uint32_t ranks = tide_context_ranks(context), stage = context->options.ranks.zero_stage;
    if (ranks > 1 && context->options.ranks.comm == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: %u ranks need ranks.comm, which connects them", ranks);
    if (ranks > 1 && stage > 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "pool: ZeRO stage %u can be planned, but not run yet; stage 0 can", stage);
    if (ranks > 1 && strcmp(context->options.device, "host") != 0)
        return tide_fail(TIDE_ERROR_UNSUPPORTED,
                         "pool: %u ranks run on the device \"host\" only, not yet on \"%s\"", ranks,
                         context->options.device);
    return TIDE_OK;
}

tide_status tide_pool_make(const tide_pool_options *options, tide_description *description,
                           tide_pool **result)
{
    tide_pool *pool = pool_allocate();
    if (pool == NULL)
        return TIDE_ERROR_NO_MEMORY;
    tide_status status =
        context_plan("tide_pool_create", options, description, true, &pool->packing, &pool->context);
    if (status == TIDE_OK)
        status = ranks_check(&pool->context);
    pool->monitor.comm = tide_context_has_peers(&pool->context) ? pool->context.options.ranks.comm : NULL;
    if (status == TIDE_OK)
        status = own_name(&pool->context);
    if (status == TIDE_OK) {
        /* Setting the count discards prepared matmuls, so do not set it if it is right already. */
        if (tide_team_threads() != tide_device_factory_threads(options))
            tide_kernels_cpu_configure(tide_device_factory_threads(options));
        tide_comm_doing(options->ranks.comm, TIDE_PHASE_PINNING, "allocates its pool");
        status = tide_pool_build(pool);
        tide_comm_doing(options->ranks.comm, TIDE_PHASE_COMPUTING, "has its pool");
    }
    if (status != TIDE_OK) {
        tide_pool_unmake(pool);
        return status;
    }
    *result = pool;
    return TIDE_OK;
}

tide_status tide_pool_make_sharing(const tide_pool *pool, const tide_pool_options *options,
                                   tide_pool **result)
{
    tide_pool *making = pool_allocate();
    if (making == NULL)
        return TIDE_ERROR_NO_MEMORY;
    tide_pool_context *context = &making->context;
    context->packing = pool->context.packing;
    tide_status status = options_complete(options, &context->options);
    if (status == TIDE_OK)
        status = device_find(&context->options, &context->factory);
    context->kernels = context->factory.kernels;
    if (status == TIDE_OK)
        status = own_name(context);
    if (status == TIDE_OK)
        status = tide_plan_make(context, true, &context->plan);
    if (status == TIDE_OK)
        status = tide_pool_build(making);
    if (status != TIDE_OK) {
        tide_pool_unmake(making);
        return status;
    }
    *result = making;
    return TIDE_OK;
}

void tide_pool_unmake(tide_pool *pool)
{
    if (pool == NULL)
        return;
    tide_pool_unbuild(pool);
    tide_packing_destroy(&pool->packing);
    tide_monitor_destroy(&pool->monitor);
    free(pool->context.device_name);
    free(pool->covered);
    free(pool);
}
