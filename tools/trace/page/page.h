/* The page that `tidepool trace html` writes: the two texts between which a trace goes. embed.py makes them of this
 * folder's files and of d3, where the build found it. */
#ifndef TIDE_TOOLS_TRACE_PAGE_H
#define TIDE_TOOLS_TRACE_PAGE_H

#include <stddef.h>

extern const unsigned char tide_trace_page_head[];
extern const size_t tide_trace_page_head_bytes;
extern const unsigned char tide_trace_page_tail[];
extern const size_t tide_trace_page_tail_bytes;

#endif
