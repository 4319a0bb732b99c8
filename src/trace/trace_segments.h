/* Where a trace's lines go: its file, or the segment of a step beside it.
 *
 *     FILE            first line, tables, warm-up; at the end what is kept
 *     FILE.step-7     segments: the newest keep + 1 while the run lasts, of which the last is written
 *
 * Lines are gathered in a buffer and written where it is full or whoever writes has nothing else to do. Nothing is
 * allocated after open. After a failure (an errno) all else does nothing. One thread at a time.
 */
#ifndef TIDE_TRACE_TRACE_SEGMENTS_H
#define TIDE_TRACE_TRACE_SEGMENTS_H

#include "src/files/output_file.h"

#include <stddef.h>
#include <stdint.h>

enum { TIDE_SEGMENT_BUFFER_BYTES = 1 << 16 };

typedef struct tide_segments {
    tide_output_file output;
    uint64_t keep;     /* 0: there are no segments */
    uint64_t *numbers; /* of segments that are there: a ring of keep + 1 */
    uint64_t count;    /* of segments begun so far */
    uint64_t first;    /* of those, removed */
    char *path;        /* of a segment: room for the longest number */
    size_t path_bytes;
    int descriptor; /* what is written; -1 in between */
    size_t used;
    int failure; /* errno of the first that failed, 0: none */
    char buffer[TIDE_SEGMENT_BUFFER_BYTES];
} tide_segments;

/* IO names the path; NO_MEMORY. */
tide_status tide_segments_open(tide_segments *segments, const char *path, uint64_t keep);
/* The run begins: empty the file, remove what a killed run left. IO, NO_MEMORY. */
tide_status tide_segments_begin(tide_segments *segments);
void tide_segments_write(tide_segments *segments, const char *text, size_t bytes);
void tide_segments_flush(tide_segments *segments);
/* From here on lines go to a new segment; the oldest goes if it is one too many. False:
 * there are none, or that is the segment which is written. */
bool tide_segments_next(tide_segments *segments, uint64_t number);
/* Bring the newest `keep` into the file; lines go to the file. */
void tide_segments_join(tide_segments *segments);
/* All is in the file, the last line too: write what is left of it, and remove segments. After a failure they stay. */
void tide_segments_remove(tide_segments *segments);
/* Close. Without a begin the file is as before. IO. */
tide_status tide_segments_close(tide_segments *segments);

#endif
