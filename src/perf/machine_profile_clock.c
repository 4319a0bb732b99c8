/* Computes a kernel's time once for each combination of label, flops and bytes, and keeps it.
 *
 * The profile's slowdowns were measured at the link's full speed. A link with a limit (--link-bandwidth)
 * makes a copy wait, and the copy loads the machine only for the rest of its time: the limit divided by
 * the full speed. So the copy slows other streams only in that part of its time. Other streams slow the
 * copy itself only if they push it below the limit. */
#include "src/perf/machine_profile.h"

#include "base/minmax.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWERS = 8192 /* a power of two */ };

typedef struct answer {
    const char *label; /* compared by address, since labels are constants; NULL: the entry is free */
    double flops, bytes, ns;
    bool measured;
} answer;

struct tide_machine_profile_clock {
    const tide_machine_profile *profile;
    tide_dtype dtype;
    double adam_rate, in_rate, out_rate;
    tide_slowdowns slowdowns;
    uint32_t answer_count;
    answer answers[ANSWERS];
};

/* --- kernels that were not measured --- */

static double seconds_at(double amount, double per_second)
{
    return per_second > 0 ? amount / per_second : 0;
}

static double roofline_ns(const tide_machine_profile_clock *clock, const tide_work *work)
{
    const tide_machine_profile *profile = clock->profile;
    return 1e9 * tide_max_f64(seconds_at(work->flops, profile->flops_per_second[clock->dtype]),
                              seconds_at(work->bytes, profile->device_bytes_per_second));
}

/* The distance of two amounts, as the logarithm of their ratio; infinite if only one of them is 0. */
static double distance(double a, double b)
{
    if (a == b)
        return 0;
    return a > 0 && b > 0 ? fabs(log(a / b)) : HUGE_VAL;
}

/* Scales the time by operations if both kernels declare some, otherwise by bytes. */
static double scaled_ns(const tide_machine_profile_kernel *from, const tide_work *work)
{
    if (from->flops > 0 && work->flops > 0)
        return from->ns * work->flops / from->flops;
    return from->bytes > 0 ? from->ns * work->bytes / from->bytes : from->ns;
}

static const tide_machine_profile_kernel *nearest(const tide_machine_profile *profile, const tide_work *work)
{
    const tide_machine_profile_kernel *found = NULL;
    double least = HUGE_VAL;
    for (uint32_t i = 0; i < profile->kernel_count; i++) {
        const tide_machine_profile_kernel *kernel = &profile->kernels[i];
        if (strncmp(kernel->label, work->label, TIDE_MACHINE_PROFILE_LABEL_BYTES - 1) != 0)
            continue;
        const double far = distance(kernel->flops, work->flops) + distance(kernel->bytes, work->bytes);
        if (found == NULL || far < least) {
            found = kernel;
            least = far;
        }
    }
    return found;
}

static answer answer_make(const tide_machine_profile_clock *clock, const tide_work *work)
{
    const tide_machine_profile *profile = clock->profile;
    const tide_machine_profile_kernel *kernel =
        tide_machine_profile_kernel_find(profile, work->label, work->flops, work->bytes);
    answer made = {work->label, work->flops, work->bytes, 0, kernel != NULL};
    if (kernel == NULL)
        kernel = nearest(profile, work);
    if (made.measured)
        made.ns = kernel->ns;
    else
        made.ns = kernel != NULL ? scaled_ns(kernel, work) : roofline_ns(clock, work);
    made.ns += profile->launch_ns;
    return made;
}

/* --- kept times --- */

static uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static const answer *answer_of(tide_machine_profile_clock *clock, const tide_work *work)
{
    if (clock->answer_count > ANSWERS / 2) { /* empty the table, so that searches stay short */
        memset(clock->answers, 0, sizeof clock->answers);
        clock->answer_count = 0;
    }
    const uint64_t mixed =
        ((uintptr_t)work->label * UINT64_C(31) + bits_of(work->flops)) * UINT64_C(31) + bits_of(work->bytes);
    uint64_t at = mixed * UINT64_C(0x9e3779b97f4a7c15) >> 51;
    for (;; at++) {
        answer *kept = &clock->answers[at % ANSWERS];
        if (kept->label == work->label && kept->flops == work->flops && kept->bytes == work->bytes)
            return kept;
        if (kept->label != NULL)
            continue;
        *kept = answer_make(clock, work);
        clock->answer_count++;
        return kept;
    }
}

double tide_machine_profile_clock_kernel(tide_machine_profile_clock *clock, const char *label, double flops,
                                         double bytes, bool *measured)
{
    const answer *found = answer_of(clock, &(tide_work){.label = label, .flops = flops, .bytes = bytes});
    *measured = found->measured;
    return found->ns;
}

/* The clock's tide_kernel_time (offload/device.h). */
static double kernel_ns(void *context, tide_stream stream, const tide_work *work, tide_kernel fn,
                        const void *arguments)
{
    (void)fn, (void)arguments;
    tide_machine_profile_clock *clock = context;
    if (stream == TIDE_STREAM_HOST)
        return 1e9 * seconds_at(work->bytes, clock->adam_rate);
    if (stream == TIDE_STREAM_UPDATE)
        return 1e9 * seconds_at(work->bytes, clock->profile->device_adam_bytes_per_second) +
               clock->profile->launch_ns;
    return answer_of(clock, work)->ns;
}

/* --- slowdowns on a link with a limit --- */

static double slowdown_of(const tide_slowdowns *slowdowns, int stream, unsigned set)
{
    const double slowdown = slowdowns->of[stream][set];
    return slowdown > 0 ? slowdown : 1;
}

/* The mean slowdown of a stream beside the streams in `set`, whose copies load the machine only for these
 * shares of the time. */
static double mixed_slowdown(const tide_slowdowns *slowdowns, int stream, unsigned set, double in_share,
                             double out_share)
{
    const unsigned in = 1u << TIDE_STREAM_IN, out = 1u << TIDE_STREAM_OUT;
    double slowdown = 0;
    for (int with_in = 0; with_in < 2; with_in++)
        for (int with_out = 0; with_out < 2; with_out++) {
            const double p_in = with_in ? in_share : 1 - in_share,
                         p_out = with_out ? out_share : 1 - out_share;
            const unsigned present = (with_in ? set : set & ~in) & (with_out ? set : set & ~out);
            slowdown += p_in * p_out * slowdown_of(slowdowns, stream, present | 1u << stream);
        }
    return slowdown;
}

static void slowdowns_fill(tide_machine_profile_clock *clock)
{
    const tide_machine_profile *profile = clock->profile;
    const double in_share = profile->h2d_bytes_per_second > 0 && clock->in_rate > 0
                                ? clock->in_rate / profile->h2d_bytes_per_second
                                : 1,
                 out_share = profile->d2h_bytes_per_second > 0 && clock->out_rate > 0
                                 ? clock->out_rate / profile->d2h_bytes_per_second
                                 : 1;
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++)
        for (unsigned set = 0; set < 1u << TIDE_STREAM_COUNT; set++) {
            if ((set & 1u << stream) == 0)
                continue;
            double slowdown = mixed_slowdown(&profile->slowdowns, stream, set, in_share, out_share);
            if (stream == TIDE_STREAM_IN)
                slowdown = mixed_slowdown(&profile->slowdowns, stream, set, 1, out_share) / in_share;
            if (stream == TIDE_STREAM_OUT)
                slowdown = mixed_slowdown(&profile->slowdowns, stream, set, in_share, 1) / out_share;
            clock->slowdowns.of[stream][set] = tide_min_f64(slowdown, 1);
        }
}

/* --- the clock --- */

static double held_rate(double machine, double most)
{
    return most > 0 && (machine <= 0 || most < machine) ? most : machine;
}

tide_status tide_machine_profile_clock_make(const tide_machine_profile *profile, tide_dtype dtype,
                                            uint32_t threads, double link_bytes_per_second,
                                            tide_machine_profile_clock **clock)
{
    tide_machine_profile_clock *made = calloc(1, sizeof *made);
    if (made == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "machine: no memory to play on it (%zu bytes)", sizeof *made);
    made->profile = profile;
    made->dtype = dtype;
    made->adam_rate = tide_machine_profile_adam_rate(profile, threads);
    made->in_rate = held_rate(profile->h2d_bytes_per_second, link_bytes_per_second);
    made->out_rate = held_rate(profile->d2h_bytes_per_second, link_bytes_per_second);
    slowdowns_fill(made);
    *clock = made;
    return TIDE_OK;
}

void tide_machine_profile_clock_free(tide_machine_profile_clock *clock)
{
    free(clock);
}

tide_device_options tide_machine_profile_clock_machine(const tide_machine_profile_clock *clock)
{
    const tide_machine_profile *profile = clock->profile;
    return (tide_device_options){
        .link_bytes_per_second = clock->in_rate,
        .machine.link_out_bytes_per_second = clock->out_rate,
        .machine.flops_per_second = profile->flops_per_second[clock->dtype],
        .machine.device_bytes_per_second = profile->device_bytes_per_second,
        .machine.host_bytes_per_second = clock->adam_rate,
        .machine.map_ns = (uint64_t)(profile->map_ns + 0.5),
        .machine.unmap_ns = (uint64_t)(profile->unmap_ns + 0.5),
        .slowdowns = &clock->slowdowns,
        .kernel_time = kernel_ns,
        .kernel_time_context = (void *)(uintptr_t)clock,
    };
}
