/* What the program writes for other programs: metrics and trace lines. */
#include "src/train/json_line.h"
#include "src/train/metrics.h"
#include "src/train/trace.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char path[] = "/tmp/tidepool-output-XXXXXX";

static char *file_text(void)
{
    static char text[1 << 20];
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    return text;
}

static size_t count_of(const char *text, const char *part)
{
    size_t count = 0;
    for (; (text = strstr(text, part)) != NULL; text += strlen(part))
        count++;
    return count;
}

static void a_json_line_quotes_text_and_keeps_every_digit(void **state)
{
    char text[256];
    tide_json_line line;
    double value = 0.1 + 0.2;
    (void)state;
    tide_json_begin(&line, text, sizeof text);
    tide_json_open(&line, NULL, '{');
    tide_json_text(&line, "a", "x\"\\\n");
    tide_json_real(&line, "b", value);
    tide_json_open(&line, "c", '[');
    tide_json_count(&line, NULL, UINT64_MAX);
    tide_json_real(&line, NULL, NAN);
    tide_json_bool(&line, NULL, true);
    tide_json_close(&line, ']');
    tide_json_close(&line, '}');
    assert_true(tide_json_end(&line));
    assert_string_equal(text, "{\"a\":\"x\\\"\\\\\\u000a\",\"b\":0.30000000000000004,"
                              "\"c\":[18446744073709551615,null,true]}\n");
    assert_true(strtod(strstr(text, "0.3"), NULL) == value);
}

static void a_json_line_too_long_is_never_complete(void **state)
{
    char text[16];
    tide_json_line line;
    (void)state;
    tide_json_begin(&line, text, sizeof text);
    tide_json_text(&line, NULL, "much longer than that");
    assert_false(tide_json_end(&line));
    assert_true(strlen(text) < sizeof text);
}

static void file_fill(const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static const tide_pool_counters all_counters = {.seconds = 2,
                                                .compute_seconds = 1.5,
                                                .stall_seconds = 21,
                                                .stall_seconds_by = {1, 2, 3, 4, 5, 6},
                                                .h2d_bytes = 10,
                                                .d2h_bytes = 11,
                                                .collective_bytes = 12,
                                                .evictions = 13,
                                                .demand_fetches = 14,
                                                .prefetches = 15,
                                                .adam_host_seconds = 0.25,
                                                .adam_device_seconds = 0.75,
                                                .device_bytes_peak = 16,
                                                .host_bytes_peak = 17};

static const char all_counters_line[] =
    "{\"step\":1,\"loss\":2.5,\"grad_norm\":0.5,\"lr\":0.001,\"loss_scale\":1,\"tokens\":100,\"step_"
    "seconds\":2,"
    "\"tokens_per_second\":50,\"compute_seconds\":1.5,\"stall_seconds\":21,\"stall_link_seconds\":1,"
    "\"stall_room_seconds\":2,\"stall_update_seconds\":3,\"stall_norm_seconds\":4,\"stall_map_seconds\":5,"
    "\"stall_caller_seconds\":6,\"predicted_step_seconds\":null,\"predicted_stall_seconds\":null,"
    "\"h2d_bytes\":10,\"d2h_bytes\":11,\"collective_bytes\":12,\"evictions\":13,\"demand_fetches\":14,"
    "\"prefetches\":15,\"adam_host_seconds\":0.25,\"adam_device_seconds\":0.75,\"device_bytes_peak\":16,"
    "\"host_bytes_peak\":17,\"skipped\":0}\n";

/* A line for each report, in a file that begins with them; its text. */
static char *lines_write(const tide_trainer_report *reports, int count)
{
    tide_metrics *metrics = NULL;
    assert_int_equal(tide_metrics_open(path, &metrics), TIDE_OK);
    assert_int_equal(tide_metrics_begin(metrics, false), TIDE_OK);
    for (int i = 0; i < count; i++) {
        assert_int_equal(tide_metrics_step(metrics, &reports[i], 100, &all_counters), TIDE_OK);
        assert_int_equal(count_of(file_text(), "\n"), i + 1); /* before the file is closed */
    }
    assert_int_equal(tide_metrics_close(metrics), TIDE_OK);
    return file_text();
}

static void a_metrics_line_joins_report_and_counters(void **state)
{
    const tide_trainer_report plain = {.step = 1,
                                       .loss = 2.5,
                                       .gradient_norm = 0.5,
                                       .lr = 1e-3,
                                       .loss_scale = 1,
                                       .predicted_step_seconds = NAN,
                                       .predicted_stall_seconds = NAN};
    tide_trainer_report reports[2] = {plain, plain};
    (void)state;
    reports[1].step = 2, reports[1].loss = NAN, reports[1].skipped = true, reports[1].loss_scale = 32768;
    reports[1].predicted_step_seconds = 4, reports[1].predicted_stall_seconds = 0.5;
    const char *text = lines_write(reports, 2);
    assert_int_equal(strncmp(text, all_counters_line, strlen(all_counters_line)), 0);
    text += strlen(all_counters_line);
    assert_int_equal(count_of(text, "\"loss\":null"), 1);
    assert_int_equal(count_of(text, "\"loss_scale\":32768,"), 1);
    assert_int_equal(count_of(text, "\"predicted_step_seconds\":4,\"predicted_stall_seconds\":0.5,"), 1);
    assert_int_equal(count_of(text, "\"skipped\":1}\n"), 1);
}

static void metrics_of_a_killed_run_are_continued_at_a_whole_line(void **state)
{
    tide_metrics *metrics = NULL;
    tide_trainer_report report = {.step = 2};
    tide_pool_counters counters = {.seconds = 2};
    (void)state;
    file_fill("{\"step\":1}\n{\"step\":2,\"lo");
    assert_int_equal(tide_metrics_open(path, &metrics), TIDE_OK);
    assert_int_equal(tide_metrics_begin(metrics, true), TIDE_OK);
    assert_string_equal(file_text(), "{\"step\":1}\n");
    assert_int_equal(tide_metrics_step(metrics, &report, 100, &counters), TIDE_OK);
    assert_int_equal(tide_metrics_close(metrics), TIDE_OK);
    assert_int_equal(strncmp(file_text(), "{\"step\":1}\n{\"step\":2,\"loss\":", 28), 0);
}

static void metrics_that_cannot_be_written_are_refused(void **state)
{
    tide_metrics *metrics = NULL;
    (void)state;
    assert_int_equal(tide_metrics_open("/nonexistent/metrics", &metrics), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "/nonexistent/metrics"));
    assert_null(metrics);
}

static void files_of_a_run_that_does_not_begin_stay_as_they_were(void **state)
{
    tide_metrics *metrics = NULL;
    tide_trace *trace = NULL;
    (void)state;
    file_fill("old\n");
    assert_int_equal(tide_metrics_open(path, &metrics), TIDE_OK);
    assert_int_equal(tide_metrics_close(metrics), TIDE_OK);
    assert_string_equal(file_text(), "old\n");
    assert_int_equal(tide_trace_open(path, 8, &trace), TIDE_OK);
    assert_int_equal(tide_trace_finish(trace, NULL), TIDE_OK);
    tide_trace_destroy(trace);
    assert_string_equal(file_text(), "old\n");
    unlink(path);
    assert_int_equal(tide_metrics_open(path, &metrics), TIDE_OK);
    assert_int_equal(tide_trace_open(path, 8, &trace), TIDE_OK);
    assert_int_equal(access(path, F_OK), 0);
    tide_trace_destroy(trace);
    assert_int_equal(tide_metrics_close(metrics), TIDE_OK);
    assert_int_not_equal(access(path, F_OK), 0);
}

static tide_layout *layout;
static tide_pool_plan plan = {
    .params = 350000, .model_bytes = 300000 * 14 + 50000 * 2, .chunk_bytes = 1 << 18};
static const tide_trace_setting settings[] = {{"model", "a\tb"}};
static tide_trace_header header = {
    .version = "0", .configuration = settings, .setting_count = 1, .plan = &plan, .model_params = 349744};

/* The frozen param is registered between the others and lies behind them. */
static int make_layout(void **state)
{
    static const struct {
        const char *name;
        uint64_t elements;
        bool frozen;
    } params[] = {{"first", 100000, false}, {"frozen", 50000, true}, {"second \"quoted\"", 200000, false}};
    const tide_layout_options options = {.chunk_bytes = plan.chunk_bytes, .dtype = TIDE_DTYPE_BF16};
    const tide_state_format adamw = {3, {128, 128, 128}}, none = {.planes = 0};
    uint32_t number;
    (void)state;
    assert_int_equal(tide_layout_create(&options, &layout), TIDE_OK);
    assert_int_equal(tide_layout_add_class(layout, &adamw, &number), TIDE_OK);
    assert_int_equal(tide_layout_add_class(layout, &none, &number), TIDE_OK);
    for (size_t i = 0; i < sizeof params / sizeof params[0]; i++)
        assert_int_equal(
            tide_layout_add_param(layout, params[i].frozen, params[i].name, params[i].elements, &number),
            TIDE_OK);
    assert_int_equal(tide_layout_seal(layout), TIDE_OK);
    for (int space = 0; space < TIDE_SPACE_COUNT; space++) {
        plan.chunks[space] = tide_layout_space_chunks(layout, (tide_space)space);
        for (uint32_t i = 0; i < plan.chunks[space]; i++)
            plan.space_bytes[space] +=
                tide_layout_chunk_used_bytes(layout, tide_layout_chunk(layout, (tide_space)space, i));
    }
    header.layout = layout;
    return 0;
}

static int destroy_layout(void **state)
{
    (void)state;
    tide_layout_destroy(layout);
    return 0;
}

static const tide_trace_event event = {.t_ns = 5,
                                       .step = 1,
                                       .op = "block",
                                       .event = "map",
                                       .chunk = 2,
                                       .space = TIDE_SPACE_STATE,
                                       .from = "host",
                                       .to = "device",
                                       .bytes = 7,
                                       .reason = "demand"};

static void a_trace_begins_with_its_tables_and_ends_with_its_sums(void **state)
{
    tide_trace *trace = NULL;
    uint64_t dropped = 1;
    tide_trace_event of_no_chunk = event;
    (void)state;
    of_no_chunk.chunk = UINT32_MAX;
    assert_int_equal(tide_trace_open(path, 64, &trace), TIDE_OK);
    tide_trace_record(trace, &event); /* before the header: waits for it */
    assert_int_equal(tide_trace_begin(trace, &header), TIDE_OK);
    tide_trace_record(trace, &of_no_chunk);
    assert_int_equal(tide_trace_finish(trace, &dropped), TIDE_OK);
    tide_trace_record(trace, &event); /* too late: ignored */
    tide_trace_destroy(trace);
    assert_int_equal(dropped, 0);
    char *text = file_text();
    assert_int_equal(strncmp(text, "{\"format\":1,", 12), 0);
    assert_non_null(strstr(text, "\"model\":\"a\\u0009b\""));
    assert_non_null(strstr(text, "\"params\":349744,\"padding\":256,"));
    assert_non_null(strstr(text, "\"chunks\":{\"param\":{\"chunks\":4,\"bytes\":700192},"
                                 "\"state\":{\"chunks\":14,\"bytes\":3601152},"
                                 "\"checkpoint\":{\"chunks\":0,\"bytes\":0}}"));
    assert_non_null(strstr(text,
                           "\"params_per_chunk\":[[{\"name\":\"first\",\"first\":0,\"elements\":100000},"
                           "{\"name\":\"second \\\"quoted\\\"\",\"first\":0,\"elements\":30976}],"
                           "[{\"name\":\"second \\\"quoted\\\"\",\"first\":30976,\"elements\":131072}],"
                           "[{\"name\":\"second \\\"quoted\\\"\",\"first\":162048,\"elements\":37952}],"
                           "[{\"name\":\"frozen\",\"first\":0,\"elements\":50000}]]"));
    assert_non_null(
        strstr(text, "{\"t_ns\":5,\"step\":1,\"moment\":0,\"op\":\"block\",\"event\":\"map\",\"chunk\":2,"
                     "\"space\":\"state\",\"from\":\"host\",\"to\":\"device\",\"bytes\":7,"
                     "\"reason\":\"demand\"}\n"));
    assert_int_equal(count_of(text, "\"event\":"), 2);
    assert_int_equal(count_of(text, "\"chunk\":"), 1);
    assert_non_null(strstr(text, "\n{\"events\":2,\"dropped\":0}\n"));
}

static void a_full_ring_drops_and_counts(void **state)
{
    tide_trace *trace = NULL;
    uint64_t dropped = 0;
    (void)state;
    assert_int_equal(tide_trace_open(path, 8, &trace), TIDE_OK);
    for (int i = 0; i < 20; i++)
        tide_trace_record(trace, &event);
    assert_int_equal(tide_trace_begin(trace, &header), TIDE_OK);
    assert_int_equal(tide_trace_finish(trace, &dropped), TIDE_OK);
    tide_trace_destroy(trace);
    assert_int_equal(dropped, 12);
    assert_non_null(strstr(file_text(), "\n{\"events\":8,\"dropped\":12}\n"));
}

enum { RECORDERS = 4, RECORDS_EACH = 5000 };

static void *record_many(void *trace)
{
    for (int i = 0; i < RECORDS_EACH; i++)
        tide_trace_record(trace, &event);
    return NULL;
}

static void events_of_several_threads_are_all_written_or_counted(void **state)
{
    tide_trace *trace = NULL;
    uint64_t dropped = 0;
    unsigned long long written = 0;
    pthread_t threads[RECORDERS];
    (void)state;
    assert_int_equal(tide_trace_open(path, 256, &trace), TIDE_OK);
    assert_int_equal(tide_trace_begin(trace, &header), TIDE_OK);
    for (int i = 0; i < RECORDERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, record_many, trace), 0);
    for (int i = 0; i < RECORDERS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(tide_trace_finish(trace, &dropped), TIDE_OK);
    tide_trace_destroy(trace);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[8192];
    size_t lines = 0;
    for (; fgets(line, sizeof line, file) != NULL; lines++)
        (void)sscanf(line, "{\"events\":%llu", &written);
    fclose(file);
    assert_int_equal(written + dropped, RECORDERS * RECORDS_EACH);
    assert_int_equal(lines, written + 2);
}

static void a_disk_that_is_full_is_reported_and_events_are_counted(void **state)
{
    tide_trace *trace = NULL;
    uint64_t dropped = 0;
    (void)state;
    if (access("/dev/full", W_OK) != 0) {
        print_message("skipped: this system has no /dev/full\n");
        skip();
    }
    assert_int_equal(tide_trace_open("/dev/full", 8, &trace), TIDE_OK);
    tide_trace_record(trace, &event);
    tide_status status = tide_trace_begin(trace, &header);
    if (status == TIDE_OK)
        status = tide_trace_finish(trace, &dropped);
    assert_int_equal(status, TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "/dev/full"));
    tide_trace_destroy(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_json_line_quotes_text_and_keeps_every_digit),
        cmocka_unit_test(a_json_line_too_long_is_never_complete),
        cmocka_unit_test(a_metrics_line_joins_report_and_counters),
        cmocka_unit_test(metrics_of_a_killed_run_are_continued_at_a_whole_line),
        cmocka_unit_test(metrics_that_cannot_be_written_are_refused),
        cmocka_unit_test(files_of_a_run_that_does_not_begin_stay_as_they_were),
        cmocka_unit_test(a_trace_begins_with_its_tables_and_ends_with_its_sums),
        cmocka_unit_test(a_full_ring_drops_and_counts),
        cmocka_unit_test(events_of_several_threads_are_all_written_or_counted),
        cmocka_unit_test(a_disk_that_is_full_is_reported_and_events_are_counted),
    };
    int descriptor = mkstemp(path);
    if (descriptor < 0)
        return 1;
    close(descriptor);
    int failed = cmocka_run_group_tests(tests, make_layout, destroy_layout);
    unlink(path);
    return failed;
}
