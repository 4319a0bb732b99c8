/* The reader of traces: the values that it reads, how much it takes of a file that breaks off, and which files
 * it refuses, with a message that names the line. Also the accounts of steps, a picture on a full disk, and
 * memory that runs out: test_trace_perfetto.py and test_trace_diff.py check pictures and comparisons. */
#include "src/trace/trace_model.h"
#include "src/trace/trace_steps.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"
#include "tests/trace/trace_lines.h"
#include "tools/trace/trace_compare.h"
#include "tools/trace/trace_picture.h"
#include "tools/trace/trace_slow.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { TEXT_BYTES = 1 << 16, PATH_BYTES = 128 };

/* ---- files ---- */

static char folder[] = "/tmp/tidepool-trace-XXXXXX";
static char path[PATH_BYTES];

static int folder_make(void **unused)
{
    if (mkdtemp(folder) == NULL)
        return -1;
    (void)snprintf(path, sizeof path, "%s/run.trace", folder);
    return 0;
}

static int folder_remove(void **unused)
{
    (void)unlink(path);
    return rmdir(folder);
}

static void file_write(const char *name, const char *text, size_t bytes)
{
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static const char *segment_name(unsigned number)
{
    static char name[PATH_BYTES + 16];
    (void)snprintf(name, sizeof name, "%s.step-%u", path, number);
    return name;
}

static void segment_write(unsigned number, const char *text)
{
    file_write(segment_name(number), text, strlen(text));
}

/* ---- the trace that was read ---- */

static tide_trace_model *model;
static tide_trace_steps steps;

static int forget(void **unused)
{
    tide_trace_steps_free(&steps);
    tide_trace_model_free(model);
    model = NULL;
    (void)unlink(segment_name(9));
    (void)unlink(segment_name(10));
    return 0;
}

static void read_text(const char *text)
{
    file_write(path, text, strlen(text));
    assert_ok(tide_trace_model_read(path, &model));
}

static void read_steps(const char *text)
{
    read_text(text);
    assert_ok(tide_trace_steps_make(model, &steps));
}

/* ---- values that are read ---- */

static void tables_are_read_as_they_stand(void **unused)
{
    read_text(TRACE_WHOLE);
    assert_string_equal(model->version, "0.2.0");
    assert_int_equal(model->dtype, TIDE_DTYPE_BF16);
    assert_int_equal(model->device_slots, 4);
    assert_int_equal(model->region_bytes, 262144);
    assert_string_equal(tide_trace_model_setting(model, "model"), "a \"toy\" of \xc3\xa9\xf0\x9f\x98\x80");
    assert_null(tide_trace_model_setting(model, "data"));
    assert_float_equal(model->machine.device_bytes_per_second, 2.5e11, 1);
    assert_int_equal(model->param_count, 2);
    assert_int_equal(model->params[0].plane_count, 3);
    assert_true(model->params[1].frozen && model->params[1].plane_count == 0);
    assert_int_equal(model->chunk_count, 6);
    assert_int_equal(model->chunks[1].params[0].first_element, 131072);
    assert_int_equal(model->chunks[4].space, TIDE_SPACE_STATE);
    assert_int_equal(model->chunks[4].of_count, 2);
    assert_int_equal(model->chunks[4].of[1], 1);
    assert_int_equal(model->ops[1].pass, TIDE_PASS_BOTH);
    assert_int_equal(model->ops[1].activations[0].access, 12);
    assert_int_equal(model->ops[0].params[1].tensor, 1);
    assert_int_equal(model->activations[0].part_bytes, 2048);
}

static const tide_trace_event *event_find(tide_trace_kind kind)
{
    for (uint64_t i = 0; i < model->event_count; i++)
        if (model->events[i].kind == kind)
            return &model->events[i];
    fail_msg("no event of kind %d", (int)kind);
    return NULL;
}

static void every_kind_of_event_is_read_with_all_that_it_tells(void **unused)
{
    read_text(TRACE_WHOLE);
    const tide_trace_event *copy = event_find(TIDE_TRACE_COPY);
    assert_int_equal(copy->bytes, 262144);
    assert_int_equal(copy->tier, TIDE_TIER_DEVICE);
    assert_int_equal(copy->reason, TIDE_REASON_DEMAND);
    assert_int_equal(copy->host_slot, 7);
    const tide_trace_event *stall = event_find(TIDE_TRACE_STALL);
    assert_int_equal(stall->slice, TIDE_TRACE_NONE);
    assert_int_equal(stall->ended_by, 9);
    assert_false(stall->predicted);
    const tide_trace_event *chunk = event_find(TIDE_TRACE_CHUNK);
    assert_int_equal(chunk->device, TIDE_STAND_THERE);
    assert_int_equal(chunk->content, TIDE_CONTENT_PARAMS);
    assert_true(chunk->pinned && chunk->begin_ns == 1300 && chunk->end_ns == 1300);
    const tide_trace_event *plan = event_find(TIDE_TRACE_PLAN);
    assert_true(plan->training && plan->planned_in == 3 && plan->least_out == 0);
    assert_int_equal(event_find(TIDE_TRACE_MAP)->map, TIDE_TRACE_REMAPPED);
    assert_int_equal(event_find(TIDE_TRACE_WAIT)->awaits, TIDE_TRACE_AWAITS_MOVE);
    assert_int_equal(event_find(TIDE_TRACE_PARAM)->holds, TIDE_TRACE_HOLDS_GRADIENT);
    assert_string_equal(event_find(TIDE_TRACE_WORK)->work, "data");
    assert_int_equal(event_find(TIDE_TRACE_UPDATE)->state_chunk, 3);
    assert_int_equal(event_find(TIDE_TRACE_OP)->busy_ns, 3000);
    assert_int_equal(event_find(TIDE_TRACE_OP)->chunk, TIDE_TRACE_NONE);
    assert_int_equal(event_find(TIDE_TRACE_RESTORE)->piece, 1);
}

static void events_stand_in_order_of_time_and_equals_in_order_of_lines(void **unused)
{
    read_text(TRACE_WHOLE);
    for (uint64_t i = 1; i < model->event_count; i++)
        assert_true(model->events[i - 1].begin_ns <= model->events[i].begin_ns);
    assert_int_equal(model->events[0].kind, TIDE_TRACE_PASS);
    assert_int_equal(model->events[1].kind, TIDE_TRACE_SNAPSHOT);
    assert_int_equal(model->events[2].kind, TIDE_TRACE_WAIT);
    assert_int_equal(model->events[3].kind, TIDE_TRACE_MOVE);
    /* its line follows that of the map, which began later */
    assert_int_equal(model->events[4].kind, TIDE_TRACE_REQUEST);
    assert_int_equal(model->events[5].kind, TIDE_TRACE_MAP);
}

static void a_step_is_its_line_and_knows_its_pass(void **unused)
{
    read_text(TRACE_WHOLE);
    assert_int_equal(model->step_count, 1);
    assert_int_equal(model->pass_count, 1);
    assert_true(isnan(model->steps[0].loss));
    assert_float_equal(model->steps[0].stall_seconds_by[TIDE_STALL_LINK], 2e-6, 1e-12);
    assert_true(model->steps[0].is_whole);
    assert_int_equal(model->steps[0].pass, 0);
    assert_int_equal(model->passes[0].end_ns, 10500);
    assert_false(model->is_cut);
}

static void metrics_lines_of_all_versions_are_read(void **unused)
{
    static const struct {
        const char *text;
        double peer;
    } cases[] = {
        {TRACE_FIRST TRACE_TABLES TRACE_STEP_1 TRACE_STEP_OF("1", "1", "", ""), 0},
        {TRACE_FIRST TRACE_TABLES TRACE_STEP_1 TRACE_STEP_OF("1", "2", "\"learned_tokens\":60,", ""), 0},
        {TRACE_FIRST TRACE_TABLES TRACE_STEP_1 TRACE_STEP_OF("1", "3", "\"learned_tokens\":60,",
                                                             "\"stall_peer_seconds\":1e-06,"),
         1e-6},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        read_text(cases[i].text);
        assert_int_equal(model->step_count, 1);
        assert_float_equal(model->steps[0].stall_seconds_by[TIDE_STALL_LINK], 2e-6, 1e-12);
        assert_float_equal(model->steps[0].stall_seconds_by[TIDE_STALL_PEER], cases[i].peer, 1e-12);
        assert_int_equal(model->steps[0].h2d_bytes, 262144);
        forget(NULL);
    }
}

/* The first line of several ranks has the run's number, and since version 3 each step names the slowest. */
static void a_trace_of_several_ranks_has_the_run_and_the_slowest_rank(void **unused)
{
    static const char end[] = "\"skipped\":0}\n", more[] = "\"skipped\":0,\"slowest_rank\":1,"
                                                           "\"slowest_step_seconds\":0.5}\n";
    char *text = strdup(TRACE_FIRST TRACE_TABLES TRACE_STEP_1 TRACE_STEP_OF(
        "1", "3", "\"learned_tokens\":60,", "\"stall_peer_seconds\":1e-06,"));
    static const char one[] = "\"ranks\":1,", two[] = "\"ranks\":2,\"run\":77,";
    const char *ranks = strstr(text, one);
    char longer[16384];
    assert_non_null(ranks);
    const char *behind = ranks + strlen(one);
    snprintf(longer, sizeof longer, "%.*s%s%.*s%s", (int)(ranks - text), text, two,
             (int)(strlen(behind) - strlen(end)), behind, more);
    read_text(longer);
    assert_int_equal(model->run, 77);
    assert_int_equal(model->steps[0].slowest_rank, 1);
    assert_float_equal(model->steps[0].slowest_seconds, 0.5, 1e-12);
    free(text);
}

static void blanks_between_members_are_allowed(void **unused)
{
    read_text(TRACE_FIRST " { \"table\" : \"setting\" ,\t\"name\": \"a\", \"value\": \"b\" } \r\n");
    assert_string_equal(tide_trace_model_setting(model, "a"), "b");
}

/* ---- steps that are whole, given up, or have dropped events ---- */

static void a_step_is_whole_if_all_of_its_events_are_there(void **unused)
{
    static const struct {
        const char *name, *text;
        uint32_t count, whole; /* a bit for each step */
        uint32_t pass;         /* of the first step */
        uint64_t dropped;
    } cases[] = {
        {"events were dropped in step 2",
         TRACE_FIRST TRACE_TABLES TRACE_STEP_1 TRACE_PASS("2", "20000") TRACE_AT("dropped", "0", "2")
             TRACE_T("21000") "\"events\":17}\n" TRACE_STEP("2") TRACE_PASS("3", "30000") TRACE_STEP("3"),
         3, 5, 0, 17},
        {"its pass was not kept", TRACE_FIRST TRACE_TABLES TRACE_STEP("7"), 1, 0, UINT32_MAX, 0},
        {"its pass was given up",
         TRACE_FIRST TRACE_TABLES TRACE_PASS("1", "1000")
             TRACE_AT("given up", "1", "1") "\"t_ns\":1500}\n" TRACE_STEP("1"),
         1, 0, UINT32_MAX, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t whole = 0;
        read_text(cases[i].text);
        for (uint32_t step = 0; step < model->step_count; step++)
            whole |= (uint32_t)model->steps[step].is_whole << step;
        if (model->step_count != cases[i].count || whole != cases[i].whole ||
            model->steps[0].pass != cases[i].pass || model->dropped != cases[i].dropped)
            fail_msg("%s: %u steps, whole %x", cases[i].name, model->step_count, whole);
        forget(NULL);
    }
}

static void what_was_told_of_a_step_before_it_was_given_up_counts_for_none(void **unused)
{
    read_text(TRACE_FIRST TRACE_TABLES TRACE_PASS("1", "1000") TRACE_AT("access", "1", "1")
                  TRACE_SPAN("1100", "1200") "\"id\":1,\"chunk\":0}\n" TRACE_AT(
                      "given up", "1", "1") "\"t_ns\":1500}\n" TRACE_AT("pass", "1", "2")
                      TRACE_T("2000") "\"training\":true,\"number\":1,\"clips\":false}\n" TRACE_AT("access",
                                                                                                   "1", "2")
                          TRACE_SPAN("2100", "2200") "\"id\":2,\"chunk\":0}\n" TRACE_STEP("1"));
    assert_true(model->passes[0].given_up);
    assert_false(model->passes[1].given_up);
    assert_int_equal(model->steps[0].pass, 1);
    assert_int_equal(event_find(TIDE_TRACE_ACCESS)->step, 0);
    assert_int_equal(model->events[model->event_count - 1].step, 1);
}

/* ---- files that break off; segments ---- */

/* Reading the trace fails with a message of the path and these words. */
static void refused(const char *words)
{
    char wanted[512];
    (void)snprintf(wanted, sizeof wanted, "%s%s", path, words);
    assert_int_equal(tide_trace_model_read(path, &model), TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), wanted);
    assert_null(model);
}

static void a_trace_that_breaks_off_anywhere_is_taken_up_to_there(void **unused)
{
    static const char whole[] = TRACE_WHOLE;
    for (size_t bytes = 0; bytes < sizeof whole - 1; bytes++) {
        file_write(path, whole, bytes);
        const tide_status status = tide_trace_model_read(path, &model);
        assert_int_equal(status, bytes < sizeof TRACE_FIRST - 1 ? TIDE_ERROR_ARGUMENT : TIDE_OK);
        assert_true(status == TIDE_OK ? model->is_cut : model == NULL);
        forget(NULL);
    }
}

#define TRACE_SNAPSHOT                                                                                       \
    TRACE_AT("snapshot", "1", "1")                                                                           \
    TRACE_T("1000")                                                                                          \
    "\"chunk\":0,\"device\":\"none\",\"device_slot\":null,\"host\":\"there\",\"host_slot\":7,"               \
    "\"pinned\":false,\"content\":\"params\",\"pending\":false}\n"

static void segments_follow_in_order_of_their_numbers(void **unused)
{
    segment_write(10, TRACE_SNAPSHOT TRACE_PASS("3", "90000") TRACE_STEP("3") "{\"event\":\"pas");
    segment_write(9, TRACE_SNAPSHOT TRACE_PASS("2", "80000") TRACE_STEP("2"));
    read_text(TRACE_FIRST TRACE_TABLES TRACE_PASS("1", "1000") TRACE_STEP("1"));
    assert_int_equal(model->step_count, 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(model->steps[i].step == i + 1 && model->steps[i].is_whole);
    assert_true(model->is_cut);
}

/* The run was killed while it copied its segments into the file. The reader must not take lines twice that
 * are in both. */
static void segments_that_are_in_the_file_in_part_are_read_once(void **unused)
{
    static const char head[] = TRACE_FIRST TRACE_TABLES TRACE_PASS("1", "1000") TRACE_STEP("1");
    static const char segments[] = TRACE_SNAPSHOT TRACE_PASS("2", "80000") TRACE_STEP("2")
        TRACE_SNAPSHOT TRACE_PASS("3", "90000") TRACE_STEP("3");
    char text[sizeof head + sizeof segments];
    for (size_t bytes = 0; bytes < sizeof segments; bytes += 7) {
        segment_write(9, TRACE_SNAPSHOT TRACE_PASS("2", "80000") TRACE_STEP("2"));
        segment_write(10, TRACE_SNAPSHOT TRACE_PASS("3", "90000") TRACE_STEP("3"));
        (void)snprintf(text, sizeof text, "%s%.*s", head, (int)bytes, segments);
        read_text(text);
        assert_int_equal(model->pass_count, 3);
        assert_int_equal(model->event_count, 5);
        assert_int_equal(model->step_count, 3);
        forget(NULL);
    }
}

static void what_lies_beside_a_whole_trace_is_not_of_it(void **unused)
{
    segment_write(9, TRACE_PASS("2", "80000") TRACE_STEP("2"));
    read_text(TRACE_WHOLE);
    assert_int_equal(model->step_count, 1);
}

static void a_fault_in_a_segment_is_told_with_its_name_and_line(void **unused)
{
    segment_write(9, TRACE_PASS("2", "80000") "{\"event\":\"nap\"}\n");
    file_write(path, TRACE_FIRST, strlen(TRACE_FIRST));
    refused(".step-9:2: event: there is no event \"nap\" in format 3");
}

/* ---- refused traces ---- */

/* A change to the correct trace, which has `to` in place of `from`, and the message it gets, without the path
 * and a colon. */
typedef struct fault {
    const char *from, *to, *message;
} fault;

static const fault faults[] = {
    {"{\"trace\":3", "{\"format\":1",
     "1: a trace of format 1, made by an older tidepool (this one reads format 3): train again with --trace"},
    {"{\"trace\":3", "{\"trace\":2",
     "1: a trace of format 2, made by an older tidepool (this one reads format 3): train again with --trace"},
    {"{\"trace\":3", "{\"trace\":4",
     "1: a trace of format 4, made by a newer tidepool (this one reads format 3)"},
    {"{\"trace\":3", "{\"trace\":\"3\"", "1: \"trace\" must be a whole number from 0 on, not \"3\""},
    {"{\"trace\":3", "{\"traces\":3", "1: not a trace: its first line would begin with {\"trace\":3"},
    {"{\"trace\":3", "# a log", "1: not a trace: its first line would begin with {\"trace\":3"},
    {"\"rank\":0,\"ranks\":1", "\"rank\":1,\"ranks\":1", "1: trace: \"rank\" is 1 of 1 ranks"},
    {"bf16", "int8", "1: trace: \"dtype\" must be one of fp32, bf16, fp16, not \"int8\""},
    {"\"cores\":2", "\"cores\":02",
     "3: table machine: \"cores\" must be a whole number from 0 to 4294967294, not 02"},
    {"1e12", "1e999", "3: table machine: \"flops_per_second\" must be a number or null, not 1e999"},
    {"1e12", "0x12", "3: table machine: is not JSON: , is missing between two members, there is x12"},
    {"\"param\":1,\"name\"", "\"param\":2,\"name\"",
     "5: table param: \"param\" is 2, but the row is number 1"},
    {"\"elements\":200000", "\"elements\":9223372036854775808",
     "4: table param: \"elements\" must be a whole number from 0 on, not 9223372036854775808"},
    {"\"elements\":200000", "\"elements\":18446744073709751616",
     "4: table param: \"elements\" must be a whole number from 0 on, not 18446744073709751616"},
    {"[128,128,128]", "[128,128,128,128]", "4: table param: \"planes\" are more than 3"},
    {"[[0,0,131072]]", "[[2,0,131072]]",
     "6: table chunk: a number in a list is 2, but params go from 0 to 1"},
    {"[[0,0,131072]]", "[[0,0,200001]]", "6: table chunk: param 0 has 200000 elements, not 200001 from 0"},
    {"[[0,0,131072]]", "[[0,131073,131072]]",
     "6: table chunk: param 0 has 200000 elements, not 131072 from 131073"},
    {"[[0,0,131072]]", "[[0,0]]", "6: table chunk: is not JSON: , is missing between two values, there is ]"},
    {"[[0,0,131072]]", "[[0,0,1,2]]", "6: table chunk: \"params\" has lists of three numbers"},
    {"\"bytes\":137856", "\"bytes\":262145", "7: table chunk: \"bytes\" is 262145, but a chunk has 262144"},
    {"\"index\":1,\"bytes\":137856", "\"index\":2,\"bytes\":137856",
     "7: table chunk: \"index\" is 2, but it is the param space's number 1"},
    {"\"of\":[0,1]", "\"of\":[0,3]", "10: table chunk: \"of\" names chunk 3, which is no param chunk"},
    {"\"of\":[0,1]", "\"of\":[0,4]",
     "10: table chunk: a number in a list is 4, but chunks before this one go from 0 to 3"},
    {"\"params\":[],\"of\":[0]", "\"params\":[[0,0,1]],\"of\":[0]",
     "9: table chunk: \"params\" must be empty for a state chunk"},
    {"[[0,12]]", "[[1,12]]", "13: table op: \"activations\" names number 1, but there are 1"},
    {"[[0,12]]", "[[0,16]]", "13: table op: in a list: must be a whole number from 0 to 15, not 16"},
    {"\"table\":\"machine\"", "\"table\":\"machines\"",
     "3: table: \"table\" must be one of setting, machine, param, chunk, op, activation, not \"machines\""},
    {"\\u00e9", "\\ud83d",
     "2: table setting: \"value\" must be a text in UTF-8, as JSON escapes it, not \"a \\\""},
    {"\\u00e9", "\xff",
     "2: table setting: \"value\" must be a text in UTF-8, as JSON escapes it, not \"a \\\""},
    {"{\"event\":\"wait\"", "{\"event\":\"weight\"", "17: event: there is no event \"weight\" in format 3"},
    {"{\"event\":\"wait\"", "{\"happening\":\"wait\"",
     "17: a line begins with \"event\", \"step\", \"table\" or \"end\", not with \"happening\""},
    {"{\"event\":\"wait\"", "[]", "17: is not JSON: { is missing at the line's begin, there is ["},
    {"\"chunk\":0,\"for\"", "\"chunk\":6,\"for\"",
     "17: event wait: \"chunk\" is 6, but chunks go from 0 to 5"},
    {"\"chunk\":0,\"for\"", "\"chunk\":null,\"for\"",
     "17: event wait: \"chunk\" must be a whole number from 0 to 4294967294, not null"},
    {"\"for\":\"move\"", "\"for\":\"luck\"",
     "17: event wait: \"for\" must be one of update, slot, move, not \"luck\""},
    {",\"for\":\"move\"", "", "17: event wait: \"for\" is missing"},
    {"\"for\":\"move\"", "\"for\":\"move\",\"more\":1",
     "17: event wait: ends here and has no member \"more\""},
    {"\"for\":\"move\"}", "\"for\":\"move\"",
     "17: event wait: is not JSON: } is missing at the line's end, there is the line's end"},
    {"\"for\":\"move\"}", "\"for\":\"move\"} {}", "17: event wait: must end with }, not with {"},
    {"\"device_slot\":3,\"host_slot\":7,\"copied\"", "\"device_slot\":4,\"host_slot\":7,\"copied\"",
     "18: event move: \"device_slot\" is 4, but device slots go from 0 to 3"},
    {"\"host_slot\":7,\"copied\"", "\"host_slot\":8,\"copied\"",
     "18: event move: \"host_slot\" is 8, but host slots go from 0 to 7"},
    {"\"zeroed\":false", "\"zeroed\":0", "18: event move: \"zeroed\" must be true or false, not 0"},
    {"\"chunk\":0,\"reason\":\"demand\",\"device_slot\"", "\"reason\":\"demand\",\"chunk\":0,\"device_slot\"",
     "18: event move: \"chunk\" belongs here, not \"reason\""},
    {"\"begin_ns\":1110", "\"begin_ns\":1121", "19: event map: \"end_ns\" 1120 is before \"begin_ns\" 1121"},
    {"\"slice\":1,\"schedule_step\":3", "\"slice\":2,\"schedule_step\":3",
     "26: event op: \"slice\" is 2, but this op's slices go from 0 to 1"},
    {"\"bytes\":262144,\"device_slot\"", "\"bytes\":262145,\"device_slot\"",
     "21: event copy: \"bytes\" is 262145, but chunk 0 has 262144"},
    {"\"op\":1,\"slice\":1", "\"op\":null,\"slice\":1", "26: event op: \"slice\" is 1, but \"op\" is null"},
    {"\"op\":1,\"slice\":1", "\"op\":2,\"slice\":1", "26: event op: \"op\" is 2, but ops go from 0 to 1"},
    {"\"param\":0,\"holds\"", "\"param\":2,\"holds\"",
     "28: event param: \"param\" is 2, but params go from 0 to 1"},
    {"\"chunk\":0,\"state_chunk\":3", "\"chunk\":3,\"state_chunk\":3",
     "30: event update: \"chunk\" is 3, which is no param chunk"},
    {"\"chunk\":0,\"state_chunk\":3", "\"chunk\":0,\"state_chunk\":2",
     "30: event update: \"state_chunk\" is 2, which is no state chunk"},
    {"\"training\":true,\"number\":1", "\"training\":false,\"number\":1",
     "15: event pass: \"number\" is 1, but \"training\" is false"},
    {"\"step_seconds\":1e-05", "\"step_seconds\":null",
     "33: step: \"step_seconds\" must be a number from 0 on"},
    {"\"skipped\":0", "\"skipped\":2", "33: step: \"skipped\" must be a whole number from 0 to 1, not 2"},
    {"{\"end\":true", "{\"end\":false", "36: end: \"end\" must be true"},
    {"\"dropped\":0}\n", "\"dropped\":0}\n{}\n",
     "37: comes behind the line \"end\", which is a trace's last"},
};

/* Makes the correct trace with the first `from`, which must be there, replaced. */
static const char *replaced(const fault *wrong)
{
    static const char sound[] = TRACE_WHOLE;
    static char text[TEXT_BYTES];
    const char *at = strstr(sound, wrong->from);
    assert_non_null(at);
    (void)snprintf(text, TEXT_BYTES, "%.*s%s%s", (int)(at - sound), sound, wrong->to,
                   at + strlen(wrong->from));
    return text;
}

static void what_is_wrong_is_refused_with_its_line_and_what_would_be_right(void **unused)
{
    char words[384];
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        const char *text = replaced(&faults[i]);
        file_write(path, text, strlen(text));
        (void)snprintf(words, sizeof words, ":%s", faults[i].message);
        refused(words);
    }
}

static void a_file_that_is_none_is_told_as_such(void **unused)
{
    static const char zeros[64] = {0};
    file_write(path, "", 0);
    refused(":1: the file is empty; a trace begins with {\"trace\":3");
    file_write(path, zeros, sizeof zeros);
    refused(":1: not a trace: its first line would begin with {\"trace\":3");
    assert_int_equal(tide_trace_model_read(folder, &model), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "can't be read: Is a directory"));
    assert_int_equal(tide_trace_model_read("/nowhere/at/all", &model), TIDE_ERROR_IO);
    assert_string_equal(tide_message(), "/nowhere/at/all: can't be opened: No such file or directory");
    assert_null(model);
}

/* ---- accounts of steps ---- */

static void a_steps_account_is_what_its_events_add_up_to(void **unused)
{
    read_steps(TRACE_WHOLE);
    assert_int_equal(steps.count, 1);
    const tide_step_account *account = &steps.steps[0];
    assert_true(account->is_exact);
    assert_null(account->difference.member);
    assert_int_equal(account->bytes[TIDE_TIER_DEVICE], 262144);
    assert_int_equal(account->bytes_by_space[TIDE_TIER_DEVICE][TIDE_SPACE_PARAM], 262144);
    assert_int_equal(account->bytes_by_reason[TIDE_TIER_DEVICE][TIDE_REASON_DEMAND], 262144);
    assert_int_equal(account->asked, 3);
    assert_int_equal(account->lacked, 1);
    assert_float_equal(account->update_seconds[TIDE_TIER_HOST], 1e-6, 1e-15);
    assert_float_equal(account->rest_seconds, 1e-6, 1e-12);
    assert_int_equal(steps.moves[0], 1);
    assert_null(account->plan); /* the first plan was made at the end of this step */
}

static void sums_of_a_trace_with_gaps_are_not_compared(void **unused)
{
    read_steps(replaced(&(fault){"\"dropped\":0}", "\"dropped\":5}", NULL}));
    assert_int_equal(model->dropped, 5);
    assert_false(steps.steps[0].is_exact);
}

static void figures_that_do_not_add_up_are_named(void **unused)
{
    static const struct {
        fault change;
        const char *member;
    } changes[] = {
        {{"\"bytes\":262144,\"device_slot\"", "\"bytes\":262143,\"device_slot\"", NULL}, "h2d_bytes"},
        {{"\"demand_fetches\":1", "\"demand_fetches\":2", NULL}, "demand_fetches"},
        {{"\"busy_ns\":3000", "\"busy_ns\":2900", NULL}, "compute_seconds"},
        {{"\"cause\":\"link\"", "\"cause\":\"slot\"", NULL}, "stall_link_seconds"},
        {{"\"tier\":\"host\"", "\"tier\":\"device\"", NULL}, "adam_host_seconds"},
    };
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        read_steps(replaced(&changes[i].change));
        assert_non_null(steps.steps[0].difference.member);
        assert_string_equal(steps.steps[0].difference.member, changes[i].member);
        forget(NULL);
    }
}

static void the_warm_up_is_not_what_steps_are_like(void **unused)
{
    read_steps(TRACE_FIRST TRACE_TABLES TRACE_STEP_1 TRACE_PASS("2", "20000") TRACE_STEP("2")
                   TRACE_PASS("7", "70000") TRACE_STEP("7") TRACE_PASS("8", "80000") TRACE_STEP("8"));
    assert_int_equal(steps.count, 4);
    assert_int_equal(steps.steps[steps.steady].line->step, 7);
    assert_false(steps.steps[2].is_exact); /* step 6 was not kept, and may have made fetches for this step */
    assert_true(steps.steps[3].is_exact);
    assert_non_null(steps.steps[1].plan);
    assert_ptr_equal(tide_trace_steps_find(&steps, 8), &steps.steps[3]);
    assert_null(tide_trace_steps_find(&steps, 3));
}

static void the_last_step_of_a_run_is_not_what_steps_are_like(void **unused)
{
    read_steps(TRACE_FIRST TRACE_TABLES TRACE_STEP_1 TRACE_PASS("2", "20000") TRACE_STEP("2")
                   TRACE_PASS("3", "30000") TRACE_STEP("3") TRACE_PASS("4", "40000") TRACE_STEP("4"));
    assert_int_equal(steps.steps[steps.steady].line->step, 3);
    assert_int_equal(steps.steady_end, 3);
}

static void the_plan_of_a_forward_only_pass_is_none_of_a_steps(void **unused)
{
    read_steps(TRACE_FIRST TRACE_TABLES TRACE_STEP_1 TRACE_AT("plan", "0", "1")
                   TRACE_T("11000") "\"training\":false,\"planned_in\":9,\"planned_out\":9,\"least_in\":9,"
                                    "\"least_out\":9}\n" TRACE_PASS("2", "20000") TRACE_STEP("2"));
    assert_non_null(steps.steps[1].plan);
    assert_int_equal(steps.steps[1].plan->planned_in, 3);
}

/* ---- memory and disks that run out ---- */

static tide_status read_again(void)
{
    tide_trace_model *read = NULL;
    const tide_status status = tide_trace_model_read(path, &read);
    assert_true(status == TIDE_OK ? read != NULL : read == NULL && strstr(tide_message(), path) != NULL);
    tide_trace_model_free(read);
    return status;
}

static tide_status account(void)
{
    tide_stall_series longest[2];
    tide_slow_op slow[2];
    uint32_t count = 0;
    uint64_t all = 0;
    tide_status status = tide_trace_steps_make(model, &steps);
    if (status == TIDE_OK)
        status = tide_trace_longest_stalls(&steps, longest, 2, &count);
    if (status == TIDE_OK)
        status = tide_trace_slow_ops(&steps, slow, 2, &all);
    tide_trace_steps_free(&steps);
    return status;
}

static tide_status compare(void)
{
    tide_comparison comparison;
    const tide_status status = tide_comparison_make(model, model, &comparison);
    tide_comparison_free(&comparison);
    return status;
}

static tide_status draw(void)
{
    const tide_trace_model *drawn = model;
    FILE *nowhere = fopen("/dev/null", "wb");
    assert_non_null(nowhere);
    const tide_status status = tide_trace_pictures_write(&drawn, 1, nowhere);
    assert_int_equal(fclose(nowhere), 0);
    return status;
}

static void memory_that_runs_out_is_told(void **unused)
{
    static const struct {
        const char *name;
        tide_status (*work)(void);
    } works[] = {{"read", read_again}, {"account", account}, {"compare", compare}, {"draw", draw}};
    segment_write(9, TRACE_PASS("2", "80000") TRACE_STEP("2"));
    read_text(TRACE_FIRST TRACE_TABLES TRACE_STEP_1);
    for (size_t i = 0; i < sizeof works / sizeof works[0]; i++) {
        unsigned request = 0;
        for (bool failed = true; failed; request++) {
            fake_memory_fail(request);
            const tide_status status = works[i].work();
            failed = fake_memory_failed();
            (void)fake_memory_clear();
            if (status != (failed ? TIDE_ERROR_NO_MEMORY : TIDE_OK) ||
                (failed && strstr(tide_message(), "no memory") == NULL))
                fail_msg("%s, request %u: %s: %s", works[i].name, request, tide_status_name(status),
                         tide_message());
        }
        assert_true(request > 5);
    }
}

static void a_full_stream_is_told(void **unused)
{
    FILE *full = fopen("/dev/full", "wb");
    read_text(TRACE_WHOLE);
    const tide_trace_model *drawn = model;
    assert_non_null(full);
    setvbuf(full, NULL, _IONBF, 0);
    assert_int_equal(tide_trace_pictures_write(&drawn, 1, full), TIDE_ERROR_IO);
    assert_non_null(strstr(tide_message(), "No space left"));
    fclose(full);
}

/* ---- stalls and slow ops ---- */

/* Steps 3 to 5: in each a stall, then `op`, which is busy for the given time. */
#define TRACE_OP_STEP(number, begin, end, busy, stall_begin)                                                 \
    TRACE_PASS(number, stall_begin)                                                                          \
    TRACE_AT("stall", number, number)                                                                        \
    TRACE_SPAN(stall_begin, begin)                                                                           \
    "\"cause\":\"slot\",\"op\":1,\"slice\":0,\"schedule_step\":2,\"chunk\":1,"                               \
    "\"ended_by\":null,\"predicted\":true}\n" TRACE_AT("op", number, number)                                 \
        TRACE_SPAN(begin, end) "\"busy_ns\":" busy                                                           \
                               ",\"op\":1,\"slice\":0,\"schedule_step\":2}\n" TRACE_STEP(number)

#define TRACE_OP_STEPS                                                                                       \
    TRACE_FIRST TRACE_TABLES TRACE_OP_STEP("3", "31000", "32000", "1000", "30000")                           \
        TRACE_OP_STEP("4", "43000", "46000", "1600", "40000")                                                \
            TRACE_OP_STEP("5", "52000", "53000", "1000", "50000") TRACE_PASS("6", "60000")

static void stalls_alike_are_one_series_with_its_longest(void **unused)
{
    read_steps(TRACE_OP_STEPS);
    tide_stall_series longest[3];
    uint32_t count = 0;
    assert_ok(tide_trace_longest_stalls(&steps, longest, 3, &count));
    assert_int_equal(count, 1);
    assert_int_equal(longest[0].count, 3);
    assert_int_equal(longest[0].longest->step, 4);
    assert_float_equal(longest[0].seconds, 6e-6, 1e-12);
}

static void an_op_is_slow_by_its_own_median(void **unused)
{
    read_steps(TRACE_OP_STEPS);
    tide_slow_op slow[3];
    uint64_t all = 0;
    assert_ok(tide_trace_slow_ops(&steps, slow, 3, &all));
    assert_int_equal(all, 1);
    /* the slowest by the time of its kernels, 1.6 times the median */
    assert_int_equal(slow[0].event->step, 4);
    assert_float_equal(slow[0].median_seconds, 1e-6, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(tables_are_read_as_they_stand, forget),
        cmocka_unit_test_teardown(every_kind_of_event_is_read_with_all_that_it_tells, forget),
        cmocka_unit_test_teardown(events_stand_in_order_of_time_and_equals_in_order_of_lines, forget),
        cmocka_unit_test_teardown(a_step_is_its_line_and_knows_its_pass, forget),
        cmocka_unit_test_teardown(metrics_lines_of_all_versions_are_read, forget),
        cmocka_unit_test_teardown(a_trace_of_several_ranks_has_the_run_and_the_slowest_rank, forget),
        cmocka_unit_test_teardown(blanks_between_members_are_allowed, forget),
        cmocka_unit_test_teardown(a_step_is_whole_if_all_of_its_events_are_there, forget),
        cmocka_unit_test_teardown(what_was_told_of_a_step_before_it_was_given_up_counts_for_none, forget),
        cmocka_unit_test_teardown(a_trace_that_breaks_off_anywhere_is_taken_up_to_there, forget),
        cmocka_unit_test_teardown(segments_follow_in_order_of_their_numbers, forget),
        cmocka_unit_test_teardown(segments_that_are_in_the_file_in_part_are_read_once, forget),
        cmocka_unit_test_teardown(what_lies_beside_a_whole_trace_is_not_of_it, forget),
        cmocka_unit_test_teardown(a_fault_in_a_segment_is_told_with_its_name_and_line, forget),
        cmocka_unit_test_teardown(what_is_wrong_is_refused_with_its_line_and_what_would_be_right, forget),
        cmocka_unit_test_teardown(a_file_that_is_none_is_told_as_such, forget),
        cmocka_unit_test_teardown(a_steps_account_is_what_its_events_add_up_to, forget),
        cmocka_unit_test_teardown(sums_of_a_trace_with_gaps_are_not_compared, forget),
        cmocka_unit_test_teardown(figures_that_do_not_add_up_are_named, forget),
        cmocka_unit_test_teardown(the_warm_up_is_not_what_steps_are_like, forget),
        cmocka_unit_test_teardown(the_last_step_of_a_run_is_not_what_steps_are_like, forget),
        cmocka_unit_test_teardown(the_plan_of_a_forward_only_pass_is_none_of_a_steps, forget),
        cmocka_unit_test_teardown(stalls_alike_are_one_series_with_its_longest, forget),
        cmocka_unit_test_teardown(an_op_is_slow_by_its_own_median, forget),
        cmocka_unit_test_teardown(a_full_stream_is_told, forget),
        cmocka_unit_test_teardown(memory_that_runs_out_is_told, forget),
    };
    return cmocka_run_group_tests(tests, folder_make, folder_remove);
}
