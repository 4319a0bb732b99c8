/* A communicator connects the ranks that train one model together (data parallel, ZeRO). Each rank has
 * a pool of its own, which takes the rank's tide_comm (tide_pool_options.ranks.comm).
 *
 *     tide_comm_loop_create     the ranks are threads of this process
 *     tide_comm_socket_create   the ranks are processes, on one host or on several, connected by TCP
 *
 * All ranks make the same calls in the same order, with the same sizes; so do their pools. A rank that calls
 * something else is noticed: the call fails on every rank.
 *
 * Failure is final, since ranks that have lost one of them can't finish a sum. The first failure stays: every
 * later call returns it, and the other ranks' calls, also those that wait already, return PEER with a message
 * that names the rank. The pools fail with it; a run goes on from its last checkpoint.
 *
 * Threads. The pool's collectives run on a thread of the pool, at the same time as one thread of the caller
 * calls tide_comm_exchange and tide_comm_barrier. Any thread may call tide_comm_abort.
 */
#ifndef TIDEPOOL_COMM_H
#define TIDEPOOL_COMM_H

#include "tidepool/status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tide_comm tide_comm;

enum { TIDE_RANKS_MAX = 1024, TIDE_EXCHANGE_MAX_BYTES = 1 << 20 };

/* Make the communicators of `ranks` ranks (1 to TIDE_RANKS_MAX) in one process: comms[r] is rank r's, for a
 * thread of its own. With one rank it needs no other thread. The caller destroys each. ARGUMENT, NO_MEMORY:
 * nothing was made. */
TIDE_API tide_status tide_comm_loop_create(uint32_t ranks, tide_comm **comms);

/* A rank tells the others its phase. In the phases behind COMPUTING, which may take any time, the others wait
 * for it without limit. */
typedef enum tide_comm_phase {
    TIDE_PHASE_COMPUTING = 0,
    TIDE_PHASE_READING, /* data */
    TIDE_PHASE_LOADING, /* a checkpoint or weights */
    TIDE_PHASE_SAVING,
    TIDE_PHASE_PINNING, /* memory */
    TIDE_PHASE_COUNT,
} tide_comm_phase;

/* Receives a line for people about ranks that the others wait for. A thread of the communicator calls it; it
 * must not call the communicator. */
typedef void (*tide_comm_tell)(void *context, const char *line);

/* How the processes of a run find each other. Rank 0 listens; each other rank connects to it. Ranks then
 * connect with each other, on ports that the systems choose. */
typedef struct tide_comm_socket_options {
    uint32_t rank, ranks;
    /* rank 0's host: an IPv4 or IPv6 address, or a name, which takes the first address that answers. Rank 0
     * binds it. NULL: 127.0.0.1 */
    const char *address;
    uint16_t port; /* at which rank 0 listens, not 0 */
    int listener;  /* of rank 0: a socket that listens there already, which the comm closes. 0: none */
    /* a descriptor, such as a pipe's: the start is given up when it can be read or its other side is closed.
     * 0: none */
    int give_up;
    /* a text that all ranks of the run have and no other program: a connection without it is dropped. NULL:
     * "" */
    const char *token;
    /* a number that must be equal on all ranks, such as a hash of the model and its options; a rank with
     * another is refused by name. The library's version and the machine's byte order are compared, too */
    uint64_t fingerprint;
    double timeout_seconds; /* for the whole start; above 0. 0: 60 */
    /* how long a rank in a collective waits for one that has not come to it, or that nothing has been heard
     * of: then all fail. Time in which all processes were suspended does not count. 0: 60 */
    double collective_timeout_seconds;
    /* how fast this rank sends in gathers and reduces at most, to try out a slow network. 0: no limit */
    double bytes_per_second;
    tide_comm_tell tell; /* may be NULL. After each minute of waiting for a rank that loads, say */
    void *tell_context;
} tide_comm_socket_options;

/* Connect this process with the others; returns when all are there. ARGUMENT; PEER: a rank did not come in
 * time (the message names those that are missing), two have one number, one has another fingerprint, version
 * or count of ranks, or the start was given up; NO_MEMORY; IO: the port is taken or the address is not this
 * host's. */
TIDE_API tide_status tide_comm_socket_create(const tide_comm_socket_options *options, tide_comm **comm);

/* Close the communicator; NULL is allowed. The pool that uses it must have been destroyed. Waits for at most
 * some seconds until the other ranks have read what this one sent. */
TIDE_API void tide_comm_destroy(tide_comm *comm);

/* This rank's number, from 0, and the count of ranks. NULL: rank 0 of 1. */
TIDE_API uint32_t tide_comm_rank(const tide_comm *comm);
TIDE_API uint32_t tide_comm_ranks(const tide_comm *comm);

/* Give `bytes` bytes (at most TIDE_EXCHANGE_MAX_BYTES) to all ranks: all + r * bytes gets those of rank r.
 * For losses, times, flags. `mine` may lie in `all`. Returns when all ranks' bytes are there. PEER;
 * ARGUMENT. */
TIDE_API tide_status tide_comm_exchange(tide_comm *comm, const void *mine, size_t bytes, void *all);
/* Give rank 0's `bytes` bytes at `data` to all other ranks' `data`. Allocates. Statuses of
 * tide_comm_exchange, NO_MEMORY. */
TIDE_API tide_status tide_comm_broadcast(tide_comm *comm, void *data, size_t bytes);
/* Return when all ranks have called this. */
TIDE_API tide_status tide_comm_barrier(tide_comm *comm);

/* Tell the other ranks what this one does now, for the message with which they fail if it never comes: its
 * phase and a few words (copied, at most 63 bytes), such as "computes block 3". Costs next to nothing. */
TIDE_API void tide_comm_doing(tide_comm *comm, tide_comm_phase phase, const char *words);

/* Give the run up on all ranks, unless it has failed already: `reason` (one line) is in the message that each
 * gets. Does not wait, and leaves this thread's message as it is. */
TIDE_API void tide_comm_abort(tide_comm *comm, const char *reason);
/* The failure, TIDE_OK if there is none. */
TIDE_API tide_status tide_comm_failure(tide_comm *comm);

#ifdef __cplusplus
}
#endif

#endif
