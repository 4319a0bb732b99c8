/* Random sequences of calls on the manager. The reference model (reference_manager.h) checks every answer
 * and command, and reference rules (reference_choices.h) check every choice.
 *
 * A sequence draws params of one to three state formats, ops with tied params and slices, budgets from the
 * exact least upward, a placement, and prefetch on or off. Then it plays steps whose updates wait or don't,
 * and are released or skipped; between them forward-only passes, changed orders of ops, host requests, aborts
 * and failing commands. Commands complete late and in random order. Usage: test_manager_random [SEQUENCES
 * [FIRST_SEED]].
 *
 * Every fifth sequence is restless: its ops run in any order, it often gives a step up in the middle, and
 * its updates are so slow that those of the step before are still pending. Otherwise an abort seldom meets
 * both gradients of its own step and older updates, because in the description's order a param's
 * forward op comes first and waits for the update.
 */
#include "chunk/manager_internal.h"
#include "reference_choices.h"
#include "reference_manager.h"
#include "tests/support/assert_ok.h"
#include "tests/support/stream_hash.h"
#include "tests/support/test_thin.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

enum { SEQUENCES = 10000, LAYERS_MAX = 5, CHUNK_BYTES = 4096 };

/* one sequence in LARGE_ONE_IN has a large model of up to 60 params in hundreds of chunks */
enum { LARGE_ONE_IN = 61, LARGE_PARAMS_MAX = 60, LARGE_ELEMENTS_MAX = 150000, LARGE_LAYERS_MAX = 24 };

/* --- no allocation after creation: malloc, calloc and realloc are wrapped (tests/meson.build) --- */

static bool allocation_forbidden;
static unsigned forbidden_allocations;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);

void *__wrap_malloc(size_t bytes)
{
    forbidden_allocations += allocation_forbidden;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    forbidden_allocations += allocation_forbidden;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    forbidden_allocations += allocation_forbidden;
    return __real_realloc(old, bytes);
}

/* --- random numbers --- */

typedef struct sequence {
    uint64_t random;
    reference_op ops[REFERENCE_OPS_MAX];
    uint32_t op_count, forward_count;
    uint32_t params, tensors, parts;
    bool frozen[REFERENCE_PARAMS_MAX];
    tide_description *description;
    tide_layout *layout;
    tide_manager *manager;
    reference_manager reference;
    bool failing;       /* commands may fail */
    bool failed;        /* a command has failed: an abort comes next */
    bool poisoned;      /* an abort has poisoned the manager: all values must be set before the next step */
    uint32_t eagerness; /* percent chance that the engine completes an open command before it takes one */
    bool tells;         /* the sequence tells the manager how busy the link is and how far the device is */
    uint64_t passed;    /* how many op ends the device has passed */
    bool steady;        /* slices run in order, each once, so that steps follow their recording */
    bool large;         /* a model of up to 60 params and hundreds of chunks */
    bool restless;      /* ops in any order, every other step given up, slow updates */
    uint32_t impatient; /* percent chance, drawn twice an op, that the open step is given up */
    bool reordered;     /* the open step's ops do not run in the description's order */
} sequence;

/* Counts aborts in the middle of a training step that had made gradients, while updates of the step before
 * were pending. */
typedef struct aborts {
    uint32_t among_older;      /* those that did not poison the manager */
    uint32_t in_another_order; /* those of among_older in a step whose ops ran out of order */
    /* those of among_older with a param that had a pending update in one chunk and a restore in another */
    uint32_t with_a_neighbour;
} aborts;

static aborts aborts_played;
static uint32_t gradients_waited; /* ops that were run because a gradient waited for them */

static uint32_t below(sequence *s, uint32_t limit)
{
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (uint32_t)((s->random >> 11) % limit);
}

static bool percent(sequence *s, uint32_t chance)
{
    return below(s, 100) < chance;
}

/* --- a random model --- */

/* A STATE chunk of these formats holds the state of 256, 512, 768, 1024, 1280, 1792 or 16384 elements, a
 * PARAM chunk has 1024 or 2048 elements. So STATE chunks belong to one, to two or to many PARAM chunks. The
 * last format is that of frozen params. */
static const tide_state_format formats[] = {
    {3, {128, 128, 128}}, {3, {32, 5, 164}}, {2, {96, 64}}, {2, {64, 64}},
    {3, {32, 5, 64}},     {2, {8, 64}},      {1, {8}},      {0, {0}},
};
enum { FORMATS = sizeof formats / sizeof *formats, FROZEN = FORMATS - 1, CLASSES_MAX = 3 };

/* Draw formats, which may be the same; the first is seldom that of frozen params. drawn[i] is an index in
 * `formats`. */
static uint32_t draw_formats(sequence *s, uint32_t drawn[CLASSES_MAX])
{
    const uint32_t classes = percent(s, 30) ? 1 : 2 + below(s, CLASSES_MAX - 1);
    for (uint32_t i = 0; i < classes; i++)
        drawn[i] = percent(s, i == 0 ? 2 : 40) ? FROZEN : below(s, FROZEN);
    return classes;
}

static void describe_param(sequence *s, const char *name, uint64_t elements, uint32_t format)
{
    const tide_param_class of_class = {.frozen = format == FROZEN, .state = formats[format]};
    tide_param param;
    assert_int_equal(tide_description_add_param(s->description, name, &elements, 1, &of_class, &param),
                     TIDE_OK);
    s->frozen[param] = of_class.frozen;
}

static void draw_tensors(sequence *s)
{
    char name[32];
    uint32_t number, drawn[CLASSES_MAX], sizes[] = {64, 700, 2500, 9000};
    const tide_dtype dtype = percent(s, 70) ? TIDE_DTYPE_BF16 : TIDE_DTYPE_FP32;
    assert_int_equal(tide_description_create(dtype, 0, &s->description), TIDE_OK);
    const uint32_t classes = draw_formats(s, drawn);
    const uint32_t params = 1 + below(s, s->large ? LARGE_PARAMS_MAX : 9);
    uint32_t total = 0;
    for (uint32_t i = 0; i < params && (!s->large || total < LARGE_ELEMENTS_MAX); i++, s->params++) {
        snprintf(name, sizeof name, "p%u", i);
        const uint32_t elements = 1 + below(s, sizes[s->restless ? 2 + below(s, 2) : below(s, 4)]);
        total += elements;
        describe_param(s, name, elements, drawn[below(s, classes)]);
    }
    s->tensors = below(s, 4);
    s->parts = 1 + below(s, 3);
    for (uint32_t i = 0; i < s->tensors; i++) {
        snprintf(name, sizeof name, "c%u", i);
        assert_int_equal(
            tide_description_add_activation(s->description, name, s->parts, 1 + below(s, 7000), &number),
            TIDE_OK);
    }
}

static void add_param_use(reference_op *op, uint32_t param, uint32_t access)
{
    for (uint32_t i = 0; i < op->param_count; i++)
        if (op->params[i].tensor == param)
            return;
    op->params[op->param_count++] = (tide_use){.tensor = param, .access = access};
}

static void add_activation_use(sequence *s, reference_op *op, uint32_t tensor, uint32_t access)
{
    if (s->tensors == 0)
        return;
    for (uint32_t i = 0; i < op->activation_count; i++)
        if (op->activations[i].tensor == tensor % s->tensors)
            return;
    op->activations[op->activation_count++] = (tide_use){.tensor = tensor % s->tensors, .access = access};
    op->slices = s->parts;
}

static uint32_t backward_access(sequence *s, uint32_t param)
{
    const uint32_t draw = s->frozen[param] ? 9 : below(s, 10);
    return draw < 8 ? TIDE_ACCESS_READ | TIDE_ACCESS_GRAD : draw == 8 ? TIDE_ACCESS_GRAD : TIDE_ACCESS_READ;
}

/* Draw layers forward, a head with both passes, and layers backward. Layers may share params. */
static void draw_ops(sequence *s)
{
    uint32_t first[LARGE_LAYERS_MAX], count[LARGE_LAYERS_MAX];
    const uint32_t layers = 1 + below(s, s->large ? LARGE_LAYERS_MAX : LAYERS_MAX);
    for (uint32_t l = 0; l < layers; l++) {
        first[l] = below(s, s->params);
        count[l] = 1 + below(s, s->large ? 6 : 3);
    }
    for (uint32_t l = 0; l < layers; l++) {
        reference_op *op = &s->ops[s->op_count++];
        *op = (reference_op){.pass = TIDE_PASS_FORWARD};
        for (uint32_t i = 0; i < count[l]; i++)
            add_param_use(op, (first[l] + i) % s->params, TIDE_ACCESS_READ);
        if (l > 0)
            add_activation_use(s, op, l - 1, TIDE_ACCESS_READ);
        add_activation_use(s, op, l, TIDE_ACCESS_WRITE);
    }
    s->forward_count = s->op_count;
    reference_op *head = &s->ops[s->op_count++];
    *head = (reference_op){.pass = TIDE_PASS_BOTH};
    const uint32_t tied = below(s, s->params);
    add_param_use(head, tied, TIDE_ACCESS_READ | (s->frozen[tied] ? 0u : TIDE_ACCESS_GRAD));
    add_activation_use(s, head, layers - 1, TIDE_ACCESS_READ | TIDE_ACCESS_WRITE);
    for (uint32_t l = layers; l-- > 0;) {
        reference_op *op = &s->ops[s->op_count++];
        *op = (reference_op){.pass = TIDE_PASS_BACKWARD};
        for (uint32_t i = 0; i < count[l]; i++)
            add_param_use(op, (first[l] + i) % s->params, backward_access(s, (first[l] + i) % s->params));
        add_activation_use(s, op, l, TIDE_ACCESS_READ | TIDE_ACCESS_LAST);
        if (l > 0)
            add_activation_use(s, op, l - 1, TIDE_ACCESS_READ | (percent(s, 50) ? TIDE_ACCESS_WRITE : 0u));
    }
}

static void describe_ops(sequence *s)
{
    for (uint32_t i = 0; i < s->op_count; i++) {
        char name[32];
        uint32_t op;
        snprintf(name, sizeof name, "op%u", i);
        tide_op_description d = {.name = name,
                                 .pass = s->ops[i].pass,
                                 .params = s->ops[i].params,
                                 .param_count = s->ops[i].param_count,
                                 .activations = s->ops[i].activations,
                                 .activation_count = s->ops[i].activation_count,
                                 .slices = s->ops[i].slices};
        assert_int_equal(tide_description_add_op(s->description, &d, &op), TIDE_OK);
    }
}

static void make_layout(sequence *s)
{
    describe_ops(s);
    assert_int_equal(tide_layout_create(s->description, CHUNK_BYTES, TIDE_SHARD_ALL, &s->layout), TIDE_OK);
}

/* Half of the budgets have the least sum of both tiers, with the least on the device, the least on the host,
 * or a split between. */
static void draw_slots(sequence *s, const tide_slot_needs *needs, tide_manager_options *options)
{
    const uint32_t chunks = tide_layout_chunk_count(s->layout), few = s->large ? chunks / 4 + 1 : 6;
    const uint32_t all = needs->total_slots, kind = below(s, 6);
    const uint32_t least = needs->device_slots,
                   most = all > least + needs->host_slots ? all - needs->host_slots : least;
    options->device_slots = kind == 0   ? least
                            : kind == 1 ? most
                            : kind == 2
                                ? least + below(s, most - least + 1)
                                : least + (percent(s, 30) ? 0 : below(s, percent(s, 30) ? 2 * chunks : few));
    options->host_slots =
        all > options->device_slots + needs->host_slots ? all - options->device_slots : needs->host_slots;
    options->host_slots += kind <= 2 || percent(s, 30) ? 0 : below(s, chunks);
}

/* Choose each PARAM chunk's tier at random, so that neighbours are on different tiers and more updates are
 * on the device than AUTO would place there. */
static void scatter_updates(sequence *s)
{
    tide_pending *pending = &s->manager->pending;
    for (tide_chunk chunk = 0; tide_pending_is_param_chunk(pending, chunk); chunk++)
        pending->on_device[chunk] = pending->wanted_on_device[chunk] =
            pending->chunks[chunk].pieces > 0 && percent(s, 50);
}

static void make_manager(sequence *s, tide_manager_options *options)
{
    tide_ops ops;
    tide_slot_needs needs;
    options->placement = percent(s, 40) ? TIDE_PLACEMENT_AUTO : (tide_placement)below(s, 3);
    options->prefetch = percent(s, 70);
    assert_int_equal(tide_ops_create(&ops, s->layout), TIDE_OK);
    tide_manager_needs(&ops, options->placement, &needs);
    tide_ops_destroy(&ops);
    draw_slots(s, &needs, options);
    assert_int_equal(tide_manager_create(s->layout, options, &s->manager), TIDE_OK);
    if (options->placement == TIDE_PLACEMENT_AUTO && options->device_slots >= TIDE_TASK_CHUNKS_MAX &&
        percent(s, 50))
        scatter_updates(s);
}

static void create(sequence *s, uint64_t seed)
{
    tide_manager_options options = {0};
    memset(s, 0, sizeof *s);
    ref_choices_begin();
    s->random = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (int i = 0; i < 8; i++)
        below(s, 2);
    s->restless = percent(s, 20);
    s->large = seed % LARGE_ONE_IN == 0;
    draw_tensors(s);
    draw_ops(s);
    make_layout(s);
    make_manager(s, &options);
    s->manager->deep_checks = seed % 4 == 0;
    reference_create(&s->reference, s->layout, s->manager, &options, s->ops, s->op_count, s->frozen);
    s->failing = percent(s, 15);
    s->eagerness = 10 + below(s, 85);
    s->tells = percent(s, 70);
    s->steady = percent(s, 65);
    s->reference.compares_always = seed % 32 == 0;
}

/* --- the engine: take and complete commands --- */

/* Draw an open command; in a restless sequence updates seldom. */
static uint32_t draw_open(sequence *s)
{
    uint32_t at = below(s, s->reference.open_count);
    for (int i = 0; i < 4 && s->restless && s->reference.open[at].kind == TIDE_COMMAND_UPDATE; i++)
        at = below(s, s->reference.open_count);
    return at;
}

static void complete_any(sequence *s)
{
    uint32_t at = draw_open(s);
    bool is_task = s->reference.open[at].kind > TIDE_COMMAND_WRITE_BACK;
    bool ok = !s->failing || !percent(s, 1);
    s->failed |= !ok;
    bool cancelled = ok && is_task && percent(s, 1);
    reference_complete(&s->reference, at,
                       cancelled ? REFERENCE_CANCELLED
                       : ok      ? REFERENCE_DONE
                                 : REFERENCE_FAILED);
}

/* End all commands, as when the engine stops: those that are running complete, tasks may be cancelled
 * instead. */
static void complete_all(sequence *s)
{
    while (s->reference.open_count) {
        uint32_t last = s->reference.open_count - 1;
        if (s->reference.open[last].kind > TIDE_COMMAND_WRITE_BACK && percent(s, 50))
            reference_complete(&s->reference, last, REFERENCE_CANCELLED);
        else
            complete_any(s);
    }
    s->failed = false;
}

static void complain(sequence *s, const char *what)
{
    if (!s->reference.problem[0])
        snprintf(s->reference.problem, sizeof s->reference.problem, "%s", what);
}

static bool goes_on(const sequence *s)
{
    return !s->failed && !s->reference.problem[0];
}

/* Tell the manager, as the pool does now and then, how busy the link is, how far the device is and how long
 * updates take. */
static void tell(sequence *s)
{
    const uint64_t ended = s->manager->eviction_queue.ended, behind = ended < 10 ? ended : 10;
    const uint64_t passed = ended - below(s, (uint32_t)behind + 1);
    tide_manager_set_link(s->manager, percent(s, 50), percent(s, 50));
    s->passed = passed > s->passed ? passed : s->passed; /* must not decrease */
    tide_manager_set_passed(s->manager, s->passed);
    if (percent(s, 10))
        tide_manager_set_update_seconds(s->manager, 1 + below(s, 4), 1 + below(s, 4));
}

/* Take or complete one command. False if there is neither. */
static bool pump(sequence *s)
{
    if (s->tells && percent(s, 30))
        tell(s);
    if (s->reference.open_count && percent(s, s->eagerness)) {
        complete_any(s);
        return true;
    }
    if (reference_take(&s->reference))
        return true;
    if (s->reference.open_count == 0) {
        tide_manager_set_link(s->manager, false, false); /* no copy is open, so the link can't be busy */
        return reference_take(&s->reference);
    }
    complete_any(s);
    return true;
}

static void pump_some(sequence *s)
{
    for (uint32_t i = below(s, s->restless ? 3 : 12); i > 0 && goes_on(s); i--)
        pump(s);
    if (percent(s, 2) && goes_on(s))
        reference_ask_wrongly(&s->reference);
}

typedef bool (*condition)(const sequence *s);

static bool op_is_ready(const sequence *s)
{
    return tide_manager_ready(s->manager);
}

static bool host_request_is_over(const sequence *s)
{
    return s->reference.host_count == 0;
}

static bool nothing_is_pending(const sequence *s)
{
    return reference_pieces_pending(&s->reference) == 0;
}

static bool nothing_older_is_pending(const sequence *s)
{
    return !reference_has_older_pending(&s->reference);
}

/* Take and complete commands until `over`. The limit on their number depends on the chunks, not on chance. */
static void wait_for(sequence *s, condition over, const char *what)
{
    uint32_t left = 40 * tide_layout_chunk_count(s->layout) + 400;
    while (goes_on(s) && !over(s)) {
        if (!pump(s)) {
            if (!tide_manager_is_stuck(s->manager) && !over(s))
                complain(s, "nothing to do, but it does not say that it is stuck");
            else if (!over(s))
                complain(s, what);
            return;
        }
        if (left-- == 0)
            complain(s, "this takes for ever");
    }
    if (goes_on(s) && tide_manager_is_stuck(s->manager))
        complain(s, "stuck, it says, but it is over");
}

/* --- the caller --- */

static void run_slices(sequence *s, tide_op op)
{
    uint32_t turn = s->steady || below(s, 4) ? 0 : below(s, 3);
    for (uint32_t i = 0; i < s->ops[op].slices && goes_on(s);
         i += s->steady || !percent(s, 5)) { /* a slice may be repeated */
        if (!reference_slice(&s->reference, (i + turn) % s->ops[op].slices))
            continue;
        wait_for(s, op_is_ready, "a slice never becomes ready");
        if (goes_on(s))
            reference_check_ready(&s->reference);
        pump_some(s);
    }
}

/* False if the step must be given up. */
static bool run_op(sequence *s, tide_op op)
{
    if (!reference_begin(&s->reference, op))
        return true;
    if (percent(s, s->impatient))
        return false;
    wait_for(s, op_is_ready, "an op never becomes ready");
    if (!goes_on(s))
        return false;
    reference_check_ready(&s->reference);
    pump_some(s);
    run_slices(s, op);
    if (!goes_on(s) || percent(s, s->impatient))
        return false;
    reference_end(&s->reference);
    pump_some(s);
    return goes_on(s);
}

static void shuffle(sequence *s, uint32_t *order, uint32_t count)
{
    for (uint32_t left = count; left > 1; left--) {
        uint32_t at = below(s, left), last = order[left - 1];
        order[left - 1] = order[at];
        order[at] = last;
    }
}

/* Any order, or one that begins with the backward ops, which then make gradients before most params have
 * been used. */
static void draw_any_order(sequence *s, uint32_t *order, uint32_t count)
{
    const uint32_t forward = percent(s, 50) && count > s->forward_count ? s->forward_count : 0;
    for (uint32_t i = 0; i < count; i++)
        order[i] = (i + forward) % count;
    shuffle(s, order, count - forward);
}

/* The description's order, or a changed one: one op left out, two swapped, or one repeated. A restless
 * sequence uses any order, and now and then a forward-only pass without ops. */
static uint32_t draw_order(sequence *s, bool training, uint32_t *order)
{
    uint32_t count = training ? s->op_count : s->forward_count;
    if (s->restless && !training && percent(s, 20))
        return 0;
    for (uint32_t i = 0; i < count; i++)
        order[i] = i;
    s->reordered = percent(s, s->restless ? 60 : 20);
    if (!s->reordered)
        return count;
    if (s->restless) {
        draw_any_order(s, order, count);
        return count;
    }
    uint32_t at = below(s, count), other = below(s, count), kind = below(s, 3);
    if (kind == 0) {
        order[at] = order[--count];
    } else if (kind == 1) {
        order[at] = other;
        order[other] = at;
    } else {
        order[count++] = at;
    }
    return count;
}

static void set_all_values(sequence *s)
{
    for (tide_chunk chunk = 0; chunk < tide_layout_space_chunks(s->layout, TIDE_SPACE_PARAM) && goes_on(s);
         chunk++) {
        tide_use uses[2] = {{.tensor = chunk, .access = TIDE_ACCESS_WRITE | TIDE_ACCESS_READ}};
        const bool is_trained = tide_layout_pieces(s->layout, chunk) > 0;
        if (is_trained)
            uses[1] = (tide_use){tide_layout_piece(s->layout, chunk, 0).state_chunk, TIDE_ACCESS_WRITE};
        reference_host_request(&s->reference, uses, is_trained ? 2 : 1);
        wait_for(s, host_request_is_over, "a host request is never served");
    }
    s->poisoned &= !goes_on(s);
}

/* Does a param have an older update pending in one chunk, and in another chunk the restore that this abort
 * caused? */
static bool has_both_pending(const reference_manager *n)
{
    for (uint32_t p = 0; p < n->params; p++) {
        bool pending[TIDE_COMMAND_ACCESS] = {false};
        for (tide_chunk chunk = n->first[p]; chunk <= n->last[p]; chunk++)
            pending[n->pending_kind[chunk]] |= n->pending[chunk] > 0;
        if (pending[TIDE_COMMAND_UPDATE] && pending[TIDE_COMMAND_RESTORE])
            return true;
    }
    return false;
}

static void abort_step(sequence *s)
{
    bool poisoned, in_midst = s->reference.step_open && s->reference.training;
    bool among_older =
        in_midst && reference_has_older_pending(&s->reference) && reference_has_new_gradient(&s->reference);
    reference_abort(&s->reference, &poisoned);
    s->poisoned |= poisoned;
    if (!among_older || poisoned)
        return;
    aborts_played.among_older++;
    aborts_played.in_another_order += s->reordered;
    aborts_played.with_a_neighbour += s->reordered && has_both_pending(&s->reference);
}

/* Do as a pool does after a failure or when its caller gives a step up. */
static void give_up(sequence *s)
{
    if (s->reference.problem[0])
        return;
    complete_all(s);
    abort_step(s);
    while (s->poisoned && !s->reference.problem[0]) {
        set_all_values(s);
        if (s->failed) {
            complete_all(s);
            abort_step(s);
        }
    }
}

/* Step end is refused while gradients wait for ops that have not run. Run these ops in order, which must be
 * possible. False if the step must be given up. */
static bool close_what_waits(sequence *s)
{
    for (tide_op op; (op = reference_waited_for(&s->reference)) != UINT32_MAX; gradients_waited++) {
        wait_for(s, nothing_older_is_pending, "old updates never end");
        if (!goes_on(s) || reference_step_end(&s->reference) || !run_op(s, op))
            return false;
        if (reference_waited_for(&s->reference) == op) {
            complain(s, "an op that a gradient waits for can't run");
            return false;
        }
    }
    return true;
}

static void run_step(sequence *s, bool training)
{
    uint32_t order[REFERENCE_OPS_MAX], count = draw_order(s, training, order);
    bool waits = percent(s, 50);
    s->impatient = s->restless && percent(s, 50) ? 15 : 1;
    reference_step_begin(&s->reference, training, waits);
    for (uint32_t i = 0; i < count; i++)
        if (!run_op(s, order[i])) {
            give_up(s);
            return;
        }
    if (!close_what_waits(s)) {
        give_up(s);
        return;
    }
    if (training)
        wait_for(s, nothing_older_is_pending, "old updates never end");
    if (!goes_on(s)) {
        give_up(s);
        return;
    }
    reference_step_end(&s->reference);
    pump_some(s);
    if (training && waits && goes_on(s) && !percent(s, 5))
        reference_release(&s->reference, percent(s, 20));
    if (!goes_on(s) || s->reference.release_pending || percent(s, s->restless ? 10 : 2))
        give_up(s);
}

static void run_host_request(sequence *s)
{
    tide_use uses[TIDE_TASK_CHUNKS_MAX];
    uint32_t count = 1 + below(s, 4), distinct = 0, chunks = tide_layout_chunk_count(s->layout);
    for (uint32_t i = 0; i < count; i++) {
        tide_use use = {.tensor = below(s, chunks), .access = 1u + 3u * below(s, 2)};
        bool twice = tide_layout_chunk_space(s->layout, use.tensor) == TIDE_SPACE_ACTIVATION;
        for (uint32_t k = 0; k < distinct; k++)
            twice |= uses[k].tensor == use.tensor;
        if (!twice && distinct < TIDE_TASK_CHUNKS_MAX)
            uses[distinct++] = use;
    }
    if (distinct == 0)
        return;
    reference_host_request(&s->reference, uses, distinct);
    wait_for(s, host_request_is_over, "a host request is never served");
    if (!goes_on(s))
        give_up(s);
}

static void run_sequence(sequence *s)
{
    uint32_t rounds = (s->restless ? 6 : 3) + below(s, 4);
    for (uint32_t i = 0; i < rounds && !s->reference.problem[0]; i++) {
        if (percent(s, s->restless ? 10 : 30))
            run_host_request(s);
        run_step(s, !percent(s, s->restless ? 10 : 20));
        if (percent(s, s->restless ? 5 : 20))
            wait_for(s, nothing_is_pending, "updates never end");
        if (s->failed)
            give_up(s);
    }
    s->failing = false;
    wait_for(s, nothing_is_pending, "updates never end");
}

static void destroy(sequence *s)
{
    tide_manager_destroy(s->manager);
    tide_layout_destroy(s->layout);
    tide_description_destroy(s->description);
}

/* --- one sequence written by hand --- */

/* Chunk 0 is part of p0; chunk 1 has the rest of p0, and p1. An update of a chunk has eight pieces. */
static void arrange_two_params_that_share_a_chunk(sequence *s)
{
    const tide_manager_options options = {
        .device_slots = 8, .host_slots = 32, .placement = TIDE_PLACEMENT_HOST};
    memset(s, 0, sizeof *s);
    ref_choices_begin();
    assert_int_equal(tide_description_create(TIDE_DTYPE_BF16, 0, &s->description), TIDE_OK);
    describe_param(s, "p0", 3000, 0);
    describe_param(s, "p1", 500, 0);
    for (uint32_t i = 0; i < 4; i++) { /* ops: p0 forward, p1 forward, p1 backward, p0 backward */
        reference_op *op = &s->ops[s->op_count++];
        op->pass = i < 2 ? TIDE_PASS_FORWARD : TIDE_PASS_BACKWARD;
        add_param_use(op, i == 1 || i == 2, i < 2 ? TIDE_ACCESS_READ : TIDE_ACCESS_READ | TIDE_ACCESS_GRAD);
    }
    make_layout(s);
    assert_int_equal(tide_manager_create(s->layout, &options, &s->manager), TIDE_OK);
    s->manager->deep_checks = true;
    reference_create(&s->reference, s->layout, s->manager, &options, s->ops, s->op_count, s->frozen);
    s->reference.compares_always = true;
}

static bool find_open(const reference_manager *n, tide_command_kind kind, tide_chunk chunk, bool others,
                      uint32_t *at)
{
    for (*at = 0; *at < n->open_count; ++*at)
        if ((n->open[*at].kind == kind && n->open[*at].chunk == chunk) != others)
            return true;
    return false;
}

/* Complete all commands except the tasks of this kind on this chunk. */
static void pump_all_but(sequence *s, tide_command_kind kind, tide_chunk chunk)
{
    uint32_t at;
    while (reference_take(&s->reference) || find_open(&s->reference, kind, chunk, true, &at))
        if (find_open(&s->reference, kind, chunk, true, &at))
            reference_complete(&s->reference, at, REFERENCE_DONE);
    assert_string_equal(s->reference.problem, "");
}

static void pump_all(sequence *s)
{
    pump_all_but(s, TIDE_COMMAND_ACCESS, TIDE_CHUNK_NONE);
}

static void train_in_order(sequence *s)
{
    reference_step_begin(&s->reference, true, true);
    for (tide_op op = 0; op < s->op_count; op++) {
        assert_true(reference_begin(&s->reference, op));
        pump_all(s);
        reference_check_ready(&s->reference);
        reference_end(&s->reference);
    }
    reference_step_end(&s->reference);
    reference_release(&s->reference, false);
    assert_string_equal(s->reference.problem, "");
}

static void expect_param(const sequence *s, uint32_t param, tide_tensor_state state, bool has_gradient)
{
    assert_int_equal(s->manager->tensors.params[param].state, state);
    assert_int_equal(s->manager->tensors.params[param].has_gradient, has_gradient);
}

/* The older update of p0 ends its gradient, although chunk 1 is still to be restored from MASTER. That
 * restore is for p1's gradient, which the abort gave up. */
static void an_older_update_ends_its_gradient_though_an_abort_has_its_chunk_restored(void **state)
{
    static sequence s;
    bool poisoned;
    uint32_t at;
    arrange_two_params_that_share_a_chunk(&s);
    train_in_order(&s);
    reference_step_begin(&s.reference, true, true);
    /* backward of p1 runs first; it waits only for the update of chunk 1 */
    assert_true(reference_begin(&s.reference, 2));
    pump_all_but(&s, TIDE_COMMAND_UPDATE, 0);
    reference_check_ready(&s.reference);
    reference_end(&s.reference);
    expect_param(&s, 0, TIDE_TENSOR_HOLD_AFTER_BWD, true);
    assert_true(find_open(&s.reference, TIDE_COMMAND_UPDATE, 0, false, &at));
    reference_complete(&s.reference, at, REFERENCE_CANCELLED);
    reference_abort(&s.reference, &poisoned);
    assert_false(poisoned);
    expect_param(&s, 0, TIDE_TENSOR_HOLD_AFTER_BWD, true); /* the older update of chunk 0 is pending again */

    pump_all_but(&s, TIDE_COMMAND_RESTORE, 1);
    expect_param(&s, 0, TIDE_TENSOR_HOLD, false);
    expect_param(&s, 1, TIDE_TENSOR_HOLD_AFTER_BWD, true);
    pump_all(&s);
    expect_param(&s, 1, TIDE_TENSOR_HOLD, false);
    assert_int_equal(tide_manager_updates_open(s.manager), 0);
    train_in_order(&s); /* repeats the step that was given up */
    pump_all(&s);
    destroy(&s);
}

/* --- many sequences --- */

static uint32_t sequence_count;
static uint64_t first_seed = 1;

static void print_ref_choices(void)
{
    const ref_counts *made = &ref_choices_made;
    print_message("by plain rules: %llu victims, %llu duplicates, %llu promotions, %llu that leave, ",
                  (unsigned long long)made->victims, (unsigned long long)made->duplicates,
                  (unsigned long long)made->promotions, (unsigned long long)made->evictions);
    print_message("%llu ready tasks, %llu assemblies, %llu fetches ahead, %llu answers of requests\n",
                  (unsigned long long)made->ready, (unsigned long long)made->assembles,
                  (unsigned long long)made->fetches, (unsigned long long)made->pins);
}

static uint64_t among_neighbours;

static void play(uint64_t seed, tide_manager_counters *counters)
{
    static sequence s;
    create(&s, seed);
    allocation_forbidden = true;
    run_sequence(&s);
    allocation_forbidden = false;
    if (s.reference.problem[0])
        fail_msg("seed %llu: %s", (unsigned long long)seed, s.reference.problem);
    if (ref_choices_problem()[0])
        fail_msg("seed %llu: %s", (unsigned long long)seed, ref_choices_problem());
    among_neighbours += s.reference.among_neighbours;
    tide_manager_counters_get(s.manager, counters);
    destroy(&s);
}

static void the_manager_agrees_with_the_reference_model(void **state)
{
    tide_manager_counters counters, sum = {0};
    for (uint64_t seed = first_seed; seed < first_seed + sequence_count; seed++) {
        play(seed, &counters);
        sum.evictions += counters.evictions;
        sum.clean_drops += counters.clean_drops;
        sum.demand_fetches += counters.demand_fetches;
        sum.prefetches += counters.prefetches;
        sum.promotions += counters.promotions;
        sum.re_recordings += counters.re_recordings;
        sum.write_backs += counters.write_backs;
    }
    print_message("%llu evictions (%llu clean), %llu demand fetches, %llu prefetches, %llu promotions, %llu "
                  "write-backs, "
                  "%llu re-recordings\n",
                  (unsigned long long)sum.evictions, (unsigned long long)sum.clean_drops,
                  (unsigned long long)sum.demand_fetches, (unsigned long long)sum.prefetches,
                  (unsigned long long)sum.promotions, (unsigned long long)sum.write_backs,
                  (unsigned long long)sum.re_recordings);
    uint64_t commands;
    const uint64_t hash = stream_hash(&commands);
    print_message("%llu commands, stream %016llx\n", (unsigned long long)commands, (unsigned long long)hash);
    print_ref_choices();
    print_message("%u ops run late, for gradients that waited\n", gradients_waited);
    print_message(
        "%u aborts among older updates: %u with ops out of order, %u of a param with both pending\n",
        aborts_played.among_older, aborts_played.in_another_order, aborts_played.with_a_neighbour);
    print_message(
        "%llu tasks on state that the other tier's wanted, too; %llu times one waited for the other\n",
        (unsigned long long)among_neighbours, (unsigned long long)ref_choices_made.held_back);
    assert_int_equal(forbidden_allocations, 0);
    /* The sequences must have met each of these events, or they would prove nothing about it. */
    if (sequence_count >= 1000) {
        assert_true(gradients_waited > 0 && among_neighbours > 0);
        assert_true(aborts_played.in_another_order > 0 && aborts_played.with_a_neighbour > 0);
        assert_true(sum.promotions > 0 && sum.re_recordings > 0);
        assert_true(sum.write_backs > 0 && sum.prefetches > 0);
        const ref_counts *made = &ref_choices_made;
        assert_true(made->victims && made->duplicates && made->promotions && made->evictions && made->ready &&
                    made->assembles && made->fetches && made->pins && made->held_back);
    }
}

int main(int count, char **arguments)
{
    sequence_count = count > 1 ? (uint32_t)strtoul(arguments[1], NULL, 10) : SEQUENCES / test_every(3, 10);
    if (count > 2)
        first_seed = strtoull(arguments[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_older_update_ends_its_gradient_though_an_abort_has_its_chunk_restored),
        cmocka_unit_test(the_manager_agrees_with_the_reference_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
