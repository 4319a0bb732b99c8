/* Memory that runs out while a trace is drawn or compared with another: whichever request fails, the call
 * returns NO_MEMORY. test_trace_perfetto.py and test_trace_diff.py check the results. */
#include "tests/support/assert_ok.h"
#include "tests/support/fake_memory.h"
#include "tools/trace/trace_compare.h"
#include "tools/trace/trace_picture.h"
#include "trace_lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static tide_trace_model *model;
static FILE *nowhere;

static int model_read(void **state)
{
    (void)state;
    char path[] = "/tmp/tidepool-compare-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, TRACE_WHOLE, strlen(TRACE_WHOLE)), strlen(TRACE_WHOLE));
    close(file);
    assert_ok(tide_trace_model_read(path, &model));
    unlink(path);
    nowhere = fopen("/dev/null", "wb");
    return nowhere == NULL;
}

static int model_free(void **state)
{
    (void)state;
    tide_trace_model_free(model);
    return fclose(nowhere);
}

static tide_status compare(void)
{
    tide_comparison comparison;
    tide_status status = tide_comparison_make(model, model, &comparison);
    tide_comparison_free(&comparison);
    return status;
}

static tide_status draw(void)
{
    return tide_trace_picture_write(model, nowhere);
}

static void assert_told(tide_status (*work)(void))
{
    bool failed = true;
    unsigned request = 0;
    for (; failed; request++) {
        fake_memory_fail(request);
        tide_status status = work();
        failed = fake_memory_failed();
        fake_memory_clear();
        assert_int_equal(status, failed ? TIDE_ERROR_NO_MEMORY : TIDE_OK);
    }
    assert_true(request > 5);
}

static void a_comparison_tells_that_there_is_no_memory(void **state)
{
    (void)state;
    assert_told(compare);
}

static void a_picture_tells_that_there_is_no_memory(void **state)
{
    (void)state;
    assert_told(draw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_comparison_tells_that_there_is_no_memory),
        cmocka_unit_test(a_picture_tells_that_there_is_no_memory),
    };
    return cmocka_run_group_tests(tests, model_read, model_free);
}
