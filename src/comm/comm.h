/* The interface of communicators for the pool: collectives over ranges of memory, each of which one rank
 * owns. A communicator is a table of functions with two implementations:
 *
 *   loop     threads of one process; each reads the others' memory (loop.c)
 *   socket   processes connected by TCP (socket.c)
 *
 * Both sum a rank's part of a gradient in the order of tree.h, so the bits do not depend on which one it is,
 * nor on how ranges are cut and owned.
 *
 * The functions here block until the collective is over on this rank: its own ranges are there, and the other
 * ranks have read what they need of this rank's memory. One thread at a time calls gather and reduce (the
 * pool's collective stream), one at a time exchange; abort wakes both. Calls base/ only.
 */
#ifndef TIDE_COMM_COMM_H
#define TIDE_COMM_COMM_H

#include "tidepool/comm.h"
#include "tidepool/types.h"

#include <pthread.h>
#include <stdbool.h>

/* A part of a collective. All ranks pass ranges with the same bytes and owners in the same order; `data` is
 * this rank's. Of fp32 sums bytes are a multiple of 4. Ranges of 0 bytes are allowed. */
typedef struct tide_comm_range {
    void *data;
    uint64_t bytes;
    uint32_t owner; /* a rank */
} tide_comm_range;

typedef struct tide_comm_reduction {
    const char *of;                /* an op, for messages; the text lives during the call */
    const tide_comm_range *ranges; /* of fp32 sums */
    uint32_t count;
    /* FP32; BF16: all sums that ranks pass are bf16 values, which travel in half the bytes */
    tide_dtype travels_as;
    /* memory for sums that arrive; at least 2 * ranks * 4 KiB, 64-byte aligned. Its size changes no bit */
    void *scratch;
    uint64_t scratch_bytes;
} tide_comm_reduction;

typedef struct tide_comm_ops {
    tide_status (*gather)(tide_comm *comm, const char *of, const tide_comm_range *ranges, uint32_t count);
    tide_status (*reduce)(tide_comm *comm, const tide_comm_reduction *reduction);
    tide_status (*exchange)(tide_comm *comm, const void *mine, size_t bytes, void *all);
    void (*doing)(tide_comm *comm, tide_comm_phase phase, const char *words); /* NULL: not told */
    /* The comm has failed: make all running and later waits of this rank return, and tell the other ranks,
     * which fail with `reason`. Called once at most, on any thread. */
    void (*abort)(tide_comm *comm, const char *reason);
    bool (*has_told)(tide_comm *comm, uint32_t rank); /* NULL: ranks are threads of this process */
    void (*destroy)(tide_comm *comm);                 /* frees the comm */
} tide_comm_ops;

/* Each implementation's struct begins with this. */
struct tide_comm {
    const tide_comm_ops *ops;
    uint32_t rank, ranks;
    pthread_mutex_t lock;
    tide_status failure; /* [lock] the first one */
    char message[1024];  /* [lock] the failure's */
};

/* Initialize and destroy the part that all have. */
void tide_comm_init(tide_comm *comm, const tide_comm_ops *ops, uint32_t rank, uint32_t ranks);
void tide_comm_fini(tide_comm *comm);

/* Keep the status and this thread's message as the comm's failure, unless it has one, and abort then. Returns
 * the failure that the comm has, as tide_comm_failure does. */
tide_status tide_comm_fail(tide_comm *comm, tide_status status);

/* After a failure of the comm: has the other rank told this one that it fails, too? Waits some seconds for
 * that, unless that rank has ended. Leaves this thread's message as it is. */
bool tide_comm_has_told(tide_comm *comm, uint32_t rank);

/* Send each range from its owner to all other ranks. `of`: as in a reduction. PEER, or the failure that the
 * comm has. */
tide_status tide_comm_gather(tide_comm *comm, const char *of, const tide_comm_range *ranges, uint32_t count);
/* Sum each range over all ranks, in the order of tree.h, into its owner's memory. Ranges that this rank does
 * not own keep its own sums. Statuses as of gather. */
tide_status tide_comm_reduce(tide_comm *comm, const tide_comm_reduction *reduction);

#endif
