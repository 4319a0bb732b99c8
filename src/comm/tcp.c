#include "src/comm/tcp.h"

#include "base/clock.h"
#include "base/minmax.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    /* A host that lost its power is noticed after about two minutes. */
    KEEPALIVE_IDLE_SECONDS = 60,
    KEEPALIVE_INTERVAL_SECONDS = 10,
    KEEPALIVE_PROBES = 6,
    SOCKET_FLAGS = SOCK_NONBLOCK | SOCK_CLOEXEC
};

/* --- addresses --- */

static socklen_t address_bytes(const tide_tcp_address *address)
{
    assert(tide_tcp_address_is_valid(address));
    return address->family == AF_INET ? sizeof address->v4 : sizeof address->v6;
}

bool tide_tcp_address_is_valid(const tide_tcp_address *address)
{
    return address->family == AF_INET || address->family == AF_INET6;
}

tide_tcp_host tide_tcp_host_of(const tide_tcp_address *address)
{
    tide_tcp_host host;
    if (getnameinfo(&address->any, address_bytes(address), host.text, sizeof host.text, NULL, 0,
                    NI_NUMERICHOST) != 0)
        snprintf(host.text, sizeof host.text, "unknown host");
    return host;
}

uint16_t tide_tcp_port(const tide_tcp_address *address)
{
    return ntohs(address->family == AF_INET ? address->v4.sin_port : address->v6.sin6_port);
}

void tide_tcp_set_port(tide_tcp_address *address, uint16_t port)
{
    if (address->family == AF_INET)
        address->v4.sin_port = htons(port);
    else
        address->v6.sin6_port = htons(port);
}

bool tide_tcp_local(int connection, tide_tcp_address *address)
{
    socklen_t bytes = sizeof *address;
    *address = (tide_tcp_address){0};
    return getsockname(connection, &address->any, &bytes) == 0;
}

bool tide_tcp_remote(int connection, tide_tcp_address *address)
{
    socklen_t bytes = sizeof *address;
    *address = (tide_tcp_address){0};
    return getpeername(connection, &address->any, &bytes) == 0;
}

static bool same_address(const tide_tcp_address *a, const tide_tcp_address *b)
{
    if (a->family != b->family || tide_tcp_port(a) != tide_tcp_port(b))
        return false;
    return a->family == AF_INET ? a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr
                                : memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof a->v6.sin6_addr) == 0;
}

/* --- connections --- */

static int close_with_errno(int fd)
{
    const int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static bool set_option(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value) == 0;
}

static bool set_connection_options(int fd)
{
    return set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1) && set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1) &&
           set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, KEEPALIVE_IDLE_SECONDS) &&
           set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, KEEPALIVE_INTERVAL_SECONDS) &&
           set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KEEPALIVE_PROBES);
}

int tide_tcp_listen(const tide_tcp_address *address)
{
    const int fd = socket(address->family, SOCK_STREAM | SOCKET_FLAGS, 0);
    if (fd < 0)
        return -1;
    /* a run that starts again soon takes the port although old connections linger */
    if (!set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1) ||
        bind(fd, &address->any, address_bytes(address)) != 0 || listen(fd, SOMAXCONN) != 0)
        return close_with_errno(fd);
    return fd;
}

int tide_tcp_accept(int listener, tide_tcp_address *from)
{
    for (;;) {
        socklen_t bytes = sizeof *from;
        *from = (tide_tcp_address){0};
        const int fd = accept4(listener, &from->any, &bytes, SOCKET_FLAGS);
        if (fd < 0 && (errno == EINTR || errno == ECONNABORTED))
            continue;
        return fd < 0 || set_connection_options(fd) ? fd : close_with_errno(fd);
    }
}

int tide_tcp_milliseconds_to(uint64_t deadline)
{
    const uint64_t now = tide_clock_ns();
    return deadline <= now ? 0 : (int)tide_min_u64((deadline - now + 999999) / 1000000, INT_MAX);
}

bool tide_tcp_would_block(int error)
{
    return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

static bool wait_for(int fd, short events, uint64_t deadline)
{
    for (;;) {
        struct pollfd one = {.fd = fd, .events = events};
        const int count = poll(&one, 1, tide_tcp_milliseconds_to(deadline));
        if (count > 0)
            return true;
        if (count < 0 && errno != EINTR)
            return false;
        if (count == 0 && tide_clock_ns() >= deadline) {
            errno = ETIMEDOUT;
            return false;
        }
    }
}

/* The kernel may give a connection to an unused port of this host that very port: the connection then ends in
 * itself. */
static bool connects_to_itself(int fd)
{
    tide_tcp_address local, remote;
    return tide_tcp_local(fd, &local) && tide_tcp_remote(fd, &remote) && same_address(&local, &remote);
}

int tide_tcp_connect(const tide_tcp_address *to, uint64_t deadline)
{
    const int fd = socket(to->family, SOCK_STREAM | SOCKET_FLAGS, 0);
    if (fd < 0)
        return -1;
    if (!set_connection_options(fd))
        return close_with_errno(fd);
    if (connect(fd, &to->any, address_bytes(to)) != 0) {
        if (errno != EINPROGRESS && errno != EINTR)
            return close_with_errno(fd);
        int error = 0;
        socklen_t bytes = sizeof error;
        if (!wait_for(fd, POLLOUT, deadline) || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0)
            return close_with_errno(fd);
        errno = error;
        if (error != 0)
            return close_with_errno(fd);
    }
    errno = ECONNREFUSED;
    return connects_to_itself(fd) ? close_with_errno(fd) : fd;
}

/* --- bytes --- */

bool tide_tcp_send(int connection, const void *data, size_t bytes, uint64_t deadline)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t sent = send(connection, (const char *)data + done, bytes - done, MSG_NOSIGNAL);
        if (sent > 0)
            done += (size_t)sent;
        else if (!tide_tcp_would_block(errno) || !wait_for(connection, POLLOUT, deadline))
            return false;
    }
    return true;
}

bool tide_tcp_receive(int connection, void *data, size_t bytes, uint64_t deadline)
{
    for (size_t done = 0; done < bytes;) {
        const ssize_t got = recv(connection, (char *)data + done, bytes - done, 0);
        if (got > 0) {
            done += (size_t)got;
        } else if (got == 0) {
            errno = ECONNRESET;
            return false;
        } else if (!tide_tcp_would_block(errno) || !wait_for(connection, POLLIN, deadline)) {
            return false;
        }
    }
    return true;
}
