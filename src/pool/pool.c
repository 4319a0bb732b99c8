/* Options, registration, addresses, destroy. Everything here happens before seal or never changes after it.
 */
#include "src/pool/internal.h"

#include "offload/topology.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { MIN_CHUNK_BYTES = 256 * 1024, DEFAULT_STAGING_BYTES = 1024 * 1024, MAX_PARTS = 1 << 20 };
#define MAX_CHUNK_BYTES     (UINT64_C(1) << 30)
#define MAX_BYTES           (UINT64_C(1) << 50) /* of one piece, so that no sum overflows */
#define DEFAULT_CHUNK_BYTES (UINT64_C(64) << 20)

void tide_pool_lock(tide_pool *pool)
{
    const int error = pthread_mutex_lock(&pool->lock);
    assert(error == 0);
    (void)error;
}

void tide_pool_unlock(tide_pool *pool)
{
    const int error = pthread_mutex_unlock(&pool->lock);
    assert(error == 0);
    (void)error;
}

void tide_pool_tear(tide_pool *pool)
{
    pool->torn = true;
    for (uint32_t i = 0; i < pool->param_count; i++)
        memset(pool->params[i].covered, 0, sizeof pool->params[i].covered);
}

void tide_pool_fail(tide_pool *pool, tide_status status)
{
    assert(status != TIDE_OK);
    if (pool->failure == TIDE_OK) {
        pool->failure = status;
        const size_t length = strlen(tide_message());
        const size_t room = sizeof pool->failure_message - 1;
        memcpy(pool->failure_message, tide_message(), length < room ? length : room);
        pool->failure_message[length < room ? length : room] = 0;
        memcpy(pool->last_failure_message, pool->failure_message, sizeof pool->failure_message);
    }
    pthread_cond_broadcast(&pool->progress);
}

tide_status tide_pool_failure(tide_pool *pool)
{
    if (pool->failure == TIDE_OK)
        return TIDE_OK;
    return tide_fail(pool->failure, "%s", pool->failure_message);
}

void tide_pool_options_default(tide_pool_options *options)
{
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
    if (options->dtype != TIDE_DTYPE_BF16 && options->dtype != TIDE_DTYPE_FP32 && options->dtype != TIDE_DTYPE_FP16)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: unknown dtype %d", (int)options->dtype);
    if (options->update_states > 2)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: update_states is %u, an optimizer has 0 to 2",
                         options->update_states);
    if (!(options->link_bytes_per_second >= 0))
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: a link of %g bytes per second; 0 is no limit",
                         options->link_bytes_per_second);
    if ((unsigned)options->placement > TIDE_PLACEMENT_DEVICE)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: unknown placement %d", (int)options->placement);
    if (options->nonmodel_bytes > MAX_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: nonmodel_bytes is %llu, more than any device has",
                         (unsigned long long)options->nonmodel_bytes);
    if (options->update != NULL && options->placement == TIDE_PLACEMENT_DEVICE)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "pool: an update callback runs on the host, so its placement can't be the device");
    if (options->update != NULL && options->manager_off)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "pool: manager off updates on the device; an update callback can't");
    if (options->skip_wait_site >= TIDE_SITE_COUNT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "pool: wait site %u does not exist", options->skip_wait_site);
    return TIDE_OK;
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

tide_status tide_pool_make(const tide_pool_options *options, bool shadow, tide_pool **result)
{
    tide_pool_options copy = *options;
    if (copy.chunk_bytes == 0)
        copy.chunk_bytes = DEFAULT_CHUNK_BYTES;
    if (copy.staging_bytes == 0)
        copy.staging_bytes = DEFAULT_STAGING_BYTES;
    copy.staging_bytes = (copy.staging_bytes + 2 * TIDE_ALIGNMENT_BYTES - 1) / (2 * TIDE_ALIGNMENT_BYTES) *
                         (2 * TIDE_ALIGNMENT_BYTES);
    if (copy.threads == 0)
        copy.threads = tide_topology_processors();
    if (copy.update == NULL)
        copy.update_states = 2;
    tide_target target;
    tide_status status = options_check(&copy);
    if (status == TIDE_OK)
        status = tide_target_find(copy.device, &target);
    if (status == TIDE_OK)
        status = chunk_check(&copy, &target);
    if (status != TIDE_OK)
        return status;
    tide_pool *pool = calloc(1, sizeof *pool);
    char *name = strdup(copy.device);
    if (pool == NULL || name == NULL) {
        free(pool);
        free(name);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory for %zu bytes of bookkeeping", sizeof *pool);
    }
    pool->options = copy;
    pool->device_name = name;
    pool->options.device = name;
    pool->slice = UINT32_MAX;
    pool->shadow = shadow;
    /* Here and not at seal: a caller prepares its matrix products, for this many threads, before it seals. */
    if (!shadow)
        tide_kernels_cpu_configure((int)copy.threads);
    pool->target = target;
    pool->kernels = target.kernels;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->progress, NULL);
    *result = pool;
    return TIDE_OK;
}

tide_status tide_pool_create(const tide_pool_options *options, tide_pool **pool)
{
    return tide_pool_make(options, false, pool);
}

static void stop_engine(tide_pool *pool)
{
    if (!pool->engine_started)
        return;
    tide_pool_lock(pool);
    pool->stopping = true;
    tide_pool_unlock(pool);
    pool->device->ops->ring(pool->device);
    pthread_join(pool->engine, NULL);
    pool->engine_started = false;
}

static void free_registrations(tide_pool *pool)
{
    for (uint32_t i = 0; i < pool->param_count; i++)
        free(pool->params[i].name);
    for (uint32_t i = 0; i < pool->checkpoint_count; i++)
        free(pool->checkpoints[i].name);
    for (uint32_t i = 0; i < pool->op_count; i++) {
        free((char *)(uintptr_t)pool->ops[i].description.name);
        free((tide_use *)(uintptr_t)pool->ops[i].description.params);
        free(pool->ops[i].accumulator_offsets);
        free(pool->ops[i].accesses);
        free(pool->ops[i].held);
    }
    free(pool->params);
    free(pool->checkpoints);
    free(pool->ops);
}

void tide_pool_destroy(tide_pool *pool)
{
    if (pool == NULL)
        return;
    stop_engine(pool);
    if (pool->device != NULL)
        pool->device->ops->close(pool->device);
    for (uint32_t i = 0; i < TIDE_JOBS_MAX; i++) {
        free(pool->jobs[i].update_segments);
        free(pool->jobs[i].zero_segments);
    }
    tide_manager_destroy(pool->manager);
    tide_layout_destroy(pool->layout);
    free(pool->device_marks);
    free(pool->host_marks);
    tide_predict_destroy(&pool->predict);
    tide_measure_destroy(&pool->measure);
    free(pool->resident_slots);
    free(pool->null_segments);
    free_registrations(pool);
    pthread_cond_destroy(&pool->progress);
    pthread_mutex_destroy(&pool->lock);
    free(pool->device_name);
    free(pool);
}

/* Room for one more element in an array that doubles. */
static bool grow(void **array, uint32_t count, uint32_t *capacity, size_t element_bytes)
{
    if (count < *capacity)
        return true;
    const uint32_t larger = *capacity == 0 ? 16 : *capacity * 2;
    void *moved = realloc(*array, larger * element_bytes);
    if (moved == NULL)
        return false;
    *array = moved;
    *capacity = larger;
    return true;
}

static tide_status registering(const tide_pool *pool, const char *what)
{
    if (pool->sealed)
        return tide_fail(TIDE_ERROR_STATE, "pool: %s can't be registered after seal", what);
    return TIDE_OK;
}

static tide_status no_memory(const char *what)
{
    return tide_fail(TIDE_ERROR_NO_MEMORY, "pool: no memory to register %s", what);
}

static tide_status count_elements(const char *name, const uint64_t *shape, uint32_t rank, uint64_t *elements)
{
    uint64_t product = 1;
    for (uint32_t i = 0; i < rank; i++) {
        if (shape[i] == 0 || __builtin_mul_overflow(product, shape[i], &product) ||
            product > (UINT64_C(1) << 56))
            return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: dimension %u is %llu", name, i,
                             (unsigned long long)shape[i]);
    }
    *elements = product;
    return TIDE_OK;
}

tide_status tide_param_register(tide_pool *pool, const char *name, const uint64_t *shape, uint32_t rank,
                                bool decay, tide_param *param)
{
    tide_status status = registering(pool, "a param");
    if (status != TIDE_OK)
        return status;
    if (name == NULL || name[0] == 0 || rank < 1 || rank > 4)
        return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: a name and 1 to 4 dimensions are needed, not %u",
                         name == NULL ? "(null)" : name, rank);
    tide_param other;
    if (tide_param_find(pool, name, &other))
        return tide_fail(TIDE_ERROR_ARGUMENT, "param %s: registered twice", name);
    uint64_t elements = 0;
    status = count_elements(name, shape, rank, &elements);
    if (status != TIDE_OK)
        return status;
    char *copy = strdup(name);
    if (copy == NULL ||
        !grow((void **)&pool->params, pool->param_count, &pool->param_capacity, sizeof *pool->params)) {
        free(copy);
        return no_memory(name);
    }
    pool->params[pool->param_count] = (tide_pool_param){.name = copy, .elements = elements, .decay = decay};
    *param = pool->param_count++;
    return TIDE_OK;
}

tide_status tide_checkpoint_register(tide_pool *pool, const char *name, uint32_t parts, uint64_t part_bytes,
                                     tide_checkpoint *checkpoint)
{
    const tide_status status = registering(pool, "a checkpoint");
    if (status != TIDE_OK)
        return status;
    if (name == NULL || name[0] == 0 || parts == 0 || parts > MAX_PARTS || part_bytes == 0 ||
        part_bytes > MAX_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "checkpoint %s: needs a name, parts (%u) and bytes a part (%llu)",
                         name == NULL ? "(null)" : name, parts, (unsigned long long)part_bytes);
    char *copy = strdup(name);
    if (copy == NULL || !grow((void **)&pool->checkpoints, pool->checkpoint_count, &pool->checkpoint_capacity,
                              sizeof *pool->checkpoints)) {
        free(copy);
        return no_memory(name);
    }
    pool->checkpoints[pool->checkpoint_count] =
        (tide_pool_checkpoint){.name = copy, .parts = parts, .part_bytes = part_bytes};
    *checkpoint = pool->checkpoint_count++;
    return TIDE_OK;
}

/* The op's uses are checked by the manager (seal); here only what copying them needs. */
tide_status tide_op_register(tide_pool *pool, const tide_op_description *description, tide_op *op)
{
    const tide_status status = registering(pool, "an op");
    if (status != TIDE_OK)
        return status;
    const char *given = description->name;
    if (given == NULL || given[0] == 0 || (description->param_count > 0 && description->params == NULL) ||
        (description->checkpoint_count > 0 && description->checkpoints == NULL))
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: needs a name and the arrays it counts",
                         given == NULL ? "(null)" : given);
    if (description->workspace_bytes > MAX_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: workspace of %llu bytes, more than any device has",
                         given, (unsigned long long)description->workspace_bytes);
    for (uint32_t i = 0; i < description->param_count; i++) {
        if (description->params[i].tensor >= pool->param_count)
            return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: param %u is not registered", given,
                             description->params[i].tensor);
    }
    for (uint32_t i = 0; i < description->checkpoint_count; i++) {
        if (description->checkpoints[i].tensor >= pool->checkpoint_count)
            return tide_fail(TIDE_ERROR_ARGUMENT, "op %s: checkpoint %u is not registered", given,
                             description->checkpoints[i].tensor);
    }
    const uint32_t uses = description->param_count + description->checkpoint_count;
    char *name = strdup(given);
    tide_use *copies = calloc(uses + 1, sizeof *copies);
    uint64_t *offsets = calloc(description->param_count + 1, sizeof *offsets);
    if (name == NULL || copies == NULL || offsets == NULL ||
        !grow((void **)&pool->ops, pool->op_count, &pool->op_capacity, sizeof *pool->ops)) {
        free(name);
        free(copies);
        free(offsets);
        return no_memory(given);
    }
    if (description->param_count > 0)
        memcpy(copies, description->params, description->param_count * sizeof *copies);
    if (description->checkpoint_count > 0)
        memcpy(copies + description->param_count, description->checkpoints,
               description->checkpoint_count * sizeof *copies);
    tide_pool_op *added = &pool->ops[pool->op_count];
    *added = (tide_pool_op){.description = *description, .accumulator_offsets = offsets};
    added->description.name = name;
    added->description.params = copies;
    added->description.checkpoints = copies + description->param_count;
    *op = pool->op_count++;
    return TIDE_OK;
}

bool tide_param_find(const tide_pool *pool, const char *name, tide_param *param)
{
    for (uint32_t i = 0; i < pool->param_count; i++) {
        if (strcmp(pool->params[i].name, name) == 0) {
            *param = i;
            return true;
        }
    }
    return false;
}

uint64_t tide_param_elements(const tide_pool *pool, tide_param param)
{
    return param < pool->param_count ? pool->params[param].elements : 0;
}

void *tide_param_data(const tide_pool *pool, tide_param param)
{
    if (!pool->sealed || param >= pool->param_count)
        return NULL;
    return pool->space_address[TIDE_SPACE_PARAM] + pool->params[param].data_offset_bytes;
}

void *tide_checkpoint_data(const tide_pool *pool, tide_checkpoint checkpoint, uint32_t part)
{
    if (!pool->sealed || checkpoint >= pool->checkpoint_count || part >= pool->checkpoints[checkpoint].parts)
        return NULL;
    return pool->space_address[TIDE_SPACE_CHECKPOINT] + pool->checkpoints[checkpoint].offset_bytes +
           part * tide_align_up(pool->checkpoints[checkpoint].part_bytes);
}

void *tide_region(const tide_pool *pool)
{
    return pool->sealed ? pool->region : NULL;
}

void *tide_workspace(const tide_pool *pool)
{
    return pool->op_open ? pool->region + pool->region_layout.workspace_offset : NULL;
}

float *tide_param_gradient(const tide_pool *pool, tide_param param)
{
    if (!pool->op_open)
        return NULL;
    const tide_pool_op *op = &pool->ops[pool->op];
    for (uint32_t i = 0; i < op->description.param_count; i++) {
        const tide_use use = op->description.params[i];
        if (use.tensor == param && (use.access & TIDE_ACCESS_GRAD) != 0)
            return (float *)(void *)(pool->region + op->accumulator_offsets[i]);
    }
    return NULL;
}

uint64_t tide_update_count(const tide_pool *pool)
{
    tide_pool *shared = (tide_pool *)(uintptr_t)pool; /* the lock is not part of the value */
    tide_pool_lock(shared);
    const uint64_t updates = pool->updates;
    tide_pool_unlock(shared);
    return updates;
}
