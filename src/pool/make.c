/* Makes a pool: checks and completes the options, creates the objects and connects them. */
#include "src/pool/internal.h"

#include "base/align.h"
#include "offload/topology.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_CHUNK_BYTES = 256 * 1024, DEFAULT_STAGING_BYTES = 1024 * 1024 };
#define MAX_CHUNK_BYTES     (UINT64_C(1) << 30)
#define MAX_BYTES           (UINT64_C(1) << 50) /* of one item, so that no sum overflows */
#define MAX_STAGING_BYTES   (UINT64_C(1) << 40)
#define DEFAULT_CHUNK_BYTES (UINT64_C(64) << 20)

void tide_pool_options_default(tide_pool_options *options)
{
    if (options == NULL)
        return;
    *options = (tide_pool_options){
        .device = "host",
        .chunk_bytes = DEFAULT_CHUNK_BYTES,
        .dtype = TIDE_DTYPE_BF16,
        .staging_bytes = DEFAULT_STAGING_BYTES,
        .prefetch = true,
        .placement = TIDE_PLACEMENT_AUTO,
        /* An H200 and its host, for the null device; the link is link_bytes_per_second. */
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
    } sizes[] = {{"nonmodel_bytes", options->nonmodel_bytes, MAX_BYTES},
                 {"staging_bytes", options->staging_bytes, MAX_STAGING_BYTES},
                 {"threads", options->threads, TIDE_THREADS_MAX},
                 {"delay_max_us", options->delay_max_us, TIDE_DELAY_MAX_US}};
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
    if (chunk < MIN_CHUNK_BYTES || chunk > MAX_CHUNK_BYTES || (chunk & (chunk - 1)) != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "pool: chunk size %llu is not a power of two from 256 KiB to 1 GiB",
                         (unsigned long long)chunk);
    if (options->dtype != TIDE_DTYPE_BF16 && options->dtype != TIDE_DTYPE_FP32 &&
        options->dtype != TIDE_DTYPE_FP16)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: unknown dtype %d", (int)options->dtype);
    if ((unsigned)options->placement > TIDE_PLACEMENT_DEVICE)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: unknown placement %d", (int)options->placement);
    if (options->update != NULL && options->placement == TIDE_PLACEMENT_DEVICE)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "pool: an update callback runs on the host, so its placement can't be the device");
    if (options->skip_wait_site >= TIDE_SITE_COUNT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: wait site %u does not exist", options->skip_wait_site);
    const tide_status status = sizes_check(options);
    return status == TIDE_OK ? rates_check(options) : status;
}

/* Copy the given options, complete and check them. */
static tide_status options_complete(const tide_pool_options *given, tide_pool_options *options,
                                    tide_device_factory *factory)
{
    *options = *given;
    if (options->chunk_bytes == 0)
        options->chunk_bytes = DEFAULT_CHUNK_BYTES;
    if (options->staging_bytes == 0)
        options->staging_bytes = DEFAULT_STAGING_BYTES;
    tide_status status = options_check(options);
    if (options->update != NULL)
        options->placement = TIDE_PLACEMENT_HOST;
    if (status == TIDE_OK)
        status = tide_device_factory_find(options->device, factory);
    if (status == TIDE_OK && options->chunk_bytes < factory->chunk_bytes_min)
        status = tide_fail(TIDE_ERROR_ARGUMENT,
                           "pool: chunk size %llu is too small for %s, it must be at least %llu bytes",
                           (unsigned long long)options->chunk_bytes,
                           tide_device_factory_is_null(options->device) ? "a GPU" : options->device,
                           (unsigned long long)factory->chunk_bytes_min);
    assert(status != TIDE_OK || tide_is_power_of_two(options->chunk_bytes));
    options->staging_bytes = tide_round_up(options->staging_bytes, 2 * TIDE_ALIGNMENT_BYTES);
    return status;
}

/* Give each object of the pool the pointers to those that it uses. */
static void connect(tide_pool *pool)
{
    tide_sealed_context *context = &pool->context;
    tide_monitor *monitor = &pool->monitor;
    tide_order *order = &pool->order;
    tide_telemetry *telemetry = &pool->telemetry;
    tide_engine *engine = &pool->engine;
    tide_monitor_init(monitor);
    telemetry->tracer.context = context;
    telemetry->stalls.tracer = telemetry->counters.tracer = &telemetry->tracer;
    telemetry->counters.stalls = &telemetry->stalls;
    pool->link = (tide_link){.context = context, .monitor = monitor, .order = order, .telemetry = telemetry};
    pool->running_tasks = (tide_running_tasks){.context = context,
                                               .model = &pool->model,
                                               .monitor = monitor,
                                               .order = order,
                                               .telemetry = telemetry,
                                               .link = &pool->link};
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

tide_status tide_pool_make(const tide_pool_options *options, bool is_shadow, tide_pool **result)
{
    tide_pool_options copy;
    tide_device_factory factory;
    tide_layout *registered = NULL;
    tide_status status = options_complete(options, &copy, &factory);
    if (status == TIDE_OK)
        status = tide_layout_create(
            &(tide_layout_options){.chunk_bytes = copy.chunk_bytes, .dtype = copy.dtype}, &registered);
    if (status != TIDE_OK)
        return status;
    tide_pool *pool = calloc(1, sizeof *pool);
    char *name = strdup(copy.device);
    if (pool == NULL || name == NULL)
        goto no_memory;
    pool->context = (tide_sealed_context){
        .options = copy, .device_name = name, .factory = factory, .kernels = factory.kernels};
    pool->context.options.device = name;
    pool->model.registered = registered;
    connect(pool);
    pool->is_shadow = is_shadow;
    /* Here and not at seal: a caller prepares its matmuls, for this many threads, before it seals. Where the
     * caller chose no number, the device chooses the optimizer's threads. */
    if (!is_shadow)
        tide_kernels_cpu_configure((int)(copy.threads > 0 ? copy.threads : tide_topology_processors()));
    *result = pool;
    return TIDE_OK;

no_memory:
    free(pool);
    free(name);
    tide_layout_destroy(registered);
    return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %zu bytes of bookkeeping", sizeof *pool);
}

void tide_pool_unmake(tide_pool *pool)
{
    if (pool == NULL)
        return;
    tide_pool_unseal(pool);
    tide_model_destroy(&pool->model);
    tide_monitor_destroy(&pool->monitor);
    free(pool->context.device_name);
    free(pool);
}
