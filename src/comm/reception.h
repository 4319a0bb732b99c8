/* Where other ranks connect to this one at the start. Strangers connect, too, and some stay silent: so all
 * connections that have not said their handshake yet wait at once, each for its own bytes. If there are too
 * many of them, the oldest is closed, since ranks speak at once.
 *
 * A connection with the run's token gets this rank's handshake as an answer; then both sides check the
 * other's, and both can name a difference. */
#ifndef TIDE_COMM_RECEPTION_H
#define TIDE_COMM_RECEPTION_H

#include "src/comm/mesh.h"

enum { TIDE_VISITORS_MAX = 128 };

typedef struct tide_visitor {
    int connection;
    uint32_t got_bytes;
    tide_handshake handshake;
    tide_tcp_address from;
} tide_visitor;

typedef struct tide_reception {
    tide_mesh *mesh; /* which gets the connections */
    const tide_handshake *own;
    int listener, give_up;       /* give_up: tide_comm_socket_options'; -1: none */
    uint64_t deadline;           /* of the start; that of a rank which has less time makes it earlier */
    tide_tcp_address *addresses; /* [ranks] where each rank that has come listens; the caller's */
    uint32_t visitor_count;
    tide_visitor visitors[TIDE_VISITORS_MAX]; /* the oldest is the first */
    struct pollfd *polls;                     /* [2 + TIDE_VISITORS_MAX + ranks] */
    bool *ended; /* [ranks] the rank has ended, after it had all connections with this one */
} tide_reception;

/* NO_MEMORY. The listener is the reception's from then on, also on failure. */
tide_status tide_reception_open(tide_reception *reception, tide_mesh *mesh, const tide_handshake *own,
                                int listener, int give_up, uint64_t deadline, tide_tcp_address *addresses);
/* Close the listener and all that still wait. */
void tide_reception_close(tide_reception *reception);

/* Take connections until all ranks above this one have one of the channels [first, end). PEER: the message
 * names a rank that differs, one that has given up or closed its connection meanwhile, or the ranks that are
 * missing; IO. */
tide_status tide_reception_run(tide_reception *reception, tide_channel_name first, tide_channel_name end);

#endif
