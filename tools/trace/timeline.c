/* Tracks, spans, arrows and values stand in arrays in order of calls; texts are found by their hash. */
#include "tools/trace/timeline_internal.h"

#include "chunk/array.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_BUCKETS = 256 };

/* Makes room for one more in timeline->NAMEs; false, and the timeline has failed, without memory. */
#define GROW(timeline, noun)                                                                                 \
    grow(timeline, (void **)&(timeline)->noun##s, (timeline)->noun##_count, &(timeline)->noun##_capacity,    \
         sizeof *(timeline)->noun##s)

static bool grow(tide_timeline *timeline, void **array, uint32_t count, uint32_t *capacity, size_t bytes)
{
    if (timeline->failed || !tide_array_grow(array, count, capacity, bytes))
        timeline->failed = true;
    return !timeline->failed;
}

tide_timeline *tide_timeline_make(const char *process, uint32_t number, tide_timeline_describe describe,
                                  void *context)
{
    tide_timeline *timeline = calloc(1, sizeof *timeline);
    if (timeline == NULL)
        return NULL;
    timeline->process = strdup(process);
    if (timeline->process == NULL) {
        free(timeline);
        return NULL;
    }
    timeline->number = number;
    timeline->describe = describe;
    timeline->context = context;
    return timeline;
}

void tide_timeline_free(tide_timeline *timeline)
{
    if (timeline == NULL)
        return;
    for (uint32_t i = 0; i < timeline->text_count; i++)
        free(timeline->texts[i].text);
    for (uint32_t i = 0; i < timeline->track_count; i++)
        free(timeline->tracks[i].name);
    free(timeline->texts);
    free(timeline->buckets);
    free(timeline->tracks);
    free(timeline->spans);
    free(timeline->arrows);
    free(timeline->values);
    free(timeline->process);
    free(timeline);
}

/* ---- texts ---- */

static uint32_t hash_of(const char *content)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *content != '\0'; content++)
        hash = (hash ^ (uint8_t)*content) * 16777619u;
    return hash;
}

/* Where the text is, or would be. */
static uint32_t *bucket_of(const tide_timeline *timeline, const char *content)
{
    uint32_t at = hash_of(content) & (timeline->bucket_count - 1);
    while (timeline->buckets[at] != TIDE_TIMELINE_NONE &&
           strcmp(timeline->texts[timeline->buckets[at]].text, content) != 0)
        at = (at + 1) & (timeline->bucket_count - 1);
    return &timeline->buckets[at];
}

static bool buckets_grow(tide_timeline *timeline)
{
    if (2 * (uint64_t)timeline->text_count < timeline->bucket_count)
        return true;
    const uint32_t count = timeline->bucket_count > 0 ? 2 * timeline->bucket_count : FIRST_BUCKETS;
    uint32_t *buckets = malloc(count * sizeof *buckets);
    if (buckets == NULL) {
        timeline->failed = true;
        return false;
    }
    memset(buckets, 0xff, count * sizeof *buckets);
    free(timeline->buckets);
    timeline->buckets = buckets;
    timeline->bucket_count = count;
    for (uint32_t i = 0; i < timeline->text_count; i++)
        *bucket_of(timeline, timeline->texts[i].text) = i;
    return true;
}

uint32_t tide_timeline_text(tide_timeline *timeline, const char *content)
{
    if (!buckets_grow(timeline))
        return 0;
    uint32_t *bucket = bucket_of(timeline, content);
    if (*bucket != TIDE_TIMELINE_NONE)
        return *bucket;
    char *copy = strdup(content);
    if (copy == NULL || !GROW(timeline, text)) {
        free(copy);
        timeline->failed = true;
        return 0;
    }
    timeline->texts[timeline->text_count] = (text){.text = copy};
    *bucket = timeline->text_count++;
    return *bucket;
}

/* ---- tracks ---- */

static uint32_t track_add(tide_timeline *timeline, track added, const char *name)
{
    added.name = strdup(name);
    assert(added.parent == TIDE_TIMELINE_NONE || added.parent < timeline->track_count || timeline->failed);
    if (added.name == NULL || !GROW(timeline, track)) {
        free(added.name);
        timeline->failed = true;
        return 0;
    }
    timeline->tracks[timeline->track_count] = added;
    return timeline->track_count++;
}

uint32_t tide_timeline_track(tide_timeline *timeline, uint32_t parent, const char *name, uint32_t rank,
                             bool nests)
{
    return track_add(timeline, (track){.parent = parent, .rank = rank, .nests = nests}, name);
}

uint32_t tide_timeline_counter(tide_timeline *timeline, uint32_t parent, const char *name, uint32_t rank,
                               tide_timeline_unit unit, const char *axis)
{
    return track_add(
        timeline, (track){.parent = parent, .rank = rank, .counts = true, .unit = unit, .axis = axis}, name);
}

/* The ones above it are drawn if it is. */
static void track_use(tide_timeline *timeline, uint32_t number)
{
    for (; number != TIDE_TIMELINE_NONE && !timeline->tracks[number].used;
         number = timeline->tracks[number].parent)
        timeline->tracks[number].used = true;
}

/* ---- what is on them ---- */

static uint32_t span_add(tide_timeline *timeline, span added)
{
    assert(added.end_ns >= added.begin_ns);
    if (!GROW(timeline, span))
        return 0;
    assert(added.track < timeline->track_count && !timeline->tracks[added.track].counts);
    track_use(timeline, added.track);
    timeline->spans[timeline->span_count] = added;
    return timeline->span_count++;
}

uint32_t tide_timeline_span(tide_timeline *timeline, uint32_t number, uint64_t begin_ns, uint64_t end_ns,
                            uint32_t name, uint64_t source)
{
    return span_add(
        timeline,
        (span){.begin_ns = begin_ns, .end_ns = end_ns, .source = source, .track = number, .text = name});
}

uint32_t tide_timeline_instant(tide_timeline *timeline, uint32_t number, uint64_t t_ns, uint32_t name,
                               uint64_t source)
{
    return span_add(timeline, (span){.begin_ns = t_ns,
                                     .end_ns = t_ns,
                                     .source = source,
                                     .track = number,
                                     .text = name,
                                     .instant = true});
}

void tide_timeline_value(tide_timeline *timeline, uint32_t counter, uint64_t t_ns, uint64_t number)
{
    if (!GROW(timeline, value))
        return;
    assert(counter < timeline->track_count && timeline->tracks[counter].counts);
    track_use(timeline, counter);
    timeline->values[timeline->value_count++] = (value){.t_ns = t_ns, .value = number, .counter = counter};
}

void tide_timeline_arrow(tide_timeline *timeline, uint32_t from, uint32_t to)
{
    const uint32_t number = timeline->arrow_count / 2;
    if (!GROW(timeline, arrow))
        return;
    assert(from < timeline->span_count && to < timeline->span_count && from != to);
    timeline->arrows[timeline->arrow_count++] = (arrow){.span = from, .number = number};
    if (!GROW(timeline, arrow))
        return;
    const bool later = timeline->spans[to].begin_ns > timeline->spans[from].begin_ns;
    timeline->arrows[timeline->arrow_count++] =
        (arrow){.span = to, .number = number, .ends_here = true, .at_end = !later};
}
