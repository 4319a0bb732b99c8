#include "src/comm/link.h"

#include "base/hash.h"
#include "base/minmax.h"
#include "src/comm/bf16_pack.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum {
    BLOCKS_MAX = 16,         /* blocks of memory in one system call */
    STEP_BYTES_MAX = 1 << 20 /* in one go, so that each link gets its turn */
};

/* --- calls --- */

typedef struct call_text {
    char text[96];
} call_text;

static call_text call_name(const tide_call_header *header)
{
    static const char *const names[TIDE_CALL_KINDS] = {"gather", "reduce", "reduce of bf16", "exchange"};
    call_text name;
    snprintf(name.text, sizeof name.text, "%s %" PRIu64,
             header->kind < TIDE_CALL_KINDS ? names[header->kind] : "unknown call", header->number);
    return name;
}

void tide_call_describe(tide_call *call, tide_call_kind kind, uint64_t number, const char *of)
{
    call->header = (tide_call_header){.kind = (uint32_t)kind, .ranges = call->count, .number = number};
    for (uint32_t i = 0; i < call->count; i++) {
        const tide_comm_range *range = &call->ranges[i];
        call->header.bytes += range->bytes;
        call->header.layout = tide_hash_u64(tide_hash_u64(call->header.layout, range->bytes), range->owner);
    }
    snprintf(call->text, sizeof call->text, "%s%s%s", call_name(&call->header).text, of == NULL ? "" : " of ",
             of == NULL ? "" : of);
}

static tide_status check_header(const tide_link *link, const tide_mesh *mesh, const tide_call *call)
{
    const tide_call_header *own = &call->header, *other = &link->header;
    if (memcmp(own, other, sizeof *own) == 0)
        return TIDE_OK;
    const char *host = mesh->hosts[link->rank].text;
    if (own->kind == other->kind && own->number == other->number && own->bytes == other->bytes)
        return tide_fail(
            TIDE_ERROR_PEER,
            "rank %u (%s): %s of %" PRIu64 " bytes in %u ranges, which have other sizes or owners "
            "than the %u ranges of rank %u",
            link->rank, host, call_name(other).text, other->bytes, other->ranges, own->ranges, mesh->rank);
    return tide_fail(TIDE_ERROR_PEER,
                     "rank %u (%s): %s of %" PRIu64 " bytes, where rank %u has %s of %" PRIu64, link->rank,
                     host, call_name(other).text, other->bytes, mesh->rank, call_name(own).text, own->bytes);
}

/* --- state --- */

void tide_link_begin(tide_link *link, const tide_mesh *mesh, const tide_call *call)
{
    *link = (tide_link){
        .rank = link->rank,
        .connection = link->connection,
        .out =
            tide_range_cursor_begin(call->ranges, call->count, call->ring == NULL ? mesh->rank : link->rank),
        .in = tide_range_cursor_begin(call->ranges, call->count, link->rank),
    };
    if (call->ring != NULL && call->ring->is_bf16)
        link->staging = tide_reduce_ring_staging(call->ring, link->rank, &link->staging_elements);
}

static bool has_header(const tide_link *link)
{
    return link->header_got == sizeof link->header;
}

bool tide_link_sends(const tide_link *link)
{
    return link->header_sent < sizeof link->header || link->staged_sent < link->staged_bytes ||
           link->out.index < link->out.count;
}

bool tide_link_receives(const tide_link *link, const tide_call *call)
{
    if (!has_header(link))
        return true;
    return call->ring == NULL ? link->in.index < link->in.count
                              : tide_reduce_ring_takes(call->ring, link->part);
}

bool tide_link_is_over(const tide_link *link, const tide_call *call)
{
    return has_header(link) && !tide_link_sends(link) &&
           (call->ring == NULL ? link->in.index == link->in.count : link->part == call->ring->parts);
}

/* --- sending --- */

static void pack_next(tide_link *link)
{
    struct iovec block;
    uint32_t filled = 0;
    while (filled < link->staging_elements && tide_range_cursor_blocks(&link->out, &block, 1) == 1) {
        const float *sums = block.iov_base;
        const uint32_t count =
            (uint32_t)tide_min_u64(block.iov_len / sizeof *sums, link->staging_elements - filled);
        tide_bf16_pack(sums, count, link->staging + filled);
        tide_range_cursor_advance(&link->out, count * sizeof *sums);
        filled += count;
    }
    link->staged_bytes = filled * (uint32_t)sizeof *link->staging;
    link->staged_sent = 0;
}

/* The blocks that come next, of at most STEP_BYTES_MAX bytes. */
static uint32_t next_out(tide_link *link, const tide_call *call, struct iovec *blocks)
{
    uint32_t count = 0;
    if (link->header_sent < sizeof call->header)
        blocks[count++] = (struct iovec){(char *)(uintptr_t)&call->header + link->header_sent,
                                         sizeof call->header - link->header_sent};
    if (link->staging == NULL)
        return count + tide_range_cursor_blocks(&link->out, blocks + count, BLOCKS_MAX - count);
    if (link->staged_sent == link->staged_bytes)
        pack_next(link);
    if (link->staged_sent < link->staged_bytes)
        blocks[count++] =
            (struct iovec){(char *)link->staging + link->staged_sent, link->staged_bytes - link->staged_sent};
    return count;
}

static void note_sent(tide_link *link, uint64_t bytes)
{
    const uint32_t of_header = (uint32_t)tide_min_u64(bytes, sizeof link->header - link->header_sent);
    link->header_sent += of_header;
    if (link->staging == NULL)
        tide_range_cursor_advance(&link->out, bytes - of_header);
    else
        link->staged_sent += (uint32_t)(bytes - of_header);
    assert(link->staged_sent <= link->staged_bytes);
}

/* Cut the blocks to `most` bytes; returns their sum. */
static size_t limit(struct iovec *blocks, uint32_t *count, uint64_t most)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < *count; i++) {
        blocks[i].iov_len = tide_min_u64(blocks[i].iov_len, most - bytes);
        bytes += blocks[i].iov_len;
        if (bytes == most)
            *count = i + 1;
    }
    return bytes;
}

tide_status tide_link_send(tide_link *link, tide_mesh *mesh, const tide_call *call, uint64_t most,
                           uint64_t *sent)
{
    struct iovec blocks[BLOCKS_MAX];
    *sent = 0;
    for (most = tide_min_u64(most, STEP_BYTES_MAX); *sent < most && tide_link_sends(link);) {
        uint32_t count = next_out(link, call, blocks);
        const size_t bytes = limit(blocks, &count, most - *sent);
        const struct msghdr message = {.msg_iov = blocks, .msg_iovlen = count};
        const ssize_t taken = sendmsg(link->connection, &message, MSG_NOSIGNAL);
        if (taken < 0 && errno == EINTR)
            continue;
        if (taken < 0)
            return tide_tcp_would_block(errno) ? TIDE_OK
                                               : tide_mesh_lost(mesh, link->rank, errno, call->text);
        note_sent(link, (uint64_t)taken);
        *sent += (uint64_t)taken;
        if ((size_t)taken < bytes)
            break;
    }
    return TIDE_OK;
}

/* --- receiving --- */

static uint32_t next_in(const tide_link *link, const tide_call *call, struct iovec *blocks)
{
    if (!has_header(link)) {
        blocks[0] = (struct iovec){(char *)(uintptr_t)&link->header + link->header_got,
                                   sizeof link->header - link->header_got};
        return 1;
    }
    if (call->ring == NULL)
        return tide_range_cursor_blocks(&link->in, blocks, BLOCKS_MAX);
    blocks[0] = (struct iovec){tide_reduce_ring_half(call->ring, link->rank, link->part) + link->part_got,
                               tide_reduce_ring_part_bytes(call->ring, link->part) - link->part_got};
    return 1;
}

static tide_status note_received(tide_link *link, const tide_mesh *mesh, const tide_call *call,
                                 uint64_t bytes)
{
    if (!has_header(link)) {
        link->header_got += (uint32_t)bytes;
        return has_header(link) ? check_header(link, mesh, call) : TIDE_OK;
    }
    if (call->ring == NULL) {
        tide_range_cursor_advance(&link->in, bytes);
        return TIDE_OK;
    }
    link->part_got += bytes;
    if (link->part_got == tide_reduce_ring_part_bytes(call->ring, link->part)) {
        link->part_got = 0;
        tide_reduce_ring_arrived(call->ring, link->part++);
    }
    return TIDE_OK;
}

tide_status tide_link_receive(tide_link *link, tide_mesh *mesh, const tide_call *call)
{
    struct iovec blocks[BLOCKS_MAX];
    for (size_t moved = 0; moved < STEP_BYTES_MAX && tide_link_receives(link, call);) {
        uint32_t count = next_in(link, call, blocks);
        const size_t bytes = limit(blocks, &count, STEP_BYTES_MAX);
        struct msghdr message = {.msg_iov = blocks, .msg_iovlen = count};
        const ssize_t got = recvmsg(link->connection, &message, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && tide_tcp_would_block(errno))
            return TIDE_OK;
        if (got <= 0)
            return tide_mesh_lost(mesh, link->rank, got == 0 ? 0 : errno, call->text);
        const tide_status status = note_received(link, mesh, call, (uint64_t)got);
        if (status != TIDE_OK)
            return status;
        moved += (size_t)got;
        if ((size_t)got < bytes)
            break;
    }
    return TIDE_OK;
}
