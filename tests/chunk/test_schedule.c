/* The recorded schedule, compared with plain walks along its schedule steps: when a chunk is used next and
 * last, and how far away that is. This is checked for both kinds of step at every cursor, after steps that
 * differ from the recording, are shorter, are given up, or are too long. */
#include "chunk/schedule.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { OPS = 12, CHUNKS = 20, USES_MAX = 4, STEP_MAX = 2 * OPS + 1 };

static const tide_param_class as_large = {.state = {1, {128}}}; /* gives each PARAM chunk a STATE chunk */

static uint64_t random_state = 1;

static uint32_t below(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 11) % limit);
}

/* Ops without slices, each with its chunks. `step` and `length` are the last recorded step of each kind, if
 * `known`. */
typedef struct scenario {
    tide_chunk chunks[OPS][USES_MAX];
    uint32_t counts[OPS], uses;
    tide_ops ops;
    tide_schedule schedule;
    uint32_t step[TIDE_SCHEDULE_KINDS][STEP_MAX + 8], length[TIDE_SCHEDULE_KINDS];
    bool known[TIDE_SCHEDULE_KINDS];
} scenario;

static tide_description *description;
static tide_layout *layout; /* CHUNKS chunks */

static int make_layout(void **state)
{
    const uint64_t elements = CHUNKS / 2 * 1024;
    tide_param param;
    assert_int_equal(tide_description_create(TIDE_DTYPE_FP32, 0, &description), TIDE_OK);
    assert_int_equal(tide_description_add_param(description, "p", &elements, 1, &as_large, &param), TIDE_OK);
    assert_int_equal(tide_layout_create(description, 4096, TIDE_SHARD_ALL, &layout), TIDE_OK);
    assert_int_equal(tide_layout_chunk_count(layout), CHUNKS);
    return 0;
}

static int destroy_layout(void **state)
{
    tide_layout_destroy(layout);
    tide_description_destroy(description);
    return 0;
}

static void create(scenario *s)
{
    static tide_op_record records[OPS];
    memset(s, 0, sizeof *s);
    s->ops = (tide_ops){.layout = layout, .records = records, .count = OPS};
    for (uint32_t op = 0; op < OPS; op++) {
        const uint32_t first = below(CHUNKS - 3),
                       uses = below(USES_MAX + 1); /* some ops use no chunk, and some chunks are never used */
        for (uint32_t i = 0; i < uses; i++)
            s->chunks[op][s->counts[op]++] = (first + (op % 2 ? i : uses - 1 - i)) % (CHUNKS - 1);
        s->uses += s->counts[op];
        records[op] = (tide_op_record){.chunks = {.list = s->chunks[op], .count = s->counts[op]}};
    }
    assert_int_equal(tide_schedule_create(&s->schedule, &s->ops), TIDE_OK);
}

/* --- answers by walking --- */

typedef struct answers {
    uint32_t distance, last_distance, next, last;
} answers;

/* The answers for `chunk` at `cursor`, by walking along the recording of `kind`. */
static answers walk(const scenario *s, uint32_t kind, uint32_t cursor, tide_chunk chunk)
{
    const uint32_t length = s->length[kind];
    answers a = {2 * length, 2 * length, TIDE_USE_NONE, TIDE_USE_NONE};
    uint32_t number = 0, first = TIDE_USE_NONE, first_schedule_step = 0, last_schedule_step = 0;
    for (uint32_t schedule_step = 0; schedule_step < length; schedule_step++)
        for (uint32_t i = 0; i < s->counts[s->step[kind][schedule_step]]; i++, number++) {
            if (s->chunks[s->step[kind][schedule_step]][i] != chunk)
                continue;
            if (first == TIDE_USE_NONE) {
                first = number;
                first_schedule_step = schedule_step;
            }
            if (schedule_step >= cursor && a.next == TIDE_USE_NONE) {
                a.next = number;
                a.distance = schedule_step - cursor;
            }
            a.last = number;
            last_schedule_step = schedule_step;
        }
    if (first == TIDE_USE_NONE)
        return a;
    if (a.next == TIDE_USE_NONE) { /* the next use is in the next step */
        a.next = first;
        a.distance = first_schedule_step + length - cursor;
    }
    a.last_distance =
        last_schedule_step >= cursor ? last_schedule_step - cursor : last_schedule_step + length - cursor;
    return a;
}

static void compare(const scenario *s, uint32_t kind, uint32_t cursor)
{
    const tide_schedule *schedule = &s->schedule;
    const tide_recording *active = tide_schedule_active(schedule);
    assert_ptr_equal(active, &schedule->recordings[kind]);
    assert_int_equal(tide_schedule_distance(schedule, TIDE_USE_NONE), 2 * s->length[kind]);
    for (tide_chunk chunk = 0; chunk < CHUNKS; chunk++) {
        const answers a = walk(s, kind, cursor, chunk);
        assert_int_equal(tide_schedule_next(schedule, chunk), a.next);
        assert_int_equal(tide_schedule_last(schedule, chunk), a.last);
        assert_int_equal(tide_schedule_distance(schedule, a.next), a.distance);
        assert_int_equal(tide_schedule_distance(schedule, a.last), a.last_distance);
    }
    uint32_t number = 0;
    for (uint32_t schedule_step = 0; schedule_step <= s->length[kind]; schedule_step++) {
        assert_int_equal(active->schedule_step_first[schedule_step], number);
        number += schedule_step < s->length[kind] ? s->counts[s->step[kind][schedule_step]] : 0;
    }
}

/* Between steps the schedule expects a training step or, if none was recorded, a forward-only pass. */
static void compare_between(const scenario *s)
{
    if (s->known[TIDE_SCHEDULE_TRAINING])
        compare(s, TIDE_SCHEDULE_TRAINING, 0);
    else if (s->known[TIDE_SCHEDULE_FORWARD])
        compare(s, TIDE_SCHEDULE_FORWARD, 0);
    else
        assert_null(tide_schedule_active(&s->schedule));
}

/* --- a step --- */

/* Draw the recorded step, unchanged, with one op changed, cut off or continued; or any other step. */
static uint32_t draw_step(const scenario *s, uint32_t kind, uint32_t *step)
{
    uint32_t count = 1 + below(2 * OPS);
    for (uint32_t i = 0; i < STEP_MAX + 8; i++)
        step[i] = below(OPS);
    if (!s->known[kind] || below(4) == 0)
        return below(10) ? count : STEP_MAX + 1 + below(7);
    memcpy(step, s->step[kind], s->length[kind] * sizeof *step);
    count = s->length[kind];
    if (below(4) == 0)
        step[below(count)] = below(OPS);
    if (below(4) == 0)
        count = below(count + 1);
    else if (below(4) == 0)
        count++;
    return count;
}

static void remember(scenario *s, uint32_t kind, const uint32_t *step, uint32_t count)
{
    uint32_t uses = 0;
    for (uint32_t i = 0; i < count; i++)
        uses += s->counts[step[i]];
    s->known[kind] = count > 0 && count <= STEP_MAX && uses <= 2 * s->uses + 1;
    s->length[kind] = s->known[kind] ? count : 0;
    if (s->known[kind])
        memcpy(s->step[kind], step, count * sizeof *step);
}

/* Play a step. As long as it follows the recording, compare the answers at every cursor. After the first
 * difference there are no answers. */
static void run_step(scenario *s)
{
    uint32_t step[STEP_MAX + 8];
    const uint32_t kind = below(2), count = draw_step(s, kind, step);
    const bool given_up = below(5) == 0, knew = s->known[kind];
    bool same = knew;
    tide_schedule_begin(&s->schedule, kind == TIDE_SCHEDULE_TRAINING);
    for (uint32_t i = 0; i < count; i++) {
        if (same)
            compare(s, kind, i);
        else
            assert_null(tide_schedule_active(&s->schedule));
        const bool differs = same && (i == s->length[kind] || step[i] != s->step[kind][i]);
        const tide_schedule_step schedule_step = {.op = step[i], .slice = TIDE_SLICE_NONE};
        assert_int_equal(tide_schedule_advance(&s->schedule, schedule_step), differs);
        same = same && !differs;
    }
    if (same)
        compare(s, kind, count);
    if (given_up) {
        tide_schedule_abort(&s->schedule);
        s->known[kind] = same;
        return;
    }
    assert_int_equal(tide_schedule_end(&s->schedule), same && count < s->length[kind]);
    if (!same || count < s->length[kind])
        remember(s, kind, step, count);
}

static void what_the_schedule_says_is_what_a_walk_finds(void **state)
{
    for (uint32_t round = 0; round < 200; round++) {
        static scenario s;
        create(&s);
        for (uint32_t step = 0; step < 30; step++) {
            run_step(&s);
            compare_between(&s);
        }
        tide_schedule_destroy(&s.schedule);
    }
}

static void a_schedule_without_memory_says_so_and_leaves_nothing(void **state)
{
    const tide_ops ops = {.layout = layout};
    tide_status status = TIDE_ERROR_NO_MEMORY;
    unsigned request = 0;
    for (; status == TIDE_ERROR_NO_MEMORY; request++) {
        tide_schedule schedule;
        fake_memory_fail(request);
        status = tide_schedule_create(&schedule, &ops);
        assert_int_equal(status, fake_memory_failed() ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        fake_memory_clear();
        if (status == TIDE_OK)
            tide_schedule_destroy(&schedule);
    }
    assert_int_equal(status, TIDE_OK);
    assert_int_equal(request, 5 * TIDE_SCHEDULE_KINDS + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_the_schedule_says_is_what_a_walk_finds),
        cmocka_unit_test(a_schedule_without_memory_says_so_and_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, make_layout, destroy_layout);
}
