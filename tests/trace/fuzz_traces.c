/* Reads damaged and hostile traces. The reader must either accept a trace, and then its accounts, names, plot
 * and picture can be made, the picture is JSON, and the run can be played for advice; or refuse it with a
 * message of one line that names the file and the line in it, and set nothing. FUZZ_ROUNDS=1000000 in the
 * environment runs more rounds. */
#include "src/trace/trace_model.h"
#include "tests/support/assert_ok.h"
#include "tests/support/fuzz_text.h"
#include "tests/trace/trace_lines.h"
#include "tools/trace/trace_advice.h"
#include "tools/trace/trace_compare.h"
#include "tools/trace/trace_picture.h"
#include "tools/trace/trace_plot.h"
#include "tools/trace/trace_slow.h"
#include "tools/trace/trace_text.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROUNDS = 20000, ADVICE_EVERY = 50 };

static FILE *nowhere;

static void everything_is_named(const tide_trace_model *model)
{
    char name[TIDE_TEXT_NAME_BYTES];
    for (uint32_t chunk = 0; chunk < model->chunk_count; chunk++)
        assert_true(strlen(tide_chunk_content(model, chunk, chunk, name)) < sizeof name);
    for (uint64_t i = 0; i < model->event_count; i++)
        assert_true(model->events[i].end_ns >= model->events[i].begin_ns);
}

static void everything_is_compared(const tide_trace_steps *steps)
{
    tide_comparison comparison;
    uint32_t chunks[3];
    tide_status status = tide_comparison_make(steps->model, steps->model, &comparison);
    assert_int_equal(status, steps->count > 0 ? TIDE_OK : TIDE_ERROR_ARGUMENT);
    if (status == TIDE_OK)
        assert_int_equal(tide_comparison_chunks(&comparison, chunks, 3), 0);
    tide_comparison_free(&comparison);
}

static void the_picture_is_json(const tide_trace_model *model)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    assert_ok(tide_trace_pictures_write(&model, 1, out));
    assert_int_equal(fclose(out), 0);
    json_t *picture = json_loadb(text, bytes, JSON_DECODE_INT_AS_REAL, NULL);
    assert_true(json_is_array(json_object_get(picture, "traceEvents")));
    json_decref(picture);
    free(text);
}

static void everything_is_made(const tide_trace_model *model, bool advises)
{
    tide_trace_steps steps;
    tide_stall_series longest[3];
    tide_slow_op slow[2];
    uint64_t all = 0;
    uint32_t most[3], count = 0;
    tide_proposal advice;
    everything_is_named(model);
    assert_ok(tide_trace_steps_make(model, &steps));
    assert_ok(tide_trace_longest_stalls(&steps, longest, 3, &count));
    assert_true(count <= 3);
    assert_true(tide_trace_most_moved(&steps, most, 3) <= 3);
    assert_ok(tide_trace_slow_ops(&steps, slow, 2, &all));
    if (model->event_count > 0)
        assert_ok(tide_trace_plot(model, model->events[0].begin_ns,
                                  model->events[model->event_count - 1].begin_ns, nowhere));
    the_picture_is_json(model);
    everything_is_compared(&steps);
    if (advises)
        (void)tide_trace_advise(&steps, &advice);
    tide_trace_steps_free(&steps);
}

static void assert_refusal(tide_status status, const char *path)
{
    const char *message = tide_message();
    size_t length = strlen(path);
    bool named = strncmp(message, path, length) == 0 && message[length] == ':' &&
                 message[length + 1] >= '1' && message[length + 1] <= '9';
    if (status != TIDE_ERROR_ARGUMENT || !named || strchr(message, '\n') != NULL)
        fail_msg("status %s: %s", tide_status_name(status), message);
}

static void fuzz_traces(const char *sound, size_t sound_bytes)
{
    char path[64];
    fuzz run;
    uint64_t accepted = 0, refused = 0;
    int file = memfd_create("trace", 0);
    assert_true(file >= 0);
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    for (uint64_t round = 0; round < fuzz_rounds(ROUNDS); round++) {
        tide_trace_model *model = NULL;
        fuzz_mutate(&run, round, sound, sound_bytes);
        assert_int_equal(ftruncate(file, 0), 0);
        assert_int_equal(pwrite(file, run.text, run.bytes, 0), run.bytes);
        tide_status status = tide_trace_model_read(path, &model);
        accepted += status == TIDE_OK;
        refused += status != TIDE_OK;
        if (status == TIDE_OK)
            everything_is_made(model, round % ADVICE_EVERY == 0);
        else
            assert_refusal(status, path);
        assert_true((status == TIDE_OK) == (model != NULL));
        tide_trace_model_free(model);
    }
    close(file);
    assert_true(accepted > 0 && refused > 0);
}

static void whole_traces(void **unused)
{
    fuzz_traces(TRACE_WHOLE, sizeof TRACE_WHOLE - 1);
}

/* A short trace without tables, so that more of the changed bytes are digits. */
static void events_alone(void **unused)
{
    static const char text[] =
        TRACE_FIRST TRACE_PASS("1", "1000") TRACE_PASS_END("1", "10500") TRACE_STEP("1")
            TRACE_AT("work", "0", "1") TRACE_SPAN("11800", "11900") "\"work\":\"data\"}\n" TRACE_END;
    fuzz_traces(text, sizeof text - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_traces),
        cmocka_unit_test(events_alone),
    };
    nowhere = fopen("/dev/null", "w");
    return nowhere == NULL ? 1 : cmocka_run_group_tests(tests, NULL, NULL);
}
