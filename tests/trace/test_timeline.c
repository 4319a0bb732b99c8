/* Timelines: the protobuf encoding at the lengths where its form changes, tracks and the order of time,
 * memory that runs out, and output files that are complete or unchanged. test_trace_perfetto.py reads the
 * timeline of a trace back. */
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"
#include "tools/trace/protobuf.h"
#include "tools/trace/timeline.h"
#include "tools/trace/whole_file.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- encoding ---- */

static void assert_bytes(const tide_protobuf *message, const char *bytes, size_t count)
{
    assert_false(message->failed);
    assert_int_equal(message->depth, 0);
    assert_int_equal(message->length, count);
    assert_memory_equal(message->bytes, bytes, count);
}

static void numbers_take_seven_bits_a_byte(void **state)
{
    (void)state;
    tide_protobuf message = {0};
    tide_protobuf_count(&message, 1, 0);
    tide_protobuf_count(&message, 2, 127);
    tide_protobuf_count(&message, 3, 128);
    tide_protobuf_count(&message, 60, UINT64_MAX);
    tide_protobuf_fixed64(&message, 47, 0x0102030405060708);
    tide_protobuf_text(&message, 2, "ab");
    static const char bytes[] = "\x08\0"
                                "\x10\x7f"
                                "\x18\x80\x01"
                                "\xe0\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
                                "\xf9\x02\x08\x07\x06\x05\x04\x03\x02\x01"
                                "\x12\x02"
                                "ab";
    assert_bytes(&message, bytes, sizeof bytes - 1);
    tide_protobuf_free(&message);
}

/* Two messages nested in a message, each followed by another field, which shows that the length before it is
 * right. */
static void messages_of_every_length_end_where_they_say(void **state)
{
    (void)state;
    static const size_t lengths[] = {0,     1,     123,   124,   125,   126,   127,  128,
                                     16377, 16378, 16379, 16380, 16383, 16384, 40000};
    tide_protobuf message = {0};
    char text[40001];
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        memset(text, 'x', lengths[i]);
        text[lengths[i]] = '\0';
        tide_protobuf_clear(&message);
        tide_protobuf_begin(&message, 1);
        tide_protobuf_begin(&message, 2);
        tide_protobuf_text(&message, 3, text);
        tide_protobuf_end(&message);
        tide_protobuf_count(&message, 4, 7);
        tide_protobuf_end(&message);
        tide_protobuf_count(&message, 5, 9);
        tide_protobuf by_hand = {0};
        const size_t head = 1 + (lengths[i] < 128     ? 1
                                 : lengths[i] < 16384 ? 2
                                                      : 3),
                     inner = head + lengths[i];
        const size_t inner_head = 1 + (inner < 128     ? 1
                                       : inner < 16384 ? 2
                                                       : 3),
                     outer = inner_head + inner + 2;
        /* for a tag and a length: both are numbers, and only the tag's type bits, set below, differ */
        tide_protobuf_count(&by_hand, 1, outer);
        tide_protobuf_count(&by_hand, 2, inner);
        by_hand.bytes[0] |= 2;
        by_hand.bytes[by_hand.length - inner_head] |= 2;
        tide_protobuf_text(&by_hand, 3, text);
        tide_protobuf_count(&by_hand, 4, 7);
        tide_protobuf_count(&by_hand, 5, 9);
        assert_bytes(&message, (const char *)by_hand.bytes, by_hand.length);
        tide_protobuf_free(&by_hand);
    }
    tide_protobuf_free(&message);
}

/* ---- timelines ---- */

static void describe(void *context, uint64_t source, tide_timeline_notes *notes)
{
    (void)context;
    tide_timeline_note_count(notes, "source", source);
    tide_timeline_note_text(notes, "kind", source % 2 == 0 ? "even" : "odd");
    tide_timeline_note_bool(notes, "is", source > 3);
}

/* A timeline with some of everything. NULL: no memory. */
static tide_timeline *something(void)
{
    tide_timeline *timeline = tide_timeline_make("process", 3, describe, NULL);
    char name[32];
    if (timeline == NULL)
        return NULL;
    uint32_t group = tide_timeline_track(timeline, TIDE_TIMELINE_NONE, "group", 0, false);
    uint32_t nesting = tide_timeline_track(timeline, group, "nests", 1, true);
    uint32_t flat = tide_timeline_track(timeline, group, "does not", 0, false);
    uint32_t counter = tide_timeline_counter(timeline, group, "bytes", 2, TIDE_TIMELINE_BYTES, "axis");
    for (uint32_t i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "span %u", i);
        uint32_t one = tide_timeline_span(timeline, i % 2 == 0 ? nesting : flat, 10 * i, 10 * i + 25,
                                          tide_timeline_text(timeline, name), i);
        if (i > 0)
            tide_timeline_arrow(timeline, one - 2, one);
        tide_timeline_instant(timeline, nesting, 10 * i + 1, tide_timeline_text(timeline, "instant"), 1);
        tide_timeline_value(timeline, counter, 10 * i, i);
    }
    return timeline;
}

static void memory_that_runs_out_anywhere_is_told(void **state)
{
    (void)state;
    FILE *nowhere = fopen("/dev/null", "wb");
    bool failed = true;
    assert_non_null(nowhere);
    for (unsigned request = 0; failed; request++) {
        fake_memory_fail(request);
        tide_timeline *timeline = something();
        tide_status status = timeline != NULL ? tide_timeline_write(timeline, nowhere) : TIDE_ERROR_NO_MEMORY;
        failed = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, failed ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
        tide_timeline_free(timeline);
    }
    fclose(nowhere);
}

static void a_stream_that_takes_no_more_is_told(void **state)
{
    (void)state;
    FILE *full = fopen("/dev/full", "wb");
    tide_timeline *timeline = something();
    assert_non_null(full);
    setvbuf(full, NULL, _IONBF, 0);
    assert_int_equal(tide_timeline_write(timeline, full), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "No space left"));
    tide_timeline_free(timeline);
    fclose(full);
}

/* ---- output files ---- */

static char folder[] = "/tmp/tidepool-timeline-XXXXXX";

static const char *path_in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void assert_content(const char *path, const char *content)
{
    char found[64] = "";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    found[fread(found, 1, sizeof found - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(found, content);
}

static void written(const char *path, const char *content)
{
    tide_whole_file file;
    assert_ok(tide_whole_file_open(path, &file));
    fputs(content, file.stream);
    assert_ok(tide_whole_file_finish(&file));
}

static void a_file_is_as_before_until_it_is_finished(void **state)
{
    (void)state;
    tide_whole_file file;
    const char *path = path_in_folder("file");
    written(path, "before");
    assert_ok(tide_whole_file_open(path, &file));
    fputs("after", file.stream);
    fflush(file.stream);
    assert_content(path, "before");
    tide_whole_file_abandon(&file);
    assert_content(path, "before");
    written(path, "after");
    assert_content(path, "after");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* fails if another file was left there */
    assert_int_equal(mkdir(folder, 0777), 0);
}

static void what_stands_behind_a_link_is_written(void **state)
{
    (void)state;
    struct stat about;
    char target[128], link_path[128];
    snprintf(target, sizeof target, "%s", path_in_folder("target"));
    snprintf(link_path, sizeof link_path, "%s", path_in_folder("link"));
    written(target, "before");
    assert_int_equal(symlink("target", link_path), 0);
    written(link_path, "after");
    assert_content(target, "after");
    assert_int_equal(lstat(link_path, &about), 0);
    assert_true(S_ISLNK(about.st_mode));
    unlink(link_path);
    unlink(target);
}

static void a_file_that_cannot_be_is_refused(void **state)
{
    (void)state;
    tide_whole_file file;
    assert_int_equal(tide_whole_file_open(path_in_folder("no/such"), &file), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "no/such"));
    assert_int_equal(tide_whole_file_open(folder, &file), TIDE_ERROR_IO);
    assert_ok(tide_whole_file_open("/dev/full", &file));
    fputs("lost", file.stream);
    assert_int_equal(tide_whole_file_finish(&file), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "No space left"));
}

static int folder_make(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int folder_remove(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_take_seven_bits_a_byte),
        cmocka_unit_test(messages_of_every_length_end_where_they_say),
        cmocka_unit_test(memory_that_runs_out_anywhere_is_told),
        cmocka_unit_test(a_stream_that_takes_no_more_is_told),
        cmocka_unit_test(a_file_is_as_before_until_it_is_finished),
        cmocka_unit_test(what_stands_behind_a_link_is_written),
        cmocka_unit_test(a_file_that_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
