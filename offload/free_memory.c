/* Rule numbers in comments are those of free_memory.h. */
#include "offload/free_memory.h"

#include "base/clock.h"
#include "base/minmax.h"
#include "offload/cgroup.h"
#include "offload/host_link.h"

#include <assert.h>
#include <inttypes.h>

static const uint64_t step_most_bytes = UINT64_C(128) << 20, step_least_bytes = UINT64_C(16) << 20,
                      margin_most_bytes = UINT64_C(256) << 20, huge_page_bytes = UINT64_C(2) << 20,
                      look_ns = 10000000, patience_ns = UINT64_C(5000000000);

/* --- the machine --- */

static uint64_t system_available_bytes(void *context)
{
    (void)context;
    return tide_topology_available_bytes();
}

static uint64_t system_limit_bytes(void *context)
{
    (void)context;
    return tide_cgroup_available_bytes("");
}

static uint64_t system_dormant_bytes(void *context)
{
    (void)context;
    return tide_topology_dormant_bytes("");
}

static uint64_t system_now_ns(void *context)
{
    (void)context;
    return tide_clock_ns();
}

static void system_sleep_until(void *context, uint64_t ns)
{
    (void)context;
    tide_host_sleep_until(ns);
}

const tide_free_memory_machine *tide_free_memory_machine_system(void)
{
    static const tide_free_memory_machine machine = {.available_bytes = system_available_bytes,
                                                     .limit_bytes = system_limit_bytes,
                                                     .dormant_bytes = system_dormant_bytes,
                                                     .now_ns = system_now_ns,
                                                     .sleep_until = system_sleep_until};
    return &machine;
}

/* --- requests --- */

static uint64_t less(uint64_t bytes, uint64_t taken)
{
    return bytes > taken ? bytes - taken : 0;
}

uint64_t tide_free_memory_most_bytes(const tide_free_memory_machine *machine)
{
    const uint64_t available_bytes = machine->available_bytes(machine->context);
    const uint64_t dormant_bytes = machine->dormant_bytes(machine->context);
    const uint64_t growth_bytes = dormant_bytes != UINT64_MAX ? dormant_bytes : 0;
    return tide_min_u64(available_bytes + tide_min_u64(growth_bytes, UINT64_MAX - available_bytes),
                        machine->limit_bytes(machine->context));
}

static uint64_t now_ns(const tide_free_memory *memory)
{
    return memory->machine->now_ns(memory->machine->context);
}

bool tide_free_memory_is_valid(const tide_free_memory *memory)
{
    return memory->untouched_bytes <= memory->given_bytes && memory->given_bytes <= memory->wanted_bytes;
}

static void lock(tide_free_memory *memory)
{
    pthread_mutex_lock(&memory->lock);
}

static void unlock(tide_free_memory *memory)
{
    assert(tide_free_memory_is_valid(memory));
    pthread_mutex_unlock(&memory->lock);
}

/* Rule 0; the margin counts as wanted, too. */
static tide_status bounds_check(const tide_free_memory *memory)
{
    const tide_free_memory_machine *machine = memory->machine;
    const uint64_t limit_bytes = machine->limit_bytes(machine->context);
    const uint64_t available_bytes = machine->available_bytes(machine->context);
    const uint64_t dormant_bytes = machine->dormant_bytes(machine->context);
    const uint64_t needed_bytes = memory->wanted_bytes + memory->margin_bytes;
    if (needed_bytes > limit_bytes)
        return tide_fail(TIDE_ERROR_NO_MEMORY,
                         "%s: %" PRIu64 " bytes wanted and %" PRIu64
                         " for others, the process's control groups have %" PRIu64 " available",
                         memory->what, memory->wanted_bytes, memory->margin_bytes, limit_bytes);
    if (dormant_bytes != UINT64_MAX && less(needed_bytes, available_bytes) > dormant_bytes)
        return tide_fail(TIDE_ERROR_NO_MEMORY,
                         "%s: %" PRIu64 " bytes wanted and %" PRIu64 " for others, the machine has %" PRIu64
                         " available and %" PRIu64 " that it does not use yet",
                         memory->what, memory->wanted_bytes, memory->margin_bytes, available_bytes,
                         dormant_bytes);
    return TIDE_OK;
}

tide_status tide_free_memory_open(tide_free_memory *memory, const char *what, uint64_t wanted_bytes,
                                  const tide_free_memory_machine *machine)
{
    tide_free_memory made = {.machine = machine,
                             .what = what,
                             .wanted_bytes = wanted_bytes,
                             .margin_bytes = tide_min_u64(wanted_bytes / 4, margin_most_bytes)};
    const tide_status status = bounds_check(&made);
    if (status != TIDE_OK)
        return status;
    made.sign_ns = now_ns(&made);
    *memory = made;
    (void)pthread_mutex_init(&memory->lock, NULL);
    return TIDE_OK;
}

void tide_free_memory_close(tide_free_memory *memory)
{
    pthread_mutex_destroy(&memory->lock);
}

/* Rule 1: how many bytes may be touched now; 0: none. */
static uint64_t step_find(tide_free_memory *memory, uint64_t most_bytes)
{
    memory->free_bytes =
        less(memory->machine->available_bytes(memory->machine->context), memory->untouched_bytes);
    const uint64_t step = tide_min_u64(most_bytes, step_most_bytes),
                   usable_bytes = less(memory->free_bytes, memory->margin_bytes);
    if (usable_bytes >= step)
        return step;
    return usable_bytes >= step_least_bytes ? usable_bytes / huge_page_bytes * huge_page_bytes : 0;
}

/* Rule 3: is it time to fail? */
static bool is_hopeless(const tide_free_memory *memory)
{
    return memory->untouched_bytes == 0 && now_ns(memory) - memory->sign_ns >= patience_ns;
}

static tide_status refuse(const tide_free_memory *memory)
{
    const uint64_t touched_bytes = memory->given_bytes - memory->untouched_bytes;
    return tide_fail(TIDE_ERROR_NO_MEMORY,
                     "%s: of %" PRIu64 " bytes wanted %" PRIu64 " were touched; the machine has %" PRIu64
                     " more available, of which %" PRIu64
                     " stay for others, and did not grow while that was waited for; a host "
                     "budget of %" PRIu64 " bytes would do",
                     memory->what, memory->wanted_bytes, touched_bytes, memory->free_bytes,
                     memory->margin_bytes, touched_bytes + less(memory->free_bytes, memory->margin_bytes));
}

static void sleep_a_little(tide_free_memory *memory)
{
    const uint64_t until_ns = now_ns(memory) + look_ns;
    unlock(memory);
    memory->machine->sleep_until(memory->machine->context, until_ns);
    lock(memory);
}

static tide_status step_wait(tide_free_memory *memory, uint64_t most_bytes, uint64_t *bytes)
{
    uint64_t found = 0;
    while (!memory->over && (found = step_find(memory, most_bytes)) == 0) {
        memory->over = is_hopeless(memory);
        if (!memory->over)
            sleep_a_little(memory);
    }
    if (memory->over)
        return refuse(memory);
    memory->given_bytes += found;
    memory->untouched_bytes += found;
    memory->sign_ns = now_ns(memory);
    *bytes = found;
    return TIDE_OK;
}

tide_status tide_free_memory_take(tide_free_memory *memory, uint64_t most_bytes, uint64_t *bytes)
{
    assert(most_bytes > 0);
    lock(memory);
    const tide_status status = step_wait(memory, most_bytes, bytes);
    unlock(memory);
    return status;
}

void tide_free_memory_touched(tide_free_memory *memory, uint64_t bytes)
{
    lock(memory);
    assert(bytes <= memory->untouched_bytes);
    memory->untouched_bytes -= bytes;
    memory->sign_ns = now_ns(memory);
    unlock(memory);
}

void tide_free_memory_stop(tide_free_memory *memory)
{
    lock(memory);
    memory->over = true;
    unlock(memory);
}
