/* Trains a part of the model: two blocks, embedding and head, with two micro-batches, so that kernels both
 * write and add to gradients. The budgets hold the whole part, so no chunk moves. The benchmark waits for the
 * updates after each step, so that the compute stream's kernels run alone.
 */
#include "src/perf/microbenchmark.h"

#include "offload/topology.h"
#include "src/perf/performance_model.h"
#include "src/pool/inspect.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCKS = 2,
    CHUNK_BYTES_MOST = 4 << 20,
    MICRO_BATCHES = 2,
    STEPS_MOST = 1000,
    SAMPLES = 2048,
    SEEN_MAX = 512,
    VOCABULARY_LEAST = 4096
};

static const double microbenchmark_seconds = 5, part_seconds_most = 20, memory_part = 0.6;

/* A kind of kernel, and the times of its last SAMPLES runs. */
typedef struct seen {
    const char *label;
    double flops, bytes;
    uint32_t count; /* how many times it has run; `ns` keeps only the last SAMPLES */
    float ns[SAMPLES];
} seen;

typedef struct microbenchmark {
    /* guards the members below, which the compute stream's thread and the caller's use */
    pthread_mutex_t lock;
    bool listening;
    uint32_t count;
    seen kinds[SEEN_MAX];
} microbenchmark;

static seen *kind_of(microbenchmark *run, const tide_observed *kernel)
{
    for (uint32_t i = 0; i < run->count; i++) {
        seen *kind = &run->kinds[i];
        if (kind->label == kernel->label && kind->flops == kernel->flops && kind->bytes == kernel->bytes)
            return kind;
    }
    if (run->count == SEEN_MAX)
        return NULL;
    seen *kind = &run->kinds[run->count++];
    *kind = (seen){.label = kernel->label, .flops = kernel->flops, .bytes = kernel->bytes};
    return kind;
}

/* The tide_device_observer: while the benchmark listens, keeps the times of the compute stream's kernels. */
static void kernel_seen(void *context, const tide_observed *kernel)
{
    microbenchmark *run = context;
    if (kernel->is_wait || kernel->stream != TIDE_STREAM_COMPUTE)
        return;
    pthread_mutex_lock(&run->lock);
    seen *kind = run->listening ? kind_of(run, kernel) : NULL;
    if (kind != NULL)
        kind->ns[kind->count++ % SAMPLES] = (float)(kernel->end_ns - kernel->begin_ns);
    pthread_mutex_unlock(&run->lock);
}

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The mean of the middle half, since on a shared machine kernels are slow for seconds at a time. */
static double middle_mean(seen *kind)
{
    const uint32_t kept = kind->count < SAMPLES ? kind->count : SAMPLES, out = kept / 4;
    double sum = 0;
    qsort(kind->ns, kept, sizeof kind->ns[0], compare);
    for (uint32_t i = out; i < kept - out; i++)
        sum += (double)kind->ns[i];
    return sum / (kept - 2 * out);
}

static tide_status kinds_keep(microbenchmark *run, tide_machine_profile *profile)
{
    tide_status status = TIDE_OK;
    for (uint32_t i = 0; i < run->count && status == TIDE_OK; i++) {
        seen *kind = &run->kinds[i];
        tide_machine_profile_kernel kernel = {
            .flops = kind->flops, .bytes = kind->bytes, .ns = kind->count > 0 ? middle_mean(kind) : 0};
        strncpy(kernel.label, kind->label, sizeof kernel.label - 1);
        status = tide_machine_profile_kernel_set(profile, &kernel);
    }
    return status;
}

/* --- the part of the model --- */

/* The run's options with fewer blocks and tokens, but the same shapes. No tensor is frozen: patterns to
 * freeze may name blocks by number, and the part has only the first ones. */
static tide_trainer_options part_of(const tide_trainer_options *whole)
{
    tide_trainer_options part = *whole;
    const uint64_t micro_batch_tokens = (uint64_t)whole->micro_batch_sequences * whole->seq_len;
    if (part.model.layers > BLOCKS)
        part.model.layers = BLOCKS;
    if (part.global_batch_tokens > MICRO_BATCHES * micro_batch_tokens)
        part.global_batch_tokens = MICRO_BATCHES * micro_batch_tokens;
    part.sum_groups = 1;
    part.reduce = TIDE_REDUCE_FP32;
    part.recompute = TIDE_RECOMPUTE_NONE;
    part.freeze_count = 0;
    part.weights = part.data = part.resume_dir = part.resume_from = NULL;
    part.makes_up_tokens = true;
    part.save_weights_only = false;
    tide_performance_plain(&part.pool);
    part.pool.link_bytes_per_second = 0;
    part.pool.device_memory_bytes = part.pool.host_memory_bytes = 0;
    part.pool.placement = TIDE_PLACEMENT_AUTO;
    /* no kernel depends on the chunk's size, and large chunks leave much memory unused */
    if (part.pool.chunk_bytes > CHUNK_BYTES_MOST)
        part.pool.chunk_bytes = CHUNK_BYTES_MOST;
    return part;
}

/* A copy of the machine profile, with more memory than any run needs. */
static tide_machine_profile boundless(const tide_machine_profile *profile)
{
    tide_machine_profile all = *profile;
    all.gpu_bytes = profile->gpu_bytes != 0 ? TIDE_PERFORMANCE_ENOUGH_BYTES : 0;
    all.is_here = false;
    return all;
}

/* All memory of the machine, not the free part, so that the same part of the model is measured every time. */
static uint64_t machine_memory_bytes(void)
{
    static tide_topology topology; /* static because it is large */
    return tide_topology_read(&topology) == TIDE_OK ? topology.memory_bytes : UINT64_MAX;
}

/* Chooses budgets that keep the whole part on the device, and halves the vocabulary until there is memory for
 * them. */
static tide_status part_fit(tide_trainer_options *part, const tide_machine_profile *profile)
{
    const tide_machine_profile all = boundless(profile);
    const double most =
        memory_part * (double)(profile->gpu_bytes != 0 ? profile->gpu_bytes : machine_memory_bytes());
    tide_performance planned;
    for (;;) {
        part->pool.device_memory_bytes = part->pool.host_memory_bytes = 0;
        part->pool.free_memory_bytes = TIDE_PERFORMANCE_ENOUGH_BYTES;
        const tide_status status = tide_performance_memory(part, &all, &planned);
        if (status != TIDE_OK)
            return status;
        part->pool.device_memory_bytes = planned.plan.pool.full_device_bytes;
        part->pool.host_memory_bytes = planned.plan.pool.host_memory_bytes;
        if ((double)(part->pool.device_memory_bytes + part->pool.host_memory_bytes) <= most)
            return TIDE_OK;
        if (part->model.vocab_size <= VOCABULARY_LEAST)
            return tide_fail(
                TIDE_ERROR_NO_MEMORY,
                "measuring kernels needs %llu bytes for two blocks of %s, more than %.0f%% of what "
                "there is here",
                (unsigned long long)(part->pool.device_memory_bytes + part->pool.host_memory_bytes),
                part->model.name, 100 * memory_part);
        part->model.vocab_size =
            part->model.vocab_size / 2 > VOCABULARY_LEAST ? part->model.vocab_size / 2 : VOCABULARY_LEAST;
    }
}

static tide_status part_make(const tide_trainer_options *options, const tide_machine_profile *profile,
                             tide_trainer_options *part)
{
    tide_trainer_options whole = *options;
    const tide_status status = tide_performance_resolve(&whole);
    if (status != TIDE_OK)
        return status;
    *part = part_of(&whole);
    return part_fit(part, profile);
}

tide_status tide_microbenchmark_needed(const tide_trainer_options *options,
                                       const tide_machine_profile *profile, bool *needed)
{
    static const double known_enough = 0.99;
    const tide_performance_how unplayed = {.tokens_per_second_least = HUGE_VAL};
    const tide_machine_profile all = boundless(profile);
    tide_trainer_options part;
    tide_performance played;
    tide_status status = part_make(options, profile, &part);
    if (status == TIDE_OK)
        status = tide_performance_make(&part, &all, &unplayed, &played);
    if (status == TIDE_OK)
        *needed = played.measured_part < known_enough;
    return status;
}

/* Were these steps enough? They must have taken over five seconds in all, and be at least three; if they
 * took over ten seconds, one step is enough. */
static bool are_enough(uint32_t counted, double seconds)
{
    return counted >= (seconds > 2 * microbenchmark_seconds ? 1u : 3u) && seconds > microbenchmark_seconds;
}

static tide_status steps_run(microbenchmark *run, tide_trainer *trainer)
{
    tide_pool *pool = tide_trainer_pool(trainer);
    uint64_t begin_ns = 0;
    tide_status status = TIDE_OK;
    for (uint32_t step = 0; step < STEPS_MOST && status == TIDE_OK; step++) {
        if (step == 1) { /* the first step records the schedule and touches memory for the first time */
            begin_ns = tide_pool_now_ns(pool);
            pthread_mutex_lock(&run->lock);
            run->listening = true;
            pthread_mutex_unlock(&run->lock);
        }
        if (step > 1 && are_enough(step - 1, 1e-9 * (double)(tide_pool_now_ns(pool) - begin_ns)))
            break;
        status = tide_trainer_step(trainer, NULL);
        if (status == TIDE_OK)
            status = tide_pool_drain(pool);
    }
    return status;
}

/* Refuses a part of the model whose steps would take too long by the rates of the profile. */
static tide_status time_check(const tide_trainer_options *part, const tide_machine_profile *profile)
{
    const tide_machine_profile all = boundless(profile);
    tide_performance played;
    tide_status status = tide_performance_make(part, &all, NULL, &played);
    if (status == TIDE_OK && played.step.seconds > part_seconds_most)
        status = tide_fail(
            TIDE_ERROR_UNSUPPORTED,
            "two blocks of %s would take about %.0f s a step on this machine, of which the most is %.0f",
            part->model.name, played.step.seconds, part_seconds_most);
    return status;
}

tide_status tide_microbenchmark_run(const tide_trainer_options *options, tide_machine_profile *profile)
{
    tide_trainer_options part;
    tide_trainer *trainer = NULL;
    microbenchmark *run = calloc(1, sizeof *run);
    if (run == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory to measure kernels (%zu bytes)", sizeof *run);
    pthread_mutex_init(&run->lock, NULL);
    tide_status status = part_make(options, profile, &part);
    if (status == TIDE_OK)
        status = time_check(&part, profile);
    part.pool.device = profile->device;
    if (status == TIDE_OK)
        status = tide_trainer_create(&part, &trainer);
    if (status == TIDE_OK) {
        tide_pool_watch(tide_trainer_pool(trainer), kernel_seen, run);
        status = steps_run(run, trainer);
    }
    tide_trainer_destroy(trainer);
    if (status == TIDE_OK)
        status = kinds_keep(run, profile);
    pthread_mutex_destroy(&run->lock);
    free(run);
    return status;
}
