/* The collectives of one channel: moves the bytes of a call between this rank and all others at once, in one
 * thread, which sleeps in poll while no connection is ready. Sending, receiving and summing overlap. The
 * memory is allocated at the start; calls allocate nothing. */
#ifndef TIDE_COMM_TRANSFER_H
#define TIDE_COMM_TRANSFER_H

#include "src/comm/link.h"
#include "src/comm/watch.h"

typedef struct tide_transfer {
    tide_mesh *mesh;
    tide_watch *watch;
    tide_channel_name channel;
    double bytes_per_second; /* at which this rank sends at most; 0: no limit */
    uint64_t line_free_ns;   /* with a limit: when the bytes sent so far have left */
    uint64_t calls;          /* so far */
    tide_link *links;        /* [ranks]; this rank's is not used */
    bool *notices_ended;     /* [ranks] the rank sends no notice any more */
    struct pollfd *polls;    /* [2 * ranks] for notices, then the links' */
    tide_tree_input *inputs; /* [ranks] */
    tide_reduce_ring ring;
} tide_transfer;

/* NO_MEMORY: nothing was made. */
tide_status tide_transfer_init(tide_transfer *transfer, tide_mesh *mesh, tide_watch *watch,
                               tide_channel_name channel);
void tide_transfer_fini(tide_transfer *transfer);

/* Send each range from its owner to all other ranks. `of`: an op, NULL for none. PEER. */
tide_status tide_transfer_gather(tide_transfer *transfer, tide_call_kind kind, const char *of,
                                 const tide_comm_range *ranges, uint32_t count);
/* As tide_comm_reduce. */
tide_status tide_transfer_reduce(tide_transfer *transfer, const tide_comm_reduction *reduction);

#endif
