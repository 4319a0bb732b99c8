#include "src/comm/range_cursor.h"

#include <assert.h>

/* Step over the ranges of others and those without bytes. */
static void skip(tide_range_cursor *cursor)
{
    while (cursor->index < cursor->count && (cursor->ranges[cursor->index].owner != cursor->owner ||
                                             cursor->offset == cursor->ranges[cursor->index].bytes)) {
        cursor->index++;
        cursor->offset = 0;
    }
}

tide_range_cursor tide_range_cursor_begin(const tide_comm_range *ranges, uint32_t count, uint32_t owner)
{
    tide_range_cursor cursor = {.ranges = ranges, .count = count, .owner = owner};
    skip(&cursor);
    return cursor;
}

uint32_t tide_range_cursor_blocks(const tide_range_cursor *cursor, struct iovec *blocks, uint32_t most)
{
    tide_range_cursor next = *cursor;
    uint32_t filled = 0;
    for (; filled < most && next.index < next.count; filled++) {
        const tide_comm_range *range = &next.ranges[next.index];
        const uint64_t bytes = range->bytes - next.offset;
        blocks[filled] = (struct iovec){(char *)range->data + next.offset, bytes};
        next.offset = range->bytes;
        skip(&next);
    }
    return filled;
}

void tide_range_cursor_advance(tide_range_cursor *cursor, uint64_t bytes)
{
    while (bytes > 0) {
        assert(cursor->index < cursor->count);
        const uint64_t left = cursor->ranges[cursor->index].bytes - cursor->offset;
        const uint64_t step = bytes < left ? bytes : left;
        cursor->offset += step;
        bytes -= step;
        skip(cursor);
    }
}
