#include "src/trace/trace_fields.h"

#include "chunk/layout.h"

#include <assert.h>
#include <stddef.h>

/* ---- words ---- */

static const char *word_of(const char *const *words, size_t count, uint32_t number)
{
    return number < count ? words[number] : NULL;
}

#define WORDS(noun, ...)                                                                                     \
    const char *tide_trace_##noun##_word(uint32_t number)                                                    \
    {                                                                                                        \
        static const char *const words[] = {__VA_ARGS__};                                                    \
        return word_of(words, sizeof words / sizeof words[0], number);                                       \
    }

WORDS(pass, "forward", "backward", "both")
WORDS(reason, "demand", "prefetch", "update", "restore", "access", "promote")
WORDS(move, "fetch", "evict", "write back")
WORDS(mapping, "map", "unmap", "remap")
WORDS(awaited, "update", "slot", "move")
WORDS(holding, "parameter", "gradient")
WORDS(tier, "device", "host")
WORDS(stand, "none", "coming", "there", "evicting", "stale")
WORDS(content, "nothing", "params", "gradients", "both", "state", "activations")

const char *tide_trace_dtype_word(uint32_t dtype)
{
    return dtype <= TIDE_DTYPE_FP16 ? tide_dtype_name((tide_dtype)dtype) : NULL;
}

const char *tide_trace_space_word(uint32_t space)
{
    return space < TIDE_SPACE_COUNT ? tide_space_name((tide_space)space) : NULL;
}

static const char *cause_word(uint32_t cause)
{
    return cause < TIDE_STALL_CAUSE_COUNT ? tide_stall_cause_name((tide_stall_cause)cause) : NULL;
}

/* A chunk in host memory is neither evicted nor stale. */
static const char *host_word(uint32_t stand)
{
    return stand <= TIDE_STAND_THERE ? tide_trace_stand_word(stand) : NULL;
}

/* ---- members ---- */

/* clang-format off */
#define FIELD(name, type, member) {name, TIDE_TRACE_##type, offsetof(struct tide_trace_event, member), NULL}
#define WORD(name, member, words) {name, TIDE_TRACE_WORD, offsetof(struct tide_trace_event, member), words}
#define COUNT(member)         FIELD(#member, COUNT64, member)
#define SMALL(member)         FIELD(#member, COUNT32, member)
#define SMALL_OR_NULL(member) FIELD(#member, COUNT32_OR_NULL, member)
#define BOOL(member)          FIELD(#member, BOOL, member)

#define ANY     COUNT(step), COUNT(pass)
#define INSTANT ANY, FIELD("t_ns", COUNT64, begin_ns)
#define SPAN    ANY, COUNT(begin_ns), COUNT(end_ns)
#define REASON  WORD("reason", reason, tide_trace_reason_word)
/* clang-format on */

static const tide_trace_field pass[] = {INSTANT, BOOL(training), COUNT(number), BOOL(clips)};
static const tide_trace_field instant[] = {INSTANT};
static const tide_trace_field plan[] = {
    INSTANT, BOOL(training), SMALL(planned_in), SMALL(planned_out), SMALL(least_in), SMALL(least_out)};
static const tide_trace_field request[] = {
    SPAN, SMALL(op), SMALL_OR_NULL(slice), SMALL(schedule_step), SMALL(chunks), SMALL(lacked)};
static const tide_trace_field wait[] = {INSTANT,
                                        SMALL(op),
                                        SMALL_OR_NULL(slice),
                                        SMALL(schedule_step),
                                        SMALL(chunk),
                                        WORD("for", awaits, tide_trace_awaited_word)};
static const tide_trace_field op[] = {SPAN, COUNT(busy_ns), SMALL_OR_NULL(op), SMALL_OR_NULL(slice),
                                      SMALL(schedule_step)};
static const tide_trace_field span[] = {SPAN};
static const tide_trace_field move[] = {SPAN,
                                        COUNT(id),
                                        WORD("move", move, tide_trace_move_word),
                                        SMALL(chunk),
                                        REASON,
                                        SMALL(device_slot),
                                        SMALL_OR_NULL(host_slot),
                                        BOOL(copied),
                                        BOOL(zeroed),
                                        BOOL(in_place)};
static const tide_trace_field map[] = {SPAN, COUNT(id), WORD("map", map, tide_trace_mapping_word),
                                       SMALL(chunk), SMALL(device_slot)};
static const tide_trace_field copy[] = {SPAN,
                                        COUNT(id),
                                        WORD("to", tier, tide_trace_tier_word),
                                        SMALL(chunk),
                                        REASON,
                                        COUNT(bytes),
                                        SMALL(device_slot),
                                        SMALL(host_slot)};
static const tide_trace_field of_chunk[] = {SPAN, COUNT(id), SMALL(chunk)};
static const tide_trace_field task[] = {
    SPAN,         COUNT(id),          WORD("tier", tier, tide_trace_tier_word),
    SMALL(chunk), SMALL(state_chunk), SMALL(piece)};
static const tide_trace_field stall[] = {SPAN,
                                         WORD("cause", cause, cause_word),
                                         SMALL_OR_NULL(op),
                                         SMALL_OR_NULL(slice),
                                         SMALL(schedule_step),
                                         SMALL_OR_NULL(chunk),
                                         FIELD("ended_by", COUNT64_OR_NULL, ended_by),
                                         BOOL(predicted)};
static const tide_trace_field place[] = {INSTANT,
                                         SMALL(chunk),
                                         WORD("device", device, tide_trace_stand_word),
                                         SMALL_OR_NULL(device_slot),
                                         WORD("host", host, host_word),
                                         SMALL_OR_NULL(host_slot),
                                         BOOL(pinned),
                                         WORD("content", content, tide_trace_content_word),
                                         BOOL(pending)};
static const tide_trace_field param[] = {INSTANT, SMALL(param),
                                         WORD("holds", holds, tide_trace_holding_word)};
static const tide_trace_field work[] = {SPAN, FIELD("work", TEXT, work)};
static const tide_trace_field dropped[] = {INSTANT, FIELD("events", COUNT64, number)};

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
