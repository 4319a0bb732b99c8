/* The hazard checker alone: each kind of race on each pair of streams, and thousands of random programs
 * against a reference model, which builds the whole graph of happens-before and searches it for paths. */
#include "offload/hazard.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

#include <stdio.h>

enum { OBJECTS = 6, EVENTS = 16, HOST_A = 100, HOST_B = 200 };

static tide_hazard *checker_make(uint32_t event_count)
{
    tide_hazard *hazard;
    assert_ok(tide_hazard_create(&hazard));
    assert_ok(tide_hazard_objects_add(hazard, TIDE_OBJECT_DEVICE_SLOT, NULL, OBJECTS));
    assert_ok(tide_hazard_events_reserve(hazard, event_count));
    return hazard;
}

static tide_hazard_actor host_of(tide_hazard *hazard, uint64_t thread_number)
{
    tide_hazard_actor host;
    assert_ok(tide_hazard_host_find(hazard, thread_number, &host));
    return host;
}

/* A case gets a checker and a host thread. */
typedef struct hazard_case {
    void (*run)(tide_hazard *hazard, tide_hazard_actor host);
} hazard_case;

static void hazard_case_run(void **state)
{
    tide_hazard *hazard = checker_make(EVENTS);
    ((const hazard_case *)*state)->run(hazard, host_of(hazard, HOST_A));
    assert_true(tide_hazard_is_valid(hazard));
    tide_hazard_destroy(hazard);
}
#define hazard_test(name) ((struct CMUnitTest){#name, hazard_case_run, NULL, NULL, &(hazard_case){name}})

static tide_status command(tide_hazard *hazard, tide_stream stream, tide_hazard_actor host, const char *label,
                           uint32_t tag, tide_access access)
{
    tide_work work = {.label = label, .tag = tag, .accesses = &access, .access_count = 1};
    tide_status status = tide_hazard_command(hazard, stream, host, &work);
    assert_true(tide_hazard_is_valid(hazard));
    return status;
}

static tide_status touch(tide_hazard *hazard, tide_hazard_actor host, const char *label, tide_access access)
{
    tide_work work = {.label = label, .tag = 9, .accesses = &access, .access_count = 1};
    return tide_hazard_touch(hazard, host, &work);
}

static const tide_access reads_2 = {TIDE_OBJECT_DEVICE_SLOT, 2, false};
static const tide_access writes_2 = {TIDE_OBJECT_DEVICE_SLOT, 2, true};

/* --- the three races --- */

static const struct {
    const tide_access *first, *second;
    const char *second_does, *first_did;
} races[] = {
    {&writes_2, &reads_2, "reads", "wrote"},
    {&reads_2, &writes_2, "writes", "read"},
    {&writes_2, &writes_2, "writes", "wrote"},
};

static void race_is_named_and_mended_by_a_wait(tide_stream a, tide_stream b, size_t race)
{
    tide_hazard *hazard = checker_make(EVENTS);
    tide_hazard_actor host = host_of(hazard, HOST_A);
    char expected[256];
    (void)snprintf(
        expected, sizeof expected,
        "hazard: second 8 on stream %s %s device slot 2 without being ordered after first 7 on stream %s, "
        "which %s it",
        tide_stream_name(b), races[race].second_does, tide_stream_name(a), races[race].first_did);
    assert_ok(command(hazard, a, host, "first", 7, *races[race].first));
    assert_fails(command(hazard, b, host, "second", 8, *races[race].second), TIDE_ERROR_HAZARD, expected);
    assert_string_equal(tide_message(), expected);
    tide_hazard_record(hazard, 1, a, host);
    tide_hazard_stream_wait(hazard, b, host, 1);
    assert_ok(command(hazard, b, host, "second", 8, *races[race].second));
    tide_hazard_destroy(hazard);
}

static void every_race_on_every_pair_of_streams_is_named_and_mended_by_a_wait(void **state)
{
    for (int a = 0; a < TIDE_STREAM_COUNT; a++)
        for (int b = 0; b < TIDE_STREAM_COUNT; b++)
            for (size_t race = 0; race < 3 && a != b; race++)
                race_is_named_and_mended_by_a_wait((tide_stream)a, (tide_stream)b, race);
}

static void commands_of_one_stream_are_ordered(tide_hazard *hazard, tide_hazard_actor host)
{
    const tide_hazard_actor other = host_of(hazard, HOST_B);
    assert_ok(command(hazard, TIDE_STREAM_COMPUTE, host, "x", 1, writes_2));
    assert_ok(command(hazard, TIDE_STREAM_COMPUTE, other, "x", 2, writes_2));
}

static void two_reads_need_no_order_but_a_write_needs_both(tide_hazard *hazard, tide_hazard_actor host)
{
    assert_ok(command(hazard, TIDE_STREAM_COMPUTE, host, "read", 1, reads_2));
    assert_ok(command(hazard, TIDE_STREAM_OUT, host, "read", 2, reads_2));
    tide_hazard_record(hazard, 1, TIDE_STREAM_COMPUTE, host);
    tide_hazard_stream_wait(hazard, TIDE_STREAM_IN, host, 1);
    assert_fails(command(hazard, TIDE_STREAM_IN, host, "write", 3, writes_2), TIDE_ERROR_HAZARD,
                 "read 2 on stream out");
    tide_hazard_record(hazard, 2, TIDE_STREAM_OUT, host);
    tide_hazard_stream_wait(hazard, TIDE_STREAM_IN, host, 2);
    assert_ok(command(hazard, TIDE_STREAM_IN, host, "write", 3, writes_2));
}

/* --- events --- */

static void order_goes_through_a_third_stream(tide_hazard *hazard, tide_hazard_actor host)
{
    assert_ok(command(hazard, TIDE_STREAM_IN, host, "first", 1, writes_2));
    tide_hazard_record(hazard, 1, TIDE_STREAM_IN, host);
    tide_hazard_stream_wait(hazard, TIDE_STREAM_UPDATE, host, 1);
    tide_hazard_record(hazard, 2, TIDE_STREAM_UPDATE, host);
    tide_hazard_stream_wait(hazard, TIDE_STREAM_OUT, host, 2);
    assert_ok(command(hazard, TIDE_STREAM_OUT, host, "second", 2, writes_2));
}

static void wait_takes_the_record_before_it_not_a_later_one(tide_hazard *hazard, tide_hazard_actor host)
{
    tide_hazard_record(hazard, 1, TIDE_STREAM_IN, host);
    tide_hazard_stream_wait(hazard, TIDE_STREAM_COMPUTE, host, 1);
    assert_ok(command(hazard, TIDE_STREAM_IN, host, "late", 1, writes_2));
    tide_hazard_record(hazard, 1, TIDE_STREAM_IN, host);
    assert_int_equal(command(hazard, TIDE_STREAM_COMPUTE, host, "use", 2, reads_2), TIDE_ERROR_HAZARD);
}

static void event_never_recorded_orders_nothing(tide_hazard *hazard, tide_hazard_actor host)
{
    assert_ok(command(hazard, TIDE_STREAM_IN, host, "first", 1, writes_2));
    tide_hazard_stream_wait(hazard, TIDE_STREAM_OUT, host, 5);
    assert_int_equal(command(hazard, TIDE_STREAM_OUT, host, "second", 1, reads_2), TIDE_ERROR_HAZARD);
}

/* --- host threads --- */

static void host_thread_needs_the_event_and_then_orders_what_it_enqueues(tide_hazard *hazard,
                                                                         tide_hazard_actor host)
{
    assert_ok(command(hazard, TIDE_STREAM_HOST, host, "adam", 1, writes_2));
    tide_hazard_record(hazard, 1, TIDE_STREAM_HOST, host);
    assert_int_equal(touch(hazard, host, "unmap", writes_2), TIDE_ERROR_HAZARD);
    assert_string_equal(tide_message(),
                        "hazard: unmap 9 on host thread 0 writes device slot 2 without being ordered "
                        "after adam 1 on stream host, which wrote it");
    tide_hazard_host_wait(hazard, host, 1);
    assert_ok(touch(hazard, host, "unmap", writes_2));
    assert_ok(command(hazard, TIDE_STREAM_IN, host, "fetch", 2, writes_2));
}

static void host_thread_is_not_ordered_by_what_another_one_knows(tide_hazard *hazard, tide_hazard_actor host)
{
    const tide_hazard_actor other = host_of(hazard, HOST_B);
    assert_ok(touch(hazard, host, "fill", writes_2));
    assert_int_equal(command(hazard, TIDE_STREAM_IN, other, "fetch", 1, reads_2), TIDE_ERROR_HAZARD);
    tide_hazard_record(hazard, 1, TIDE_STREAM_IN, host);
    assert_ok(command(hazard, TIDE_STREAM_IN, other, "fetch", 1, reads_2));
}

static void touch_after_a_launch_is_not_ordered_before_it(tide_hazard *hazard, tide_hazard_actor host)
{
    assert_ok(command(hazard, TIDE_STREAM_IN, host, "fetch", 1, reads_2));
    assert_int_equal(touch(hazard, host, "refill", writes_2), TIDE_ERROR_HAZARD);
    tide_hazard_host_wait_all(hazard, host);
    assert_ok(touch(hazard, host, "refill", writes_2));
}

static void unmapping_needs_order_after_every_use(tide_hazard *hazard, tide_hazard_actor host)
{
    assert_ok(tide_hazard_unmap(hazard, host, 2));
    assert_ok(command(hazard, TIDE_STREAM_COMPUTE, host, "use", 1, writes_2));
    tide_hazard_record(hazard, 1, TIDE_STREAM_COMPUTE, host);
    assert_ok(command(hazard, TIDE_STREAM_COMPUTE, host, "use", 2, reads_2));
    tide_hazard_record(hazard, 2, TIDE_STREAM_COMPUTE, host);
    tide_hazard_host_wait(hazard, host, 1);
    assert_fails(tide_hazard_unmap(hazard, host, 2), TIDE_ERROR_HAZARD,
                 "after use 2 on stream compute, which read it");
    assert_ok(tide_hazard_unmap(hazard, host, 1));
    tide_hazard_host_wait(hazard, host, 2);
    assert_ok(tide_hazard_unmap(hazard, host, 2));
    tide_hazard_stream_wait(hazard, TIDE_STREAM_OUT, host, 2);
    assert_ok(command(hazard, TIDE_STREAM_OUT, host, "evict", 3, reads_2));
    assert_fails(tide_hazard_unmap(hazard, host, 2), TIDE_ERROR_HAZARD,
                 "after evict 3 on stream out, which read it");
    assert_int_equal(tide_hazard_unmap(hazard, host, OBJECTS), TIDE_ERROR_ARGUMENT);
}

static void seventeenth_host_thread_is_refused(tide_hazard *hazard, tide_hazard_actor host)
{
    assert_int_equal(host, TIDE_STREAM_COUNT);
    for (uint64_t thread = 1; thread < TIDE_HAZARD_HOST_THREADS_MAX; thread++)
        (void)host_of(hazard, thread);
    assert_int_equal(tide_hazard_host_find(hazard, 99, &host), TIDE_ERROR_STATE);
    assert_int_equal(host_of(hazard, 3), TIDE_STREAM_COUNT + 3);
}

/* --- failure leaves no trace --- */

static void refused_command_changes_nothing(tide_hazard *hazard, tide_hazard_actor host)
{
    assert_ok(command(hazard, TIDE_STREAM_IN, host, "first", 1, writes_2));
    tide_access both[] = {tide_writes(TIDE_OBJECT_DEVICE_SLOT, 1), writes_2};
    tide_work work = {.label = "both", .accesses = both, .access_count = 2};
    assert_int_equal(tide_hazard_command(hazard, TIDE_STREAM_OUT, host, &work), TIDE_ERROR_HAZARD);
    /* If the refused command had marked slot 1 as written, this one would race with it. */
    assert_ok(command(hazard, TIDE_STREAM_UPDATE, host, "x", 1, both[0]));
    both[1].index = OBJECTS;
    assert_int_equal(tide_hazard_command(hazard, TIDE_STREAM_OUT, host, &work), TIDE_ERROR_HAZARD);
    both[0] = tide_reads(TIDE_OBJECT_DEVICE_SLOT, 3);
    assert_fails(tide_hazard_command(hazard, TIDE_STREAM_OUT, host, &work), TIDE_ERROR_ARGUMENT,
                 "device slot 6, which does not exist");
    assert_ok(command(hazard, TIDE_STREAM_UPDATE, host, "x", 1, tide_writes(TIDE_OBJECT_DEVICE_SLOT, 3)));
}

static void named_objects_are_named(tide_hazard *hazard, tide_hazard_actor host)
{
    assert_ok(tide_hazard_objects_add(hazard, TIDE_OBJECT_REGION, "workspace", 1));
    tide_access access = tide_writes(TIDE_OBJECT_REGION, 0);
    assert_ok(command(hazard, TIDE_STREAM_COMPUTE, host, "a", 1, access));
    assert_fails(command(hazard, TIDE_STREAM_UPDATE, host, "b", 2, access), TIDE_ERROR_HAZARD,
                 "writes region part workspace without");
    tide_hazard_forget(hazard);
    assert_ok(command(hazard, TIDE_STREAM_UPDATE, host, "b", 2, access));
}

/* --- the reference model ---
 *
 * Each call is a node of its host thread. The command that it enqueues is a second node, of the stream.
 * There are edges from a node to the next one of the same thread or stream, from a call to its command,
 * and from a recorded event's node to each node that waits for it. Each node stores the set of all nodes
 * before it. */

enum { STEPS_MAX = 160, NODES_MAX = 2 * STEPS_MAX, WORDS = NODES_MAX / 64, LANES = TIDE_STREAM_COUNT + 2 };

typedef enum step_kind { STEP_COMMAND, STEP_TOUCH, STEP_RECORD, STEP_STREAM_WAIT, STEP_HOST_WAIT } step_kind;

typedef struct model_step {
    step_kind kind;
    tide_stream stream;
    uint32_t host; /* host thread 0 or 1 */
    tide_event event;
    tide_access accesses[2];
    uint32_t access_count;
} model_step;

typedef struct model_program {
    model_step steps[STEPS_MAX];
    int count;
} model_program;

typedef struct graph_access {
    int node;
    tide_access access;
    tide_event event; /* the event recorded right behind the access */
} graph_access;

typedef struct model_graph {
    uint64_t before[NODES_MAX][WORDS];
    int node_count;
    int last[LANES]; /* the last node of each stream, then of each host thread; -1: none */
    int recorded[STEPS_MAX + 1];
    graph_access accesses[2 * STEPS_MAX];
    int access_count;
} model_graph;

static void graph_init(model_graph *graph)
{
    memset(graph, 0, sizeof *graph);
    for (int i = 0; i < LANES; i++)
        graph->last[i] = -1;
    for (int i = 0; i <= STEPS_MAX; i++)
        graph->recorded[i] = -1;
}

static void edge(model_graph *graph, int from, int to)
{
    if (from < 0)
        return;
    for (int i = 0; i < WORDS; i++)
        graph->before[to][i] |= graph->before[from][i];
    graph->before[to][from / 64] |= UINT64_C(1) << from % 64;
}

static bool comes_before(const model_graph *graph, int from, int to)
{
    return (graph->before[to][from / 64] >> from % 64 & 1) != 0;
}

static int node_add(model_graph *graph, int lane)
{
    int node = graph->node_count++;
    assert_true(node < NODES_MAX);
    edge(graph, graph->last[lane], node);
    graph->last[lane] = node;
    return node;
}

/* Adds the step to the graph and returns the node at which its accesses happen. */
static int step_draw(model_graph *graph, const model_step *step)
{
    int call = node_add(graph, TIDE_STREAM_COUNT + (int)step->host);
    if (step->kind == STEP_HOST_WAIT)
        edge(graph, graph->recorded[step->event], call);
    if (step->kind == STEP_HOST_WAIT || step->kind == STEP_TOUCH)
        return call;
    int enqueued = node_add(graph, (int)step->stream);
    edge(graph, call, enqueued);
    if (step->kind == STEP_RECORD)
        graph->recorded[step->event] = enqueued;
    if (step->kind == STEP_STREAM_WAIT)
        edge(graph, graph->recorded[step->event], enqueued);
    return enqueued;
}

/* Returns the first earlier access that conflicts with one of the step's and has no path to `node`, or
 * NULL. */
static const graph_access *graph_conflict(const model_graph *graph, const model_step *step, int node)
{
    for (int i = 0; i < graph->access_count; i++)
        for (uint32_t k = 0; k < step->access_count; k++) {
            const graph_access *other = &graph->accesses[i];
            bool conflict = other->access.index == step->accesses[k].index &&
                            (other->access.write || step->accesses[k].write);
            if (conflict && !comes_before(graph, other->node, node))
                return other;
        }
    return NULL;
}

static void graph_enter(model_graph *graph, const model_step *step, int node, tide_event event)
{
    for (uint32_t k = 0; k < step->access_count; k++)
        graph->accesses[graph->access_count++] = (graph_access){node, step->accesses[k], event};
}

static tide_status checker_step(tide_hazard *hazard, const model_step *step)
{
    tide_hazard_actor host = host_of(hazard, step->host == 0 ? HOST_A : HOST_B);
    tide_work work = {.label = "x", .accesses = step->accesses, .access_count = step->access_count};
    switch (step->kind) {
    case STEP_COMMAND:
        return tide_hazard_command(hazard, step->stream, host, &work);
    case STEP_TOUCH:
        return tide_hazard_touch(hazard, host, &work);
    case STEP_RECORD:
        tide_hazard_record(hazard, step->event, step->stream, host);
        return TIDE_OK;
    case STEP_STREAM_WAIT:
        tide_hazard_stream_wait(hazard, step->stream, host, step->event);
        return TIDE_OK;
    case STEP_HOST_WAIT:
        tide_hazard_host_wait(hazard, host, step->event);
        return TIDE_OK;
    }
    return TIDE_ERROR_INTERNAL;
}

/* --- random programs --- */

static uint64_t random_state;

static uint32_t random_below(uint32_t limit)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % limit;
}

static model_step random_access_step(void)
{
    model_step it = {
        .kind = random_below(6) == 0 ? STEP_TOUCH : STEP_COMMAND,
        .stream = (tide_stream)random_below(TIDE_STREAM_COUNT),
        .host = random_below(2),
        .access_count = 1 + random_below(2),
    };
    uint32_t first = random_below(OBJECTS);
    it.accesses[0] = (tide_access){TIDE_OBJECT_DEVICE_SLOT, first, random_below(2) == 0};
    it.accesses[1] = (tide_access){TIDE_OBJECT_DEVICE_SLOT, (first + 1) % OBJECTS, random_below(2) == 0};
    return it;
}

static int program_add(model_program *program, model_graph *graph, model_step step)
{
    program->steps[program->count++] = step;
    return step_draw(graph, &step);
}

/* Appends the step, preceded by only the waits that its true dependencies need and followed by an event. */
static void program_add_ordered(model_program *program, model_graph *graph, model_step it)
{
    static model_graph probe;
    for (;;) {
        probe = *graph;
        const graph_access *conflict = graph_conflict(&probe, &it, step_draw(&probe, &it));
        if (conflict == NULL)
            break;
        bool by_host = it.kind == STEP_TOUCH || random_below(4) == 0;
        model_step wait = {.kind = by_host ? STEP_HOST_WAIT : STEP_STREAM_WAIT,
                           .stream = it.stream,
                           .host = it.host,
                           .event = conflict->event};
        (void)program_add(program, graph, wait);
    }
    int node = program_add(program, graph, it);
    model_step record = {
        .kind = STEP_RECORD, .stream = it.stream, .host = it.host, .event = (tide_event)program->count};
    (void)program_add(program, graph, record);
    graph_enter(graph, &it, node, record.event);
}

static void program_make(model_program *program, model_graph *graph)
{
    program->count = 0;
    graph_init(graph);
    while (program->count < STEPS_MAX / 2)
        program_add_ordered(program, graph, random_access_step());
}

/* Runs checker and model side by side without the step `removed`. They must agree at every step. Returns
 * the step at which both found a race, or -1. */
static int replay(const model_program *program, int removed)
{
    static model_graph graph;
    graph_init(&graph);
    tide_hazard *hazard = checker_make(STEPS_MAX);
    int raced = -1;
    for (int i = 0; i < program->count && raced < 0; i++) {
        const model_step *step = &program->steps[i];
        if (i == removed)
            continue;
        int node = step_draw(&graph, step);
        bool model_races = graph_conflict(&graph, step, node) != NULL;
        tide_status status = checker_step(hazard, step);
        assert_int_equal(status, model_races ? TIDE_ERROR_HAZARD : TIDE_OK);
        graph_enter(&graph, step, node, 0);
        raced = model_races ? i : -1;
    }
    assert_true(tide_hazard_is_valid(hazard));
    tide_hazard_destroy(hazard);
    return raced;
}

static bool is_wait(const model_step *step)
{
    return step->kind == STEP_STREAM_WAIT || step->kind == STEP_HOST_WAIT;
}

static void random_programs_agree_with_the_graph_whatever_wait_is_removed(void **state)
{
    static model_program program;
    static model_graph graph;
    int waits = 0, necessary = 0;
    for (uint64_t seed = 1; seed <= 3000; seed += test_every(2, 6)) {
        random_state = seed;
        program_make(&program, &graph);
        assert_int_equal(replay(&program, -1), -1);
        for (int i = 0; i < program.count; i++) {
            if (!is_wait(&program.steps[i]))
                continue;
            waits++;
            necessary += replay(&program, i) >= 0;
        }
    }
    print_message("%d waits, %d of them necessary, each found missing\n", waits, necessary);
    assert_true(necessary > waits / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_race_on_every_pair_of_streams_is_named_and_mended_by_a_wait),
        hazard_test(commands_of_one_stream_are_ordered),
        hazard_test(two_reads_need_no_order_but_a_write_needs_both),
        hazard_test(order_goes_through_a_third_stream),
        hazard_test(wait_takes_the_record_before_it_not_a_later_one),
        hazard_test(event_never_recorded_orders_nothing),
        hazard_test(host_thread_needs_the_event_and_then_orders_what_it_enqueues),
        hazard_test(host_thread_is_not_ordered_by_what_another_one_knows),
        hazard_test(touch_after_a_launch_is_not_ordered_before_it),
        hazard_test(unmapping_needs_order_after_every_use),
        hazard_test(seventeenth_host_thread_is_refused),
        hazard_test(refused_command_changes_nothing),
        hazard_test(named_objects_are_named),
        cmocka_unit_test(random_programs_agree_with_the_graph_whatever_wait_is_removed),
    };
    return cmocka_run_group_tests_name("hazard", tests, NULL, NULL);
}
