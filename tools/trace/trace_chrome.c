/* Pictures as Chrome's JSON trace events, each in order of time, which ui.perfetto.dev reads:
 *
 *   1  lanes: a track's spans, sorted by begin, go each to the first lane that is free or, if the track
 *      nests, whose open spans contain it
 *   2  points: a span's begin and end, an instant, a counter's value; sorted by time
 *   3  events: names of the process and of each lane; then "B", "E", "i" or "C" for each point, and "s" and
 *      "f" for the two ends of each arrow
 *
 * The rank is the process, and each lane is one of its threads, because the format knows no other tracks. The
 * events of one rank stand behind those of another, since viewers sort by time. No arrow leads from one rank
 * to another.
 *
 * A viewer gives an arrow's end to the innermost span that is open on the thread. So "s" and "f" follow the
 * "B" of their span or precede its "E".
 *
 * At one time, ends stand before begins: so spans that touch do not overlap, and an arrow may go from a span
 * that ends to one that begins. Spans without length are the exception: both their points stand among the
 * begins. Points of a lane that stand together keep the order in which the lane's stack of open spans gave
 * them.
 */
#include "base/write_error.h"
#include "tools/trace/trace_picture.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* Threads of a rank are numbered from rank << RANK_SHIFT plus 1, so that the pictures of up to 256 ranks can
 * stand in one file: Perfetto's thread numbers have 32 bits. */
enum { RANK_SHIFT = 24 };

typedef enum point_type {
    POINT_BEGIN = 0,
    POINT_END,
    POINT_INSTANT,
    POINT_VALUE,
} point_type;

typedef struct point {
    uint64_t t_ns, order;
    uint32_t index; /* of a span or a value */
    point_type type;
} point;

typedef struct writer {
    tide_picture *picture;
    point *points;
    size_t point_count;
    uint64_t order;
    FILE *out;
} writer;

/* ---- 1: lanes ---- */

/* A lane's open spans, innermost last. */
typedef struct lane {
    uint32_t *open;
    uint32_t count;
} lane;

typedef struct lanes {
    lane *lanes;
    uint32_t count;
} lanes;

static void point_add(writer *w, uint64_t t_ns, bool ends_before, uint32_t index, point_type type)
{
    const uint64_t order = w->order++ | (ends_before ? 0 : (uint64_t)1 << 63);
    w->points[w->point_count++] = (point){.t_ns = t_ns, .order = order, .index = index, .type = type};
}

static void span_close(writer *w, lane *from)
{
    const uint32_t number = from->open[--from->count];
    const tide_picture_span *closed = &w->picture->spans[number];
    if (!closed->instant)
        point_add(w, closed->end_ns, closed->end_ns > closed->begin_ns, number, POINT_END);
}

static bool span_fits(writer *w, lane *in, const tide_picture_span *added)
{
    const tide_picture_span *spans = w->picture->spans;
    while (in->count > 0 && spans[in->open[in->count - 1]].end_ns <= added->begin_ns)
        span_close(w, in);
    return in->count == 0 ||
           (w->picture->tracks[added->track].nests && spans[in->open[in->count - 1]].end_ns >= added->end_ns);
}

/* False: no memory. */
static bool span_place(writer *w, lanes *of, uint32_t number)
{
    tide_picture_span *added = &w->picture->spans[number];
    uint32_t at = 0;
    while (at < of->count && !span_fits(w, &of->lanes[at], added))
        at++;
    if (at == of->count) {
        if (!tide_array_grow(&of->lanes, of->count, sizeof *of->lanes))
            return false;
        of->lanes[of->count++] = (lane){0};
    }
    lane *in = &of->lanes[at];
    if (!tide_array_grow(&in->open, in->count, sizeof *in->open))
        return false;
    in->open[in->count++] = number;
    added->lane = at;
    point_add(w, added->begin_ns, false, number, added->instant ? POINT_INSTANT : POINT_BEGIN);
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

/* Order by track and begin; of spans that begin together the longer first, then the one that was added
 * first. */
static int spans_compare(const void *a, const void *b, void *spans)
{
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const tide_picture_span *x = &((tide_picture_span *)spans)[i], *y = &((tide_picture_span *)spans)[j];
    if (x->track != y->track)
        return compare(x->track, y->track);
    if (x->begin_ns != y->begin_ns)
        return compare(x->begin_ns, y->begin_ns);
    return x->end_ns != y->end_ns ? compare(y->end_ns, x->end_ns) : compare(i, j);
}

/* Give every span a lane and its points. `order` is an array for the sorted spans' numbers. False: no
 * memory. */
static bool spans_place(writer *w, uint32_t *order)
{
    tide_picture *p = w->picture;
    lanes of = {0};
    bool placed = true;
    for (uint32_t i = 0; i < p->span_count; i++)
        order[i] = i;
    if (p->span_count > 0)
        qsort_r(order, p->span_count, sizeof *order, spans_compare, p->spans);
    for (uint32_t i = 0; i < p->span_count && placed; i++) {
        const uint32_t on = p->spans[order[i]].track;
        placed = span_place(w, &of, order[i]);
        p->tracks[on].lanes = of.count;
        if (i + 1 == p->span_count || p->spans[order[i + 1]].track != on)
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

static int arrows_compare(const void *a, const void *b)
{
    const tide_picture_arrow *x = a, *y = b;
    return x->span != y->span ? compare(x->span, y->span) : compare(x->number, y->number);
}

static bool points_make(writer *w)
{
    tide_picture *p = w->picture;
    uint32_t *order = tide_arrays_add(&p->memory, p->span_count, sizeof *order);
    w->points = tide_arrays_add(&p->memory, 2 * (size_t)p->span_count + p->value_count, sizeof *w->points);
    if (p->memory.lacks || !spans_place(w, order))
        return false;
    for (uint32_t i = 0; i < p->value_count; i++)
        point_add(w, p->values[i].t_ns, false, i, POINT_VALUE);
    if (w->point_count > 0)
        qsort(w->points, w->point_count, sizeof *w->points, points_compare);
    if (p->arrow_count > 0)
        qsort(p->arrows, p->arrow_count, sizeof *p->arrows, arrows_compare);
    return true;
}

/* ---- 3: events ---- */

static uint64_t first_tid(const tide_picture *p)
{
    return ((uint64_t)p->model->rank << RANK_SHIFT) + 1;
}

/* Begin an event. The process has the number of its first thread. */
static void event_begin(writer *w, const char *phase, uint64_t tid)
{
    fprintf(w->out, ",\n{\"ph\":\"%s\",\"pid\":%" PRIu64 ",\"tid\":%" PRIu64, phase, first_tid(w->picture),
            tid);
}

/* Times are microseconds. Perfetto multiplies the number by 1000 in floating point and cuts off the fraction;
 * a tenth of a nanosecond more keeps a rounding error from lowering the nanosecond. */
static void time_write(writer *w, uint64_t t_ns)
{
    fprintf(w->out, ",\"ts\":%" PRIu64 ".%03u1", t_ns / 1000, (unsigned)(t_ns % 1000));
}

static void lane_write(writer *w, const char *name, uint64_t tid)
{
    event_begin(w, "M", tid);
    fprintf(w->out, ",\"name\":\"thread_name\",\"args\":{\"name\":\"%s\"}}", name);
    event_begin(w, "M", tid);
    fprintf(w->out, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%" PRIu64 "}}",
            tid - first_tid(w->picture));
}

static int tracks_compare(const void *a, const void *b)
{
    const tide_picture_track *const *x = a, *const *y = b;
    return compare((*x)->rank, (*y)->rank);
}

/* Number the lanes of all tracks from top to bottom. A track without spans has none. False: no memory. */
static bool lanes_write(writer *w)
{
    tide_picture *p = w->picture;
    uint64_t tid = first_tid(p);
    tide_picture_track **order = tide_arrays_add(&p->memory, p->track_count, sizeof *order);
    if (order == NULL)
        return false;
    for (uint32_t i = 0; i < p->track_count; i++)
        order[i] = &p->tracks[i];
    qsort(order, p->track_count, sizeof *order, tracks_compare);
    for (uint32_t i = 0; i < p->track_count; i++) {
        order[i]->tid = tid;
        for (uint32_t j = 0; j < order[i]->lanes; j++)
            lane_write(w, order[i]->name, tid++);
    }
    return true;
}

static void process_write(writer *w)
{
    const tide_picture *p = w->picture;
    fprintf(w->out,
            "{\"ph\":\"M\",\"pid\":%" PRIu64
            ",\"name\":\"process_name\",\"args\":{\"name\":\"tidepool rank %" PRIu32 "\"}}",
            first_tid(p), p->model->rank);
}

/* Write the ends of arrows that stand at the span's begin or, with `at_end`, at its end. */
static void arrows_write(writer *w, uint32_t number, bool at_end, uint64_t tid, uint64_t t_ns)
{
    const tide_picture *p = w->picture;
    const tide_picture_arrow *arrows = p->arrows;
    uint32_t from = 0, to = p->arrow_count;
    while (from < to) {
        const uint32_t middle = from + (to - from) / 2;
        if (arrows[middle].span < number)
            from = middle + 1;
        else
            to = middle;
    }
    for (; from < p->arrow_count && arrows[from].span == number; from++) {
        if (arrows[from].at_end != at_end)
            continue;
        event_begin(w, arrows[from].ends_here ? "f\",\"bp\":\"e" : "s", tid);
        time_write(w, t_ns);
        fprintf(w->out, ",\"cat\":\"arrow\",\"name\":\"arrow\",\"id\":%" PRIu64 "}",
                ((uint64_t)p->model->rank << 32) + arrows[from].number);
    }
}

static void begin_write(writer *w, uint32_t number, uint64_t tid)
{
    const tide_picture_span *span = &w->picture->spans[number];
    char name[TIDE_TEXT_NAME_BYTES];
    event_begin(w, span->instant ? "i\",\"s\":\"t" : "B", tid);
    time_write(w, span->begin_ns);
    fputs(",\"name\":", w->out);
    tide_text_json_write(tide_picture_label_make(w->picture, span, name), w->out);
    tide_picture_arguments_write(w->picture, span, w->out);
    fputc('}', w->out);
    if (!span->instant)
        arrows_write(w, number, false, tid, span->begin_ns);
}

static void value_write(writer *w, const tide_picture_value *value)
{
    static const struct {
        const char *name, *series;
    } counters[TIDE_COUNTERS] = {{"device memory", "slots in use"}, {"device memory", "bytes in slots"},
                                 {"device memory", "budget"},       {"host memory", "slots in use"},
                                 {"host memory", "bytes in slots"}, {"host memory", "budget"},
                                 {"link", "bytes on their way in"}, {"link", "bytes on their way out"}};
    event_begin(w, "C", first_tid(w->picture));
    time_write(w, value->t_ns);
    fprintf(w->out, ",\"name\":\"%s\",\"args\":{\"%s\":%" PRIu64 "}}", counters[value->counter].name,
            counters[value->counter].series, value->value);
}

static void point_write(writer *w, const point *at)
{
    if (at->type == POINT_VALUE) {
        value_write(w, &w->picture->values[at->index]);
        return;
    }
    const tide_picture_span *span = &w->picture->spans[at->index];
    const uint64_t tid = w->picture->tracks[span->track].tid + span->lane;
    if (at->type != POINT_END) {
        begin_write(w, at->index, tid);
        return;
    }
    arrows_write(w, at->index, true, tid, at->t_ns);
    event_begin(w, "E", tid);
    time_write(w, at->t_ns);
    fputc('}', w->out);
}

static tide_status written(FILE *out)
{
    return !ferror(out) ? TIDE_OK : tide_fail(TIDE_ERROR_IO, "can't be written: %s", tide_write_error(errno));
}

tide_status tide_picture_write(tide_picture *p, FILE *out)
{
    writer w = {.picture = p, .out = out};
    bool made = points_make(&w);
    errno = 0;
    if (made) {
        process_write(&w);
        made = lanes_write(&w);
    }
    if (!made)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the picture");
    for (size_t i = 0; i < w.point_count && !ferror(out); i++)
        point_write(&w, &w.points[i]);
    return written(out);
}

void tide_pictures_begin(FILE *out)
{
    fputs("{\"traceEvents\":[\n", out);
}

void tide_pictures_next(FILE *out)
{
    fputs(",\n", out);
}

tide_status tide_pictures_end(FILE *out)
{
    errno = 0;
    fputs("\n]}\n", out);
    return written(out);
}
