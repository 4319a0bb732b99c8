/* A timeline as perfetto.protos.Trace: packets of one sequence, in order of time.
 *
 *     1  lanes: a track's spans, by begin and the longer first, each go to the first lane on which they nest
 *     2  points: a span's begin and end, an instant, a counter's value; sorted by time
 *     3  packets: the process, the tracks, then a packet a point
 *
 * At one time, ends stand before begins: so spans that touch do not overlap, and an arrow may go from what ends to what
 * begins. Spans without length are the exception, both their points stand among the begins. Points of a lane that stand
 * together keep the order in which the lane's stack of open spans gave them.
 *
 * A text stands in the file once, in the packet that first needs it ("interned"); packets then say its number.
 */
#include "base/write_error.h"
#include "chunk/array.h"
#include "tools/trace/protobuf.h"
#include "tools/trace/timeline_internal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Fields of perfetto.protos. */
enum {
    TRACE_PACKET = 1,

    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE = 10,
    PACKET_EVENT = 11,
    PACKET_INTERNED = 12,
    PACKET_SEQUENCE_FLAGS = 13,
    PACKET_TRACK = 60,
    SEQUENCE_STATE_CLEARED = 1, /* its first packet's: texts are numbered anew */
    SEQUENCE_STATE_NEEDED = 2,

    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PROCESS = 3,
    TRACK_PARENT = 5,
    TRACK_COUNTER = 8,
    TRACK_CHILD_ORDERING = 11,
    TRACK_RANK = 12,
    CHILDREN_BY_RANK = 3,
    PROCESS_PID = 1,
    PROCESS_NAME = 6,
    COUNTER_UNIT = 3,
    COUNTER_AXIS = 7,
    UNIT_COUNT = 2,
    UNIT_BYTES = 3,

    EVENT_NOTE = 4,
    EVENT_TYPE = 9,
    EVENT_NAME = 10,
    EVENT_TRACK = 11,
    EVENT_VALUE = 30,
    EVENT_FLOW = 47,
    EVENT_LAST_FLOW = 48,
    TYPE_BEGIN = 1,
    TYPE_END = 2,
    TYPE_INSTANT = 3,
    TYPE_COUNTER = 4,
    NOTE_NAME = 1,
    NOTE_BOOL = 2,
    NOTE_COUNT = 3,
    NOTE_TEXT = 17,

    INTERNED_NUMBER = 1,
    INTERNED_TEXT = 2,
};

/* Where InternedData tells texts of each role. */
static const uint32_t interned_fields[TEXT_ROLES] = {
    [TEXT_EVENT_NAME] = 2, [TEXT_NOTE_NAME] = 3, [TEXT_NOTE_VALUE] = 29};

/* The high bits of numbers that must differ between timelines that are put together. */
enum { NUMBER_SHIFT = 48 };

typedef struct point {
    uint64_t t_ns, order;
    uint32_t index; /* of a span or a value */
    int type;       /* TYPE_... */
} point;

typedef struct news {
    uint32_t text;
    text_role role;
} news;

struct tide_timeline_notes {
    tide_timeline *timeline;
    tide_protobuf packet;
    point *points;
    news *news; /* texts that this packet names first */
    uint32_t point_count, news_count, news_capacity;
    uint64_t order;
    FILE *out;
};

typedef struct tide_timeline_notes writer;

/* ---- 1: lanes ---- */

/* A lane's open spans, innermost last. */
typedef struct lane {
    uint32_t *open;
    uint32_t count, capacity;
} lane;

typedef struct lanes {
    lane *lanes;
    uint32_t count, capacity;
} lanes;

static void point_add(writer *w, uint64_t t_ns, bool ends_before, uint32_t index, int type)
{
    const uint64_t order = w->order++ | (ends_before ? 0 : (uint64_t)1 << 63);
    w->points[w->point_count++] = (point){.t_ns = t_ns, .order = order, .index = index, .type = type};
}

static void span_close(writer *w, lane *from)
{
    const uint32_t number = from->open[--from->count];
    const span *closed = &w->timeline->spans[number];
    if (!closed->instant)
        point_add(w, closed->end_ns, closed->end_ns > closed->begin_ns, number, TYPE_END);
}

static bool span_fits(writer *w, lane *in, const span *added)
{
    const span *spans = w->timeline->spans;
    while (in->count > 0 && spans[in->open[in->count - 1]].end_ns <= added->begin_ns)
        span_close(w, in);
    return in->count == 0 || (w->timeline->tracks[added->track].nests &&
                              spans[in->open[in->count - 1]].end_ns >= added->end_ns);
}

/* False: no memory. */
static bool span_place(writer *w, lanes *of, uint32_t number)
{
    span *added = &w->timeline->spans[number];
    uint32_t at = 0;
    while (at < of->count && !span_fits(w, &of->lanes[at], added))
        at++;
    if (at == of->count) {
        if (!tide_array_grow((void **)&of->lanes, of->count, &of->capacity, sizeof *of->lanes))
            return false;
        of->lanes[of->count++] = (lane){0};
    }
    lane *in = &of->lanes[at];
    if (!tide_array_grow((void **)&in->open, in->count, &in->capacity, sizeof *in->open))
        return false;
    in->open[in->count++] = number;
    added->lane = at;
    point_add(w, added->begin_ns, false, number, added->instant ? TYPE_INSTANT : TYPE_BEGIN);
    return true;
}

static void lanes_close(writer *w, lanes *of)
{
    for (uint32_t i = 0; i < of->count; i++) {
        while (of->lanes[i].count > 0)
            span_close(w, &of->lanes[i]);
        free(of->lanes[i].open);
    }
    free(of->lanes);
    *of = (lanes){0};
}

static int compare(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* By track, begin, the longer first, the earlier added first. */
static int spans_compare(const void *a, const void *b, void *timeline)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const span *x = &((tide_timeline *)timeline)->spans[i], *y = &((tide_timeline *)timeline)->spans[j];
    if (x->track != y->track)
        return compare(x->track, y->track);
    if (x->begin_ns != y->begin_ns)
        return compare(x->begin_ns, y->begin_ns);
    return x->end_ns != y->end_ns ? compare(y->end_ns, x->end_ns) : compare(i, j);
}

/* Every span to its lane, and its points; `order` has room for a number a span. False: no memory. */
static bool spans_place(writer *w, uint32_t *order)
{
    const tide_timeline *timeline = w->timeline;
    lanes of = {0};
    bool placed = true;
    for (uint32_t i = 0; i < timeline->span_count; i++)
        order[i] = i;
    qsort_r(order, timeline->span_count, sizeof *order, spans_compare, w->timeline);
    for (uint32_t i = 0; i < timeline->span_count && placed; i++) {
        const uint32_t on = timeline->spans[order[i]].track;
        placed = span_place(w, &of, order[i]);
        timeline->tracks[on].lanes = of.count;
        if (i + 1 == timeline->span_count || timeline->spans[order[i + 1]].track != on)
            lanes_close(w, &of);
    }
    lanes_close(w, &of);
    return placed;
}

/* ---- 2: points ---- */

static int points_compare(const void *a, const void *b)
{
    const point *x = a, *y = b;
    return x->t_ns != y->t_ns ? compare(x->t_ns, y->t_ns) : compare(x->order, y->order);
}

/* By counter, then in order of calls. */
static int values_compare(const void *a, const void *b, void *timeline)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const value *x = &((tide_timeline *)timeline)->values[i], *y = &((tide_timeline *)timeline)->values[j];
    return x->counter != y->counter ? compare(x->counter, y->counter) : compare(i, j);
}

/* The last of those at one time. */
static void values_place(writer *w, uint32_t *order)
{
    const tide_timeline *timeline = w->timeline;
    for (uint32_t i = 0; i < timeline->value_count; i++)
        order[i] = i;
    qsort_r(order, timeline->value_count, sizeof *order, values_compare, w->timeline);
    for (uint32_t i = 0; i < timeline->value_count; i++) {
        const value *now = &timeline->values[order[i]];
        const value *next = i + 1 < timeline->value_count ? &timeline->values[order[i + 1]] : NULL;
        if (next == NULL || next->counter != now->counter || next->t_ns != now->t_ns)
            point_add(w, now->t_ns, false, order[i], TYPE_COUNTER);
    }
}

static bool points_make(writer *w)
{
    const size_t spans = w->timeline->span_count, values = w->timeline->value_count;
    uint32_t *order = malloc((spans > values ? spans : values) * sizeof *order + 1);
    w->points = malloc((2 * spans + values) * sizeof *w->points + 1);
    bool made = order != NULL && w->points != NULL && spans_place(w, order);
    if (made) {
        values_place(w, order);
        qsort(w->points, w->point_count, sizeof *w->points, points_compare);
    }
    free(order);
    return made;
}

/* ---- 3: packets ---- */

static void packet_begin(writer *w, uint64_t flags)
{
    tide_protobuf_clear(&w->packet);
    tide_protobuf_begin(&w->packet, TRACE_PACKET);
    tide_protobuf_count(&w->packet, PACKET_SEQUENCE, w->timeline->number + 1u);
    tide_protobuf_count(&w->packet, PACKET_SEQUENCE_FLAGS, flags);
}

static void news_tell(writer *w)
{
    if (w->news_count == 0)
        return;
    tide_protobuf_begin(&w->packet, PACKET_INTERNED);
    for (uint32_t i = 0; i < w->news_count; i++) {
        tide_protobuf_begin(&w->packet, interned_fields[w->news[i].role]);
        tide_protobuf_count(&w->packet, INTERNED_NUMBER, w->news[i].text + 1u);
        tide_protobuf_text(&w->packet, INTERNED_TEXT, w->timeline->texts[w->news[i].text].text);
        tide_protobuf_end(&w->packet);
    }
    tide_protobuf_end(&w->packet);
    w->news_count = 0;
}

/* False: no memory, or the stream takes no more. */
static bool packet_end(writer *w)
{
    news_tell(w);
    tide_protobuf_end(&w->packet);
    if (w->packet.failed)
        w->timeline->failed = true;
    return !w->timeline->failed && fwrite(w->packet.bytes, 1, w->packet.length, w->out) == w->packet.length;
}

/* The number by which a packet names the text. */
static uint64_t text_number(writer *w, uint32_t number, text_role role)
{
    if (w->timeline->failed)
        return 1;
    if (!w->timeline->texts[number].told[role]) {
        if (!tide_array_grow((void **)&w->news, w->news_count, &w->news_capacity, sizeof *w->news)) {
            w->timeline->failed = true;
            return 1;
        }
        w->timeline->texts[number].told[role] = true;
        w->news[w->news_count++] = (news){.text = number, .role = role};
    }
    return number + (uint64_t)1;
}

static uint64_t process_uuid(const tide_timeline *timeline)
{
    return (timeline->number + (uint64_t)1) << NUMBER_SHIFT;
}

static void uuids_give(tide_timeline *timeline)
{
    uint64_t uuid = process_uuid(timeline) + 1;
    for (uint32_t i = 0; i < timeline->track_count; i++) {
        timeline->tracks[i].first_uuid = uuid;
        uuid += timeline->tracks[i].lanes > 0 ? timeline->tracks[i].lanes : 1;
    }
}

static bool process_tell(writer *w)
{
    packet_begin(w, SEQUENCE_STATE_CLEARED | SEQUENCE_STATE_NEEDED);
    tide_protobuf_begin(&w->packet, PACKET_TRACK);
    tide_protobuf_count(&w->packet, TRACK_UUID, process_uuid(w->timeline));
    tide_protobuf_begin(&w->packet, TRACK_PROCESS);
    tide_protobuf_count(&w->packet, PROCESS_PID, w->timeline->number + 1u); /* 0 would be the idle process */
    tide_protobuf_text(&w->packet, PROCESS_NAME, w->timeline->process);
    tide_protobuf_end(&w->packet);
    tide_protobuf_count(&w->packet, TRACK_CHILD_ORDERING, CHILDREN_BY_RANK);
    tide_protobuf_end(&w->packet);
    return packet_end(w);
}

static void counter_tell(writer *w, const track *told)
{
    tide_protobuf_begin(&w->packet, TRACK_COUNTER);
    tide_protobuf_count(&w->packet, COUNTER_UNIT,
                        told->unit == TIDE_TIMELINE_BYTES ? UNIT_BYTES : UNIT_COUNT);
    if (told->axis != NULL)
        tide_protobuf_text(&w->packet, COUNTER_AXIS, told->axis);
    tide_protobuf_end(&w->packet);
}

static bool track_tell(writer *w, const track *told, uint32_t lane_number)
{
    const bool top = told->parent == TIDE_TIMELINE_NONE;
    packet_begin(w, SEQUENCE_STATE_NEEDED);
    tide_protobuf_begin(&w->packet, PACKET_TRACK);
    tide_protobuf_count(&w->packet, TRACK_UUID, told->first_uuid + lane_number);
    tide_protobuf_count(&w->packet, TRACK_PARENT,
                        top ? process_uuid(w->timeline) : w->timeline->tracks[told->parent].first_uuid);
    tide_protobuf_text(&w->packet, TRACK_NAME, told->name);
    tide_protobuf_count(&w->packet, TRACK_RANK, told->rank);
    if (told->counts)
        counter_tell(w, told);
    else
        tide_protobuf_count(&w->packet, TRACK_CHILD_ORDERING, CHILDREN_BY_RANK);
    tide_protobuf_end(&w->packet);
    return packet_end(w);
}

static bool tracks_tell(writer *w)
{
    bool told = true;
    for (uint32_t i = 0; i < w->timeline->track_count && told; i++) {
        const track *of = &w->timeline->tracks[i];
        told = !of->used || track_tell(w, of, 0);
        for (uint32_t j = 1; j < of->lanes && told; j++)
            told = track_tell(w, of, j);
    }
    return told;
}

static int arrows_compare(const void *a, const void *b)
{
    const arrow *x = a, *y = b;
    return x->span != y->span ? compare(x->span, y->span) : compare(x->number, y->number);
}

/* The span's arrows that stand at its begin, or at its end. They are sorted by span. */
static void arrows_tell(writer *w, uint32_t number, bool at_end)
{
    const arrow *arrows = w->timeline->arrows;
    uint32_t from = 0, to = w->timeline->arrow_count;
    while (from < to) {
        const uint32_t middle = from + (to - from) / 2;
        if (arrows[middle].span < number)
            from = middle + 1;
        else
            to = middle;
    }
    for (; from < w->timeline->arrow_count && arrows[from].span == number; from++)
        if (arrows[from].at_end == at_end)
            tide_protobuf_fixed64(&w->packet, arrows[from].ends_here ? EVENT_LAST_FLOW : EVENT_FLOW,
                                  process_uuid(w->timeline) + arrows[from].number);
}

static void begin_tell(writer *w, uint32_t number)
{
    const span *told = &w->timeline->spans[number];
    tide_protobuf_count(&w->packet, EVENT_NAME, text_number(w, told->text, TEXT_EVENT_NAME));
    arrows_tell(w, number, false);
    if (told->instant)
        arrows_tell(w, number, true);
    if (w->timeline->describe != NULL)
        w->timeline->describe(w->timeline->context, told->source, w);
}

static bool point_tell(writer *w, const point *told)
{
    const tide_timeline *timeline = w->timeline;
    const bool counts = told->type == TYPE_COUNTER;
    const track *on =
        &timeline
             ->tracks[counts ? timeline->values[told->index].counter : timeline->spans[told->index].track];
    packet_begin(w, SEQUENCE_STATE_NEEDED);
    tide_protobuf_count(&w->packet, PACKET_TIMESTAMP, told->t_ns);
    tide_protobuf_begin(&w->packet, PACKET_EVENT);
    tide_protobuf_count(&w->packet, EVENT_TYPE, (uint64_t)told->type);
    tide_protobuf_count(&w->packet, EVENT_TRACK,
                        on->first_uuid + (counts ? 0 : timeline->spans[told->index].lane));
    if (counts)
        tide_protobuf_count(&w->packet, EVENT_VALUE, timeline->values[told->index].value);
    else if (told->type == TYPE_END)
        arrows_tell(w, told->index, true);
    else
        begin_tell(w, told->index);
    tide_protobuf_end(&w->packet);
    return packet_end(w);
}

/* ---- notes ---- */

static void note_begin(writer *w, const char *name)
{
    tide_protobuf_begin(&w->packet, EVENT_NOTE);
    tide_protobuf_count(&w->packet, NOTE_NAME,
                        text_number(w, tide_timeline_text(w->timeline, name), TEXT_NOTE_NAME));
}

void tide_timeline_note_count(tide_timeline_notes *notes, const char *name, uint64_t number)
{
    note_begin(notes, name);
    tide_protobuf_count(&notes->packet, NOTE_COUNT, number);
    tide_protobuf_end(&notes->packet);
}

void tide_timeline_note_bool(tide_timeline_notes *notes, const char *name, bool is)
{
    note_begin(notes, name);
    tide_protobuf_count(&notes->packet, NOTE_BOOL, is);
    tide_protobuf_end(&notes->packet);
}

void tide_timeline_note_text(tide_timeline_notes *notes, const char *name, const char *content)
{
    note_begin(notes, name);
    tide_protobuf_count(&notes->packet, NOTE_TEXT,
                        text_number(notes, tide_timeline_text(notes->timeline, content), TEXT_NOTE_VALUE));
    tide_protobuf_end(&notes->packet);
}

tide_status tide_timeline_write(tide_timeline *timeline, FILE *out)
{
    writer w = {.timeline = timeline, .out = out};
    bool told = false;
    int error = 0;
    if (timeline->failed || !points_make(&w)) {
        timeline->failed = true;
        goto free_points;
    }
    if (timeline->arrow_count > 0)
        qsort(timeline->arrows, timeline->arrow_count, sizeof *timeline->arrows, arrows_compare);
    uuids_give(timeline);
    told = process_tell(&w) && tracks_tell(&w);
    for (uint32_t i = 0; i < w.point_count && told; i++)
        told = point_tell(&w, &w.points[i]);
    error = errno; /* of fwrite, if it failed */
free_points:
    free(w.points);
    free(w.news);
    tide_protobuf_free(&w.packet);
    if (timeline->failed)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the timeline");
    return told ? TIDE_OK : tide_fail(TIDE_ERROR_IO, "can't be written: %s", tide_write_error(error));
}
