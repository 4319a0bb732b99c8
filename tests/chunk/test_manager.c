/* The manager, one behaviour per test. Params are fp32 and one chunk large, with four bytes of state per
 * element: param i is chunk i, its state is chunk params + i, and its update is one piece.
 * (test_manager_pieces.c tests updates of several pieces.) The fixture carries out commands at once and logs
 * them, unless a test says otherwise. */
#include "manager_fixture.h"

#include <string.h>

/* --- moves --- */

static void evicting_a_clean_chunk_copies_nothing(void **state)
{
    (void)state;
    arrange_chain(3, false, 2, 20, TIDE_PLACEMENT_HOST, false);
    set_all_params();
    forward_pass(0, 2);
    assert_int_equal(count(TIDE_COMMAND_EVICT), 1);
    assert_false(find(TIDE_COMMAND_EVICT, 0)->copy);
    assert_true(find(TIDE_COMMAND_FETCH, 0)->copy);
    assert_int_equal(counters().clean_drops, 1);
    assert_int_equal(counters().demand_fetches, 3);
}

static void evicting_a_chunk_with_a_gradient_copies_it(void **state)
{
    (void)state;
    arrange_chain(3, true, 1, 20, TIDE_PLACEMENT_HOST, false);
    set_all_params();
    step_begin(true, true);
    run_ops(0, 3);
    assert_false(residency(2).host_valid);
    f.log_count = 0;
    run_op(4);
    assert_true(find(TIDE_COMMAND_EVICT, 2)->copy);
    assert_true(residency(2).host_valid);
}

static void a_chunk_without_content_is_zeroed_not_copied(void **state)
{
    (void)state;
    arrange_chain(2, false, 1, 20, TIDE_PLACEMENT_HOST, false);
    step_begin(false, false);
    begin(0);
    assert_false(f.log[0].copy);
    assert_true(f.log[0].zero);
    assert_true(residency(0).pinned);
}

static void without_a_recording_the_least_recently_used_leaves(void **state)
{
    (void)state;
    arrange_chain(4, false, 3, 20, TIDE_PLACEMENT_HOST, false);
    set_all_params();
    step_begin(false, false);
    run_ops(0, 2);
    run_op(0); /* chunk 1 is now the least recently used */
    run_op(3);
    assert_non_null(find(TIDE_COMMAND_EVICT, 1));
    assert_int_equal(count(TIDE_COMMAND_EVICT), 1);
}

static void with_a_recording_the_farthest_next_use_leaves_wrapping_around(void **state)
{
    (void)state;
    arrange_chain(4, false, 3, 20, TIDE_PLACEMENT_HOST, false);
    set_all_params();
    forward_pass(0, 3); /* this pass is recorded; chunks 1, 2, 3 are on the device at its end */
    step_begin(false, false);
    f.log_count = 0;
    /* chunks 1, 2, 3 are used in 0, 1, 2 schedule steps: 3 must leave; least recently used would choose 1 */
    run_op(0);
    assert_int_equal(count(TIDE_COMMAND_EVICT), 1);
    assert_non_null(find(TIDE_COMMAND_EVICT, 3));
    run_ops(1, 2);
    f.log_count = 0;
    run_op(3); /* in the next step 0 is used first, 2 last */
    assert_non_null(find(TIDE_COMMAND_EVICT, 2));
}

static void a_chunk_that_is_to_leave_stays_if_it_is_used_again_first(void **state)
{
    (void)state;
    arrange_chain(4, false, 2, 20, TIDE_PLACEMENT_HOST, true);
    set_all_params();
    forward_pass(0, 3); /* this pass is recorded */
    forward_pass(0, 3); /* this one follows the plan */
    run_engine();
    step_begin(false, false);
    run_op(0); /* the plan now evicts chunk 0, but the test does not ask for the command */
    assert_int_equal(tide_manager_begin(f.manager, 0), TIDE_OK);
    assert_true(tide_manager_ready(f.manager));
    assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
    f.log_count = 0;
    run_engine(); /* the pass deviates from the recorded order, so no plan applies */
    assert_int_equal(count(TIDE_COMMAND_EVICT), 0);
}

static void no_more_victims_leave_than_slots_are_missing(void **state)
{
    tide_command command, another;
    arrange_chain(3, false, 2, 20, TIDE_PLACEMENT_HOST, false);
    step_begin(false, false);
    run_ops(0, 1);
    assert_int_equal(tide_manager_begin(f.manager, 2), TIDE_OK);
    assert_true(tide_manager_next(f.manager, &command));
    assert_int_equal(command.kind, TIDE_COMMAND_EVICT);
    assert_false(tide_manager_next(f.manager, &another)); /* the open eviction will provide the slot */
    clean_up(state);

    /* An update of one of the three params needs a slot for its state, too. */
    arrange_chain(3, true, 3, 20, TIDE_PLACEMENT_DEVICE, false);
    step_begin(true, true);
    run_ops(0, 5);
    step_end();
    assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
    assert_true(tide_manager_next(f.manager, &command));
    assert_int_equal(command.kind, TIDE_COMMAND_EVICT);
    assert_int_equal(command.chunk, 2);
    assert_false(tide_manager_next(f.manager, &another));
}

static void a_clean_chunk_leaves_when_it_is_needed_nearly_as_late(void **state)
{
    (void)state;
    arrange_chain(6, false, 5, 40, TIDE_PLACEMENT_HOST, false);
    for (uint32_t i = 0; i < 5; i++)
        access_chunk(i, WRITE);
    forward_pass(0, 5); /* param 5 now has zeros that only the device has */
    step_begin(false, false);
    f.log_count = 0;
    run_op(0); /* chunk 5 is used again in 4 schedule steps, chunk 4 in 3 */
    assert_int_equal(count(TIDE_COMMAND_EVICT), 1);
    assert_non_null(find(TIDE_COMMAND_EVICT, 4));
}

static void device_state_is_next_used_by_its_update(void **state)
{
    (void)state;
    arrange_chain(2, true, 9, 20, TIDE_PLACEMENT_DEVICE, false);
    /* the op uses in these schedule steps: param 0 forward, 1 forward, 1 backward, 0 backward */
    step_begin(true, true);
    run_ops(0, 3);
    step_end();
    assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
    assert_int_equal(tide_future_worth_distance(&f.manager->future, 2 + 1),
                     1); /* its update is pending and comes before param 1's next use */
    run_engine();
    /* the next update comes after param 1's last use */
    assert_int_equal(tide_future_worth_distance(&f.manager->future, 2 + 1), 2);
    assert_int_equal(tide_future_worth_distance(&f.manager->future, 2 + 0), 3);
}

static void both_tiers_just_enough_hold_each_chunk_once(void **state)
{
    (void)state;
    arrange_chain(4, true, 2, 7, TIDE_PLACEMENT_HOST, false); /* 8 chunks and a spare slot */
    for (int step = 0; step < 3; step++) {
        step_begin(true, true);
        run_ops(0, 7);
        step_end();
        assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
        run_engine();
    }
    uint32_t twice = 0;
    for (tide_chunk chunk = 0; chunk < 8; chunk++) {
        where_it_is r = residency(chunk);
        assert_true(r.device_valid || r.host_valid);
        twice += r.device_valid && r.host_valid;
    }
    assert_in_range(twice, 0, 1);
    assert_true(counters().promotions > 0);
}

/* The host is full. It must free slots by returning chunks that it has updated to the device slots that wait
 * for them, before it promotes state that only lies there. */
static void the_host_gets_room_by_what_it_has_updated(void **state)
{
    (void)state;
    arrange_chain(4, true, 5, 5, TIDE_PLACEMENT_HOST, false); /* 8 chunks and two spare slots */
    for (int step = 0; step < 4; step++) {
        f.log_count = 0;
        step_begin(true, true);
        run_ops(0, 7);
        step_end();
        assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
        run_engine();
    }
    uint32_t returned = 0, state_promoted = 0;
    for (uint32_t i = 0; i < f.log_count; i++) {
        const tide_command *c = &f.log[i];
        const bool promote = c->kind == TIDE_COMMAND_FETCH && c->reason == TIDE_REASON_PROMOTE;
        returned += promote && c->in_place && c->chunk < 4;
        state_promoted += promote && c->chunk >= 4;
    }
    assert_in_range(returned, 1, 4);
    assert_int_equal(state_promoted, 0);
}

static tide_request_wait waits_for(void)
{
    return tide_manager_request_wait(f.manager, NULL);
}

static void a_request_says_what_it_waits_for(void **state)
{
    (void)state;
    arrange_chain(3, true, 2, 40, TIDE_PLACEMENT_HOST, false);
    step_begin(true, true);
    assert_int_equal(waits_for(), TIDE_REQUEST_READY);
    assert_int_equal(tide_manager_begin(f.manager, 0), TIDE_OK);
    /* a slot is free, so the request waits only for the move */
    assert_int_equal(waits_for(), TIDE_REQUEST_MOVE);
    run_engine();
    assert_int_equal(waits_for(), TIDE_REQUEST_READY);
    assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
    run_op(1);
    tide_command evict;
    assert_int_equal(tide_manager_begin(f.manager, 2), TIDE_OK);
    assert_int_equal(waits_for(), TIDE_REQUEST_SLOT);
    assert_true(tide_manager_next(f.manager, &evict));
    assert_int_equal(waits_for(), TIDE_REQUEST_SLOT); /* the slot's chunk is being evicted */
    tide_manager_done(f.manager, evict.id, TIDE_OK);
    assert_int_equal(waits_for(), TIDE_REQUEST_MOVE);
    run_engine();
    assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
    run_ops(3, 5);
    step_end();
    assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
    step_begin(true, true);
    assert_int_equal(tide_manager_begin(f.manager, 0), TIDE_OK);
    assert_int_equal(waits_for(), TIDE_REQUEST_PENDING);
    run_engine();
    assert_int_equal(waits_for(), TIDE_REQUEST_READY);
}

/* --- prefetch --- */

static void prefetch_brings_the_next_chunks_in_order_of_use(void **state)
{
    (void)state;
    arrange_chain(6, false, 3, 40, TIDE_PLACEMENT_HOST, true);
    set_all_params();
    forward_pass(0, 5);
    forward_pass(0, 5);
    step_begin(false, false);
    begin(0);
    f.log_count = 0;
    run_engine();
    tide_command_kind fetch = TIDE_COMMAND_FETCH;
    assert_true(residency(1).device_valid);
    assert_true(!find(fetch, 1) || find(fetch, 1)->reason == TIDE_REASON_PREFETCH);
    assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
    uint64_t demanded = counters().demand_fetches;
    for (tide_op op = 1; op < 18; op++) {
        if (op % 6 == 0) {
            step_end();
            step_begin(false, false);
        }
        begin(op % 6);
        run_engine();
        assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
    }
    /* The plan counts on the chunks that a planned pass leaves on the device. The first pass began with
     * others, so it may need one more fetch on demand. */
    assert_in_range(counters().demand_fetches, demanded, demanded + 1);
}

static void prefetch_never_displaces_a_nearer_chunk(void **state)
{
    (void)state;
    arrange_chain(6, false, 3, 40, TIDE_PLACEMENT_HOST, true);
    set_all_params();
    forward_pass(0, 5);
    step_begin(false, false);
    for (tide_op op = 0; op < 6; op++) {
        begin(op);
        uint64_t demanded = counters().demand_fetches;
        run_engine();
        assert_true(residency(op).device_valid);
        if (op > 1) /* a chunk fetched ahead is still there when its op begins */
            assert_int_equal(counters().demand_fetches, demanded);
        assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
    }
}

static void prefetch_brings_back_what_an_update_or_an_access_took_away(void **state)
{
    (void)state;
    arrange_chain(2, true, 4, 20, TIDE_PLACEMENT_HOST, true);
    step_begin(true, false);
    run_ops(0, 3);
    step_end();
    run_engine();
    assert_int_equal(count(TIDE_COMMAND_UPDATE), 2);
    assert_true(residency(0).device_valid && residency(1).device_valid);
    access_chunk(1, WRITE);
    assert_true(residency(1).device_valid && residency(1).host_valid);
    assert_int_equal(find(TIDE_COMMAND_ACCESS, 1)->task_count, 1);
}

static void prefetch_passes_by_a_chunk_under_update_and_returns_for_it(void **state)
{
    (void)state;
    tide_command command, update = {.id = 0};
    arrange_chain(1, true, 4, 20, TIDE_PLACEMENT_HOST, true);
    step_begin(true, false);
    run_ops(0, 1);
    step_end();
    while (tide_manager_next(f.manager, &command)) { /* takes all commands, those of prefetch too */
        if (command.kind == TIDE_COMMAND_UPDATE)
            update = command;
        else
            tide_manager_done(f.manager, command.id, TIDE_OK);
    }
    assert_int_equal(update.kind, TIDE_COMMAND_UPDATE);
    assert_true(f.manager->pending.chunks[0].running);
    assert_false(residency(0).device_valid);
    tide_manager_done(f.manager, update.id, TIDE_OK);
    run_engine();
    assert_true(residency(0).device_valid);
}

static void prefetch_leaves_complete_gradients_alone_until_their_update(void **state)
{
    (void)state;
    arrange_chain(6, true, 3, 40, TIDE_PLACEMENT_HOST, true);
    set_all_params();
    for (int step = 0; step < 3; step++) {
        step_begin(true, true);
        run_ops(0, 11);
        step_end();
        f.log_count = 0;
        /* The norm is not known yet. Chunks that the host will update must not be fetched again, nor
         * exchanged back and forth. */
        run_engine();
        for (uint32_t i = 0; i < f.log_count; i++)
            assert_int_not_equal(f.log[i].kind, TIDE_COMMAND_FETCH);
        assert_true(f.log_count <= 3);
        assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
        run_engine();
    }
}

static void prefetch_costs_no_walk_when_there_is_nothing_to_do(void **state)
{
    (void)state;
    tide_command command;
    arrange_chain(6, false, 3, 40, TIDE_PLACEMENT_HOST, true);
    forward_pass(0, 5);
    step_begin(false, false);
    begin(0);
    run_engine();
    assert_true(f.manager->idle);
    assert_false(tide_manager_next(f.manager, &command));
}

/* --- the schedule --- */

static void a_changed_op_order_goes_on_and_is_counted_once(void **state)
{
    (void)state;
    arrange_chain(4, false, 2, 20, TIDE_PLACEMENT_HOST, true);
    forward_pass(0, 3);
    step_begin(false, false);
    run_op(0);
    run_op(2);
    run_op(1);
    run_op(3);
    step_end();
    assert_int_equal(counters().re_recordings, 1);
    step_begin(false, false);
    run_op(0);
    run_op(2);
    run_op(1);
    run_op(3);
    step_end();
    assert_int_equal(counters().re_recordings, 1); /* the manager has recorded the changed order */
}

static void a_shorter_step_is_a_change_and_an_evaluation_in_between_is_none(void **state)
{
    (void)state;
    arrange_chain(3, true, 2, 20, TIDE_PLACEMENT_HOST, true);
    step_begin(true, false);
    run_ops(0, 5);
    step_end();
    forward_pass(0, 2);
    step_begin(true, false);
    run_ops(0, 5);
    step_end();
    assert_int_equal(counters().re_recordings, 0);
    forward_pass(0, 1);
    assert_int_equal(counters().re_recordings, 1);
    run_engine();
}

/* --- states of tensors --- */

static void illegal_transitions_name_the_tensor(void **state)
{
    (void)state;
    assert_true(tide_tensor_may(TIDE_TENSOR_HOLD, TIDE_TENSOR_COMPUTE));
    assert_false(tide_tensor_may(TIDE_TENSOR_HOLD_AFTER_BWD, TIDE_TENSOR_COMPUTE));
    assert_false(tide_tensor_may(TIDE_TENSOR_FREE, TIDE_TENSOR_HOLD_AFTER_FWD));
    arrange_chain(2, true, 2, 20, TIDE_PLACEMENT_HOST, false);
    step_begin(true, true);
    run_ops(0, 2);
    assert_int_equal(tide_manager_begin(f.manager, 2), TIDE_ERROR_STATE);
    assert_non_null(strstr(tide_message(), "param1"));
    assert_int_equal(f.manager->tensors.params[1].state, TIDE_TENSOR_HOLD_AFTER_BWD);
    assert_int_equal(f.manager->tensors.params[0].state, TIDE_TENSOR_HOLD_AFTER_FWD);
}

static void calls_in_the_wrong_order_are_refused_and_change_nothing(void **state)
{
    (void)state;
    arrange(2, 1, 2);
    tide_use use = {.tensor = 0, .access = READ}, part = {.tensor = 0, .access = READ};
    tide_op_description d = {.name = "reads", .pass = TIDE_PASS_FORWARD, .params = &use, .param_count = 1};
    d.activations = &part;
    d.activation_count = 1;
    d.slices = 2;
    tide_op reads, backward;
    assert_int_equal(tide_description_add_op(f.description, &d, &reads), TIDE_OK);
    backward = add_op(TIDE_PASS_BACKWARD, 1, READ | GRAD);
    seal(4, 20, TIDE_PLACEMENT_HOST, false);
    assert_int_equal(tide_manager_begin(f.manager, reads), TIDE_ERROR_STATE);
    assert_int_equal(tide_manager_step_end(f.manager), TIDE_ERROR_STATE);
    step_begin(false, false);
    assert_int_equal(tide_manager_host_request(f.manager, &use, 1), TIDE_ERROR_STATE);
    assert_int_equal(tide_manager_begin(f.manager, backward), TIDE_ERROR_STATE);
    assert_int_equal(tide_manager_begin(f.manager, 9), TIDE_ERROR_ARGUMENT);
    begin(reads);
    assert_int_equal(tide_manager_begin(f.manager, reads), TIDE_ERROR_STATE);
    assert_int_equal(tide_manager_slice(f.manager, 2), TIDE_ERROR_ARGUMENT);
    assert_int_equal(tide_manager_slice(f.manager, 1), TIDE_ERROR_STATE);
    assert_non_null(strstr(tide_message(), "ckpt0"));
    assert_int_equal(tide_manager_step_end(f.manager), TIDE_ERROR_STATE);
    assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
    step_end();
}

static void a_dead_activation_is_never_copied(void **state)
{
    (void)state;
    arrange(1, 3, 1);
    for (uint32_t i = 0; i < 3; i++) {
        tide_op op;
        tide_use use = {.tensor = i, .access = WRITE | LAST};
        tide_op_description d = {.name = "writes",
                                 .pass = TIDE_PASS_FORWARD,
                                 .activations = &use,
                                 .activation_count = 1,
                                 .slices = 1};
        assert_int_equal(tide_description_add_op(f.description, &d, &op), TIDE_OK);
    }
    seal(1, 20, TIDE_PLACEMENT_HOST, false);
    step_begin(false, false);
    for (tide_op op = 0; op < 3; op++) {
        begin(op);
        assert_int_equal(tide_manager_slice(f.manager, 0), TIDE_OK);
        while (!tide_manager_ready(f.manager) && step_engine(TIDE_OK))
            ;
        assert_true(tide_manager_ready(f.manager));
        assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
        assert_int_equal(tide_tensors_part(&f.manager->tensors, op, 0), TIDE_TENSOR_FREE);
        /* only the end of an op counts, not that of a slice */
        assert_int_equal(f.manager->eviction_queue.ended, op + 1);
    }
    assert_int_equal(count(TIDE_COMMAND_FETCH), 3);
    for (uint32_t i = 0; i < f.log_count; i++)
        assert_false(f.log[i].copy || f.log[i].zero);
}

static void run_slices(tide_op op, uint32_t count)
{
    begin(op);
    for (uint32_t slice = 0; slice < count; slice++) {
        assert_int_equal(tide_manager_slice(f.manager, slice), TIDE_OK);
        run_engine();
        assert_true(tide_manager_ready(f.manager));
    }
}

static void what_a_slice_wrote_leaves_for_what_comes_next(void **state)
{
    (void)state;
    arrange(1, 1, 3);
    const tide_use uses[] = {{.tensor = 0, .access = WRITE}, {.tensor = 0, .access = READ | LAST}};
    for (int i = 0; i < 2; i++) {
        tide_op op;
        const tide_op_description d = {.name = "slices",
                                       .pass = TIDE_PASS_FORWARD,
                                       .activations = &uses[i],
                                       .activation_count = 1,
                                       .slices = 3};
        assert_int_equal(tide_description_add_op(f.description, &d, &op), TIDE_OK);
    }
    seal(2, 20, TIDE_PLACEMENT_HOST, true);
    step_begin(false, false);
    for (tide_op op = 0; op < 2; op++) {
        run_slices(op, 3);
        assert_int_equal(tide_manager_end(f.manager), TIDE_OK);
    }
    step_end(); /* this pass is recorded */
    f.log_count = 0;
    step_begin(false, false);
    run_slices(0, 2);
    assert_true(find(TIDE_COMMAND_EVICT, 2)->copy);
    assert_int_equal(find(TIDE_COMMAND_FETCH, 4)->reason, TIDE_REASON_PREFETCH);
}

/* --- gradients --- */

static void a_tied_gradient_goes_into_its_place_at_the_last_op(void **state)
{
    (void)state;
    arrange(1, 0, 0);
    add_op(TIDE_PASS_FORWARD, 0, READ);
    tide_op head = add_op(TIDE_PASS_BOTH, 0, READ | GRAD), embedding = add_op(TIDE_PASS_BACKWARD, 0, GRAD);
    seal(1, 20, TIDE_PLACEMENT_HOST, false);
    assert_true(tide_gradients_is_shared(tide_manager_gradients(f.manager), 0));
    set_all_params();
    step_begin(true, false);
    run_op(0);
    run_op(head);
    assert_false(f.manager->tensors.params[0].has_gradient);
    assert_true(residency(0).host_valid); /* no gradient was rounded into its place yet */
    assert_int_equal(tide_manager_step_end(f.manager), TIDE_ERROR_STATE);
    run_op(head); /* runs a second time */
    assert_int_equal(tide_manager_updates_open(f.manager), 0);
    run_op(embedding);
    assert_true(f.manager->tensors.params[0].has_gradient);
    assert_int_equal(tide_manager_updates_open(f.manager), 1);
    for (tide_op op = 0; op <= embedding; op++)
        assert_int_equal(tide_manager_begin(f.manager, op), TIDE_ERROR_STATE);
}

static void a_gradient_waits_for_a_later_op_that_reads_the_param(void **state)
{
    (void)state;
    arrange(1, 0, 0);
    tide_op first = add_op(TIDE_PASS_BOTH, 0, GRAD), last = add_op(TIDE_PASS_BACKWARD, 0, READ);
    seal(1, 20, TIDE_PLACEMENT_HOST, false);
    assert_true(tide_gradients_is_shared(tide_manager_gradients(f.manager), 0));
    set_all_params();
    step_begin(true, false);
    run_op(last); /* may not close the gradient, as no op has added to it yet */
    assert_false(f.manager->tensors.params[0].has_gradient);
    run_op(first);
    assert_false(f.manager->tensors.params[0].has_gradient);
    run_op(last);
    assert_true(f.manager->tensors.params[0].has_gradient);
    assert_false(residency(0).host_valid);
}

static void a_param_without_gradient_gets_zeros_and_is_counted(void **state)
{
    (void)state;
    arrange_chain(2, true, 2, 20, TIDE_PLACEMENT_HOST, false);
    step_begin(true, false);
    run_op(0);
    run_op(1);
    run_op(2); /* backward of param 1 only */
    step_end();
    assert_false(f.manager->tensors.params[0].has_gradient);
    assert_true(f.manager->tensors.params[1].has_gradient);
    assert_int_equal(counters().zero_gradients, 1);
    run_engine();
    assert_int_equal(count(TIDE_COMMAND_UPDATE), 2);
}

/* --- updates --- */

static void an_update_starts_in_backward_or_waits_for_its_release(void **state)
{
    (void)state;
    arrange_chain(2, true, 2, 20, TIDE_PLACEMENT_HOST, false);
    step_begin(true, false);
    run_ops(0, 2);
    run_engine();
    assert_non_null(find(TIDE_COMMAND_UPDATE, 1));
    run_op(3);
    step_end();
    run_engine();
    assert_int_equal(f.manager->tensors.params[1].state, TIDE_TENSOR_HOLD);
    f.log_count = 0;
    step_begin(true, true);
    run_ops(0, 3);
    step_end();
    run_engine();
    assert_null(find(TIDE_COMMAND_UPDATE, ALL));
    assert_int_equal(tide_manager_step_begin(f.manager, true, true), TIDE_ERROR_STATE);
    assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
    run_engine();
    assert_int_equal(count(TIDE_COMMAND_UPDATE), 2);
    assert_int_equal(find(TIDE_COMMAND_UPDATE, ALL)->chunk, 0); /* updates run in forward order */
}

static void an_op_waits_for_its_own_update_only(void **state)
{
    (void)state;
    arrange_chain(3, true, 3, 20, TIDE_PLACEMENT_HOST, false);
    step_begin(true, false);
    run_ops(0, 5);
    step_end();
    f.log_count = 0;
    step_begin(false, false);
    begin(2);
    assert_non_null(find(TIDE_COMMAND_UPDATE, 2)); /* it came before the updates of 0 and 1 */
    assert_null(find(TIDE_COMMAND_UPDATE, 0));
    assert_int_equal(tide_manager_updates_open(f.manager), 2);
}

static void a_host_update_leaves_only_host_copies_and_a_device_update_only_device_ones(void **state)
{
    for (int on_device = 0; on_device < 2; on_device++) {
        arrange_chain(1, true, 5, 20, on_device ? TIDE_PLACEMENT_DEVICE : TIDE_PLACEMENT_HOST, false);
        step_begin(true, false);
        run_ops(0, 1);
        step_end();
        run_engine();
        const tide_command *update = find(TIDE_COMMAND_UPDATE, 0);
        assert_int_equal(update->tier, on_device ? TIDE_TIER_DEVICE : TIDE_TIER_HOST);
        assert_int_equal(update->task[1].needs_zero, !on_device); /* on the device the fetch has zeroed it */
        for (tide_chunk chunk = 0; chunk < 2; chunk++) {
            assert_int_equal(residency(chunk).device_valid, on_device);
            assert_int_equal(residency(chunk).host_valid, !on_device);
        }
        clean_up(state);
    }
}

static void auto_places_the_first_chunks_state_in_the_margin(void **state)
{
    (void)state;
    arrange_chain(4, true, 4 + 1 + 1, 20, TIDE_PLACEMENT_AUTO, true); /* device slots for one chunk's state */
    /* its gradient is complete last, and the next step needs it first */
    assert_true(tide_manager_updates_on_device(f.manager, 0));
    assert_false(tide_manager_updates_on_device(f.manager, 1));
}

static void train_one_step(void)
{
    step_begin(true, false);
    run_ops(0, 7);
    step_end();
    run_engine();
}

static void auto_lets_both_sides_end_their_updates_together(void **state)
{
    (void)state;
    arrange_chain(4, true, 4 + 1 + 4, 20, TIDE_PLACEMENT_AUTO, true); /* device slots for everything */
    train_one_step();
    for (tide_chunk chunk = 0; chunk < 4; chunk++)
        assert_true(tide_manager_updates_on_device(f.manager, chunk));
    const uint64_t planned = counters().plans;
    /* the host takes 3 s an update, the device 1 s */
    tide_manager_set_update_seconds(f.manager, 3, 1);
    /* an update's tier does not change while it may be pending */
    assert_true(tide_manager_updates_on_device(f.manager, 3));
    train_one_step();
    for (tide_chunk chunk = 0; chunk < 4; chunk++)
        assert_int_equal(tide_manager_updates_on_device(f.manager, chunk), chunk < 3);
    train_one_step();
    assert_true(counters().plans > planned); /* there was a new plan for the new placement */
    tide_manager_set_update_seconds(f.manager, 3.1, 1);
    train_one_step();
    f.log_count = 0;
    train_one_step();
    assert_int_equal(find(TIDE_COMMAND_UPDATE, 2)->tier, TIDE_TIER_DEVICE);
    assert_int_equal(find(TIDE_COMMAND_UPDATE, 3)->tier, TIDE_TIER_HOST);
}

static void auto_leaves_the_host_no_more_updates_than_it_has_room_for(void **state)
{
    (void)state;
    /* The host has slots for two updates, each with a chunk of params and one of state. */
    arrange_chain(4, true, 4 + 1 + 4, 2 * 2, TIDE_PLACEMENT_AUTO, true);
    train_one_step();
    /* the host would get three of four updates if it had the slots */
    tide_manager_set_update_seconds(f.manager, 1, 3);
    train_one_step();
    for (tide_chunk chunk = 0; chunk < 4; chunk++)
        assert_int_equal(tide_manager_updates_on_device(f.manager, chunk), chunk < 2);
}

static void a_chunk_updated_on_the_host_keeps_its_slot_where_there_are_enough(void **state)
{
    (void)state;
    arrange_chain(4, true, 4, 20, TIDE_PLACEMENT_HOST, true);
    for (int step = 0; step < 3; step++)
        train_one_step();
    f.log_count = 0;
    train_one_step();
    assert_int_equal(count(TIDE_COMMAND_EVICT), 0);
    assert_int_equal(count(TIDE_COMMAND_WRITE_BACK), 4);
    assert_int_equal(count(TIDE_COMMAND_FETCH), 4);
    for (tide_chunk chunk = 0; chunk < 4; chunk++) {
        const tide_command *fetch = find(TIDE_COMMAND_FETCH, chunk);
        assert_true(fetch->in_place && fetch->copy && !fetch->zero);
        assert_int_equal(fetch->device_slot, find(TIDE_COMMAND_WRITE_BACK, chunk)->device_slot);
        assert_true(residency(chunk).device_valid && residency(chunk).host_valid);
    }
}

/* --- skipped steps, aborts, failures --- */

static void a_skipped_step_rewrites_what_held_gradients(void **state)
{
    (void)state;
    arrange_chain(2, true, 2, 20, TIDE_PLACEMENT_HOST, false);
    set_all_params();
    step_begin(true, true);
    run_ops(0, 2); /* param 1 has a gradient, param 0 has none */
    step_end();
    assert_int_equal(tide_manager_skip_updates(f.manager), TIDE_OK);
    run_engine();
    assert_int_equal(count(TIDE_COMMAND_RESTORE), 1);
    assert_non_null(find(TIDE_COMMAND_RESTORE, 1));
    assert_false(find(TIDE_COMMAND_EVICT, 1)->copy); /* the gradient is not needed any more */
    assert_int_equal(f.manager->tensors.params[0].state, TIDE_TENSOR_HOLD);
    assert_int_equal(f.manager->tensors.params[1].state, TIDE_TENSOR_HOLD);
    assert_false(f.manager->tensors.params[1].has_gradient);
}

static void an_update_that_was_never_started_poisons_nothing(void **state)
{
    (void)state;
    bool gave_up, poisoned;
    tide_command command = {.kind = TIDE_COMMAND_FETCH};
    arrange_chain(2, true, 2, 20, TIDE_PLACEMENT_HOST, false);
    set_all_params();
    step_begin(true, true);
    run_ops(0, 3);
    step_end();
    assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
    while (command.kind != TIDE_COMMAND_UPDATE) {
        assert_true(tide_manager_next(f.manager, &command));
        if (command.kind != TIDE_COMMAND_UPDATE)
            tide_manager_done(f.manager, command.id, TIDE_OK);
    }
    tide_manager_cancel(f.manager, command.id);
    assert_int_equal(tide_manager_abort(f.manager, &gave_up, &poisoned), TIDE_OK);
    assert_true(gave_up && !poisoned);
    run_engine();
    assert_int_equal(count(TIDE_COMMAND_RESTORE), 2);
}

static void an_abort_is_exact_before_an_update_and_poisoned_after(void **state)
{
    (void)state;
    bool gave_up, poisoned;
    arrange_chain(2, true, 2, 20, TIDE_PLACEMENT_HOST, false);
    set_all_params();
    step_begin(true, false);
    run_ops(0, 2);
    begin(3);
    assert_int_equal(tide_manager_abort(f.manager, &gave_up, &poisoned), TIDE_OK);
    assert_false(poisoned);
    run_engine();
    /* chunk 0 also, because the open op may have rounded its gradient */
    assert_int_equal(count(TIDE_COMMAND_RESTORE), 2);
    assert_null(find(TIDE_COMMAND_UPDATE, ALL));
    step_begin(true, false);
    run_ops(0, 2);
    run_engine();
    assert_non_null(find(TIDE_COMMAND_UPDATE, 1));
    assert_int_equal(tide_manager_abort(f.manager, &gave_up, &poisoned), TIDE_OK);
    assert_true(poisoned);
    assert_int_equal(tide_manager_updates_open(f.manager), 0);
}

static void an_abort_lets_the_updates_of_the_step_before_go_on(void **state)
{
    (void)state;
    bool gave_up, poisoned;
    arrange_chain(2, true, 2, 20, TIDE_PLACEMENT_HOST, false);
    set_all_params();
    step_begin(true, false);
    run_ops(0, 3);
    step_end();
    f.log_count = 0;
    step_begin(true, false);
    begin(0);
    uint32_t open = tide_manager_updates_open(f.manager);
    assert_true(open > 0);
    assert_int_equal(tide_manager_abort(f.manager, &gave_up, &poisoned), TIDE_OK);
    assert_false(poisoned);
    assert_int_equal(tide_manager_updates_open(f.manager), open);
    run_engine();
    assert_int_equal(tide_manager_updates_open(f.manager), 0);
}

static void a_failed_command_leaves_the_chunk_where_it_was(void **state)
{
    (void)state;
    bool gave_up, poisoned;
    tide_command command;
    arrange_chain(2, false, 1, 20, TIDE_PLACEMENT_HOST, false);
    set_all_params();
    step_begin(false, false);
    assert_int_equal(tide_manager_begin(f.manager, 0), TIDE_OK);
    step_engine(TIDE_ERROR_DEVICE); /* fails a fetch */
    assert_true(residency(0).host_valid && !residency(0).device_valid);
    assert_int_equal(tide_manager_abort(f.manager, &gave_up, &poisoned), TIDE_OK);
    step_begin(false, false);
    run_op(0);
    assert_int_equal(tide_manager_begin(f.manager, 1), TIDE_OK);
    assert_true(tide_manager_next(f.manager, &command));
    assert_int_equal(command.kind, TIDE_COMMAND_EVICT);
    assert_int_equal(tide_manager_abort(f.manager, &gave_up, &poisoned),
                     TIDE_ERROR_STATE); /* a command is open */
    tide_manager_done(f.manager, command.id, TIDE_ERROR_DEVICE);
    assert_true(residency(0).device_valid);
    assert_int_equal(counters().evictions, 0);
}

/* --- the host request --- */

static void reading_a_dirty_chunk_writes_it_back_and_writing_one_takes_it_off_the_device(void **state)
{
    (void)state;
    arrange_chain(1, false, 1, 20, TIDE_PLACEMENT_HOST, false);
    forward_pass(0, 0); /* chunk 0 now has zeros that only the device has */
    access_chunk(0, READ);
    assert_non_null(find(TIDE_COMMAND_WRITE_BACK, 0));
    assert_true(residency(0).device_valid && residency(0).host_valid);
    access_chunk(0, WRITE);
    assert_true(!residency(0).device_valid && residency(0).host_valid);
    assert_false(find(TIDE_COMMAND_ACCESS, 0)->task[0].needs_zero);
    access_chunk(1, READ); /* chunk 1 is state that never had a value */
    assert_true(find(TIDE_COMMAND_ACCESS, 1)->task[0].needs_zero);
    assert_int_equal(residency(1).host_slot, TIDE_SLOT_NONE); /* a read gives it none */
}

static void a_host_request_spares_what_the_last_one_was_about(void **state)
{
    (void)state;
    arrange_chain(3, false, 3, 5, TIDE_PLACEMENT_HOST, false);
    for (tide_chunk chunk = 3; chunk < 6; chunk++)
        access_chunk(chunk, WRITE);
    forward_pass(0, 2); /* all three chunks now have zeros that only the device has */
    access_chunk(2, READ);
    access_chunk(0, READ); /* the host is now full and has copies of 2 and 0 */
    access_chunk(1, READ);
    assert_true(residency(0).host_valid && residency(1).host_valid);
    assert_false(residency(2).host_valid);
    access_chunk(2, READ); /* the host now has copies of 0 and 1 */
    assert_true(residency(1).host_valid && residency(2).host_valid);
}

static void the_host_sees_a_chunk_after_its_pending_update(void **state)
{
    (void)state;
    arrange_chain(2, true, 2, 20, TIDE_PLACEMENT_HOST, false);
    set_all_params();
    step_begin(true, true);
    run_ops(0, 3);
    step_end();
    assert_int_equal(tide_manager_release_updates(f.manager), TIDE_OK);
    f.log_count = 0;
    access_chunk(0, READ); /* reads chunk 0, whose update would have come last */
    assert_non_null(find(TIDE_COMMAND_UPDATE, 0));
    assert_true(find(TIDE_COMMAND_UPDATE, 0) < find(TIDE_COMMAND_ACCESS, 0));
}

/* --- budgets --- */

static void budgets_below_the_needs_are_refused(void **state)
{
    tide_slot_needs needs;
    arrange(3, 0, 0);
    tide_use uses[2] = {{0, READ}, {1, READ}};
    tide_op wide;
    tide_op_description d = {.name = "wide", .pass = TIDE_PASS_FORWARD, .params = uses, .param_count = 2};
    add_op(TIDE_PASS_FORWARD, 0, READ);
    assert_int_equal(tide_description_add_op(f.description, &d, &wide), TIDE_OK);
    make_manager();
    tide_manager_needs(&f.manager->ops, TIDE_PLACEMENT_HOST, &needs);
    assert_int_equal(needs.largest_op, wide);
    assert_int_equal(needs.device_slots, 2);
    assert_int_equal(needs.total_slots, 7);
    tide_manager_options options[] = {{.device_slots = 1, .host_slots = 50},
                                      {.device_slots = 50, .host_slots = 1},
                                      {.device_slots = 2, .host_slots = 4}};
    for (int i = 0; i < 3; i++)
        assert_int_equal(tide_manager_seal(f.manager, &options[i]), TIDE_ERROR_BUDGET);
    assert_int_equal(tide_manager_seal(f.manager, &options[0]), TIDE_ERROR_BUDGET);
    assert_non_null(strstr(tide_message(), "wide"));
    seal(2, 5, TIDE_PLACEMENT_HOST, false);
    clean_up(state);

    /* The op needs one slot, but an update on the device needs two. */
    arrange(1, 0, 0);
    add_chain(1, true);
    make_manager();
    tide_manager_options device = {.device_slots = 1, .host_slots = 50, .placement = TIDE_PLACEMENT_DEVICE};
    assert_int_equal(tide_manager_seal(f.manager, &device), TIDE_ERROR_BUDGET);
    seal(2, 2, TIDE_PLACEMENT_DEVICE, false);
}

/* The command that last used a slot may still be running, and the slot's next user would have to wait for
 * it. */
static void a_slot_given_back_last_is_taken_last(void **state)
{
    (void)state;
    const uint32_t slots[TIDE_TIER_COUNT] = {3, 3};
    tide_places places;
    assert_int_equal(tide_places_create(&places, 4, slots), TIDE_OK);
    const uint32_t first = tide_places_take(&places, 0, TIDE_TIER_HOST);
    const uint32_t second = tide_places_take(&places, 1, TIDE_TIER_HOST);
    tide_places_release(&places, 1, TIDE_TIER_HOST);
    tide_places_release(&places, 0, TIDE_TIER_HOST);
    const uint32_t third = tide_places_take(&places, 2, TIDE_TIER_HOST);
    assert_true(third != first && third != second);
    assert_int_equal(tide_places_take(&places, 3, TIDE_TIER_HOST), second);
    assert_int_equal(tide_places_take(&places, 0, TIDE_TIER_HOST), first);
    tide_places_destroy(&places);
}

#define CASE(function) cmocka_unit_test_teardown(function, clean_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(evicting_a_clean_chunk_copies_nothing),
        CASE(evicting_a_chunk_with_a_gradient_copies_it),
        CASE(a_chunk_without_content_is_zeroed_not_copied),
        cmocka_unit_test(a_slot_given_back_last_is_taken_last),
        CASE(without_a_recording_the_least_recently_used_leaves),
        CASE(with_a_recording_the_farthest_next_use_leaves_wrapping_around),
        CASE(a_chunk_that_is_to_leave_stays_if_it_is_used_again_first),
        CASE(no_more_victims_leave_than_slots_are_missing),
        CASE(a_clean_chunk_leaves_when_it_is_needed_nearly_as_late),
        CASE(device_state_is_next_used_by_its_update),
        CASE(both_tiers_just_enough_hold_each_chunk_once),
        CASE(the_host_gets_room_by_what_it_has_updated),
        CASE(a_request_says_what_it_waits_for),
        CASE(prefetch_brings_the_next_chunks_in_order_of_use),
        CASE(prefetch_never_displaces_a_nearer_chunk),
        CASE(prefetch_brings_back_what_an_update_or_an_access_took_away),
        CASE(prefetch_passes_by_a_chunk_under_update_and_returns_for_it),
        CASE(prefetch_leaves_complete_gradients_alone_until_their_update),
        CASE(prefetch_costs_no_walk_when_there_is_nothing_to_do),
        CASE(a_changed_op_order_goes_on_and_is_counted_once),
        CASE(a_shorter_step_is_a_change_and_an_evaluation_in_between_is_none),
        CASE(illegal_transitions_name_the_tensor),
        CASE(calls_in_the_wrong_order_are_refused_and_change_nothing),
        CASE(a_dead_activation_is_never_copied),
        CASE(what_a_slice_wrote_leaves_for_what_comes_next),
        CASE(a_tied_gradient_goes_into_its_place_at_the_last_op),
        CASE(a_gradient_waits_for_a_later_op_that_reads_the_param),
        CASE(a_param_without_gradient_gets_zeros_and_is_counted),
        CASE(an_update_starts_in_backward_or_waits_for_its_release),
        CASE(an_op_waits_for_its_own_update_only),
        CASE(a_host_update_leaves_only_host_copies_and_a_device_update_only_device_ones),
        CASE(auto_places_the_first_chunks_state_in_the_margin),
        CASE(auto_lets_both_sides_end_their_updates_together),
        CASE(auto_leaves_the_host_no_more_updates_than_it_has_room_for),
        CASE(a_chunk_updated_on_the_host_keeps_its_slot_where_there_are_enough),
        CASE(a_skipped_step_rewrites_what_held_gradients),
        CASE(an_update_that_was_never_started_poisons_nothing),
        CASE(an_abort_is_exact_before_an_update_and_poisoned_after),
        CASE(an_abort_lets_the_updates_of_the_step_before_go_on),
        CASE(a_failed_command_leaves_the_chunk_where_it_was),
        CASE(reading_a_dirty_chunk_writes_it_back_and_writing_one_takes_it_off_the_device),
        CASE(a_host_request_spares_what_the_last_one_was_about),
        CASE(the_host_sees_a_chunk_after_its_pending_update),
        CASE(budgets_below_the_needs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
