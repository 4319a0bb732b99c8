/* Code that the implementations of a device share: checks of options and calls, the ledger of a tier's
 * budget, fault injection, and the caller's thread number. Internal to offload/.
 */
#ifndef TIDE_OFFLOAD_DEVICE_COMMON_H
#define TIDE_OFFLOAD_DEVICE_COMMON_H

#include "offload/device.h"

#include <stdatomic.h>

const char *tide_tier_name(tide_tier tier);
const char *tide_object_kind_name(tide_object_kind kind);

/* ARGUMENT, with the option's name and value, unless every option is in its range. */
tide_status tide_device_options_check(const tide_device_options *options);

/* ARGUMENT unless the values of an enqueuing call can be meant. */
tide_status tide_stream_check(tide_stream stream);
tide_status tide_work_check(const tide_work *work);
tide_status tide_launch_check(tide_stream stream, const tide_work *work, tide_kernel fn,
                              const void *arguments, size_t argument_bytes);
tide_status tide_wait_site_check(tide_wait_site site);
/* For devices that lose no kernels, or none that could be made up for. */
bool tide_no_stream_failed(tide_device *device, tide_stream stream);
tide_status tide_event_check(tide_event event, uint32_t event_count);
/* Rule 3: no stream waits for the host executor, and the executor waits for no stream. */
tide_status tide_stream_wait_check(tide_stream stream, tide_event event, tide_stream recorded_on);
tide_status tide_buffer_check(const char *name, uint64_t bytes);
tide_status tide_region_part_check(const char *name, uint64_t offset_bytes, uint64_t bytes,
                                   uint64_t region_bytes);

/* A command on a stream, as it is kept until it runs. */
typedef struct tide_command_name {
    const char *label;
    const char *op; /* NULL: none */
    uint32_t tag, timer;
    uint64_t id;
    double flops, bytes;
} tide_command_name;

static inline tide_command_name tide_command_name_of(const tide_work *work)
{
    return (tide_command_name){work->label, work->op,    work->tag,  work->timer,
                               work->id,    work->flops, work->bytes};
}

/* Call what a command runs, or launches on `native_stream`. The message of a failure begins with the command's name. */
tide_status tide_command_call(const tide_command_name *name, tide_stream stream, void *native_stream,
                              tide_kernel run, const void *arguments);

tide_status tide_copy_check(tide_stream stream, const tide_work *work);
/* A point on a stream: behind its `sequence`-th command. 0: the beginning, always passed. */
typedef struct tide_stream_point {
    tide_stream stream;
    uint64_t sequence;
} tide_stream_point;

/* Check the two sides of a copy between the region and a buffer, as the device found them. */
tide_status tide_copy_bytes_check(const tide_work *work, uint64_t bytes, const void *device_side,
                                  bool in_region, const void *host_side, bool in_buffer);
/* Is [address, address + bytes) inside [base, base + base_bytes)? A base of NULL holds nothing. */
bool tide_is_inside(const void *address, uint64_t bytes, const void *base, uint64_t base_bytes);

/* The numbers of a slot copy: tier, slots and bytes against what the tiers have. */
typedef struct tide_slot_counts {
    uint32_t slots[TIDE_TIER_COUNT];
    uint64_t chunk_bytes;
} tide_slot_counts;
tide_status tide_copy_slot_check(const tide_slot_counts *counts, tide_tier to_tier, uint32_t to_slot,
                                 uint32_t from_slot, uint64_t bytes);

/* Every device charges buffers their bytes rounded up to whole pages of 4096. */
enum { TIDE_PAGE_BYTES = 4096 };
static inline uint64_t tide_page_up(uint64_t bytes)
{
    return (bytes + TIDE_PAGE_BYTES - 1) / TIDE_PAGE_BYTES * TIDE_PAGE_BYTES;
}

/* The ledger of a tier is its tide_memory_usage. Check before allocating, commit when it has succeeded: a
 * call that failed leaves no trace, not even in the peak. */
tide_status tide_ledger_check(const tide_memory_usage *ledger, tide_tier tier, const char *what,
                              uint64_t bytes);
void tide_ledger_commit(tide_memory_usage *ledger, uint64_t bytes);
bool tide_ledger_is_valid(const tide_memory_usage *ledger);

/* Fault injection. Any thread may count and arm. */
typedef struct tide_fault {
    _Atomic uint32_t mask;
    _Atomic uint64_t countdown;
} tide_fault;
void tide_fault_arm(tide_fault *fault, uint32_t mask, uint64_t countdown);
/* Counts one operation of `kind`; fails with NO_MEMORY (memory) or DEVICE (the others) when its turn has
 * come. */
tide_status tide_fault_count(tide_fault *fault, uint32_t kind, const char *operation);

/* A number for the calling thread that no other thread of the process ever has. */
uint64_t tide_thread_number(void);

#endif
