/* Plans of several ranks: the managers of all ranks work with the slots and frames of a plan, from the least
 * budget on, and the bytes between ranks follow the formulas. */
#include "chunk/manager.h"
#include "src/pool/inspect.h"
#include "tests/support/assert_ok.h"
#include "tidepool/pool.h"

#include <stdio.h>
#include <stdlib.h>

enum { CHUNK_BYTES = 256 * 1024, ELEMENTS = CHUNK_BYTES / 2, LAYERS = 5, OPS = 2 * LAYERS };

static const uint64_t MIB = 1 << 20;

/* Layers of a large and a small param and an activation; forward ops and backward ops. */
static tide_description *describe(uint64_t large, uint64_t small)
{
    tide_description *description;
    tide_activation activation;
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 1000, &description));
    for (uint32_t l = 0; l < LAYERS; l++) {
        const uint64_t sizes[] = {large, small};
        for (uint32_t i = 0; i < 2; i++) {
            char name[16];
            tide_param param;
            snprintf(name, sizeof name, "p%u.%u", l, i);
            assert_ok(tide_description_add_param(description, name, &sizes[i], 1, NULL, &param));
        }
    }
    assert_ok(tide_description_add_activation(description, "a", LAYERS, 3 * CHUNK_BYTES / 2, &activation));
    for (uint32_t o = 0; o <= OPS; o++) { /* the last is one of evaluation */
        const uint32_t l = o == OPS ? LAYERS - 1 : o < LAYERS ? o : OPS - 1 - o;
        const uint32_t access = TIDE_ACCESS_READ | (o < LAYERS || o == OPS ? 0u : TIDE_ACCESS_GRAD);
        const tide_use params[] = {{2 * l, access}, {2 * l + 1, access}},
                       use = {activation, o < LAYERS || o == OPS ? TIDE_ACCESS_WRITE : TIDE_ACCESS_READ};
        char name[16];
        tide_op op;
        snprintf(name, sizeof name, "o%u", o);
        assert_ok(tide_description_add_op(
            description,
            &(tide_op_description){.name = name,
                                   .pass = o < LAYERS || o == OPS ? TIDE_PASS_FORWARD : TIDE_PASS_BACKWARD,
                                   .params = params,
                                   .param_count = 2,
                                   .activations = &use,
                                   .activation_count = 1,
                                   .slices = LAYERS,
                                   .workspace_bytes = 5000},
            &op));
    }
    return description;
}

static tide_pool_options options_of(uint32_t ranks, uint32_t stage)
{
    tide_pool_options options;
    tide_pool_options_default(&options);
    options.device = "null";
    options.chunk_bytes = CHUNK_BYTES;
    options.ranks = (tide_ranks_options){.count = ranks, .zero_stage = stage};
    return options;
}

static uint64_t used_bytes(const tide_pool_plan *plan)
{
    return plan->device_slots * plan->chunk_bytes + plan->frame_bytes + plan->region_bytes;
}

/* Do the managers of all ranks take the plan? */
static bool managers_take(tide_description *description, const tide_pool_plan *plan, uint32_t ranks,
                          tide_placement placement)
{
    bool all = true;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        tide_layout *layout;
        tide_manager *manager = NULL;
        const tide_manager_options options = {.device_slots = plan->device_slots,
                                              .host_slots = plan->host_slots,
                                              .placement = placement,
                                              .frames = plan->frames,
                                              .ahead = plan->gathers_ahead};
        assert_ok(tide_layout_create(description, plan->chunk_bytes, (tide_shard){ranks, rank}, &layout));
        all = tide_manager_create(layout, &options, &manager) == TIDE_OK && all;
        tide_manager_destroy(manager);
        tide_layout_destroy(layout);
    }
    return all;
}

static uint32_t frames_of_two_ops(tide_description *description, const tide_pool_options *options,
                                  const tide_pool_plan *plan)
{
    const tide_shard shard = {options->ranks.count, 0};
    tide_layout *layout;
    tide_ops ops;
    tide_slot_needs needs;
    assert_ok(tide_layout_create(description, plan->chunk_bytes, shard, &layout));
    assert_ok(tide_ops_create(&ops, layout));
    tide_manager_needs(&ops, options->placement, &needs);
    tide_ops_destroy(&ops);
    tide_layout_destroy(layout);
    return needs.frames_ahead;
}

static void check_budget(tide_description *description, tide_pool_options *options, uint64_t budget)
{
    const uint32_t ranks = options->ranks.count;
    tide_pool_plan plan;
    options->device_memory_bytes = budget;
    assert_ok(tide_pool_plan_make(options, description, &plan));
    assert_int_equal(plan.frame_bytes, (uint64_t)plan.frames * (ranks - 1) * plan.chunk_bytes);
    const tide_status status = tide_pool_plan_check(options, description, &plan);
    if (budget < plan.least_device_bytes) {
        assert_int_equal(status, TIDE_ERROR_BUDGET);
        return;
    }
    assert_ok(status);
    assert_true(used_bytes(&plan) <= budget);
    assert_true(managers_take(description, &plan, ranks, options->placement));
    if (options->ranks.zero_stage < 3)
        assert_int_equal(plan.frames, plan.chunks[TIDE_SPACE_PARAM]);
    if (budget < plan.full_device_bytes)
        return;
    assert_true(plan.gathers_ahead);
    assert_int_equal(plan.frames, options->ranks.reshard == TIDE_RESHARD_ON
                                      ? frames_of_two_ops(description, options, &plan)
                                      : plan.chunks[TIDE_SPACE_PARAM]);
}

static void a_plan_is_what_managers_need(void **state)
{
    srand(3);
    for (uint32_t round = 0; round < 60; round++) {
        const uint32_t ranks = 2 + (uint32_t)rand() % 6, stage = 1 + (uint32_t)rand() % 3;
        const uint64_t large = 1 + (uint64_t)rand() % (3 * ELEMENTS * ranks),
                       small = 1 + (uint64_t)rand() % 3000;
        tide_description *description = describe(large, small);
        tide_pool_options options = options_of(ranks, stage);
        tide_pool_plan plan;
        options.placement = (tide_placement)(rand() % 3);
        options.ranks.reshard = stage == 3 ? (tide_reshard)(rand() % 3) : TIDE_RESHARD_AUTO;
        options.device_memory_bytes = 1;
        assert_ok(tide_pool_plan_make(&options, description, &plan));
        check_budget(description, &options, plan.least_device_bytes);
        check_budget(description, &options, plan.least_device_bytes - 1);
        for (int i = 0; i < 8; i++)
            check_budget(description, &options,
                         plan.least_device_bytes + (uint64_t)rand() % (plan.full_device_bytes + MIB));
        tide_description_destroy(description);
    }
}

static void bytes_between_ranks_follow_the_formulas(void **state)
{
    const uint64_t group = 4 * ELEMENTS; /* a layer is a group of 4 ranks */
    tide_description *description = describe(group - 1024, 1024);
    const uint64_t owned = LAYERS * ELEMENTS, blocks = LAYERS * (group / 4096 + 1);
    tide_pool_plan plan;
    for (uint32_t stage = 1; stage < 4; stage++) {
        tide_pool_options options = options_of(4, stage);
        assert_ok(tide_pool_plan_make(&options, description, &plan)); /* with memory for everything */
        assert_int_equal(plan.gathered_bytes, 3 * owned * 2);
        assert_int_equal(plan.reduced_bytes, 3 * owned * 4 + (blocks - owned / 4096) * 8);
        assert_int_equal(plan.ring_bytes, 2 * 4 * 2 * MIB);
    }
    tide_pool_options options = options_of(4, 3);
    options.reduce_dtype = TIDE_DTYPE_BF16;
    options.ranks.reshard = TIDE_RESHARD_ON;
    assert_ok(tide_pool_plan_make(&options, description, &plan));
    assert_int_equal(plan.frames, 2); /* of an op, and of the next */
    /* the last group of forward is the first of backward, and the one before it stays */
    assert_int_equal(plan.gathered_bytes, 3 * (2 * LAYERS - 2) * (uint64_t)ELEMENTS * 2);
    assert_int_equal(plan.reduced_bytes, 3 * owned * 2 + (blocks - owned / 4096) * 8);
    options.ranks = (tide_ranks_options){.count = 4, .zero_stage = 0};
    assert_ok(tide_pool_plan_make(&options, description, &plan));
    assert_int_equal(plan.gathered_bytes, 0);
    /* each sums a quarter of all, and receives the rest, rounded */
    assert_int_equal(plan.reduced_bytes, 3 * owned * 2 + 3 * owned * 2 + (blocks - owned / 4096) * 8);
    tide_description_destroy(description);
}

static void chunks_shrink_until_gathers_run_ahead(void **state)
{
    tide_description *description = describe(UINT64_C(64) * ELEMENTS, 1024);
    tide_pool_options options = options_of(64, 3);
    tide_pool_plan plan, one;
    options.device_memory_bytes = UINT64_C(2) << 30;
    assert_ok(tide_pool_plan_make(&options, description, &one));
    options.chunk_bytes = 0;
    assert_ok(tide_pool_plan_make(&options, description, &plan));
    assert_true(plan.gathers_ahead && plan.chunk_bytes >= 2 * MIB && plan.chunk_bytes < 64 * MIB);
    /* with the next larger chunks they do not */
    options.chunk_bytes = 2 * plan.chunk_bytes;
    assert_ok(tide_pool_plan_make(&options, description, &one));
    assert_false(one.gathers_ahead);
    tide_description_destroy(description);
}

static void what_ranks_can_not_be_is_refused(void **state)
{
    tide_description *description = describe(1000, 1000);
    tide_pool_options options = options_of(TIDE_SUM_GROUPS_MAX + 1, 3);
    tide_pool_plan plan;
    tide_pool *pool = NULL;
    assert_fails(tide_pool_plan_make(&options, description, &plan), TIDE_ERROR_ARGUMENT,
                 "ranks.count is 1025");
    options = options_of(2, 4);
    assert_fails(tide_pool_plan_make(&options, description, &plan), TIDE_ERROR_ARGUMENT, "zero_stage is 4");
    options = options_of(4, 3);
    options.sum_groups = 6;
    assert_fails(tide_pool_plan_make(&options, description, &plan), TIDE_ERROR_ARGUMENT,
                 "sum_groups is 6, it must be a multiple of 4");
    options.sum_groups = 12;
    assert_fails(tide_pool_plan_make(&options, description, &plan), TIDE_ERROR_ARGUMENT,
                 "sum_groups is 12, for each of 4 ranks it must be a power of two");
    options = options_of(4, 2);
    options.ranks.reshard = TIDE_RESHARD_ON;
    assert_fails(tide_pool_plan_make(&options, description, &plan), TIDE_ERROR_ARGUMENT,
                 "ranks.reshard is of ZeRO stage 3, the stage is 2");
    options = options_of(4, 2);
    options.device_memory_bytes = 1;
    assert_int_equal(tide_pool_plan_check(&options, description, &plan), TIDE_ERROR_BUDGET);
    options = options_of(2, 3);
    assert_fails(tide_pool_create(&options, description, &pool), TIDE_ERROR_ARGUMENT,
                 "2 ranks need ranks.comm");
    assert_null(pool);
    tide_description_destroy(description);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_is_what_managers_need),
        cmocka_unit_test(bytes_between_ranks_follow_the_formulas),
        cmocka_unit_test(chunks_shrink_until_gathers_run_ahead),
        cmocka_unit_test(what_ranks_can_not_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
