/* A trainer that begins with a folder of weights. Its values must be the folder's under all budgets. It must
 * refuse a folder that does not fit the model before it builds anything. An export must reproduce the
 * folder. */
#include "base/fp16.h"
#include "kernels/kernels.h"
#include "src/data/random.h"
#include "src/export/weight_list.h"
#include "src/train/trainer_internal.h"
#include "src/weights/writer.h"
#include "tests/support/fake_memory.h"
#include "tests/support/small_model.h"
#include "tests/support/test_thin.h"
#include "tests/support/test_trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { STEPS = 3, BATCH_TOKENS = 128 };

#ifdef __SANITIZE_THREAD__
enum { THREADS_WATCHED = true };
#else
enum { THREADS_WATCHED = false };
#endif

/* ---- folders of weights ---- */

static float rounded(tide_weights_dtype dtype, float value)
{
    if (dtype == TIDE_WEIGHTS_BF16)
        return tide_bf16_to_float(tide_bf16_from_float(value));
    return dtype == TIDE_WEIGHTS_F16 ? tide_fp16_to_float(tide_fp16_from_float(value)) : value;
}

/* Small numbers with which the model can be trained. None can be represented exactly in 16 bits. */
static float value_of(size_t tensor, uint64_t element)
{
    return (float)((tide_random_uniform(element, TIDE_RANDOM_USE_TEST, (uint32_t)tensor, 0) - 0.5) * 0.1);
}

static tide_status get(void *context, size_t tensor, uint64_t first, uint64_t count, float *values)
{
    (void)context;
    for (uint64_t i = 0; i < count; i++)
        values[i] = value_of(tensor, first + i);
    return TIDE_OK;
}

/* The fault of a folder. */
typedef enum fault {
    NOTHING_WRONG = 0,
    LACKS_ONE,
    ONE_TOO_MANY,
    OTHER_SHAPE,
} fault;

static char made_path[128]; /* the folder that was made last */

/* Make a new folder with weights of the model. Returns its path. */
static const char *folder_make(const tide_model_config *model, tide_weights_dtype dtype,
                               uint64_t max_shard_bytes, fault wrong)
{
    static unsigned made;
    const tide_files *files = tide_files_posix();
    tide_weight_list list;
    snprintf(made_path, sizeof made_path, "%s/weights-%u", folder, made++);
    assert_int_equal(mkdir(made_path, 0777), 0);
    ok(tide_weight_list_make(model, &list));
    tide_weights_tensor *tensors = calloc(list.count + 1, sizeof *tensors);
    memcpy(tensors, list.tensors, list.count * sizeof *tensors);
    tensors[list.count] = (tide_weights_tensor){.name = "h.0.attn.extra", .rank = 1, .shape = {3}};
    if (wrong == OTHER_SHAPE)
        tensors[1].shape[0]++;
    const tide_weights_output output = {.tensors = tensors,
                                        .count = list.count + (wrong == ONE_TOO_MANY) - (wrong == LACKS_ONE),
                                        .dtype = dtype,
                                        .max_shard_bytes = max_shard_bytes,
                                        .get = get};
    ok(tide_weights_write(files, made_path, &output));
    free(tensors);
    tide_weight_list_free(&list);
    return made_path;
}

static tide_trainer_options options_of(const char *family, tide_dtype dtype, const char *weights)
{
    tide_trainer_options options = small_options(text, dtype);
    options.model = model_of_family(family, 2, 96, 4, 64, 257);
    options.global_batch_tokens = BATCH_TOKENS;
    options.micro_batch_sequences = 1;
    options.weights = weights;
    if (THREADS_WATCHED)
        /* ThreadSanitizer can't see libgomp's synchronization and would report races */
        options.pool.threads = 1;
    return options;
}

/* ---- loaded values ---- */

static tide_weights_dtype file_dtype(tide_dtype dtype)
{
    return tide_export_dtype_of(dtype);
}

static void assert_bits(float value, float expected, const char *what, const char *name, uint64_t element)
{
    if (memcmp(&value, &expected, sizeof value) != 0)
        fail_msg("%s: %s[%llu]: %.9g, not %.9g", what, name, (unsigned long long)element, (double)value,
                 (double)expected);
}

/* Check PARAM, MASTER, MOMENTUM and VARIANCE of every tensor, and the padding of the vocabulary. */
static void assert_values(tide_trainer *trainer, tide_weights_dtype file, tide_dtype dtype, const char *what)
{
    const tide_model_config *config = &tide_trainer_state(trainer)->model;
    track made = {0};
    track_values(trainer, &made);
    const float *values = made.values;
    for (size_t i = 0; i < tide_model_tensor_count(config); i++) {
        tide_model_tensor tensor;
        tide_model_tensor_describe(config, i, &tensor);
        const uint64_t count = tensor.elements;
        const bool frozen = tide_decoder_tensor_is_frozen(trainer->model, i);
        for (uint64_t e = 0; e < count; e += test_thin_threads(7)) {
            const float in_file = rounded(file, value_of(i, e));
            assert_bits(values[e], rounded(file_dtype(dtype), in_file), what, tensor.name, e);
            assert_bits(values[count + e], frozen ? 0 : in_file, what, tensor.name, e);
            assert_bits(values[2 * count + e], 0, what, tensor.name, e);
            assert_bits(values[3 * count + e], 0, what, tensor.name, e);
        }
        values += 4 * count;
    }
    track_free(&made);
    tide_model_param embedding;
    tide_model_param_describe(config, 0, &embedding);
    const uint64_t padding = embedding.memory_elements - embedding.elements;
    float *padded = malloc(padding * sizeof *padded);
    assert_true(padding > 0);
    ok(tide_param_get(tide_trainer_pool(trainer), tide_decoder_param_handle(trainer->model, 0),
                      TIDE_VALUE_PARAM, embedding.elements, padding, padded));
    for (uint64_t i = 0; i < padding; i++)
        assert_bits(padded[i], 0, what, "padding", i);
    free(padded);
}

static const variant variants[] = {
    {ALL, 1024, true, TIDE_RECOMPUTE_AUTO, TIDE_PLACEMENT_AUTO, 0},
    {LEAST, 256, true, TIDE_RECOMPUTE_ALL, TIDE_PLACEMENT_HOST, 0},
    {LEAST, 512, false, TIDE_RECOMPUTE_AUTO, TIDE_PLACEMENT_DEVICE, 3},
    {ALL, 4096, true, TIDE_RECOMPUTE_NONE, TIDE_PLACEMENT_HOST, 0},
};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

static void values_are_those_of_the_files_and_moments_are_zero(void **state)
{
    static const char *const families[] = {"gpt2", "llama"};
    static const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32};
    const unsigned every = test_thin(3);
    unsigned round = 0;
    for (size_t f = 0; f < 2; f++)
        for (tide_weights_dtype file = TIDE_WEIGHTS_BF16; file < TIDE_WEIGHTS_DTYPES; file++) {
            const tide_model_config model = options_of(families[f], TIDE_DTYPE_BF16, NULL).model;
            const char *const weights =
                folder_make(&model, file, file == TIDE_WEIGHTS_F16 ? 100000 : 0, NOTHING_WRONG);
            for (size_t d = (f + file) % every; d < 3; d += every, round++) {
                char what[96];
                tide_trainer_options options = options_of(families[f], dtypes[d], weights);
                variant_apply(&variants[round % VARIANTS], &options);
                snprintf(what, sizeof what, "%s, file %u, dtype %zu, variant %u", families[f], file, d,
                         round % VARIANTS);
                tide_trainer *trainer = trainer_open(&options);
                assert_false(tide_trainer_resumed_get(trainer)->resumed);
                assert_int_equal(tide_trainer_state(trainer)->step, 0);
                assert_values(trainer, file, dtypes[d], what);
                check_budgets(trainer, what);
                tide_trainer_destroy(trainer);
            }
        }
}

static void frozen_tensors_are_the_files_rounded_once(void **state)
{
    static const char *const frozen[] = {"wte.weight", "h.0.*"};
    tide_trainer_options options = options_of("gpt2", TIDE_DTYPE_BF16, NULL);
    options.freeze = frozen;
    options.freeze_count = 2;
    for (tide_weights_dtype file = TIDE_WEIGHTS_BF16; file < TIDE_WEIGHTS_DTYPES; file++) {
        options.weights = folder_make(&options.model, file, 0, NOTHING_WRONG);
        tide_trainer *trainer = trainer_open(&options);
        assert_values(trainer, file, TIDE_DTYPE_BF16, "frozen");
        ok(tide_trainer_step(trainer, NULL));
        tide_trainer_destroy(trainer);
    }
}

/* ---- refusals ---- */

/* The budget of one byte would be refused if the trainer tried to build a pool: the other fault must come
 * first. */
static void assert_refused(tide_trainer_options options, tide_status expected, const char *part)
{
    tide_trainer *trainer = NULL;
    options.pool.device_memory_bytes = 1;
    const tide_status status = tide_trainer_create(&options, &trainer);
    if (status != expected || strstr(tide_message(), part) == NULL || strchr(tide_message(), '\n') != NULL)
        fail_msg("%s: %s, where \"%s\" was expected", tide_status_name(status), tide_message(), part);
    assert_null(trainer);
}

/* Replace text in the folder's file by other text of the same length. */
static void edit(const char *dir, const char *is, const char *becomes)
{
    char path[192];
    static char bytes[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    const size_t count = fread(bytes, 1, sizeof bytes, file);
    char *found = memmem(bytes, count, is, strlen(is));
    assert_non_null(found);
    memcpy(found, becomes, strlen(becomes));
    rewind(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void cut(const char *dir, long bytes)
{
    char path[192];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(truncate(path, bytes), 0);
}

static void what_does_not_fit_is_refused_before_anything_is_built(void **state)
{
    tide_trainer_options options = options_of("gpt2", TIDE_DTYPE_BF16, NULL);
    options.weights = folder_make(&options.model, TIDE_WEIGHTS_F32, 0, LACKS_ONE);
    assert_refused(options, TIDE_ERROR_MISMATCH, "ln_f.bias");
    options.weights = folder_make(&options.model, TIDE_WEIGHTS_F32, 0, ONE_TOO_MANY);
    assert_refused(options, TIDE_ERROR_MISMATCH, "h.0.attn.extra");
    options.weights = folder_make(&options.model, TIDE_WEIGHTS_F32, 0, OTHER_SHAPE);
    assert_refused(options, TIDE_ERROR_MISMATCH, "wpe.weight");
    options.weights = folder_make(&options.model, TIDE_WEIGHTS_F32, 0, NOTHING_WRONG);
    edit(options.weights, "F32", "I32");
    assert_refused(options, TIDE_ERROR_UNSUPPORTED, "I32");
    options.weights = folder_make(&options.model, TIDE_WEIGHTS_F32, 0, NOTHING_WRONG);
    tide_trainer_options other = options;
    other.model.vocab_size = 300;
    assert_refused(other, TIDE_ERROR_MISMATCH, "wte.weight");
    /* the correct folder passes, and only then is the budget refused */
    assert_refused(options, TIDE_ERROR_BUDGET, "least budget");
    cut(options.weights, 10000);
    assert_refused(options, TIDE_ERROR_CORRUPT, "model.safetensors");
    char path[192];
    snprintf(path, sizeof path, "%s/model.safetensors", options.weights);
    assert_int_equal(remove(path), 0);
    assert_refused(options, TIDE_ERROR_IO, options.weights);
    options.weights = "/nowhere/at/all";
    assert_refused(options, TIDE_ERROR_IO, "/nowhere/at/all");
}

/* Truncate the file while its first values are being loaded. */
static void tear(void *context, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    if (strcmp(what, "values from the weights") == 0 && done_bytes < total_bytes)
        cut(context, 20000);
}

static void a_file_that_is_torn_meanwhile_fails_cleanly(void **state)
{
    tide_trainer_options options = options_of("gpt2", TIDE_DTYPE_BF16, made_path);
    tide_trainer *trainer = NULL;
    (void)folder_make(&options.model, TIDE_WEIGHTS_BF16, 0, NOTHING_WRONG);
    options.pool.progress = tear;
    options.pool.progress_context = made_path;
    assert_int_equal(tide_trainer_create(&options, &trainer), TIDE_ERROR_CORRUPT);
    assert_non_null(strstr(tide_message(), "model.safetensors"));
    assert_null(trainer);
}

static void every_lack_of_memory_is_told(void **state)
{
    tide_trainer_options options = options_of("gpt2", TIDE_DTYPE_BF16, NULL);
    options.model.layers = 1;
    options.pool.checks.hazard_check = options.pool.checks.guard = false;
    options.weights = folder_make(&options.model, TIDE_WEIGHTS_BF16, 0, NOTHING_WRONG);
    tide_status status = TIDE_ERROR_NO_MEMORY;
    unsigned request = 0;
    for (; status != TIDE_OK; request += test_thin_threads(3)) {
        tide_trainer *trainer = NULL;
        fake_memory_fail(request);
        status = tide_trainer_create(&options, &trainer);
        const bool failed = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(failed, status != TIDE_OK);
        if (failed && status != TIDE_ERROR_NO_MEMORY)
            fail_msg("request %u: %s: %s", request, tide_status_name(status), tide_message());
        assert_int_equal(trainer == NULL, failed);
        tide_trainer_destroy(trainer);
    }
    assert_true(request > 60);
}

/* ---- weights and checkpoints; the null device ---- */

static void a_checkpoint_to_resume_counts_before_weights(void **state)
{
    char saved[128];
    tide_trainer_options options = options_of("gpt2", TIDE_DTYPE_BF16, made_path);
    track truth = {0}, other = {0};
    (void)folder_make(&options.model, TIDE_WEIGHTS_F32, 0, NOTHING_WRONG);
    snprintf(saved, sizeof saved, "%s/saved", folder);
    options.resume_dir = saved;
    tide_trainer *trainer = trainer_open(&options);
    assert_values(trainer, TIDE_WEIGHTS_F32, TIDE_DTYPE_BF16, "nothing to resume from");
    ok(tide_trainer_step(trainer, NULL));
    ok(tide_trainer_save(trainer, saved, 0, NULL));
    track_steps(trainer, STEPS, &truth);
    track_values(trainer, &truth);
    tide_trainer_destroy(trainer);
    cut(made_path, 100); /* the resumed trainer must not read the weights */
    trainer = trainer_open(&options);
    assert_true(tide_trainer_resumed_get(trainer)->resumed);
    other.losses[0] = truth.losses[0];
    other.norms[0] = truth.norms[0];
    track_steps(trainer, STEPS, &other);
    track_values(trainer, &other);
    track_compare(&truth, &other, "resumed");
    track_free(&truth);
    track_free(&other);
    tide_trainer_destroy(trainer);
}

static void export_run(tide_trainer *trainer, const char *out, tide_weights_dtype dtype)
{
    const tide_export to = {.files = tide_files_posix(),
                            .out = out,
                            .dtype = dtype,
                            .model = &tide_trainer_state(trainer)->model};
    tide_export_place place;
    ok(tide_export_begin(&to, &place));
    ok(tide_trainer_export(trainer, &to, &place));
    assert_string_equal(place.path, "");
}

static void the_null_device_reads_nothing(void **state)
{
    tide_trainer_options options = options_of("gpt2", TIDE_DTYPE_BF16, "/nowhere/at/all");
    options.pool.device = "null";
    options.pool.checks.hazard_check = options.pool.checks.guard = false;
    options.pool.machine = (tide_machine){.flops_per_second = 1e12};
    options.pool.link_bytes_per_second = 1e10;
    tide_trainer *trainer = trainer_open(&options);
    const tide_export to = {.files = tide_files_posix(), .out = "/nowhere/out"};
    tide_export_place place = {.path = ""};
    assert_int_equal(tide_trainer_export(trainer, &to, &place), TIDE_ERROR_STATE);
    tide_trainer_destroy(trainer);
}

static uint32_t sequence_of(uint32_t context, const char *weights)
{
    tide_trainer_options options = options_of("llama", TIDE_DTYPE_BF16, weights), resolved;
    options.model.context = context;
    options.seq_len = 0;
    options.global_batch_tokens = 0;
    ok(tide_trainer_resolve(&options, &resolved));
    return resolved.seq_len;
}

static void sequences_are_at_most_4096_where_none_are_asked_for(void **state)
{
    assert_int_equal(sequence_of(8192, "weights"), 4096);
    assert_int_equal(sequence_of(8192, NULL), 8192);
    assert_int_equal(sequence_of(4095, "weights"), 4095);
}

/* Sequences that are not longer than a sliding window see all of it. */
static void sequences_fit_into_the_models_window(void **state)
{
    static const struct {
        uint32_t window, asked, is;
        const char *weights;
    } cases[] = {{2048, 0, 2048, "weights"}, {2048, 0, 2048, NULL},     {4097, 0, 4096, "weights"},
                 {4097, 0, 4097, NULL},      {2048, 1024, 1024, NULL},  {2048, 2048, 2048, "weights"},
                 {2048, 2049, 0, NULL},      {2048, 4096, 0, "weights"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tide_trainer_options resolved, options = options_of("llama", TIDE_DTYPE_BF16, cases[i].weights);
        options.model.context = 8192;
        options.model.window = cases[i].window;
        options.seq_len = cases[i].asked;
        options.global_batch_tokens = 0;
        const tide_status status = tide_trainer_resolve(&options, &resolved);
        assert_int_equal(status, cases[i].is != 0 ? TIDE_OK : TIDE_ERROR_ARGUMENT);
        if (status == TIDE_OK)
            assert_int_equal(resolved.seq_len, cases[i].is);
        else
            assert_non_null(strstr(tide_message(),
                                   "the model's attention has a sliding window of 2048 positions, "
                                   "only sequences of 2048 and less"));
    }
}

/* ---- export ---- */

static void assert_same_file(const char *one, const char *other, const char *name)
{
    char *content[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", i == 0 ? one : other, name);
        FILE *file = fopen(path, "rb");
        if (file == NULL)
            fail_msg("%s is missing", path);
        content[i] = malloc(1 << 22);
        bytes[i] = fread(content[i], 1, 1 << 22, file);
        assert_true(bytes[i] > 100 && bytes[i] < 1 << 22);
        fclose(file);
    }
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(content[0], content[1], bytes[0]);
    free(content[0]);
    free(content[1]);
}

static void an_import_is_exported_as_it_was(void **state)
{
    static const tide_dtype dtypes[] = {TIDE_DTYPE_BF16, TIDE_DTYPE_FP16, TIDE_DTYPE_FP32};
    for (size_t d = 0; d < 3; d++) {
        char out[128];
        const tide_weights_dtype file = file_dtype(dtypes[d]);
        tide_trainer_options options = options_of(d == 1 ? "llama" : "gpt2", dtypes[d], made_path);
        (void)folder_make(&options.model, file, 0, NOTHING_WRONG);
        snprintf(out, sizeof out, "%s/out-%zu", folder, d);
        variant_apply(&variants[1], &options);
        tide_trainer *trainer = trainer_open(&options);
        export_run(trainer, out, file);
        assert_same_file(made_path, out, "model.safetensors");
        ok(tide_trainer_step(trainer, NULL));
        tide_trainer_destroy(trainer);
    }
}

/* Export while updates run, and from the checkpoint of the same step: both must be equal. */
static void a_trainer_exports_what_its_checkpoint_does(void **state)
{
    char saved[128], one[128], other[128];
    tide_checkpoint_saved made;
    tide_trainer_options options = options_of("llama", TIDE_DTYPE_BF16, made_path);
    (void)folder_make(&options.model, TIDE_WEIGHTS_F32, 0, NOTHING_WRONG);
    snprintf(saved, sizeof saved, "%s/exported", folder);
    snprintf(one, sizeof one, "%s/one", folder);
    snprintf(other, sizeof other, "%s/other", folder);
    options.hyper.clip = 0;
    tide_trainer *trainer = trainer_open(&options);
    for (int i = 0; i < STEPS; i++)
        ok(tide_trainer_step(trainer, NULL));
    const tide_export again = {.files = tide_files_posix(), .out = other, .dtype = TIDE_WEIGHTS_F32};
    export_run(trainer, one, TIDE_WEIGHTS_F32);
    ok(tide_trainer_save(trainer, saved, 0, &made));
    ok(tide_export_checkpoint(&again, made.path));
    assert_same_file(one, other, "model.safetensors");
    assert_same_file(one, other, "config.json");
    tide_trainer_destroy(trainer);
}

/* ---- memory while weights are loaded ---- */

/* The greatest memory use, in bytes, of a process that creates a trainer with these options. */
static uint64_t peak_of(const tide_trainer_options *options)
{
    struct rusage usage;
    int status;
    const pid_t child = fork();
    if (child == 0) {
        tide_trainer *trainer = NULL;
        _exit(tide_trainer_create(options, &trainer) != TIDE_OK);
    }
    assert_true(child > 0);
    assert_int_equal(wait4(child, &status, 0, &usage), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return (uint64_t)usage.ru_maxrss * 1024;
}

/* One tensor has 46 MB of weights, of which a frozen one keeps half. */
static void weights_pass_through_little_memory(void **state)
{
    static const char *const frozen[] = {"wte.weight"};
    tide_trainer_options options = options_of("gpt2", TIDE_DTYPE_BF16, NULL);
    options.model.vocab_size = 120000;
    options.freeze = frozen;
    options.freeze_count = 1;
    const char *const weights = folder_make(&options.model, TIDE_WEIGHTS_F32, 0, NOTHING_WRONG);
    const uint64_t without = peak_of(&options);
    options.weights = weights;
    const uint64_t with = peak_of(&options);
    if (with > without + (16 << 20))
        fail_msg("%llu bytes with weights, %llu without", (unsigned long long)with,
                 (unsigned long long)without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* runs first: a child process does not have its parent's OpenMP threads */
        cmocka_unit_test(weights_pass_through_little_memory),
        cmocka_unit_test(values_are_those_of_the_files_and_moments_are_zero),
        cmocka_unit_test(frozen_tensors_are_the_files_rounded_once),
        cmocka_unit_test(what_does_not_fit_is_refused_before_anything_is_built),
        cmocka_unit_test(a_file_that_is_torn_meanwhile_fails_cleanly),
        cmocka_unit_test(every_lack_of_memory_is_told),
        cmocka_unit_test(a_checkpoint_to_resume_counts_before_weights),
        cmocka_unit_test(the_null_device_reads_nothing),
        cmocka_unit_test(sequences_are_at_most_4096_where_none_are_asked_for),
        cmocka_unit_test(sequences_fit_into_the_models_window),
        cmocka_unit_test(an_import_is_exported_as_it_was),
        cmocka_unit_test(a_trainer_exports_what_its_checkpoint_does),
    };
    const struct CMUnitTest of_the_reading_thread[] = {
        cmocka_unit_test(values_are_those_of_the_files_and_moments_are_zero),
        cmocka_unit_test(a_file_that_is_torn_meanwhile_fails_cleanly),
        cmocka_unit_test(every_lack_of_memory_is_told),
    };
    if (THREADS_WATCHED)
        return cmocka_run_group_tests(of_the_reading_thread, fixture_set_up, fixture_tear_down);
    return cmocka_run_group_tests(tests, fixture_set_up, fixture_tear_down);
}
