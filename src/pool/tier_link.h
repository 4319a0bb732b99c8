/* The link between the tiers: copies and zeroing of whole chunks, and which place each device slot stands at.
 *
 * An evicted chunk's slot is often wanted at once. Where the device has remap, the place is left as it is until the
 * engine knows its next command: if that fetches into the slot, one call takes it on, else it is unmapped first. So
 * one place at most is left, and none when the engine sleeps, unless it has failed.
 *
 * Owns the place that is left. Works on the engine's thread with the lock, of which it lets go while the device maps.
 * Calls order, telemetry, monitor and the device.
 */
#ifndef TIDE_POOL_TIER_LINK_H
#define TIDE_POOL_TIER_LINK_H

#include "src/pool/monitor.h"
#include "src/pool/order.h"
#include "src/pool/telemetry.h"

typedef struct tide_link {
    const tide_sealed_context *context;
    tide_monitor *monitor;
    tide_order *order;
    tide_telemetry *telemetry;
    char *left_place;      /* an evicted chunk's, still mapped; NULL: none */
    uint32_t left_slot;    /* the slot there, free */
    tide_chunk left_chunk; /* whose place it is, */
    uint64_t left_id;      /* and the eviction's id */
    bool used;             /* copies may be under way */
} tide_link;

/* Where kernels of the engine reach a slot: on the device at its chunk's place, where it is mapped (with the guard on,
 * which closes places, at its own). */
void *tide_link_reach(const tide_link *link, tide_tier tier, uint32_t slot, tide_chunk chunk);
/* Is there room for a command on both ways? Without it copies are under way, whose ends bring the engine back. */
bool tide_link_has_capacity(const tide_link *link);
/* Which ways have enough copies ahead? Sets `used` anew. */
void tide_link_look(tide_link *link, bool *in_busy, bool *out_busy);

/* The tracer's id for a move: of the command that it enqueues, if it does. */
uint64_t tide_link_number(tide_link *link, const tide_command *command);
/* FETCH: map, unless the slot stands there already, and enqueue the copy or the zeroing. */
tide_status tide_link_fetch(tide_link *link, const tide_command *command, uint64_t id);
/* Enqueue the command's copy: of a FETCH in, of an EVICT or a WRITE_BACK out; piece `number` of that stream. */
tide_status tide_link_copy(tide_link *link, const tide_command *command, uint64_t id, uint64_t *number);
/* Have all uses of the slot been seen to pass? Later ones than at the command's issue there are none. */
tide_status tide_link_unused(tide_link *link, uint32_t slot, bool *unused);
/* They have: the EVICT's slot leaves its chunk's place, now or as soon as the next command is known. */
tide_status tide_link_leave(tide_link *link, const tide_command *command, uint64_t id);
/* Before a command is carried out, and when none follows: unmap what is left, unless the command (NULL: none) takes
 * it on. On failure the pool has failed, and it stays left. */
void tide_link_settle(tide_link *link, const tide_command *next);
bool tide_link_is_valid(const tide_link *link);

#endif
