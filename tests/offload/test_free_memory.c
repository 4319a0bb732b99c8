/* Waiting for free memory on simulated machines: one with fixed memory, one whose kernel adds memory when
 * little is free, one whose host adds some later. Time is simulated, too. */
#include "offload/free_memory.h"
#include "tests/support/assert_ok.h"

#include <sched.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define GIB (UINT64_C(1) << 30)

static const uint64_t second_ns = 1000000000, margin_bytes = 256 * MIB, low_zone_bytes = 2 * GIB;

typedef struct fake {
    uint64_t most_bytes; /* the largest memory that the machine will ever have */
    bool knows_most;     /* the machine knows how much more it may get */
    /* The kernel adds these bytes whenever less than the low zone is free; 0: it adds nothing. */
    uint64_t at_once_bytes;
    uint64_t late_ns;     /* from the time when little memory is left until the host adds 2 GiB; 0: never */
    uint64_t limit_bytes; /* limit of control groups; 0: none */

    pthread_mutex_t lock; /* guards the fields below */
    uint64_t total_bytes; /* present size */
    uint64_t used_bytes;
    uint64_t least_bytes; /* the smallest size that was ever free */
    uint64_t ns, little_ns;
    unsigned looks;
    tide_free_memory *stops; /* the fake machine stops this object's waits after ten seconds; NULL: never */
} fake;

static uint64_t fake_available(const fake *it)
{
    return it->total_bytes > it->used_bytes ? it->total_bytes - it->used_bytes : 0;
}

static void fake_grow(fake *it, uint64_t bytes)
{
    it->total_bytes = it->total_bytes + bytes < it->most_bytes ? it->total_bytes + bytes : it->most_bytes;
}

static void host_look(fake *it)
{
    if (it->late_ns == 0 || fake_available(it) >= GIB)
        return;
    if (it->little_ns == 0)
        it->little_ns = it->ns;
    if (it->ns - it->little_ns < it->late_ns)
        return;
    fake_grow(it, 2 * GIB);
    it->little_ns = 0;
}

static uint64_t fake_look(void *context)
{
    fake *it = context;
    pthread_mutex_lock(&it->lock);
    host_look(it);
    it->looks++;
    const uint64_t bytes = fake_available(it);
    pthread_mutex_unlock(&it->lock);
    return bytes;
}

static uint64_t fake_limit_bytes(void *context)
{
    const fake *it = context;
    return it->limit_bytes > 0 ? it->limit_bytes : UINT64_MAX;
}

static uint64_t fake_dormant_bytes(void *context)
{
    const fake *it = context;
    return it->knows_most ? it->most_bytes - it->total_bytes : UINT64_MAX;
}

static uint64_t fake_now_ns(void *context)
{
    fake *it = context;
    pthread_mutex_lock(&it->lock);
    const uint64_t ns = it->ns;
    pthread_mutex_unlock(&it->lock);
    return ns;
}

static void fake_sleep_until(void *context, uint64_t ns)
{
    fake *it = context;
    pthread_mutex_lock(&it->lock);
    it->ns = ns > it->ns ? ns : it->ns;
    pthread_mutex_unlock(&it->lock);
    if (it->stops != NULL && ns > 10 * second_ns)
        tide_free_memory_stop(it->stops);
    (void)sched_yield();
}

static void fake_touch(fake *it, uint64_t bytes)
{
    pthread_mutex_lock(&it->lock);
    it->used_bytes += bytes;
    while (fake_available(it) < low_zone_bytes && it->at_once_bytes > 0 && it->total_bytes < it->most_bytes)
        fake_grow(it, it->at_once_bytes);
    it->least_bytes = fake_available(it) < it->least_bytes ? fake_available(it) : it->least_bytes;
    it->ns += bytes / 8; /* touching takes time at 8 GB/s */
    pthread_mutex_unlock(&it->lock);
}

static fake fake_of(uint64_t total_bytes, uint64_t most_bytes)
{
    return (fake){.lock = PTHREAD_MUTEX_INITIALIZER,
                  .total_bytes = total_bytes,
                  .most_bytes = most_bytes,
                  .least_bytes = UINT64_MAX};
}

static tide_free_memory_machine machine_of(fake *it)
{
    return (tide_free_memory_machine){fake_look,   fake_limit_bytes, fake_dormant_bytes,
                                      fake_now_ns, fake_sleep_until, it};
}

/* Takes and touches all the memory in one thread. */
static tide_status fill(tide_free_memory *memory, uint64_t wanted_bytes)
{
    fake *it = memory->machine->context;
    tide_status status = TIDE_OK;
    uint64_t bytes = 0;
    for (uint64_t done = 0; done < wanted_bytes && status == TIDE_OK; done += bytes) {
        status = tide_free_memory_take(memory, wanted_bytes - done, &bytes);
        if (status != TIDE_OK)
            break;
        assert_in_range(bytes, 1, 128 * MIB);
        fake_touch(it, bytes);
        tide_free_memory_touched(memory, bytes);
    }
    return status;
}

static tide_status pin(fake *it, uint64_t wanted_bytes)
{
    const tide_free_memory_machine machine = machine_of(it);
    tide_free_memory memory;
    tide_status status = tide_free_memory_open(&memory, "slots", wanted_bytes, &machine);
    if (status != TIDE_OK)
        return status;
    status = fill(&memory, wanted_bytes);
    tide_free_memory_close(&memory);
    return status;
}

static void what_is_there_is_given_at_once_and_looked_at_step_by_step(void **state)
{
    fake it = fake_of(16 * GIB, 16 * GIB);
    assert_ok(pin(&it, 12 * GIB));
    assert_int_equal(it.used_bytes, 12 * GIB);
    assert_true(it.looks >= 96);
    assert_true(it.ns < 2 * second_ns); /* touching alone takes 1.6 s */
}

static void control_groups_limit_refuses_at_once(void **state)
{
    fake it = fake_of(16 * GIB, 16 * GIB);
    it.limit_bytes = 4 * GIB;
    assert_fails(pin(&it, 4 * GIB - margin_bytes + 1), TIDE_ERROR_NO_MEMORY,
                 "4026531841 bytes wanted and 268435456 for others");
    expect_words("the process's control groups have 4294967296 available");
    assert_int_equal(it.used_bytes, 0);
    assert_int_equal(it.ns, 0);
    assert_ok(pin(&it, 4 * GIB - margin_bytes));
}

static void
machine_whose_memory_is_all_in_use_refuses_at_once_what_does_not_fit_beside_the_margin(void **state)
{
    fake it = fake_of(2 * GIB, 2 * GIB);
    it.knows_most = true;
    assert_fails(pin(&it, 2 * GIB - margin_bytes + 1), TIDE_ERROR_NO_MEMORY,
                 "the machine has 2147483648 available and 0 that it does not use yet");
    assert_int_equal(it.used_bytes, 0);
    assert_int_equal(it.ns, 0);
    assert_ok(pin(&it, 2 * GIB - margin_bytes));
    assert_int_equal(it.least_bytes, margin_bytes);
    assert_true(it.ns < second_ns);
    fake little = fake_of(80 * MIB, 80 * MIB);
    little.knows_most = true;
    assert_ok(pin(&little, 64 * MIB));
}

static void machine_that_does_not_grow_is_given_up_with_what_would_do_and_others_keep_theirs(void **state)
{
    fake it = fake_of(2 * GIB, 2 * GIB);
    it.used_bytes = GIB;
    assert_int_equal(pin(&it, 8 * GIB), TIDE_ERROR_NO_MEMORY);
    assert_non_null(strstr(
        tide_message(),
        "of 8589934592 bytes wanted 805306368 were touched; the machine has 268435456 more available"));
    expect_words("a host budget of 805306368 bytes would do");
    assert_int_equal(it.least_bytes, margin_bytes);
    assert_in_range(it.ns, 5 * second_ns, 6 * second_ns);
    fake again = fake_of(2 * GIB, 2 * GIB);
    again.used_bytes = GIB;
    assert_ok(pin(&again, 805306368));
    assert_true(again.ns < second_ns);
}

static void machine_that_grows_when_more_is_used_is_not_waited_for(void **state)
{
    static const uint64_t growths[] = {8 * MIB, 128 * MIB, GIB};
    for (size_t i = 0; i < sizeof growths / sizeof growths[0]; i++) {
        fake it = fake_of(4 * GIB, 110 * GIB);
        it.knows_most = i > 0;
        it.at_once_bytes = growths[i];
        assert_ok(pin(&it, 100 * GIB));
        assert_true(it.ns < 100 * GIB / 8 + second_ns);
    }
    fake it = fake_of(4 * GIB, 64 * GIB);
    it.knows_most = true;
    assert_int_equal(pin(&it, 100 * GIB), TIDE_ERROR_NO_MEMORY);
    assert_int_equal(it.used_bytes, 0);
}

static void machine_whose_host_is_slow_to_give_is_waited_for_as_long_as_it_grows(void **state)
{
    fake it = fake_of(4 * GIB, 64 * GIB);
    it.late_ns = 4 * second_ns;
    assert_ok(pin(&it, 40 * GIB));
    assert_true(it.least_bytes >= margin_bytes);
    fake ends = fake_of(4 * GIB, 8 * GIB);
    ends.late_ns = 4 * second_ns;
    assert_fails(pin(&ends, 40 * GIB), TIDE_ERROR_NO_MEMORY, "a host budget of 8321499136 bytes would do");
    assert_true(ends.ns < 20 * second_ns);
}

/* Threads that each check the free bytes alone would count the same bytes several times. */
static void
machine_can_be_counted_on_for_what_it_has_and_does_not_use_yet_within_its_control_groups(void **state)
{
    const struct {
        uint64_t total_bytes, most_bytes, limit_bytes;
        bool knows_most;
        uint64_t expected_bytes;
    } cases[] = {
        {8 * GIB, 8 * GIB, 0, true, 8 * GIB},
        {8 * GIB, 128 * GIB, 0, true, 128 * GIB},
        {8 * GIB, 128 * GIB, 64 * GIB, true, 64 * GIB},
        {8 * GIB, 128 * GIB, 4 * GIB, true, 4 * GIB},
        {8 * GIB, 128 * GIB, 0, false, 8 * GIB}, /* the machine does not know how much may be plugged in */
        {8 * GIB, 128 * GIB, 64 * GIB, false, 8 * GIB},
        {UINT64_MAX, UINT64_MAX, 0, true, UINT64_MAX}, /* a machine that does not know its memory */
        {GIB, UINT64_MAX, 0, true, UINT64_MAX},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fake it = fake_of(cases[i].total_bytes, cases[i].most_bytes);
        it.limit_bytes = cases[i].limit_bytes;
        it.knows_most = cases[i].knows_most;
        const tide_free_memory_machine machine = machine_of(&it);
        assert_int_equal(tide_free_memory_most_bytes(&machine), cases[i].expected_bytes);
    }
}

static void what_is_given_and_not_touched_yet_is_given_once(void **state)
{
    fake it = fake_of(GIB, GIB);
    const tide_free_memory_machine machine = machine_of(&it);
    tide_free_memory memory;
    uint64_t bytes = 0, given = 0;
    assert_ok(tide_free_memory_open(&memory, "slots", 8 * GIB, &machine));
    for (int i = 0; i < 6; i++, given += bytes)
        assert_ok(tide_free_memory_take(&memory, 128 * MIB, &bytes));
    assert_int_equal(given, GIB - margin_bytes);
    assert_int_equal(it.ns, 0);
    it.stops = &memory;
    assert_int_equal(tide_free_memory_take(&memory, 128 * MIB, &bytes),
                     TIDE_ERROR_NO_MEMORY); /* the call waited until the test stopped it */
    assert_true(it.ns > 10 * second_ns);
    tide_free_memory_close(&memory);
}

enum { THREADS = 8 };

typedef struct crowd {
    tide_free_memory *memory;
    uint64_t each_bytes;
    _Atomic int failed;
} crowd;

static void *crowd_main(void *argument)
{
    crowd *of = argument;
    if (fill(of->memory, of->each_bytes) != TIDE_OK)
        of->failed++;
    return NULL;
}

static int crowd_fill(fake *it, uint64_t each_bytes)
{
    const tide_free_memory_machine machine = machine_of(it);
    pthread_t threads[THREADS];
    tide_free_memory memory;
    crowd of = {.memory = &memory, .each_bytes = each_bytes};
    assert_ok(tide_free_memory_open(&memory, "slots", THREADS * each_bytes, &machine));
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, crowd_main, &of), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    tide_free_memory_close(&memory);
    return of.failed;
}

static void many_threads_share_what_there_is(void **state)
{
    fake grows = fake_of(4 * GIB, 40 * GIB);
    grows.at_once_bytes = 128 * MIB;
    assert_int_equal(crowd_fill(&grows, 4 * GIB), 0);
    assert_int_equal(grows.used_bytes, 32 * GIB);
    fake ends = fake_of(4 * GIB, 4 * GIB);
    assert_true(crowd_fill(&ends, GIB) > 0);
    assert_true(ends.least_bytes >= margin_bytes);
}

static void stopped_room_gives_nothing_any_more(void **state)
{
    fake it = fake_of(GIB, GIB);
    const tide_free_memory_machine machine = machine_of(&it);
    tide_free_memory memory;
    uint64_t bytes = 0;
    assert_ok(tide_free_memory_open(&memory, "slots", GIB, &machine));
    tide_free_memory_stop(&memory);
    assert_int_equal(tide_free_memory_take(&memory, MIB, &bytes), TIDE_ERROR_NO_MEMORY);
    assert_int_equal(it.ns, 0);
    tide_free_memory_close(&memory);
}

static void this_machine_says_what_it_has(void **state)
{
    const tide_free_memory_machine *machine = tide_free_memory_machine_system();
    const uint64_t available_bytes = machine->available_bytes(machine->context);
    assert_true(available_bytes > 0 && available_bytes <= machine->limit_bytes(machine->context));
    const uint64_t dormant_bytes = machine->dormant_bytes(machine->context);
    assert_true(dormant_bytes == UINT64_MAX || dormant_bytes < (GIB << 20));
    const uint64_t before_ns = machine->now_ns(machine->context);
    machine->sleep_until(machine->context, before_ns + 1000000);
    assert_true(machine->now_ns(machine->context) >= before_ns + 1000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_there_is_given_at_once_and_looked_at_step_by_step),
        cmocka_unit_test(control_groups_limit_refuses_at_once),
        cmocka_unit_test(
            machine_whose_memory_is_all_in_use_refuses_at_once_what_does_not_fit_beside_the_margin),
        cmocka_unit_test(machine_that_does_not_grow_is_given_up_with_what_would_do_and_others_keep_theirs),
        cmocka_unit_test(machine_that_grows_when_more_is_used_is_not_waited_for),
        cmocka_unit_test(machine_whose_host_is_slow_to_give_is_waited_for_as_long_as_it_grows),
        cmocka_unit_test(
            machine_can_be_counted_on_for_what_it_has_and_does_not_use_yet_within_its_control_groups),
        cmocka_unit_test(what_is_given_and_not_touched_yet_is_given_once),
        cmocka_unit_test(many_threads_share_what_there_is),
        cmocka_unit_test(stopped_room_gives_nothing_any_more),
        cmocka_unit_test(this_machine_says_what_it_has),
    };
    return cmocka_run_group_tests_name("free memory", tests, NULL, NULL);
}
