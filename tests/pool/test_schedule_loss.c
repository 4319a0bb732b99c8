/* How much time the schedule loses: a step of gpt2, played in virtual time on the null device, against the
 * least time that the order of its ops, copies and updates allows (bench_step_limit.c).
 *
 * The test measures nothing. Ops, copies and Adam take as long as they once took on a machine with AMX, two
 * cores and 256 tokens a step. (bench_step.c measures them anew and plays them.) If a step takes longer than
 * before, the chunk manager or the pool has changed. Cases: three devices, four links, with and without
 * clipping, and a quarter of the model data on the device. Each step must be at most 5% above the bound and
 * none below.
 *
 * On the fast device without clipping the limit is 7%. Adam is busy from backward's first gradient on, so
 * the updates of the early blocks come after that of the embedding, and their slots are blocked until then.
 * Blocks that were updated long before could use these slots, and forward would wait for fewer chunks.
 */
#include "tests/support/assert_ok.h"
#include "tests/support/bench.h"
#include "tests/support/bench_step.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <setjmp.h>

#include <cmocka.h>

#define LOST_MOST      1.05
#define LOST_MOST_FAST 1.07
#define BEATEN_LEAST   0.999

enum { LAYERS = 12, DEVICE_SPEED = 20, HEAD = LAYERS + 1, BLOCK_MOVES = 358 };

/* Seconds of the embedding, of a block forward, of the head, of a block backward with recomputation, of the
 * first such block, and of the pool's own kernels. */
static const double embedding_seconds = 1e-4, forward_seconds = 4.6e-3, head_seconds = 0.105,
                    backward_seconds = 11.1e-3, first_backward_seconds = 13.1e-3, own_seconds = 0.096;

static const step_parts parts = {
    .copy_seconds_per_byte = {1.49e-10, 1.59e-10}, .adam_seconds_per_param = 4.81e-10, .map_seconds = 8.9e-6};

typedef struct device {
    const char *name;
    double op_share; /* factor for the durations above */
    /* if above 0: all compute together takes this many times as long as Adam, and op_share does not count */
    double adam_compute;
    bool own_kernels; /* the pool's own kernels last as on the CPU; false: as in a fast device's memory */
} device;

static const device devices[] = {
    {"CPU", 1, 0, true}, {"a device's ops", 1, 0, false}, {"a fast device", 0, 1, false}};

/* How long the link takes compared with the slowest other resource; 0: the link is as fast as copies in
 * memory. */
static const double link_shares[] = {0, 0.5, 1, 2};

static double ops_at(double share, double seconds[STEP_OPS_MAX])
{
    double sum = 0;
    for (int i = 0; i < STEP_OPS_MAX; i++)
        seconds[i] = 0;
    seconds[0] = seconds[2 * HEAD] = embedding_seconds * share;
    for (int i = 1; i <= LAYERS; i++) {
        seconds[i] = forward_seconds * share;
        seconds[HEAD + i] = (i == 1 ? first_backward_seconds : backward_seconds) * share;
    }
    seconds[HEAD] = head_seconds * share;
    for (int i = 0; i < STEP_OPS_MAX; i++)
        sum += seconds[i];
    return sum;
}

typedef struct fixture {
    tide_trainer_options trainer;
    const tide_decoder *model;
    step_sizes sizes;
    double least, most; /* the least loss of all rows; the greatest, as a share of its row's limit */
} fixture;

static void play(fixture *it, const device *on, double link_share, bool clips)
{
    double op_seconds[STEP_OPS_MAX], sum = ops_at(on->op_share, op_seconds);
    const double adam = it->sizes.params * parts.adam_seconds_per_param;
    const double fast_rate = DEVICE_SPEED * 28 / parts.adam_seconds_per_param;
    const double own = on->own_kernels ? own_seconds : it->sizes.own_bytes / fast_rate;
    if (on->adam_compute > 0)
        sum = ops_at((on->adam_compute * adam - own) / ops_at(1, op_seconds), op_seconds);
    const double slowest = fmax(sum + own, adam), carried = BLOCK_MOVES * 1e6;
    const step_null_options options = {
        .trainer = &it->trainer,
        .clips = clips,
        .op_seconds = op_seconds,
        .device_rate = it->sizes.own_bytes / own,
        .link_seconds_per_byte = {fmax(parts.copy_seconds_per_byte[0], link_share * slowest / carried),
                                  fmax(parts.copy_seconds_per_byte[1], link_share * slowest / carried)},
        .adam_seconds_per_param = parts.adam_seconds_per_param,
        .map_seconds = parts.map_seconds,
        .params = it->sizes.params};
    const step_null_play played = step_null_played(&options);
    const step_limit_inputs inputs = {
        .form = STEP_FORM_DMA,
        .clips = clips,
        .cores = 1,
        .sizes = it->sizes,
        .shares = step_shares_beside(step_shares_of(it->model, op_seconds), sum, own, &it->sizes),
        .parts = parts,
        .link_seconds_per_byte = {options.link_seconds_per_byte[0], options.link_seconds_per_byte[1]}};
    const step_limit limit = step_limit_of(&inputs, &played.counts);
    const double loss = played.counts.seconds / fmax(limit.all, limit.ordered);
    print_message("%-14s link %.1f, %s: %.1f ms, %.3f of what its order demands\n", on->name, link_share,
                  clips ? "clip" : "no clip", played.counts.seconds * 1e3, loss);
    it->least = fmin(it->least, loss);
    it->most = fmax(it->most, loss / (on->adam_compute > 0 && !clips ? LOST_MOST_FAST : LOST_MOST));
}

static void a_step_loses_at_most_a_twentieth_of_what_its_order_demands(void **state)
{
    fixture it = {.least = 2};
    tide_trainer_draft draft;
    tide_trainer_options_default(&it.trainer);
    bench_check(tide_model_config_open("gpt2", &it.trainer.model), "gpt2");
    it.trainer.seq_len = 256;
    it.trainer.global_batch_tokens = 256;
    it.trainer.recompute = TIDE_RECOMPUTE_ALL;
    it.trainer.pool.chunk_bytes = STEP_CHUNK_BYTES;
    it.trainer.pool.threads = 2;
    it.trainer.pool.device = "null";
    bench_check(tide_trainer_draft_make(&it.trainer, NULL, NULL, &draft), "sizes");
    it.model = draft.model;
    it.sizes = step_sizes_of(&draft.model->options.config, (double)draft.plan.pool.params);
    it.trainer.pool.device_memory_bytes = draft.plan.pool.model_bytes / 4;
    it.trainer.pool.host_memory_bytes = draft.plan.pool.model_bytes * 3 / 2;
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        for (size_t k = 0; k < sizeof link_shares / sizeof link_shares[0]; k++) {
            play(&it, &devices[i], link_shares[k], true);
            play(&it, &devices[i], link_shares[k], false);
        }
    }
    tide_trainer_draft_destroy(&draft);
    if (it.most > 1)
        fail_msg("a step takes %.3f of what is allowed", it.most);
    if (it.least < BEATEN_LEAST)
        fail_msg("a step takes %.3f of what its order demands: that is no limit", it.least);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_loses_at_most_a_twentieth_of_what_its_order_demands)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
