/* The link between the tiers: copies and zeroes whole chunks, and maps each device slot at a chunk's place.
 *
 * The manager often wants an evicted chunk's slot at once. Where the device has remap, the link leaves the
 * slot mapped until the engine has its next command: if that fetches into the slot, one call moves the
 * mapping, else the link unmaps the slot first. So at most one slot is left mapped, and none while the engine
 * sleeps, unless it has failed.
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
    char *left_place;      /* the place of an evicted chunk, still mapped; NULL: none */
    uint32_t left_slot;    /* the slot that is mapped there, free */
    tide_chunk left_chunk; /* the chunk whose place it is */
    uint64_t left_id;      /* the id of its eviction */
    bool used;             /* copies may be running */
} tide_link;

/* The address at which kernels of the engine reach a slot: on the device its chunk's place, where it is
 * mapped (with options.checks.guard, which closes places, the slot's own address). */
void *tide_link_reach(const tide_link *link, tide_tier tier, uint32_t slot, tide_chunk chunk);
/* Have both link streams space for a command? If not, copies are running, and the end of each brings the
 * engine back. */
bool tide_link_has_capacity(const tide_link *link);
/* Which link streams have enough copies ahead? Also updates `used`. */
void tide_link_look(tide_link *link, bool *in_busy, bool *out_busy);

/* The tracer's id for a move and for the command that it enqueues, if any. */
uint64_t tide_link_number(tide_link *link, const tide_command *command);
/* Carry out a FETCH: map the slot, unless it is mapped there already, and enqueue the copy or the zeroing. */
tide_status tide_link_fetch(tide_link *link, const tide_command *command, uint64_t id);
/* Enqueue the command's copy, for a FETCH in, for an EVICT or WRITE_BACK out; `number` is its submission of that
 * stream. */
tide_status tide_link_copy(tide_link *link, const tide_command *command, uint64_t id, uint64_t *number);
/* Has the engine seen all uses of the slot end? No use follows the issue of its EVICT. */
tide_status tide_link_unused(tide_link *link, uint32_t slot, bool *unused);
/* The EVICT's slot has no more uses: unmap it from its chunk's place, now or as soon as the next command is
 * known. */
tide_status tide_link_leave(tide_link *link, const tide_command *command, uint64_t id);
/* Call before each command (`next`), and with NULL when none follows: unmaps the slot that is left, unless
 * `next` moves its mapping. On failure the pool has failed and the slot is still left. */
void tide_link_settle(tide_link *link, const tide_command *next);
bool tide_link_is_valid(const tide_link *link);

#endif
