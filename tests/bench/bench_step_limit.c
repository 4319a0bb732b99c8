/* What no step can be faster than: its slowest resource, and what its order demands.
 */
#include "tests/bench/bench_step.h"

#include <math.h>

static void raise_to(step_limit *of, double seconds, const char *by)
{
    if (of->all >= seconds)
        return;
    of->all = seconds;
    of->by = by;
}

double step_link_seconds(double bytes, double rate, double copy_seconds_per_byte)
{
    return bytes * (rate > 0 ? fmax(1 / rate, copy_seconds_per_byte) : copy_seconds_per_byte);
}

static double way(const step_limit_inputs *of, int direction, double bytes)
{
    return step_link_seconds(bytes, of->link_rate, of->parts.copy_seconds_per_byte[direction]);
}

/* What the order of a step demands, however well the rest overlaps.
 *
 *   clipping   every update waits for the norm, and every param is used before the head is done with its forward:
 *              between a step's last op and the next one's head lie all host updates, and the way of what they wrote to
 *              the device. The head and backward come on top.
 *   none       wte's gradient is complete after the last op and wte is used by the first: its way out, its updates and
 *              its way back (one after the other chunk by chunk, so the slowest counts) come on top of all compute. And
 *              while the head runs, nothing comes in: what forward used is there, no gradient is complete.
 */
static double ordered_seconds(const step_limit_inputs *of, const step_counts *counts, double compute)
{
    const bool all_on_host = counts->host_params >= of->params;
    const double params = of->clips ? counts->host_params : all_on_host ? of->wte_params : 0;
    const double adam = params * of->parts.adam_seconds_per_param;
    const double in = way(of, 0, 2 * params), out = way(of, 1, 2 * params);
    if (of->clips)
        return compute * (1 - of->shares.forward) + fmax(adam, in);
    return fmax(compute + fmax(adam, fmax(in, out)),
                all_on_host ? compute * of->shares.head + way(of, 0, 2 * counts->host_params) : 0);
}

step_limit step_limit_of(const step_limit_inputs *of, const step_counts *counts)
{
    const double *plain = of->parts.copy_seconds_per_byte;
    const bool real = of->form == STEP_FORM_REAL;
    step_limit made = {
        .compute = real ? of->compute_seconds : counts->compute_seconds,
        .update = real ? 0 : counts->update_seconds,
        .in = way(of, 0, counts->h2d_bytes),
        .out = way(of, 1, counts->d2h_bytes),
        .adam = counts->host_params * of->parts.adam_seconds_per_param,
        .maps = counts->maps * of->parts.map_seconds / of->cores,
        .copies = (counts->h2d_bytes * plain[0] + counts->d2h_bytes * plain[1]) / of->cores,
    };
    if (real)
        raise_to(&made, made.compute + made.adam + made.copies + made.maps, "cores");
    else {
        raise_to(&made, made.adam + made.maps, "Adam");
        raise_to(&made, made.compute, "compute");
        raise_to(&made, made.update, "device updates");
    }
    made.without_link = made.all;
    raise_to(&made, made.in, "link in");
    raise_to(&made, made.out, "link out");
    made.ordered = ordered_seconds(of, counts, made.compute);
    return made;
}
