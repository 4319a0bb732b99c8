/* Lower bounds for the time of a step: the time of its slowest resource (step_limit.all), and the time
 * that the order of its work demands (step_limit.ordered).
 */
#include "tests/support/bench_step.h"

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

/* The bound from the order holds for any schedule that copies no more bytes, however well the rest
 * overlaps. If the host updates a param, its gradient is copied out between backward and the update, and
 * its value is copied in between the update and the next use, at least 2 bytes per param each. If the
 * device updates a param, no copy is necessary.
 *
 *   any        If the host updates all params, none of these copies can run while the head runs: the params
 *              are in, no gradient is complete, and backward needs all chunks that are on the device. So the
 *              head's time adds to the copies of the slower direction. Copies out and updates need gradients,
 *              so backward's first op adds to them too. If the device can't hold all params (more bytes come
 *              in than each param once), nothing comes in until the first chunk has left. The chunks that
 *              come in again for backward then do so between its first copy out and its last op; and about as
 *              many come in for forward between the end of its first block and the begin of its last block.
 *   always     wte's gradient is complete after the last op, and the next step's first op uses wte. So if the
 *              host updates all params, wte's copy out, update and copy in add to the whole compute. They
 *              overlap chunk by chunk: the slowest of the three counts in full, the others with one chunk.
 *              The first block's gradient is complete one op before and the second op uses the block. So the
 *              three parts of wte and of the first block add to the compute less these two ops.
 *   clipping   Every update waits for the norm, and the head runs after all params are used. So all updates,
 *              and the copies in of all params that the host updates, lie between a step's last op and the
 *              next step's head. The last chunk's copy in (or update) and the last op before the head follow
 *              them. The head and backward add to that. The first block's updates wait for the last op, too.
 */

enum { CHUNK_PARAMS = STEP_CHUNK_BYTES / 2 };

/* Bytes that compute moves per param: 6 to round a gradient, 2 for the norm. (Zeroing of gradients is left
 * out, since only those of norms and biases are zeroed.) The embedding's backward, the step's last op,
 * does this for wte. */
enum { CLOSE_BYTES = 8 };

step_sizes step_sizes_of(const tide_model_config *config, double params)
{
    const double wte = (double)tide_model_vocabulary_rows(config) * config->width;
    return (step_sizes){.params = params,
                        .wte_params = wte,
                        .block_params = (12.0 * config->width + 13) * config->width,
                        .own_bytes = CLOSE_BYTES * params,
                        .last_bytes = CLOSE_BYTES * wte};
}

step_shares step_shares_of(const tide_decoder *model, const double op_seconds[STEP_OPS_MAX])
{
    const tide_decoder_order *order = &model->order;
    double forward = 0, all = 0;
    for (uint32_t i = order->embedding; i <= order->last_trained; i++) {
        const double seconds = op_seconds[model->ops[i].handle];
        all += seconds;
        forward += i < order->head ? seconds : 0;
    }
    return (step_shares){.forward = forward / all,
                         .head = op_seconds[model->ops[order->head].handle] / all,
                         .last_forward = op_seconds[model->ops[order->head - 1].handle] / all,
                         .first_backward = op_seconds[model->ops[order->head + 1].handle] / all,
                         .embedding = op_seconds[model->ops[order->embedding].handle] / all,
                         .last_backward = op_seconds[model->ops[order->last_trained].handle] / all};
}

step_shares step_shares_beside(step_shares of_ops, double op_seconds, double own_seconds,
                               const step_sizes *sizes)
{
    const double part = op_seconds / (op_seconds + own_seconds);
    return (step_shares){.forward = of_ops.forward * part,
                         .head = of_ops.head * part,
                         .last_forward = of_ops.last_forward * part,
                         .first_backward = of_ops.first_backward * part,
                         .embedding = of_ops.embedding * part,
                         .last_backward =
                             of_ops.last_backward * part + (1 - part) * sizes->last_bytes / sizes->own_bytes};
}

static bool host_updates_all(const step_limit_inputs *of, const step_counts *counts)
{
    return counts->host_params > 0.999 * of->sizes.params;
}

static double around_head(const step_limit_inputs *of, const step_counts *counts, const step_limit *made)
{
    const double *link = of->link_seconds_per_byte;
    const double head = made->compute * of->shares.head, chunk_out = STEP_CHUNK_BYTES * link[1];
    if (!host_updates_all(of, counts))
        return head + 2 * counts->host_params * fmax(link[0], link[1]);
    const double first = made->compute * of->shares.first_backward;
    const bool held_back = counts->h2d_bytes > 2 * of->sizes.params + STEP_CHUNK_BYTES;
    const double in = made->in + (held_back ? first + chunk_out : 0);
    return head + fmax(in, first + fmax(made->out, chunk_out + made->adam));
}

/* With clipping: the time of all updates and copies in before the head. The slower of the two counts in
 * full, the other for the last chunk. */
static double before_head(const step_limit_inputs *of, const step_counts *counts, const step_limit *made)
{
    /* In the real form the updates of both sides run on the same cores. */
    const double updates =
        of->form == STEP_FORM_REAL ? made->adam + made->update : fmax(made->adam, made->update);
    const double in = 2 * counts->host_params * of->link_seconds_per_byte[0];
    if (!host_updates_all(of, counts))
        return fmax(updates, in);
    return fmax(updates + STEP_CHUNK_BYTES * of->link_seconds_per_byte[0],
                in + CHUNK_PARAMS * of->parts.adam_seconds_per_param) +
           made->compute * of->shares.last_forward;
}

static double ways_of(const step_limit_inputs *of, double params)
{
    const double adam = of->parts.adam_seconds_per_param, *link = of->link_seconds_per_byte;
    const double ways[] = {2 * link[1], adam, 2 * link[0]};
    const double slowest = fmax(ways[0], fmax(ways[1], ways[2]));
    const double others = ways[0] + ways[1] + ways[2] - slowest;
    return params * slowest + fmin(CHUNK_PARAMS, params) * others;
}

/* The time from the end of the last op to the next step's forward. That step's first op overlaps the first
 * block's part, so it is subtracted here. */
static double between_steps(const step_limit_inputs *of, const step_limit *made)
{
    const double head_start = of->clips ? 0 : made->compute * of->shares.last_backward;
    return fmax(ways_of(of, of->sizes.wte_params),
                ways_of(of, of->sizes.wte_params + of->sizes.block_params) - head_start -
                    made->compute * of->shares.embedding);
}

/* The time of the copies in for backward that the device's size forces. Before forward begins, the same
 * chunks had no space on the device (forward_seconds subtracts two: the last one, which is not full, and
 * one whose space activations take). */
static double again_seconds(const step_limit_inputs *of, const step_counts *counts)
{
    if (!host_updates_all(of, counts))
        return 0;
    return fmax(0, counts->h2d_bytes - 2 * of->sizes.params) * of->link_seconds_per_byte[0];
}

static double forward_seconds(const step_limit_inputs *of, const step_counts *counts, const step_limit *made)
{
    const double again = again_seconds(of, counts) - 2 * STEP_CHUNK_BYTES * of->link_seconds_per_byte[0];
    const double op = made->compute * of->shares.last_forward;
    return fmax(made->compute * of->shares.forward, again > 0 ? op + again + op : 0);
}

static double backward_seconds(const step_limit_inputs *of, const step_counts *counts, const step_limit *made)
{
    const double again = again_seconds(of, counts), first = made->compute * of->shares.first_backward;
    const double last = made->compute * of->shares.last_backward;
    const double compute = made->compute * (1 - of->shares.forward - of->shares.head);
    return fmax(compute,
                again > 0 ? first + STEP_CHUNK_BYTES * of->link_seconds_per_byte[1] + again + last : 0);
}

static double ordered_seconds(const step_limit_inputs *of, const step_counts *counts, const step_limit *made)
{
    const double around = around_head(of, counts, made), head = made->compute * of->shares.head;
    const double backward = backward_seconds(of, counts, made);
    double between = of->clips ? before_head(of, counts, made) : 0;
    if (host_updates_all(of, counts))
        between = fmax(between, between_steps(of, made) + forward_seconds(of, counts, made));
    return between > 0 ? fmax(head + backward + between, around) : around;
}

step_limit step_limit_of(const step_limit_inputs *of, const step_counts *counts)
{
    const double *alone = of->parts.copy_seconds_per_byte;
    const double adam_seconds = of->parts.adam_seconds_per_param;
    const double copy_seconds = counts->h2d_bytes * alone[0] + counts->d2h_bytes * alone[1];
    const bool real = of->form == STEP_FORM_REAL;
    step_limit made = {
        .compute = real ? of->compute_seconds : counts->compute_seconds,
        .update = real ? (of->sizes.params - counts->host_params) * adam_seconds : counts->update_seconds,
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
