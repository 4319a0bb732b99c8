/* Several ranks as pools in threads of this process (ZeRO stage 0). One rank with as many sum groups is the
 * oracle: norms, loss scales and all values must have the same bits, whatever budgets, chunk sizes and
 * placements the ranks have. The hazard checker is on. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/bf16.h"
#include "base/fp16.h"
#include "base/hash.h"
#include "src/pool/internal.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"
#include "tidepool/tidepool.h"

enum { CHUNK_BYTES = 256 * 1024, RANKS_MOST = 8, STEPS = 3, PARAMS = 7, OPS = 8, USES_MOST = 3 };

#if defined(__SANITIZE_THREAD__) /* which does not know OpenMP's barriers, nor waits left out on purpose */
enum { THREADS = 1, SITES = 0 };
#else
enum { THREADS = 2, SITES = 4 };
#endif

/* Params of one norm block, of many, and of more than a chunk; `tied` and `early` are used by several ops. */
static const struct {
    const char *name;
    uint64_t elements;
    bool frozen;
} params[PARAMS] = {{"tied", 20000, false}, {"small", 100, false},  {"long", 150000, false},
                    {"one", 1, false},      {"block", 4096, false}, {"frozen", 5000, true},
                    {"early", 9000, false}};

enum { READ = TIDE_ACCESS_READ, GRAD = TIDE_ACCESS_GRAD };

static const struct {
    tide_pass pass;
    tide_use uses[USES_MOST];
    uint32_t count;
} ops[OPS] = {
    {TIDE_PASS_FORWARD, {{0, READ}, {1, READ}}, 2},
    {TIDE_PASS_FORWARD, {{2, READ}, {5, READ}}, 2},
    {TIDE_PASS_BOTH, {{0, READ | GRAD}, {3, READ | GRAD}}, 2},
    {TIDE_PASS_BACKWARD, {{2, READ | GRAD}, {1, READ | GRAD}, {5, READ}}, 3},
    {TIDE_PASS_BACKWARD, {{5, READ}}, 1},
    {TIDE_PASS_BACKWARD, {{6, READ | GRAD}}, 1},
    {TIDE_PASS_BACKWARD, {{4, GRAD | TIDE_ACCESS_OVERWRITE}}, 1},
    {TIDE_PASS_BACKWARD, {{0, GRAD}, {6, READ}}, 2},
};

typedef enum difference {
    ALIKE,
    OTHER_RATE,
    OTHER_ORDER,
    OTHER_SLICE,
    FAILS,
    GIVES_UP,
    LEAVES,
    OTHER_MODEL
} difference;

typedef struct run_options {
    tide_dtype dtype, reduce_dtype;
    uint32_t ranks, sum_groups, micro_batches; /* of all ranks */
    float clip_norm, loss_scale;
    uint32_t overflow_at; /* the step in which a gradient of the last rank is infinite; 0: none */
    uint64_t seed;        /* of budgets, chunk sizes, placements; 0: the same everywhere */
    uint32_t delay_max_us, skip_wait_site;
    bool finishes_early;
    bool sockets;       /* the ranks are connected by TCP */
    uint64_t fault;     /* the last rank's device fails at this operation of the second step; 0: never */
    bool apart;         /* no two params share a chunk, so that only the region orders ops */
    difference differs; /* of the last rank in its second step */
} run_options;

typedef struct outcome {
    tide_step_result results[STEPS];
    float *values; /* of all params: MASTER, MOMENTUM, VARIANCE, or PARAM of frozen ones */
    uint64_t count;
} outcome;

typedef struct rank {
    const run_options *run;
    tide_comm *comm;
    tide_comm_socket_options socket; /* with run->sockets */
    outcome outcome;
    tide_status status, afterwards; /* of the first failure; of a call after it */
    char message[1024];
} rank;

static bool differs(const rank *at, uint32_t step, difference how)
{
    return at->run->differs == how && step == 1 && tide_comm_rank(at->comm) + 1 == at->run->ranks;
}

/* --- the model --- */

static uint64_t elements_of(const run_options *run, uint32_t p)
{
    return run->apart ? CHUNK_BYTES / tide_dtype_bytes(run->dtype) : params[p].elements;
}

static uint64_t pool_values(const run_options *run)
{
    uint64_t count = 0;
    for (uint32_t p = 0; p < PARAMS; p++)
        count += elements_of(run, p) * (params[p].frozen ? 1 : 3);
    return count;
}

static float noise(uint64_t seed)
{
    return (float)((double)(int64_t)tide_hash_u64(seed, 7) * 0x1p-63);
}

typedef struct grad_args {
    float *gradient;
    const void *value; /* NULL: not read */
    uint64_t elements, seed;
    tide_dtype dtype;
    bool overwrite, overflow;
    float scale;
} grad_args;

static float value_of(const grad_args *args, uint64_t i)
{
    if (args->value == NULL)
        return 0;
    return args->dtype == TIDE_DTYPE_FP32   ? ((const float *)args->value)[i]
           : args->dtype == TIDE_DTYPE_BF16 ? tide_bf16_to_float(((const tide_bf16 *)args->value)[i])
                                            : tide_fp16_to_float(((const tide_fp16 *)args->value)[i]);
}

static tide_status grad(void *stream, const void *arguments)
{
    const grad_args *args = arguments;
    (void)stream;
    for (uint64_t i = 0; i < args->elements; i++) {
        const float part = args->scale * (noise(args->seed + i) + 0.1F * value_of(args, i));
        args->gradient[i] = args->overwrite ? part : args->gradient[i] + part;
    }
    if (args->overflow)
        args->gradient[args->elements / 2] += 1.0F / 0.0F;
    return TIDE_OK;
}

static tide_status failing(void *stream, const void *arguments)
{
    (void)stream;
    (void)arguments;
    return tide_fail(TIDE_ERROR_DEVICE, "a kernel of the test fails");
}

static tide_status describe(const run_options *run, uint32_t slices, bool decays,
                            tide_description **description)
{
    tide_status status = tide_description_create(run->dtype, 0, description);
    tide_activation activation;
    if (status == TIDE_OK)
        status = tide_description_add_activation(*description, "a", slices, 1000, &activation);
    for (uint32_t p = 0; p < PARAMS && status == TIDE_OK; p++) {
        const tide_param_class class = {.frozen = params[p].frozen, .decay = decays && p % 2 == 0};
        const uint64_t elements = elements_of(run, p);
        tide_param param;
        status = tide_description_add_param(*description, params[p].name, &elements, 1, &class, &param);
    }
    for (uint32_t o = 0; o < OPS && status == TIDE_OK; o++) {
        const char name[] = {'o', (char)('0' + (int)o), 0};
        const tide_use use = {activation, TIDE_ACCESS_WRITE};
        tide_op op;
        status = tide_description_add_op(*description,
                                         &(tide_op_description){.name = name,
                                                                .pass = ops[o].pass,
                                                                .params = ops[o].uses,
                                                                .param_count = ops[o].count,
                                                                .activations = &use,
                                                                .activation_count = 1,
                                                                .slices = slices,
                                                                .workspace_bytes = 3000},
                                         &op);
    }
    return status;
}

/* --- a rank --- */

static tide_status make_pool(const rank *at, tide_description *description, tide_pool **pool)
{
    const run_options *run = at->run;
    const uint64_t luck = tide_hash_u64(run->seed, tide_comm_rank(at->comm));
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.threads = THREADS;
    options.sum_groups = run->sum_groups;
    options.reduce_dtype = run->reduce_dtype;
    options.ranks = (tide_ranks_options){.comm = at->comm, .zero_stage = 0};
    options.chunk_bytes = run->seed == 0 || run->apart ? CHUNK_BYTES : (uint64_t)CHUNK_BYTES << luck % 2;
    options.placement = run->seed == 0 ? TIDE_PLACEMENT_AUTO : (tide_placement)(luck / 2 % 3);
    options.prefetch = luck / 8 % 4 > 0;
    options.checks = (tide_checks){.hazard_check = true,
                                   .delay_seed = luck,
                                   .delay_max_us = run->delay_max_us,
                                   .skip_wait_site = run->skip_wait_site};
    if (run->seed != 0 && luck / 32 % 3 > 0) { /* the least budgets, or somewhat more */
        tide_pool_plan plan;
        options.device_memory_bytes = 1; /* so that accumulators have one end only */
        const tide_status status = tide_pool_plan_make(&options, description, &plan);
        if (status != TIDE_OK)
            return status;
        const uint64_t more = luck / 32 % 3 == 1 ? 0 : luck / 128 % 8 * options.chunk_bytes;
        options.device_memory_bytes = plan.least_device_bytes + more;
    }
    return tide_pool_create(&options, description, pool);
}

static tide_status set_values(const rank *at, tide_pool *pool)
{
    float values[1000];
    tide_status status = TIDE_OK;
    for (uint32_t p = 0; p < PARAMS; p++)
        for (uint64_t first = 0; first < elements_of(at->run, p) && status == TIDE_OK; first += 1000) {
            const uint64_t left = elements_of(at->run, p) - first, count = left < 1000 ? left : 1000;
            for (uint64_t i = 0; i < count; i++)
                values[i] = noise(p * UINT64_C(1000000) + first + i + 99);
            status = tide_param_set(pool, p, params[p].frozen ? TIDE_VALUE_PARAM : TIDE_VALUE_MASTER, first,
                                    count, values);
        }
    return status;
}

static tide_status get_values(const rank *at, tide_pool *pool, outcome *out)
{
    tide_status status = TIDE_OK;
    float *to = out->values;
    for (uint32_t p = 0; p < PARAMS; p++) {
        const tide_value last = params[p].frozen ? TIDE_VALUE_PARAM : TIDE_VALUE_VARIANCE;
        for (tide_value v = params[p].frozen ? TIDE_VALUE_PARAM : TIDE_VALUE_MASTER;
             v <= last && status == TIDE_OK; v++) {
            status = tide_param_get(pool, p, v, 0, elements_of(at->run, p), to);
            to += elements_of(at->run, p);
        }
    }
    return status;
}

static tide_status run_slice(const rank *at, tide_pool *pool, uint32_t op, uint32_t slice, uint32_t step)
{
    const run_options *run = at->run;
    const uint32_t number = tide_comm_rank(at->comm) * (run->micro_batches / run->ranks) + slice;
    tide_status status = tide_op_slice(pool, slice);
    if (status == TIDE_OK && op == 0 && differs(at, step, OTHER_SLICE))
        status = tide_op_slice(pool, slice);
    for (uint32_t u = 0; u < ops[op].count && status == TIDE_OK; u++) {
        const uint32_t p = ops[op].uses[u].tensor;
        const bool first = slice % (run->micro_batches / run->sum_groups) == 0;
        if (!(ops[op].uses[u].access & GRAD))
            continue;
        const grad_args args = {
            .gradient = tide_param_gradient(pool, p),
            .value = ops[op].uses[u].access & READ ? tide_param_data(pool, p) : NULL,
            .elements = elements_of(run, p),
            .seed = ((step * 100 + op) * UINT64_C(1000) + number) * 10000000 + p * UINT64_C(1000000),
            .dtype = run->dtype,
            .overwrite = tide_param_gradient_is_new(pool, p) && first,
            .overflow = run->overflow_at == step + 1 && number + 1 == run->micro_batches && p == 2,
            .scale = (run->loss_scale > 0 ? run->loss_scale : 1) / (float)run->micro_batches};
        status = tide_launch(pool, "grad", grad, &args, sizeof args, 0, 0);
        if (status == TIDE_OK && run->finishes_early && p == 2 &&
            slice + 1 == run->micro_batches / run->ranks)
            status = tide_gradient_finish(pool, p, 64 * 100, 64 * 1000);
    }
    return status;
}

static tide_status run_step(const rank *at, tide_pool *pool, uint32_t step)
{
    const run_options *run = at->run;
    tide_device *device = pool->context.device;
    if (run->fault > 0 && step == 1 && tide_comm_rank(at->comm) + 1 == run->ranks)
        device->ops->set_fault(device, TIDE_FAULT_ANY, run->fault);
    tide_status status = tide_step_begin(
        pool, &(tide_step_options){.training = true,
                                   .learning_rate = differs(at, step, OTHER_RATE) ? 0.02F : 0.01F,
                                   .beta1 = 0.9F,
                                   .beta2 = 0.99F,
                                   .epsilon = 1e-8F,
                                   .weight_decay = 0.1F,
                                   .clip_norm = run->clip_norm,
                                   .loss_scale = run->loss_scale});
    for (uint32_t number = 0; number < OPS && status == TIDE_OK; number++) {
        const uint32_t op = differs(at, step, OTHER_ORDER) && number < 2 ? 1 - number : number;
        if (number == 5 && (differs(at, step, LEAVES) || differs(at, step, GIVES_UP)))
            return differs(at, step, LEAVES) ? tide_fail(TIDE_ERROR_STATE, "left") : tide_step_abort(pool);
        status = tide_op_begin(pool, op);
        if (status == TIDE_OK && op == 3 && differs(at, step, FAILS))
            status = tide_launch(pool, "fail", failing, NULL, 0, 0, 0);
        for (uint32_t slice = 0; slice < run->micro_batches / run->ranks && status == TIDE_OK; slice++)
            status = run_slice(at, pool, op, slice, step);
        if (status == TIDE_OK)
            status = tide_op_end(pool);
    }
    return status == TIDE_OK ? tide_step_end(pool) : status;
}

static void *run_rank(void *of)
{
    rank *at = of;
    tide_description *description = NULL;
    tide_pool *pool = NULL;
    if (at->run->sockets && tide_comm_socket_create(&at->socket, &at->comm) != TIDE_OK) {
        at->status = TIDE_ERROR_PEER;
        snprintf(at->message, sizeof at->message, "%s", tide_message());
        return NULL;
    }
    at->outcome.count = pool_values(at->run);
    at->outcome.values = calloc(at->outcome.count, sizeof *at->outcome.values);
    at->status = describe(at->run, at->run->micro_batches / at->run->ranks, !differs(at, 1, OTHER_MODEL),
                          &description);
    if (at->status == TIDE_OK)
        at->status = make_pool(at, description, &pool);
    if (at->status == TIDE_OK)
        at->status = set_values(at, pool);
    for (uint32_t step = 0; step < STEPS && at->status == TIDE_OK; step++) {
        at->status = run_step(at, pool, step);
        if (at->status == TIDE_OK)
            at->status = tide_step_result_get(pool, &at->outcome.results[step]);
    }
    if (at->status == TIDE_OK)
        at->status = tide_pool_drain(pool);
    if (pool != NULL)
        pool->context.device->ops->set_fault(pool->context.device, 0, 0);
    if (at->status == TIDE_OK) /* else a rank may end before another's last update fails */
        at->status = tide_comm_barrier(at->comm);
    if (at->status == TIDE_OK)
        at->status = get_values(at, pool, &at->outcome);
    snprintf(at->message, sizeof at->message, "%s", tide_message());
    float value;
    if (at->status != TIDE_OK && pool != NULL && !differs(at, 1, LEAVES))
        at->afterwards = tide_param_get(pool, 0, TIDE_VALUE_MASTER, 0, 1, &value);
    tide_pool_destroy(pool);
    tide_description_destroy(description);
    tide_comm_destroy(at->comm);
    return NULL;
}

/* Opens a socket that listens on 127.0.0.1, for rank 0. */
static int listen_here(uint16_t *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof address;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(listener, RANKS_MOST), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &bytes), 0);
    *port = ntohs(address.sin_port);
    return listener;
}

static void start(const run_options *run, rank *ranks)
{
    tide_comm *comms[RANKS_MOST] = {NULL};
    tide_comm_socket_options socket = {.ranks = run->ranks};
    pthread_t threads[RANKS_MOST];
    if (run->sockets)
        socket.listener = listen_here(&socket.port);
    else
        assert_ok(tide_comm_loop_create(run->ranks, comms));
    for (uint32_t r = 0; r < run->ranks; r++) {
        ranks[r] = (rank){.run = run, .comm = comms[r], .socket = socket};
        ranks[r].socket.rank = r;
        assert_int_equal(pthread_create(&threads[r], NULL, run_rank, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < run->ranks; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
}

static void end(const run_options *run, rank *ranks)
{
    for (uint32_t r = 0; r < run->ranks; r++)
        free(ranks[r].outcome.values);
}

/* --- tests --- */

static void assert_same(const rank *one, const rank *other, uint32_t number)
{
    if (other->status != TIDE_OK)
        fail_msg("rank %u of %u: %s", number, other->run->ranks, other->message);
    for (uint32_t step = 0; step < STEPS; step++) {
        const tide_step_result *a = &one->outcome.results[step], *b = &other->outcome.results[step];
        if (memcmp(&a->gradient_norm, &b->gradient_norm, sizeof a->gradient_norm) != 0 ||
            a->gradient_scale != b->gradient_scale || a->skipped != b->skipped)
            fail_msg("rank %u of %u, step %u: norm %.17g, not %.17g", number, other->run->ranks, step,
                     b->gradient_norm, a->gradient_norm);
    }
    for (uint64_t i = 0; i < one->outcome.count; i++)
        if (memcmp(&one->outcome.values[i], &other->outcome.values[i], sizeof(float)) != 0)
            fail_msg("rank %u of %u: value %llu is %.9g, not %.9g", number, other->run->ranks,
                     (unsigned long long)i, (double)other->outcome.values[i], (double)one->outcome.values[i]);
}

/* Runs one rank and then each count of ranks; all give the same bits. */
static void compare(run_options run, const uint32_t *counts)
{
    rank one[1], ranks[RANKS_MOST];
    run_options alone = run;
    alone.ranks = 1;
    alone.seed = 0;
    alone.sockets = false;
    start(&alone, one);
    if (one->status != TIDE_OK)
        fail_msg("one rank: %s", one->message);
    for (; *counts > 0; counts++) {
        run.ranks = *counts;
        start(&run, ranks);
        for (uint32_t r = 0; r < run.ranks; r++)
            assert_same(one, &ranks[r], r);
        end(&run, ranks);
    }
    end(&alone, one);
}

static void ranks_give_the_bits_of_one(void **state)
{
    static const struct {
        uint32_t groups, counts[4];
    } ways[] = {{8, {2, 4, 8, 0}}, {12, {3, 6, 0}}, {24, {3, 6, 0}}, {5, {5, 0}}, {7, {7, 0}}};
    static const tide_dtype dtypes[] = {TIDE_DTYPE_FP32, TIDE_DTYPE_BF16, TIDE_DTYPE_FP16};
    for (uint32_t i = 0; i < sizeof ways / sizeof ways[0]; i += test_every(1, 3)) {
        const run_options run = {.dtype = dtypes[i % 3],
                                 .reduce_dtype = i % 2 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32,
                                 .sum_groups = ways[i].groups,
                                 .micro_batches = ways[i].groups * (1 + i % 2),
                                 .clip_norm = i % 2 ? 1.0F : 0.0F,
                                 .loss_scale = dtypes[i % 3] == TIDE_DTYPE_FP16 ? 1024.0F : 0.0F,
                                 .seed = i + 1,
                                 .finishes_early = i % 2};
        compare(run, ways[i].counts);
    }
}

static void ranks_connected_by_sockets_do_so_too(void **state)
{
    static const uint32_t counts[] = {2, 4, 0};
    for (uint32_t i = 0; i < 4; i += test_every(1, 4)) {
        const run_options run = {.dtype = i < 2 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32,
                                 .reduce_dtype = i % 2 ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32,
                                 .sum_groups = 4,
                                 .micro_batches = 4,
                                 .clip_norm = 1,
                                 .seed = 40 + i,
                                 .sockets = true};
        compare(run, counts);
    }
}

static void delays_change_nothing(void **state)
{
    static const uint32_t counts[] = {2, 4, 0};
    for (uint32_t i = 0; i < 4; i += test_every(1, 4))
        compare((run_options){.dtype = TIDE_DTYPE_BF16,
                              .sum_groups = 4,
                              .micro_batches = 8,
                              .clip_norm = i % 2 ? 1.0F : 0.0F,
                              .seed = 20 + i,
                              .delay_max_us = 300},
                counts);
}

static void an_op_waits_for_the_sums_of_the_op_before(void **state)
{
    static const uint32_t counts[] = {2, 0};
    for (uint32_t i = 0; i < 6; i += test_every(1, 6))
        compare((run_options){.dtype = i % 2 ? TIDE_DTYPE_FP32 : TIDE_DTYPE_BF16,
                              .sum_groups = 2,
                              .micro_batches = 2,
                              .clip_norm = 1,
                              .seed = 50 + i,
                              .apart = true},
                counts);
}

static void an_overflow_on_one_rank_skips_the_step_on_all(void **state)
{
    static const uint32_t counts[] = {2, 4, 0};
    compare((run_options){.dtype = TIDE_DTYPE_FP16,
                          .sum_groups = 4,
                          .micro_batches = 4,
                          .loss_scale = 512,
                          .overflow_at = 2,
                          .seed = 31},
            counts);
}

/* --- failures --- */

/* The last rank differs in its second step; each rank's message has its words. */
static void check_failure(difference how, tide_status last, const char *last_words, tide_status others,
                          const char *words)
{
    rank ranks[3];
    const run_options run = {.dtype = TIDE_DTYPE_BF16,
                             .ranks = 3,
                             .sum_groups = 3,
                             .micro_batches = 3,
                             .clip_norm = 1,
                             .delay_max_us = 100,
                             .differs = how};
    start(&run, ranks);
    for (uint32_t r = 0; r < run.ranks; r++) {
        const bool is_last = r + 1 == run.ranks;
        if (ranks[r].status != (is_last ? last : others) ||
            strstr(ranks[r].message, is_last ? last_words : words) == NULL)
            fail_msg("case %d: rank %u: %s: %s", (int)how, r, tide_status_name(ranks[r].status),
                     ranks[r].message);
        if (how != OTHER_MODEL && !(how == LEAVES && is_last))
            assert_int_equal(ranks[r].afterwards, ranks[r].status);
    }
    end(&run, ranks);
}

static void a_rank_that_differs_ends_all(void **state)
{
    const char *others = "rank 2 has made other calls, or calls with other values, than rank";
    const char *own = "has made other calls, or calls with other values, than rank";
    check_failure(OTHER_RATE, TIDE_ERROR_PEER, own, TIDE_ERROR_PEER, others);
    check_failure(OTHER_ORDER, TIDE_ERROR_PEER, own, TIDE_ERROR_PEER, others);
    check_failure(OTHER_SLICE, TIDE_ERROR_PEER, own, TIDE_ERROR_PEER, others);
    check_failure(OTHER_MODEL, TIDE_ERROR_PEER, "has another model or options than rank", TIDE_ERROR_PEER,
                  "has another model or options than rank");
}

static void a_failure_on_one_rank_ends_all(void **state)
{
    for (unsigned round = 0; round < 4; round += test_every(1, 4)) {
        check_failure(FAILS, TIDE_ERROR_DEVICE, "a kernel of the test fails", TIDE_ERROR_PEER,
                      "a kernel of the test fails");
        check_failure(GIVES_UP, TIDE_ERROR_PEER, "a step was given up", TIDE_ERROR_PEER,
                      "rank 2: a step was given up");
        check_failure(LEAVES, TIDE_ERROR_STATE, "left", TIDE_ERROR_PEER,
                      "rank 2: the pool was destroyed within a step");
    }
}

/* Any operation may fail: then all ranks fail with its message. */
static void a_device_that_fails_anywhere_on_one_rank_ends_all(void **state)
{
    uint32_t failures = 0;
    for (uint64_t fault = 1; fault < 400; fault += 1 + test_every(1, 3) * fault / 3) {
        rank ranks[2];
        const run_options run = {.ranks = 2,
                                 .sum_groups = 2,
                                 .micro_batches = 2,
                                 .clip_norm = fault % 2 ? 1.0F : 0.0F,
                                 .seed = 60 + fault,
                                 .sockets = fault % 3 == 0,
                                 .fault = fault};
        start(&run, ranks);
        if ((ranks[0].status == TIDE_OK) != (ranks[1].status == TIDE_OK))
            fail_msg("fault %llu: rank 0: %s; rank 1: %s", (unsigned long long)fault, ranks[0].message,
                     ranks[1].message);
        failures += ranks[0].status != TIDE_OK;
        if (ranks[0].status != TIDE_OK && strstr(ranks[0].message, "rank 1") == NULL)
            fail_msg("fault %llu: rank 0 says: %s", (unsigned long long)fault, ranks[0].message);
        end(&run, ranks);
    }
    assert_true(failures > 3);
}

static void waits_for_collectives_are_needed(void **state)
{
    static const uint32_t sites[4] = {TIDE_SITE_COMPUTE_COLLECTIVE, TIDE_SITE_OUT_COLLECTIVE,
                                      TIDE_SITE_UPDATE_COLLECTIVE, TIDE_SITE_COLLECTIVE_COMPUTE};
    for (int i = 0; i < SITES; i++) {
        bool found = false;
        for (uint64_t seed = 1; seed < 40 && !found; seed++) {
            rank ranks[2];
            const run_options run = {
                .ranks = 2, .sum_groups = 2, .micro_batches = 2, .seed = seed, .skip_wait_site = sites[i]};
            start(&run, ranks);
            found = ranks[0].status == TIDE_ERROR_HAZARD || ranks[1].status == TIDE_ERROR_HAZARD;
            end(&run, ranks);
        }
        if (!found)
            fail_msg("site %u can be left out", sites[i]);
    }
}

static void one_rank_with_a_communicator_may_give_steps_up(void **state)
{
    const run_options run = {.dtype = TIDE_DTYPE_BF16, .ranks = 1, .sum_groups = 1, .micro_batches = 1};
    rank one = {.run = &run};
    tide_description *description;
    tide_pool *pool;
    assert_ok(tide_comm_loop_create(1, &one.comm));
    assert_ok(describe(&run, 1, true, &description));
    assert_ok(make_pool(&one, description, &pool));
    for (int i = 0; i < 2; i++) {
        assert_ok(tide_step_begin(pool, &(tide_step_options){.training = true, .epsilon = 1}));
        assert_ok(tide_step_abort(pool));
    }
    tide_pool_destroy(pool);
    tide_description_destroy(description);
    tide_comm_destroy(one.comm);
}

enum { EXCHANGED = 4 };

static void *exchange_in_place(void *of)
{
    tide_comm *comm = of;
    uint32_t all[EXCHANGED], wrong = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        all[0] = 1000 * i + tide_comm_rank(comm);
        if (tide_comm_exchange(comm, all, sizeof all[0], all) != TIDE_OK)
            return comm;
        for (uint32_t r = 0; r < EXCHANGED; r++)
            wrong += all[r] != 1000 * i + r;
    }
    return wrong == 0 ? NULL : comm;
}

static void the_bytes_to_exchange_may_lie_where_another_rank_s_will(void **state)
{
    tide_comm *comms[EXCHANGED];
    pthread_t threads[EXCHANGED];
    assert_ok(tide_comm_loop_create(EXCHANGED, comms));
    for (uint32_t r = 0; r < EXCHANGED; r++)
        assert_int_equal(pthread_create(&threads[r], NULL, exchange_in_place, comms[r]), 0);
    for (uint32_t r = 0; r < EXCHANGED; r++) {
        void *wrong;
        assert_int_equal(pthread_join(threads[r], &wrong), 0);
        assert_null(wrong);
    }
    for (uint32_t r = 0; r < EXCHANGED; r++)
        tide_comm_destroy(comms[r]);
}

static void options_of_ranks_are_checked(void **state)
{
    tide_comm *comms[2];
    tide_description *description;
    tide_pool *pool = NULL;
    tide_pool_options options;
    const run_options run = {.dtype = TIDE_DTYPE_BF16};
    assert_ok(tide_comm_loop_create(2, comms));
    assert_ok(describe(&run, 2, true, &description));
    tide_pool_options_default(&options);
    options.ranks.count = 2;
    assert_fails(tide_pool_create(&options, description, &pool), TIDE_ERROR_ARGUMENT,
                 "pool: 2 ranks need ranks.comm, which connects them");
    options.ranks = (tide_ranks_options){.comm = comms[0], .count = 3};
    assert_fails(tide_pool_create(&options, description, &pool), TIDE_ERROR_ARGUMENT,
                 "pool: ranks.count is 3, but ranks.comm has 2");
    assert_fails(tide_comm_barrier(comms[1]), TIDE_ERROR_PEER, "rank 0: pool: ranks.count is 3");
    tide_comm_destroy(comms[0]);
    tide_comm_destroy(comms[1]);
    static const struct {
        uint32_t stage;
        const char *device;
        bool guard;
        tide_status status;
        const char *words;
    } cases[] = {{3, "host", false, TIDE_ERROR_UNSUPPORTED,
                  "ZeRO stage 3 can be planned, but not run yet; stage 0 can"},
                 {0, "null", false, TIDE_ERROR_UNSUPPORTED,
                  "2 ranks run on the device \"host\" only, not yet on \"null\""},
                 {0, "host", true, TIDE_ERROR_ARGUMENT, "checks.guard and several ranks exclude each other"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_ok(tide_comm_loop_create(2, comms));
        options.ranks = (tide_ranks_options){.comm = comms[0], .zero_stage = cases[i].stage};
        options.device = cases[i].device;
        options.checks.guard = cases[i].guard;
        assert_fails(tide_pool_create(&options, description, &pool), cases[i].status, cases[i].words);
        tide_comm_destroy(comms[0]);
        tide_comm_destroy(comms[1]);
    }
    tide_description_destroy(description);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_give_the_bits_of_one),
        cmocka_unit_test(ranks_connected_by_sockets_do_so_too),
        cmocka_unit_test(delays_change_nothing),
        cmocka_unit_test(an_op_waits_for_the_sums_of_the_op_before),
        cmocka_unit_test(an_overflow_on_one_rank_skips_the_step_on_all),
        cmocka_unit_test(a_rank_that_differs_ends_all),
        cmocka_unit_test(a_failure_on_one_rank_ends_all),
        cmocka_unit_test(a_device_that_fails_anywhere_on_one_rank_ends_all),
        cmocka_unit_test(waits_for_collectives_are_needed),
        cmocka_unit_test(one_rank_with_a_communicator_may_give_steps_up),
        cmocka_unit_test(the_bytes_to_exchange_may_lie_where_another_rank_s_will),
        cmocka_unit_test(options_of_ranks_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
