/* The first message on each connection: both sides send one. A connection that does not begin with the run's
 * token comes from a stranger. The message has the same size in all versions of the library, so a rank of
 * another version is named rather than waited for. */
#ifndef TIDE_COMM_HANDSHAKE_H
#define TIDE_COMM_HANDSHAKE_H

#include "tidepool/comm.h"

#include <stdbool.h>
#include <stdint.h>

/* Each two ranks are connected once for each channel. */
typedef enum tide_channel_name {
    TIDE_CHANNEL_DATA,   /* gather and reduce */
    TIDE_CHANNEL_SIDE,   /* exchange */
    TIDE_CHANNEL_NOTICE, /* the reason why a rank has given up, and nothing else */
    TIDE_CHANNEL_WATCH,  /* beats (watch.h) */
    TIDE_CHANNELS
} tide_channel_name;

typedef struct tide_handshake {
    uint8_t magic[8];
    uint8_t token[32]; /* SHA-256 of the token */
    uint32_t byte_order;
    uint32_t protocol;
    char version[16]; /* the library's */
    uint32_t rank, ranks;
    uint64_t fingerprint;
    uint32_t channel;           /* a tide_channel_name; 0 in an answer */
    uint32_t milliseconds_left; /* until the sender's timeout */
    uint16_t port;              /* at which the sender listens */
    uint8_t reserved[38];
} tide_handshake;

tide_handshake tide_handshake_make(const tide_comm_socket_options *options);

/* Does the message come from a process that has the token? */
bool tide_handshake_is_ours(const tide_handshake *own, const tide_handshake *other);

/* Can the process at `host` be a rank of this run? PEER: the message names the first difference. */
tide_status tide_handshake_check(const tide_handshake *own, const tide_handshake *other, const char *host);

/* Rank 0's second message on the data channel, when all ranks have come or the start has failed. */
typedef struct tide_start_answer {
    uint32_t has_failed;
    char reason[1020];
} tide_start_answer;

/* With this thread's message as the reason of a failure. */
tide_start_answer tide_start_answer_make(tide_status status);

#endif
