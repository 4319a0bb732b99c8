/* ranks: measures how much of the time in which two ranks add their gradients is hidden behind compute.
 *
 *     usage: bench_ranks [--quick]
 *
 * Two ranks train a GPT-2 of 12 blocks (24M) in bf16 on the host device, with everything resident: threads of
 * this program, connected by TCP on this machine, each with one thread for compute.
 *
 *   real    the trainer's steps. Both ranks' compute and the work of the collectives (sums, rounding, TCP)
 *           share the processors.
 *   timed   the same ops sleep for as long as they took in the real form, so that both ranks compute equally
 *           fast and the collectives have the processors for themselves, as beside a GPU
 *
 * A round has four runs, each form without and with a limit of the bandwidth. The first run, real and without
 * a limit, says how long each op computes. The limit is the bandwidth at which the collectives of all ops but
 * the last take HIDDEN_SHARE of the time in which backward's ops compute, so that the figures do not depend
 * on the machine's speed. Each figure is the median of its values in the rounds.
 *
 *   collective seconds   bytes that a rank sends in a step over the bandwidth
 *   exposed seconds      compute waited for the collective stream: the stall cause `peer` of the pool's
 *                        counters
 *   the end              the part of the exposed seconds that lies in the reduce and gather of the last op,
 *                        the embedding's backward: there is nothing left to compute that could hide them
 *
 *     compute      | block 1 | block 0 | emb. |/////|/////////////////|norm
 *     collective         |  2  | |  1  |     |  0   |    embedding    |
 *                                               |     the end
 *                                               exposed before the end
 *
 * `exposed` is the exposed seconds before the end over the collective seconds, both without the last op's,
 * which is more than their share of all collective seconds. Block 0's collective counts, although only the
 * last op, which is short, can hide it: that alone is up to 1/12. The figure is required of the form timed.
 * In the real form it contains waits for a rank that computes slower than the other for a while, as
 * where two ranks and their collectives share two processors; `without a limit` says how long such waits are.
 * `end` is the time of the end over the last op's collective seconds. `step` is the time by which the limit
 * makes a step longer, over the collective seconds: it contains all that the pool does not count as exposed.
 * `waits agree` compares the waits that the benchmark saw with the pool's counters. All times are means of
 * both ranks. */
#include "base/clock.h"
#include "base/minmax.h"
#include "offload/host_link.h"
#include "src/comm/tcp.h"
#include "src/model/decoder_internal.h"
#include "src/pool/inspect.h"
#include "src/pool/order.h"
#include "src/train/trainer_internal.h"
#include "tests/support/bench.h"
#include "tests/support/small_model.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 2, OPS_MAX = 64, WAITS_MAX = 256, ROUNDS_MAX = 3, SETTLE_STEPS = 2, STEPS = 5 };

typedef enum rank_form { REAL = 0, TIMED, FORMS } rank_form;

static const char *const form_names[FORMS] = {"real", "timed"};

#define HIDDEN_SHARE 0.5
#define EXPOSED_MOST 0.15
#define AGREE_MOST   1.02

/* A run of both ranks. */
typedef struct run_options {
    rank_form form;
    double bytes_per_second;  /* 0: no limit */
    const double *op_seconds; /* of the form timed: [OPS_MAX] */
    const char *data;
    unsigned settle, steps;
} run_options;

/* Of a run: first sums, then means of steps and ranks. */
typedef struct figures {
    double seconds;
    double exposed, end;     /* `exposed` as counted; the part of it that is the end */
    double waited;           /* `exposed` as seen */
    double collectives;      /* time in reduces and gathers, waits for the other rank included */
    double bytes, end_bytes; /* that a rank sends: of all ops, of the last */
    double backward;         /* compute of backward's ops */
    double op_seconds[OPS_MAX];
} figures;

/* --- what a rank's streams do --- */

typedef struct span {
    uint64_t begin_ns, end_ns;
} span;

/* Since the last reset. */
typedef struct watched {
    pthread_mutex_t lock;
    tide_op first_backward, last; /* constant */
    span waits[WAITS_MAX];        /* of compute for the collective stream */
    unsigned count;
    span end; /* the last op's reduce and gather */
    figures seen;
} watched;

static double seconds_of(span of)
{
    return of.begin_ns < of.end_ns ? (double)(of.end_ns - of.begin_ns) * 1e-9 : 0;
}

static span common(span one, span other)
{
    return (span){tide_max_u64(one.begin_ns, other.begin_ns), tide_min_u64(one.end_ns, other.end_ns)};
}

/* Whether the command is one of the pool's own kernels. */
static bool is_of_pool(const tide_observed *command)
{
    return strcmp(command->label, "zero") == 0 || strncmp(command->label, "gradient ", 9) == 0;
}

static void see_compute(watched *it, const tide_observed *command)
{
    const span took = {command->begin_ns, command->end_ns};
    if (!command->is_wait && command->tag < OPS_MAX && !is_of_pool(command))
        it->seen.op_seconds[command->tag] += seconds_of(took);
    if (!command->is_wait || command->tag != TIDE_SITE_COMPUTE_COLLECTIVE)
        return;
    if (it->count == WAITS_MAX)
        bench_die("a step waits more than %d times for collectives", WAITS_MAX);
    it->waits[it->count++] = took;
}

/* Each rank owns half of the bytes: it sends the other half, then its own. */
static void see_collective(watched *it, const tide_observed *command)
{
    const bool gathers = strcmp(command->label, "gradient gather") == 0;
    if (command->is_wait || (!gathers && strcmp(command->label, "gradient reduce") != 0))
        return;
    it->seen.collectives += seconds_of((span){command->begin_ns, command->end_ns});
    it->seen.bytes += command->bytes / RANKS;
    if (command->tag != it->last)
        return;
    it->seen.end_bytes += command->bytes / RANKS;
    if (gathers)
        it->end.end_ns = command->end_ns;
    else
        it->end.begin_ns = command->begin_ns;
}

static void observe(void *context, const tide_observed *command)
{
    watched *it = context;
    pthread_mutex_lock(&it->lock);
    if (command->stream == TIDE_STREAM_COMPUTE)
        see_compute(it, command);
    else if (command->stream == TIDE_STREAM_COLLECTIVE)
        see_collective(it, command);
    pthread_mutex_unlock(&it->lock);
}

static void reset(watched *it)
{
    pthread_mutex_lock(&it->lock);
    it->count = 0;
    it->end = (span){0};
    it->seen = (figures){0};
    pthread_mutex_unlock(&it->lock);
}

/* Add `share` of `more`. */
static void add_figures(figures *sums, const figures *more, double share)
{
    sums->seconds += share * more->seconds;
    sums->exposed += share * more->exposed;
    sums->end += share * more->end;
    sums->waited += share * more->waited;
    sums->collectives += share * more->collectives;
    sums->bytes += share * more->bytes;
    sums->end_bytes += share * more->end_bytes;
    sums->backward += share * more->backward;
    for (int i = 0; i < OPS_MAX; i++)
        sums->op_seconds[i] += share * more->op_seconds[i];
}

/* After a step's end: its commands have ended. */
static void add_seen(figures *sums, watched *it)
{
    pthread_mutex_lock(&it->lock);
    if (it->end.begin_ns == 0 || it->end.end_ns == 0)
        bench_die("the last op of a step has no collective");
    for (unsigned i = 0; i < it->count; i++) {
        it->seen.waited += seconds_of(it->waits[i]);
        it->seen.end += seconds_of(common(it->waits[i], it->end));
    }
    for (tide_op op = it->first_backward; op <= it->last; op++)
        it->seen.backward += it->seen.op_seconds[op];
    add_figures(sums, &it->seen, 1);
    pthread_mutex_unlock(&it->lock);
}

/* --- steps --- */

static void real_step(tide_trainer *trainer)
{
    tide_trainer_report report;
    bench_check(tide_trainer_step(trainer, &report), "step");
    if (report.skipped)
        bench_die("step %llu was skipped", (unsigned long long)report.step);
}

static tide_status run_sleep(void *stream, const void *arguments)
{
    (void)stream;
    tide_host_sleep_until(tide_clock_ns() + *(const uint64_t *)arguments);
    return TIDE_OK;
}

static void timed_op(const tide_trainer *trainer, const tide_decoder_op *op, double seconds)
{
    const uint32_t slices = trainer->model->options.micro_batches;
    const uint64_t ns = (uint64_t)(seconds / slices * 1e9);
    bench_check(tide_op_begin(trainer->pool, op->handle), "op begin");
    for (uint32_t i = 0; i < slices; i++) {
        bench_check(tide_op_slice(trainer->pool, i), "op slice");
        bench_check(tide_launch(trainer->pool, "timed op", run_sleep, &ns, sizeof ns, 0, 0), "launch");
    }
    bench_check(tide_op_end(trainer->pool), "op end");
}

/* No op adds to a gradient, so all are zero. */
static void timed_step(const tide_trainer *trainer, const double *op_seconds)
{
    const tide_decoder_order *order = &trainer->model->order;
    const tide_step_options options = {.training = true,
                                       .learning_rate = 1e-3F,
                                       .beta1 = 0.9F,
                                       .beta2 = 0.95F,
                                       .epsilon = 1e-8F,
                                       .clip_norm = 1};
    tide_step_result result;
    bench_check(tide_step_begin(trainer->pool, &options), "step begin");
    for (uint32_t i = order->embedding; i <= order->last_trained; i++)
        timed_op(trainer, &trainer->model->ops[i], op_seconds[trainer->model->ops[i].handle]);
    bench_check(tide_step_end(trainer->pool), "step end");
    bench_check(tide_step_result_get(trainer->pool, &result), "step result");
}

static void step(tide_trainer *trainer, const run_options *of)
{
    if (of->form == REAL)
        real_step(trainer);
    else
        timed_step(trainer, of->op_seconds);
}

/* --- a run of both ranks --- */

typedef struct rank {
    pthread_t thread;
    const run_options *of;
    tide_comm_socket_options socket;
    figures sums;
} rank;

static double peer_seconds(const tide_trainer *trainer)
{
    tide_pool_counters counters;
    bench_check(tide_pool_counters_get(trainer->pool, &counters), "counters");
    return counters.stall_seconds_by[TIDE_STALL_PEER];
}

static void measure(rank *it, tide_trainer *trainer)
{
    watched *seen = calloc(1, sizeof *seen);
    if (seen == NULL)
        bench_die("no memory to watch a rank");
    pthread_mutex_init(&seen->lock, NULL);
    seen->first_backward = trainer->model->ops[trainer->model->order.first_backward].handle;
    seen->last = trainer->model->ops[trainer->model->order.last_trained].handle;
    if (tide_pool_packing(trainer->pool)->op_count > OPS_MAX)
        bench_die("a step has more than %d ops", OPS_MAX);
    bench_check(tide_pool_drain(trainer->pool), "drain");
    tide_pool_watch(trainer->pool, observe, seen);
    for (unsigned i = 0; i < it->of->settle; i++)
        step(trainer, it->of);
    it->sums.exposed -= peer_seconds(trainer);
    it->sums.seconds -= bench_seconds();
    for (unsigned i = 0; i < it->of->steps; i++) {
        reset(seen);
        step(trainer, it->of);
        add_seen(&it->sums, seen);
    }
    it->sums.seconds += bench_seconds();
    it->sums.exposed += peer_seconds(trainer);
    bench_check(tide_pool_drain(trainer->pool), "drain");
    tide_pool_watch(trainer->pool, NULL, NULL);
    pthread_mutex_destroy(&seen->lock);
    free(seen);
}

static void *run_rank(void *argument)
{
    rank *it = argument;
    tide_trainer_options options;
    tide_trainer *trainer;
    tide_comm *comm;
    bench_check(tide_comm_socket_create(&it->socket, &comm), "connect");
    tide_trainer_options_default(&options);
    options.model = gpt2_of(12, 384, 6, 256, 4096);
    options.data = it->of->data;
    options.global_batch_tokens = (uint64_t)RANKS * 4 * options.model.context;
    options.micro_batch_sequences = 1;
    options.pool.device = "host";
    options.pool.chunk_bytes = 1 << 20;
    options.pool.threads = 1;
    options.pool.ranks = (tide_ranks_options){.comm = comm, .zero_stage = 0};
    bench_check(tide_trainer_create(&options, &trainer), "trainer");
    measure(it, trainer);
    tide_trainer_destroy(trainer);
    tide_comm_destroy(comm);
    return NULL;
}

/* A socket that listens on this machine, and its port. */
static int listen_here(uint16_t *port)
{
    tide_tcp_address address = {.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    const int listener = tide_tcp_listen(&address);
    if (listener < 0 || !tide_tcp_local(listener, &address))
        bench_die("no port for the ranks");
    *port = tide_tcp_port(&address);
    return listener;
}

static figures run(const run_options *of)
{
    rank ranks[RANKS];
    uint16_t port;
    const int listener = listen_here(&port);
    figures means = {0};
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i] = (rank){.of = of,
                          .socket = {.rank = i,
                                     .ranks = RANKS,
                                     .port = port,
                                     .listener = i == 0 ? listener : 0,
                                     .bytes_per_second = of->bytes_per_second}};
        if (pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]) != 0)
            bench_die("no thread for rank %u", i);
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
        add_figures(&means, &ranks[i].sums, 1.0 / (RANKS * of->steps));
    }
    return means;
}

/* --- rounds --- */

typedef struct pair {
    figures free, limited;
    double bytes_per_second;
} pair;

/* The limit at which the collectives of all ops but the last take HIDDEN_SHARE of backward's compute. */
static double bandwidth_of(const figures *of)
{
    return (of->bytes - of->end_bytes) / (HIDDEN_SHARE * of->backward);
}

typedef double ratio_of(const pair *of);

static double before_end(const figures *of)
{
    return of->exposed - of->end;
}

/* The collective seconds without the last op's. */
static double hideable(const pair *of)
{
    return (of->limited.bytes - of->limited.end_bytes) / of->bytes_per_second;
}

static double exposed_ratio(const pair *of)
{
    return before_end(&of->limited) / hideable(of);
}

static double free_ratio(const pair *of)
{
    return before_end(&of->free) / hideable(of);
}

static double end_ratio(const pair *of)
{
    return of->limited.end / (of->limited.end_bytes / of->bytes_per_second);
}

static double step_ratio(const pair *of)
{
    return (of->limited.seconds - of->free.seconds) / (of->limited.bytes / of->bytes_per_second);
}

/* At least 1. */
static double agreement(const pair *of)
{
    const double one = of->limited.exposed / of->limited.waited;
    return one > 1 ? one : 1 / one;
}

/* The median over the rounds; *middle is its round. `count` is odd. */
static double median_of(const pair *rounds, unsigned count, ratio_of *ratio, const pair **middle)
{
    double values[ROUNDS_MAX];
    for (unsigned i = 0; i < count; i++)
        values[i] = ratio(&rounds[i]);
    const double median = bench_median(values, count);
    *middle = rounds;
    for (unsigned i = 0; i < count; i++)
        if (ratio(&rounds[i]) == median) // NOLINT
            *middle = &rounds[i];
    return median;
}

static void print_exposed(rank_form form, const pair *rounds, unsigned count)
{
    const pair *of;
    const double value = median_of(rounds, count, exposed_ratio, &of);
    double least = value, most = value;
    for (unsigned i = 0; i < count; i++) {
        least = exposed_ratio(&rounds[i]) < least ? exposed_ratio(&rounds[i]) : least;
        most = exposed_ratio(&rounds[i]) > most ? exposed_ratio(&rounds[i]) : most;
    }
    bench_figure(
        bench_name("%s, exposed", form_names[form]), value, "ratio",
        form == TIMED ? BENCH_AT_MOST : BENCH_NO_BOUND, EXPOSED_MOST,
        "median of %u (%.3f to %.3f); ms a step: %.1f exposed, %.1f of them the end, %.1f collective "
        "seconds, %.1f of them the last op's; %.0f MB/s; step %.0f, backward's compute %.0f",
        count, least, most, of->limited.exposed * 1e3, of->limited.end * 1e3,
        of->limited.bytes / of->bytes_per_second * 1e3, of->limited.end_bytes / of->bytes_per_second * 1e3,
        of->bytes_per_second * 1e-6, of->limited.seconds * 1e3, of->limited.backward * 1e3);
}

static void print_rest(rank_form form, const pair *rounds, unsigned count)
{
    const pair *of;
    const double without = median_of(rounds, count, free_ratio, &of);
    bench_figure(
        bench_name("%s, exposed without a limit", form_names[form]), without, "ratio", BENCH_NO_BOUND, 0,
        "over the same collective seconds; ms: %.1f exposed, %.1f of them the end, reduces and "
        "gathers %.1f, step %.0f",
        of->free.exposed * 1e3, of->free.end * 1e3, of->free.collectives * 1e3, of->free.seconds * 1e3);
    const double end = median_of(rounds, count, end_ratio, &of);
    bench_figure(bench_name("%s, end", form_names[form]), end, "ratio", BENCH_NO_BOUND, 0,
                 "of the last op's collective seconds; ms: %.1f", of->limited.end * 1e3);
    const double longer = median_of(rounds, count, step_ratio, &of);
    bench_figure(bench_name("%s, step", form_names[form]), longer, "ratio", BENCH_NO_BOUND, 0,
                 "by how much the limit makes a step longer over the collective seconds; ms: %.0f and %.0f",
                 of->limited.seconds * 1e3, of->free.seconds * 1e3);
    const double agree = median_of(rounds, count, agreement, &of);
    bench_figure(bench_name("%s, waits agree", form_names[form]), agree, "ratio", BENCH_AT_MOST, AGREE_MOST,
                 "exposed seconds as counted and as seen, the larger over the smaller; ms: %.1f and %.1f",
                 of->limited.exposed * 1e3, of->limited.waited * 1e3);
}

static void run_round(run_options of, pair *pairs[FORMS])
{
    for (of.form = REAL; of.form < FORMS; of.form++) {
        pair *made = pairs[of.form];
        of.bytes_per_second = 0;
        of.op_seconds = pairs[REAL]->free.op_seconds;
        made->free = run(&of);
        made->bytes_per_second = of.bytes_per_second = bandwidth_of(&pairs[REAL]->free);
        made->limited = run(&of);
    }
}

int main(int argc, char **argv)
{
    const bool quick = bench_options(argc, argv);
    static pair rounds[FORMS][ROUNDS_MAX];
    static char data[BENCH_PATH_BYTES];
    const unsigned count = quick ? 1 : ROUNDS_MAX;
    bench_data(data);
    const run_options options = {
        .data = data, .settle = quick ? 1 : SETTLE_STEPS, .steps = quick ? 1 : STEPS};
    for (unsigned i = 0; i < count; i++)
        run_round(options, (pair *[FORMS]){&rounds[REAL][i], &rounds[TIMED][i]});
    bench_begin("ranks");
    for (rank_form form = REAL; form < FORMS; form++) {
        print_exposed(form, rounds[form], count);
        print_rest(form, rounds[form], count);
    }
    bench_end();
    return 0;
}
