/* TCP connections: addresses, and calls that end at a deadline. Connections do not block, send small messages
 * at once and are closed in programs that this one starts. Calls only base/.
 *
 * Functions that return a connection return -1 on failure, with errno set; EINTR never gets out.
 * A deadline is a time of tide_clock_ns. */
#ifndef TIDE_COMM_TCP_H
#define TIDE_COMM_TCP_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef union tide_tcp_address {
    sa_family_t family; /* AF_INET or AF_INET6 */
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
} tide_tcp_address;

typedef struct tide_tcp_host {
    char text[64];
} tide_tcp_host;

/* The address in digits, without the port. */
tide_tcp_host tide_tcp_host_of(const tide_tcp_address *address);
uint16_t tide_tcp_port(const tide_tcp_address *address);
void tide_tcp_set_port(tide_tcp_address *address, uint16_t port);

/* Are these bytes, which another process sent, an address of a family that this file knows? */
bool tide_tcp_address_is_valid(const tide_tcp_address *address);

/* The local and the remote address of a connection; the local one of a listener. */
bool tide_tcp_local(int connection, tide_tcp_address *address);
bool tide_tcp_remote(int connection, tide_tcp_address *address);

/* Listen at the address; port 0: one that the system chooses. */
int tide_tcp_listen(const tide_tcp_address *address);
/* A waiting connection; EAGAIN: there is none. */
int tide_tcp_accept(int listener, tide_tcp_address *from);
int tide_tcp_connect(const tide_tcp_address *to, uint64_t deadline);

/* Send or receive all bytes. False: errno says why; ECONNRESET if the other side has closed the connection,
 * ETIMEDOUT at the deadline. */
bool tide_tcp_send(int connection, const void *data, size_t bytes, uint64_t deadline);
bool tide_tcp_receive(int connection, void *data, size_t bytes, uint64_t deadline);

/* The milliseconds to the deadline, rounded up, as poll takes them; 0 if it has passed. */
int tide_tcp_milliseconds_to(uint64_t deadline);

/* Has a send or receive failed only for now? */
bool tide_tcp_would_block(int error);

#endif
