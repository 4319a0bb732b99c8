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

/* What the order of a step demands, however well the rest overlaps. A param that the host updates has its way out
 * between backward and its update and its way in between that and its next use, with 2 bytes or more; one that the device
 * updates may stay there, and no way is demanded.
 *
 *   clipping   every update waits for the norm, and every param is used before the head is done with its forward:
 *              between a step's last op and the next one's head lie all updates, and the way of what the host wrote to
 *              the device. The head and backward come on top.
 *   none       while the head runs none of those ways is gone: what forward used is there, no gradient is complete. So
 *              the slower direction comes on top of the head. And wte's gradient is complete after the last op and wte
 *              is used by the first: its way out, its updates and its way back (one after the other chunk by chunk, so
 *              the slowest counts) come on top of all compute, where it is known that the host updates it (all).
 */
static double ordered_seconds(const step_limit_inputs *of, const step_counts *counts, const step_limit *made)
{
    const double *link = of->link_seconds_per_byte;
    const double host_bytes = 2 * counts->host_params;
    if (of->clips) {
        /* In the real form both sides update on the same cores. */
        const double updates =
            of->form == STEP_FORM_REAL ? made->adam + made->update : fmax(made->adam, made->update);
        return made->compute * (1 - of->shares.forward) + fmax(updates, host_bytes * link[0]);
    }
    const double slower = fmax(link[0], link[1]);
    const double around_head = made->compute * of->shares.head + host_bytes * slower;
    if (counts->host_params < of->params)
        return around_head;
    const double wte = of->wte_params * fmax(of->parts.adam_seconds_per_param, 2 * slower);
    return fmax(made->compute + wte, around_head);
}

step_limit step_limit_of(const step_limit_inputs *of, const step_counts *counts)
{
    const double *plain = of->parts.copy_seconds_per_byte;
    const double adam_seconds = of->parts.adam_seconds_per_param;
    const double copy_seconds = counts->h2d_bytes * plain[0] + counts->d2h_bytes * plain[1];
    const bool real = of->form == STEP_FORM_REAL;
    step_limit made = {
        .compute = real ? of->compute_seconds : counts->compute_seconds,
        .update = real ? (of->params - counts->host_params) * adam_seconds : counts->update_seconds,
        .in = counts->h2d_bytes * of->link_seconds_per_byte[0],
        .out = counts->d2h_bytes * of->link_seconds_per_byte[1],
        .adam = counts->host_params * adam_seconds,
        .maps = counts->maps * of->parts.map_seconds / of->cores,
        .copies = of->form == STEP_FORM_DMA ? 0 : copy_seconds / of->cores,
    };
    if (real)
        raise_to(&made, made.compute + made.adam + made.update + made.copies + made.maps, "cores");
    else {
        raise_to(&made, made.adam + made.maps, "Adam");
        raise_to(&made, made.compute, "compute");
        raise_to(&made, made.update, "device updates");
    }
    made.without_link = made.all;
    raise_to(&made, made.in, "link in");
    raise_to(&made, made.out, "link out");
    made.ordered = ordered_seconds(of, counts, &made);
    return made;
}
