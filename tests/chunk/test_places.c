/* Places and moves. Subscribers get each changed chunk once, as from a reference queue, and only changes
 * that matter to them. Moves change places when a command is handed out, when it is done and when it
 * fails. */
#include "chunk/moves.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { CHUNKS = 13, CHUNK_BYTES = 4096 };

static uint64_t random_state = 1;

static uint32_t below(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 11) % limit);
}

static void create_places(tide_places *places)
{
    const uint32_t slots[TIDE_TIER_COUNT] = {3, 4};
    assert_int_equal(tide_places_create(places, CHUNKS, slots), TIDE_OK);
}

/* --- subscribers --- */

typedef struct queue {
    tide_chunk chunks[CHUNKS];
    uint32_t count;
} queue;

static void reference_notify(queue *q, tide_chunk chunk)
{
    for (uint32_t i = 0; i < q->count; i++)
        if (q->chunks[i] == chunk)
            return;
    q->chunks[q->count++] = chunk;
}

static tide_chunk reference_next_changed(queue *q)
{
    if (q->count == 0)
        return TIDE_CHUNK_NONE;
    const tide_chunk chunk = q->chunks[0];
    memmove(q->chunks, q->chunks + 1, --q->count * sizeof *q->chunks);
    return chunk;
}

static void a_subscriber_sees_each_changed_chunk_once_in_order(void **state)
{
    tide_places places;
    queue queues[TIDE_SUBSCRIBERS] = {{.count = 0}};
    create_places(&places);
    for (uint32_t round = 0; round < 20000; round++) {
        const uint32_t subscriber = below(TIDE_SUBSCRIBERS), subscribers = below(TIDE_SUBSCRIBERS_ALL + 1),
                       kind = below(40);
        const tide_chunk chunk = below(CHUNKS);
        if (kind == 0) {
            tide_places_notify_all(&places, (tide_subscriber)subscriber);
            for (tide_chunk i = 0; i < CHUNKS; i++)
                reference_notify(&queues[subscriber], i);
        } else if (kind < 20) {
            tide_places_notify(&places, chunk, subscribers);
            for (uint32_t i = 0; i < TIDE_SUBSCRIBERS; i++)
                if (subscribers & 1u << i)
                    reference_notify(&queues[i], chunk);
        } else {
            assert_int_equal(tide_places_next_changed(&places, (tide_subscriber)subscriber),
                             reference_next_changed(&queues[subscriber]));
        }
    }
    for (int i = 0; i < TIDE_SUBSCRIBERS; i++)
        while (queues[i].count)
            assert_int_equal(tide_places_next_changed(&places, (tide_subscriber)i),
                             reference_next_changed(&queues[i]));
    tide_places_destroy(&places);
}

/* Take the chunk off every change list and return a bit for each subscriber that had it. No list may have
 * another chunk. */
static uint32_t changed(tide_places *places, tide_chunk chunk)
{
    uint32_t subscribers = 0;
    for (int i = 0; i < TIDE_SUBSCRIBERS; i++)
        for (tide_chunk found;
             (found = tide_places_next_changed(places, (tide_subscriber)i)) != TIDE_CHUNK_NONE;) {
            assert_int_equal(found, chunk);
            subscribers |= 1u << i;
        }
    assert_int_equal(places->chunks[chunk].changed, 0);
    return subscribers;
}

#define ALL_LOOK_AFTER(change)                                                                               \
    do {                                                                                                     \
        change;                                                                                              \
        assert_int_equal(changed(&p, 5), TIDE_SUBSCRIBERS_ALL);                                              \
    } while (0)

static void everybody_is_told_when_a_place_changes(void **state)
{
    tide_places p;
    create_places(&p);
    ALL_LOOK_AFTER(tide_places_set_live(&p, 5, true));
    ALL_LOOK_AFTER(tide_places_take(&p, 5, TIDE_TIER_DEVICE));
    ALL_LOOK_AFTER(tide_places_open(&p, 5));
    ALL_LOOK_AFTER(tide_places_close(&p, 5));
    ALL_LOOK_AFTER(tide_places_set_valid(&p, 5, TIDE_TIER_DEVICE));
    ALL_LOOK_AFTER(tide_places_pin(&p, 5, TIDE_TIER_DEVICE));
    ALL_LOOK_AFTER(tide_places_unpin(&p, 5, TIDE_TIER_DEVICE));
    ALL_LOOK_AFTER(tide_places_take(&p, 5, TIDE_TIER_HOST));
    ALL_LOOK_AFTER(tide_places_set_valid(&p, 5, TIDE_TIER_HOST));
    ALL_LOOK_AFTER(tide_places_make_stale(&p, 5));
    ALL_LOOK_AFTER(tide_places_set_valid(&p, 5, TIDE_TIER_DEVICE));
    ALL_LOOK_AFTER(tide_places_release(&p, 5, TIDE_TIER_DEVICE));
    ALL_LOOK_AFTER(tide_places_request(&p, 5, true));
    ALL_LOOK_AFTER(tide_places_request(&p, 5, false));
    ALL_LOOK_AFTER(tide_places_set_live(&p, 5, false)); /* it gives up its host slot */
    assert_int_equal(tide_places_free(&p, TIDE_TIER_HOST), 4);
    tide_places_destroy(&p);
}

static void who_is_told_of_a_mark_is_who_minds_it(void **state)
{
    static const uint32_t tasks = 1u << TIDE_SUBSCRIBER_TASKS,
                          evictions = 1u << TIDE_SUBSCRIBER_EVICTION_QUEUE;
    static const struct {
        uint32_t mark, subscribers;
    } cases[] = {
        {TIDE_MARK_REQUESTED, TIDE_SUBSCRIBERS_ALL},
        {TIDE_MARK_EVICTING, TIDE_SUBSCRIBERS_ALL},
        {TIDE_MARK_WRITING, TIDE_SUBSCRIBERS_ALL},
        {TIDE_MARK_KEPT, TIDE_SUBSCRIBERS_ALL},
        {TIDE_MARK_FIRST, tasks},
        {TIDE_MARK_ASSEMBLE_DEVICE, evictions},
        {TIDE_MARK_ASSEMBLE_HOST, 0},
    };
    tide_places p;
    create_places(&p);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tide_places_mark(&p, 5, cases[i].mark);
        assert_int_equal(changed(&p, 5), cases[i].subscribers);
        tide_places_mark(&p, 5, cases[i].mark); /* the mark is already set */
        assert_int_equal(changed(&p, 5), 0);
        tide_places_unmark(&p, 5, cases[i].mark);
        assert_int_equal(changed(&p, 5), cases[i].subscribers);
    }
    tide_places_mark(&p, 5, TIDE_MARK_WRITING);
    assert_int_equal(p.queued, 1);
    tide_places_change_marks(&p, 5, TIDE_MARK_EVICTING, TIDE_MARK_WRITING);
    assert_int_equal(p.queued, 1);
    tide_places_unmark(&p, 5, TIDE_MARKS_QUEUED);
    assert_int_equal(p.queued, 0);
    tide_places_destroy(&p);
}

static void a_slot_that_several_chunks_hold_is_found(void **state)
{
    tide_places p;
    create_places(&p);
    for (tide_chunk chunk = 0; chunk < 3; chunk++) {
        tide_places_set_live(&p, chunk, true);
        tide_places_take(&p, chunk, TIDE_TIER_DEVICE);
        tide_places_set_valid(&p, chunk, TIDE_TIER_DEVICE);
    }
    assert_true(tide_places_is_valid(&p, true));
    p.chunks[0].slot[TIDE_TIER_DEVICE] = 1;
    assert_false(tide_places_is_valid(&p, true));
    /* all three are in slot 1 now, and the sum of their slots is right again */
    p.chunks[2].slot[TIDE_TIER_DEVICE] = 1;
    assert_false(tide_places_is_valid(&p, true));
    tide_places_destroy(&p);
}

/* The command that last used a slot may still be running, and the slot's next user would have to wait for
 * it. */
static void a_slot_given_back_last_is_taken_last(void **state)
{
    tide_places p;
    create_places(&p);
    const uint32_t first = tide_places_take(&p, 0, TIDE_TIER_DEVICE);
    const uint32_t second = tide_places_take(&p, 1, TIDE_TIER_DEVICE);
    tide_places_release(&p, 1, TIDE_TIER_DEVICE);
    tide_places_release(&p, 0, TIDE_TIER_DEVICE);
    const uint32_t third = tide_places_take(&p, 2, TIDE_TIER_DEVICE);
    assert_true(third != first && third != second);
    assert_int_equal(tide_places_take(&p, 3, TIDE_TIER_DEVICE), second);
    assert_int_equal(tide_places_take(&p, 0, TIDE_TIER_DEVICE), first);
    tide_places_destroy(&p);
}

/* --- moves --- */

typedef struct fixture {
    tide_description *description;
    tide_layout *layout;
    tide_places places;
    tide_moves moves;
    tide_manager_counters counters;
    tide_command command;
} fixture;

/* Two PARAM chunks, 0 and 1, then their STATE chunks, and one ACTIVATION chunk, the last. */
static void arrange(fixture *r)
{
    const uint32_t slots[TIDE_TIER_COUNT] = {3, 4};
    const uint64_t elements = 2000;
    uint32_t number;
    memset(r, 0, sizeof *r);
    assert_int_equal(tide_description_create(TIDE_DTYPE_FP32, 0, &r->description), TIDE_OK);
    assert_int_equal(tide_description_add_param(r->description, "p", &elements, 1, NULL, &number), TIDE_OK);
    assert_int_equal(tide_description_add_activation(r->description, "c", 1, 100, &number), TIDE_OK);
    assert_int_equal(tide_layout_create(r->description, CHUNK_BYTES, TIDE_SHARD_ALL, &r->layout), TIDE_OK);
    assert_int_equal(tide_places_create(&r->places, tide_layout_chunk_count(r->layout), slots), TIDE_OK);
    tide_moves_init(&r->moves, r->layout, &r->places, &r->counters);
}

static void undo(fixture *r)
{
    assert_true(tide_places_is_valid(&r->places, true));
    assert_int_equal(tide_moves_open(&r->moves), 0);
    tide_places_destroy(&r->places);
    tide_layout_destroy(r->layout);
    tide_description_destroy(r->description);
}

static void finish(fixture *r, bool ok)
{
    const tide_command *open = tide_moves_find(&r->moves, r->command.id);
    assert_memory_equal(open, &r->command, sizeof r->command);
    tide_moves_finish(&r->moves, open, ok);
    tide_moves_close(&r->moves, r->command.id);
}

static void expect(const fixture *r, tide_chunk chunk, bool on_device, bool on_host, bool busy)
{
    const tide_place *place = tide_place_of(&r->places, chunk);
    assert_int_equal(tide_place_has(place, TIDE_TIER_DEVICE), on_device);
    assert_int_equal(tide_place_has(place, TIDE_TIER_HOST), on_host);
    assert_int_equal(place->busy, busy);
}

/* Bring chunk 0 to the device; the host has no copy. */
static void bring(fixture *r)
{
    tide_places_set_live(&r->places, 0, true);
    tide_moves_fetch(&r->moves, 0, TIDE_REASON_DEMAND, &r->command);
    finish(r, true);
    expect(r, 0, true, false, false);
}

static void what_has_no_content_is_zeroed_but_an_activation_comes_as_it_is(void **state)
{
    fixture r;
    arrange(&r);
    const tide_chunk last = tide_layout_chunk_count(r.layout) - 1;
    tide_moves_fetch(&r.moves, 1, TIDE_REASON_PREFETCH, &r.command);
    assert_true(r.command.zero && !r.command.copy && !r.command.in_place);
    expect(&r, 1, false, false, true);
    finish(&r, true);
    tide_moves_fetch(&r.moves, last, TIDE_REASON_DEMAND, &r.command);
    assert_true(!r.command.zero && !r.command.copy);
    finish(&r, true);
    assert_int_equal(r.counters.prefetches, 1);
    assert_int_equal(r.counters.demand_fetches, 1);
    undo(&r);
}

static void a_fetch_that_failed_gives_its_slot_back(void **state)
{
    fixture r;
    arrange(&r);
    tide_moves_fetch(&r.moves, 0, TIDE_REASON_PROMOTE, &r.command);
    assert_int_equal(r.moves.promotions_open, 1);
    assert_int_equal(tide_places_free(&r.places, TIDE_TIER_DEVICE), 2);
    finish(&r, false);
    expect(&r, 0, false, false, false);
    assert_int_equal(r.moves.promotions_open, 0);
    assert_int_equal(r.counters.promotions, 0);
    assert_int_equal(tide_places_free(&r.places, TIDE_TIER_DEVICE), 3);
    undo(&r);
}

static void an_eviction_with_a_copy_ends_on_the_host_alone(void **state)
{
    fixture r;
    arrange(&r);
    bring(&r);
    tide_places_mark(&r.places, 0, TIDE_MARK_KEPT);
    tide_moves_out(&r.moves, TIDE_COMMAND_EVICT, 0, true, TIDE_REASON_DEMAND, &r.command);
    assert_int_equal(r.moves.evictions_open, 1);
    expect(&r, 0, true, false, true);
    finish(&r, false); /* a failed command changes nothing */
    expect(&r, 0, true, false, false);
    assert_int_equal(tide_places_free(&r.places, TIDE_TIER_HOST), 4);
    tide_moves_out(&r.moves, TIDE_COMMAND_EVICT, 0, true, TIDE_REASON_DEMAND, &r.command);
    finish(&r, true);
    expect(&r, 0, false, true, false);
    assert_int_equal(r.moves.evictions_open, 0);
    assert_int_equal(r.counters.evictions, 1);
    assert_int_equal(r.counters.clean_drops, 0);
    assert_int_equal(tide_place_of(&r.places, 0)->marks, 0); /* it is not KEPT any more */
    undo(&r);
}

static void a_chunk_that_is_written_back_is_a_duplicate_and_leaves_for_nothing(void **state)
{
    fixture r;
    arrange(&r);
    bring(&r);
    tide_moves_out(&r.moves, TIDE_COMMAND_WRITE_BACK, 0, true, TIDE_REASON_UPDATE, &r.command);
    finish(&r, false);
    expect(&r, 0, true, false, false);
    tide_moves_out(&r.moves, TIDE_COMMAND_WRITE_BACK, 0, true, TIDE_REASON_UPDATE, &r.command);
    finish(&r, true);
    expect(&r, 0, true, true, false);
    assert_true(tide_place_is_duplicate(tide_place_of(&r.places, 0)));
    tide_moves_out(&r.moves, TIDE_COMMAND_EVICT, 0, false, TIDE_REASON_DEMAND, &r.command);
    finish(&r, true);
    expect(&r, 0, false, true, false);
    assert_int_equal(r.counters.write_backs, 1);
    assert_int_equal(r.counters.clean_drops, 1);
    undo(&r);
}

static void a_stale_chunk_is_fetched_into_its_own_slot_which_a_failure_leaves_to_it(void **state)
{
    fixture r;
    arrange(&r);
    bring(&r);
    tide_moves_out(&r.moves, TIDE_COMMAND_WRITE_BACK, 0, true, TIDE_REASON_UPDATE, &r.command);
    finish(&r, true);
    const uint32_t slot = tide_place_of(&r.places, 0)->slot[TIDE_TIER_DEVICE];
    tide_places_make_stale(&r.places, 0);
    for (int ok = 0; ok < 2; ok++) {
        tide_moves_fetch(&r.moves, 0, TIDE_REASON_DEMAND, &r.command);
        assert_true(r.command.in_place && r.command.copy);
        assert_int_equal(r.command.device_slot, slot);
        finish(&r, ok);
        assert_int_equal(tide_place_of(&r.places, 0)->slot[TIDE_TIER_DEVICE], slot);
        assert_int_equal(tide_place_of(&r.places, 0)->stale, !ok);
    }
    expect(&r, 0, true, true, false);
    undo(&r);
}

static void open_commands_are_kept_as_they_are_under_ids_that_never_come_twice(void **state)
{
    enum { ROUNDS = 5000 };
    fixture r;
    tide_command commands[TIDE_OPEN_COMMANDS_MAX];
    uint32_t ids[ROUNDS], issued = 0, open = 0;
    arrange(&r);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        const bool fills = round / 500 % 2 == 0;
        if (open < TIDE_OPEN_COMMANDS_MAX && (open == 0 || below(10) < (fills ? 8u : 2u))) {
            tide_command *command = &commands[open++];
            memset(command, 0, sizeof *command); /* the comparison below includes the struct's padding */
            command->kind = TIDE_COMMAND_UPDATE;
            command->piece = round;
            tide_moves_issue(&r.moves, command);
            for (uint32_t i = 0; i < issued; i++)
                assert_int_not_equal(ids[i], command->id);
            ids[issued++] = command->id;
        } else {
            const uint32_t at = below(open);
            assert_memory_equal(tide_moves_find(&r.moves, commands[at].id), &commands[at], sizeof *commands);
            tide_moves_close(&r.moves, commands[at].id);
            commands[at] = commands[--open];
        }
        assert_int_equal(tide_moves_open(&r.moves), open);
    }
    while (open)
        tide_moves_close(&r.moves, commands[--open].id);
    undo(&r);
}

/* --- memory that runs out --- */

static void places_without_memory_say_so_and_leave_nothing(void **state)
{
    const uint32_t slots[TIDE_TIER_COUNT] = {3, 4};
    tide_status status = TIDE_ERROR_NO_MEMORY;
    unsigned request = 0;
    for (; status == TIDE_ERROR_NO_MEMORY; request++) {
        tide_places places;
        fake_memory_fail(request);
        status = tide_places_create(&places, CHUNKS, slots);
        assert_int_equal(status, fake_memory_failed() ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        fake_memory_clear();
        if (status == TIDE_OK)
            tide_places_destroy(&places);
    }
    assert_int_equal(status, TIDE_OK);
    assert_int_equal(request, TIDE_TIER_COUNT + 1 + TIDE_SUBSCRIBERS + 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_subscriber_sees_each_changed_chunk_once_in_order),
        cmocka_unit_test(everybody_is_told_when_a_place_changes),
        cmocka_unit_test(who_is_told_of_a_mark_is_who_minds_it),
        cmocka_unit_test(a_slot_that_several_chunks_hold_is_found),
        cmocka_unit_test(a_slot_given_back_last_is_taken_last),
        cmocka_unit_test(what_has_no_content_is_zeroed_but_an_activation_comes_as_it_is),
        cmocka_unit_test(a_fetch_that_failed_gives_its_slot_back),
        cmocka_unit_test(an_eviction_with_a_copy_ends_on_the_host_alone),
        cmocka_unit_test(a_chunk_that_is_written_back_is_a_duplicate_and_leaves_for_nothing),
        cmocka_unit_test(a_stale_chunk_is_fetched_into_its_own_slot_which_a_failure_leaves_to_it),
        cmocka_unit_test(open_commands_are_kept_as_they_are_under_ids_that_never_come_twice),
        cmocka_unit_test(places_without_memory_say_so_and_leave_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
