/* One turn of next(): what may be done in it. The manager begins it with everything allowed, the open request narrows it. */
#ifndef TIDE_CHUNK_TURN_H
#define TIDE_CHUNK_TURN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct tide_turn {
    bool in_busy, out_busy; /* the link's two ways */
    bool request_yields;    /* the request waits for an update or a restore: what it has on the device may be taken */
    uint32_t reserved;      /* free device slots that the request will take */
    bool gathers;           /* tasks may move chunks for what no request waits for */
    bool prefetches;
} tide_turn;

#endif
