/* The start of a run over sockets: how the ranks find and connect with each other.
 *
 *   1. Rank 0 listens at the address that all know. Each other rank connects to it, again and again until the
 *      timeout, listens at the local address of that connection, and says at which port (handshake.h).
 *   2. When all have come, rank 0 sends each the table of their addresses; or, if the start has failed, the
 *      reason.
 *   3. Each rank connects to all below it, for each channel, and takes the connections of all above it. No
 *      rank waits in a circle: rank 1 connects to rank 0 only, then takes connections, and so on.
 */
#ifndef TIDE_COMM_RENDEZVOUS_H
#define TIDE_COMM_RENDEZVOUS_H

#include "src/comm/mesh.h"

/* Fill the mesh of two ranks or more. PEER, IO, NO_MEMORY: the caller destroys the mesh, with the connections
 * that there are. */
tide_status tide_rendezvous(const tide_comm_socket_options *options, tide_mesh *mesh);

#endif
