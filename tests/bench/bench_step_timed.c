/* Devices for the forms of bench_step. In the forms timed and dma, kernels sleep instead of using a core; in
 * dma copies sleep, too. In the other forms the device computes, and this file only counts its updates.
 *
 * Each stream has a thread that sleeps until the end of the kernel it runs, and wakes a little late. A GPU
 * would have begun the next kernel of its queue by then. So if the thread comes to a kernel within
 * GRACE_NS after waking, the kernel is taken to begin where the one before should have ended, not when the
 * thread woke; but an op or a copy never begins before it was enqueued. (The pool's own kernels carry no
 * time of enqueueing.) If the stream waited for an event that came only during the oversleep, the kernel
 * then begins too early. The benchmark prints the sum of these corrections of the compute stream beside
 * its figure, which they can improve by no more than that. In the form dma this file also corrects the
 * starts of copies, without a sum. Only the stream's thread uses its stream_clock.
 *
 * Sleeps replace the pool's own kernels (zeros, gradients into place, norms, updates on the device). They
 * last as long as the bytes take at the device's bandwidth and write nothing, so params that were zero
 * stay zero. */
#include "tests/bench/bench_step.h"

#include "base/clock.h"
#include "base/minmax.h"
#include "kernels/kernels.h"
#include "offload/host_link.h"

#include <assert.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>

enum { GRACE_NS = 50000, TIMER_SLACK_NS = 1000 };

static _Thread_local struct {
    uint64_t free_ns; /* when the last kernel should have ended */
    uint64_t woke_ns; /* when the thread woke after it */
    bool prepared;
    bool compute; /* the thread has run an op, so its stream is the compute stream */
} stream_clock;

static double bytes_per_second; /* set only while no pool works, so without a lock */
static _Atomic uint64_t compute_ns, update_ns, update_params, overslept_ns;

/* Arguments of ops and copies. */
typedef struct occupation {
    uint64_t duration_ns, enqueued_ns;
} occupation;

static occupation occupation_from_now(double seconds)
{
    return (occupation){.duration_ns = (uint64_t)(seconds * 1e9), .enqueued_ns = tide_clock_ns()};
}

/* The time at which a kernel begins to which the thread comes at `now_ns`. */
static uint64_t begin_of(uint64_t enqueued_ns, uint64_t now_ns)
{
    if (now_ns >= stream_clock.woke_ns + GRACE_NS)
        return now_ns;
    const uint64_t free_ns = stream_clock.free_ns;
    return free_ns > enqueued_ns ? free_ns : enqueued_ns;
}

/* Sleeps for the kernel's duration. `enqueued_ns` 0: not known. */
static void occupy(uint64_t duration_ns, uint64_t enqueued_ns)
{
    if (!stream_clock.prepared) {
        /* An error does no harm: sleeps then end 50 us late. */
        (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS);
        stream_clock.prepared = true;
    }
    const uint64_t now_ns = tide_clock_ns();
    const uint64_t begin_ns = begin_of(enqueued_ns, now_ns);
    assert(begin_ns >= enqueued_ns && begin_ns <= now_ns);
    stream_clock.free_ns = begin_ns + duration_ns;
    tide_host_sleep_until(stream_clock.free_ns);
    stream_clock.woke_ns = tide_clock_ns();
    if (stream_clock.compute) {
        compute_ns += duration_ns;
        /* the sleep is shorter by the time for which the thread overslept before it */
        overslept_ns += tide_min_u64(now_ns - begin_ns, duration_ns);
    }
}

static uint64_t transfer_ns(uint64_t bytes)
{
    return (uint64_t)((double)bytes / bytes_per_second * 1e9);
}

/* --- kernels --- */

static tide_status run_op(void *stream, const void *arguments)
{
    (void)stream;
    const occupation *op = arguments;
    stream_clock.compute = true;
    occupy(op->duration_ns, op->enqueued_ns);
    return TIDE_OK;
}

static tide_status run_zero(void *stream, const void *arguments)
{
    (void)stream;
    occupy(transfer_ns(tide_zero_bytes(arguments)), 0);
    return TIDE_OK;
}

static tide_status run_cast(void *stream, const void *arguments)
{
    (void)stream;
    occupy(transfer_ns(tide_cast_bytes(arguments)), 0);
    return TIDE_OK;
}

static tide_status run_gradient_norm(void *stream, const void *arguments)
{
    (void)stream;
    occupy(transfer_ns(tide_gradient_norm_bytes(arguments)), 0);
    return TIDE_OK;
}

static tide_status run_norm_sum(void *stream, const void *arguments)
{
    (void)stream;
    occupy(transfer_ns(tide_norm_sum_bytes(arguments)), 0);
    return TIDE_OK;
}

static void count_params(const tide_adamw_args *adamw)
{
    update_params += tide_adamw_segments_elements(adamw->segments, adamw->segment_count);
}

static tide_status run_adamw(void *stream, const void *arguments)
{
    (void)stream;
    const tide_adamw_args *adamw = arguments;
    const uint64_t duration_ns = transfer_ns(tide_adamw_bytes(adamw));
    occupy(duration_ns, 0);
    update_ns += duration_ns;
    count_params(adamw);
    return TIDE_OK;
}

/* The count for a device that computes. */
static tide_status run_counted_adamw(void *stream, const void *arguments)
{
    count_params(arguments);
    return tide_kernels_cpu()->adamw(stream, arguments);
}

static tide_status run_restore(void *stream, const void *arguments)
{
    (void)stream;
    occupy(transfer_ns(tide_restore_bytes(arguments)), 0);
    return TIDE_OK;
}

void step_timed_install(tide_pool *pool, double device_bytes_per_second)
{
    static tide_kernels timed;
    bytes_per_second = device_bytes_per_second;
    timed = *tide_kernels_cpu();
    timed.name = "timed";
    timed.zero = run_zero;
    timed.cast = run_cast;
    timed.gradient_norm = run_gradient_norm;
    timed.norm_sum = run_norm_sum;
    timed.adamw = run_adamw;
    timed.restore = run_restore;
    pool->context.kernels = &timed;
}

void step_counted_install(tide_pool *pool)
{
    static tide_kernels counted;
    counted = *tide_kernels_cpu();
    counted.adamw = run_counted_adamw;
    pool->context.kernels = &counted;
}

/* --- copies --- */

static const tide_device_ops *device_ops; /* set only while no pool works, so without a lock */
static double copy_seconds_per_byte[2];   /* set only while no pool works, so without a lock */
static _Atomic uint64_t copied_bytes[2];

static tide_status run_copy(void *stream, const void *arguments)
{
    (void)stream;
    const occupation *copy = arguments;
    occupy(copy->duration_ns, copy->enqueued_ns);
    return TIDE_OK;
}

static tide_status copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
                             tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes)
{
    (void)to_slot, (void)from_slot;
    const bool out = to_tier == TIDE_TIER_HOST;
    const occupation copy = occupation_from_now(copy_seconds_per_byte[out] * (double)bytes);
    copied_bytes[out] += bytes;
    return device_ops->launch(device, stream, work, run_copy, &copy, sizeof copy);
}

static void statistics_with_copies(tide_device *device, tide_device_statistics *statistics)
{
    device_ops->statistics(device, statistics);
    statistics->h2d_bytes += copied_bytes[0];
    statistics->d2h_bytes += copied_bytes[1];
}

void step_timed_install_copies(tide_pool *pool, const double seconds_per_byte[2])
{
    static tide_device_ops timed;
    memcpy(copy_seconds_per_byte, seconds_per_byte, sizeof copy_seconds_per_byte);
    device_ops = pool->context.device->ops;
    timed = *device_ops;
    timed.copy_slot = copy_slot;
    timed.statistics = statistics_with_copies;
    pool->context.device->ops = &timed;
}

/* --- ops --- */

tide_status step_timed_launch(tide_pool *pool, double seconds)
{
    const occupation timed = occupation_from_now(seconds);
    return tide_launch(pool, "timed op", run_op, &timed, sizeof timed, 0, 0);
}

step_timed_sums step_timed_sums_get(void)
{
    return (step_timed_sums){compute_ns, update_ns, update_params, overslept_ns};
}
