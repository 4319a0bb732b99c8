#include "offload/cuda/cuda_clock.h"

#include "base/clock.h"
#include "base/minmax.h"
#include "offload/cuda/cuda_driver.h"
#include "offload/host_link.h"

#include <assert.h>
#include <string.h>

enum { HARVEST_EVERY = 64, WAIT_SLEEP_NS = 20000 };

static tide_cuda_entry *entry_at(tide_cuda_clock *clock, uint64_t sequence)
{
    return &clock->ring[sequence % TIDE_CUDA_RING_ENTRIES];
}

uint64_t tide_cuda_clock_pending(const tide_cuda_clock *clock)
{
    /* Read in this order, so that `enqueued` is never behind the value of `harvested`. */
    const uint64_t harvested = atomic_load(&clock->harvested);
    return atomic_load(&clock->enqueued) - harvested;
}

bool tide_cuda_clock_awaits_event(const tide_cuda_clock *clock)
{
    const uint64_t harvested = atomic_load(&clock->harvested);
    return atomic_load(&clock->marked) > harvested;
}

bool tide_cuda_clock_passed(const tide_cuda_clock *clock, uint64_t sequence)
{
    return atomic_load(&clock->harvested) >= sequence;
}

/* One place is never reused: that of the last harvested entry, from whose end the next one is measured. */
static bool is_full(const tide_cuda_clock *clock)
{
    return tide_cuda_clock_pending(clock) >= TIDE_CUDA_RING_ENTRIES - 1;
}

bool tide_cuda_clock_has_capacity(const tide_cuda_clock *clock, uint64_t entries, uint64_t *oldest)
{
    const uint64_t most = TIDE_CUDA_RING_ENTRIES - 1 - entries;
    if (tide_cuda_clock_pending(clock) <= most)
        return true;
    *oldest = atomic_load(&clock->enqueued) - most;
    return false;
}

bool tide_cuda_clock_is_valid(const tide_cuda_clock *clock)
{
    const uint64_t harvested = atomic_load(&clock->harvested), marked = atomic_load(&clock->marked);
    return harvested <= marked && marked <= atomic_load(&clock->enqueued);
}

/* --- open and close --- */

static void events_destroy(tide_cuda_clock *clock)
{
    for (uint32_t i = 0; i < clock->event_count; i++)
        tide_cuda_undo(cudaEventDestroy(clock->ring[i].done), "cudaEventDestroy");
    clock->event_count = 0;
}

static tide_status events_create(tide_cuda_clock *clock)
{
    tide_status status = TIDE_OK;
    while (clock->event_count < TIDE_CUDA_RING_ENTRIES && status == TIDE_OK) {
        status =
            tide_cuda_check(cudaEventCreateWithFlags(&clock->ring[clock->event_count].done, cudaEventDefault),
                            "cudaEventCreateWithFlags");
        clock->event_count += status == TIDE_OK;
    }
    return status;
}

/* Record the event of entry 0 and wait for it: all other times are measured from its time. */
static tide_status first_time_take(tide_cuda_clock *clock)
{
    const cudaEvent_t first = clock->ring[0].done;
    tide_status status = tide_cuda_check(cudaEventRecord(first, clock->stream), "cudaEventRecord");
    if (status == TIDE_OK)
        status = tide_cuda_check(cudaEventSynchronize(first), "cudaEventSynchronize");
    clock->end_ns = tide_clock_ns();
    return status;
}

tide_status tide_cuda_clock_open(tide_cuda_clock *clock, tide_stream role, cudaStream_t stream,
                                 const tide_device_options *options)
{
    memset(clock, 0, sizeof *clock);
    clock->role = role;
    clock->stream = stream;
    clock->observer = options->observer;
    clock->observer_context = options->observer_context;
    tide_status status = events_create(clock);
    if (status == TIDE_OK)
        status = first_time_take(clock);
    if (status != TIDE_OK) {
        events_destroy(clock);
        return status;
    }
    (void)pthread_mutex_init(&clock->harvest, NULL);
    return TIDE_OK;
}

void tide_cuda_clock_close(tide_cuda_clock *clock)
{
    events_destroy(clock);
    pthread_mutex_destroy(&clock->harvest);
}

/* --- entering --- */

bool tide_cuda_clock_has_run(const tide_cuda_clock *clock)
{
    return atomic_load(&clock->enqueued) > atomic_load(&clock->marked);
}

bool tide_cuda_clock_joins(const tide_cuda_clock *clock, const tide_work *work)
{
    const tide_cuda_entry *last = &clock->ring[atomic_load(&clock->enqueued) % TIDE_CUDA_RING_ENTRIES];
    return tide_cuda_clock_has_run(clock) && work->may_coalesce && last->tag == work->tag &&
           last->timer == work->timer && last->id == work->id;
}

tide_status tide_cuda_clock_mark(tide_cuda_clock *clock)
{
    if (!tide_cuda_clock_has_run(clock))
        return TIDE_OK;
    const uint64_t last = atomic_load(&clock->enqueued);
    tide_cuda_entry *entry = entry_at(clock, last);
    const tide_status status =
        tide_cuda_check(cudaEventRecord(entry->done, clock->stream), "cudaEventRecord");
    if (status != TIDE_OK) {
        atomic_store(&clock->enqueued, atomic_load(&clock->marked));
        return status;
    }
    atomic_store(&entry->has_event, true);
    atomic_store(&clock->marked, last);
    return TIDE_OK;
}

tide_status tide_cuda_clock_enter(tide_cuda_clock *clock, const tide_work *work, bool is_wait,
                                  uint64_t enqueued_ns)
{
    assert(!is_full(clock) && (!tide_cuda_clock_has_run(clock) || tide_cuda_clock_joins(clock, work)));
    const uint64_t sequence = atomic_load(&clock->enqueued) + 1;
    tide_cuda_entry *entry = entry_at(clock, sequence);
    entry->label = work->label;
    entry->tag = work->tag;
    entry->timer = work->timer;
    entry->id = work->id;
    entry->flops = work->flops;
    entry->bytes = work->bytes;
    entry->is_wait = is_wait;
    entry->enqueued_ns = enqueued_ns;
    atomic_store(&entry->has_event, false);
    atomic_store(&entry->recorded, false);
    atomic_fetch_add(&clock->commands, !is_wait);
    atomic_store(&clock->enqueued, sequence);
    return work->may_coalesce && sequence % HARVEST_EVERY != 0 ? TIDE_OK : tide_cuda_clock_mark(clock);
}

uint64_t tide_cuda_clock_record(tide_cuda_clock *clock)
{
    const uint64_t sequence = atomic_load(&clock->marked);
    /* If another thread is harvesting this entry, it may miss the flag; but the caller looks afterwards and
     * then sees that the moment has passed. */
    atomic_store(&entry_at(clock, sequence)->recorded, true);
    return sequence;
}

/* --- harvest; the lock is held --- */

/* The first entry from `sequence` on that has an event; the last marked one if none before it has. */
static uint64_t marked_from(tide_cuda_clock *clock, uint64_t sequence)
{
    while (sequence < atomic_load(&clock->marked) && !atomic_load(&entry_at(clock, sequence)->has_event))
        sequence++;
    return sequence;
}

/* When an entry ended, on the host's clock: not before the end of the entry before it, and not after
 * `now_ns`. */
static uint64_t end_of(const tide_cuda_clock *clock, const tide_cuda_entry *entry, float elapsed_ms,
                       uint64_t now_ns)
{
    const double elapsed_ns = elapsed_ms > 0 ? (double)elapsed_ms * 1e6 : 0;
    const uint64_t earliest_ns =
        tide_max_u64(clock->end_ns, tide_max_u64(entry->enqueued_ns, clock->unfinished_ns));
    const double eviction_ns = (double)(now_ns - clock->end_ns);
    const uint64_t end_ns = elapsed_ns < eviction_ns ? clock->end_ns + (uint64_t)elapsed_ns : now_ns;
    return tide_max_u64(end_ns, earliest_ns < now_ns ? earliest_ns : now_ns);
}

/* Harvest the next run, which ends with entry `last` and has passed: count it, report it to the observer, and
 * free its entries. */
static void run_take(tide_cuda_clock *clock, uint64_t last, uint64_t end_ns)
{
    const uint64_t first = atomic_load(&clock->harvested) + 1;
    const tide_cuda_entry *entry = entry_at(clock, first);
    const uint64_t begin_ns = tide_max_u64(clock->end_ns, entry->enqueued_ns);
    assert(begin_ns <= end_ns);
    atomic_fetch_add(entry->is_wait ? &clock->wait_ns : &clock->busy_ns, end_ns - begin_ns);
    clock->end_ns = end_ns;
    tide_observed observed = {clock->role, entry->is_wait, entry->label, entry->tag, entry->timer,
                              entry->id,   begin_ns,       end_ns,       0,          0};
    for (uint64_t sequence = first; sequence <= last; sequence++) {
        observed.flops += entry_at(clock, sequence)->flops;
        observed.bytes += entry_at(clock, sequence)->bytes;
    }
    if (clock->observer != NULL)
        clock->observer(clock->observer_context, &observed);
    atomic_store(&clock->harvested, last);
}

/* Harvest the next run if it has passed. */
static tide_status run_harvest(tide_cuda_clock *clock, bool *passed, uint64_t *events)
{
    const uint64_t before = atomic_load(&clock->harvested), last = marked_from(clock, before + 1);
    const tide_cuda_entry *entry = entry_at(clock, last);
    const uint64_t asked_ns = tide_clock_ns();
    const cudaError_t answer = cudaEventQuery(entry->done);
    *passed = !tide_cuda_is_pending(answer);
    if (!*passed) {
        clock->unfinished_ns = asked_ns;
        return TIDE_OK;
    }
    float elapsed_ms = 0;
    tide_status status = tide_cuda_check(answer, "cudaEventQuery");
    if (status == TIDE_OK)
        status =
            tide_cuda_check(cudaEventElapsedTime(&elapsed_ms, entry_at(clock, before)->done, entry->done),
                            "cudaEventElapsedTime");
    if (status != TIDE_OK)
        return status;
    run_take(clock, last, end_of(clock, entry, elapsed_ms, tide_clock_ns()));
    /* Read `recorded` last: a thread that records this moment from now on sees that it has passed. */
    *events += atomic_load(&entry->recorded);
    return TIDE_OK;
}

static tide_status harvest_locked(tide_cuda_clock *clock, uint64_t *events)
{
    bool passed = true;
    tide_status status = TIDE_OK;
    while (status == TIDE_OK && passed && tide_cuda_clock_awaits_event(clock))
        status = run_harvest(clock, &passed, events);
    assert(tide_cuda_clock_is_valid(clock));
    return status;
}

/* --- for any thread --- */

tide_status tide_cuda_clock_harvest(tide_cuda_clock *clock, uint64_t *events)
{
    if (tide_cuda_clock_pending(clock) == 0)
        return TIDE_OK;
    pthread_mutex_lock(&clock->harvest);
    const tide_status status = harvest_locked(clock, events);
    pthread_mutex_unlock(&clock->harvest);
    return status;
}

/* Is it time to harvest while commands are entered? Often enough that a caller far ahead of the GPU seldom
 * finds the ring full. */
static bool is_time_to_look(const tide_cuda_clock *clock)
{
    return atomic_load(&clock->enqueued) % HARVEST_EVERY == 0 || is_full(clock);
}

tide_status tide_cuda_clock_reserve(tide_cuda_clock *clock, uint64_t *events)
{
    tide_status status = TIDE_OK;
    if (is_time_to_look(clock))
        status = tide_cuda_clock_harvest(clock, events);
    while (status == TIDE_OK && is_full(clock)) {
        status = tide_cuda_clock_wait(clock, atomic_load(&clock->harvested) + 1);
        if (status == TIDE_OK)
            status = tide_cuda_clock_harvest(clock, events);
    }
    return status;
}

void tide_cuda_clock_drop(tide_cuda_clock *clock)
{
    pthread_mutex_lock(&clock->harvest);
    clock->end_ns = tide_clock_ns();
    atomic_store(&clock->enqueued, atomic_load(&clock->marked));
    atomic_store(&clock->harvested, atomic_load(&clock->marked));
    pthread_mutex_unlock(&clock->harvest);
}

tide_status tide_cuda_clock_hold(tide_cuda_clock *clock, uint64_t sequence, cudaStream_t waiter,
                                 bool *entered)
{
    /* While the lock is held no place of the ring is reused, so the CUDA event still belongs to this
     * moment. */
    pthread_mutex_lock(&clock->harvest);
    const bool wanted = !tide_cuda_clock_passed(clock, sequence);
    tide_status status = TIDE_OK;
    if (wanted)
        status = tide_cuda_check(cudaStreamWaitEvent(waiter, entry_at(clock, sequence)->done, 0),
                                 "cudaStreamWaitEvent");
    pthread_mutex_unlock(&clock->harvest);
    if (status == TIDE_OK)
        *entered = wanted;
    return status;
}

tide_status tide_cuda_clock_wait(tide_cuda_clock *clock, uint64_t sequence)
{
    tide_host_sleep_sharply();
    /* If the moment passes now and its place is reused, the query asks the event of a later moment; the loop
     * then sees that this one has passed. */
    while (!tide_cuda_clock_passed(clock, sequence)) {
        const cudaError_t answer = cudaEventQuery(entry_at(clock, marked_from(clock, sequence))->done);
        if (!tide_cuda_is_pending(answer))
            return tide_cuda_check(answer, "cudaEventQuery");
        tide_host_sleep_until(tide_clock_ns() + WAIT_SLEEP_NS);
    }
    return TIDE_OK;
}
