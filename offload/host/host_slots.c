/* The slots lie one after the other in one extent. */
#include "offload/host/host_slots.h"

enum { ALIGNMENT_BYTES = 2 << 20 }; /* a huge page */

tide_status tide_host_slots_create(tide_host_slots *slots, uint32_t count, uint64_t chunk_bytes,
                                   const tide_first_touch *how)
{
    void *base = NULL;
    tide_status status = TIDE_OK;
    if (count > 0)
        status = tide_host_extent_create("host slots", count * chunk_bytes, ALIGNMENT_BYTES, how, &base);
    if (status == TIDE_OK)
        *slots = (tide_host_slots){base, chunk_bytes, count};
    return status;
}

void tide_host_slots_destroy(tide_host_slots *slots)
{
    tide_host_extent_destroy(slots->base, slots->count * slots->chunk_bytes);
    *slots = (tide_host_slots){0};
}
