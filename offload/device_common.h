/* Code that all devices use: checks of options and of calls, the account of a tier's budget (ledger), fault
 * injection, thread numbers. Internal to offload/.
 */
#ifndef TIDE_OFFLOAD_DEVICE_COMMON_H
#define TIDE_OFFLOAD_DEVICE_COMMON_H

#include "offload/device.h"

#include "base/align.h"

#include <stdatomic.h>

const char *tide_tier_name(tide_tier tier);
const char *tide_object_kind_name(tide_object_kind kind);

/* ARGUMENT, with the option's name and value, unless every option is in its range. */
tide_status tide_device_options_check(const tide_device_options *options);

/* ARGUMENT, with a message, unless the arguments of a call are allowed: */
tide_status tide_stream_check(tide_stream stream);
tide_status tide_work_check(const tide_work *work);
tide_status tide_launch_check(tide_stream stream, const tide_work *work, tide_kernel fn,
                              const void *arguments, size_t argument_bytes);
tide_status tide_wait_site_check(tide_wait_site site);
/* The stream_failed() of devices that lose no kernel. Always false. */
bool tide_no_stream_failed(tide_device *device, tide_stream stream);
tide_status tide_event_check(tide_event event, uint32_t event_count);
/* ARGUMENT if `stream` or `recorded_on` is the host executor: no stream waits for it, and it waits for no
 * stream. */
tide_status tide_stream_wait_check(tide_stream stream, tide_event event, tide_stream recorded_on);
tide_status tide_buffer_check(const char *name, uint64_t bytes);
tide_status tide_region_part_check(const char *name, uint64_t offset_bytes, uint64_t bytes,
                                   uint64_t region_bytes);

/* The part of a command's tide_work that a stream stores until the command has run. */
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

/* Call a command's function, which does the work itself or launches it on `native_stream`. A failure's
 * message begins with the command's name. */
tide_status tide_command_call(const tide_command_name *name, tide_stream stream, void *native_stream,
                              tide_kernel run, const void *arguments);

tide_status tide_copy_check(tide_stream stream, const tide_work *work);
/* A moment on a stream: right after its `sequence`-th command. 0: before the first command, which has always
 * passed. */
typedef struct tide_stream_point {
    tide_stream stream;
    uint64_t sequence;
} tide_stream_point;

/* ARGUMENT unless one side of a copy lies in the region (`in_region`) and the other in a buffer
 * (`in_buffer`). */
tide_status tide_copy_bytes_check(const tide_work *work, uint64_t bytes, const void *device_side,
                                  bool in_region, const void *host_side, bool in_buffer);
/* Is [address, address + bytes) inside [base, base + base_bytes)? If base is NULL: no. */
bool tide_is_inside(const void *address, uint64_t bytes, const void *base, uint64_t base_bytes);

/* The limits of a slot copy: how many slots the tiers have, and how many bytes a slot. */
typedef struct tide_slot_counts {
    uint32_t slots[TIDE_TIER_COUNT];
    uint64_t chunk_bytes;
} tide_slot_counts;
tide_status tide_copy_slot_check(const tide_slot_counts *counts, tide_tier to_tier, uint32_t to_slot,
                                 uint32_t from_slot, uint64_t bytes);

/* Every device counts a buffer as its bytes rounded up to whole pages of 4096. */
enum { TIDE_PAGE_BYTES = 4096 };
static inline uint64_t tide_page_up(uint64_t bytes)
{
    return tide_round_up(bytes, TIDE_PAGE_BYTES);
}

/* A tier's ledger is its tide_memory_usage. Check before allocating and commit after the allocation has
 * succeeded, so that a failed call changes nothing, not even the peak. */
tide_status tide_ledger_check(const tide_memory_usage *ledger, tide_tier tier, const char *what,
                              uint64_t bytes);
void tide_ledger_commit(tide_memory_usage *ledger, uint64_t bytes);
bool tide_ledger_is_valid(const tide_memory_usage *ledger);

/* Fault injection. Any thread may count and arm at any time. */
typedef struct tide_fault {
    _Atomic uint32_t mask;
    _Atomic uint64_t countdown;
} tide_fault;
void tide_fault_arm(tide_fault *fault, uint32_t mask, uint64_t countdown);
/* Count one operation of `kind`. If it is the one that shall fail, return NO_MEMORY (TIDE_FAULT_MEMORY) or
 * DEVICE (the other kinds). */
tide_status tide_fault_count(tide_fault *fault, uint32_t kind, const char *operation);

/* A number for the calling thread, unique in the process also among threads that have ended. */
uint64_t tide_thread_number(void);

#endif
