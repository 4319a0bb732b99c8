/* The reports of `tidepool train`: the table of bytes must add up, else the run is refused; step lines
 * name the causes of stalls; a slow start prints what it makes. */
#include "tests/support/assert_ok.h"
#include "tools/train/train_ranks.h"
#include "tools/train/train_report.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static tide_trainer_plan sound_plan(void)
{
    tide_trainer_plan plan = {.params = 990,
                              .element_bytes = 14,
                              .frozen_element_bytes = 2,
                              .padding_bytes = 140,
                              .trained_bytes = 2048,
                              .residual_bytes = 300,
                              .saved_bytes = 200,
                              .token_bytes = 256,
                              .loss_bytes = 256,
                              .logits_bytes = 512,
                              .blocks = 2,
                              .recomputed_blocks = 1};
    plan.pool = (tide_pool_plan){.params = 1000,
                                 .model_bytes = 14000,
                                 .chunk_bytes = 4096,
                                 .chunks = {1, 3, 1},
                                 .space_bytes = {2048, 12000, 500},
                                 .nonmodel_bytes = 1024,
                                 .workspace_bytes = 2048,
                                 .shared_accumulator_bytes = 256,
                                 .scalar_bytes = 256,
                                 .region_bytes = 3584,
                                 .buffer_bytes = 100,
                                 .largest_op = "head",
                                 .device_memory_bytes = 12000,
                                 .host_memory_bytes = 20580,
                                 .device_slots = 2,
                                 .host_slots = 5};
    return plan;
}

/* Changes sound_plan: 300 params in two tensors are frozen. */
static tide_trainer_plan partly_frozen_plan(void)
{
    tide_trainer_plan plan = sound_plan();
    plan.frozen_params = 300, plan.frozen_tensors = 2;
    plan.pool.model_bytes -= 300 * 12;
    plan.trained_bytes -= 600, plan.frozen_bytes = 600;
    return plan;
}

/* A stream into memory, and the text that was written to it. The text stands until the next stream is opened. */
static char *written;

static FILE *stream_open(void)
{
    static size_t bytes;
    free(written);
    FILE *out = open_memstream(&written, &bytes);
    assert_non_null(out);
    return out;
}

static tide_status report(const tide_trainer_plan *plan)
{
    FILE *out = stream_open();
    const tide_status status = tide_report_plan(plan, out);
    fclose(out);
    return status;
}

static void assert_written(const char *part)
{
    if (strstr(written, part) == NULL)
        fail_msg("no \"%s\" in:\n%s", part, written);
}

static void a_plan_that_adds_up_is_printed_with_every_part(void **state)
{
    const tide_trainer_plan plan = sound_plan();
    assert_int_equal(report(&plan), TIDE_OK);
    assert_written("all spaces");
    assert_written("   990 params x 14 bytes + 140 B of padded vocabulary\n");
    assert_written("14,548 B"); /* the sum of the spaces */
    assert_written("224 B");    /* device: 12000 - 2 x 4096 - 3584 */
    assert_null(strstr(written, "frozen"));
}

static void frozen_params_are_named_with_their_count_and_bytes(void **state)
{
    const tide_trainer_plan plan = partly_frozen_plan();
    assert_int_equal(report(&plan), TIDE_OK);
    assert_written("   690 params x 14 bytes + 300 frozen x 2 bytes + 140 B of padded vocabulary\n");
    assert_written("      trained                                  1,448 B");
    assert_written("      frozen                                     600 B        600 B   "
                   "2 tensors without gradient and state\n");
}

/* Each field in turn is wrong by one byte or slot: the report must notice every one. */
static void every_byte_forgotten_or_counted_twice_is_refused(void **state)
{
    tide_trainer_plan plan = partly_frozen_plan();
    tide_pool_plan *pool = &plan.pool;
    uint64_t *const fields[] = {
        &plan.params,
        &plan.frozen_params,
        &plan.trained_bytes,
        &plan.frozen_bytes,
        &plan.padding_bytes,
        &plan.residual_bytes,
        &plan.saved_bytes,
        &plan.token_bytes,
        &plan.loss_bytes,
        &plan.logits_bytes,
        &pool->nonmodel_bytes,
        &pool->workspace_bytes,
        &pool->shared_accumulator_bytes,
        &pool->scalar_bytes,
        &pool->region_bytes,
        &pool->model_bytes,
        &pool->space_bytes[TIDE_SPACE_PARAM],
        &pool->space_bytes[TIDE_SPACE_ACTIVATION], /* the last */
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        *fields[i] += 1;
        if (report(&plan) != TIDE_ERROR_INTERNAL || strstr(tide_message(), "does not add up") == NULL)
            fail_msg("field %zu is a byte too large and nobody saw it", i);
        *fields[i] -= 1;
    }
}

static void a_budget_that_its_parts_pass_is_refused(void **state)
{
    tide_trainer_plan plan = sound_plan();
    plan.pool.device_slots = 3;
    assert_int_equal(report(&plan), TIDE_ERROR_INTERNAL);
    plan = sound_plan();
    plan.pool.host_memory_bytes = 5 * 4096 + 99;
    assert_int_equal(report(&plan), TIDE_ERROR_INTERNAL);
    plan = sound_plan();
    plan.pool.space_bytes[TIDE_SPACE_STATE] = 4097; /* one byte more than the space's chunk holds */
    assert_int_equal(report(&plan), TIDE_ERROR_INTERNAL);
}

static void a_stall_names_its_causes_of_half_a_percent_and_more(void **state)
{
    const tide_pool_counters counters[] = {
        {.seconds = 1, .stall_seconds = 0.128, .stall_seconds_by = {.002, 0, .113, .010, .003, 0}},
        {.seconds = 3, .stall_seconds = 0.004, .stall_seconds_by = {0, 0, .004}},
        {.seconds = 1, .stall_seconds = 1, .stall_seconds_by = {.1, .2, .1, .1, .1, .1, .3}},
        {.seconds = 0}};
    const tide_pool_plan plan = {.device_memory_bytes = 1};
    tide_progress progress = {.out = stream_open(), .steps = 4, .step_tokens = 100};
    for (uint32_t i = 0; i < 4; i++)
        tide_progress_step(&progress, &(tide_trainer_report){.step = i + 1}, &counters[i]);
    tide_progress_end(&progress, &plan);
    fclose(progress.out);
    assert_written(" stall 13% (update 11, norm 1)  moved");
    assert_written(" stall 0%  moved");
    assert_written(" stall 100% (caller 30, slot 20, link 10, update 10, norm 10, map 10, peer 10)  moved");
    assert_written("5.00 s, 80 tokens/s, stall 22.6% (caller 6.0, update 4.3, slot 4.0, norm 2.2, "
                   "map 2.1, link 2.0, peer 2.0); to the device");
}

/* Only work of at least one second gets a line. */
static void what_takes_long_at_start_gets_a_line_each(void **state)
{
    FILE *out = stream_open();
    tide_making making;
    tide_making_begin(&making, out);
    tide_making_show(&making, "host slots", 0, 4096);
    usleep(1050000);
    tide_making_show(&making, "host slots", 4096, 4096);
    tide_making_show(&making, "region", 0, 512);
    tide_making_show(&making, "region", 512, 512);
    tide_making_end(&making);
    tide_making_end(&making);
    assert_int_equal(fclose(out), 0);
    const char line[] = "made 4 KiB of host slots in ";
    assert_memory_equal(written, line, sizeof line - 1);
    assert_string_equal(strchr(written, '\n'), "\n");
}

static void assert_data_line(const tide_data_counts *counts, const char *eval_data, const char *wanted)
{
    FILE *out = stream_open();
    tide_report_data(counts, "book", eval_data, out);
    fclose(out);
    assert_string_equal(written, wanted);
}

static void where_validation_comes_from_is_one_line_with_counts(void **state)
{
    tide_data_counts counts = {.shards = 1, .training_sequences = 95, .validation_sequences = 5};
    assert_data_line(&counts, NULL, "held out for validation: 5 of 100 sequences, the last 5%\n");
    counts.training_sequences = counts.validation_sequences = 1;
    assert_data_line(&counts, NULL, "held out for validation: 1 of 2 sequences, the last one\n");
    counts = (tide_data_counts){.split = TIDE_DATA_SPLIT_NAMED,
                                .shards = 8,
                                .validation_shards = 1,
                                .training_sequences = 100,
                                .validation_sequences = 1};
    assert_data_line(
        &counts, NULL,
        "validation: 1 sequence in 1 file named val; training: 100 sequences in 8 files named train\n");
    counts.split = TIDE_DATA_SPLIT_GIVEN;
    assert_data_line(&counts, "other",
                     "validation: 1 sequence in other; training: 100 sequences in book, none held out\n");
}

static void pinning_line(const tide_pinning_times *times)
{
    FILE *out = stream_open();
    tide_report_pinning(times, out);
    fclose(out);
}

static void what_pinning_took_is_one_line_for_people_and_programs(void **state)
{
    const uint64_t second_ns = 1000000000;
    tide_pinning_times times = {.bytes = UINT64_C(96) << 30,
                                .threads = 16,
                                .wall_ns = 12 * second_ns + 340000000,
                                .touch_ns = 128 * second_ns,
                                .register_ns = 64 * second_ns,
                                .wait_ns = second_ns};
    pinning_line(&times);
    assert_string_equal(written,
                        "pinned 96 GiB of host memory in 12.34 s with 16 threads (touched at 12 GiB/s, "
                        "registered at 24 GiB/s)\n");
    times.wait_ns = 16 * 2 * second_ns;
    pinning_line(&times);
    assert_written(" GiB/s, waited 2.00 s)\n");
    pinning_line(&(tide_pinning_times){0});
    assert_string_equal(written, "");
}

/* --- several ranks --- */

enum { RANKS = 3 };

typedef struct told {
    tide_train_ranks ranks;
    double seconds[4]; /* its own for each step */
    int32_t stop, save_signal;
    tide_status status;
    tide_rank_news news[4];
    tide_slowest_rank slowest[4];
} told;

static void *tell(void *of)
{
    told *at = of;
    for (int step = 0; step < 4 && at->status == TIDE_OK; step++) {
        at->news[step] = (tide_rank_news){at->seconds[step], at->stop, at->save_signal};
        at->status = tide_train_ranks_exchange(&at->ranks, &at->news[step], &at->slowest[step]);
    }
    return NULL;
}

/* Has three ranks exchange their news in four steps. They must get the same; returns what rank 0 got. The
 * caller closes it. */
static told tell_all(const double seconds[RANKS][4])
{
    tide_comm *comms[RANKS];
    pthread_t threads[RANKS];
    static told ranks[RANKS];
    assert_ok(tide_comm_loop_create(RANKS, comms));
    for (uint32_t r = 0; r < RANKS; r++) {
        ranks[r] = (told){.ranks = {.rank = r,
                                    .ranks = RANKS,
                                    .comm = comms[r],
                                    .news = calloc(RANKS, sizeof(tide_rank_news)),
                                    .lags = calloc(RANKS, sizeof(tide_rank_lag))},
                          .stop = r == 0 ? 0 : (int32_t)r,
                          .save_signal = r == 2 ? 9 : 0};
        memcpy(ranks[r].seconds, seconds[r], sizeof ranks[r].seconds);
        assert_int_equal(pthread_create(&threads[r], NULL, tell, &ranks[r]), 0);
    }
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_join(threads[r], NULL), 0);
    assert_int_equal(ranks[0].status, TIDE_OK);
    for (uint32_t r = 1; r < RANKS; r++) {
        for (int step = 0; step < 4; step++) {
            assert_int_equal(ranks[r].news[step].stop, ranks[0].news[step].stop);
            assert_int_equal(ranks[r].slowest[step].rank, ranks[0].slowest[step].rank);
        }
        tide_train_ranks_leave(&ranks[r].ranks);
    }
    return ranks[0];
}

static void ranks_tell_each_other_signals_and_times(void **state)
{
    char text[TIDE_STRAGGLER_TEXT_BYTES];
    told got = tell_all((double[RANKS][4]){{NAN, 1, 5, 1}, {NAN, 3, 1, 1}, {NAN, 2, 1, 2}});
    for (int step = 0; step < 4; step++) {
        assert_int_equal(got.news[step].stop, 1);
        assert_int_equal(got.news[step].save_signal, 9);
    }
    assert_int_equal(got.slowest[1].rank, 1);
    assert_true(got.slowest[1].seconds == 3);
    assert_int_equal(got.slowest[2].rank, 0);
    assert_int_equal(got.slowest[3].rank, 2);
    assert_int_equal(got.ranks.steps, 3);
    assert_false(tide_train_ranks_straggler(&got.ranks, 5, text));
    tide_train_ranks_leave(&got.ranks);
}

/* In more than half of the steps, by more than a tenth of a step. */
static void a_rank_for_which_the_others_wait_is_named(void **state)
{
    char text[TIDE_STRAGGLER_TEXT_BYTES];
    told got = tell_all((double[RANKS][4]){{1, 1, 5, 1}, {2, 2, 2, 4}, {1, 1, 1, 1}});
    assert_true(tide_train_ranks_straggler(&got.ranks, 10, text));
    assert_string_equal(text, "rank 1 was the slowest in 3 of 4 steps, by 17% of a step");
    assert_false(tide_train_ranks_straggler(&got.ranks, 17, text));
    tide_train_ranks_leave(&got.ranks);
    got = tell_all((double[RANKS][4]){{1, 1, 5, 5}, {9, 9, 1, 1}, {1, 1, 1, 1}});
    assert_false(tide_train_ranks_straggler(&got.ranks, 10, text));
    tide_train_ranks_leave(&got.ranks);
    assert_false(tide_train_ranks_straggler(&(tide_train_ranks){.ranks = 1}, 10, text));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_that_adds_up_is_printed_with_every_part),
        cmocka_unit_test(frozen_params_are_named_with_their_count_and_bytes),
        cmocka_unit_test(every_byte_forgotten_or_counted_twice_is_refused),
        cmocka_unit_test(what_takes_long_at_start_gets_a_line_each),
        cmocka_unit_test(where_validation_comes_from_is_one_line_with_counts),
        cmocka_unit_test(what_pinning_took_is_one_line_for_people_and_programs),
        cmocka_unit_test(a_budget_that_its_parts_pass_is_refused),
        cmocka_unit_test(a_stall_names_its_causes_of_half_a_percent_and_more),
        cmocka_unit_test(ranks_tell_each_other_signals_and_times),
        cmocka_unit_test(a_rank_for_which_the_others_wait_is_named),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    free(written);
    return failed;
}
