/* The code between the pool and a GPU: the loader finds the CUDA module or refuses it, "auto" chooses a
 * device, the pool derives its budgets from the GPU's memory and trains there to the host's bits. The GPU is
 * support/fake_gpu/fake_gpu_module.c, whose memory the host can't touch. A process loads the module only
 * once, so each case runs in a child process. */
#include "src/pool/device_factory.h"
#include "tests/support/assert_ok.h"
#include "tests/support/pool_fixture.h"
#include "tide_config.h"

#include <dlfcn.h>
#include <link.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { TEXT_BYTES = 2048, CHUNK_BYTES = 2 << 20 };

/* --- run a function in a child process --- */

/* `options` of a pool; NULL where the function makes none. */
typedef void (*body)(const pool_fixture_options *options, char text[TEXT_BYTES]);

/* Run `fn` in a child process that looks for the module in `folder` and whose fake GPU follows `words`.
 * `text` gets what the child wrote, or how it died. */
static void apart(const char *folder, const char *words, body fn, const pool_fixture_options *options,
                  char text[TEXT_BYTES])
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char said[TEXT_BYTES] = "";
        setenv("TIDEPOOL_MODULES", folder, 1);
        setenv("TIDE_FAKE_GPU", words, 1);
        fn(options, said);
        _exit(write(ends[1], said, strlen(said)) == (ssize_t)strlen(said) ? 0 : 1);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(ends[0], text + used, TEXT_BYTES - 1 - used)) > 0;)
        used += (size_t)got;
    text[used] = '\0';
    close(ends[0]);
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    if (!WIFEXITED(how) || WEXITSTATUS(how) != 0)
        fail_msg("the child died: %s %d, after \"%s\"", WIFSIGNALED(how) ? "signal" : "status",
                 WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how), text);
}

static void on_fake_gpu(const char *words, body fn, const pool_fixture_options *options,
                        char text[TEXT_BYTES])
{
    apart(TIDE_FAKE_GPU_FOLDER, words, fn, options, text);
}

static void said(tide_status status, char text[TEXT_BYTES])
{
    snprintf(text, TEXT_BYTES, "%s: %s", tide_status_name(status), status == TIDE_OK ? "" : tide_message());
}

#define assert_says(text, part)                                                                              \
    do {                                                                                                     \
        if (strstr(text, part) == NULL)                                                                      \
            fail_msg("\"%s\" does not say \"%s\"", text, part);                                              \
    } while (0)

/* --- the loader --- */

static void open_module(const pool_fixture_options *options, char text[TEXT_BYTES])
{
    (void)options;
    const tide_module *module = NULL;
    said(tide_module_cuda(&module), text);
}

static void open_module_twice(const pool_fixture_options *options, char text[TEXT_BYTES])
{
    (void)options;
    const tide_module *module = NULL;
    (void)tide_module_cuda(&module);
    (void)tide_fail(TIDE_ERROR_IO, "something else");
    said(tide_module_cuda(&module), text);
}

static void a_module_is_opened_from_the_folder_named(void **state)
{
    char text[TEXT_BYTES];
    on_fake_gpu("", open_module, NULL, text);
    assert_string_equal(text, "ok: ");
}

/* Make a folder with one file, or one link, that has the module's name. */
static void make_folder(char folder[64], const char *link_to)
{
    char path[128];
    snprintf(folder, 64, "/tmp/tidepool-module-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/libtidepool_cuda.so", folder);
    if (link_to != NULL) {
        assert_int_equal(symlink(link_to, path), 0);
        return;
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("not a library", file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void remove_folder(const char *folder)
{
    char path[128];
    snprintf(path, sizeof path, "%s/libtidepool_cuda.so", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void a_file_that_is_no_library_is_refused_in_the_linkers_words(void **state)
{
    char text[TEXT_BYTES], folder[64];
    make_folder(folder, NULL);
    apart(folder, "", open_module, NULL, text);
    remove_folder(folder);
    assert_says(text, "unsupported: the CUDA module can't be loaded: ");
    assert_says(text, folder);
}

static void a_library_without_the_interface_is_refused(void **state)
{
    char text[TEXT_BYTES], folder[64];
    struct link_map *other = NULL;
    void *handle = dlopen("libm.so.6", RTLD_NOW);
    assert_non_null(handle);
    assert_int_equal(dlinfo(handle, RTLD_DI_LINKMAP, &other), 0);
    make_folder(folder, other->l_name);
    apart(folder, "", open_module, NULL, text);
    remove_folder(folder);
    assert_int_equal(dlclose(handle), 0);
    assert_says(text, "libtidepool_cuda.so is no module of tidepool");
}

static void another_version_or_build_is_refused(void **state)
{
    static const struct {
        const char *words, *says;
    } cases[] = {{"null", "belongs to another version of tidepool"},
                 {"version", "belongs to another version of tidepool"},
                 {"options", "belongs to another build of tidepool"},
                 {"ops", "belongs to another build of tidepool"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[TEXT_BYTES];
        on_fake_gpu(cases[i].words, open_module_twice, NULL, text);
        assert_says(text, "unsupported: " TIDE_FAKE_GPU_FOLDER);
        assert_says(text, cases[i].says);
    }
}

static void a_gpus_name_is_cuda_and_a_number(void **state)
{
    static const char *const wrong[] = {"cuda",    "cuda:",      "cuda:-1", "cuda:1x",
                                        "cuda: 1", "cuda:99999", "gpu:0",   ""};
    uint32_t ordinal = 77;
    assert_int_equal(tide_module_cuda_ordinal("cuda:12", &ordinal), TIDE_OK);
    assert_int_equal(ordinal, 12);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(tide_module_cuda_ordinal(wrong[i], &ordinal), TIDE_ERROR_ARGUMENT);
    assert_int_equal(ordinal, 12);
}

/* --- the choice of "auto" --- */

static pool_fixture_options gpu_options(void)
{
    pool_fixture_options options = pool_fixture_options_default();
    options.pool.device = "cuda:0";
    options.pool.chunk_bytes = CHUNK_BYTES;
    options.pool.checks.hazard_check = false;
    options.pool.checks.guard = false;
    return options;
}

static void choose(const pool_fixture_options *options, char text[TEXT_BYTES])
{
    char name[TIDE_DEVICE_FACTORY_NAME_BYTES], reason[TIDE_DEVICE_FACTORY_REASON_BYTES];
    tide_device_factory_choose(options->pool.chunk_bytes, name, reason);
    snprintf(text, TEXT_BYTES, "%s; %s", name, reason);
}

static void auto_takes_the_first_gpu_that_can_be_used_else_the_host(void **state)
{
    static const struct {
        const char *words;
        uint64_t chunk_bytes;
        const char *choice;
    } cases[] = {
        {"", CHUNK_BYTES, "cuda:0; "},
        {"no-vmm", CHUNK_BYTES, "cuda:1; "},
        {"no-driver", CHUNK_BYTES, "host; no driver on purpose"},
        {"unprepared", CHUNK_BYTES, "host; cuda:0 is not ready on purpose"},
        {"no-gpu", CHUNK_BYTES, "host; the driver sees no GPU"},
        {"fail=1", CHUNK_BYTES, "host; counting failed on purpose"},
        {"fail=3", CHUNK_BYTES, "cuda:1; "}, /* the third call counts the GPUs again, for GPU 0 */
        {"", CHUNK_BYTES / 2, "host; chunks of 1048576 bytes: a GPU takes 2097152 or more"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[TEXT_BYTES];
        pool_fixture_options options = gpu_options();
        options.pool.chunk_bytes = cases[i].chunk_bytes;
        on_fake_gpu(cases[i].words, choose, &options, text);
        assert_string_equal(text, cases[i].choice);
    }
}

/* --- the pool on a GPU --- */

static void create(const pool_fixture_options *options, char text[TEXT_BYTES])
{
    pool_fixture fixture;
    said(pool_fixture_create(options, &fixture), text);
}

static void a_pool_that_a_gpu_cant_have_is_refused_by_name(void **state)
{
    static const struct {
        const char *words, *device;
        uint64_t chunk_bytes;
        bool checked;
        const char *says;
    } cases[] = {
        {"", "cuda:0", CHUNK_BYTES / 2, false, "argument: pool: chunk size 1048576 is too small for cuda:0"},
        {"", "cuda:7", CHUNK_BYTES, false,
         "argument: device cuda:7: there is no such GPU; the driver sees 2"},
        {"no-gpu", "cuda:0", CHUNK_BYTES, false, "unsupported: device cuda:0: the driver sees no GPU"},
        {"no-driver", "cuda:0", CHUNK_BYTES, false, "unsupported: no driver on purpose"},
        {"no-vmm", "cuda:0", CHUNK_BYTES, false,
         "unsupported: device cuda:0: Stand-in has no virtual memory management"},
        {"", "cuda:0", CHUNK_BYTES, true, "unsupported: a GPU can't check on purpose"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[TEXT_BYTES];
        pool_fixture_options options = gpu_options();
        options.pool.device = cases[i].device;
        options.pool.chunk_bytes = cases[i].chunk_bytes;
        options.pool.checks.hazard_check = cases[i].checked;
        on_fake_gpu(cases[i].words, create, &options, text);
        assert_says(text, cases[i].says);
    }
}

/* Plan the fixture on this GPU with budgets that the pool chooses. */
static void plan(const pool_fixture_options *options, char text[TEXT_BYTES])
{
    pool_fixture fixture;
    tide_pool_plan made;
    const tide_status status = pool_fixture_create(options, &fixture);
    if (status != TIDE_OK || tide_pool_plan_get(fixture.pool, &made) != TIDE_OK) {
        said(status, text);
        return;
    }
    snprintf(text, TEXT_BYTES, "%llu %llu %llu %llu", (unsigned long long)made.device_memory_bytes,
             (unsigned long long)made.least_device_bytes, (unsigned long long)made.full_device_bytes,
             (unsigned long long)made.device_available_bytes);
    pool_fixture_destroy(&fixture);
}

static void
a_default_budget_is_what_the_run_needs_at_most_what_the_gpu_has_free_beside_page_tables(void **state)
{
    char text[TEXT_BYTES], words[64];
    pool_fixture_options options = gpu_options();
    unsigned long long budget, least, full, available;
    on_fake_gpu("", plan, &options, text);
    assert_int_equal(sscanf(text, "%llu %llu %llu %llu", &budget, &least, &full, &available), 4);
    assert_true(budget == full && least < full);
    const unsigned long long tables = (8ULL << 30) - available; /* the fake GPU has 8 GiB free */
    assert_true(tables > 0 && tables < CHUNK_BYTES);

    const unsigned long long free_bytes = full - CHUNK_BYTES;
    snprintf(words, sizeof words, "memory=%llu", free_bytes);
    on_fake_gpu(words, plan, &options, text);
    assert_int_equal(sscanf(text, "%llu", &budget), 1);
    assert_int_equal(budget, free_bytes - tables);

    snprintf(words, sizeof words, "memory=%llu", least - 1 + tables);
    on_fake_gpu(words, plan, &options, text);
    snprintf(words, sizeof words, "budget: device budget of %llu bytes is too small", least - 1);
    assert_says(text, words);

    /* A plan may have a larger budget than the GPU has memory, if the full plan fits. */
    options.pool.device_memory_bytes = UINT64_C(4) << 30;
    snprintf(words, sizeof words, "memory=%llu", full);
    on_fake_gpu(words, create, &options, text);
    assert_string_equal(text, "ok: ");
    snprintf(words, sizeof words, "memory=%llu", full - 1);
    on_fake_gpu(words, create, &options, text);
    assert_says(text, "budget: device budget of 4294967296 bytes is too large: cuda:0 has ");
}

/* A training step, a skipped one, another training step and an evaluation. *sum gets the sum of the values
 * that the caller reads from the region. */
static tide_status run_steps(pool_fixture *fixture, float *sum)
{
    float state[FIXTURE_SLICES * FIXTURE_STATE] = {0};
    tide_status status = pool_fixture_step(fixture, 1, false);
    if (status == TIDE_OK)
        status = pool_fixture_step_not_finite(fixture);
    if (status == TIDE_OK)
        status = pool_fixture_step(fixture, 1, false);
    if (status == TIDE_OK)
        status = tide_read(fixture->pool, state, tide_region(fixture->pool), sizeof state);
    for (int i = 0; i < FIXTURE_SLICES * FIXTURE_STATE; i++)
        *sum += state[i];
    if (status == TIDE_OK)
        status = tide_pool_drain(fixture->pool);
    return status == TIDE_OK ? pool_fixture_evaluate(fixture) : status;
}

/* Train a few steps. `text` gets hashes of all values, the sum from run_steps, and whether the pool made a
 * prediction. */
static void train(const pool_fixture_options *options, char text[TEXT_BYTES])
{
    pool_fixture fixture;
    tide_pool_prediction prediction = {0};
    uint64_t hashes[3] = {0};
    float sum = 0;
    tide_status status = pool_fixture_create(options, &fixture);
    if (status == TIDE_OK)
        status = run_steps(&fixture, &sum);
    if (status == TIDE_OK && options->pool.predict)
        status = tide_pool_predict(fixture.pool, &prediction);
    for (int i = 0; i < 3 && status == TIDE_OK; i++)
        status = pool_fixture_hash(&fixture, (tide_value)i, &hashes[i]);
    if (status != TIDE_OK)
        said(status, text);
    else
        snprintf(text, TEXT_BYTES, "%llx %llx %llx %.9g%s", (unsigned long long)hashes[0],
                 (unsigned long long)hashes[1], (unsigned long long)hashes[2], (double)sum,
                 options->pool.predict && !(prediction.step_seconds > 0) ? " without prediction" : "");
    pool_fixture_destroy(&fixture);
}

static void a_pool_never_touches_device_memory_itself_and_has_the_hosts_bits(void **state)
{
    static const struct {
        double device_share;
        bool least_host, predict;
        tide_placement placement;
    } cases[] = {{1, false, false, TIDE_PLACEMENT_AUTO},
                 {0, true, true, TIDE_PLACEMENT_AUTO},
                 {0.5, false, false, TIDE_PLACEMENT_DEVICE}};
    char text[TEXT_BYTES], host[TEXT_BYTES];
    pool_fixture_options options = gpu_options();
    options.pool.device = "host";
    on_fake_gpu("", train, &options, host);
    assert_true(strchr(host, ':') == NULL); /* numbers, not the message of a failure */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        options = gpu_options();
        options.device_share = cases[i].device_share;
        options.least_host = cases[i].least_host;
        options.pool.predict = cases[i].predict;
        options.pool.placement = cases[i].placement;
        on_fake_gpu("", train, &options, text);
        assert_string_equal(text, host);
    }
}

/* Create the pool with a failure armed and, if it failed, once more in the same process. */
static void create_twice(const pool_fixture_options *options, char text[TEXT_BYTES])
{
    pool_fixture fixture;
    const tide_status first = pool_fixture_create(options, &fixture);
    if (first == TIDE_OK) {
        snprintf(text, TEXT_BYTES, "met none");
        pool_fixture_destroy(&fixture);
        return;
    }
    said(first, text);
    if (pool_fixture_create(options, &fixture) == TIDE_OK)
        pool_fixture_destroy(&fixture);
    else
        said(TIDE_ERROR_INTERNAL, text);
}

static void a_failure_at_any_call_to_the_module_is_told_and_the_same_pool_can_be_made_afterwards(void **state)
{
    char text[TEXT_BYTES] = "", words[32];
    const pool_fixture_options options = gpu_options();
    int n = 0;
    while (strcmp(text, "met none") != 0) {
        assert_true(++n < 100);
        snprintf(words, sizeof words, "fail=%d", n);
        on_fake_gpu(words, create_twice, &options, text);
        if (strcmp(text, "met none") != 0)
            assert_says(text, "ing failed on purpose");
    }
    assert_true(n > 4); /* at least counting, reading, preparing and opening the GPUs can fail */
}

/* Start this program again without LD_LIBRARY_PATH. The test runner puts the fake GPU's folder there, and
 * the dynamic linker reads the variable only when a process begins. */
static void begin_anew(char **arguments)
{
    if (getenv("LD_LIBRARY_PATH") == NULL)
        return;
    (void)unsetenv("LD_LIBRARY_PATH");
    (void)execv("/proc/self/exe", arguments);
}

int main(int count, char **arguments)
{
    (void)count;
    begin_anew(arguments);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_module_is_opened_from_the_folder_named),
        cmocka_unit_test(a_file_that_is_no_library_is_refused_in_the_linkers_words),
        cmocka_unit_test(a_library_without_the_interface_is_refused),
        cmocka_unit_test(another_version_or_build_is_refused),
        cmocka_unit_test(a_gpus_name_is_cuda_and_a_number),
        cmocka_unit_test(auto_takes_the_first_gpu_that_can_be_used_else_the_host),
        cmocka_unit_test(a_pool_that_a_gpu_cant_have_is_refused_by_name),
        cmocka_unit_test(
            a_default_budget_is_what_the_run_needs_at_most_what_the_gpu_has_free_beside_page_tables),
        cmocka_unit_test(a_pool_never_touches_device_memory_itself_and_has_the_hosts_bits),
        cmocka_unit_test(
            a_failure_at_any_call_to_the_module_is_told_and_the_same_pool_can_be_made_afterwards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
