#include "src/trace/trace_fields.h"

#include <assert.h>
#include <stddef.h>

#define AT(member) offsetof(struct tide_trace_event, member)
#define COUNT(member)                                                                                        \
    {                                                                                                        \
#member, TIDE_TRACE_COUNT64, AT(member)                                                              \
    }
#define SMALL(member)                                                                                        \
    {                                                                                                        \
#member, TIDE_TRACE_COUNT32, AT(member)                                                              \
    }
#define SMALL_OR_NULL(member)                                                                                \
    {                                                                                                        \
#member, TIDE_TRACE_COUNT32_OR_NULL, AT(member)                                                      \
    }
#define BOOL(member)                                                                                         \
    {                                                                                                        \
#member, TIDE_TRACE_BOOL, AT(member)                                                                 \
    }
#define TEXT(member)                                                                                         \
    {                                                                                                        \
#member, TIDE_TRACE_TEXT, AT(member)                                                                 \
    }
#define TEXT_IN(name, member)                                                                                \
    {                                                                                                        \
#name, TIDE_TRACE_TEXT, AT(member)                                                                   \
    }

#define ANY COUNT(step), COUNT(pass)
#define INSTANT                                                                                              \
    ANY,                                                                                                     \
    {                                                                                                        \
        "t_ns", TIDE_TRACE_COUNT64, AT(begin_ns)                                                             \
    }
#define SPAN ANY, COUNT(begin_ns), COUNT(end_ns)
#define TASK SPAN, COUNT(id), TEXT_IN(tier, what), SMALL(chunk), SMALL(state_chunk), SMALL(piece)
#define PLACE                                                                                                \
    INSTANT, SMALL(chunk), TEXT(device), SMALL_OR_NULL(device_slot), TEXT(host), SMALL_OR_NULL(host_slot),   \
        BOOL(pinned), TEXT(content), BOOL(pending)

static const tide_trace_field pass[] = {INSTANT, BOOL(training), COUNT(number), BOOL(clips)};
static const tide_trace_field instant[] = {INSTANT};
static const tide_trace_field plan[] = {
    INSTANT, BOOL(training), SMALL(planned_in), SMALL(planned_out), SMALL(least_in), SMALL(least_out)};
static const tide_trace_field request[] = {
    SPAN, SMALL(op), SMALL_OR_NULL(slice), SMALL(schedule_step), SMALL(chunks), SMALL(lacked)};
static const tide_trace_field wait[] = {INSTANT,       SMALL(op),    SMALL_OR_NULL(slice),
                                        SMALL(schedule_step), SMALL(chunk), TEXT_IN(for, reason)};
static const tide_trace_field op[] = {SPAN, COUNT(busy_ns), SMALL_OR_NULL(op), SMALL_OR_NULL(slice),
                                      SMALL(schedule_step)};
static const tide_trace_field span[] = {SPAN};
static const tide_trace_field move[] = {
    SPAN,         COUNT(id),          TEXT_IN(move, what),      SMALL(chunk),
    TEXT(reason), SMALL(device_slot), SMALL_OR_NULL(host_slot), BOOL(copied),
    BOOL(zeroed), BOOL(in_place)};
static const tide_trace_field map[] = {SPAN, COUNT(id), TEXT_IN(map, what), SMALL(chunk), SMALL(device_slot)};
static const tide_trace_field copy[] = {SPAN,         COUNT(id),    TEXT_IN(to, what),  SMALL(chunk),
                                        TEXT(reason), COUNT(bytes), SMALL(device_slot), SMALL(host_slot)};
static const tide_trace_field of_chunk[] = {SPAN, COUNT(id), SMALL(chunk)};
static const tide_trace_field task[] = {TASK};
static const tide_trace_field stall[] = {SPAN,
                                         TEXT_IN(cause, what),
                                         SMALL_OR_NULL(op),
                                         SMALL_OR_NULL(slice),
                                         SMALL(schedule_step),
                                         SMALL_OR_NULL(chunk),
                                         {"ended_by", TIDE_TRACE_COUNT64_OR_NULL, AT(ended_by)},
                                         BOOL(predicted)};
static const tide_trace_field place[] = {PLACE};
static const tide_trace_field param[] = {INSTANT, SMALL(param), TEXT_IN(holds, what)};
static const tide_trace_field work[] = {SPAN, TEXT_IN(work, what)};
static const tide_trace_field dropped[] = {INSTANT, {"events", TIDE_TRACE_COUNT64, AT(number)}};

#define SHAPE(name, fields)                                                                                  \
    {                                                                                                        \
        name, fields, sizeof fields / sizeof fields[0]                                                       \
    }

const tide_trace_shape *tide_trace_shape_of(tide_trace_kind kind)
{
    static const tide_trace_shape shapes[TIDE_TRACE_KIND_COUNT] = {
        [TIDE_TRACE_PASS] = SHAPE("pass", pass),
        [TIDE_TRACE_PASS_END] = SHAPE("pass end", instant),
        [TIDE_TRACE_GIVEN_UP] = SHAPE("given up", instant),
        [TIDE_TRACE_PLAN] = SHAPE("plan", plan),
        [TIDE_TRACE_REQUEST] = SHAPE("request", request),
        [TIDE_TRACE_WAIT] = SHAPE("wait", wait),
        [TIDE_TRACE_OP] = SHAPE("op", op),
        [TIDE_TRACE_NORM] = SHAPE("norm", span),
        [TIDE_TRACE_MOVE] = SHAPE("move", move),
        [TIDE_TRACE_MAP] = SHAPE("map", map),
        [TIDE_TRACE_COPY] = SHAPE("copy", copy),
        [TIDE_TRACE_ZERO] = SHAPE("zero", of_chunk),
        [TIDE_TRACE_UPDATE] = SHAPE("update", task),
        [TIDE_TRACE_RESTORE] = SHAPE("restore", task),
        [TIDE_TRACE_ACCESS] = SHAPE("access", of_chunk),
        [TIDE_TRACE_STALL] = SHAPE("stall", stall),
        [TIDE_TRACE_CHUNK] = SHAPE("chunk", place),
        [TIDE_TRACE_PARAM] = SHAPE("param", param),
        [TIDE_TRACE_WORK] = SHAPE("work", work),
        [TIDE_TRACE_SNAPSHOT] = SHAPE("snapshot", place),
        [TIDE_TRACE_DROPPED] = SHAPE("dropped", dropped),
    };
    assert((unsigned)kind < TIDE_TRACE_KIND_COUNT && shapes[kind].fields != NULL);
    return &shapes[kind];
}
