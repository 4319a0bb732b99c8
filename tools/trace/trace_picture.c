/* Tracks from top to bottom, and what is known before anything is drawn: see trace_picture.h. */
#include "tools/trace/trace_picture.h"

#include "tools/trace/trace_names.h"

static const struct {
    const char *name;
    uint32_t rank; /* from top to bottom */
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
    [TIDE_LANE_DEVICE_MEMORY] = {"device memory", 10, false},
    [TIDE_LANE_HOST_MEMORY] = {"host memory", 11, false},
    [TIDE_LANE_LINK] = {"link", 12, false},
    [TIDE_LANE_DEVICE_SLOTS] = {"device slots", 13, false},
    [TIDE_LANE_HOST_SLOTS] = {"host slots", 14, false},
};

static void tracks_add(tide_picture *p)
{
    for (int i = 0; i < TIDE_LANES; i++)
        p->tracks[i] = tide_timeline_track(p->timeline, TIDE_TIMELINE_NONE, lanes[i].name, lanes[i].rank,
                                           lanes[i].nests);
}

static void range_find(tide_picture *p)
{
    const tide_trace_model *model = p->model;
    p->begin_ns = model->event_count > 0 ? model->events[0].begin_ns : 0;
    p->end_ns = p->begin_ns;
    for (uint64_t i = 0; i < model->event_count; i++)
        if (model->events[i].end_ns > p->end_ns)
            p->end_ns = model->events[i].end_ns;
}

bool tide_picture_make(tide_picture *p)
{
    const tide_trace_model *model = p->model;
    range_find(p);
    tracks_add(p);
    p->chunk_texts = tide_arrays_add(&p->memory, model->chunk_count, sizeof *p->chunk_texts);
    p->spans = tide_arrays_add(&p->memory, model->event_count, sizeof *p->spans);
    if (p->memory.lacks)
        return false;
    for (uint32_t i = 0; i < model->chunk_count; i++)
        p->chunk_texts[i] = TIDE_TRACE_NONE;
    for (uint64_t i = 0; i < model->event_count; i++)
        p->spans[i] = TIDE_TRACE_NONE;
    return true;
}

uint32_t tide_picture_chunk_text(tide_picture *p, uint32_t chunk)
{
    char text[TIDE_TRACE_NAME_BYTES];
    if (p->chunk_texts[chunk] == TIDE_TRACE_NONE)
        p->chunk_texts[chunk] = tide_timeline_text(p->timeline, tide_trace_chunk_name(p->model, chunk, text));
    return p->chunk_texts[chunk];
}
