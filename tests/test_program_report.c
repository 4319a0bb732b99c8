/* The table of bytes adds up, or the run is refused. */
#include "tools/train_report.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tide_trainer_plan sound_plan(void)
{
    tide_trainer_plan plan = {.residual_bytes = 300,
                              .saved_bytes = 200,
                              .token_bytes = 256,
                              .loss_bytes = 256,
                              .logits_bytes = 512,
                              .blocks = 2,
                              .recomputed_blocks = 1};
    plan.pool = (tide_pool_plan){.params = 1000,
                                 .model_bytes = 14000,
                                 .chunk_bytes = 4096,
                                 .chunks = {1, 1, 1, 1, 1},
                                 .space_bytes = {2048, 4000, 4000, 4000, 500},
                                 .nonmodel_bytes = 1024,
                                 .workspace_bytes = 2048,
                                 .kept_accumulator_bytes = 256,
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

static tide_status report(const tide_trainer_plan *plan, char **text)
{
    size_t bytes = 0;
    FILE *out = open_memstream(text, &bytes);
    assert_non_null(out);
    tide_status status = tide_report_plan(plan, out);
    fclose(out);
    return status;
}

static void a_plan_that_adds_up_is_printed_with_every_part(void **state)
{
    tide_trainer_plan plan = sound_plan();
    char *text = NULL;
    (void)state;
    assert_int_equal(report(&plan, &text), TIDE_OK);
    assert_non_null(strstr(text, "all spaces"));
    assert_non_null(strstr(text, "14,548 B")); /* the sum of the spaces */
    assert_non_null(strstr(text, "224 B"));    /* device: 12000 - 2 x 4096 - 3584 */
    free(text);
}

/* Each field in turn is off by one byte (or slot): no change may go through unseen. */
static void every_byte_forgotten_or_counted_twice_is_refused(void **state)
{
    tide_trainer_plan plan = sound_plan();
    uint64_t *const fields[] = {&plan.residual_bytes,
                                &plan.saved_bytes,
                                &plan.token_bytes,
                                &plan.loss_bytes,
                                &plan.logits_bytes,
                                &plan.pool.nonmodel_bytes,
                                &plan.pool.workspace_bytes,
                                &plan.pool.kept_accumulator_bytes,
                                &plan.pool.scalar_bytes,
                                &plan.pool.region_bytes,
                                &plan.pool.space_bytes[TIDE_SPACE_CHECKPOINT]};
    (void)state;
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        char *text = NULL;
        *fields[i] += 1;
        if (report(&plan, &text) != TIDE_ERROR_INTERNAL || strstr(tide_message(), "does not add up") == NULL)
            fail_msg("field %zu is a byte too large and nobody saw it", i);
        *fields[i] -= 1;
        free(text);
    }
}

static void a_budget_that_its_parts_pass_is_refused(void **state)
{
    tide_trainer_plan plan = sound_plan();
    char *text = NULL;
    (void)state;
    plan.pool.device_slots = 3;
    assert_int_equal(report(&plan, &text), TIDE_ERROR_INTERNAL);
    free(text);
    plan = sound_plan();
    plan.pool.host_memory_bytes = 5 * 4096 + 99;
    assert_int_equal(report(&plan, &text), TIDE_ERROR_INTERNAL);
    free(text);
    plan = sound_plan();
    plan.pool.space_bytes[TIDE_SPACE_MASTER] = 4097; /* one more than its chunk */
    assert_int_equal(report(&plan, &text), TIDE_ERROR_INTERNAL);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_that_adds_up_is_printed_with_every_part),
        cmocka_unit_test(every_byte_forgotten_or_counted_twice_is_refused),
        cmocka_unit_test(a_budget_that_its_parts_pass_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
