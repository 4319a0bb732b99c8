/* Frames and the roll: random steps on random models, beside a reference that keeps a list of the ops of the
 * last step of each kind and searches it from the front for every choice. Every gather must be the
 * reference's, and the values that stand in frames, too. Then cases by hand, and the hash of the program.
 *
 *   usage: test_frames [SEQUENCES [FIRST_SEED]]
 */
#include "chunk/frames.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

#include <stdio.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 4096, ELEMENTS = CHUNK_BYTES / 4, OPS_MAX = 14, GROUPS_MAX = 64, STEP_OPS_MAX = 29 };

static uint32_t sequences;
static uint64_t first_seed = 1, random_state;

static uint32_t below(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 11) % limit);
}

/* --- the model: ops that read whole groups --- */

typedef struct model {
    tide_description *description;
    tide_layout *layout;
    tide_ops ops;
    tide_roll roll;
    tide_arrays arrays;
    tide_frames frames;
    uint32_t op_count, forward_count, groups;
    uint32_t reads[OPS_MAX][4], read_count[OPS_MAX]; /* groups that each op reads */
    bool frozen[GROUPS_MAX];
} model;

/* Params of one group each; the first `frozen` of them are frozen. */
static void add_params(model *m, uint32_t ranks, uint32_t groups, uint32_t frozen)
{
    const uint64_t elements = (uint64_t)ranks * ELEMENTS;
    m->groups = groups;
    assert_ok(tide_description_create(TIDE_DTYPE_FP32, 0, &m->description));
    for (uint32_t g = 0; g < groups; g++) {
        const tide_param_class of = {.frozen = g < frozen};
        char name[16];
        tide_param number;
        snprintf(name, sizeof name, "p%u", g);
        assert_ok(
            tide_description_add_param(m->description, name, &elements, 1, g < frozen ? &of : NULL, &number));
        m->frozen[g] = g < frozen;
    }
}

static void add_op(model *m, uint32_t groups_read, const uint32_t *read)
{
    tide_use uses[5];
    uint32_t count = 0;
    const tide_pass pass = m->op_count < m->forward_count ? TIDE_PASS_FORWARD : TIDE_PASS_BACKWARD;
    char name[16];
    tide_op number;
    for (uint32_t i = 0; i < groups_read; i++)
        uses[count++] = (tide_use){read[i], TIDE_ACCESS_READ};
    const uint32_t trained = m->groups - 1; /* an op may use a group without reading it */
    bool used = m->frozen[trained] || pass == TIDE_PASS_FORWARD;
    for (uint32_t i = 0; i < groups_read; i++)
        used = used || read[i] == trained;
    if (!used)
        uses[count++] = (tide_use){trained, TIDE_ACCESS_GRAD};
    for (uint32_t i = 0; i < groups_read; i++)
        m->reads[m->op_count][i] = read[i];
    m->read_count[m->op_count] = groups_read;
    snprintf(name, sizeof name, "o%u", m->op_count++);
    assert_ok(tide_description_add_op(
        m->description,
        &(tide_op_description){.name = name, .pass = pass, .params = uses, .param_count = count}, &number));
}

static void start(model *m, uint32_t ranks, uint32_t frames, bool ahead)
{
    assert_ok(tide_layout_create(m->description, CHUNK_BYTES, (tide_shard){ranks, ranks - 1}, &m->layout));
    assert_ok(tide_ops_create(&m->ops, m->layout));
    tide_roll_create(&m->roll, 256, &m->arrays);
    assert_ok(tide_frames_create(&m->frames, &m->ops, &m->roll, frames, ahead));
    assert_int_equal(tide_layout_space_chunks(m->layout, TIDE_SPACE_PARAM), m->groups);
}

static void destroy(model *m)
{
    tide_frames_destroy(&m->frames);
    tide_arrays_free(&m->arrays);
    tide_ops_destroy(&m->ops);
    tide_layout_destroy(m->layout);
    tide_description_destroy(m->description);
    memset(m, 0, sizeof *m);
}

/* --- the reference --- */

typedef struct reference {
    const model *m;
    uint32_t frames;
    bool ahead;
    uint32_t group_in[GROUPS_MAX]; /* for each frame: the group that was gathered there last, or NONE */
    bool stands[GROUPS_MAX];       /* for each frame: whether that group's values are good */
    uint64_t read_at[GROUPS_MAX];  /* for each group: number of the begin of the last op that read it */
    uint64_t begins;
    uint32_t last[2][STEP_OPS_MAX], last_count[2]; /* the ops of the last step of each kind; 0: none known */
    uint32_t now[STEP_OPS_MAX], now_count;
    bool training, too_long;
    tide_collective expected[GROUPS_MAX];
    uint32_t expected_count;
} reference;

static const uint32_t NONE = UINT32_MAX;

/* Is the open step so far like the last one of its kind? */
static bool follows(const reference *r)
{
    if (r->last_count[r->training] == 0 || r->now_count > r->last_count[r->training])
        return false;
    return memcmp(r->now, r->last[r->training], r->now_count * sizeof r->now[0]) == 0;
}

static bool reads(const reference *r, uint32_t op, uint32_t group)
{
    for (uint32_t i = 0; op != NONE && i < r->m->read_count[op]; i++)
        if (r->m->reads[op][i] == group)
            return true;
    return false;
}

/* Ops from now until the group is read; a trained group is not read again in this step: for ever. */
static uint64_t distance(const reference *r, uint32_t group)
{
    const uint32_t *step = r->last[r->training], length = r->last_count[r->training];
    if (!follows(r))
        return r->begins - r->read_at[group];
    for (uint32_t n = r->now_count; n < length; n++)
        if (reads(r, step[n], group))
            return n;
    for (uint32_t n = 0; n < length && !(r->training && !r->m->frozen[group]); n++)
        if (reads(r, step[n], group))
            return length + n;
    return UINT64_MAX;
}

static uint32_t frame_of(const reference *r, uint32_t group)
{
    for (uint32_t f = 0; f < r->frames; f++)
        if (r->group_in[f] == group)
            return f;
    return NONE;
}

/* The frame for a group: its own; an empty one; one whose values have ended; one of another op's group. Of
 * several the one read latest, of these the first. */
static uint32_t choose(const reference *r, uint32_t group, uint32_t op, uint32_t open)
{
    if (frame_of(r, group) != NONE)
        return frame_of(r, group);
    if (frame_of(r, NONE) != NONE)
        return frame_of(r, NONE);
    uint32_t best = NONE;
    for (int good = 0; good < 2 && best == NONE; good++)
        for (uint32_t f = 0; f < r->frames; f++)
            if (r->stands[f] == good && !reads(r, op, r->group_in[f]) && !reads(r, open, r->group_in[f]) &&
                (best == NONE || distance(r, r->group_in[f]) > distance(r, r->group_in[best])))
                best = f;
    assert_true(best != NONE);
    return best;
}

static void gather(reference *r, uint32_t op, uint32_t open)
{
    for (uint32_t i = 0; i < r->m->read_count[op]; i++) {
        const uint32_t group = r->m->reads[op][i];
        if (frame_of(r, group) != NONE && r->stands[frame_of(r, group)])
            continue;
        const uint32_t f = choose(r, group, op, open);
        r->expected[r->expected_count++] = (tide_collective){
            .kind = TIDE_COLLECTIVE_GATHER, .group = group, .replaced = r->group_in[f], .frame = f};
        r->group_in[f] = group;
        r->stands[f] = true;
    }
}

static void gather_next(reference *r, uint32_t open)
{
    if (r->ahead && follows(r) && r->now_count < r->last_count[r->training])
        gather(r, r->last[r->training][r->now_count], open);
}

static void begin_step(reference *r, bool training)
{
    r->training = training;
    r->now_count = 0;
    r->too_long = false;
    gather_next(r, NONE);
}

static void begin_op(reference *r, uint32_t op)
{
    if (r->now_count == 2 * r->m->op_count + 1)
        r->too_long = true;
    else
        r->now[r->now_count++] = op;
    r->begins++;
    gather(r, op, NONE);
    for (uint32_t i = 0; i < r->m->read_count[op]; i++)
        r->read_at[r->m->reads[op][i]] = r->begins;
    gather_next(r, op);
}

/* A step is remembered if it has at most twice all ops and one, and as many reads. */
static bool is_remembered(const reference *r)
{
    uint32_t all = 0, now = 0;
    for (uint32_t op = 0; op < r->m->op_count; op++)
        all += r->m->read_count[op];
    for (uint32_t n = 0; n < r->now_count; n++)
        now += r->m->read_count[r->now[n]];
    return !r->too_long && now <= 2 * all + 1;
}

static void end_step(reference *r)
{
    if (is_remembered(r)) {
        memcpy(r->last[r->training], r->now, sizeof r->now);
        r->last_count[r->training] = r->now_count;
    } else
        r->last_count[r->training] = 0;
    for (uint32_t f = 0; f < r->frames; f++)
        r->stands[f] = r->stands[f] && !(r->training && !r->m->frozen[r->group_in[f]]);
}

/* --- random steps --- */

static model m;
static reference r;

/* The roll's entries must be those expected. Some are issued, others only later. */
static void compare(uint64_t seed)
{
    assert_true(tide_frames_is_valid(&m.frames));
    assert_true(r.expected_count <= tide_roll_count(&m.roll));
    for (uint32_t i = 0; i < r.expected_count; i++) {
        const uint64_t number = m.roll.appended - r.expected_count + i;
        const tide_collective *is = &m.roll.entries[number % m.roll.capacity], *was = &r.expected[i];
        if (is->kind != was->kind || is->group != was->group || is->replaced != was->replaced ||
            is->frame != was->frame)
            fail_msg("seed %llu: gather of group %u into frame %u for %u; expected: %u, %u, %u",
                     (unsigned long long)seed, is->group, is->frame, is->replaced, was->group, was->frame,
                     was->replaced);
    }
    while (tide_roll_count(&m.roll) > below(6))
        tide_roll_pop(&m.roll);
    for (uint32_t group = 0; group < m.groups; group++) {
        bool waits = false;
        for (uint64_t n = m.roll.issued; n < m.roll.appended; n++)
            waits = waits || m.roll.entries[n % m.roll.capacity].group == group;
        const uint32_t frame = frame_of(&r, group);
        assert_int_equal(tide_frames_has(&m.frames, group), frame != NONE && r.stands[frame] && !waits);
    }
    r.expected_count = 0;
}

static void play_step(uint64_t seed)
{
    const bool training = below(4) > 0, like_the_last = below(4) > 0;
    const uint32_t limit = training ? m.op_count : m.forward_count;
    const uint32_t length = below(9) == 0 ? below(40) : below(3) == 0 ? below(limit + 1) : limit;
    begin_step(&r, training);
    tide_frames_step_begin(&m.frames, training);
    compare(seed);
    for (uint32_t n = 0; n < length; n++) {
        const uint32_t known = r.last_count[training] > n ? r.last[training][n] : n % limit;
        const uint32_t op = like_the_last && n < limit ? known : below(limit);
        begin_op(&r, op);
        tide_frames_begin(&m.frames, op);
        compare(seed);
    }
    end_step(&r);
    tide_frames_step_end(&m.frames);
    while (tide_roll_count(&m.roll) > 0)
        tide_roll_pop(&m.roll);
    compare(seed);
    if (below(6) == 0) {
        tide_frames_forget(&m.frames);
        memset(r.stands, 0, sizeof r.stands);
        compare(seed);
    }
}

static void draw(uint64_t seed)
{
    random_state = seed * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (int i = 0; i < 8; i++)
        below(2);
    const uint32_t ranks = 2 + below(3), groups = 2 + below(10), ops = 2 + below(OPS_MAX - 2);
    const bool ahead = below(2);
    add_params(&m, ranks, groups, below(3));
    m.forward_count = 1 + below(ops - 1);
    for (uint32_t op = 0; op < ops; op++) {
        uint32_t read[4], count = below(4);
        for (uint32_t i = 0; i < count; i++) {
            read[i] = below(groups);
            for (uint32_t k = 0; k < i; k++)
                if (read[k] == read[i])
                    count = i; /* drop it and the rest */
        }
        if (count == 0 && op < m.forward_count)
            read[count++] = below(groups);
        add_op(&m, count, read);
    }
    assert_ok(tide_layout_create(m.description, CHUNK_BYTES, (tide_shard){ranks, 0}, &m.layout));
    assert_ok(tide_ops_create(&m.ops, m.layout));
    const uint32_t fewest = tide_frames_needed(&m.ops, ahead);
    uint32_t most = 0;
    for (uint32_t op = 0; op < ops; op++)
        most = m.read_count[op] > most ? m.read_count[op] : most;
    assert_int_equal(fewest, ahead && 2 * most < groups ? 2 * most : ahead ? groups : most);
    tide_ops_destroy(&m.ops);
    tide_layout_destroy(m.layout);
    r = (reference){.m = &m, .frames = fewest + below(4), .ahead = ahead};
    memset(r.group_in, 0xff, sizeof r.group_in);
    start(&m, ranks, r.frames, ahead);
}

static void gathers_are_those_of_the_reference(void **state)
{
    for (uint64_t seed = first_seed; seed < first_seed + sequences; seed++) {
        draw(seed);
        for (uint32_t steps = 3 + below(8); steps > 0; steps--)
            play_step(seed);
        destroy(&m);
    }
}

/* --- by hand --- */

/* Three ops with a group each, two frames. */
static void make_three(bool frozen)
{
    add_params(&m, 2, 3, frozen ? 3 : 0);
    m.forward_count = 3;
    for (uint32_t op = 0; op < 3; op++)
        add_op(&m, 1, &op);
    start(&m, 2, 2, false);
}

static uint64_t gathers_in_step(bool training, const uint32_t *ops, uint32_t count)
{
    const uint64_t before = m.roll.appended;
    tide_frames_step_begin(&m.frames, training);
    for (uint32_t i = 0; i < count; i++) {
        tide_roll_clear(&m.roll);
        tide_frames_begin(&m.frames, ops[i]);
    }
    tide_roll_clear(&m.roll);
    tide_frames_step_end(&m.frames);
    return m.roll.appended - before;
}

static void frozen_groups_stay_across_steps_and_trained_ones_do_not(void **state)
{
    static const uint32_t ops[] = {0, 1, 2, 1, 0};
    for (int frozen = 0; frozen < 2; frozen++) {
        make_three(frozen);
        /* without a recording 2 replaces 0, which was read longest ago; with one 0 replaces 2 in both steps,
         * and 2 replaces 0, which is needed last */
        assert_int_equal(gathers_in_step(true, ops, 5), 4);
        assert_int_equal(gathers_in_step(true, ops, 5), frozen ? 2 : 4);
        assert_int_equal(gathers_in_step(true, ops, 5), frozen ? 2 : 4);
        tide_frames_forget(&m.frames);
        assert_int_equal(gathers_in_step(true, ops, 5), 4);
        destroy(&m);
    }
}

static void a_step_ahead_begins_with_the_gathers_of_its_first_op(void **state)
{
    static const uint32_t ops[] = {0, 1, 2};
    make_three(false);
    m.frames.ahead = true;
    assert_int_equal(gathers_in_step(true, ops, 3), 3);
    const uint64_t before = m.roll.appended;
    tide_frames_step_begin(&m.frames, true);
    assert_int_equal(m.roll.appended, before + 1);
    assert_int_equal(m.roll.entries[before % m.roll.capacity].group, 0);
    tide_frames_begin(&m.frames, 0);
    assert_int_equal(m.roll.appended, before + 2);
    assert_int_equal(m.roll.entries[(before + 1) % m.roll.capacity].group, 1);
    assert_false(tide_frames_has(&m.frames, 0)); /* not issued */
    tide_roll_pop(&m.roll);
    assert_true(tide_frames_has(&m.frames, 0));
    assert_false(tide_frames_has(&m.frames, 1));
    destroy(&m);
}

static void ops_that_read_nothing_need_no_frame(void **state)
{
    add_params(&m, 2, 2, 0);
    add_op(&m, 0, NULL);
    assert_ok(tide_layout_create(m.description, CHUNK_BYTES, (tide_shard){2, 0}, &m.layout));
    assert_ok(tide_ops_create(&m.ops, m.layout));
    assert_int_equal(tide_frames_needed(&m.ops, false), 0);
    assert_int_equal(tide_frames_needed(&m.ops, true), 0);
    destroy(&m);
}

/* --- the roll --- */

static void entries_leave_the_roll_in_their_order(void **state)
{
    tide_roll roll;
    tide_arrays arrays = {0};
    tide_roll_create(&roll, 3, &arrays);
    assert_null(tide_roll_head(&roll));
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(tide_roll_append(&roll, &(tide_collective){.frame = 2 * i}), 2 * i);
        assert_int_equal(tide_roll_append(&roll, &(tide_collective){.frame = 2 * i + 1}), 2 * i + 1);
        assert_int_equal(tide_roll_count(&roll), 2);
        for (uint32_t k = 0; k < 2; k++) {
            assert_int_equal(tide_roll_head(&roll)->frame, 2 * i + k);
            tide_roll_pop(&roll);
        }
        assert_int_equal(tide_roll_count(&roll), 0);
    }
    (void)tide_roll_append(&roll, &(tide_collective){.frame = 1});
    tide_roll_clear(&roll);
    assert_null(tide_roll_head(&roll));
    tide_arrays_free(&arrays);
}

static uint64_t hash_of(const tide_collective *entry)
{
    tide_roll roll;
    tide_arrays arrays = {0};
    tide_roll_create(&roll, 1, &arrays);
    (void)tide_roll_append(&roll, entry);
    tide_arrays_free(&arrays);
    return roll.hash;
}

static void the_hash_tells_programs_apart(void **state)
{
    const tide_collective entries[] = {{.kind = TIDE_COLLECTIVE_GATHER},
                                       {.kind = TIDE_COLLECTIVE_REDUCE},
                                       {.kind = TIDE_COLLECTIVE_NORM},
                                       {.group = 1},
                                       {.replaced = 1},
                                       {.frame = 1},
                                       {.op = 1},
                                       {.param = 1},
                                       {.first = 1},
                                       {.count = 1}};
    enum { ENTRIES = sizeof entries / sizeof entries[0], EVENTS = 2 * (TIDE_EVENT_VALUES_SET + 1) };
    uint64_t hashes[ENTRIES + EVENTS];
    for (uint32_t i = 0; i < ENTRIES; i++)
        hashes[i] = hash_of(&entries[i]);
    for (uint32_t i = 0; i < EVENTS; i++) {
        tide_roll roll = {0};
        tide_roll_note(&roll, (tide_program_event)(i / 2), i % 2);
        hashes[ENTRIES + i] = roll.hash;
    }
    for (uint32_t i = 0; i < ENTRIES + EVENTS; i++)
        for (uint32_t k = 0; k < i; k++)
            assert_true(hashes[i] != hashes[k]);
    tide_roll one = {0}, other = {0};
    tide_roll_note(&one, TIDE_EVENT_OP_BEGIN, 1);
    tide_roll_note(&one, TIDE_EVENT_OP_BEGIN, 2);
    tide_roll_note(&other, TIDE_EVENT_OP_BEGIN, 2);
    tide_roll_note(&other, TIDE_EVENT_OP_BEGIN, 1);
    assert_true(one.hash != other.hash);
}

int main(int count, char **arguments)
{
    sequences = count > 1 ? (uint32_t)strtoul(arguments[1], NULL, 10) : 2000 / test_every(1, 8);
    if (count > 2)
        first_seed = strtoull(arguments[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathers_are_those_of_the_reference),
        cmocka_unit_test(frozen_groups_stay_across_steps_and_trained_ones_do_not),
        cmocka_unit_test(a_step_ahead_begins_with_the_gathers_of_its_first_op),
        cmocka_unit_test(ops_that_read_nothing_need_no_frame),
        cmocka_unit_test(entries_leave_the_roll_in_their_order),
        cmocka_unit_test(the_hash_tells_programs_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
