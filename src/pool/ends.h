/* How far the device has come with the caller's ops, who may be far ahead of it. Owned by the engine; [lock]. Calls order. */
#ifndef TIDE_POOL_ENDS_H
#define TIDE_POOL_ENDS_H

#include "src/pool/order.h"

enum { TIDE_OP_ENDS_MAX = 256 }; /* ops that the caller is ahead; older ones count as the oldest */

typedef struct tide_op_ends {
    uint64_t count;                     /* of ops since seal, as the manager counts them */
    uint64_t passed;                    /* of those, seen to be over on the compute stream */
    uint64_t numbers[TIDE_OP_ENDS_MAX]; /* a ring: their last pieces of the compute stream */
} tide_op_ends;

/* An op has ended with what has been recorded on the compute stream last. */
static inline void tide_op_ends_add(tide_op_ends *ends, const tide_order *order)
{
    ends->numbers[++ends->count % TIDE_OP_ENDS_MAX] = order->recorded[TIDE_STREAM_COMPUTE];
}

/* See which have passed. The engine's thread. */
tide_status tide_op_ends_look(tide_op_ends *ends, tide_order *order);

#endif
