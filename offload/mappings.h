/* Keeps which device slot is mapped at which chunk's place, and checks the arguments of map() and unmap(),
 * for every kind of device.
 *
 *   ranges   [ chunk 0 | chunk 1 | ... ]   one a space, reserved addresses    slot_of_chunk: slot or NONE
 *   slots    0 | 1 | ... | D-1                                                place: address or NULL
 *
 * Equation: each table is the other's inverse, and mapped_count is the number of pairs. Each mapping gets a
 * new serial number, so that a command that runs later can see whether its mapping is still there (guard in
 * host_residency.c). No lock of its own: the device's memory lock guards it.
 */
#ifndef TIDE_OFFLOAD_MAPPINGS_H
#define TIDE_OFFLOAD_MAPPINGS_H

#include "offload/device.h"

enum { TIDE_MAPPINGS_RANGES_MAX = 64 };

typedef struct tide_mappings_range {
    char *base;
    uint32_t chunk_count;
    uint32_t *slot_of_chunk;
} tide_mappings_range;

typedef struct tide_mappings_slot {
    /* the chunk's place where the slot is mapped; NULL: the slot is mapped only at its own address */
    char *place;
    uint64_t serial; /* serial number of the slot's latest mapping */
} tide_mappings_slot;

typedef struct tide_mappings {
    uint64_t chunk_bytes;
    tide_mappings_range ranges[TIDE_MAPPINGS_RANGES_MAX];
    uint32_t range_count;
    tide_mappings_slot *slots;
    uint32_t slot_count;
    uint32_t mapped_count;
    uint64_t last_serial;
} tide_mappings;

void tide_mappings_init(tide_mappings *mappings, uint64_t chunk_bytes);
void tide_mappings_destroy(tide_mappings *mappings);
/* Check that both tables agree. Walks all entries. */
bool tide_mappings_is_valid(const tide_mappings *mappings);

/* ARGUMENT unless `bytes` is a positive multiple of the chunk size; STATE when there are too many ranges. */
tide_status tide_mappings_range_check(const tide_mappings *mappings, uint64_t bytes);
/* Add a reserved range that has passed the check. NO_MEMORY. */
tide_status tide_mappings_range_add(tide_mappings *mappings, void *base, uint64_t bytes);
/* Add the device slots, once. NO_MEMORY; STATE: they exist already. */
tide_status tide_mappings_slots_add(tide_mappings *mappings, uint32_t count);
/* Undo tide_mappings_slots_add. No slot may be mapped. */
void tide_mappings_slots_remove(tide_mappings *mappings);

/* ARGUMENT, with the reason in the message, unless `slot` is mapped nowhere and `place` is the free place of
 * a chunk. */
tide_status tide_mappings_put_check(const tide_mappings *mappings, uint32_t slot, const void *place);
void tide_mappings_put(tide_mappings *mappings, uint32_t slot, void *place);
/* ARGUMENT unless `slot` is mapped at `place`. */
tide_status tide_mappings_take_check(const tide_mappings *mappings, uint32_t slot, const void *place);
void tide_mappings_take(tide_mappings *mappings, uint32_t slot, void *place);

/* Find the slot that is mapped at a chunk's place. ARGUMENT if `place` is not a chunk's or nothing is mapped
 * there. */
tide_status tide_mappings_find(const tide_mappings *mappings, const void *place, uint32_t *slot);

#endif
