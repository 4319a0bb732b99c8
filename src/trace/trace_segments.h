/* The files that hold a trace's lines: its own file and, beside it, the segments, one a step.
 *
 *     FILE            first line, tables, warm-up; at the end also the kept segments
 *     FILE.step-7     segments: the newest keep + 1 while the run lasts; the last one is being written
 *
 * Lines are collected in a buffer, which is written when it is full or when the writer has nothing else to
 * do. No call after open allocates memory. After a failure (an errno) the other calls do nothing. One thread
 * at a time.
 */
#ifndef TIDE_TRACE_TRACE_SEGMENTS_H
#define TIDE_TRACE_TRACE_SEGMENTS_H

#include "base/output_file.h"

#include <stddef.h>
#include <stdint.h>

enum { TIDE_SEGMENT_BUFFER_BYTES = 1 << 16 };

typedef struct tide_segments {
    tide_output_file output;
    uint64_t keep;     /* 0: there are no segments */
    uint64_t *numbers; /* numbers of the segments that exist: a ring of keep + 1 */
    uint64_t count;    /* segments begun so far */
    uint64_t first;    /* segments removed so far */
    char *path;        /* path of a segment, with space for the longest number */
    size_t path_bytes;
    int descriptor; /* of the file or segment to write to; -1: none is open */
    size_t used;
    int failure; /* errno of the first failure; 0: none */
    char buffer[TIDE_SEGMENT_BUFFER_BYTES];
} tide_segments;

/* Open the file. IO names the path; NO_MEMORY. */
tide_status tide_segments_open(tide_segments *segments, const char *path, uint64_t keep);
/* The run begins: empty the file and remove segments that an earlier run left. IO, NO_MEMORY. */
tide_status tide_segments_begin(tide_segments *segments);
void tide_segments_write(tide_segments *segments, const char *text, size_t bytes);
void tide_segments_flush(tide_segments *segments);
/* Begin a new segment, to which further lines go, and remove the oldest if there are too many. False: there
 * are no segments, or the step `number` is being written already. */
bool tide_segments_next(tide_segments *segments, uint64_t number);
/* Append the newest `keep` segments to the file, to which further lines go. */
void tide_segments_join(tide_segments *segments);
/* Call when all lines are in the file or in the buffer: write the buffer, then remove the segments. After a
 * failure the segments stay. */
void tide_segments_remove(tide_segments *segments);
/* Close the file. Without a begin its content is the same as before open. IO. */
tide_status tide_segments_close(tide_segments *segments);

#endif
