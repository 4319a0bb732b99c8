/* The page that `tidepool trace html` writes, as two texts; the program writes the trace between them.
 * embed.py makes both from this folder's files and from d3. */
#ifndef TIDE_TOOLS_TRACE_PAGE_H
#define TIDE_TOOLS_TRACE_PAGE_H

#include <stddef.h>

extern const unsigned char tide_trace_page_head[];
extern const size_t tide_trace_page_head_bytes;
extern const unsigned char tide_trace_page_tail[];
extern const size_t tide_trace_page_tail_bytes;

#endif
