/* A timeline for ui.perfetto.dev: tracks with spans, instants and counters, arrows between spans, notes; written as one
 * perfetto.protos.Trace (https://perfetto.dev/docs/reference/synthetic-track-event).
 *
 * Tracks are a tree under one process, in order of `rank` beside each other; one without content is left out. Spans
 * of a track are added in any order. Where they overlap, the track gets more lanes, tracks of the same name, which
 * the UI draws as rows of one; on a nesting track a span that lies within another is drawn below it instead. So on
 * every lane spans nest.
 *
 * Of spans that begin at one time, those of tracks that were made earlier stand first in the file.
 *
 * Running out of memory is remembered and told by tide_timeline_write.
 */
#ifndef TIDE_TOOLS_TIMELINE_H
#define TIDE_TOOLS_TIMELINE_H

#include "tidepool/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TIDE_TIMELINE_NONE UINT32_MAX

typedef struct tide_timeline tide_timeline;
typedef struct tide_timeline_notes tide_timeline_notes;

/* Tells a span's notes by tide_timeline_note_..., when it is written: `source` is what the span was added with. */
typedef void (*tide_timeline_describe)(void *context, uint64_t source, tide_timeline_notes *notes);

typedef enum tide_timeline_unit {
    TIDE_TIMELINE_COUNT = 0,
    TIDE_TIMELINE_BYTES,
} tide_timeline_unit;

/* `process` and its number, which are this timeline's alone if several are put together; `describe` may be NULL. NULL: no
 * memory. */
tide_timeline *tide_timeline_make(const char *process, uint32_t number, tide_timeline_describe describe,
                                  void *context);
void tide_timeline_free(tide_timeline *timeline); /* NULL: allowed */

/* The text's number, the same for equal texts. */
uint32_t tide_timeline_text(tide_timeline *timeline, const char *text);

/* Numbers from 0 on in order of calls. `parent`: a track, or NONE. */
uint32_t tide_timeline_track(tide_timeline *timeline, uint32_t parent, const char *name, uint32_t rank,
                             bool nests);
/* Counters of one `axis`, not NULL, are drawn to one scale. */
uint32_t tide_timeline_counter(tide_timeline *timeline, uint32_t parent, const char *name, uint32_t rank,
                               tide_timeline_unit unit, const char *axis);

/* The span's number. end_ns >= begin_ns. */
uint32_t tide_timeline_span(tide_timeline *timeline, uint32_t track, uint64_t begin_ns, uint64_t end_ns,
                            uint32_t text, uint64_t source);
uint32_t tide_timeline_instant(tide_timeline *timeline, uint32_t track, uint64_t t_ns, uint32_t text,
                               uint64_t source);
/* In order of time; of several at one time the last counts. */
void tide_timeline_value(tide_timeline *timeline, uint32_t counter, uint64_t t_ns, uint64_t value);

/* From the one span to the other, which ends later than the first begins. */
void tide_timeline_arrow(tide_timeline *timeline, uint32_t from, uint32_t to);

void tide_timeline_note_count(tide_timeline_notes *notes, const char *name, uint64_t value);
void tide_timeline_note_text(tide_timeline_notes *notes, const char *name, const char *value);
void tide_timeline_note_bool(tide_timeline_notes *notes, const char *name, bool value);

/* NO_MEMORY, IO; the message does not name the file. Bytes may still be in the stream's buffer. Once. */
TIDE_NODISCARD tide_status tide_timeline_write(tide_timeline *timeline, FILE *out);

#endif
