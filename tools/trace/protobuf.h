/* Messages in the protocol buffers' wire format, written field by field into one buffer.
 *
 * A message within a message begins with one byte kept for its length, which is known at its end; one of 128 bytes or
 * more is then moved up by what its length takes. The buffer is used again from message to message: it grows to the
 * largest and stays. Running out of memory is remembered, not returned: `failed` is asked once, when the message is
 * whole.
 */
#ifndef TIDE_TOOLS_PROTOBUF_H
#define TIDE_TOOLS_PROTOBUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { TIDE_PROTOBUF_DEPTH_MAX = 8 };

typedef struct tide_protobuf {
    uint8_t *bytes;
    size_t length, capacity;
    size_t open[TIDE_PROTOBUF_DEPTH_MAX]; /* where the content of each open message begins, outermost first */
    uint32_t depth;
    bool failed; /* no memory: what is in the buffer is useless */
} tide_protobuf;

/* A zeroed tide_protobuf is empty. */
void tide_protobuf_clear(tide_protobuf *message); /* empty it, keep its memory */
void tide_protobuf_free(tide_protobuf *message);

/* Fields: of types (u)int32, (u)int64, bool, enum; fixed64; string. Numbers as in the .proto, from 1 on. */
void tide_protobuf_count(tide_protobuf *message, uint32_t field, uint64_t value);
void tide_protobuf_fixed64(tide_protobuf *message, uint32_t field, uint64_t value);
void tide_protobuf_text(tide_protobuf *message, uint32_t field, const char *text);

/* A field that is a message: what is written until its end belongs to it. */
void tide_protobuf_begin(tide_protobuf *message, uint32_t field);
void tide_protobuf_end(tide_protobuf *message);

#endif
