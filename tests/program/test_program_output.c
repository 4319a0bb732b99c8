/* The writers of files that other programs read: JSON lines and metrics. */
#include "base/json_line.h"
#include "src/train/metrics.h"
#include "tests/support/assert_ok.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
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

static void what_is_no_utf8_is_replaced(void **state)
{
    static const struct {
        const char *text, *json;
    } texts[] = {
        {"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8a",
         "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8a"},        /* valid UTF-8 */
        {"\xe9.txt", "\\ufffd.txt"},                          /* Latin-1 */
        {"a\xc3", "a\\ufffd"},                                /* cut within a letter */
        {"\xc0\xaf", "\\ufffd\\ufffd"},                       /* an overlong encoding of "/" in two bytes */
        {"\xe0\x80\xaf", "\\ufffd\\ufffd\\ufffd"},            /* an overlong encoding of "/" in three bytes */
        {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},            /* half of a surrogate pair */
        {"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"}, /* above U+10FFFF */
        {"\x80\xff", "\\ufffd\\ufffd"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char text[128], wanted[128];
        tide_json_line line;
        tide_json_begin(&line, text, sizeof text);
        tide_json_text(&line, NULL, texts[i].text);
        assert_true(tide_json_end(&line));
        snprintf(wanted, sizeof wanted, "\"%s\"\n", texts[i].json);
        assert_string_equal(text, wanted);
    }
}

static void a_json_line_too_long_is_never_complete(void **state)
{
    char text[16];
    tide_json_line line;
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
                                                .stall_seconds = 28,
                                                .stall_seconds_by = {1, 2, 3, 4, 5, 6, 7},
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
    "{\"step\":1,\"version\":3,\"loss\":2.5,\"grad_norm\":0.5,\"lr\":0.001,\"loss_scale\":1,\"tokens\":100,"
    "\"learned_tokens\":57,\"step_seconds\":2,"
    "\"tokens_per_second\":50,\"compute_seconds\":1.5,\"stall_seconds\":28,\"stall_link_seconds\":1,"
    "\"stall_slot_seconds\":2,\"stall_update_seconds\":3,\"stall_norm_seconds\":4,\"stall_map_seconds\":"
    "5,"
    "\"stall_peer_seconds\":6,\"stall_caller_seconds\":7,\"predicted_step_seconds\":null,\"predicted_stall_"
    "seconds\":null,"
    "\"h2d_bytes\":10,\"d2h_bytes\":11,\"collective_bytes\":12,\"evictions\":13,\"demand_fetches\":14,"
    "\"prefetches\":15,\"adam_host_seconds\":0.25,\"adam_device_seconds\":0.75,\"device_bytes_peak\":16,"
    "\"host_bytes_peak\":17,\"skipped\":0}\n";

/* Writes a metrics file with one line for each report and returns its text. */
static char *lines_write(const tide_trainer_report *reports, int count)
{
    tide_metrics *metrics = NULL;
    assert_int_equal(tide_metrics_open(path, &metrics), TIDE_OK);
    assert_int_equal(tide_metrics_begin(metrics, false, 0), TIDE_OK);
    for (int i = 0; i < count; i++) {
        assert_int_equal(tide_metrics_step(metrics, &reports[i], NULL, 100, &all_counters), TIDE_OK);
        /* Each line is in the file before the file is closed. */
        assert_int_equal(count_of(file_text(), "\n"), i + 1);
    }
    assert_int_equal(tide_metrics_close(metrics), TIDE_OK);
    return file_text();
}

static void a_metrics_line_joins_report_and_counters(void **state)
{
    const tide_trainer_report report = {.step = 1,
                                        .loss = 2.5,
                                        .gradient_norm = 0.5,
                                        .lr = 1e-3,
                                        .loss_scale = 1,
                                        .learned_tokens = 57,
                                        .predicted_step_seconds = NAN,
                                        .predicted_stall_seconds = NAN};
    tide_trainer_report reports[2] = {report, report};
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

/* The line of a run of several ranks has two members more. */
static void a_line_of_several_ranks_names_the_slowest(void **state)
{
    static const char more[] = ",\"slowest_rank\":3,\"slowest_step_seconds\":1.5}\n";
    const tide_trainer_report report = {.step = 1};
    const tide_slowest_rank slowest = {3, 1.5};
    char alone[TIDE_METRICS_LINE_BYTES], line[TIDE_METRICS_LINE_BYTES];
    size_t alone_bytes, bytes;
    assert_true(tide_metrics_line(&report, NULL, 100, &all_counters, alone, &alone_bytes));
    assert_true(tide_metrics_line(&report, &slowest, 100, &all_counters, line, &bytes));
    const size_t same = alone_bytes - strlen("}\n");
    assert_int_equal(bytes, same + strlen(more));
    assert_memory_equal(line, alone, same);
    assert_memory_equal(line + same, more, strlen(more));
}

/* Opens the file `name` as a run does that resumes after `step`, and writes the line of the next step. */
static void metrics_continue(const char *name, uint64_t step)
{
    tide_metrics *metrics = NULL;
    const tide_trainer_report report = {.step = step + 1};
    assert_int_equal(tide_metrics_open(name, &metrics), TIDE_OK);
    assert_int_equal(tide_metrics_begin(metrics, true, step), TIDE_OK);
    assert_int_equal(tide_metrics_step(metrics, &report, NULL, 100, &all_counters), TIDE_OK);
    assert_int_equal(tide_metrics_close(metrics), TIDE_OK);
}

/* Checks that the file holds `kept` and then the line that metrics_continue wrote. */
static void assert_kept(const char *kept, uint64_t step)
{
    char line[64];
    const char *text = file_text();
    snprintf(line, sizeof line, "{\"step\":%llu,\"version\":3,\"loss\":0,", (unsigned long long)step + 1);
    if (strncmp(text, kept, strlen(kept)) != 0 || strncmp(text + strlen(kept), line, strlen(line)) != 0)
        fail_msg("%.300s\nnot\n%s%s", text, kept, line);
    assert_int_equal(count_of(text + strlen(kept), "\n"), 1);
}

static const char steps_1_to_4[] = "{\"step\":1,\"loss\":2}\n{\"step\":2,\"loss\":2}\n"
                                   "{\"step\":3,\"loss\":2}\n{\"step\":4,\"loss\":2}\n";

static ino_t inode_of(const char *name)
{
    struct stat about;
    assert_int_equal(lstat(name, &about), 0);
    return about.st_ino;
}

/* The file is cut in place and keeps its inode, so that a program that follows it reads on, and a full
 * disk does no harm. */
static void steps_behind_the_checkpoint_are_cut(void **state)
{
    for (size_t step = 0; step <= 5; step++) {
        const size_t line = strlen(steps_1_to_4) / 4;
        char kept[sizeof steps_1_to_4] = "";
        file_fill(steps_1_to_4);
        const ino_t inode = inode_of(path);
        memcpy(kept, steps_1_to_4, line * (step < 4 ? step : 4));
        metrics_continue(path, step);
        assert_kept(kept, step);
        assert_int_equal(inode_of(path), inode);
    }
    file_fill("{\"step\":18446744073709551615}\n{\"step\":10}\n{\"step\":9}\n");
    metrics_continue(path, UINT64_MAX - 1);
    assert_kept("{\"step\":10}\n{\"step\":9}\n", UINT64_MAX - 1);
}

/* Foreign lines stay wherever they are and however long; a step's line goes even if another program has
 * written it. */
static void lines_that_are_no_steps_stay(void **state)
{
    static char text[300000], kept[300000], noise[100000];
    memset(noise, 'x', sizeof noise - 1);
    snprintf(text, sizeof text,
             "# mine\n{\"step\":1}\n{\"step\": 7}\n%s\n{\"step\":2}\n\n{\"steps\":9}\n{\"a\":1,\"step\":9}\n"
             "{\"step\":3}\n{\"st",
             noise);
    snprintf(kept, sizeof kept,
             "# mine\n{\"step\":1}\n%s\n{\"step\":2}\n\n{\"steps\":9}\n{\"a\":1,\"step\":9}\n", noise);
    file_fill(text);
    assert_int_equal(chmod(path, 0640), 0);
    metrics_continue(path, 2);
    assert_kept(kept, 2);
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0640);
    file_fill("{\"step\":1}\n{\"step\":2,\"lo"); /* half a line goes, whichever step it names */
    metrics_continue(path, 2);
    assert_kept("{\"step\":1}\n", 2);
}

static void a_link_still_leads_to_the_file(void **state)
{
    char name[64];
    snprintf(name, sizeof name, "%s-link", path);
    assert_int_equal(symlink(path, name), 0);
    file_fill("{\"step\":1}\n{\"step\":3}\n# mine\n");
    const ino_t link = inode_of(name);
    metrics_continue(name, 1);
    assert_kept("{\"step\":1}\n# mine\n", 1);
    assert_int_equal(inode_of(name), link);
    assert_int_equal(unlink(name), 0);
}

/* The file behind standard output, to which other processes may write through the same descriptor, and a
 * pipe are never cut. */
static void standard_output_and_pipes_are_left_alone(void **state)
{
    char part[16] = "";
    int ends[2];
    file_fill("a line\n{\"step\":3}\ncut");
    fflush(stdout);
    const int was = dup(STDOUT_FILENO), descriptor = open(path, O_RDWR | O_APPEND);
    assert_true(was >= 0 && descriptor >= 0 && dup2(descriptor, STDOUT_FILENO) >= 0);
    tide_metrics *metrics = NULL;
    const bool good = tide_metrics_open("/dev/stdout", &metrics) == TIDE_OK &&
                      tide_metrics_begin(metrics, true, 1) == TIDE_OK &&
                      tide_metrics_close(metrics) == TIDE_OK;
    assert_true(dup2(was, STDOUT_FILENO) >= 0);
    close(was);
    close(descriptor);
    assert_true(good);
    assert_string_equal(file_text(), "a line\n{\"step\":3}\ncut");
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "{\"step\":3}\n", 11), 11);
    snprintf(part, sizeof part, "/dev/fd/%d", ends[1]);
    metrics_continue(part, 1);
    assert_int_equal(read(ends[0], part, 11), 11);
    assert_int_equal(strncmp(part, "{\"step\":3}\n", 11), 0);
    close(ends[0]);
    close(ends[1]);
}

/* If the new file can't be written, the old one keeps all its lines and the next step's line is appended. */
static void a_rewrite_that_fails_leaves_the_lines(void **state)
{
    static const char text[] = "{\"step\":3}\n# a line that stays\n";
    struct rlimit limit, small;
    tide_metrics *metrics = NULL;
    file_fill(text);
    assert_int_equal(tide_metrics_open(path, &metrics), TIDE_OK);
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    small = (struct rlimit){.rlim_cur = 5, .rlim_max = limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const tide_status status = tide_metrics_begin(metrics, true, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(status, TIDE_ERROR_IO);
    assert_non_null(strstr(
        tide_message(), "can't be written: File too large for this process's file-size limit (ulimit -f)"));
    assert_string_equal(file_text(), text);
    const tide_trainer_report report = {.step = 2};
    assert_int_equal(tide_metrics_step(metrics, &report, NULL, 100, &all_counters), TIDE_OK);
    assert_int_equal(tide_metrics_close(metrics), TIDE_OK);
    assert_int_equal(strncmp(file_text(), text, sizeof text - 1), 0);
    assert_int_equal(strncmp(file_text() + sizeof text - 1, "{\"step\":2,", 10), 0);
}

static void a_file_of_a_run_that_does_not_begin_stays_as_it_was(void **state)
{
    tide_metrics *metrics = NULL;
    file_fill("old\n");
    assert_int_equal(tide_metrics_open(path, &metrics), TIDE_OK);
    assert_int_equal(tide_metrics_close(metrics), TIDE_OK);
    assert_string_equal(file_text(), "old\n");
    unlink(path);
    assert_int_equal(tide_metrics_open(path, &metrics), TIDE_OK);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(tide_metrics_close(metrics), TIDE_OK);
    assert_int_not_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_json_line_quotes_text_and_keeps_every_digit),
        cmocka_unit_test(what_is_no_utf8_is_replaced),
        cmocka_unit_test(a_json_line_too_long_is_never_complete),
        cmocka_unit_test(a_metrics_line_joins_report_and_counters),
        cmocka_unit_test(a_line_of_several_ranks_names_the_slowest),
        cmocka_unit_test(steps_behind_the_checkpoint_are_cut),
        cmocka_unit_test(lines_that_are_no_steps_stay),
        cmocka_unit_test(a_link_still_leads_to_the_file),
        cmocka_unit_test(standard_output_and_pipes_are_left_alone),
        cmocka_unit_test(a_rewrite_that_fails_leaves_the_lines),
        cmocka_unit_test(a_file_of_a_run_that_does_not_begin_stays_as_it_was),
    };
    int descriptor = mkstemp(path);
    if (descriptor < 0)
        return 1;
    close(descriptor);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return failed;
}
