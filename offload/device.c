/* Names, checks, ledgers (each tier's used, peak and budget bytes) and fault injection: all that the devices
 * do alike, so that each refuses the same misuse with the same message.
 */
#include "offload/device_common.h"

#include "base/align.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>

enum { CHUNK_BYTES_MIN = 256 << 10, CHUNK_BYTES_MAX = 1 << 30 };

const char *tide_stream_name(tide_stream stream)
{
    static const char *const names[TIDE_STREAM_COUNT] = {
        [TIDE_STREAM_COMPUTE] = "compute",
        [TIDE_STREAM_IN] = "in",
        [TIDE_STREAM_OUT] = "out",
        [TIDE_STREAM_UPDATE] = "update",
        [TIDE_STREAM_COLLECTIVE] = "collective",
        [TIDE_STREAM_HOST] = "host",
    };
    return (unsigned)stream < TIDE_STREAM_COUNT ? names[stream] : "unknown";
}

const char *tide_tier_name(tide_tier tier)
{
    static const char *const names[TIDE_TIER_COUNT] = {
        [TIDE_TIER_DEVICE] = "device",
        [TIDE_TIER_HOST] = "host",
    };
    return (unsigned)tier < TIDE_TIER_COUNT ? names[tier] : "unknown";
}

const char *tide_object_kind_name(tide_object_kind kind)
{
    static const char *const names[TIDE_OBJECT_KIND_COUNT] = {
        [TIDE_OBJECT_DEVICE_SLOT] = "device slot", [TIDE_OBJECT_SLOT_GRADIENTS] = "gradients in device slot",
        [TIDE_OBJECT_HOST_SLOT] = "host slot",     [TIDE_OBJECT_REGION] = "region part",
        [TIDE_OBJECT_BUFFER] = "buffer",
    };
    return (unsigned)kind < TIDE_OBJECT_KIND_COUNT ? names[kind] : "unknown";
}

/* --- options --- */

static tide_status chunk_bytes_check(uint64_t chunk_bytes)
{
    if (tide_is_power_of_two(chunk_bytes) && chunk_bytes >= CHUNK_BYTES_MIN && chunk_bytes <= CHUNK_BYTES_MAX)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "chunk size of %" PRIu64 " bytes: it must be a power of two from %d to %d bytes",
                     chunk_bytes, CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
}

static tide_status budget_check(tide_tier tier, uint64_t bytes, uint64_t chunk_bytes)
{
    if (bytes >= chunk_bytes)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "%s memory budget of %" PRIu64 " bytes is below one chunk of %" PRIu64 " bytes",
                     tide_tier_name(tier), bytes, chunk_bytes);
}

static tide_status rate_check(const char *name, double per_second)
{
    if (isfinite(per_second) && per_second >= 0)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s is %g: it must be finite and not negative", name, per_second);
}

static tide_status rates_check(const tide_device_options *options)
{
    const struct {
        const char *name;
        double per_second;
    } rates[] = {
        {"link bandwidth", options->link_bytes_per_second},
        {"link bandwidth to the host", options->machine.link_out_bytes_per_second},
        {"device arithmetic rate", options->machine.flops_per_second},
        {"device memory bandwidth", options->machine.device_bytes_per_second},
        {"host memory bandwidth", options->machine.host_bytes_per_second},
    };
    tide_status status = TIDE_OK;
    for (size_t i = 0; i < sizeof rates / sizeof rates[0] && status == TIDE_OK; i++)
        status = rate_check(rates[i].name, rates[i].per_second);
    return status;
}

tide_status tide_device_options_check(const tide_device_options *options)
{
    if (options == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "device options are NULL");
    tide_status status = chunk_bytes_check(options->chunk_bytes);
    if (status == TIDE_OK)
        status = budget_check(TIDE_TIER_DEVICE, options->device_memory_bytes, options->chunk_bytes);
    if (status == TIDE_OK)
        status = budget_check(TIDE_TIER_HOST, options->host_memory_bytes, options->chunk_bytes);
    if (status == TIDE_OK)
        status = rates_check(options);
    if (status != TIDE_OK)
        return status;
    if (options->checks.skip_wait_site >= TIDE_WAIT_SITE_COUNT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "wait site %" PRIu32 " to skip is not below %d",
                         options->checks.skip_wait_site, TIDE_WAIT_SITE_COUNT);
    if ((options->fault_mask & ~(uint32_t)TIDE_FAULT_ANY) != 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "fault mask %#" PRIx32 " has unknown bits",
                         options->fault_mask);
    return TIDE_OK;
}

/* --- calls --- */

tide_status tide_stream_check(tide_stream stream)
{
    if ((unsigned)stream < TIDE_STREAM_COUNT)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "stream %u does not exist", (unsigned)stream);
}

tide_status tide_work_check(const tide_work *work)
{
    if (work == NULL || work->label == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a command without a label");
    if (work->access_count > 0 && work->accesses == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s %" PRIu32 " declares %" PRIu32 " accesses but gives none",
                         work->label, work->tag, work->access_count);
    if (!(work->flops >= 0) || !(work->bytes >= 0))
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s %" PRIu32 " has %g flops and %g bytes", work->label,
                         work->tag, work->flops, work->bytes);
    return TIDE_OK;
}

tide_status tide_command_call(const tide_command_name *name, tide_stream stream, void *native_stream,
                              tide_kernel run, const void *arguments)
{
    if (tide_message()[0] != '\0')
        (void)tide_fail(TIDE_OK, "%s", ""); /* so that a message set afterwards is the function's own */
    const tide_status status = run(native_stream, arguments);
    if (status == TIDE_OK)
        return TIDE_OK;
    const char *why = tide_message()[0] != '\0' ? tide_message() : tide_status_name(status);
    if (name->op != NULL)
        return tide_fail(status, "kernel %s of op %s failed: %s", name->label, name->op, why);
    if (name->tag == UINT32_MAX) /* the command has no number */
        return tide_fail(status, "%s on stream %s failed: %s", name->label, tide_stream_name(stream), why);
    return tide_fail(status, "%s %" PRIu32 " on stream %s failed: %s", name->label, name->tag,
                     tide_stream_name(stream), why);
}

tide_status tide_launch_check(tide_stream stream, const tide_work *work, tide_kernel fn,
                              const void *arguments, size_t argument_bytes)
{
    tide_status status = tide_stream_check(stream);
    if (status == TIDE_OK)
        status = tide_work_check(work);
    if (status != TIDE_OK)
        return status;
    if (fn == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s %" PRIu32 " has no kernel", work->label, work->tag);
    if (argument_bytes > TIDE_LAUNCH_ARGUMENTS_MAX_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s %" PRIu32 " has %zu bytes of arguments, more than %d",
                         work->label, work->tag, argument_bytes, TIDE_LAUNCH_ARGUMENTS_MAX_BYTES);
    if (argument_bytes > 0 && arguments == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s %" PRIu32 " has %zu bytes of arguments at NULL",
                         work->label, work->tag, argument_bytes);
    return TIDE_OK;
}

tide_status tide_wait_site_check(tide_wait_site site)
{
    if (site > 0 && site < TIDE_WAIT_SITE_COUNT)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "wait site %" PRIu32 " is not between 1 and %d", site,
                     TIDE_WAIT_SITE_COUNT - 1);
}

bool tide_no_stream_failed(tide_device *device, tide_stream stream)
{
    (void)device;
    (void)stream;
    return false;
}

tide_status tide_event_check(tide_event event, uint32_t event_count)
{
    if (event > 0 && event <= event_count)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "event %" PRIu32 " does not exist, there are %" PRIu32, event,
                     event_count);
}

tide_status tide_stream_wait_check(tide_stream stream, tide_event event, tide_stream recorded_on)
{
    if (stream == TIDE_STREAM_HOST)
        return tide_fail(TIDE_ERROR_ARGUMENT, "the host executor can't wait for event %" PRIu32, event);
    if (recorded_on == TIDE_STREAM_HOST)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "event %" PRIu32 " was recorded on the host executor: stream %s can't wait for it",
                         event, tide_stream_name(stream));
    return TIDE_OK;
}

tide_status tide_buffer_check(const char *name, uint64_t bytes)
{
    if (name == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "a buffer without a name");
    if (bytes == 0 || bytes > UINT64_MAX - TIDE_PAGE_BYTES)
        return tide_fail(TIDE_ERROR_ARGUMENT, "buffer %s of %" PRIu64 " bytes", name, bytes);
    return TIDE_OK;
}

tide_status tide_region_part_check(const char *name, uint64_t offset_bytes, uint64_t bytes,
                                   uint64_t region_bytes)
{
    if (offset_bytes <= region_bytes && bytes <= region_bytes - offset_bytes)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT,
                     "region part %s, %" PRIu64 " bytes from %" PRIu64
                     ", is not inside the region of %" PRIu64 " bytes",
                     name, bytes, offset_bytes, region_bytes);
}

tide_status tide_copy_check(tide_stream stream, const tide_work *work)
{
    tide_status status = tide_stream_check(stream);
    return status == TIDE_OK ? tide_work_check(work) : status;
}

tide_status tide_copy_bytes_check(const tide_work *work, uint64_t bytes, const void *device_side,
                                  bool in_region, const void *host_side, bool in_buffer)
{
    if (in_region && in_buffer)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s %" PRIu32 ": %" PRIu64 " bytes at %p are not inside %s",
                     work->label, work->tag, bytes, in_region ? host_side : device_side,
                     in_region ? "a host buffer" : "the region");
}

bool tide_is_inside(const void *address, uint64_t bytes, const void *base, uint64_t base_bytes)
{
    uint64_t offset = (uintptr_t)address - (uintptr_t)base;
    return base != NULL && (uintptr_t)address >= (uintptr_t)base && offset <= base_bytes &&
           bytes <= base_bytes - offset;
}

static tide_status slot_check(const tide_slot_counts *counts, tide_tier tier, uint32_t slot)
{
    if (slot < counts->slots[tier])
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s slot %" PRIu32 " does not exist, there are %" PRIu32,
                     tide_tier_name(tier), slot, counts->slots[tier]);
}

tide_status tide_copy_slot_check(const tide_slot_counts *counts, tide_tier to_tier, uint32_t to_slot,
                                 uint32_t from_slot, uint64_t bytes)
{
    if ((unsigned)to_tier >= TIDE_TIER_COUNT)
        return tide_fail(TIDE_ERROR_ARGUMENT, "tier %u does not exist", (unsigned)to_tier);
    tide_tier from_tier = to_tier == TIDE_TIER_DEVICE ? TIDE_TIER_HOST : TIDE_TIER_DEVICE;
    tide_status status = slot_check(counts, to_tier, to_slot);
    if (status == TIDE_OK)
        status = slot_check(counts, from_tier, from_slot);
    if (status != TIDE_OK)
        return status;
    if (bytes > counts->chunk_bytes)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "a copy of %" PRIu64 " bytes is larger than a slot of %" PRIu64 " bytes", bytes,
                         counts->chunk_bytes);
    return TIDE_OK;
}

/* --- ledger --- */

bool tide_ledger_is_valid(const tide_memory_usage *ledger)
{
    return ledger->used_bytes <= ledger->peak_bytes && ledger->peak_bytes <= ledger->budget_bytes;
}

tide_status tide_ledger_check(const tide_memory_usage *ledger, tide_tier tier, const char *what,
                              uint64_t bytes)
{
    assert(tide_ledger_is_valid(ledger));
    uint64_t free_bytes = ledger->budget_bytes - ledger->used_bytes;
    if (bytes <= free_bytes)
        return TIDE_OK;
    return tide_fail(TIDE_ERROR_BUDGET,
                     "%s: %" PRIu64 " bytes do not fit the %s memory budget of %" PRIu64
                     " bytes, of which %" PRIu64 " are free; a budget of %" PRIu64 " would do",
                     what, bytes, tide_tier_name(tier), ledger->budget_bytes, free_bytes,
                     ledger->used_bytes + bytes);
}

void tide_ledger_commit(tide_memory_usage *ledger, uint64_t bytes)
{
    ledger->used_bytes += bytes;
    if (ledger->used_bytes > ledger->peak_bytes)
        ledger->peak_bytes = ledger->used_bytes;
    ledger->allocations++;
    assert(tide_ledger_is_valid(ledger));
}

/* --- faults --- */

void tide_fault_arm(tide_fault *fault, uint32_t mask, uint64_t countdown)
{
    atomic_store(&fault->mask, 0);
    atomic_store(&fault->countdown, countdown);
    atomic_store(&fault->mask, mask);
}

tide_status tide_fault_count(tide_fault *fault, uint32_t kind, const char *operation)
{
    if ((atomic_load(&fault->mask) & kind) == 0)
        return TIDE_OK;
    /* After the fault the countdown wraps to 2^64 - 1 and never comes back to 1: a fault strikes once. */
    if (atomic_fetch_sub(&fault->countdown, 1) != 1)
        return TIDE_OK;
    return tide_fail(kind == TIDE_FAULT_MEMORY ? TIDE_ERROR_NO_MEMORY : TIDE_ERROR_DEVICE,
                     "%s failed: an injected fault", operation);
}

uint64_t tide_thread_number(void)
{
    static _Atomic uint64_t last_number;
    static _Thread_local uint64_t number;
    if (number == 0)
        number = atomic_fetch_add(&last_number, 1) + 1;
    return number;
}
