/* A model trained in V sum groups against V models that train a group's micro-batches each, as V processes
 * would: before it is rounded, every gradient of the former must be the sum of the latter's by the definition
 * (tidepool/pool.h, section 5), bit by bit, on two machines. The test sees the sums because it hands the host
 * device a kernel of its own for each rounding. Link with -Wl,--wrap=tide_device_host_open. */
#include "src/model/decoder.h"
#include "tests/support/assert_ok.h"
#include "tests/support/reference_pool.h"
#include "tests/support/small_model.h"

#include "offload/device.h"

enum { ROUNDINGS_MOST = 128, MICRO_BATCHES = 24, GROUPS_MOST = 24, SEQ_LEN = 8, VOCABULARY = 61, KIB = 1024 };

/* ---- the sums that the device rounds ---- */

typedef struct rounding {
    const void *to; /* the place of the param's values */
    uint64_t first, count;
} rounding;

typedef struct sums {
    float *values; /* in the order of the roundings; after sums_sort in the order of the params */
    uint64_t count, capacity;
    rounding roundings[ROUNDINGS_MOST];
    uint32_t roundings_count;
} sums;

/* Roundings behind which an op of a step launched a kernel of its own: those that it did not leave to its
 * end. */
static uint32_t early;

static sums *recorded; /* where the host device's roundings are recorded */
static const tide_device_ops *host_ops;
static tide_device_ops recording_ops;

/* Runs on the device's only compute thread. */
static tide_status record_and_cast(void *stream, const void *arguments)
{
    const tide_cast_args *args = arguments;
    if (recorded->count + args->elements > recorded->capacity || recorded->roundings_count == ROUNDINGS_MOST)
        return tide_fail(TIDE_ERROR_INTERNAL, "more sums than params");
    recorded->roundings[recorded->roundings_count++] = (rounding){args->out, recorded->count, args->elements};
    memcpy(recorded->values + recorded->count, args->in, args->elements * sizeof(float));
    recorded->count += args->elements;
    return tide_kernels_cpu()->cast(stream, arguments);
}

static tide_status recording_launch(tide_device *device, tide_stream stream, const tide_work *work,
                                    tide_kernel kernel, const void *arguments, size_t argument_bytes)
{
    static const char *op;      /* the op of the last launch */
    static uint32_t unfollowed; /* its last roundings */
    const bool rounds = strcmp(work->label, "gradient rounding") == 0;
    const bool of_pool = rounds || strcmp(work->label, "gradient norm") == 0 ||
                         strncmp(work->label, "sum group", strlen("sum group")) == 0;
    if (!of_pool && work->op == op)
        early += unfollowed;
    unfollowed = of_pool && work->op == op ? unfollowed + rounds : rounds;
    op = work->op;
    return host_ops->launch(device, stream, work, rounds ? record_and_cast : kernel, arguments,
                            argument_bytes);
}

tide_status __real_tide_device_host_open(const tide_device_options *options, tide_device **device);
tide_status __wrap_tide_device_host_open(const tide_device_options *options, tide_device **device);

tide_status __wrap_tide_device_host_open(const tide_device_options *options, tide_device **device)
{
    const tide_status status = __real_tide_device_host_open(options, device);
    if (status != TIDE_OK)
        return status;
    host_ops = (*device)->ops;
    recording_ops = *host_ops;
    recording_ops.launch = recording_launch;
    (*device)->ops = &recording_ops;
    return TIDE_OK;
}

static int by_place(const void *a, const void *b)
{
    const rounding *one = a, *other = b;
    return one->to < other->to ? -1 : one->to > other->to;
}

/* Sort the sums by the params' places, which have the same order in every pool of a model. */
static void sums_sort(sums *made)
{
    float *sorted = malloc(made->capacity * sizeof *sorted);
    uint64_t at = 0;
    assert_non_null(sorted);
    qsort(made->roundings, made->roundings_count, sizeof made->roundings[0], by_place);
    for (uint32_t i = 0; i < made->roundings_count; i++) {
        memcpy(sorted + at, made->values + made->roundings[i].first,
               made->roundings[i].count * sizeof *sorted);
        at += made->roundings[i].count;
    }
    free(made->values);
    made->values = sorted;
}

/* ---- the definition ---- */

/* The sum of groups [first, first + count) of one element. */
static float tree(const sums groups[], uint64_t element, tide_dtype reduce, uint32_t first, uint32_t count)
{
    if (count == 1)
        return ref_round(reduce, groups[first].values[element]);
    uint32_t left = 1;
    while (2 * left < count)
        left *= 2;
    return tree(groups, element, reduce, first, left) +
           tree(groups, element, reduce, first + left, count - left);
}

/* ---- runs ---- */

typedef struct run {
    const char *family;
    uint32_t sum_groups;
    tide_dtype dtype, reduce_dtype;
    bool recompute, freezes;
    float clip_norm;
} run;

typedef struct machine {
    bool least; /* the least budgets; else all is resident */
    uint64_t chunk_bytes;
    tide_placement placement;
    bool prefetch;
} machine;

static const machine machines[] = {{true, 256 * KIB, TIDE_PLACEMENT_HOST, false},
                                   {false, 1024 * KIB, TIDE_PLACEMENT_AUTO, true}};

static uint64_t elements_of(const tide_model_config *config)
{
    uint64_t elements = 0;
    for (size_t i = 0; i < tide_model_param_count(config); i++) {
        tide_model_param param;
        tide_model_param_describe(config, i, &param);
        elements += param.memory_elements;
    }
    return elements;
}

static tide_decoder *model_of(const run *of, uint32_t micro_batches, uint32_t sum_groups)
{
    bool recompute[2] = {of->recompute, of->recompute}, frozen[64] = {false};
    tide_decoder_options options = {.config = model_of_family(of->family, 2, 32, 4, SEQ_LEN, VOCABULARY),
                                    .dtype = of->dtype,
                                    .seq_len = SEQ_LEN,
                                    .micro_batch_sequences = 1,
                                    .micro_batches = micro_batches,
                                    .sum_groups = sum_groups,
                                    .recompute = recompute,
                                    .frozen = frozen,
                                    .kernels = tide_kernels_cpu()};
    assert_true(tide_model_tensor_count(&options.config) <= 64);
    for (size_t i = 2; i < tide_model_param_count(&options.config) && of->freezes; i += 3) {
        tide_model_param param;
        tide_model_param_describe(&options.config, i, &param);
        for (uint32_t t = 0; t < param.tensors; t++)
            frozen[param.first_tensor + t] = true;
    }
    tide_decoder *model;
    assert_ok(tide_decoder_create(&options, &model));
    return model;
}

static tide_pool *pool_of(const run *of, const machine *on, tide_decoder *model, uint32_t sum_groups)
{
    tide_pool_options options;
    tide_pool *pool;
    tide_pool_plan plan;
    tide_pool_options_default(&options);
    options.chunk_bytes = on->chunk_bytes;
    options.placement = on->placement;
    options.prefetch = on->prefetch;
    options.sum_groups = sum_groups;
    options.reduce_dtype = sum_groups > 1 ? of->reduce_dtype : TIDE_DTYPE_FP32;
    options.threads = 1;
    options.checks.hazard_check = options.checks.guard = true;
    assert_ok(tide_pool_plan_make(&options, tide_decoder_description(model), &plan));
    if (on->least) {
        options.device_memory_bytes = plan.least_device_bytes;
        assert_ok(tide_pool_plan_make(&options, tide_decoder_description(model), &plan));
        options.host_memory_bytes = plan.least_host_bytes;
    }
    assert_ok(tide_pool_create(&options, tide_decoder_description(model), &pool));
    tide_decoder_attach(model, pool);
    return pool;
}

/* Trains micro-batches [first, first + count) of the batch for one step in so many sum groups. Records the
 * gradients' sums, and adds the params after the step to the hash, if there is one. */
static void train(const run *of, const machine *on, uint32_t first, uint32_t count, uint32_t sum_groups,
                  sums *made, uint64_t *hash)
{
    static int32_t tokens[MICRO_BATCHES * SEQ_LEN + 1];
    const float loss_scale = of->dtype == TIDE_DTYPE_FP16 ? 64 : 1;
    const tide_step_options step = {.training = true,
                                    .learning_rate = 1e-2F,
                                    .beta1 = 0.9F,
                                    .beta2 = 0.95F,
                                    .epsilon = 1e-8F,
                                    .clip_norm = of->clip_norm,
                                    .loss_scale = loss_scale};
    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++)
        tokens[i] = (int32_t)((i * i * 31 + i * 7) % VOCABULARY);
    tide_decoder *model = model_of(of, count, sum_groups);
    tide_pool *pool = pool_of(of, on, model, sum_groups);
    recorded = made;
    assert_ok(tide_decoder_init(model, 5, NULL, NULL));
    assert_ok(tide_step_begin(pool, &step));
    const tide_decoder_batch batch = {.inputs = tokens + first * SEQ_LEN,
                                      .targets = tokens + first * SEQ_LEN + 1,
                                      .learned = MICRO_BATCHES * SEQ_LEN};
    assert_ok(tide_decoder_upload(model, &batch));
    assert_ok(tide_decoder_train(model, loss_scale));
    assert_ok(tide_step_end(pool));
    assert_ok(tide_pool_drain(pool));
    for (tide_param param = 0; hash != NULL; param++) {
        const uint64_t elements = tide_description_param_elements(tide_decoder_description(model), param);
        if (elements == 0)
            break;
        float *values = calloc(elements, sizeof *values);
        assert_non_null(values);
        assert_ok(tide_param_get(pool, param, TIDE_VALUE_PARAM, 0, elements, values));
        for (uint64_t i = 0; i < elements; i++) {
            uint32_t bits;
            memcpy(&bits, &values[i], sizeof bits);
            *hash = (*hash ^ bits) * UINT64_C(1099511628211);
        }
        free(values);
    }
    tide_pool_destroy(pool);
    tide_decoder_destroy(model);
    sums_sort(made);
}

static sums sums_make(uint64_t capacity)
{
    const sums made = {.values = malloc(capacity * sizeof(float)), .capacity = capacity};
    assert_non_null(made.values);
    return made;
}

/* How many elements differ from the definition. */
static uint64_t differences(const run *of, const sums *found, const sums groups[])
{
    uint64_t count = 0;
    for (uint64_t i = 0; i < found->count; i++) {
        const float expected = tree(groups, i, of->reduce_dtype, 0, of->sum_groups);
        count += memcmp(&expected, &found->values[i], sizeof expected) != 0;
    }
    return count;
}

static void check(const run *of)
{
    const tide_model_config config = model_of_family(of->family, 2, 32, 4, SEQ_LEN, VOCABULARY);
    const uint64_t most = elements_of(&config), each = MICRO_BATCHES / of->sum_groups;
    sums groups[GROUPS_MOST], found = sums_make(most);
    uint64_t hashes[2] = {1, 1};
    for (uint32_t g = 0; g < of->sum_groups; g++) {
        groups[g] = sums_make(most);
        early = 0;
        train(of, &machines[1], (uint32_t)(g * each), (uint32_t)each, 1, &groups[g], NULL);
        assert_int_equal(early, 0);
    }
    for (size_t m = 0; m < 2; m++) {
        found.count = found.roundings_count = early = 0;
        train(of, &machines[m], 0, MICRO_BATCHES, of->sum_groups, &found, &hashes[m]);
        assert_int_equal(found.count, groups[0].count);
        if (!of->freezes) /* only the embedding's op leaves gradients, of one or two embeddings, to its end */
            assert_int_equal(early + (strcmp(of->family, "gpt2") == 0 ? 2 : 1), found.roundings_count);
        assert_true(found.count > most / 4);
        if (differences(of, &found, groups) != 0)
            fail_msg("%s, %u groups, %s by %s, machine %zu: %llu of %llu sums differ", of->family,
                     of->sum_groups, tide_dtype_name(of->dtype), tide_dtype_name(of->reduce_dtype), m,
                     (unsigned long long)differences(of, &found, groups), (unsigned long long)found.count);
    }
    assert_int_equal(hashes[0], hashes[1]);
    for (uint32_t g = 0; g < of->sum_groups; g++)
        free(groups[g].values);
    free(found.values);
}

/* Every pair of family, number of groups, dtype and reduce dtype comes at least once. */
static void sums_of_groups_are_those_of_as_many_processes(void **state)
{
    static const run runs[] = {
        {"gpt2", 2, TIDE_DTYPE_FP32, TIDE_DTYPE_FP32, false, false, 1},
        {"gpt2", 3, TIDE_DTYPE_BF16, TIDE_DTYPE_BF16, true, true, 0},
        {"gpt2", 4, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32, true, false, 1},
        {"gpt2", 6, TIDE_DTYPE_FP32, TIDE_DTYPE_BF16, false, true, 1},
        {"gpt2", 8, TIDE_DTYPE_BF16, TIDE_DTYPE_FP32, true, false, 0},
        {"gpt2", 24, TIDE_DTYPE_FP16, TIDE_DTYPE_BF16, false, false, 1},
        {"llama", 2, TIDE_DTYPE_BF16, TIDE_DTYPE_BF16, true, false, 1},
        {"llama", 3, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32, false, false, 1},
        {"llama", 4, TIDE_DTYPE_FP32, TIDE_DTYPE_BF16, true, true, 0},
        {"llama", 6, TIDE_DTYPE_BF16, TIDE_DTYPE_FP32, false, false, 1},
        {"llama", 8, TIDE_DTYPE_FP16, TIDE_DTYPE_BF16, true, false, 1},
        {"llama", 24, TIDE_DTYPE_FP32, TIDE_DTYPE_FP32, false, false, 0},
        {"qwen3", 2, TIDE_DTYPE_FP16, TIDE_DTYPE_BF16, false, true, 1},
        {"qwen3", 3, TIDE_DTYPE_FP32, TIDE_DTYPE_FP32, true, false, 1},
        {"qwen3", 4, TIDE_DTYPE_BF16, TIDE_DTYPE_FP32, false, false, 0},
        {"qwen3", 6, TIDE_DTYPE_FP16, TIDE_DTYPE_BF16, true, false, 1},
        {"qwen3", 8, TIDE_DTYPE_FP32, TIDE_DTYPE_FP32, false, true, 0},
        {"qwen3", 24, TIDE_DTYPE_BF16, TIDE_DTYPE_BF16, true, false, 1},
    };
    for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
        check(&runs[i]);
}

/* Otherwise equal bits would prove nothing. */
static void other_groups_give_other_sums(void **state)
{
    static const run one = {"gpt2", 1, TIDE_DTYPE_FP32, TIDE_DTYPE_FP32, false, false, 1};
    const tide_model_config config = model_of_family("gpt2", 2, 32, 4, SEQ_LEN, VOCABULARY);
    static const uint32_t groups[] = {1, 2, 3, 24};
    uint64_t hashes[4];
    for (size_t i = 0; i < 4; i++) {
        sums found = sums_make(elements_of(&config));
        hashes[i] = 1;
        train(&one, &machines[1], 0, MICRO_BATCHES, groups[i], &found, &hashes[i]);
        for (size_t before = 0; before < i; before++)
            assert_true(hashes[before] != hashes[i]);
        free(found.values);
    }
}

int main(void)
{
    tide_kernels_cpu_configure(1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_of_groups_are_those_of_as_many_processes),
                                       cmocka_unit_test(other_groups_give_other_sums)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
