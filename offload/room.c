/* The rules of the header, by their numbers. */
#include "offload/room.h"

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
    return tide_host_now_ns();
}

static void system_sleep_until(void *context, uint64_t ns)
{
    (void)context;
    tide_host_sleep_until(ns);
}

const tide_room_machine *tide_room_machine_system(void)
{
    static const tide_room_machine machine = {.available_bytes = system_available_bytes,
                                              .limit_bytes = system_limit_bytes,
                                              .dormant_bytes = system_dormant_bytes,
                                              .now_ns = system_now_ns,
                                              .sleep_until = system_sleep_until};
    return &machine;
}

/* --- the room --- */

static uint64_t at_most(uint64_t bytes, uint64_t most)
{
    return bytes < most ? bytes : most;
}

static uint64_t less(uint64_t bytes, uint64_t taken)
{
    return bytes > taken ? bytes - taken : 0;
}

uint64_t tide_room_most_bytes(const tide_room_machine *machine)
{
    const uint64_t available_bytes = machine->available_bytes(machine->context);
    const uint64_t dormant_bytes = machine->dormant_bytes(machine->context);
    const uint64_t growth_bytes = dormant_bytes != UINT64_MAX ? dormant_bytes : 0;
    return at_most(available_bytes + at_most(growth_bytes, UINT64_MAX - available_bytes),
                   machine->limit_bytes(machine->context));
}

static uint64_t now_ns(const tide_room *room)
{
    return room->machine->now_ns(room->machine->context);
}

bool tide_room_is_valid(const tide_room *room)
{
    return room->untouched_bytes <= room->given_bytes && room->given_bytes <= room->wanted_bytes;
}

static void lock(tide_room *room)
{
    pthread_mutex_lock(&room->lock);
}

static void unlock(tide_room *room)
{
    assert(tide_room_is_valid(room));
    pthread_mutex_unlock(&room->lock);
}

/* Rule 0, with the margin. */
static tide_status bounds_check(const tide_room *room)
{
    const tide_room_machine *machine = room->machine;
    const uint64_t limit_bytes = machine->limit_bytes(machine->context);
    const uint64_t available_bytes = machine->available_bytes(machine->context);
    const uint64_t dormant_bytes = machine->dormant_bytes(machine->context);
    const uint64_t needed_bytes = room->wanted_bytes + room->margin_bytes;
    if (needed_bytes > limit_bytes)
        return tide_fail(TIDE_ERROR_NO_MEMORY,
                         "%s: %" PRIu64 " bytes wanted and %" PRIu64
                         " for others, the process's control groups have %" PRIu64 " available",
                         room->what, room->wanted_bytes, room->margin_bytes, limit_bytes);
    if (dormant_bytes != UINT64_MAX && less(needed_bytes, available_bytes) > dormant_bytes)
        return tide_fail(TIDE_ERROR_NO_MEMORY,
                         "%s: %" PRIu64 " bytes wanted and %" PRIu64 " for others, the machine has %" PRIu64
                         " available and %" PRIu64 " that it does not use yet",
                         room->what, room->wanted_bytes, room->margin_bytes, available_bytes, dormant_bytes);
    return TIDE_OK;
}

tide_status tide_room_open(tide_room *room, const char *what, uint64_t wanted_bytes,
                           const tide_room_machine *machine)
{
    tide_room made = {.machine = machine,
                      .what = what,
                      .wanted_bytes = wanted_bytes,
                      .margin_bytes = at_most(wanted_bytes / 4, margin_most_bytes)};
    const tide_status status = bounds_check(&made);
    if (status != TIDE_OK)
        return status;
    made.sign_ns = now_ns(&made);
    *room = made;
    (void)pthread_mutex_init(&room->lock, NULL);
    return TIDE_OK;
}

void tide_room_close(tide_room *room)
{
    pthread_mutex_destroy(&room->lock);
}

/* Rule 1: how much may be touched now; 0: nothing. */
static uint64_t step_find(tide_room *room, uint64_t most_bytes)
{
    room->free_bytes = less(room->machine->available_bytes(room->machine->context), room->untouched_bytes);
    const uint64_t step = at_most(most_bytes, step_most_bytes),
                   room_bytes = less(room->free_bytes, room->margin_bytes);
    if (room_bytes >= step)
        return step;
    return room_bytes >= step_least_bytes ? room_bytes / huge_page_bytes * huge_page_bytes : 0;
}

/* Rule 3. */
static bool is_hopeless(const tide_room *room)
{
    return room->untouched_bytes == 0 && now_ns(room) - room->sign_ns >= patience_ns;
}

static tide_status refuse(const tide_room *room)
{
    const uint64_t touched_bytes = room->given_bytes - room->untouched_bytes;
    return tide_fail(TIDE_ERROR_NO_MEMORY,
                     "%s: of %" PRIu64 " bytes wanted %" PRIu64 " were touched; the machine has %" PRIu64
                     " more available, of which %" PRIu64
                     " stay for others, and did not grow while that was waited for; a host "
                     "budget of %" PRIu64 " bytes would do",
                     room->what, room->wanted_bytes, touched_bytes, room->free_bytes, room->margin_bytes,
                     touched_bytes + less(room->free_bytes, room->margin_bytes));
}

static void sleep_a_little(tide_room *room)
{
    const uint64_t until_ns = now_ns(room) + look_ns;
    unlock(room);
    room->machine->sleep_until(room->machine->context, until_ns);
    lock(room);
}

static tide_status step_wait(tide_room *room, uint64_t most_bytes, uint64_t *bytes)
{
    uint64_t found = 0;
    while (!room->over && (found = step_find(room, most_bytes)) == 0) {
        room->over = is_hopeless(room);
        if (!room->over)
            sleep_a_little(room);
    }
    if (room->over)
        return refuse(room);
    room->given_bytes += found;
    room->untouched_bytes += found;
    room->sign_ns = now_ns(room);
    *bytes = found;
    return TIDE_OK;
}

tide_status tide_room_take(tide_room *room, uint64_t most_bytes, uint64_t *bytes)
{
    assert(most_bytes > 0);
    lock(room);
    const tide_status status = step_wait(room, most_bytes, bytes);
    unlock(room);
    return status;
}

void tide_room_touched(tide_room *room, uint64_t bytes)
{
    lock(room);
    assert(bytes <= room->untouched_bytes);
    room->untouched_bytes -= bytes;
    room->sign_ns = now_ns(room);
    unlock(room);
}

void tide_room_stop(tide_room *room)
{
    lock(room);
    room->over = true;
    unlock(room);
}
