/* The connections of one rank with all others: one for each channel and rank. A mesh also tells the other
 * ranks that this one has given up, and hears it from them.
 *
 * A rank gives up while its connections stand in the middle of messages, so it can't send the reason there.
 * It sends a notice on a channel of its own, TIDE_CHANNEL_NOTICE, and nothing else ever goes there. Every
 * wait of a collective polls that channel, too, and looks at a notice without taking it away, since two
 * threads may wait. A rank that hears of a failure passes on the notice of the rank that failed first.
 *
 * A rank that gives up then shuts down the other channels, which also wakes its own threads that wait for
 * them. Other ranks may see their end before the notice; a rank that finds a connection closed therefore
 * waits some time for a notice. */
#ifndef TIDE_COMM_MESH_H
#define TIDE_COMM_MESH_H

#include "src/comm/handshake.h"
#include "src/comm/tcp.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { TIDE_CALL_TEXT_BYTES = 160 }; /* of a call's name in messages */

typedef struct tide_notice {
    uint32_t rank; /* that has given up */
    char reason[956];
} tide_notice;

typedef struct tide_mesh {
    uint32_t rank, ranks;
    int *connections;     /* [TIDE_CHANNELS * ranks], channel by channel; -1: none */
    tide_tcp_host *hosts; /* [ranks] */
    atomic_bool given_up;
    struct pollfd *polls; /* [TIDE_CHANNELS * ranks], for the end */
    pthread_mutex_t lock;
    bool heard;        /* [lock] another rank has given up */
    tide_notice first; /* [lock] the notice that came first */
} tide_mesh;

/* Make a mesh without connections. NO_MEMORY: nothing was made. */
tide_status tide_mesh_init(tide_mesh *mesh, uint32_t rank, uint32_t ranks);
/* Close all connections. */
void tide_mesh_fini(tide_mesh *mesh);

/* The connection with another rank; -1: there is none yet. */
int tide_mesh_connection(const tide_mesh *mesh, tide_channel_name channel, uint32_t rank);
/* Hand a connection over to the mesh, which has none with this rank for the channel. */
void tide_mesh_keep(tide_mesh *mesh, tide_channel_name channel, uint32_t rank, int connection);

/* Has the rank sent a notice, or does it within some seconds? */
bool tide_mesh_has_told(const tide_mesh *mesh, uint32_t rank);

typedef enum tide_mesh_news {
    TIDE_MESH_NO_NEWS,
    TIDE_MESH_ENDED, /* the rank sends no notice any more */
    TIDE_MESH_FAILED /* this thread's message says why */
} tide_mesh_news;

/* Look for a notice from the rank, whose connection poll reported. */
tide_mesh_news tide_mesh_look(tide_mesh *mesh, uint32_t rank);

/* The failure of a rank whose connection ended with `error` (0: it was closed) during `call`: PEER, with the
 * notice of the rank if one comes. */
tide_status tide_mesh_lost(tide_mesh *mesh, uint32_t rank, int error, const char *call);

/* Give up: tell the other ranks and end this rank's waits. Does not wait. Any thread, once. */
void tide_mesh_give_up(tide_mesh *mesh, const char *reason);

/* Say to the other ranks that this one sends no more, and wait for some seconds until they have said so, too.
 * Else this process, and its container, could end before the bytes that it sent have arrived. */
void tide_mesh_take_leave(tide_mesh *mesh);

#endif
