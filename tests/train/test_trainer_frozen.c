/* Frozen tensors: their values never change, the trainer keeps no state for them and never copies them out,
 * and a checkpoint can be resumed with another set of frozen tensors. test_trainer_matrix.c checks that no
 * budget changes a bit of the trained tensors. */
#include "src/model/decoder_internal.h"
#include "src/train/trainer_internal.h"
#include "tests/support/small_model.h"
#include "tests/support/test_thin.h"
#include "tests/support/test_trainer_fixture.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4, BATCH_TOKENS = 128, PATTERNS_MAX = 4 };

typedef struct frozen_set {
    const char *what;
    const char *patterns[PATTERNS_MAX];
    uint32_t lowest_trained; /* lowest of the six blocks with a trained tensor; 6: none */
    bool trains_embedding;
} frozen_set;

enum { SETS = 7 };

static const frozen_set gpt2_sets[SETS] = {
    {"embeddings", {"w[tp]e.weight"}, 0, false},
    {"tied", {"wte.weight"}, 0, true},
    {"all but the last block", {"w?e.weight", "h.[0-4].*", "ln_f.*"}, 5, false},
    {"blocks at both ends", {"wpe.*", "h.0.*", "h.1.*", "h.5.*"}, 0, true},
    {"all but the last norm", {"w*", "h.*"}, 6, false},
    {"biases, norms and a matrix", {"*.bias", "*ln_*", "h.2.mlp.c_fc.weight"}, 0, true},
    {"all but the positions", {"wte*", "h.*", "ln_f.*"}, 0, true},
};

/* In these Llama models the head is tied to the embedding. */
static const frozen_set llama_sets[SETS] = {
    {"embedding", {"model.embed_tokens.weight"}, 0, false},
    {"a matrix of each block", {"*.o_proj.weight"}, 0, true},
    {"all but the last block", {"model.embed*", "model.layers.[0-4].*", "model.norm.*"}, 5, false},
    {"blocks at both ends", {"model.layers.0.*", "model.layers.1.*", "model.layers.5.*"}, 0, true},
    {"all but the last norm", {"model.embed*", "model.layers.*"}, 6, false},
    {"norms and two products",
     {"*norm.weight", "*.2.mlp.[gu]*_proj.weight", "*.3.self_attn.[qkv]_proj.weight"},
     0,
     true},
    {"all but the embedding", {"model.layers.*", "model.norm.weight"}, 0, true},
};

static const frozen_set *sets; /* the sets of the family that this run tests */

static tide_trainer_options base_options(const frozen_set *set)
{
    tide_trainer_options options = small_options(text, TIDE_DTYPE_BF16);
    options.global_batch_tokens = BATCH_TOKENS;
    options.micro_batch_sequences = 1;
    options.freeze = set ? set->patterns : NULL;
    while (set && options.freeze_count < PATTERNS_MAX && set->patterns[options.freeze_count])
        options.freeze_count++;
    return options;
}

static size_t tensors_of(const tide_trainer *trainer)
{
    return tide_model_tensor_count(&tide_trainer_state(trainer)->model);
}

static tide_model_tensor tensor_of(const tide_trainer *trainer, size_t index)
{
    tide_model_tensor tensor;
    tide_model_tensor_describe(&tide_trainer_state(trainer)->model, index, &tensor);
    return tensor;
}

/* Make `steps` steps with these options and record all values. */
static void run(const tide_trainer_options *options, uint32_t steps, const char *what, track *made)
{
    tide_trainer *trainer = trainer_open(options);
    *made = (track){0};
    track_steps(trainer, steps, made);
    track_values(trainer, made);
    check_budgets(trainer, what);
    tide_trainer_destroy(trainer);
}

/* --- trained tensors --- */

static const float *values_of(const track *from, const tide_trainer *trainer, size_t index)
{
    const float *at = from->values;
    for (size_t i = 0; i < index; i++)
        at += 4 * tensor_of(trainer, i).elements;
    return at;
}

/* The first step of a frozen run must equal that of a run which trains everything, except for the tensors
 * that are not updated: the same loss and the same gradients, but a smaller norm, which is that of the
 * trained tensors' gradients: their first moments / (1 - beta1). Without clipping the norm has no effect. */
static void the_first_step_is_that_of_all_being_trained_and_its_norm_that_of_what_is(void **state)
{
    tide_trainer_options options = base_options(NULL);
    track all, some;
    options.hyper.clip = 0;
    run(&options, 1, "all trained", &all);
    for (unsigned s = 0; s < SETS; s++) {
        options = base_options(&sets[s]);
        options.hyper.clip = 0;
        run(&options, 1, sets[s].what, &some);
        assert_true(some.losses[0] == all.losses[0]);
        assert_true(some.norms[0] > 0 && some.norms[0] < all.norms[0]);
        tide_trainer *trainer = trainer_open(&options);
        unsigned moved = 0;
        double squares = 0;
        for (size_t i = 0; i < tensors_of(trainer); i++) {
            const uint64_t elements = tensor_of(trainer, i).elements;
            const float *are = values_of(&some, trainer, i), *would_be = values_of(&all, trainer, i);
            if (tide_decoder_tensor_is_frozen(trainer->model, i))
                continue;
            if (memcmp(are, would_be, 4 * elements * sizeof *are) != 0)
                fail_msg("%s: %s is trained otherwise", sets[s].what, tensor_of(trainer, i).name);
            for (uint64_t e = 2 * elements; e < 3 * elements; e++) {
                moved += are[e] != 0;
                squares += pow((double)are[e] / (1 - options.hyper.beta1), 2);
            }
        }
        assert_true(moved >= 90); /* as many as the last norm has */
        if (fabs(sqrt(squares) / some.norms[0] - 1) > 1e-5)
            fail_msg("%s: norm %.9g, of the moments %.9g", sets[s].what, some.norms[0], sqrt(squares));
        tide_trainer_destroy(trainer);
        track_free(&some);
    }
    track_free(&all);
}

static void what_is_frozen_stays_as_it_was_and_the_rest_does_not(void **state)
{
    for (unsigned s = 0; s < SETS; s++) {
        const tide_trainer_options options = base_options(&sets[s]);
        track before, after;
        run(&options, 0, sets[s].what, &before);
        run(&options, STEPS, sets[s].what, &after);
        tide_trainer *trainer = trainer_open(&options);
        unsigned frozen = 0;
        for (size_t i = 0; i < tensors_of(trainer); i++) {
            const bool stays = memcmp(values_of(&before, trainer, i), values_of(&after, trainer, i),
                                      tensor_of(trainer, i).elements * sizeof(float)) == 0;
            frozen += tide_decoder_tensor_is_frozen(trainer->model, i) ? 1 : 0;
            if (stays != tide_decoder_tensor_is_frozen(trainer->model, i))
                fail_msg("%s: %s %s", sets[s].what, tensor_of(trainer, i).name, stays ? "stays" : "changes");
        }
        assert_in_range(frozen, 1, tensors_of(trainer) - 1);
        assert_int_equal(trainer->model->lowest_trained, sets[s].lowest_trained);
        assert_int_equal(trainer->model->trains_embedding, sets[s].trains_embedding);
        tide_trainer_destroy(trainer);
        track_free(&before);
        track_free(&after);
    }
}

/* --- memory and copied bytes --- */

static void a_frozen_param_costs_two_bytes_and_the_others_fourteen(void **state)
{
    for (unsigned s = 0; s < SETS; s++) {
        tide_trainer_options options = base_options(&sets[s]);
        options.recompute = TIDE_RECOMPUTE_NONE; /* so that backward, too, reads frozen params */
        tide_trainer *trainer = trainer_open(&options);
        const tide_trainer_plan *plan = tide_trainer_plan_get(trainer);
        uint64_t trained = 0, frozen = 0;
        for (size_t i = 0; i < tide_model_param_count(&options.model); i++) {
            tide_model_param param;
            tide_model_param_describe(&options.model, i, &param);
            *(tide_decoder_tensor_is_frozen(trainer->model, param.first_tensor) ? &frozen : &trained) +=
                param.memory_elements;
        }
        assert_int_equal(plan->pool.params, trained + frozen);
        assert_int_equal(plan->pool.model_bytes, 14 * trained + 2 * frozen);
        const uint64_t state_bytes = plan->pool.space_bytes[TIDE_SPACE_STATE];
        assert_true(state_bytes >= 12 * trained && state_bytes < 12 * trained + options.pool.chunk_bytes);
        assert_int_equal(plan->blocks, 6 - sets[s].lowest_trained);
        assert_int_equal(plan->recomputed_blocks, 0);
        assert_int_equal(plan->pool.space_bytes[TIDE_SPACE_ACTIVATION],
                         plan->residual_bytes + plan->saved_bytes);
        tide_trainer_destroy(trainer);
    }
}

/* Copies that the trace reports while steps run. */
typedef struct copies {
    pthread_mutex_t lock;
    bool counting;
    uint32_t params, states; /* number of PARAM chunks and of STATE chunks */
    uint64_t state_bytes, param_out_bytes, all_bytes;
    /* bit sets: STATE chunks that were copied, PARAM chunks that were copied out */
    uint64_t state_chunks, params_out;
} copies;

static void count_copy(void *context, const tide_trace_event *event)
{
    copies *to = context;
    pthread_mutex_lock(&to->lock);
    if (to->counting && event->kind == TIDE_TRACE_COPY) {
        const bool out = event->tier == TIDE_TIER_HOST, of_param = event->chunk < to->params,
                   of_state = !of_param && event->chunk < to->params + to->states;
        to->all_bytes += event->bytes;
        to->state_bytes += of_state ? event->bytes : 0;
        to->state_chunks |= of_state ? UINT64_C(1) << (event->chunk - to->params) : 0;
        to->param_out_bytes += of_param && out ? event->bytes : 0;
        to->params_out |= of_param && out ? UINT64_C(1) << event->chunk : 0;
    }
    pthread_mutex_unlock(&to->lock);
}

/* Run with a device budget that holds little, and updates on the device. Returns the bytes that its steps
 * moved, from the counters. */
static uint64_t run_tight(const frozen_set *set, copies *made, tide_pool_plan *plan)
{
    *made = (copies){.lock = PTHREAD_MUTEX_INITIALIZER};
    tide_trainer_options options = base_options(set);
    options.pool.placement = TIDE_PLACEMENT_DEVICE;
    options.pool.device_memory_bytes = least_budget(&options, true);
    options.pool.trace = count_copy;
    options.pool.trace_context = made;
    tide_trainer *trainer = trainer_open(&options);
    tide_pool_counters before, after;
    track steps = {0};
    *plan = tide_trainer_plan_get(trainer)->pool;
    ok(tide_pool_counters_get(tide_trainer_pool(trainer), &before));
    made->params = plan->chunks[TIDE_SPACE_PARAM];
    made->states = plan->chunks[TIDE_SPACE_STATE];
    assert_true(made->params <= 64 && made->states <= 64);
    made->counting = true;
    track_steps(trainer, STEPS, &steps);
    ok(tide_pool_drain(tide_trainer_pool(trainer)));
    made->counting = false;
    ok(tide_pool_counters_get(tide_trainer_pool(trainer), &after));
    tide_trainer_destroy(trainer);
    return after.h2d_bytes - before.h2d_bytes + after.d2h_bytes - before.d2h_bytes;
}

/* Only the last block is trained, and its updates are on the device. Its state must lie in as few chunks as
 * possible. Values of frozen params must be copied in, but never out. */
static void no_state_of_frozen_params_is_moved_and_their_values_never_out(void **state)
{
    copies all, some;
    tide_pool_plan of_all, of_some;
    const uint64_t all_bytes = run_tight(NULL, &all, &of_all),
                   some_bytes = run_tight(&sets[2], &some, &of_some);
    assert_int_equal(all.all_bytes, all_bytes);
    assert_int_equal(some.all_bytes, some_bytes);
    assert_int_equal(__builtin_popcountll(all.state_chunks), of_all.chunks[TIDE_SPACE_STATE]);
    assert_true(__builtin_popcountll(all.params_out) > 1);
    assert_true(of_some.chunks[TIDE_SPACE_STATE] < of_all.chunks[TIDE_SPACE_STATE] / 4);
    assert_true((some.state_chunks >> of_some.chunks[TIDE_SPACE_STATE]) == 0);
    /* each chunk in and out once a step; one that two tasks share perhaps twice */
    assert_true(some.state_bytes <=
                STEPS * 2 * (of_some.space_bytes[TIDE_SPACE_STATE] + of_some.chunk_bytes));
    /* the same params, with perhaps one chunk more where the trained ones begin */
    assert_in_range(of_some.chunks[TIDE_SPACE_PARAM], of_all.chunks[TIDE_SPACE_PARAM],
                    of_all.chunks[TIDE_SPACE_PARAM] + 1);
    assert_true(__builtin_popcountll(some.params_out) <= 1);
    assert_true(some_bytes < all_bytes / 3);
    assert_true(of_some.scalar_bytes < of_all.scalar_bytes / 2); /* blocks for the norm */
}

/* --- save and resume --- */

static const variant variants[] = {
    {LEAST, 256, true, TIDE_RECOMPUTE_NONE, TIDE_PLACEMENT_AUTO, 0},
    {ALL, 1024, true, TIDE_RECOMPUTE_ALL, TIDE_PLACEMENT_HOST, 0},
    {LEAST, 512, false, TIDE_RECOMPUTE_ALL, TIDE_PLACEMENT_DEVICE, 3},
};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

static void save_path(char path[96])
{
    static int number;
    snprintf(path, 96, "%s/frozen-%d", folder, number++);
}

/* Train the first half of the run, save it, and train the rest, which a resumed run must reproduce. */
static void run_and_save(const frozen_set *set, char path[96], track *whole)
{
    const tide_trainer_options options = base_options(set);
    save_path(path);
    tide_trainer *trainer = trainer_open(&options);
    *whole = (track){0};
    track_steps(trainer, STEPS / 2, whole);
    ok(tide_trainer_save(trainer, path, 0, NULL));
    track_steps(trainer, STEPS, whole);
    track_values(trainer, whole);
    tide_trainer_destroy(trainer);
}

static tide_trainer *resume(const frozen_set *set, const variant *v, const char *path)
{
    tide_trainer_options options = base_options(set);
    if (v)
        variant_apply(v, &options);
    options.resume_dir = path;
    tide_trainer *trainer = trainer_open(&options);
    assert_true(tide_trainer_resumed_get(trainer)->resumed);
    assert_int_equal(tide_trainer_state(trainer)->step, STEPS / 2);
    return trainer;
}

static float *all_of(const tide_trainer *trainer, size_t index, tide_value value)
{
    const tide_model_tensor tensor = tensor_of(trainer, index);
    float *values = malloc(tensor.elements * sizeof *values);
    assert_non_null(values);
    ok(tide_param_get(trainer->pool, tide_decoder_param_handle(trainer->model, tensor.param), value,
                      tensor.first, tensor.elements, values));
    return values;
}

static void assert_zeros(const float *values, uint64_t count, const char *name)
{
    for (uint64_t i = 0; i < count; i++)
        if (values[i] != 0)
            fail_msg("%s: moment %llu is %g", name, (unsigned long long)i, (double)values[i]);
}

static void assert_same(const float *a, const float *b, uint64_t count, const char *name, const char *what)
{
    if (memcmp(a, b, count * sizeof *a) != 0)
        fail_msg("%s: another %s", name, what);
}

/* Compare a tensor of a run that was resumed with another set with the same tensor of the saved run. */
static void check_resumed(tide_trainer *saved, tide_trainer *resumed, size_t i)
{
    const tide_model_tensor tensor = tensor_of(saved, i);
    const bool was = tide_decoder_tensor_is_frozen(saved->model, i),
               is = tide_decoder_tensor_is_frozen(resumed->model, i);
    float *before = all_of(saved, i, TIDE_VALUE_PARAM), *now = all_of(resumed, i, TIDE_VALUE_PARAM);
    assert_same(before, now, tensor.elements, tensor.name, "value");
    for (tide_value value = TIDE_VALUE_MASTER; value < TIDE_VALUE_COUNT && !is; value++) {
        float *of_now = all_of(resumed, i, value);
        float *expected = was ? NULL : all_of(saved, i, value);
        if (!was)
            assert_same(expected, of_now, tensor.elements, tensor.name, tide_value_name(value));
        else if (value == TIDE_VALUE_MASTER) /* a newly trained tensor's master is exactly its 16-bit value */
            assert_same(before, of_now, tensor.elements, tensor.name, "master");
        else
            assert_zeros(of_now, tensor.elements, tensor.name);
        free(of_now);
        free(expected);
    }
    free(before);
    free(now);
}

/* Resume from each set with the next one, and from and to none. The ops read the same values, so the next
 * loss must be the same. */
static void another_set_is_taken_and_changes_nothing_that_is_read(void **state)
{
    for (unsigned s = SETS % test_thin(2); s <= SETS; s += test_thin(2)) {
        const frozen_set *from = s < SETS ? &sets[s] : NULL, *to = s + 1 < SETS ? &sets[s + 1] : NULL;
        char path[96];
        track whole, next = {0};
        if (s == SETS)
            to = &sets[2];
        run_and_save(from, path, &whole);
        tide_trainer *saved = resume(from, NULL, path), *resumed = resume(to, &variants[s % VARIANTS], path);
        assert_int_equal(tide_trainer_resumed_get(saved)->changes.count, 0);
        assert_int_equal(tide_trainer_resumed_get(resumed)->changes.count, 1);
        for (size_t i = 0; i < tensors_of(saved); i++)
            check_resumed(saved, resumed, i);
        double loss_of_saved, loss_of_resumed;
        ok(tide_trainer_evaluate(saved, &loss_of_saved));
        ok(tide_trainer_evaluate(resumed, &loss_of_resumed));
        assert_true(loss_of_saved == loss_of_resumed);
        tide_trainer_destroy(saved);
        track_steps(resumed, STEPS, &next);
        assert_true(next.losses[STEPS / 2] == whole.losses[STEPS / 2]);
        assert_true(isfinite(next.losses[STEPS - 1]) && next.losses[STEPS - 1] != whole.losses[STEPS - 1]);
        ok(tide_trainer_save(resumed, path, 0, NULL)); /* a save with the new set works */
        tide_trainer_destroy(resumed);
        track_free(&whole);
    }
}

static void another_set_is_named(void **state)
{
    char path[96];
    track whole;
    run_and_save(&sets[0], path, &whole);
    tide_trainer *trainer = resume(&sets[1], NULL, path);
    assert_string_equal(
        tide_trainer_resumed_get(trainer)->changes.lines[0],
        family_word("frozen -> trained, with zero moments: 1 param (wpe.weight)",
                    "frozen -> trained, with zero moments: 1 param (model.embed_tokens.weight); trained -> "
                    "frozen, moments ignored: 6 params (model.layers.0.self_attn.o_proj.weight, "
                    "model.layers.1.self_attn.o_proj.weight, ...)"));
    tide_trainer_destroy(trainer);
    trainer = resume(&sets[3], NULL, path);
    assert_string_equal(
        tide_trainer_resumed_get(trainer)->changes.lines[0],
        family_word("frozen -> trained, with zero moments: 1 param (wte.weight); trained -> frozen, moments "
                    "ignored: 36 params (h.0.ln_1.weight, h.0.ln_1.bias, ...)",
                    "frozen -> trained, with zero moments: 1 param (model.embed_tokens.weight); trained -> "
                    "frozen, moments "
                    "ignored: 27 params (model.layers.0.input_layernorm.weight, "
                    "model.layers.0.self_attn.q_proj.weight, ...)"));
    tide_trainer_destroy(trainer);
    track_free(&whole);
}

/* --- refusals --- */

static void assert_refused(const char *family, const char *const *patterns, uint32_t count,
                           const char *message)
{
    tide_trainer_options options = base_options(NULL);
    options.model = model_of_family(family, 6, 96, 4, 64, 257);
    tide_trainer *trainer = NULL;
    options.freeze = patterns;
    options.freeze_count = count;
    assert_int_equal(tide_trainer_create(&options, &trainer), TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), message);
    assert_null(trainer);
}

static void patterns_that_freeze_nothing_or_everything_are_refused(void **state)
{
    assert_refused("gpt2", (const char *[]){"wte.weight", "h.6.*"}, 2,
                   "freeze h.6.*: no tensor of small has such a name (as wte.weight)");
    assert_refused("gpt2", (const char *[]){"wte"}, 1,
                   "freeze wte: no tensor of small has such a name (as wte.weight)");
    assert_refused("gpt2", (const char *[]){"*"}, 1,
                   "freeze: all 76 tensors are frozen, none is left to train");
    /* llama's head is tied, so it has no tensor lm_head.weight */
    assert_refused(
        "llama", (const char *[]){"lm_head.weight"}, 1,
        "freeze lm_head.weight: no tensor of small has such a name (as model.embed_tokens.weight)");
    assert_refused("llama", (const char *[]){"model.*"}, 1,
                   "freeze: all 56 tensors are frozen, none is left to train");
    assert_refused("qwen2", (const char *[]){"*"}, 1,
                   "freeze: all 74 tensors are frozen, none is left to train");
    assert_refused("qwen3", (const char *[]){"*"}, 1,
                   "freeze: all 69 tensors are frozen, none is left to train");
}

/* The pattern matches `frozen` but not `other`, and both are made by one matmul. */
static void assert_split(const char *family, const char *pattern, const char *frozen, const char *other)
{
    char message[256];
    snprintf(message, sizeof message,
             "freeze: %s is frozen and %s is not; one product makes both, freeze both", frozen, other);
    assert_refused(family, &pattern, 1, message);
}

static void what_one_product_makes_is_frozen_together(void **state)
{
#define LAYER(number, name) "model.layers." #number "." name
    assert_split("llama", "*.2.self_attn.q_proj.weight", LAYER(2, "self_attn.q_proj.weight"),
                 LAYER(2, "self_attn.k_proj.weight"));
    assert_split("llama", "*.[kv]_proj.weight", LAYER(0, "self_attn.k_proj.weight"),
                 LAYER(0, "self_attn.q_proj.weight"));
    assert_split("qwen3", "*.[qk]_proj.weight", LAYER(0, "self_attn.q_proj.weight"),
                 LAYER(0, "self_attn.v_proj.weight"));
    assert_split("qwen2", "*.v_proj.bias", LAYER(0, "self_attn.v_proj.bias"),
                 LAYER(0, "self_attn.q_proj.bias"));
    assert_split("mistral", "*.5.mlp.up_proj.weight", LAYER(5, "mlp.up_proj.weight"),
                 LAYER(5, "mlp.gate_proj.weight"));
#undef LAYER
}

/* Two patterns may match the same tensor. */
static void the_null_device_plans_for_them(void **state)
{
    tide_trainer_options options = base_options(NULL);
    options.freeze =
        (const char *[]){family_word("h.[0-4].*", "model.layers.[0-4].*"), family_word("h.0.*", "*.0.*"),
                         family_word("w?e.weight", "model.embed_tokens.weight")};
    options.freeze_count = 3;
    options.pool.device = "null";
    options.pool.checks.guard = options.pool.checks.hazard_check = false;
    tide_trainer *trainer = trainer_open(&options);
    ok(tide_trainer_step(trainer, NULL));
    assert_true(tide_trainer_plan_get(trainer)->pool.model_bytes <
                5 * tide_trainer_plan_get(trainer)->pool.params);
    tide_trainer_destroy(trainer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_step_is_that_of_all_being_trained_and_its_norm_that_of_what_is),
        cmocka_unit_test(what_is_frozen_stays_as_it_was_and_the_rest_does_not),
        cmocka_unit_test(a_frozen_param_costs_two_bytes_and_the_others_fourteen),
        cmocka_unit_test(no_state_of_frozen_params_is_moved_and_their_values_never_out),
        cmocka_unit_test(another_set_is_taken_and_changes_nothing_that_is_read),
        cmocka_unit_test(another_set_is_named),
        cmocka_unit_test(patterns_that_freeze_nothing_or_everything_are_refused),
        cmocka_unit_test(what_one_product_makes_is_frozen_together),
        cmocka_unit_test(the_null_device_plans_for_them),
    };
    sets = strcmp(test_family(), "gpt2") == 0 ? gpt2_sets : llama_sets;
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
