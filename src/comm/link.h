/* One collective with one other rank, over one connection. Each side sends a header, which says which call it
 * is in, and then the bytes that the other side needs:
 *
 *   gather, exchange   the ranges that the sender owns; they are received into place
 *   reduce             the sender's sums for the ranges that the receiver owns, as fp32 or bf16; they are
 *                      received into the ring of reduce_ring.h
 *
 * Headers of two calls that differ make the call fail, before any byte behind them is taken. */
#ifndef TIDE_COMM_LINK_H
#define TIDE_COMM_LINK_H

#include "src/comm/mesh.h"
#include "src/comm/reduce_ring.h"

typedef enum tide_call_kind {
    TIDE_CALL_GATHER,
    TIDE_CALL_REDUCE,
    TIDE_CALL_REDUCE_BF16,
    TIDE_CALL_EXCHANGE,
    TIDE_CALL_KINDS
} tide_call_kind;

typedef struct tide_call_header {
    uint32_t kind; /* a tide_call_kind */
    uint32_t ranges;
    uint64_t number; /* of the call on its channel, from 1 */
    uint64_t bytes;  /* of all ranges */
    uint64_t layout; /* a hash of the ranges' bytes and owners */
} tide_call_header;

/* The call that this rank is in. */
typedef struct tide_call {
    tide_call_header header;
    const tide_comm_range *ranges;
    uint32_t count;
    tide_reduce_ring *ring;          /* NULL: not a reduce */
    char text[TIDE_CALL_TEXT_BYTES]; /* for messages: "reduce 17 of block 3 backward" */
} tide_call;

/* Fill in the header and the text of a call. `of`: an op, NULL for none. */
void tide_call_describe(tide_call *call, tide_call_kind kind, uint64_t number, const char *of);

typedef struct tide_link {
    uint32_t rank; /* of the other side */
    int connection;
    tide_call_header header;          /* of the other side */
    uint32_t header_sent, header_got; /* bytes */
    tide_range_cursor out;            /* before the first byte that is not sent, or not in `staging` */
    tide_range_cursor in;             /* gather: before the first byte that has not come */
    uint16_t *staging;                /* sums as bf16; NULL: they are sent from their ranges */
    uint32_t staging_elements;        /* that fit */
    uint32_t staged_bytes, staged_sent;
    uint64_t part, part_got; /* reduce: the part that comes now, and how many bytes of it are there */
} tide_link;

/* Start a call. The link keeps its connection. */
void tide_link_begin(tide_link *link, const tide_mesh *mesh, const tide_call *call);

/* Is there something to send? Something that can be received now? Is the call over? */
bool tide_link_sends(const tide_link *link);
bool tide_link_receives(const tide_link *link, const tide_call *call);
bool tide_link_is_over(const tide_link *link, const tide_call *call);

/* Send or receive as much as can be without waiting, up to `most` bytes or some size; *sent is set also after
 * a failure. PEER. */
tide_status tide_link_send(tide_link *link, tide_mesh *mesh, const tide_call *call, uint64_t most,
                           uint64_t *sent);
tide_status tide_link_receive(tide_link *link, tide_mesh *mesh, const tide_call *call);

#endif
