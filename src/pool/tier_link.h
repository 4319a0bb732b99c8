/* The link between the tiers: copies and zeroes whole chunks, and maps each device slot at a chunk's place.
 *
 * The manager often reuses an evicted chunk's slot at once. So, if the device has remap, the link does not
 * unmap the slot until the engine has its next command: if that command fetches into the slot, one remap
 * moves the mapping to the new chunk's address, else the link first unmaps the slot. At most one slot is left
 * mapped like this, and none while the engine sleeps, unless the pool has failed.
 *
 * Owns the mapping that is left. Works on the engine's thread with the lock, which it releases while the
 * device maps. Calls order, telemetry, monitor and the device.
 */
#ifndef TIDE_POOL_TIER_LINK_H
#define TIDE_POOL_TIER_LINK_H

#include "src/pool/monitor.h"
#include "src/pool/order.h"
#include "src/pool/telemetry.h"

typedef struct tide_link {
    const tide_pool_context *context;
    tide_monitor *monitor;
    tide_order *order;
    tide_telemetry *telemetry;
    char *left_place;      /* the address of an evicted chunk, still mapped; NULL: none */
    uint32_t left_slot;    /* the free slot that is mapped there */
    tide_chunk left_chunk; /* the evicted chunk */
    uint64_t left_id;      /* the trace id of its eviction */
    bool used;             /* copies may be running */
} tide_link;

/* The address at which the engine's kernels access a slot: on the device the address of its chunk, where the
 * slot is mapped, or, with options.checks.guard, which makes that inaccessible, the slot's own address. */
void *tide_link_reach(const tide_link *link, tide_tier tier, uint32_t slot, tide_chunk chunk);
/* Have both link streams space for a command? If not, copies are running, and the engine tries again when one
 * ends. */
bool tide_link_has_capacity(const tide_link *link);
/* Set `in_busy` and `out_busy` if the stream has enough copies enqueued. Also updates `used`. */
void tide_link_look(tide_link *link, bool *in_busy, bool *out_busy);

/* A new tracer id for a move and for the copy or zeroing that it enqueues, if any. */
uint64_t tide_link_number(tide_link *link, const tide_command *command);
/* Carry out a FETCH: map the slot at its chunk's address, unless it is mapped there, and enqueue the copy or
 * the zeroing. */
tide_status tide_link_fetch(tide_link *link, const tide_command *command, uint64_t id);
/* Enqueue the command's copy: a FETCH's on the in stream, an EVICT's or WRITE_BACK's on the out stream. Sets
 * `number` to its submission. */
tide_status tide_link_copy(tide_link *link, const tide_command *command, uint64_t id, uint64_t *number);
/* Has the engine seen all uses of the slot end? Call for a slot whose EVICT was issued: no use follows
 * then. */
tide_status tide_link_unused(tide_link *link, uint32_t slot, bool *unused);
/* All uses of the EVICT's slot have ended: unmap it from its chunk's address, now or when the next command is
 * known (see above). */
tide_status tide_link_leave(tide_link *link, const tide_command *command, uint64_t id);
/* Call before each command with the command, and with NULL if there is none: unmaps the slot that was left
 * mapped, unless `next` moves its mapping. If that fails, the pool has failed and the slot is still
 * mapped. */
void tide_link_settle(tide_link *link, const tide_command *next);
bool tide_link_is_valid(const tide_link *link);

#endif
