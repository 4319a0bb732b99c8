/* A place in the ranges of one owner, as if they were one after the other: where the next bytes are sent
 * from, received to or summed. */
#ifndef TIDE_COMM_RANGE_CURSOR_H
#define TIDE_COMM_RANGE_CURSOR_H

#include "src/comm/comm.h"

#include <sys/uio.h>

typedef struct tide_range_cursor {
    const tide_comm_range *ranges;
    uint32_t count, owner;
    uint32_t index;  /* of a range of the owner; count: at the end */
    uint64_t offset; /* in it, less than its bytes */
} tide_range_cursor;

/* A cursor before the first byte. */
tide_range_cursor tide_range_cursor_begin(const tide_comm_range *ranges, uint32_t count, uint32_t owner);

/* Fill in up to `most` blocks of memory that come next, and return their number. */
uint32_t tide_range_cursor_blocks(const tide_range_cursor *cursor, struct iovec *blocks, uint32_t most);

void tide_range_cursor_advance(tide_range_cursor *cursor, uint64_t bytes);

#endif
