/* The writer of traces: its lines and segments, and what it does when the disk is too slow or fails.
 * test_trace.py checks the trace of a training run. */
#include "src/trace/trace.h"
#include "tests/support/assert_ok.h"
#include "tests/support/test_thin.h"

#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/tidepool-trace-XXXXXX";
static char path[64];

/* --- files --- */

static char *text_of(const char *name)
{
    static char text[1 << 22];
    FILE *file = fopen(name, "r");
    if (file == NULL)
        fail_msg("no file %s", name);
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

static void fill(const char *name, const char *text)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static char *segment(uint64_t number)
{
    static char name[96];
    snprintf(name, sizeof name, "%s.step-%llu", path, (unsigned long long)number);
    return name;
}

static int files_in_folder(void)
{
    int count = -2; /* readdir also returns the folder itself and its parent */
    DIR *opened = opendir(folder);
    assert_non_null(opened);
    while (readdir(opened) != NULL)
        count++;
    closedir(opened);
    return count;
}

static int empty_folder(void **state)
{
    char name[300];
    DIR *opened = opendir(folder);
    for (const struct dirent *entry; (entry = readdir(opened)) != NULL;) {
        snprintf(name, sizeof name, "%s/%s", folder, entry->d_name);
        (void)unlink(name);
    }
    closedir(opened);
    return 0;
}

/* --- a pool to trace --- */

static tide_description *description;
static tide_pool *pool;
static tide_pool_options pool_options;
static tide_pool_plan plan;
static uint64_t steps_before;
static const tide_trace_setting settings[] = {{"model", "a\tb"}};

/* Adds a frozen param between two others, which the layout places behind them. */
static int make_pool(void **state)
{
    static const struct {
        const char *name;
        uint64_t elements;
        bool frozen;
    } params[] = {{"first", 100000, false}, {"frozen", 50000, true}, {"second \"quoted\"", 200000, false}};
    assert_ok(tide_description_create(TIDE_DTYPE_BF16, 0, &description));
    for (size_t i = 0; i < sizeof params / sizeof params[0]; i++) {
        tide_use use = {.access = TIDE_ACCESS_READ};
        tide_op op;
        const tide_param_class frozen = {.frozen = true},
                               trained = {.decay = true, .state = {3, {128, 128, 128}}};
        assert_ok(tide_description_add_param(description, params[i].name, &params[i].elements, 1,
                                             params[i].frozen ? &frozen : &trained, &use.tensor));
        assert_ok(tide_description_add_op(
            description,
            &(tide_op_description){
                .name = params[i].name, .pass = TIDE_PASS_FORWARD, .params = &use, .param_count = 1},
            &op));
    }
    tide_pool_options_default(&pool_options);
    pool_options.device = "null";
    pool_options.chunk_bytes = 1 << 18;
    assert_ok(tide_pool_create(&pool_options, description, &pool));
    assert_ok(tide_pool_plan_get(pool, &plan));
    return 0;
}

static int destroy_pool(void **state)
{
    tide_pool_destroy(pool);
    tide_description_destroy(description);
    return 0;
}

/* --- open and record --- */

static tide_trace *open_trace(const char *name, uint32_t ring_events, uint64_t keep_steps, bool waits)
{
    tide_trace *trace = NULL;
    const tide_trace_options options = {.ring_events = ring_events, .keep_steps = keep_steps, .waits = waits};
    assert_ok(tide_trace_open(name, &options, &trace));
    return trace;
}

static tide_status begin(tide_trace *trace)
{
    const tide_trace_head head = {.version = "0",
                                  .settings = settings,
                                  .setting_count = 1,
                                  .pool = pool,
                                  .options = &pool_options,
                                  .plan = &plan,
                                  .machine = "test",
                                  .steps_before = steps_before};
    return tide_trace_begin(trace, &head);
}

static tide_trace *begun_trace(uint32_t ring_events, uint64_t keep_steps, bool waits)
{
    tide_trace *trace = open_trace(path, ring_events, keep_steps, waits);
    assert_ok(begin(trace));
    return trace;
}

static uint64_t finish(tide_trace *trace)
{
    uint64_t dropped = 0;
    assert_ok(tide_trace_finish(trace, &dropped));
    tide_trace_destroy(trace);
    return dropped;
}

static tide_trace_event event_of(tide_trace_kind kind)
{
    return (tide_trace_event){.kind = kind,
                              .step = 1,
                              .pass = 2,
                              .begin_ns = 5,
                              .end_ns = 7,
                              .op = TIDE_TRACE_NONE,
                              .slice = TIDE_TRACE_NONE,
                              .chunk = 2,
                              .device_slot = 3,
                              .host_slot = TIDE_TRACE_NONE,
                              .device = TIDE_STAND_THERE,
                              .host = TIDE_STAND_NONE,
                              .content = TIDE_CONTENT_PARAMS,
                              .move = TIDE_TRACE_FETCH,
                              .reason = TIDE_REASON_DEMAND,
                              .work = "data"};
}

static void record(tide_trace *trace, tide_trace_kind kind)
{
    const tide_trace_event event = event_of(kind);
    tide_trace_record(trace, &event);
}

static void record_pass(tide_trace *trace, uint64_t number, bool training)
{
    tide_trace_event event = event_of(TIDE_TRACE_PASS);
    event.training = training;
    event.number = number;
    tide_trace_record(trace, &event);
}

/* --- the lines of a trace --- */

static void a_trace_begins_with_its_tables_and_ends_with_its_sums(void **state)
{
    tide_trace *trace = open_trace(path, 64, 0, false);
    record(trace, TIDE_TRACE_MOVE); /* before begin: ignored */
    assert_ok(begin(trace));
    record(trace, TIDE_TRACE_MOVE);
    record(trace, TIDE_TRACE_STALL);
    assert_ok(tide_trace_finish(trace, NULL));
    record(trace, TIDE_TRACE_MOVE); /* after finish: ignored */
    tide_trace_destroy(trace);
    char *text = text_of(path);
    assert_ptr_equal(
        strstr(text, "{\"trace\":3,\"tidepool\":\"0\",\"rank\":0,\"ranks\":1,\"device\":\"null\","), text);
    static const char *const parts[] = {
        "{\"table\":\"setting\",\"name\":\"model\",\"value\":\"a\\u0009b\"}\n",
        "{\"table\":\"param\",\"param\":1,\"name\":\"frozen\",\"elements\":50000,\"frozen\":true,"
        "\"decays\":false,\"planes\":[]}\n",
        "{\"table\":\"param\",\"param\":2,\"name\":\"second \\\"quoted\\\"\",\"elements\":200000,"
        "\"frozen\":false,\"decays\":true,\"planes\":[128,128,128]}\n",
        "{\"table\":\"chunk\",\"chunk\":0,\"space\":\"param\",\"index\":0,\"bytes\":262144,"
        "\"params\":[[0,0,100000],[2,0,30976]],\"of\":[]}\n",
        "\"params\":[[1,0,50000]],\"of\":[]}\n",
        "\"space\":\"state\",\"index\":0,\"bytes\":261120,\"params\":[],\"of\":[0]}\n",
        "{\"event\":\"move\",\"step\":1,\"pass\":2,\"begin_ns\":5,\"end_ns\":7,\"id\":0,\"move\":\"fetch\","
        "\"chunk\":2,\"reason\":\"demand\",\"device_slot\":3,\"host_slot\":null,\"copied\":false,"
        "\"zeroed\":false,\"in_place\":false}\n",
        "\"op\":null,\"slice\":null,\"schedule_step\":0,\"chunk\":2,\"ended_by\":null,",
        "\n{\"end\":true,\"events\":2,\"dropped\":0}\n",
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (strstr(text, parts[i]) == NULL)
            fail_msg("no %s", parts[i]);
    assert_int_equal(count_of(text, "{\"event\":"), 2);
}

static void a_step_stands_behind_what_was_told_before_it(void **state)
{
    const tide_pool_counters counters = {.seconds = 2};
    tide_trace *trace = begun_trace(64, 0, false);
    for (uint64_t step = 1; step <= 20; step++) {
        record(trace, TIDE_TRACE_WORK);
        tide_trace_step(trace, &(tide_trainer_report){.step = step}, NULL, 100, &counters);
    }
    finish(trace);
    const char *text = text_of(path);
    for (int step = 1; step <= 20; step++) {
        char line[48];
        snprintf(line, sizeof line, "\n{\"step\":%d,\"version\":3,\"loss\":", step);
        const char *found = strstr(text, line);
        assert_non_null(found);
        const size_t length = (size_t)(found - text);
        char *before = strndup(text, length);
        assert_int_equal(count_of(before, "\"event\":\"work\""), step);
        free(before);
    }
}

/* --- the ring of events that wait to be written --- */

/* The sum of all events that the text's lines report as dropped. */
static uint64_t told_lost(const char *text)
{
    uint64_t lost = 0;
    for (const char *gap = text; (gap = strstr(gap, "{\"event\":\"dropped\",")) != NULL; gap++)
        lost += strtoull(strstr(gap, "\"events\":") + 9, NULL, 10);
    return lost;
}

static void what_a_full_ring_drops_is_told_in_its_place(void **state)
{
    tide_trace *trace = begun_trace(8, 0, false);
    for (int i = 0; i < 20000; i++)
        record(trace, TIDE_TRACE_WORK);
    const uint64_t dropped = finish(trace);
    const char *text = text_of(path);
    assert_true(dropped > 0);
    assert_int_equal(told_lost(text), dropped);
    assert_int_equal(count_of(text, "\"event\":\"work\"") + dropped, 20000);
}

static void a_text_that_is_too_long_for_a_line_is_counted(void **state)
{
    static char name[2000];
    memset(name, 'x', sizeof name - 1);
    tide_trace *trace = begun_trace(8, 0, false);
    tide_trace_event work = event_of(TIDE_TRACE_WORK);
    work.work = name;
    tide_trace_record(trace, &work);
    assert_int_equal(finish(trace), 1);
    assert_non_null(strstr(text_of(path), "\n{\"end\":true,\"events\":0,\"dropped\":1}\n"));
}

enum { RECORDERS = 4 };

static int records_each(void)
{
    return 5000 / (int)test_thin(5);
}

static void *record_many(void *trace)
{
    for (int i = records_each(); i > 0; i--)
        record(trace, TIDE_TRACE_WORK);
    return NULL;
}

static uint64_t record_by_threads(tide_trace *trace)
{
    pthread_t threads[RECORDERS];
    for (int i = 0; i < RECORDERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, record_many, trace), 0);
    for (int i = 0; i < RECORDERS; i++)
        pthread_join(threads[i], NULL);
    return finish(trace);
}

static void events_of_several_threads_are_all_written_or_counted(void **state)
{
    const uint64_t dropped = record_by_threads(begun_trace(256, 0, false));
    assert_int_equal(count_of(text_of(path), "\"event\":\"work\"") + dropped, RECORDERS * records_each());
}

static void in_virtual_time_nothing_is_dropped(void **state)
{
    assert_int_equal(record_by_threads(begun_trace(8, 0, true)), 0);
    assert_int_equal(count_of(text_of(path), "\"event\":\"work\""), RECORDERS * records_each());
}

/* --- segments: files of the last steps --- */

static void the_warm_up_and_the_last_steps_are_kept(void **state)
{
    tide_trace *trace = begun_trace(64, 2, false);
    for (uint64_t step = 1; step <= 9; step++) {
        record_pass(trace, step + 10, true);
        record(trace, TIDE_TRACE_CHUNK);
        record_pass(trace, 0, false); /* an evaluation: it begins no segment */
        record(trace, TIDE_TRACE_NORM);
        while (access(step <= 2 ? path : segment(step + 10), F_OK) != 0)
            usleep(1000);
        assert_true(files_in_folder() <= 4);
    }
    assert_int_equal(files_in_folder(), 4);
    finish(trace);
    assert_int_equal(files_in_folder(), 1);
    const char *text = text_of(path);
    assert_int_equal(count_of(text, "\"event\":\"norm\""), 4);
    assert_int_equal(count_of(text, "\"number\":11,"), 1);
    assert_int_equal(count_of(text, "\"number\":12,"), 1);
    for (int step = 13; step <= 17; step++) {
        char number[32];
        snprintf(number, sizeof number, "\"number\":%d,", step);
        assert_null(strstr(text, number));
    }
    const char *kept = strstr(text, "{\"event\":\"snapshot\",");
    assert_non_null(kept);
    assert_non_null(strstr(
        kept, "\"pending\":false}\n{\"event\":\"pass\",\"step\":1,\"pass\":2,\"t_ns\":5,\"training\":true,"
              "\"number\":18,"));
    assert_non_null(strstr(kept, "\"number\":19,"));
    assert_int_equal(count_of(text, "{\"event\":\"snapshot\","), 2);
    /* nine steps with four events each, and seven snapshots */
    assert_non_null(strstr(text, "\n{\"end\":true,\"events\":43,\"dropped\":0}\n"));
}

/* Some step numbers repeat, as those of steps that were given up do. There are fewer segments than the trace
 * keeps. */
static void a_step_that_comes_again_stays_in_its_segment(void **state)
{
    tide_trace *trace = begun_trace(64, 3, false);
    const uint64_t numbers[] = {1, 2, 3, 3, 4, 4, 4};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        record_pass(trace, numbers[i], true);
    finish(trace);
    assert_int_equal(files_in_folder(), 1);
    assert_int_equal(count_of(text_of(path), "\"training\":true"), 7);
}

static void a_resumed_run_counts_on(void **state)
{
    steps_before = 40;
    tide_trace *trace = begun_trace(64, 0, false);
    steps_before = 0;
    record_pass(trace, 2, true);
    record_pass(trace, 0, false);
    finish(trace);
    const char *text = text_of(path);
    assert_non_null(strstr(text, "\"step\":41,\"pass\":2,\"t_ns\":5,\"training\":true,\"number\":42,"));
    assert_non_null(strstr(text, "\"training\":false,\"number\":0,"));
}

static void segments_of_a_killed_run_are_removed_and_nothing_else(void **state)
{
    char other[96];
    snprintf(other, sizeof other, "%s.step-12x", path);
    fill(segment(3), "old\n");
    fill(segment(400), "old\n");
    fill(other, "not a segment\n");
    tide_trace *trace = open_trace(path, 8, 2, false);
    assert_int_equal(files_in_folder(), 4); /* only begin() removes old segments */
    assert_ok(begin(trace));
    assert_int_equal(files_in_folder(), 2);
    finish(trace);
    assert_int_equal(access(other, F_OK), 0);
}

/* --- failures --- */

static void a_trace_that_does_not_begin_leaves_the_file_as_it_was(void **state)
{
    fill(path, "old\n");
    finish(open_trace(path, 8, 8, false));
    assert_string_equal(text_of(path), "old\n");
    tide_trace_destroy(open_trace(path, 8, 8, false));
    assert_string_equal(text_of(path), "old\n");
    unlink(path);
    finish(open_trace(path, 8, 8, false));
    assert_int_not_equal(access(path, F_OK), 0);
}

static void a_disk_that_is_full_is_reported(void **state)
{
    if (access("/dev/full", W_OK) != 0) {
        print_message("skipped: this system has no /dev/full\n");
        skip();
    }
    tide_trace *trace = open_trace("/dev/full", 8, 3, false);
    tide_status status = begin(trace);
    for (uint64_t step = 1; step < 5 && status == TIDE_OK; step++)
        record_pass(trace, step, true); /* makes no segment file beside a device */
    if (status == TIDE_OK)
        status = tide_trace_finish(trace, NULL);
    assert_int_equal(status, TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "/dev/full"));
    tide_trace_destroy(trace);
    assert_int_not_equal(access("/dev/full.step-3", F_OK), 0);
}

/* No more segments can be made. The file goes on, and the segments that exist are not lost. */
static void segments_are_left_where_one_cannot_be_made(void **state)
{
    tide_trace *trace = begun_trace(64, 3, false);
    for (uint64_t step = 1; step <= 3; step++)
        record_pass(trace, step, true);
    while (access(segment(3), F_OK) != 0)
        usleep(1000);
    assert_int_equal(symlink("/nonexistent/x", segment(4)), 0);
    record_pass(trace, 4, true);
    assert_int_equal(tide_trace_finish(trace, NULL), TIDE_ERROR_IO);
    tide_trace_destroy(trace);
    assert_non_null(strstr(text_of(segment(3)), "\"number\":3,"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_trace_begins_with_its_tables_and_ends_with_its_sums, empty_folder),
        cmocka_unit_test_setup(a_step_stands_behind_what_was_told_before_it, empty_folder),
        cmocka_unit_test_setup(what_a_full_ring_drops_is_told_in_its_place, empty_folder),
        cmocka_unit_test_setup(a_text_that_is_too_long_for_a_line_is_counted, empty_folder),
        cmocka_unit_test_setup(events_of_several_threads_are_all_written_or_counted, empty_folder),
        cmocka_unit_test_setup(in_virtual_time_nothing_is_dropped, empty_folder),
        cmocka_unit_test_setup(the_warm_up_and_the_last_steps_are_kept, empty_folder),
        cmocka_unit_test_setup(a_step_that_comes_again_stays_in_its_segment, empty_folder),
        cmocka_unit_test_setup(a_resumed_run_counts_on, empty_folder),
        cmocka_unit_test_setup(segments_of_a_killed_run_are_removed_and_nothing_else, empty_folder),
        cmocka_unit_test_setup(a_trace_that_does_not_begin_leaves_the_file_as_it_was, empty_folder),
        cmocka_unit_test_setup(a_disk_that_is_full_is_reported, empty_folder),
        cmocka_unit_test_setup(segments_are_left_where_one_cannot_be_made, empty_folder),
    };
    if (mkdtemp(folder) == NULL)
        return 1;
    snprintf(path, sizeof path, "%s/trace", folder);
    const int failed = cmocka_run_group_tests(tests, make_pool, destroy_pool);
    (void)empty_folder(NULL);
    rmdir(folder);
    return failed;
}
