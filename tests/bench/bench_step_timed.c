/* A device that takes time and no core: kernels sleep, and copies where it is wanted.
 *
 * A stream's thread sleeps until the end of what it runs, and wakes a little late. A GPU would have begun with the next
 * kernel of its queue meanwhile: so a kernel that the thread comes to at once after a sleep (GRACE_NS) begins where the
 * one before was to end, not where the thread woke. Each stream has a thread of its own, so a stream's clock is the
 * thread's.
 *
 * The pool's own kernels (zeros, gradients into place, norms, updates on the device) are replaced by sleeps as long as
 * their bytes take over the device's bandwidth; nothing is written, so all params that were zero stay zero.
 */
#include "tests/bench/bench_step.h"

#include "offload/host_link.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>

enum { GRACE_NS = 50000, TIMER_SLACK_NS = 1000 };

static _Thread_local struct {
    uint64_t free_ns; /* when the last kernel was to end */
    uint64_t woke_ns; /* when the thread went on after it */
    bool prepared;
    bool compute; /* has run an op: this is the compute stream's thread */
} stream_clock;

static double bytes_per_second; /* set while no pool works */
static _Atomic uint64_t compute_ns, update_ns, update_params;

static void occupy(uint64_t duration_ns)
{
    if (!stream_clock.prepared) {
        (void)prctl(PR_SET_TIMERSLACK, TIMER_SLACK_NS); /* a wish: without it sleeps end 50 us late */
        stream_clock.prepared = true;
    }
    const uint64_t now_ns = tide_host_now_ns();
    const bool at_once = now_ns < stream_clock.woke_ns + GRACE_NS;
    stream_clock.free_ns = (at_once ? stream_clock.free_ns : now_ns) + duration_ns;
    tide_host_sleep_until(stream_clock.free_ns);
    stream_clock.woke_ns = tide_host_now_ns();
    if (stream_clock.compute)
        compute_ns += duration_ns;
}

static uint64_t transfer_ns(uint64_t bytes)
{
    return (uint64_t)((double)bytes / bytes_per_second * 1e9);
}

/* --- kernels --- */

static tide_status run_op(void *stream, const void *arguments)
{
    (void)stream;
    stream_clock.compute = true;
    occupy(*(const uint64_t *)arguments);
    return TIDE_OK;
}

static tide_status run_zero(void *stream, const void *arguments)
{
    (void)stream;
    occupy(transfer_ns(tide_zero_bytes(arguments)));
    return TIDE_OK;
}

static tide_status run_gradient_finish(void *stream, const void *arguments)
{
    (void)stream;
    occupy(transfer_ns(tide_gradient_finish_bytes(arguments)));
    return TIDE_OK;
}

static tide_status run_gradient_norm(void *stream, const void *arguments)
{
    (void)stream;
    occupy(transfer_ns(tide_gradient_norm_bytes(arguments)));
    return TIDE_OK;
}

static tide_status run_norm_sum(void *stream, const void *arguments)
{
    (void)stream;
    occupy(transfer_ns(tide_norm_sum_bytes(arguments)));
    return TIDE_OK;
}

static tide_status run_adamw(void *stream, const void *arguments)
{
    (void)stream;
    const tide_adamw_args *adamw = arguments;
    const uint64_t duration_ns = transfer_ns(tide_adamw_bytes(adamw));
    occupy(duration_ns);
    update_ns += duration_ns;
    update_params += tide_adamw_segments_elements(adamw->segments, adamw->segment_count);
    return TIDE_OK;
}

static tide_status run_restore(void *stream, const void *arguments)
{
    (void)stream;
    occupy(transfer_ns(tide_restore_bytes(arguments)));
    return TIDE_OK;
}

void step_timed_install(tide_pool *pool, double device_bytes_per_second)
{
    static tide_kernels timed;
    bytes_per_second = device_bytes_per_second;
    timed = *tide_kernels_cpu();
    timed.name = "timed";
    timed.zero = run_zero;
    timed.gradient_finish = run_gradient_finish;
    timed.gradient_norm = run_gradient_norm;
    timed.norm_sum = run_norm_sum;
    timed.adamw = run_adamw;
    timed.restore = run_restore;
    pool->kernels = &timed;
}

/* --- copies --- */

static const tide_device_ops *plain;    /* set while no pool works */
static double copy_seconds_per_byte[2]; /* likewise */
static _Atomic uint64_t copied_bytes[2];

static tide_status run_copy(void *stream, const void *arguments)
{
    (void)stream;
    occupy(*(const uint64_t *)arguments);
    return TIDE_OK;
}

static tide_status copy_slot(tide_device *device, tide_stream stream, const tide_work *work,
                             tide_tier to_tier, uint32_t to_slot, uint32_t from_slot, uint64_t bytes)
{
    (void)to_slot, (void)from_slot;
    const bool out = to_tier == TIDE_TIER_HOST;
    const uint64_t duration_ns = (uint64_t)(copy_seconds_per_byte[out] * (double)bytes * 1e9);
    copied_bytes[out] += bytes;
    return plain->launch(device, stream, work, run_copy, &duration_ns, sizeof duration_ns);
}

static void statistics_with_copies(tide_device *device, tide_device_statistics *statistics)
{
    plain->statistics(device, statistics);
    statistics->h2d_bytes += copied_bytes[0];
    statistics->d2h_bytes += copied_bytes[1];
}

void step_timed_install_copies(tide_pool *pool, const double seconds_per_byte[2])
{
    static tide_device_ops timed;
    memcpy(copy_seconds_per_byte, seconds_per_byte, sizeof copy_seconds_per_byte);
    plain = pool->device->ops;
    timed = *plain;
    timed.copy_slot = copy_slot;
    timed.statistics = statistics_with_copies;
    pool->device->ops = &timed;
}

/* --- ops --- */

tide_status step_timed_launch(tide_pool *pool, double seconds)
{
    const uint64_t duration_ns = (uint64_t)(seconds * 1e9);
    const tide_op_description *op = &pool->ops[pool->op].description;
    return tide_launch(pool, "timed op", run_op, &duration_ns, sizeof duration_ns, op->flops, op->bytes);
}

step_timed_sums step_timed_sums_get(void)
{
    return (step_timed_sums){compute_ns, update_ns, update_params};
}
