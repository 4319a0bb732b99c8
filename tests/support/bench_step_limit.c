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

/* What the order of a step demands of any schedule that moves no more bytes, however well the rest overlaps. A param that
 * the host updates has its way out between backward and its update and its way in between that and its next use, with 2
 * bytes or more; one that the device updates may stay there, and no way is demanded.
 *
 *   any        while the head runs none of those ways is gone, if the host updates every param: what forward used is there,
 *              no gradient is complete, and of what is there nothing can go that backward does not need again. So the head,
 *              and for what follows gradients the first op of backward, come on top of all of the slower direction, and of
 *              all updates, which follow a chunk's way out. And where the device can't hold all (in is more than every
 *              param once), nothing comes in either until that first chunk has left.
 *              With that, what comes in again in backward does so between its first chunk's leaving and its last op;
 *              and as much of what forward needs between its first block's end and its last one's begin.
 *   always     wte's gradient is complete after the last op and wte is used by the first: its way out, its updates and
 *              its way back (one after the other chunk by chunk, so the slowest counts, and one chunk's of the others)
 *              come on top of all compute, where it is known that the host updates it (all). The first block's, used by
 *              the second op, is complete an op before: so the ways of both, but for that op and the first.
 *   clipping   every update waits for the norm, and every param is used before the head is done with its forward:
 *              between a step's last op and the next one's head lie all updates, the way of what the host wrote to the
 *              device, and, behind the last of both, a chunk's way in or its update and the last op before the head. The
 *              head and backward come on top. The first block's updates wait for the last op, too.
 */

enum { CHUNK_PARAMS = STEP_CHUNK_BYTES / 2 };

/* Bytes a param: of a gradient rounding 6, norm 2. Zeros are written for norms and biases alone. The embedding's backward, the
 * step's last op, closes wte's gradient. */
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

/* Of updates and their ways before the head; the last chunk's share in each but the slowest comes on top. */
static double before_head(const step_limit_inputs *of, const step_counts *counts, const step_limit *made)
{
    /* In the real form both sides update on the same cores. */
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

/* From the last op's end to the next step's forward; that one's first op is counted there. */
static double between_steps(const step_limit_inputs *of, const step_limit *made)
{
    const double head_start = of->clips ? 0 : made->compute * of->shares.last_backward;
    return fmax(ways_of(of, of->sizes.wte_params),
                ways_of(of, of->sizes.wte_params + of->sizes.block_params) - head_start -
                    made->compute * of->shares.embedding);
}

/* What comes in again in backward because the device can't hold all. As much of what forward needs had no place there
 * before forward began, but for a chunk whose place saved activations take meanwhile, and the last one, which is not full. */
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
