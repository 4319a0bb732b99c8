#include "tools/trace/trace_picture.h"

#include <assert.h>
#include <stdlib.h>

static const struct {
    const char *name;
    uint64_t rank;
    bool nests;
} lanes[TIDE_LANES] = {
    [TIDE_LANE_PASSES] = {"passes", 0, true},
    [TIDE_LANE_COMPUTE] = {"compute", 1, true},
    [TIDE_LANE_STALLS] = {"stalls", 2, false},
    [TIDE_LANE_IN] = {"copies in", 3, false},
    [TIDE_LANE_OUT] = {"copies out", 4, false},
    [TIDE_LANE_DEVICE_UPDATES] = {"updates on the device", 5, false},
    [TIDE_LANE_HOST_UPDATES] = {"updates on the host", 6, false},
    [TIDE_LANE_HOST] = {"host", 7, true},
    [TIDE_LANE_MOVES] = {"moves", 8, false},
    [TIDE_LANE_MAPPING] = {"mapping", 9, false},
};

/* Make space for one more item in an array of the picture: for `span` in picture->spans. */
#define GROW(picture, noun)                                                                                  \
    grow(picture, &(picture)->noun##s, (picture)->noun##_count, sizeof *(picture)->noun##s)

static bool grow(tide_picture *p, void *array, uint32_t count, size_t bytes)
{
    if (p->memory.lacks || !tide_array_grow(array, count, bytes))
        p->memory.lacks = true;
    return !p->memory.lacks;
}

uint32_t tide_picture_track_add(tide_picture *p, const char *name, uint64_t rank, bool nests)
{
    if (!GROW(p, track))
        return 0;
    tide_picture_track *added = &p->tracks[p->track_count];
    *added = (tide_picture_track){.rank = rank, .nests = nests};
    (void)snprintf(added->name, sizeof added->name, "%s", name);
    return p->track_count++;
}

uint32_t tide_picture_span_add(tide_picture *p, const tide_picture_span *span)
{
    if (!GROW(p, span))
        return 0;
    assert(span->end_ns >= span->begin_ns && span->track < p->track_count);
    p->spans[p->span_count] = *span;
    return p->span_count++;
}

void tide_picture_value_add(tide_picture *p, tide_picture_counter counter, uint64_t t_ns, uint64_t value)
{
    const uint32_t last = p->last_values[counter];
    if (!GROW(p, value))
        return;
    if (last != TIDE_TRACE_NONE && p->values[last].t_ns == t_ns) {
        p->values[last].value = value;
        return;
    }
    p->values[p->value_count] = (tide_picture_value){.t_ns = t_ns, .value = value, .counter = counter};
    p->last_values[counter] = p->value_count++;
}

void tide_picture_arrow_add(tide_picture *p, uint64_t from_event, uint64_t to_event)
{
    const uint32_t number = p->arrow_count / 2;
    for (int end = 0; end < 2; end++) {
        if (p->memory.lacks || p->span_of[from_event] == TIDE_TRACE_NONE ||
            p->span_of[to_event] == TIDE_TRACE_NONE || !GROW(p, arrow))
            return;
        const uint32_t from = p->span_of[from_event], to = p->span_of[to_event];
        const bool later = p->spans[to].begin_ns > p->spans[from].begin_ns;
        assert(from != to);
        p->arrows[p->arrow_count++] =
            end == 0
                ? (tide_picture_arrow){.span = from, .number = number}
                : (tide_picture_arrow){.span = to, .number = number, .ends_here = true, .at_end = !later};
    }
}

static void picture_begin(tide_picture *p, const tide_trace_model *model)
{
    *p = (tide_picture){.model = model};
    p->begin_ns = p->end_ns = model->event_count > 0 ? model->events[0].begin_ns : 0;
    p->span_of = tide_arrays_add(&p->memory, model->event_count, sizeof *p->span_of);
    for (uint64_t i = 0; i < model->event_count && !p->memory.lacks; i++) {
        p->span_of[i] = TIDE_TRACE_NONE;
        if (model->events[i].end_ns > p->end_ns)
            p->end_ns = model->events[i].end_ns;
    }
    for (int i = 0; i < TIDE_COUNTERS; i++)
        p->last_values[i] = TIDE_TRACE_NONE;
    for (int i = 0; i < TIDE_LANES; i++)
        (void)tide_picture_track_add(p, lanes[i].name, lanes[i].rank << 32, lanes[i].nests);
}

static tide_status model_write(const tide_trace_model *model, FILE *out)
{
    tide_picture p;
    picture_begin(&p, model);
    tide_picture_spans(&p);
    tide_picture_places(&p);
    tide_picture_arrows(&p);
    tide_status status = tide_picture_write(&p, out);
    free(p.tracks);
    free(p.spans);
    free(p.arrows);
    free(p.values);
    tide_arrays_free(&p.memory);
    return status;
}

tide_status tide_trace_pictures_write(const tide_trace_model *const *models, uint32_t count, FILE *out)
{
    tide_status status = TIDE_OK;
    tide_pictures_begin(out);
    for (uint32_t i = 0; i < count && status == TIDE_OK; i++) {
        if (i > 0)
            tide_pictures_next(out);
        status = model_write(models[i], out);
    }
    return status == TIDE_OK ? tide_pictures_end(out) : status;
}
