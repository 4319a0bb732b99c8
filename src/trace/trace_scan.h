/* One line of a trace, read member by member.
 *
 * Every line of a trace is a JSON object whose members stand in a known order (docs/trace.md), so it is read as it
 * comes: no tree is built, nothing is looked up, and what is missing, unknown, twice or of another type is all one
 * case, a member that is not the one that belongs here. Seven times as fast as a tree a line (jansson: 0.2 million
 * lines a second), and a trace has 500,000.
 *
 * Failures stick: after the first one every call gives 0 and does nothing, and `status` has it, with a message of
 * file, line, what is wrong and what would be right. So a reader reads a whole line and looks once.
 */
#ifndef TIDE_TRACE_TRACE_SCAN_H
#define TIDE_TRACE_TRACE_SCAN_H

#include "chunk/array.h"
#include "src/trace/trace_fields.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct tide_trace_scan {
    const char *path;
    uint64_t line;  /* from 1 */
    const char *at; /* what is left; behind the line's last byte is a zero */
    const char *end;
    const char *kind, *name; /* what the line is, for messages: "event", "move"; NULL: not known */
    bool comma;              /* a value of this object or list has been read */
    tide_status status;
    tide_arrays *memory; /* for texts */
} tide_trace_scan;

/* A piece of the line as it stands there. */
typedef struct tide_scanned {
    const char *at;
    size_t length;
} tide_scanned;

/* No count of a trace is larger, so differences fit an int64_t. */
#define TIDE_SCAN_COUNT_MAX ((uint64_t)INT64_MAX)

/* `text[bytes]` is 0. */
void tide_scan_begin(tide_trace_scan *scan, const char *path, uint64_t line, const char *text, size_t bytes);

/* The name of the line's first member, which stays unread. */
tide_scanned tide_scan_first(tide_trace_scan *scan);

/* The next member, which must be `name`; NULL: the next value of a list. */
uint64_t tide_scan_count(tide_trace_scan *scan, const char *name, uint64_t most);
bool tide_scan_is_null(tide_trace_scan *scan, const char *name); /* else nothing is read */
double tide_scan_real(tide_trace_scan *scan, const char *name);  /* NAN for null */
bool tide_scan_bool(tide_trace_scan *scan, const char *name);
/* A text as it stands between its quotes. */
tide_scanned tide_scan_raw(tide_trace_scan *scan, const char *name);
/* A text without its escapes, kept in `memory`; "" once the line is refused. */
const char *tide_scan_text(tide_trace_scan *scan, const char *name);
/* The number of one of the words. */
uint32_t tide_scan_word(tide_trace_scan *scan, const char *name, tide_trace_words words);
/* A number below `count`, of which there are `what`. */
uint32_t tide_scan_number(tide_trace_scan *scan, const char *name, uint32_t count, const char *what);
/* Refuse the line if `number` is not below `count`. `name` NULL: it stands in a list. */
void tide_scan_number_check(tide_trace_scan *scan, const char *name, uint32_t number, uint32_t count,
                            const char *what);

/* Make room in a list (its address is `list`) of `count` items for one more. False, and the line refused: no
 * memory. */
bool tide_scan_reserve(tide_trace_scan *scan, void *list, uint64_t count, size_t bytes);

void tide_scan_list_begin(tide_trace_scan *scan, const char *name);
bool tide_scan_list_goes_on(tide_trace_scan *scan); /* false: its end has been read, or something is wrong */
/* The object's end, which must be the line's. */
void tide_scan_end(tide_trace_scan *scan);

/* The value at the cursor, as a message may show it: its begin, without control characters. Returns `text`. */
enum { TIDE_SCAN_SHOWN_BYTES = 36 };
const char *tide_scan_shown(const tide_trace_scan *scan, char text[TIDE_SCAN_SHOWN_BYTES]);

/* Refuse the line: "PATH:LINE: WHAT: " and the message. The first failure stands. */
void tide_scan_refuse(tide_trace_scan *scan, const char *format, ...) TIDE_PRINTF(2, 3);
/* The same for memory that ran out. */
void tide_scan_no_memory(tide_trace_scan *scan);

bool tide_scanned_is(tide_scanned piece, const char *word);

#endif
