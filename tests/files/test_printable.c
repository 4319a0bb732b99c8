/* Text from files, made printable for messages. */
#include "base/text.h"
#include "tests/support/assert_ok.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = sizeof(tide_printable_text) - 1 };

static void control_characters_become_question_marks(void **unused)
{
    static const char *const cases[][2] = {
        {"", ""},
        {"plain \xc3\xa9", "plain \xc3\xa9"}, /* unchanged */
        {"a\nb\r\tc\x7f", "a?b??c?"},
        {"evil\x1b[31m", "evil?[31m"},
        {"\xc2\x9b"
         "31m\xc2\x80\xc2\x9f",
         "?31m??"},
        /* Letters of two bytes, not control characters. */
        {"\xc2\xa0\xc3\x80\xc3\x9f", "\xc2\xa0\xc3\x80\xc3\x9f"},
        {"\xc2", "\xc2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_string_equal(tide_printable(cases[i][0]).text, cases[i][1]);
        assert_int_equal(tide_is_printable(cases[i][0]), strcmp(cases[i][0], cases[i][1]) == 0);
    }
}

static void long_text_is_cut_at_a_character(void **unused)
{
    char text[2 * MOST + 1];
    memset(text, 'x', sizeof text);
    text[MOST] = '\0';
    assert_string_equal(tide_printable(text).text, text);
    text[MOST] = 'x';
    text[MOST + 1] = '\0';
    const tide_printable_text cut = tide_printable(text);
    assert_int_equal(strlen(cut.text), MOST);
    assert_memory_equal(cut.text, text, MOST - 3);
    assert_string_equal(cut.text + MOST - 3, "...");
    memcpy(text + MOST - 5, "\xe2\x82\xac", 3); /* this letter's last byte is where the dots begin */
    assert_string_equal(tide_printable(text).text + MOST - 5, "...");
    memset(text, '\x80', MOST + 1); /* not UTF-8 */
    assert_int_equal(strlen(tide_printable(text).text), MOST - 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_characters_become_question_marks),
        cmocka_unit_test(long_text_is_cut_at_a_character),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
