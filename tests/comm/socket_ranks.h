/* Ranks that are threads of the test, each with a socket communicator of its own. */
#ifndef TIDE_TESTS_SOCKET_RANKS_H
#define TIDE_TESTS_SOCKET_RANKS_H

#include "tidepool/comm.h"

#include <pthread.h>
#include <stdbool.h>

enum { SOCKET_RANKS_MAX = 8 };

/* A rank's call and how it ended. */
typedef struct socket_rank {
    tide_comm_socket_options options;
    tide_status (*body)(tide_comm *comm, void *context); /* NULL: nothing but the start and the end */
    void *context;
    tide_status status; /* of the start, or of the body */
    char message[1024];
    uint64_t body_ended_ns, ended_ns; /* the clock after the body, and when the communicator was destroyed */
    pthread_t thread;
} socket_rank;

/* Options of all ranks, on 127.0.0.1 and a free port. */
void socket_ranks_set(socket_rank *ranks, uint32_t count, tide_status (*body)(tide_comm *, void *),
                      void *context);
void socket_rank_start(socket_rank *rank);
void socket_rank_join(socket_rank *rank);
/* Start all and join all. */
void socket_ranks_run(socket_rank *ranks, uint32_t count);

/* All ranks' status is TIDE_OK; else the test fails with the message. */
void socket_ranks_expect_ok(const socket_rank *ranks, uint32_t count);
/* The rank's status is PEER, and its message contains the words. */
void socket_rank_expect_failure(const socket_rank *rank, const char *words);

/* A TCP port of 127.0.0.1 and ::1 that is free, outside the range from which the system takes ports. */
uint16_t free_port(void);
/* A plain connection with the port of 127.0.0.1, tried until it is accepted. */
int connect_stranger(uint16_t port);

/* cmocka's setup and teardown: a test leaves no file open. */
int count_files(void **state);
int expect_no_new_files(void **state);

#endif
