/* Options, registration, addresses, destroy. Everything here happens before seal or never changes after it.
 */
#include "src/pool/internal.h"

#include "offload/topology.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_CHUNK_BYTES = 256 * 1024, DEFAULT_STAGING_BYTES = 1024 * 1024, MAX_PARTS = 1 << 20 };
#define MAX_CHUNK_BYTES     (UINT64_C(1) << 30)
#define MAX_BYTES           (UINT64_C(1) << 50) /* of one piece, so that no sum overflows */
#define MAX_STAGING_BYTES   (UINT64_C(1) << 40)
#define MAX_ELEMENTS        (UINT64_C(1) << 48)
#define DEFAULT_CHUNK_BYTES (UINT64_C(64) << 20)

void tide_pool_make_room(tide_pool *pool)
{
    assert(!tide_monitor_is_held(&pool->monitor));
    (void)pool->ground.device->ops->room(pool->ground.device, TIDE_STREAM_COMPUTE, true);
}

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
    if (options->update_states > 2)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: update_states is %u, an optimizer has 0 to 2",
                         options->update_states);
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

static tide_status chunk_check(const tide_pool_options *options, const tide_target *target)
{
    if (options->chunk_bytes >= target->chunk_bytes_min)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "pool: device %s: chunk size %llu is too small, it must be at least %llu bytes",
                     options->device, (unsigned long long)options->chunk_bytes,
                     (unsigned long long)target->chunk_bytes_min);
}

/* Options as they are in force, checked. */
static tide_status options_complete(const tide_pool_options *given, tide_pool_options *options,
                                    tide_target *target)
{
    *options = *given;
    if (options->chunk_bytes == 0)
        options->chunk_bytes = DEFAULT_CHUNK_BYTES;
    if (options->staging_bytes == 0)
        options->staging_bytes = DEFAULT_STAGING_BYTES;
    if (options->update == NULL)
        options->update_states = 2;
    tide_status status = options_check(options);
    if (status == TIDE_OK)
        status = tide_target_find(options->device, target);
    if (status == TIDE_OK)
        status = chunk_check(options, target);
    options->staging_bytes = (options->staging_bytes + 2 * TIDE_ALIGNMENT_BYTES - 1) /
                             (2 * TIDE_ALIGNMENT_BYTES) * (2 * TIDE_ALIGNMENT_BYTES);
    return status;
}

tide_status tide_pool_make(const tide_pool_options *options, bool shadow, tide_pool **result)
{
    tide_pool_options copy;
    tide_target target;
    tide_status status = options_complete(options, &copy, &target);
    if (status != TIDE_OK)
        return status;
    tide_pool *pool = calloc(1, sizeof *pool);
    char *name = strdup(copy.device);
    if (pool == NULL || name == NULL)
        status =
            tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %zu bytes of bookkeeping", sizeof *pool);
    if (status == TIDE_OK) {
        pool->ground.options = copy;
        pool->ground.options.device = pool->ground.device_name = name;
        status = tide_pool_layout_create(pool, copy.chunk_bytes, &pool->model.registered);
    }
    if (status != TIDE_OK) {
        free(pool);
        free(name);
        return status;
    }
    pool->op.slice = UINT32_MAX;
    pool->launch.shadow = shadow;
    /* Here and not at seal: a caller prepares its matrix products, for this many threads, before it seals. The optimizer's,
     * where nobody chose, are the device's choice. */
    if (!shadow)
        tide_kernels_cpu_configure((int)(copy.threads > 0 ? copy.threads : tide_topology_processors()));
    pool->ground.target = target;
    pool->ground.kernels = target.kernels;
    tide_monitor_init(&pool->monitor);
    tide_journal_init(&pool->journal, &pool->ground);
    pool->link = (tide_link){
        .ground = &pool->ground, .monitor = &pool->monitor, .order = &pool->order, .journal = &pool->journal};
    pool->jobs = (tide_jobs){.ground = &pool->ground,
                             .model = &pool->model,
                             .monitor = &pool->monitor,
                             .order = &pool->order,
                             .journal = &pool->journal,
                             .link = &pool->link};
    pool->norm = (tide_norm){.ground = &pool->ground, .order = &pool->order};
    pool->engine = (tide_engine){.ground = &pool->ground,
                                 .monitor = &pool->monitor,
                                 .order = &pool->order,
                                 .journal = &pool->journal,
                                 .link = &pool->link,
                                 .jobs = &pool->jobs,
                                 .norm = &pool->norm,
                                 .commands = {.monitor = &pool->monitor,
                                              .order = &pool->order,
                                              .journal = &pool->journal,
                                              .link = &pool->link,
                                              .jobs = &pool->jobs,
                                              .norm = &pool->norm}};
    *result = pool;
    return TIDE_OK;
}

tide_status tide_pool_create(const tide_pool_options *options, tide_pool **pool)
{
    const tide_status given = tide_pool_given("tide_pool_create", options == NULL ? "options"
                                                                  : pool == NULL  ? "pool"
                                                                                  : NULL);
    return given == TIDE_OK ? tide_pool_make(options, false, pool) : given;
}

static void free_registrations(tide_pool *pool)
{
    for (uint32_t i = 0; i < pool->model.op_count; i++) {
        free((char *)(uintptr_t)pool->model.ops[i].description.name);
        free((tide_use *)(uintptr_t)pool->model.ops[i].description.params);
        free(pool->model.ops[i].accumulator_offsets);
        free(pool->model.ops[i].accesses);
        free(pool->model.ops[i].held);
    }
    free(pool->model.params);
    free(pool->model.checkpoints);
    free(pool->model.ops);
    tide_layout_destroy(pool->model.registered);
}

void tide_pool_destroy(tide_pool *pool)
{
    if (pool == NULL)
        return;
    tide_engine_stop(&pool->engine);
    if (pool->ground.device != NULL)
        pool->ground.device->ops->close(pool->ground.device);
    tide_jobs_destroy(&pool->jobs);
    free(pool->access.covered);
    tide_manager_destroy(pool->engine.manager);
    tide_layout_destroy(pool->ground.layout);
    tide_order_destroy(&pool->order);
    tide_predict_destroy(&pool->predict);
    tide_measure_destroy(&pool->journal.measure);
    free_registrations(pool);
    tide_monitor_destroy(&pool->monitor);
    free(pool->ground.device_name);
    free(pool);
}

/* Room for one more element in an array that doubles. */
static tide_status grow(void **array, uint32_t count, uint32_t *capacity, size_t element_bytes)
{
    if (count < *capacity)
        return TIDE_OK;
    const uint32_t larger = *capacity == 0 ? 16 : *capacity * 2;
    void *moved = realloc(*array, larger * element_bytes);
    if (moved == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory to register %u of a kind", larger);
    *array = moved;
    *capacity = larger;
    return TIDE_OK;
}

static tide_status registering(const tide_pool *pool, const char *call)
{
    if (pool->sealed)
        return tide_fail(TIDE_ERROR_STATE, "%s: the pool is sealed", call);
    return TIDE_OK;
}

static tide_status count_elements(const char *name, const uint64_t *shape, uint32_t rank, uint64_t *elements)
{
    if (rank < 1 || rank > 4)
        return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: %u dimensions, 1 to 4 are allowed", name, rank);
    *elements = 1;
    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] == 0)
            return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: dimension %u is 0", name, i);
        if (shape[i] > MAX_ELEMENTS / *elements)
            return tide_fail(TIDE_ERROR_ARGUMENT,
                             "param %s: dimension %u is %llu, too large: a param has at most 2^48 elements",
                             name, i, (unsigned long long)shape[i]);
        *elements *= shape[i];
    }
    return TIDE_OK;
}

tide_status tide_param_register(tide_pool *pool, const char *name, const uint64_t *shape, uint32_t rank,
                                bool decay, tide_param *param)
{
    tide_status status = tide_pool_given("tide_param_register", pool == NULL    ? "pool"
                                                                : name == NULL  ? "name"
                                                                : shape == NULL ? "shape"
                                                                : param == NULL ? "param"
                                                                                : NULL);
    uint64_t elements = 0;
    uint32_t number;
    if (status == TIDE_OK)
        status = registering(pool, "tide_param_register");
    if (status == TIDE_OK)
        status = count_elements(name, shape, rank, &elements);
    if (status == TIDE_OK)
        status = grow((void **)&pool->model.params, pool->model.param_count, &pool->model.param_capacity,
                      sizeof *pool->model.params);
    if (status == TIDE_OK)
        status = tide_layout_add_param(pool->model.registered, name, elements, &number);
    if (status != TIDE_OK)
        return status;
    assert(number == pool->model.param_count);
    pool->model.params[pool->model.param_count++] = (tide_pool_param){
        .name = tide_layout_param_name(pool->model.registered, number), .elements = elements, .decay = decay};
    *param = number;
    return TIDE_OK;
}

tide_status tide_checkpoint_register(tide_pool *pool, const char *name, uint32_t parts, uint64_t part_bytes,
                                     tide_checkpoint *checkpoint)
{
    tide_status status = tide_pool_given("tide_checkpoint_register", pool == NULL         ? "pool"
                                                                     : name == NULL       ? "name"
                                                                     : checkpoint == NULL ? "checkpoint"
                                                                                          : NULL);
    uint32_t number;
    if (status == TIDE_OK)
        status = registering(pool, "tide_checkpoint_register");
    if (status == TIDE_OK && parts > MAX_PARTS)
        status =
            tide_fail(TIDE_ERROR_ARGUMENT, "checkpoint %s: %u parts, at most 2^20 are allowed", name, parts);
    if (status == TIDE_OK)
        status = grow((void **)&pool->model.checkpoints, pool->model.checkpoint_count,
                      &pool->model.checkpoint_capacity, sizeof *pool->model.checkpoints);
    if (status == TIDE_OK)
        status = tide_layout_add_checkpoint(pool->model.registered, name, parts, part_bytes, &number);
    if (status != TIDE_OK)
        return status;
    assert(number == pool->model.checkpoint_count);
    pool->model.checkpoints[pool->model.checkpoint_count++] =
        (tide_pool_checkpoint){.name = tide_layout_checkpoint_name(pool->model.registered, number),
                               .parts = parts,
                               .part_bytes = part_bytes};
    *checkpoint = number;
    return TIDE_OK;
}

/* The pool's own copy of a description. */
static tide_status copy_op(const tide_op_description *given, tide_pool_op *op)
{
    const size_t params = given->param_count, checkpoints = given->checkpoint_count;
    char *name = strdup(given->name);
    tide_use *uses = calloc(params + checkpoints + 1, sizeof *uses);
    uint64_t *offsets = calloc(params + 1, sizeof *offsets);
    if (name == NULL || uses == NULL || offsets == NULL) {
        free(name);
        free(uses);
        free(offsets);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "op %s: no memory to register it", given->name);
    }
    if (params > 0)
        memcpy(uses, given->params, params * sizeof *uses);
    if (checkpoints > 0)
        memcpy(uses + params, given->checkpoints, checkpoints * sizeof *uses);
    *op = (tide_pool_op){.description = *given, .accumulator_offsets = offsets};
    op->description.name = name;
    op->description.params = uses;
    op->description.checkpoints = uses + params;
    return TIDE_OK;
}

tide_status tide_op_register(tide_pool *pool, const tide_op_description *description, tide_op *op)
{
    tide_status status = tide_pool_given("tide_op_register", pool == NULL          ? "pool"
                                                             : description == NULL ? "description"
                                                             : op == NULL          ? "op"
                                                                                   : NULL);
    if (status == TIDE_OK)
        status = registering(pool, "tide_op_register");
    if (status == TIDE_OK)
        status = tide_op_check(pool->model.registered, description);
    if (status == TIDE_OK && description->workspace_bytes > MAX_BYTES)
        status = tide_fail(TIDE_ERROR_ARGUMENT, "op %s: workspace of %llu bytes, at most 2^50 are allowed",
                           description->name, (unsigned long long)description->workspace_bytes);
    if (status == TIDE_OK)
        status = grow((void **)&pool->model.ops, pool->model.op_count, &pool->model.op_capacity,
                      sizeof *pool->model.ops);
    if (status == TIDE_OK)
        status = copy_op(description, &pool->model.ops[pool->model.op_count]);
    if (status == TIDE_OK)
        *op = pool->model.op_count++;
    return status;
}

bool tide_param_find(const tide_pool *pool, const char *name, tide_param *param)
{
    return pool != NULL && name != NULL && param != NULL &&
           tide_layout_find_param(pool->model.registered, name, param);
}

uint64_t tide_param_elements(const tide_pool *pool, tide_param param)
{
    return pool != NULL && param < pool->model.param_count ? pool->model.params[param].elements : 0;
}

void *tide_param_data(const tide_pool *pool, tide_param param)
{
    if (pool == NULL || !pool->sealed || param >= pool->model.param_count)
        return NULL;
    return pool->ground.space_address[TIDE_SPACE_PARAM] + pool->model.params[param].data_offset_bytes;
}

void *tide_checkpoint_data(const tide_pool *pool, tide_checkpoint checkpoint, uint32_t part)
{
    if (pool == NULL || !pool->sealed || checkpoint >= pool->model.checkpoint_count ||
        part >= pool->model.checkpoints[checkpoint].parts)
        return NULL;
    return pool->ground.space_address[TIDE_SPACE_CHECKPOINT] +
           pool->model.checkpoints[checkpoint].offset_bytes +
           part * tide_align_up(pool->model.checkpoints[checkpoint].part_bytes);
}

void *tide_region(const tide_pool *pool)
{
    return pool != NULL && pool->sealed ? pool->ground.region : NULL;
}

void *tide_workspace(const tide_pool *pool)
{
    return pool != NULL && pool->op.is_open
               ? pool->ground.region + pool->ground.region_layout.workspace_offset
               : NULL;
}

float *tide_param_gradient(const tide_pool *pool, tide_param param)
{
    if (pool == NULL || !pool->op.is_open)
        return NULL;
    const tide_pool_op *op = &pool->model.ops[pool->op.number];
    for (uint32_t i = 0; i < op->description.param_count; i++) {
        const tide_use use = op->description.params[i];
        if (use.tensor == param && (use.access & TIDE_ACCESS_GRAD) != 0)
            return (float *)(void *)(pool->ground.region + op->accumulator_offsets[i]);
    }
    return NULL;
}

uint64_t tide_update_count(const tide_pool *pool)
{
    if (pool == NULL)
        return 0;
    tide_pool *shared = (tide_pool *)(uintptr_t)pool; /* the lock is not part of the value */
    tide_monitor_lock(&shared->monitor);
    const uint64_t updates = pool->engine.updates;
    tide_monitor_unlock(&shared->monitor);
    return updates;
}
