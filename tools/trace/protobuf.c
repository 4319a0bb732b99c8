/* The wire format: a field is its number and type in one varint, then its value. Varints have seven bits a byte, the lowest
 * first, and a high bit in all bytes but the last. */
#include "tools/trace/protobuf.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

typedef enum wire_type {
    WIRE_VARINT = 0,
    WIRE_FIXED64 = 1,
    WIRE_BYTES = 2,
} wire_type;

enum { VARINT_BYTES_MAX = 10, FIRST_CAPACITY = 1024 };

void tide_protobuf_clear(tide_protobuf *message)
{
    message->length = 0;
    message->depth = 0;
}

void tide_protobuf_free(tide_protobuf *message)
{
    free(message->bytes);
    *message = (tide_protobuf){0};
}

/* Whether `bytes` more fit behind what is there. */
static bool reserve(tide_protobuf *message, size_t bytes)
{
    size_t capacity = message->capacity > 0 ? message->capacity : FIRST_CAPACITY;
    if (message->failed || bytes > SIZE_MAX / 4 - message->length) {
        message->failed = true;
        return false;
    }
    while (capacity < message->length + bytes)
        capacity *= 2;
    if (capacity == message->capacity)
        return true;
    uint8_t *grown = realloc(message->bytes, capacity);
    if (grown == NULL) {
        message->failed = true;
        return false;
    }
    message->bytes = grown;
    message->capacity = capacity;
    return true;
}

static size_t varint_put(uint8_t bytes[VARINT_BYTES_MAX], uint64_t value)
{
    size_t length = 0;
    for (; value >= 0x80; value >>= 7)
        bytes[length++] = (uint8_t)(value | 0x80);
    bytes[length++] = (uint8_t)value;
    return length;
}

static void bytes_add(tide_protobuf *message, const void *bytes, size_t count)
{
    if (count == 0 || !reserve(message, count))
        return;
    memcpy(message->bytes + message->length, bytes, count);
    message->length += count;
}

static void varint_add(tide_protobuf *message, uint64_t value)
{
    uint8_t bytes[VARINT_BYTES_MAX];
    bytes_add(message, bytes, varint_put(bytes, value));
}

static void field_add(tide_protobuf *message, uint32_t field, wire_type type)
{
    assert(field > 0);
    varint_add(message, (uint64_t)field << 3 | (uint64_t)type);
}

void tide_protobuf_count(tide_protobuf *message, uint32_t field, uint64_t value)
{
    field_add(message, field, WIRE_VARINT);
    varint_add(message, value);
}

void tide_protobuf_fixed64(tide_protobuf *message, uint32_t field, uint64_t value)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(value >> 8 * i);
    field_add(message, field, WIRE_FIXED64);
    bytes_add(message, bytes, sizeof bytes);
}

void tide_protobuf_text(tide_protobuf *message, uint32_t field, const char *text)
{
    size_t length = strlen(text);
    field_add(message, field, WIRE_BYTES);
    varint_add(message, length);
    bytes_add(message, text, length);
}

void tide_protobuf_begin(tide_protobuf *message, uint32_t field)
{
    assert(message->depth < TIDE_PROTOBUF_DEPTH_MAX);
    field_add(message, field, WIRE_BYTES);
    bytes_add(message, "", 1); /* for a length below 128 */
    message->open[message->depth++] = message->length;
}

void tide_protobuf_end(tide_protobuf *message)
{
    uint8_t bytes[VARINT_BYTES_MAX];
    assert(message->depth > 0);
    const size_t begin = message->open[--message->depth], length = message->length - begin;
    const size_t taken = varint_put(bytes, length);
    if (!reserve(message, taken - 1))
        return;
    if (taken > 1)
        memmove(message->bytes + begin + taken - 1, message->bytes + begin, length);
    memcpy(message->bytes + begin - 1, bytes, taken);
    message->length += taken - 1;
}
