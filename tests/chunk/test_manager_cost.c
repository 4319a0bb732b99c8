/* The cost of the manager's policy. One test compares the chunks that it copies with the optimum over all
 * choices of victims, on tiny random schedules. The other measures the time of an op's begin and end when
 * everything is resident.
 *
 * Dynamic programming finds the optimum over the set of chunks on the device and the set of host copies: 3
 * steps of up to 16 accesses to up to 6 chunks, beginning in the manager's own state. To bring a live chunk
 * in costs one copy, to evict it another one if the host has no copy. The manager does not know that the
 * third step is the last, since it plans for steps that repeat for ever, so it may copy a little more.
 */
#include "chunk/manager_internal.h"

#include "base/minmax.h"
#include "tests/support/assert_ok.h"

#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum {
    CHUNK_BYTES = 4096,
    CHUNKS_MAX = 6, /* chunks that ops access: params, then activations */
    ACCESSES_MAX = 16,
    STEPS = 3,
    STATES = 1 << (2 * CHUNKS_MAX), /* all pairs of a device set and a host set */
    CASES = 400,
};

typedef struct access {
    uint32_t chunk; /* the chunk's number among the accessed chunks, below CHUNKS_MAX */
    uint32_t access;
} access;

typedef struct tiny {
    uint32_t params, tensors, access_count;
    access accesses[ACCESSES_MAX];
    uint32_t device_slots;
    tide_description *description;
    tide_layout *layout;
    tide_manager *manager;
    uint64_t copied;
} tiny;

/* --- a random schedule: it reads params; it writes activations, reads or rewrites them, and reads them a
 * last time --- */

static const tide_param_class momentum = {.state = {1, {128}}}; /* gives each PARAM chunk a STATE chunk */

static void draw_accesses(tiny *t)
{
    uint32_t left[CHUNKS_MAX], done[CHUNKS_MAX] = {0}, total = 0;
    for (uint32_t c = 0; c < t->params + t->tensors; c++) {
        left[c] = c < t->params ? 1 + (uint32_t)rand() % 3 : 2 + (uint32_t)rand() % 2;
        total += left[c];
    }
    t->access_count = 0;
    while (total > 0 && t->access_count < ACCESSES_MAX) {
        uint32_t c = (uint32_t)rand() % (t->params + t->tensors);
        if (left[c] == 0)
            continue;
        uint32_t kind = TIDE_ACCESS_READ;
        if (c >= t->params && done[c] == 0)
            kind = TIDE_ACCESS_WRITE;
        else if (c >= t->params && left[c] == 1)
            kind = TIDE_ACCESS_READ | TIDE_ACCESS_LAST;
        else if (c >= t->params && rand() % 2)
            kind = TIDE_ACCESS_READ | TIDE_ACCESS_WRITE;
        t->accesses[t->access_count++] = (access){.chunk = c, .access = kind};
        left[c]--;
        done[c]++;
        total--;
    }
}

/* Describe params of one chunk each. */
static void describe_params(tiny *t)
{
    const uint64_t elements = CHUNK_BYTES / 4;
    assert_int_equal(tide_description_create(TIDE_DTYPE_FP32, 0, &t->description), TIDE_OK);
    for (uint32_t i = 0; i < t->params; i++) {
        char name[16];
        tide_param param;
        snprintf(name, sizeof name, "p%u", i);
        assert_int_equal(tide_description_add_param(t->description, name, &elements, 1, &momentum, &param),
                         TIDE_OK);
    }
}

static void make_manager(tiny *t, const tide_manager_options *slots)
{
    assert_int_equal(tide_layout_create(t->description, CHUNK_BYTES, TIDE_SHARD_ALL, &t->layout), TIDE_OK);
    assert_int_equal(tide_manager_create(t->layout, slots, &t->manager), TIDE_OK);
}

static void destroy(tiny *t)
{
    tide_manager_destroy(t->manager);
    tide_layout_destroy(t->layout);
    tide_description_destroy(t->description);
}

static void arrange(tiny *t)
{
    uint32_t number;
    memset(t, 0, sizeof *t);
    t->params = 1 + (uint32_t)rand() % 3;
    t->tensors = 1 + (uint32_t)rand() % 3;
    t->device_slots = 2 + (uint32_t)rand() % 2;
    draw_accesses(t);
    describe_params(t);
    for (uint32_t i = 0; i < t->tensors; i++) {
        const char *names[] = {"c0", "c1", "c2"};
        assert_int_equal(tide_description_add_activation(t->description, names[i], 1, CHUNK_BYTES, &number),
                         TIDE_OK);
    }
    for (uint32_t i = 0; i < t->access_count; i++) {
        const access *a = &t->accesses[i];
        tide_use use = {.tensor = a->chunk, .access = a->access};
        tide_op_description d = {.name = "op", .pass = TIDE_PASS_FORWARD};
        if (a->chunk < t->params) {
            d.params = &use;
            d.param_count = 1;
        } else {
            use.tensor -= t->params;
            d.activations = &use;
            d.activation_count = d.slices = 1;
        }
        assert_int_equal(tide_description_add_op(t->description, &d, &number), TIDE_OK);
    }
    const tide_manager_options slots = {
        .device_slots = t->device_slots, .host_slots = 40, .placement = TIDE_PLACEMENT_HOST};
    make_manager(t, &slots);
}

/* --- the manager's cost --- */

static void run_engine(tiny *t)
{
    tide_command command;
    while (tide_manager_next(t->manager, &command)) {
        t->copied += command.copy;
        tide_manager_done(t->manager, command.id, TIDE_OK);
    }
}

static void run_step(tiny *t)
{
    assert_int_equal(tide_manager_step_begin(t->manager, false, false), TIDE_OK);
    for (uint32_t i = 0; i < t->access_count; i++) {
        assert_int_equal(tide_manager_begin(t->manager, i), TIDE_OK);
        run_engine(t);
        if (t->accesses[i].chunk >= t->params) {
            assert_int_equal(tide_manager_slice(t->manager, 0), TIDE_OK);
            run_engine(t);
        }
        assert_true(tide_manager_ready(t->manager));
        assert_int_equal(tide_manager_end(t->manager), TIDE_OK);
    }
    assert_int_equal(tide_manager_step_end(t->manager), TIDE_OK);
}

static void set_params(tiny *t)
{
    for (uint32_t i = 0; i < t->params; i++) {
        tide_use use = {.tensor = i, .access = TIDE_ACCESS_WRITE};
        assert_int_equal(tide_manager_host_request(t->manager, &use, 1), TIDE_OK);
        run_engine(t);
    }
}

/* --- the optimum --- */

static uint32_t cost[2][STATES];

static uint32_t device_set(uint32_t state)
{
    return state >> CHUNKS_MAX;
}

static uint32_t state_of(uint32_t device, uint32_t host)
{
    return device << CHUNKS_MAX | host;
}

static void keep_least(uint32_t *at, uint32_t value)
{
    if (value < *at)
        *at = value;
}

/* The state after an access: a write or last use ends the host copy. The caller keeps track of live
 * chunks. */
static uint32_t state_after(uint32_t device, uint32_t host, const access *a)
{
    uint32_t bit = 1u << a->chunk;
    if (a->access & (TIDE_ACCESS_WRITE | TIDE_ACCESS_LAST))
        host &= ~bit;
    return state_of(device, host);
}

static void advance(const tiny *t, const access *a, uint32_t live, const uint32_t *now, uint32_t *then)
{
    uint32_t bit = 1u << a->chunk;
    memset(then, 0xff, STATES * sizeof *then);
    for (uint32_t state = 0; state < STATES; state++) {
        if (now[state] == UINT32_MAX)
            continue;
        uint32_t device = device_set(state), host = state & ((1u << CHUNKS_MAX) - 1);
        if (device & bit) {
            keep_least(&then[state_after(device, host, a)], now[state]);
            continue;
        }
        uint32_t in = live & bit ? 1 : 0;
        if ((uint32_t)__builtin_popcount(device) < t->device_slots)
            keep_least(&then[state_after(device | bit, host, a)], now[state] + in);
        for (uint32_t victim = 1; victim < 1u << CHUNKS_MAX; victim <<= 1) {
            if (!(device & victim))
                continue;
            bool copies = live & victim && !(host & victim);
            uint32_t host_then = copies ? host | victim : host;
            keep_least(&then[state_after((device & ~victim) | bit, host_then, a)], now[state] + in + copies);
        }
    }
}

static uint32_t current_state(const tiny *t)
{
    uint32_t device = 0, host = 0;
    for (uint32_t c = 0; c < t->params + t->tensors; c++) {
        const tide_chunk chunk =
            c < t->params ? c : tide_layout_chunk(t->layout, TIDE_SPACE_ACTIVATION, c - t->params);
        const tide_place *place = tide_place_of(&t->manager->places, chunk);
        device |= (uint32_t)tide_place_has(place, TIDE_TIER_DEVICE) << c;
        host |= (uint32_t)tide_place_has(place, TIDE_TIER_HOST) << c;
    }
    return state_of(device, host);
}

static uint32_t find_optimum(const tiny *t)
{
    uint32_t side = 0, live = (1u << t->params) - 1, best = UINT32_MAX;
    memset(cost[0], 0xff, sizeof cost[0]);
    cost[0][current_state(t)] = 0;
    for (uint32_t i = 0; i < STEPS * t->access_count; i++) {
        const access *a = &t->accesses[i % t->access_count];
        advance(t, a, live, cost[side], cost[1 - side]);
        side = 1 - side;
        live |= 1u << a->chunk;
        if (a->access & TIDE_ACCESS_LAST)
            live &= ~(1u << a->chunk);
        if ((i + 1) % t->access_count == 0)
            live &= (1u << t->params) - 1; /* step end frees all activations */
    }
    for (uint32_t state = 0; state < STATES; state++)
        keep_least(&best, cost[side][state]);
    return best;
}

static void the_policy_is_close_to_the_optimum(void **state)
{
    static tiny t;
    uint64_t ours = 0, optimum = 0, equal = 0;
    srand(11);
    for (int i = 0; i < CASES; i++) {
        arrange(&t);
        set_params(&t);
        run_step(&t);
        run_step(&t);
        uint32_t best = find_optimum(&t);
        t.copied = 0;
        for (int step = 0; step < STEPS; step++)
            run_step(&t);
        assert_true(t.copied >= best); /* if not, find_optimum() is wrong */
        ours += t.copied;
        optimum += best;
        equal += t.copied == best;
        destroy(&t);
    }
    print_message("%llu chunks copied, optimum %llu: ratio %.4f, optimal in %llu of %d cases\n",
                  (unsigned long long)ours, (unsigned long long)optimum, (double)ours / (double)optimum,
                  (unsigned long long)equal, CASES);
    assert_true(optimum > 0);
    assert_true(ours * 100 <= optimum * 102);
}

/* --- time of begin and end --- */

static double nanoseconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Nanoseconds that next, begin and end take for an op with one resident chunk out of `params`, in steps that
 * follow the recording. */
static double time_resident_ops(uint32_t params)
{
    enum { ROUNDS = 20 };
    static tiny t;
    uint32_t number;
    memset(&t, 0, sizeof t);
    t.params = params;
    describe_params(&t);
    for (uint32_t i = 0; i < params; i++) {
        tide_use use = {.tensor = i, .access = TIDE_ACCESS_READ};
        tide_op_description d = {.name = "op", .pass = TIDE_PASS_FORWARD, .params = &use, .param_count = 1};
        assert_int_equal(tide_description_add_op(t.description, &d, &number), TIDE_OK);
    }
    const tide_manager_options slots = {.device_slots = 2 * params + 1, .host_slots = 2, .prefetch = true};
    make_manager(&t, &slots);
    double least = DBL_MAX; /* of all rounds, because other programs make some rounds longer */
    for (int round = 0; round < ROUNDS; round++) {
        double began = 0;
        assert_int_equal(tide_manager_step_begin(t.manager, false, false), TIDE_OK);
        if (round > 1)
            began = nanoseconds_now();
        for (tide_op op = 0; op < params; op++) {
            if (tide_manager_begin(t.manager, op) != TIDE_OK)
                fail();
            run_engine(&t);
            if (tide_manager_end(t.manager) != TIDE_OK)
                fail();
        }
        if (round > 1)
            least = tide_min_f64(least, nanoseconds_now() - began);
        assert_int_equal(tide_manager_step_end(t.manager), TIDE_OK);
    }
    destroy(&t);
    return least / params;
}

static void an_op_whose_chunks_are_resident_costs_the_same_among_many_chunks(void **state)
{
    double few = time_resident_ops(20), many = time_resident_ops(2000);
    print_message("begin, next and end of a resident op: %.0f ns among 40 chunks, %.0f ns among 4000\n", few,
                  many);
    assert_true(many < 20 * few); /* a walk over all chunks would take 100 times as long */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_policy_is_close_to_the_optimum),
        cmocka_unit_test(an_op_whose_chunks_are_resident_costs_the_same_among_many_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
