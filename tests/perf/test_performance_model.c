/* Predictions of runs: when a sequence of steps repeats, machine profiles and their files, the times of
 * kernels, predictions compared with the trainer itself, and the search for good settings. */
#include "src/perf/microbenchmark.h"
#include "src/perf/performance_model.h"
#include "src/perf/slowdown.h"
#include "src/perf/tune.h"
#include "src/pool/course.h"
#include "src/pool/inspect.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fuzz_text.h"
#include "tests/support/test_thin.h"
#include "tests/support/test_trainer_fixture.h"
#include "tools/plan/accounting.h"

#include <dirent.h>
#include <float.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB UINT64_C(1024)
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)

enum { CONFIGURATIONS_USUAL = 30 };

static unsigned long configurations;
static uint64_t random_state = 1;

static uint64_t draw(uint64_t sides)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 33) % sides;
}

static bool is_near(double a, double b, double part)
{
    return fabs(a - b) <= part * fmax(fabs(a), fabs(b));
}

/* --- sequences of steps (tide_course) --- */

static tide_course course_of(const double *seconds, uint32_t count, uint32_t enough, uint32_t most)
{
    tide_course course = {.enough = enough, .most = most, .first = 1, .count = count};
    assert_true(count <= TIDE_COURSE_STEPS_MAX);
    for (uint32_t i = 0; i < count; i++)
        course.steps[i].seconds = seconds[i];
    return course;
}

static void the_mean_is_of_the_last_cycle(void **state)
{
    const double seconds[] = {50, 40, 1, 2, 6, 1, 2, 6, 1, 2, 6};
    tide_course course = course_of(seconds, 11, 4, TIDE_COURSE_STEPS_MAX);
    for (uint32_t i = 0; i < course.count; i++) {
        tide_pool_counters *step = &course.steps[i];
        step->compute_seconds = step->seconds / 2;
        step->stall_seconds = step->seconds / 4;
        step->stall_seconds_by[1] = step->seconds / 8;
        step->adam_host_seconds = step->seconds / 16;
        step->adam_device_seconds = step->seconds / 32;
        step->h2d_bytes = (uint64_t)(100 * step->seconds);
        step->d2h_bytes = (uint64_t)(10 * step->seconds);
        step->evictions = step->demand_fetches = step->prefetches = (uint64_t)step->seconds;
        step->device_bytes_peak = i;
    }
    tide_pool_counters mean;
    assert_int_equal(tide_course_period(&course), 3);
    tide_course_mean(&course, &mean);
    assert_true(is_near(mean.seconds, 3, 1e-12) && is_near(mean.compute_seconds, 1.5, 1e-12));
    assert_true(is_near(mean.stall_seconds, 0.75, 1e-12) && is_near(mean.stall_seconds_by[1], 0.375, 1e-12));
    assert_true(is_near(mean.adam_host_seconds, 3. / 16, 1e-12));
    assert_true(is_near(mean.adam_device_seconds, 3. / 32, 1e-12));
    assert_int_equal(mean.h2d_bytes, 300);
    assert_int_equal(mean.d2h_bytes, 30);
    assert_int_equal(mean.evictions, 3);
    assert_int_equal(mean.demand_fetches, 3);
    assert_int_equal(mean.prefetches, 3);
    assert_int_equal(mean.device_bytes_peak, 10);
}

/* The mean leaves out the first dozen steps, or the first half of fewer than two dozen. */
static void without_a_cycle_the_mean_is_of_all_that_have_settled(void **state)
{
    double seconds[TIDE_COURSE_STEPS_MAX];
    for (uint32_t i = 0; i < TIDE_COURSE_STEPS_MAX; i++)
        seconds[i] = 1 + i * i;
    for (uint32_t count = 1; count <= TIDE_COURSE_STEPS_MAX; count++) {
        const tide_course course = course_of(seconds, count, 4, TIDE_COURSE_STEPS_MAX);
        const uint32_t first = count / 2 < 12 ? count / 2 : 12;
        double sum = 0;
        for (uint32_t i = first; i < count; i++)
            sum += seconds[i];
        tide_pool_counters mean;
        tide_course_mean(&course, &mean);
        assert_true(is_near(mean.seconds, sum / (count - first), 1e-12));
    }
}

/* Returns the least period for which the last steps (two periods, and at least `enough`) are as long as
 * those one period before; 0: none. */
static uint32_t period_reference(const double *seconds, uint32_t count, uint32_t enough)
{
    for (uint32_t period = 1; period <= 8; period++) {
        uint32_t steps = 2 * period > enough ? 2 * period : enough;
        bool same = count >= steps + period;
        for (uint32_t i = count; same && i > count - steps; i--)
            same = fabs(seconds[i - 1] - seconds[i - 1 - period]) <= 1e-3 * seconds[i - 1];
        if (same)
            return period;
    }
    return 0;
}

/* Some rounds have steps that differ by a little less than a thousandth, which is no difference, others by a
 * little more. */
static void a_period_is_what_a_plain_search_finds(void **state)
{
    enum { ROUNDS = 20000 };
    uint32_t found[9] = {0};
    for (int round = 0; round < ROUNDS; round++) {
        double seconds[TIDE_COURSE_STEPS_MAX], cycle[9];
        const uint32_t count = (uint32_t)draw(TIDE_COURSE_STEPS_MAX + 1), period = 1 + (uint32_t)draw(9),
                       unsettled = (uint32_t)draw(20), enough = 1 + (uint32_t)draw(8),
                       spare = (uint32_t)(draw(2) * draw(TIDE_COURSE_STEPS_MAX + 1 - count));
        const double jitter = draw(2) == 0 ? 4.9e-4 : 5.1e-4;
        for (uint32_t i = 0; i < period; i++)
            cycle[i] = 1 + (double)draw(3);
        for (uint32_t i = 0; i < count; i++) {
            const bool noisy = i < unsettled || draw(60) == 0;
            seconds[i] = noisy ? 1 + (double)draw(3) : cycle[i % period] * (1 + jitter * (double)draw(3));
        }
        const tide_course course = course_of(seconds, count, enough, count + spare);
        const uint32_t truth = period_reference(seconds, count, enough);
        assert_int_equal(tide_course_period(&course), truth);
        assert_int_equal(tide_course_is_over(&course), truth != 0 || spare == 0);
        found[truth]++;
    }
    for (int period = 0; period <= 8; period++)
        assert_true(found[period] > 20);
}

/* --- kernels of a machine --- */

static tide_machine_profile_kernel kernel_of(const char *label, double flops, double bytes, double ns)
{
    tide_machine_profile_kernel kernel = {.flops = flops, .bytes = bytes, .ns = ns};
    snprintf(kernel.label, sizeof kernel.label, "%s", label);
    return kernel;
}

static bool is_after(const tide_machine_profile_kernel *a, const tide_machine_profile_kernel *b)
{
    const int labels = strcmp(a->label, b->label);
    if (labels != 0)
        return labels > 0;
    return a->flops > b->flops || (a->flops == b->flops && a->bytes > b->bytes);
}

static void kernels_are_found_as_in_a_plain_list(void **state)
{
    enum { OPERATIONS = 6000, MANY = 512 };
    static const char *const labels[] = {
        "", "a", "ab", "b", "layer norm", "a label that is as long as any can be, 47 bytes"};
    static tide_machine_profile_kernel list[MANY];
    uint32_t count = 0;
    tide_machine_profile profile = {0};
    for (int operation = 0; operation < OPERATIONS; operation++) {
        const char *label = labels[draw(sizeof labels / sizeof labels[0])];
        const double flops = (double)draw(6), bytes = (double)draw(6);
        const tide_machine_profile_kernel kernel = kernel_of(label, flops, bytes, 1 + operation);
        uint32_t at = 0;
        while (at < count &&
               (strcmp(list[at].label, label) != 0 || list[at].flops != flops || list[at].bytes != bytes))
            at++;
        const tide_machine_profile_kernel *found =
            tide_machine_profile_kernel_find(&profile, label, flops, bytes);
        assert_int_equal(found != NULL, at < count);
        if (found != NULL)
            assert_memory_equal(found, &list[at], sizeof *found);
        if (draw(3) == 0)
            continue;
        assert_ok(tide_machine_profile_kernel_set(&profile, &kernel));
        count += at == count;
        list[at] = kernel;
        assert_int_equal(profile.kernel_count, count);
        for (uint32_t i = 1; i < count; i++)
            assert_true(is_after(&profile.kernels[i], &profile.kernels[i - 1]));
    }
    assert_int_equal(count, 6 * 6 * sizeof labels / sizeof labels[0]);
    char longer[64];
    snprintf(longer, sizeof longer, "%s, and more", labels[5]);
    assert_ptr_equal(tide_machine_profile_kernel_find(&profile, longer, 1, 1),
                     tide_machine_profile_kernel_find(&profile, labels[5], 1, 1));
    tide_machine_profile_destroy(&profile);
    assert_null(profile.kernels);
    tide_machine_profile_destroy(&profile);
}

static void there_is_an_end_to_kernels(void **state)
{
    tide_machine_profile profile = {0};
    for (uint32_t i = 0; i < TIDE_MACHINE_PROFILE_KERNELS_MAX; i++) {
        const tide_machine_profile_kernel kernel = kernel_of("many", i, 0, 1);
        assert_ok(tide_machine_profile_kernel_set(&profile, &kernel));
    }
    const tide_machine_profile_kernel more = kernel_of("many", 0.5, 0, 1), again = kernel_of("many", 7, 0, 2);
    assert_int_equal(tide_machine_profile_kernel_set(&profile, &more), TIDE_ERROR_STATE);
    assert_null(tide_machine_profile_kernel_find(&profile, "many", 0.5, 0));
    assert_ok(tide_machine_profile_kernel_set(&profile, &again));
    assert_true(tide_machine_profile_kernel_find(&profile, "many", 7, 0)->ns == 2);
    assert_int_equal(profile.kernel_count, TIDE_MACHINE_PROFILE_KERNELS_MAX);
    tide_machine_profile_destroy(&profile);
}

static void adam_goes_by_the_threads_that_were_measured(void **state)
{
    const tide_machine_profile profile = {.adams = {{2, 10}, {4, 18}, {8, 20}}, .adam_count = 3};
    static const double rates[] = {20, 5, 10, 10, 18, 18, 18, 18, 20, 20};
    for (uint32_t threads = 0; threads < sizeof rates / sizeof rates[0]; threads++)
        assert_true(tide_machine_profile_adam_rate(&profile, threads) == rates[threads]);
    assert_true(tide_machine_profile_adam_rate(&(tide_machine_profile){0}, 3) == 0);
}

/* --- published machines --- */

/* Checks that two machine profiles agree in every field. */
static void assert_same_profile(const tide_machine_profile *a, const tide_machine_profile *b)
{
    assert_string_equal(a->name, b->name);
    assert_string_equal(a->source, b->source);
    assert_string_equal(a->device, b->device);
    assert_int_equal(a->measured, b->measured);
    assert_int_equal(a->is_here, b->is_here);
    assert_int_equal(a->threads, b->threads);
    assert_int_equal(a->gpu_bytes, b->gpu_bytes);
    assert_int_equal(a->memory_bytes, b->memory_bytes);
    assert_memory_equal(a->flops_per_second, b->flops_per_second, sizeof a->flops_per_second);
    assert_memory_equal(&a->device_bytes_per_second, &b->device_bytes_per_second,
                        offsetof(tide_machine_profile, adams) -
                            offsetof(tide_machine_profile, device_bytes_per_second));
    assert_memory_equal(&a->map_ns, &b->map_ns, 3 * sizeof a->map_ns);
    assert_int_equal(a->adam_count, b->adam_count);
    for (uint32_t i = 0; i < a->adam_count; i++) {
        assert_int_equal(a->adams[i].threads, b->adams[i].threads);
        assert_true(a->adams[i].bytes_per_second == b->adams[i].bytes_per_second);
    }
    assert_memory_equal(&a->slowdowns, &b->slowdowns, sizeof a->slowdowns);
    assert_int_equal(a->kernel_count, b->kernel_count);
    for (uint32_t i = 0; i < a->kernel_count; i++) {
        assert_string_equal(a->kernels[i].label, b->kernels[i].label);
        assert_true(a->kernels[i].flops == b->kernels[i].flops &&
                    a->kernels[i].bytes == b->kernels[i].bytes && a->kernels[i].ns == b->kernels[i].ns);
    }
}

static tide_machine_profile preset_of(const char *name, const char *variation)
{
    char whole[64];
    tide_machine_profile profile;
    snprintf(whole, sizeof whole, "%s%s", name, variation);
    assert_ok(tide_machine_profile_preset(whole, &profile));
    return profile;
}

static void every_preset_opens_and_says_that_it_was_not_measured(void **state)
{
    size_t count = 0;
    for (const char *name; (name = tide_machine_profile_preset_name(count)) != NULL; count++) {
        const tide_machine_profile profile = preset_of(name, "");
        assert_true(profile.name[0] != '\0' && strstr(profile.source, "not measured") != NULL);
        assert_false(profile.measured || profile.is_here);
        assert_string_equal(profile.device, "");
        assert_true(profile.gpu_bytes > 8 * GIB && profile.h2d_bytes_per_second > 1e10);
        assert_true(profile.flops_per_second[TIDE_DTYPE_BF16] > profile.flops_per_second[TIDE_DTYPE_FP32]);
        assert_true(profile.flops_per_second[TIDE_DTYPE_FP32] > 1e12);
        assert_true(tide_machine_profile_adam_rate(&profile, 0) > 1e10);
    }
    assert_true(count >= 7);
    assert_null(tide_machine_profile_preset_name(count));
}

static void a_variation_changes_what_it_says_and_nothing_else(void **state)
{
    for (size_t i = 0; tide_machine_profile_preset_name(i) != NULL; i++) {
        const char *name = tide_machine_profile_preset_name(i);
        const tide_machine_profile base = preset_of(name, ""), pcie4 = preset_of(name, "+pcie4"),
                                   pcie5 = preset_of(name, "+pcie5"), one = preset_of(name, "+1-socket"),
                                   two = preset_of(name, "+2-sockets"),
                                   both = preset_of(name, "+2-sockets+pcie4"),
                                   last = preset_of(name, "+pcie5+2-sockets+pcie4");
        assert_same_profile(&base, &one);
        assert_same_profile(&base, base.h2d_bytes_per_second == pcie4.h2d_bytes_per_second ? &pcie4 : &pcie5);
        assert_true(pcie5.h2d_bytes_per_second > 2 * pcie4.h2d_bytes_per_second);
        assert_true(pcie5.d2h_bytes_per_second > 2 * pcie4.d2h_bytes_per_second);
        assert_true(two.adams[0].bytes_per_second == 2 * one.adams[0].bytes_per_second);
        assert_true(strstr(pcie4.name, "PCIe 4, 1 socket") && strstr(pcie5.name, "PCIe 5, 1 socket"));
        assert_true(strstr(both.name, "PCIe 4, 2 sockets") != NULL);
        assert_same_profile(&both, &last);

        tide_machine_profile expected = pcie4;
        memcpy(expected.name, both.name, sizeof expected.name);
        expected.adams[0] = two.adams[0];
        assert_same_profile(&expected, &both);
        expected = pcie4;
        memcpy(expected.name, pcie5.name, sizeof expected.name);
        expected.h2d_bytes_per_second = pcie5.h2d_bytes_per_second;
        expected.d2h_bytes_per_second = pcie5.d2h_bytes_per_second;
        expected.slowdowns = pcie5.slowdowns;
        assert_same_profile(&expected, &pcie5);
    }
}

static void a_name_that_is_none_is_refused_with_those_that_are(void **state)
{
    static const char *const names[] = {"",       "a100",        "RTX4090",        "rtx4090 ",
                                        "+pcie4", "rtx4090+",    "rtx4090+pcie6",  "h100+pcie4+",
                                        "h100++", "h100++pcie4", "h100+3-sockets", "h100pcie4",
                                        "h20",    "h100+pcie4x", "h100+pcie",      "h2000"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        tide_machine_profile profile = {.threads = 7};
        assert_int_equal(tide_machine_profile_preset(names[i], &profile), TIDE_ERROR_ARGUMENT);
        assert_int_equal(profile.threads, 7);
        assert_non_null(strstr(tide_message(), names[i]));
    }
    tide_machine_profile profile;
    assert_int_equal(tide_machine_profile_preset("a100", &profile), TIDE_ERROR_ARGUMENT);
    assert_string_equal(
        tide_message(),
        "machine a100: neither a file nor a preset (rtx3090, rtx4090, rtx5090, a100-40, a100-80, "
        "h100, h200; behind it +pcie4, +pcie5, +1-socket, +2-sockets)");
}

/* --- a machine in a file --- */

static const int streams[] = {TIDE_STREAM_COMPUTE, TIDE_STREAM_IN, TIDE_STREAM_OUT, TIDE_STREAM_UPDATE,
                              TIDE_STREAM_HOST};

enum { STREAMS = sizeof streams / sizeof streams[0] };

static unsigned streams_all(void)
{
    unsigned all = 0;
    for (int i = 0; i < STREAMS; i++)
        all |= 1u << streams[i];
    return all;
}

static bool is_alone(unsigned set)
{
    return (set & (set - 1)) == 0;
}

/* The more streams are busy, the slower each of them is, by factors of its own. */
static void slowdowns_make(tide_slowdowns *slowdowns)
{
    const unsigned all = streams_all();
    for (unsigned set = 1; set <= all; set++)
        for (int i = 0; i < STREAMS; i++) {
            if ((set & ~all) != 0 || is_alone(set) || (set & 1u << streams[i]) == 0)
                continue;
            double slower = 1;
            for (int j = 0; j < STREAMS; j++)
                slower += (set & 1u << streams[j]) != 0 && j != i ? 0.1 * (i + 2 * j + 1) : 0;
            slowdowns->of[streams[i]][set] = 1 / slower;
        }
}

/* Each text of this profile is as long as any can be, but for the source. */
static tide_machine_profile profile_made(void)
{
    tide_machine_profile profile = {.name = "a processor, \"quoted\" \\ or \xc3\xa9lan ",
                                    .source = "measured by a test",
                                    .measured = true,
                                    .device = "cuda:1234567890",
                                    .threads = 3,
                                    .gpu_bytes = 24 * GIB + 1,
                                    .memory_bytes = UINT64_C(1) << 62,
                                    .flops_per_second = {1e12 / 3, 2e12 / 3, 1e12 / 7},
                                    .device_bytes_per_second = 1e11 / 3,
                                    .h2d_bytes_per_second = 1e10 / 3,
                                    .d2h_bytes_per_second = 1e10 / 7,
                                    .device_adam_bytes_per_second = 1e11 / 9,
                                    .adams = {{1, 1e10 / 11}, {2, 2e10 / 13}, {7, 1e300}},
                                    .adam_count = 3,
                                    .map_ns = 1. / 3,
                                    .unmap_ns = 2. / 3,
                                    .launch_ns = 5e-324};
    memset(profile.name + strlen(profile.name), 'x', sizeof profile.name - 1 - strlen(profile.name));
    slowdowns_make(&profile.slowdowns);
    const tide_machine_profile_kernel kernels[] = {
        kernel_of("layer norm", 0, 1e6, 123.25), kernel_of("product", 1e9 / 3, 1e6, 1e5 / 3),
        kernel_of("product", 2e9, 3e6, DBL_MIN), kernel_of("", 0, 0, 0),
        kernel_of("a label that is as long as any can be, 47 bytes", 1, 1, 1)};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        assert_ok(tide_machine_profile_kernel_set(&profile, &kernels[i]));
    return profile;
}

static const char *path_of(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void bytes_write(const char *path, const char *bytes, size_t count)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void what_is_written_is_read_and_no_more_is_left(void **state)
{
    const char *path = path_of("new/folders/machine.json");
    tide_machine_profile profile = profile_made(), read = {0};
    for (int round = 0; round < 2; round++) { /* the second file replaces the first */
        profile.is_here = true;               /* not stored in files */
        profile.threads++;
        assert_ok(tide_machine_profile_write(path, &profile));
        assert_ok(tide_machine_profile_read(path, &read));
        profile.is_here = false;
        assert_same_profile(&profile, &read);
        tide_machine_profile_destroy(&read);
    }
    tide_machine_profile_destroy(&profile);
    DIR *listing = opendir(path_of("new/folders"));
    assert_non_null(listing);
    int entries = 0;
    while (readdir(listing) != NULL)
        entries++;
    closedir(listing);
    assert_int_equal(entries, 3); /* including "." and ".." */
}

static void what_can_not_be_written_or_read_is_an_io_error(void **state)
{
    static char longest[2 * TIDE_MACHINE_PROFILE_PATH_BYTES];
    tide_machine_profile profile = profile_made();
    bytes_write(path_of("file"), "x", 1);
    memset(longest, 'x', sizeof longest - 1);
    assert_int_equal(tide_machine_profile_write(path_of("file/machine.json"), &profile), TIDE_ERROR_IO);
    assert_int_equal(tide_machine_profile_write(path_of("file/deeper/machine.json"), &profile),
                     TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), path_of("file/deeper/machine.json")));
    assert_int_equal(tide_machine_profile_write(longest, &profile), TIDE_ERROR_IO);
    assert_int_equal(tide_machine_profile_write(folder, &profile), TIDE_ERROR_IO);
    tide_machine_profile_destroy(&profile);

    tide_machine_profile read = {.threads = 7};
    assert_int_equal(tide_machine_profile_read(path_of("nothing"), &read), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), path_of("nothing")));
    assert_int_equal(tide_machine_profile_read(folder, &read), TIDE_ERROR_IO);
    assert_int_equal(read.threads, 7);
}

/* Returns a valid machine as JSON, which a test then spoils. */
static json_t *json_made(void)
{
    json_error_t fault;
    tide_machine_profile profile = profile_made();
    assert_ok(tide_machine_profile_write(path_of("sound.json"), &profile));
    tide_machine_profile_destroy(&profile);
    json_t *root = json_load_file(path_of("sound.json"), 0, &fault);
    assert_non_null(root);
    return root;
}

static const char *last_value = ""; /* of value_of */

/* Reading fails with a message that names the file and (unless NULL) `what`, and leaves the profile
 * unchanged. */
static void refused(const char *what)
{
    tide_machine_profile profile = profile_made(), before = profile;
    const tide_status status = tide_machine_profile_read(path_of("spoilt.json"), &profile);
    if (status != TIDE_ERROR_CORRUPT)
        fail_msg("%s (%s): %s", what, last_value, tide_status_name(status));
    if (strstr(tide_message(), path_of("spoilt.json")) == NULL ||
        (what && strstr(tide_message(), what) == NULL))
        fail_msg("%s (%s): %s", what, last_value, tide_message());
    assert_memory_equal(&profile, &before, sizeof profile);
    tide_machine_profile_destroy(&profile);
}

/* Frees `root`. */
static void refused_json(json_t *root, const char *what)
{
    assert_int_equal(json_dump_file(root, path_of("spoilt.json"), JSON_REAL_PRECISION(17)), 0);
    json_decref(root);
    refused(what);
}

/* Sets a field to another value, or removes it (NULL). */
static void field_set(json_t *object, const char *name, json_t *value)
{
    assert_int_equal(value ? json_object_set_new(object, name, value) : json_object_del(object, name), 0);
}

static void refused_field(const char *name, json_t *value)
{
    json_t *root = json_made();
    field_set(root, name, value);
    refused_json(root, name);
}

/* Appends an entry to a list and expects the refusal. */
static void refused_entry(const char *list, json_t *entry)
{
    json_t *root = json_made();
    assert_int_equal(json_array_append_new(json_object_get(root, list), entry), 0);
    refused_json(root, list);
}

/* Returns the value of this JSON text; "" is none. */
static json_t *value_of(const char *json)
{
    json_t *value = json_loads(json, JSON_DECODE_ANY, NULL);
    assert_true((value != NULL) == (json[0] != '\0'));
    last_value = json;
    return value;
}

static json_t *text_json(size_t bytes)
{
    char letters[200] = {0};
    memset(letters, 'x', bytes);
    return json_string(letters);
}

#define ADAM(threads, rate) "{\"threads\": " threads ", \"bytes_per_second\": " rate "}"

static void a_field_that_is_missing_or_wrong_is_named(void **state)
{
    static const struct {
        const char *fields[11], *values[6]; /* "": without the field */
    } wrong[] = {
        {{"bf16_flops_per_second", "fp16_flops_per_second", "fp32_flops_per_second",
          "device_bytes_per_second", "device_adam_bytes_per_second", "h2d_bytes_per_second",
          "d2h_bytes_per_second", "map_ns", "unmap_ns", "launch_ns"},
         {"", "-1e-9", "\"NaN\"", "null", "[]"}},
        {{"threads", "gpu_bytes", "memory_bytes"}, {"", "-1", "1.5", "\"1\""}},
        {{"threads"}, {"4294967296"}},
        {{"name", "source", "device"}, {"", "1", "\"a\\nline\""}},
        {{"format"}, {"", "\"another\""}},
        {{"version"}, {"", "2", "\"1\""}},
        {{"host_adam", "paces", "kernels"}, {"", "{}", "1.0"}},
        {{"host_adam"}, {"[]", "[" ADAM("0", "1") "]"}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        for (const char *const *field = wrong[i].fields; *field != NULL; field++)
            for (const char *const *value = wrong[i].values; *value != NULL; value++)
                refused_field(*field, value_of(*value));
    refused_field("name", text_json(TIDE_MACHINE_PROFILE_TEXT_BYTES));
    refused_field("source", text_json(TIDE_MACHINE_PROFILE_TEXT_BYTES));
    refused_field("device", text_json(16));
    json_t *many = json_array();
    for (int i = 1; i <= TIDE_MACHINE_PROFILE_ADAMS_MAX + 1; i++)
        json_array_append_new(many, json_pack("{s:i, s:f}", "threads", i, "bytes_per_second", 1.0));
    refused_field("host_adam", many);
}

static void an_entry_of_a_list_that_is_wrong_is_refused(void **state)
{
    static const struct {
        const char *list, *entries[10];
    } wrong[] = {
        /* the last entry is of 7 threads */
        {"host_adam", {"null", "3", "{}", ADAM("7", "1"), ADAM("8", "-1"), "{\"threads\": 8}"}},
        {"paces",
         {"null", "3", "{}", "{\"compute\": 0.5, \"sideways\": 0.5}", "{\"compute\": 0.5, \"in\": 0.0}",
          "{\"compute\": 0.5, \"in\": -0.5}", "{\"compute\": 0.5, \"in\": 1.0001}",
          "{\"compute\": 0.5, \"in\": \"fast\"}"}},
        {"kernels", {"null", "3", "{}", "{\"flops\": 1, \"bytes\": 1, \"ns\": 1}"}},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        for (const char *const *entry = wrong[i].entries; *entry != NULL; entry++)
            refused_entry(wrong[i].list, value_of(*entry));
    static const char *const numbers[] = {"flops", "bytes", "ns"}, *const values[] = {"", "-1", "\"1\""};
    for (int i = 0; i < 9; i++) {
        json_t *kernel = value_of("{\"label\": \"x\", \"flops\": 1, \"bytes\": 1, \"ns\": 1}");
        field_set(kernel, numbers[i / 3], value_of(values[i % 3]));
        refused_entry("kernels", kernel);
    }
    refused_entry("kernels",
                  json_pack("{s:o, s:f, s:f, s:f}", "label", text_json(TIDE_MACHINE_PROFILE_LABEL_BYTES),
                            "flops", 1.0, "bytes", 1.0, "ns", 1.0));
}

static void what_is_no_machine_file_is_refused(void **state)
{
    static const char *const texts[] = {
        "",
        "{",
        "[]",
        "1",
        "{}",
        "{\"format\": \"tidepool machine\"}",
        "{\"format\": \"tidepool machine\", \"version\": 1}",
        "{\"format\": \"tidepool machine\", \"format\": \"tidepool machine\"}",
        "{\"format\": \"tidepool machine\", \"version\": 1, \"map_ns\": NaN}",
        "{\"format\": \"tidepool machine\", \"version\": 1, \"map_ns\": 1e999}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        bytes_write(path_of("spoilt.json"), texts[i], strlen(texts[i]));
        refused(NULL);
    }
}

static bool is_sound(const tide_machine_profile *profile)
{
    bool sound = profile->measured && profile->adam_count >= 1 &&
                 profile->adam_count <= TIDE_MACHINE_PROFILE_ADAMS_MAX && isfinite(profile->map_ns) &&
                 profile->map_ns >= 0 && isfinite(profile->flops_per_second[0]) &&
                 strlen(profile->name) < TIDE_MACHINE_PROFILE_TEXT_BYTES;
    for (uint32_t i = 1; i < profile->adam_count; i++)
        sound = sound && profile->adams[i].threads > profile->adams[i - 1].threads;
    for (uint32_t i = 1; i < profile->kernel_count; i++)
        sound = sound && is_after(&profile->kernels[i], &profile->kernels[i - 1]);
    for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++)
        for (unsigned set = 0; set < 1u << TIDE_STREAM_COUNT; set++)
            sound =
                sound && profile->slowdowns.of[stream][set] >= 0 && profile->slowdowns.of[stream][set] <= 1;
    return sound;
}

static void spoilt_files_are_sound_or_corrupt(void **state)
{
    static fuzz run;
    json_t *root = json_made();
    char *sound = json_dumps(root, JSON_REAL_PRECISION(17));
    assert_non_null(sound);
    json_decref(root);
    uint64_t read_count = 0;
    const uint64_t rounds = fuzz_rounds(3000);
    for (uint64_t round = 0; round < rounds; round++) {
        tide_machine_profile profile = {.threads = 77};
        fuzz_mutate(&run, round, sound, strlen(sound));
        bytes_write(path_of("spoilt.json"), run.text, run.bytes);
        const tide_status status = tide_machine_profile_read(path_of("spoilt.json"), &profile);
        if (status != TIDE_OK && status != TIDE_ERROR_CORRUPT)
            fail_msg("round %llu: %s", (unsigned long long)round, tide_message());
        if (status == TIDE_OK)
            assert_true(is_sound(&profile));
        else
            assert_int_equal(profile.threads, 77);
        read_count += status == TIDE_OK;
        tide_machine_profile_destroy(&profile);
    }
    assert_true(read_count > 0 && read_count < rounds);
    free(sound);
}

/* --- how long kernels take on a machine --- */

static tide_machine_profile timed;
static tide_machine_profile_clock *timed_clock;

static void clock_make(tide_dtype dtype, uint32_t threads, double link)
{
    tide_machine_profile_clock_free(timed_clock); /* NULL at first */
    assert_ok(tide_machine_profile_clock_make(&timed, dtype, threads, link, &timed_clock));
}

static double ns_of(tide_stream stream, const char *label, double flops, double bytes)
{
    const tide_device_options machine = tide_machine_profile_clock_machine(timed_clock);
    const tide_work work = {.label = label, .flops = flops, .bytes = bytes};
    return machine.kernel_time(machine.kernel_time_context, stream, &work, NULL, NULL);
}

static double compute_ns(const char *label, double flops, double bytes)
{
    return ns_of(TIDE_STREAM_COMPUTE, label, flops, bytes);
}

static int timed_make(void **state)
{
    timed = (tide_machine_profile){.flops_per_second = {1e12, 2e12, 4e12},
                                   .device_bytes_per_second = 1e9,
                                   .device_adam_bytes_per_second = 5e9,
                                   .adams = {{1, 1e9}, {4, 2e9}},
                                   .adam_count = 2,
                                   .h2d_bytes_per_second = 10e9,
                                   .d2h_bytes_per_second = 8e9,
                                   .launch_ns = 7};
    slowdowns_make(&timed.slowdowns);
    const tide_machine_profile_kernel kernels[] = {
        kernel_of("product", 1e6, 1e3, 1000), kernel_of("product", 1e9, 1e5, 400000),
        kernel_of("copy", 0, 1e6, 900), kernel_of("call", 0, 0, 50)};
    for (size_t i = 0; i < sizeof kernels / sizeof kernels[0]; i++)
        assert_ok(tide_machine_profile_kernel_set(&timed, &kernels[i]));
    clock_make(TIDE_DTYPE_BF16, 0, 0);
    return 0;
}

static int timed_destroy(void **state)
{
    tide_machine_profile_clock_free(timed_clock);
    timed_clock = NULL;
    tide_machine_profile_destroy(&timed);
    return 0;
}

static void a_kernel_lasts_what_was_measured_or_what_the_nearest_of_its_name_does(void **state)
{
    clock_make(TIDE_DTYPE_FP32, 0, 0);
    for (int again = 0; again < 2; again++) {
        assert_true(compute_ns("product", 1e6, 1e3) == 1007);
        assert_true(compute_ns("product", 1e9, 1e5) == 400007);
        assert_true(compute_ns("copy", 0, 1e6) == 907);
        assert_true(compute_ns("call", 0, 0) == 57);
    }
    assert_true(is_near(compute_ns("product", 2e6, 1e3), 2007, 1e-12));   /* twice the small one */
    assert_true(is_near(compute_ns("product", 5e8, 1e5), 200007, 1e-12)); /* half the large one */
    /* The time of a kernel measured with operations follows the operations, whatever its bytes. */
    assert_true(is_near(compute_ns("product", 2e6, 2e3), 2007, 1e-12));
    assert_true(is_near(compute_ns("copy", 0, 3e6), 2707, 1e-12)); /* by bytes: it has no operations */
    /* The profile has "call" with 0 operations and 0 bytes. Such a kernel always takes its measured time. */
    assert_true(is_near(compute_ns("call", 1e6, 1e6), 57, 1e-12));
    /* Labels are compared as text, not as pointers. */
    char other_place[] = "product";
    assert_true(is_near(compute_ns(other_place, 1e6, 1e3), 1007, 1e-12));
}

static void a_kernel_of_no_known_name_goes_by_the_rates(void **state)
{
    for (int dtype = 0; dtype < 3; dtype++) {
        clock_make((tide_dtype)dtype, 0, 0);
        const double rate = timed.flops_per_second[dtype];
        assert_true(is_near(compute_ns("unknown", 1e9, 0), 1e18 / rate + 7, 1e-12));
        assert_true(is_near(compute_ns("unknown", 1e6, 1e6), 1e6 + 7, 1e-12)); /* memory is slower */
        assert_true(is_near(compute_ns("unknown", 0, 0), 7, 1e-12));
    }
}

static void optimizers_go_by_their_own_rates(void **state)
{
    static const struct {
        uint32_t threads;
        double rate;
    } cases[] = {{0, 2e9}, {1, 1e9}, {3, 1e9}, {4, 2e9}, {9, 2e9}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        clock_make(TIDE_DTYPE_BF16, cases[i].threads, 0);
        assert_true(is_near(ns_of(TIDE_STREAM_HOST, "product", 1e6, 1e6), 1e15 / cases[i].rate, 1e-12));
        assert_true(is_near(ns_of(TIDE_STREAM_UPDATE, "product", 1e6, 1e6), 2e5 + 7, 1e-12));
        assert_true(tide_machine_profile_clock_machine(timed_clock).machine.host_bytes_per_second ==
                    cases[i].rate);
    }
}

static void what_was_measured_is_told_from_what_was_inferred(void **state)
{
    for (int i = 0; i < 20000; i++) { /* more than the clock stores at once */
        bool measured = i % 9000 != 0;
        const double flops = 1e6 + i % 9000,
                     ns = tide_machine_profile_clock_kernel(timed_clock, "product", flops, 1e3, &measured);
        assert_true(measured == (i % 9000 == 0) && ns == compute_ns("product", flops, 1e3));
        assert_true(!measured || is_near(ns, 1007, 1e-12));
    }
}

static double slowdown_in(const tide_slowdowns *slowdowns, int stream, unsigned set)
{
    return slowdowns->of[stream][set] > 0 ? slowdowns->of[stream][set] : 1;
}

static void slowdowns_are_the_machines_where_the_link_is_not_held_back(void **state)
{
    static const double links[] = {0, 10e9, 1e12};
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        clock_make(TIDE_DTYPE_BF16, 0, links[i]);
        const tide_device_options machine = tide_machine_profile_clock_machine(timed_clock);
        assert_true(machine.link_bytes_per_second == 10e9 &&
                    machine.machine.link_out_bytes_per_second == 8e9);
        for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++)
            for (unsigned set = 0; set < 1u << TIDE_STREAM_COUNT; set++)
                if ((set & 1u << stream) != 0)
                    assert_true(is_near(slowdown_in(machine.slowdowns, stream, set),
                                        slowdown_in(&timed.slowdowns, stream, set), 1e-12));
    }
}

static void a_link_that_is_held_back_slows_others_by_its_part(void **state)
{
    const unsigned in = 1u << TIDE_STREAM_IN, out = 1u << TIDE_STREAM_OUT,
                   compute = 1u << TIDE_STREAM_COMPUTE;
    clock_make(TIDE_DTYPE_BF16, 0, 4e9); /* 0.4 of the rate in, half of the rate out */
    const tide_device_options machine = tide_machine_profile_clock_machine(timed_clock);
    const tide_slowdowns *held = machine.slowdowns;
    assert_true(machine.link_bytes_per_second == 4e9 && machine.machine.link_out_bytes_per_second == 4e9);
    for (unsigned set = 1; set <= streams_all(); set++)
        for (int i = 0; i < STREAMS; i++) {
            if ((set & ~streams_all()) != 0 || (set & 1u << streams[i]) == 0)
                continue;
            const double slowdown = slowdown_in(held, streams[i], set),
                         measured = slowdown_in(&timed.slowdowns, streams[i], set);
            assert_true(slowdown >= measured - 1e-12 && slowdown <= 1);
            if ((set & (in | out)) == 0)
                assert_true(is_near(slowdown, measured, 1e-12));
            else if (!is_alone(set))
                assert_true(slowdown > measured * (1 + 1e-9));
        }
    const double beside_in = timed.slowdowns.of[TIDE_STREAM_COMPUTE][compute | in],
                 beside_out = timed.slowdowns.of[TIDE_STREAM_COMPUTE][compute | out],
                 beside_both = timed.slowdowns.of[TIDE_STREAM_COMPUTE][compute | in | out],
                 in_slowdown = timed.slowdowns.of[TIDE_STREAM_IN][compute | in];
    assert_true(is_near(slowdown_in(held, TIDE_STREAM_COMPUTE, compute | in), 0.4 * beside_in + 0.6, 1e-12));
    assert_true(is_near(slowdown_in(held, TIDE_STREAM_COMPUTE, compute | in | out),
                        0.2 * beside_both + 0.2 * beside_in + 0.3 * beside_out + 0.3, 1e-12));
    assert_true(is_near(slowdown_in(held, TIDE_STREAM_IN, compute | in), fmin(1, in_slowdown / 0.4), 1e-12));
}

/* --- memory, compared with the trainer's own plan --- */

static tide_trainer_options nano_options(const char *model)
{
    tide_trainer_options options;
    tide_trainer_options_default(&options);
    assert_ok(tide_model_config_open(model, &options.model));
    options.seq_len = 32;
    options.global_batch_tokens = 8 * 32;
    options.micro_batch_sequences = 2;
    options.makes_up_tokens = true;
    options.pool.threads = 2;
    options.pool.chunk_bytes = MIB;
    return options;
}

static tide_trainer_options random_options(void)
{
    static const char *const patterns[] = {"*.0.*", "*ln_*", "*norm*", "*.[1-3].*",
                                           "*bias", "*",     "*wte*",  "*h.2.mlp*"};
    static const char *freeze[2];
    const bool tight = draw(2) == 0;
    tide_trainer_options options = nano_options(draw(2) == 0 ? "gpt2-nano" : "llama-nano");
    const uint32_t parts = 1 + (uint32_t)draw(4), micro = 1 + (uint32_t)draw(4);
    options.seq_len = 16 + (uint32_t)draw(49);
    options.micro_batch_sequences = draw(4) == 0 ? 0 : micro;
    options.global_batch_tokens = (uint64_t)options.seq_len * parts * micro + (draw(25) == 0);
    options.recompute = (tide_recompute)draw(3);
    options.pool.placement = (tide_placement)draw(3);
    options.dtype = (tide_dtype)draw(3);
    options.pool.prefetch = draw(2) == 0;
    options.pool.chunk_bytes = 256 * KIB << draw(5);
    options.pool.device_memory_bytes = draw(2) == 0 ? 0 : (tight ? 2 * MIB : 12 * MIB) + draw(100 * MIB);
    options.pool.host_memory_bytes = draw(2) == 0 ? 0 : (tight ? 4 * MIB : 64 * MIB) + draw(100 * MIB);
    options.pool.free_memory_bytes = (tight ? 32 * MIB : 160 * MIB) + draw(512 * MIB);
    for (int i = 0; i < 2 && draw(4) == 0; i++) {
        freeze[i] = patterns[draw(sizeof patterns / sizeof patterns[0])];
        options.freeze = freeze;
        options.freeze_count++;
    }
    return options;
}

/* The two plans must agree in all but the pointer to the name of the largest op. */
static void assert_same_plan(const tide_trainer_plan *run, const tide_performance *performance,
                             unsigned long number)
{
    tide_trainer_plan ours = *run, theirs = performance->plan;
    assert_null(theirs.pool.largest_op);
    assert_string_equal(ours.pool.largest_op, performance->largest_op);
    ours.pool.largest_op = NULL;
    ours.pool.device_updates = 0; /* a performance of memory alone does not know it */
    if (memcmp(&ours, &theirs, sizeof ours) != 0)
        print_error("configuration %lu: the plans differ\n", number);
    assert_memory_equal(&ours, &theirs, sizeof ours);
}

static void memory_is_that_of_the_trainer_itself(void **state)
{
    static const tide_machine_profile host = {0};
    unsigned long fit = 0, refused_count = 0;
    random_state = 1;
    for (unsigned long i = 0; i < configurations; i++) {
        tide_trainer_options options = random_options();
        static char message[4096];
        static tide_performance performance;
        tide_trainer *trainer = NULL;
        performance = (tide_performance){.steps_played = 77};
        const tide_status predicted = tide_performance_memory(&options, &host, &performance);
        snprintf(message, sizeof message, "%s", predicted == TIDE_OK ? "" : tide_message());
        options.pool.device = "host";
        const tide_status status = tide_trainer_create(&options, &trainer);
        if (predicted != status)
            fail_msg("configuration %lu: %s (%s), performance %s (%s)", i, tide_status_name(status),
                     status == TIDE_OK ? "" : tide_message(), tide_status_name(predicted), message);
        if (status == TIDE_OK) {
            fit++;
            assert_same_plan(tide_trainer_plan_get(trainer), &performance, i);
            tide_trainer_destroy(trainer);
        } else {
            refused_count++;
            assert_string_equal(message, tide_message());
            assert_int_equal(performance.steps_played, 77); /* unchanged by the refusal */
        }
    }
    assert_true(3 * fit >= configurations);
    assert_true(10 * refused_count >= configurations);
}

/* --- time --- */

static tide_machine_profile machine_of(double flops, double link, double host_adam)
{
    return (tide_machine_profile){.flops_per_second = {flops, flops, flops},
                                  .h2d_bytes_per_second = link,
                                  .d2h_bytes_per_second = link,
                                  .device_adam_bytes_per_second = 20e9,
                                  .adams = {{2, host_adam}},
                                  .adam_count = 1,
                                  .map_ns = 5000};
}

static tide_performance performance_of(const tide_trainer_options *options,
                                       const tide_machine_profile *profile)
{
    tide_performance performance;
    assert_ok(tide_performance_make(options, profile, NULL, &performance));
    return performance;
}

/* If a run with recompute all just fits into its budgets, a run with recompute auto fits too. */
static void what_fits_when_it_recomputes_is_never_refused(void **state)
{
    const tide_machine_profile any = {0};
    uint32_t tried = 0;
    for (uint64_t device = 12; device <= 28; device += 4) {
        tide_trainer_options options = nano_options("gpt2-nano");
        tide_performance all, automatic;
        options.pool.chunk_bytes = UINT64_C(1) << 20;
        options.pool.device_memory_bytes = device << 20;
        options.pool.host_memory_bytes = UINT64_C(1) << 40;
        options.recompute = TIDE_RECOMPUTE_ALL;
        assert_int_equal(tide_performance_memory(&options, &any, &all), TIDE_OK);
        options.pool.host_memory_bytes = all.plan.pool.least_host_bytes;
        assert_int_equal(tide_performance_memory(&options, &any, &all), TIDE_OK);
        options.recompute = TIDE_RECOMPUTE_AUTO;
        assert_int_equal(tide_performance_memory(&options, &any, &automatic), TIDE_OK);
        tried++;
    }
    assert_int_equal(tried, 5);
}

static void no_step_is_shorter_than_what_it_keeps_busy(void **state)
{
    static const double flops[] = {1e10, 3e11, 1e15}, links[] = {0, 1e9, 20e9}, adams[] = {1e9, 100e9};
    bool bound[TIDE_RESOURCE_COUNT] = {false};
    for (int i = 0; i < 18; i++) {
        const tide_machine_profile profile = machine_of(flops[i % 3], links[i / 3 % 3], adams[i / 9]);
        tide_trainer_options options = nano_options("gpt2-nano");
        options.pool.device_memory_bytes = i % 2 == 0 ? 12 * MIB : 64 * MIB;
        const tide_performance performance = performance_of(&options, &profile);
        const double seconds = performance.step.seconds;
        assert_true(seconds > 0 && performance.steps_played > 0 && performance.measured_part == 0);
        assert_true(is_near(performance.tokens_per_second * seconds, 256, 1e-9));
        for (int resource = 0; resource < TIDE_RESOURCE_COUNT; resource++) {
            assert_true(performance.busy_seconds[resource] >= 0);
            assert_true(performance.busy_seconds[resource] <= performance.busy_seconds[performance.bound]);
            if (performance.busy_seconds[resource] > seconds * 1.001)
                fail_msg("machine %d: %s is busy %.9g s of a step of %.9g s", i,
                         tide_resource_name((tide_resource)resource), performance.busy_seconds[resource],
                         seconds);
        }
        bound[performance.bound] = true;
    }
    assert_true(bound[TIDE_RESOURCE_COMPUTE] && bound[TIDE_RESOURCE_HOST_ADAM]);
}

/* A prediction that asks for at least so many tokens a second plays every run that reaches them, with the
 * same result, and leaves out runs whose kernels are too slow for them. */
static void only_runs_that_are_too_slow_are_not_played(void **state)
{
    static const double flops[] = {1e10, 3e11, 1e15}, links[] = {0, 1e9, 20e9};
    uint32_t left_out = 0;
    for (int i = 0; i < 9; i++) {
        const tide_machine_profile profile = machine_of(flops[i % 3], links[i / 3], 10e9);
        tide_trainer_options options = nano_options(i % 2 == 0 ? "gpt2-nano" : "llama-nano");
        options.pool.device_memory_bytes = 64 * MIB;
        const tide_performance whole = performance_of(&options, &profile);
        const double reached = whole.tokens_per_second;
        for (int step = 0; step < 3; step++) {
            static const double parts[] = {1 - 1e-9, 1.01, HUGE_VAL};
            const tide_performance_how how = {.tokens_per_second_least = parts[step] * reached};
            tide_performance part;
            assert_ok(tide_performance_make(&options, &profile, &how, &part));
            assert_true(step > 0 || part.steps_played > 0);
            assert_true(step < 2 || part.steps_played == 0);
            left_out += step == 1 && part.steps_played == 0;
            assert_true(part.step.seconds == (part.steps_played > 0 ? whole.step.seconds : 0));
            assert_true(part.plan.pool.device_memory_bytes == whole.plan.pool.device_memory_bytes);
        }
    }
    assert_true(left_out > 0 && left_out < 9); /* the bound is near the step where compute bounds it */
}

static void more_device_memory_slows_nothing(void **state)
{
    static const double links[] = {1e9, 8e9};
    for (int i = 0; i < 2; i++) {
        const tide_machine_profile profile = machine_of(2e11, links[i], 10e9);
        tide_trainer_options options = nano_options("gpt2-nano");
        options.recompute = TIDE_RECOMPUTE_ALL;
        tide_performance performance;
        assert_ok(tide_performance_memory(&options, &profile, &performance));
        const uint64_t least = performance.plan.pool.least_device_bytes,
                       full = performance.plan.pool.full_device_bytes;
        double before = HUGE_VAL;
        for (uint64_t part = 0; part <= 6; part++) {
            options.pool.device_memory_bytes = least + (full - least) * part / 6;
            performance = performance_of(&options, &profile);
            if (performance.step.seconds > before * 1.01)
                fail_msg("link %g, %llu bytes: %.9g s, with less %.9g", links[i],
                         (unsigned long long)options.pool.device_memory_bytes, performance.step.seconds,
                         before);
            before = fmin(before, performance.step.seconds);
        }
    }
}

static void twice_the_flops_halve_what_is_resident(void **state)
{
    const tide_machine_profile slow = machine_of(1e11, 10e9, 10e9), fast = machine_of(2e11, 10e9, 10e9);
    const tide_trainer_options options = nano_options("gpt2-nano");
    const tide_performance one = performance_of(&options, &slow), other = performance_of(&options, &fast);
    assert_int_equal(one.step.h2d_bytes, 0);
    const double seconds = one.plan.step_flops / 1e11; /* the pool's own kernels for the norm come on top */
    assert_true(one.busy_seconds[TIDE_RESOURCE_COMPUTE] >= seconds * (1 - 1e-6));
    assert_true(one.busy_seconds[TIDE_RESOURCE_COMPUTE] <= seconds * 1.005);
    assert_true(is_near(one.busy_seconds[TIDE_RESOURCE_COMPUTE],
                        2 * other.busy_seconds[TIDE_RESOURCE_COMPUTE], 1e-4));
    assert_true(other.step.seconds < one.step.seconds);
}

/* --- the search, compared with all choices --- */

enum { CHUNKS = 10, RECOMPUTES = 3, PLACEMENTS = 3, TABLE = CHUNKS * RECOMPUTES * PLACEMENTS * 2 };

typedef struct known_choice {
    tide_choice choice;
    bool fits;
    double seconds;
} known_choice;

static bool is_choice(const tide_choice *a, const tide_choice *b)
{
    return a->chunk_bytes == b->chunk_bytes && a->recompute == b->recompute && a->placement == b->placement &&
           a->prefetch == b->prefetch;
}

static const known_choice *known_find(const known_choice *table, const tide_choice *choice)
{
    for (int i = 0; i < TABLE; i++)
        if (is_choice(&table[i].choice, choice))
            return &table[i];
    fail_msg("not in the table");
    return NULL;
}

static void table_fill(const tide_trainer_options *options, const tide_machine_profile *profile,
                       known_choice *table)
{
    for (int i = 0; i < TABLE; i++) {
        const tide_choice choice = {TIDE_TUNE_CHUNK_LEAST << i % CHUNKS,
                                    (tide_recompute)(i / CHUNKS % RECOMPUTES),
                                    (tide_placement)(i / CHUNKS / RECOMPUTES % PLACEMENTS),
                                    i / CHUNKS / RECOMPUTES / PLACEMENTS == 0};
        tide_trainer_options run = *options;
        tide_performance performance;
        tide_choice_apply(&choice, &run);
        const tide_choice again = tide_choice_of(&run);
        assert_true(is_choice(&choice, &again));
        const tide_status status = tide_performance_make(&run, profile, NULL, &performance);
        if (status != TIDE_ERROR_BUDGET)
            assert_ok(status);
        table[i] = (known_choice){choice, status == TIDE_OK,
                                  status == TIDE_OK ? performance.step.seconds : HUGE_VAL};
    }
}

/* Returns the best time of the choices that the search tries for one chunk size: each recompute and placement
 * with the prefetch of `from`, and `from` with the other value of prefetch. */
static double refined_best(const known_choice *table, const tide_choice *from)
{
    double best = HUGE_VAL;
    for (int i = 0; i < TABLE; i++) {
        const tide_choice *choice = &table[i].choice;
        const bool rest_is_same =
            choice->recompute == from->recompute && choice->placement == from->placement;
        if (choice->chunk_bytes == from->chunk_bytes && (choice->prefetch == from->prefetch || rest_is_same))
            best = fmin(best, table[i].seconds);
    }
    return best;
}

/* Returns the best time that the search can reach. It first tries all chunk sizes with the other settings as
 * given. Then it refines two of them, that is, tries other settings with their chunk sizes: first the given
 * one if its time is nearly the best, otherwise the best one; then the best of the rest. */
static double reachable_best(const known_choice *table, const tide_choice *given)
{
    double seconds[CHUNKS], best = HUGE_VAL;
    tide_choice choices[CHUNKS];
    for (int c = 0; c < CHUNKS; c++) {
        choices[c] = *given;
        choices[c].chunk_bytes = TIDE_TUNE_CHUNK_LEAST << c;
        seconds[c] = known_find(table, &choices[c])->seconds;
        best = fmin(best, seconds[c]);
    }
    const double about_best = best * 1.005;
    for (int taken = 0; taken < 2; taken++) {
        int next = 0;
        for (int c = 1; c < CHUNKS; c++)
            if (seconds[c] < seconds[next] || (seconds[c] == seconds[next] && is_choice(&choices[c], given)))
                next = c;
        for (int c = 0; taken == 0 && c < CHUNKS; c++)
            if (is_choice(&choices[c], given) && seconds[c] <= about_best)
                next = c;
        if (seconds[next] == HUGE_VAL)
            break;
        best = fmin(best, refined_best(table, &choices[next]));
        seconds[next] = HUGE_VAL;
    }
    return best;
}

typedef struct go_count {
    uint32_t calls, most;
} go_count;

static bool go_on(void *context, uint32_t done, uint32_t total)
{
    go_count *count = context;
    assert_true(done <= count->calls);
    assert_true(total > 0);
    return ++count->calls <= count->most;
}

static const struct {
    double flops, link, adam;
    uint64_t device_bytes, host_bytes;
} machines[] = {
    {5e11, 4e9, 20e9, 24 * MIB, 0},
    {5e10, 1e9, 5e9, 16 * MIB, 100 * MIB},
    {1e14, 50e9, 20e9, 48 * MIB, 0},
};

enum { MACHINES = sizeof machines / sizeof machines[0] };

static tide_candidate candidates[TIDE_CANDIDATES_MAX];

static tide_trainer_options options_on(int machine, tide_machine_profile *profile)
{
    tide_trainer_options options = nano_options("gpt2-nano");
    *profile = machine_of(machines[machine].flops, machines[machine].link, machines[machine].adam);
    options.pool.device_memory_bytes = machines[machine].device_bytes;
    options.pool.host_memory_bytes = machines[machine].host_bytes;
    return options;
}

static void check_order(uint32_t count)
{
    for (uint32_t i = 1; i < count; i++) {
        assert_true(candidates[i - 1].fits || !candidates[i].fits);
        if (i > 1 && candidates[i].fits)
            assert_true(candidates[i].performance.step.seconds >= candidates[i - 1].performance.step.seconds);
        if (!candidates[i].fits)
            assert_true(candidates[i].performance.step.seconds == 0);
        for (uint32_t j = 0; j < i; j++)
            assert_false(is_choice(&candidates[i].choice, &candidates[j].choice));
    }
}

static void the_search_finds_the_best_that_it_can_reach(void **state)
{
    for (unsigned m = 0; m < MACHINES; m += test_thin(MACHINES)) {
        tide_machine_profile profile;
        const tide_trainer_options options = options_on((int)m, &profile);
        const tide_choice given = tide_choice_of(&options);
        known_choice table[TABLE];
        uint32_t count = 0;
        table_fill(&options, &profile, table);
        assert_ok(tide_tune(&options, &profile, &(tide_tune_options){0}, candidates, &count));
        assert_in_range(count, 2, TIDE_CANDIDATES_MAX);
        check_order(count);
        double least = HUGE_VAL;
        for (uint32_t i = 0; i < count; i++) {
            const known_choice *known = known_find(table, &candidates[i].choice);
            assert_int_equal(known->fits, candidates[i].fits);
            if (candidates[i].fits) {
                assert_true(known->seconds == candidates[i].performance.step.seconds);
                least = fmin(least, known->seconds);
            }
        }
        const double best = candidates[0].performance.step.seconds, reachable = reachable_best(table, &given);
        assert_true(best <= least * 1.005 * (1 + 1e-9));
        if (best > reachable * (1.005 + 1e-9))
            fail_msg("machine %u: tuned %.9g s, reachable %.9g s", m, best, reachable);
        assert_true(best <= known_find(table, &given)->seconds);
    }
}

static void what_is_to_be_kept_is_kept(void **state)
{
    tide_machine_profile profile;
    const tide_trainer_options options = options_on(0, &profile);
    const tide_choice given = tide_choice_of(&options);
    for (unsigned keep = 0; keep < 16; keep += test_thin(5)) {
        const tide_tune_options how = {.kept = {keep & 1, keep >> 1 & 1, keep >> 2 & 1, keep >> 3 & 1}};
        bool differs[4] = {false};
        uint32_t count = 0;
        assert_ok(tide_tune(&options, &profile, &how, candidates, &count));
        for (uint32_t i = 0; i < count; i++) {
            differs[0] |= candidates[i].choice.chunk_bytes != given.chunk_bytes;
            differs[1] |= candidates[i].choice.recompute != given.recompute;
            differs[2] |= candidates[i].choice.placement != given.placement;
            differs[3] |= candidates[i].choice.prefetch != given.prefetch;
        }
        for (int i = 0; i < 4; i++)
            assert_int_equal(differs[i], (keep >> i & 1) == 0);
    }
}

static void the_search_stops_when_it_is_told_to(void **state)
{
    tide_machine_profile profile;
    const tide_trainer_options options = options_on(0, &profile);
    const tide_choice given = tide_choice_of(&options);
    uint32_t before = 0, cut = 0;
    /* `go_on` is called before each prediction and before its steps. */
    for (uint32_t most = 0; most < 24; most++) {
        go_count calls = {.most = most};
        uint32_t count = 99;
        assert_ok(tide_tune(&options, &profile, &(tide_tune_options){.go_on = go_on, .context = &calls},
                            candidates, &count));
        assert_int_equal(calls.calls, most + 1);
        assert_true(count == before || count == before + 1);
        for (uint32_t i = 0; i < count; i++)
            assert_true(!candidates[i].fits || candidates[i].performance.steps_played > 0);
        cut += count == before; /* a stop within a prediction adds no candidate */
        before = count;
    }
    assert_true(before >= 2 && cut > 2 * before);
    uint32_t count = 0;
    assert_ok(tide_tune(&options, &profile, &(tide_tune_options){.seconds_most = 1e-9}, candidates, &count));
    assert_int_equal(count, 1); /* the run as given */
    assert_true(is_choice(&candidates[0].choice, &given));
}

static void where_nothing_fits_the_runs_own_message_says_so(void **state)
{
    tide_machine_profile profile;
    tide_trainer_options options = options_on(0, &profile);
    options.pool.device_memory_bytes = MIB;
    tide_performance performance;
    char message[1024];
    uint32_t count = 0;
    assert_int_equal(tide_performance_memory(&options, &profile, &performance), TIDE_ERROR_BUDGET);
    snprintf(message, sizeof message, "%s", tide_message());
    assert_int_equal(tide_tune(&options, &profile, &(tide_tune_options){0}, candidates, &count),
                     TIDE_ERROR_BUDGET);
    assert_string_equal(tide_message(), message);
    options.seq_len = 1000; /* a run that is invalid anyway gets no other answer */
    assert_int_equal(tide_tune(&options, &profile, &(tide_tune_options){0}, candidates, &count),
                     TIDE_ERROR_ARGUMENT);
}

/* --- kernels that the decoder tells of, and those of a step --- */

enum { LAUNCHES_MAX = 512 };

typedef struct launches {
    uint32_t count, training_ops;
    struct {
        const char *label;
        double flops, bytes;
        int64_t told, run; /* how many times in a step */
    } kinds[LAUNCHES_MAX];
} launches;

static int64_t *launches_of(launches *all, const char *label, double flops, double bytes, bool told)
{
    uint32_t i = 0;
    while (i < all->count &&
           (all->kinds[i].label != label || all->kinds[i].flops != flops || all->kinds[i].bytes != bytes))
        i++;
    if (i == all->count) {
        assert_true(all->count < LAUNCHES_MAX);
        all->kinds[all->count].label = label;
        all->kinds[all->count].flops = flops;
        all->kinds[all->count++].bytes = bytes;
    }
    return told ? &all->kinds[i].told : &all->kinds[i].run;
}

static void told_while_described(void *context, tide_op op, const char *label, double flops, double bytes,
                                 uint32_t times)
{
    launches *all = context;
    if (op < all->training_ops)
        *launches_of(all, label, flops, bytes, true) += times;
}

static void run_in_a_step(void *context, const tide_observed *command)
{
    static const char *const of_pool[] = {"zero",  "gradient rounding", "gradient norm", "norm",
                                          "write", "norm to host"};
    bool is_models = command->stream == TIDE_STREAM_COMPUTE && !command->is_wait;
    for (size_t i = 0; i < sizeof of_pool / sizeof of_pool[0]; i++)
        is_models = is_models && strcmp(command->label, of_pool[i]) != 0;
    if (is_models)
        ++*launches_of(context, command->label, command->flops, command->bytes, false);
}

/* Predictions use the launches that the decoder tells, so these must be a real step's launches. All flops of
 * the plan are theirs. */
static void a_described_model_tells_of_all_launches_of_a_step(void **state)
{
    static const char *const models[] = {"gpt2-nano", "llama-nano"};
    static const char *const frozen[][2] = {{"*ln_*", "*norm*"}, {"*wte*", "*embed*"}, {"*.0.*", "*.0.*"}};
    for (uint32_t round = 0; round < 24; round++) {
        tide_trainer_options options = nano_options(models[round % 2]);
        options.pool.device = "null";
        options.global_batch_tokens = (round % 3 + 1) * 2 * options.seq_len;
        options.recompute = (tide_recompute)(round / 4 % 3);
        options.dtype = (tide_dtype)(round % 3);
        options.freeze = &frozen[round / 2 % 3][round % 2];
        options.freeze_count = round >= 12;
        tide_trainer_draft draft;
        tide_trainer *trainer;
        static launches all;
        all = (launches){.training_ops = UINT32_MAX};
        assert_ok(tide_trainer_draft_make(&options, NULL, NULL, &draft));
        all.training_ops = tide_decoder_training_ops(draft.model);
        tide_trainer_draft_destroy(&draft);
        assert_ok(tide_trainer_draft_make(&options, told_while_described, &all, &draft));
        tide_trainer_draft_destroy(&draft);
        assert_ok(tide_trainer_create(&options, &trainer));
        tide_pool_watch(tide_trainer_pool(trainer), run_in_a_step, &all);
        assert_ok(tide_trainer_step(trainer, NULL));
        assert_ok(tide_pool_drain(tide_trainer_pool(trainer)));
        tide_pool_watch(tide_trainer_pool(trainer), NULL, NULL); /* so the counts leave out the next step */
        assert_ok(tide_trainer_step(trainer, NULL));
        assert_ok(tide_pool_drain(tide_trainer_pool(trainer)));
        double flops = 0;
        for (uint32_t i = 0; i < all.count; i++) {
            flops += all.kinds[i].flops * (double)all.kinds[i].run;
            if (all.kinds[i].told != all.kinds[i].run)
                fail_msg("round %u: %s of %g flops, %g bytes: told %lld times, run %lld times", round,
                         all.kinds[i].label, all.kinds[i].flops, all.kinds[i].bytes,
                         (long long)all.kinds[i].told, (long long)all.kinds[i].run);
        }
        assert_true(is_near(flops, tide_trainer_plan_get(trainer)->step_flops, 1e-9));
        assert_true(all.count > 10);
        tide_trainer_destroy(trainer);
    }
}

uint64_t __real_tide_pool_now_ns(const tide_pool *pool);
uint64_t __wrap_tide_pool_now_ns(const tide_pool *pool);

static uint64_t clock_factor = 1;

uint64_t __wrap_tide_pool_now_ns(const tide_pool *pool)
{
    return clock_factor * __real_tide_pool_now_ns(pool);
}

/* The clock that ends the microbenchmark after five seconds runs ten times as fast. That of the device, which
 * measures the kernels, is the real one. */
static void a_microbenchmark_measures_all_that_a_run_launches(void **state)
{
    tide_machine_profile profile = {.device = "host", .threads = 2, .adams = {{2, 10e9}}, .adam_count = 1};
    const tide_trainer_options options = nano_options("gpt2-nano");
    bool needed = false;
    assert_ok(tide_microbenchmark_needed(&options, &profile, &needed));
    assert_true(needed);
    clock_factor = 10;
    assert_ok(tide_microbenchmark_run(&options, &profile));
    clock_factor = 1;
    /* No microbenchmark measures the zeroing of chunks on the link's stream, which takes long at this
     * rate. */
    profile.device_bytes_per_second = 1e6;
    assert_ok(tide_microbenchmark_needed(&options, &profile, &needed));
    assert_false(needed);
    profile.device_bytes_per_second = 0;
    assert_true(profile.kernel_count > 10);
    for (uint32_t i = 0; i < profile.kernel_count; i++)
        assert_true(profile.kernels[i].ns > 0 && isfinite(profile.kernels[i].ns));
    const tide_performance performance = performance_of(&options, &profile);
    assert_true(performance.measured_part > 0.99);
    assert_true(performance.step.seconds > 0);
    tide_trainer_options other = options;
    other.seq_len = 64;
    other.global_batch_tokens = 8 * 64;
    assert_ok(tide_microbenchmark_needed(&other, &profile, &needed));
    assert_true(needed);
    tide_machine_profile_destroy(&profile);
}

static void streams_keep_a_part_of_their_speed(void **state)
{
    tide_slowdowns slowdowns;
    double launch_ns = -1;
    assert_ok(tide_slowdown_measure("host", 2, &slowdowns, &launch_ns));
    assert_true(launch_ns >= 0);
    for (unsigned set = 0; set < 1u << TIDE_STREAM_COUNT; set++)
        for (int stream = 0; stream < TIDE_STREAM_COUNT; stream++) {
            const bool measured = (set & ~streams_all()) == 0 && !is_alone(set) && (set & 1u << stream) != 0;
            const double slowdown = slowdowns.of[stream][set];
            if (measured ? !(slowdown > 0 && slowdown <= 1) : slowdown != 0)
                fail_msg("%s in set %x: %g", tide_stream_name((tide_stream)stream), set, slowdown);
        }
}

/* --- memory as papers count it --- */

static double bytes_at(tide_accounting of, double params, uint64_t ranks, tide_dtype dtype, uint32_t index)
{
    tide_accounting_line line;
    assert_true(tide_accounting_at(of, params, ranks, dtype, index, &line));
    assert_true(line.what != NULL && line.what[0] != '\0');
    return line.bytes;
}

static uint32_t lines_of(tide_accounting of)
{
    tide_accounting_line line;
    uint32_t count = 0;
    while (tide_accounting_at(of, 1, 1, TIDE_DTYPE_BF16, count, &line))
        count++;
    return count;
}

/* Rajbhandari et al. 2020, figure 1. */
static void published_tables_are_what_the_accounting_says(void **state)
{
    static const double published_gb[] = {120, 31.4, 16.6, 1.9};
    assert_int_equal(lines_of(TIDE_ACCOUNTING_NONE), 0);
    assert_int_equal(lines_of(TIDE_ACCOUNTING_ZERO), 4);
    assert_int_equal(lines_of(TIDE_ACCOUNTING_TIDEPOOL), 2);
    assert_int_equal(lines_of(TIDE_ACCOUNTING_PATRICKSTAR), 2);
    for (uint32_t stage = 0; stage < 4; stage++) {
        const double gb = bytes_at(TIDE_ACCOUNTING_ZERO, 7.5e9, 64, TIDE_DTYPE_FP16, stage) / 1e9;
        assert_int_equal(lround(10 * gb), lround(10 * published_gb[stage]));
        assert_true(is_near(bytes_at(TIDE_ACCOUNTING_ZERO, 1e6, 1, TIDE_DTYPE_BF16, stage), 16e6, 1e-12));
    }
    for (uint32_t line = 0; line < 2; line++) {
        const double share = line == 0 ? 1 : 1. / 8;
        assert_true(
            is_near(bytes_at(TIDE_ACCOUNTING_TIDEPOOL, 1e6, 8, TIDE_DTYPE_BF16, line), 14e6 * share, 1e-12));
        assert_true(
            is_near(bytes_at(TIDE_ACCOUNTING_TIDEPOOL, 1e6, 8, TIDE_DTYPE_FP32, line), 16e6 * share, 1e-12));
        assert_true(is_near(bytes_at(TIDE_ACCOUNTING_PATRICKSTAR, 1e6, 8, TIDE_DTYPE_BF16, line),
                            14e6 * share, 1e-12));
        assert_true(is_near(bytes_at(TIDE_ACCOUNTING_TIDEPOOL, 1e6, 1, TIDE_DTYPE_FP16, line), 14e6, 1e-12));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mean_is_of_the_last_cycle),
        cmocka_unit_test(without_a_cycle_the_mean_is_of_all_that_have_settled),
        cmocka_unit_test(a_period_is_what_a_plain_search_finds),
        cmocka_unit_test(kernels_are_found_as_in_a_plain_list),
        cmocka_unit_test(there_is_an_end_to_kernels),
        cmocka_unit_test(adam_goes_by_the_threads_that_were_measured),
        cmocka_unit_test(every_preset_opens_and_says_that_it_was_not_measured),
        cmocka_unit_test(a_variation_changes_what_it_says_and_nothing_else),
        cmocka_unit_test(a_name_that_is_none_is_refused_with_those_that_are),
        cmocka_unit_test(what_is_written_is_read_and_no_more_is_left),
        cmocka_unit_test(what_can_not_be_written_or_read_is_an_io_error),
        cmocka_unit_test(a_field_that_is_missing_or_wrong_is_named),
        cmocka_unit_test(an_entry_of_a_list_that_is_wrong_is_refused),
        cmocka_unit_test(what_is_no_machine_file_is_refused),
        cmocka_unit_test(spoilt_files_are_sound_or_corrupt),
        cmocka_unit_test_setup_teardown(a_kernel_lasts_what_was_measured_or_what_the_nearest_of_its_name_does,
                                        timed_make, timed_destroy),
        cmocka_unit_test_setup_teardown(a_kernel_of_no_known_name_goes_by_the_rates, timed_make,
                                        timed_destroy),
        cmocka_unit_test_setup_teardown(optimizers_go_by_their_own_rates, timed_make, timed_destroy),
        cmocka_unit_test_setup_teardown(what_was_measured_is_told_from_what_was_inferred, timed_make,
                                        timed_destroy),
        cmocka_unit_test_setup_teardown(slowdowns_are_the_machines_where_the_link_is_not_held_back,
                                        timed_make, timed_destroy),
        cmocka_unit_test_setup_teardown(a_link_that_is_held_back_slows_others_by_its_part, timed_make,
                                        timed_destroy),
        cmocka_unit_test(memory_is_that_of_the_trainer_itself),
        cmocka_unit_test(what_fits_when_it_recomputes_is_never_refused),
        cmocka_unit_test(no_step_is_shorter_than_what_it_keeps_busy),
        cmocka_unit_test(only_runs_that_are_too_slow_are_not_played),
        cmocka_unit_test(more_device_memory_slows_nothing),
        cmocka_unit_test(twice_the_flops_halve_what_is_resident),
        cmocka_unit_test(the_search_finds_the_best_that_it_can_reach),
        cmocka_unit_test(what_is_to_be_kept_is_kept),
        cmocka_unit_test(the_search_stops_when_it_is_told_to),
        cmocka_unit_test(where_nothing_fits_the_runs_own_message_says_so),
        cmocka_unit_test(a_described_model_tells_of_all_launches_of_a_step),
        cmocka_unit_test(a_microbenchmark_measures_all_that_a_run_launches),
        cmocka_unit_test(streams_keep_a_part_of_their_speed),
        cmocka_unit_test(published_tables_are_what_the_accounting_says),
    };
    configurations = argc > 1 ? strtoul(argv[1], NULL, 10) : CONFIGURATIONS_USUAL / test_thin(3);
    return cmocka_run_group_tests_name("performance", tests, fixture_set_up, fixture_tear_down);
}
