/* Reads one line of a trace, member by member.
 *
 * Every line is a JSON object whose members stand in a known order (docs/trace.md), so the scanner builds no
 * tree and looks nothing up: a member that is missing, unknown, twice there or of another type is simply not
 * the expected one. On a trace of 57 MB (338,969 lines) it fills the whole model in 0.25 s, while jansson
 * takes 1.6 s for a tree of each line. Only texts, of which there are few, go through jansson.
 *
 * Failures stick: after the first one every call does nothing and returns 0, and `status` has the failure,
 * with a message of file, line, fault and right form. So a caller reads a whole line and looks at `status`
 * once.
 */
#ifndef TIDE_TRACE_TRACE_SCAN_H
#define TIDE_TRACE_TRACE_SCAN_H

#include "base/array.h"
#include "src/trace/trace_fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tide_trace_scan {
    const char *path;
    uint64_t line;  /* from 1 */
    const char *at; /* the cursor; a zero follows the line's last byte */
    const char *end;
    const char *kind, *name; /* for messages: "event", "move", say; NULL: not known yet */
    bool comma;              /* the next value needs a comma before it */
    tide_status status;
    tide_arrays *memory; /* for texts */
} tide_trace_scan;

/* A part of the line's text. */
typedef struct tide_scanned {
    const char *at;
    size_t length;
} tide_scanned;

/* No count of a trace is larger, so differences fit an int64_t. */
#define TIDE_SCAN_COUNT_MAX ((uint64_t)INT64_MAX)

/* `text[bytes]` is 0. */
void tide_scan_begin(tide_trace_scan *scan, const char *path, uint64_t line, const char *text, size_t bytes);

/* The name of the line's first member. The member stays unread. */
tide_scanned tide_scan_first(tide_trace_scan *scan);

/* Each of these reads the next member, which must be `name`; NULL: the next value of a list. */
uint64_t tide_scan_count(tide_trace_scan *scan, const char *name, uint64_t most);
bool tide_scan_is_null(tide_trace_scan *scan, const char *name); /* false: it has read nothing */
double tide_scan_real(tide_trace_scan *scan, const char *name);  /* NAN for null */
bool tide_scan_bool(tide_trace_scan *scan, const char *name);
/* A text as it stands between its quotes. */
tide_scanned tide_scan_raw(tide_trace_scan *scan, const char *name);
/* A text without its escapes, kept in `memory`; "" once the line is refused. */
const char *tide_scan_text(tide_trace_scan *scan, const char *name);
/* The number of one of the words. */
uint32_t tide_scan_word(tide_trace_scan *scan, const char *name, tide_trace_words words);
/* A number below `count`. A message calls the numbered things by the plural noun `what`, such as "ops". */
uint32_t tide_scan_number(tide_trace_scan *scan, const char *name, uint32_t count, const char *what);
/* Refuse the line if `number` is not below `count`. `name` NULL: it stands in a list. */
void tide_scan_number_check(tide_trace_scan *scan, const char *name, uint32_t number, uint32_t count,
                            const char *what);

/* Make space for one more item in an array of `count` items of `bytes` bytes. `list` is the address of the
 * pointer to the array. False, and the line refused: no memory. */
bool tide_scan_reserve(tide_trace_scan *scan, void *list, uint64_t count, size_t bytes);

void tide_scan_list_begin(tide_trace_scan *scan, const char *name);
bool tide_scan_list_goes_on(tide_trace_scan *scan); /* false: it has read the list's end, or failed */
/* Read the object's end, which must be the line's end, too. */
void tide_scan_end(tide_trace_scan *scan);

/* Copy the begin of the value at the cursor to `text`, without control characters, for a message. Returns
 * `text`.
 */
enum { TIDE_SCAN_SHOWN_BYTES = 36 };
const char *tide_scan_shown(const tide_trace_scan *scan, char text[TIDE_SCAN_SHOWN_BYTES]);

/* Refuse the line: "PATH:LINE: WHAT: " and the message. The first failure stands. */
void tide_scan_refuse(tide_trace_scan *scan, const char *format, ...) TIDE_PRINTF(2, 3);
/* Refuse the line because there is no memory. */
void tide_scan_no_memory(tide_trace_scan *scan);

bool tide_scanned_is(tide_scanned piece, const char *word);

#endif
