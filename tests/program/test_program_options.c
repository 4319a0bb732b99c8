/* The option parser and the parsers of numbers and sizes: the values that they read, and the exact message
 * of each refusal. */
#include "tests/support/assert_ok.h"
#include "tools/options.h"
#include "tools/units.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct values {
    uint64_t steps;
    uint32_t threads, behind;
    uint64_t memory;
    double rate;
    double lr;
    int dtype;
    bool prefetch;
    bool resume;
    const char *data;
    tide_option_texts words;
} values;

/* The row of an option whose value goes to `member` of `type`. */
#define OPTION(type, option, option_kind, member, ...)                                                       \
    {                                                                                                        \
        .name = option, .kind = TIDE_OPTION_##option_kind, .offset = offsetof(type, member), __VA_ARGS__     \
    }

static const tide_option options[] = {
    {.help = "a group"},
    OPTION(values, "--steps", COUNT, steps, .metavar = "N", .least = 1, .most = 100, .value = "10",
           .help = "how long"),
    OPTION(values, "--threads", COUNT32, threads, .metavar = "N", .least = 1, .most = 4294967295.0,
           .help = "how many"),
    OPTION(values, "--memory", SIZE, memory, .metavar = "SIZE", .help = "budget"),
    OPTION(values, "--rate", RATE, rate, .metavar = "SIZE/s", .help = "link"),
    OPTION(values, "--lr", REAL, lr, .metavar = "X", .value = "6e-4", .help = "rate"),
    OPTION(values, "--dtype", CHOICE, dtype, .metavar = "bf16|fp32", .value = "fp32", .help = "type"),
    OPTION(values, "--prefetch", SWITCH, prefetch, .value = "on", .help = "early"),
    OPTION(values, "--resume", FLAG, resume, .help = "go on"),
    OPTION(values, "--data", TEXT, data, .metavar = "PATH", .required = true, .help = "text"),
    OPTION(values, "--word", TEXTS, words, .metavar = "WORD", .value_help = "none", .help = "some"),
};

static const tide_option_table table = {.command = "test",
                                        .summary = "usage: test",
                                        .options = options,
                                        .count = sizeof options / sizeof options[0]};

/* Parses words that end with NULL. */
static tide_status parse_by(const tide_option_table *by, void *result, const char *const *words)
{
    char *arguments[16];
    int count = 0;
    for (; words[count] != NULL; count++)
        arguments[count] = (char *)(uintptr_t)words[count];
    return tide_options_parse(by, count, arguments, result, NULL);
}

static tide_status parse(values *result, const char *const *words)
{
    *result = (values){0};
    return parse_by(&table, result, words);
}

#define PARSE(result, ...) parse(result, (const char *const[]){__VA_ARGS__, NULL})

static void refused(const char *part, const char *const *words)
{
    values result;
    assert_int_equal(parse(&result, words), TIDE_ERROR_ARGUMENT);
    if (strstr(tide_message(), part) == NULL)
        fail_msg("the message is \"%s\", without \"%s\"", tide_message(), part);
    assert_null(strchr(tide_message(), '\n'));
}

#define REFUSED(part, ...) refused(part, (const char *const[]){__VA_ARGS__, NULL})

static void assert_size(const char *text, uint64_t bytes)
{
    uint64_t read = 0;
    if (!tide_size_parse(text, &read) || read != bytes)
        fail_msg("\"%s\" was read as %llu bytes", text, (unsigned long long)read);
}

static void sizes_are_read_exactly(void **state)
{
    assert_size("0", 0);
    assert_size("4096", 4096);
    assert_size("8GiB", 8ull << 30);
    assert_size("500MB", 500000000);
    assert_size("1.5KiB", 1536);
    assert_size("0.1GB", 100000000);
    assert_size("1tib", 1ull << 40);
    assert_size("12 kB", 12000);
    assert_size("7B", 7);
    assert_size("0.50MiB", 524288);
}

static void assert_no_sizes(const char *const *texts)
{
    uint64_t bytes = 77;
    for (; *texts != NULL; texts++)
        if (tide_size_parse(*texts, &bytes))
            fail_msg("\"%s\" was read as %llu bytes", *texts, (unsigned long long)bytes);
    assert_int_equal(bytes, 77);
}

#define NO_SIZES(...) assert_no_sizes((const char *const[]){__VA_ARGS__, NULL})

static void what_is_no_size_is_refused_and_changes_nothing(void **state)
{
    NO_SIZES("", "MiB", "-1", "64M", "64 MiB x", "0x10", "1e6", "1..5MB", "1.5B", "0.1", "1.5.2", "64MiBs",
             ".", "9999999TiB", "1/s", "+4", "99999999999999999999");
}

static void sizes_are_written_as_people_and_parsers_want(void **state)
{
    char text[TIDE_UNITS_TEXT_BYTES];
    uint64_t back;
    assert_string_equal(tide_size_format(512, text), "512 B");
    assert_string_equal(tide_size_format(68681728, text), "65.5 MiB");
    assert_string_equal(tide_size_format(64ull << 20, text), "64 MiB");
    assert_string_equal(tide_size_format((1ull << 20) - 1, text), "1.0 MiB");
    assert_string_equal(tide_count_format(4902144, text), "4,902,144");
    assert_string_equal(tide_count_format(7, text), "7");
    assert_string_equal(tide_count_noun(0, "step", text), "0 steps");
    assert_string_equal(tide_count_noun(1, "micro-batch", text), "1 micro-batch");
    assert_string_equal(tide_count_noun(12, "micro-batch", text), "12 micro-batches");
    assert_string_equal(tide_size_format_exact(1048577, text), "1048577");
    assert_true(tide_size_parse(tide_size_format_exact(3ull << 30, text), &back));
    assert_int_equal(back, 3ull << 30);
}

static void defaults_stand_until_said_otherwise(void **state)
{
    values result;
    assert_int_equal(PARSE(&result, "--data", "x"), TIDE_OK);
    assert_int_equal(result.steps, 10);
    assert_true(result.lr == 6e-4);
    assert_int_equal(result.dtype, 1);
    assert_true(result.prefetch);
    assert_false(result.resume);
    assert_int_equal(result.memory, 0);
}

static void every_kind_takes_its_values(void **state)
{
    values result;
    assert_int_equal(PARSE(&result, "--data=text", "--steps", "100", "--memory=2GiB", "--rate", "25GB/s",
                           "--lr", "1e-3", "--dtype", "bf16", "--prefetch", "off", "--resume"),
                     TIDE_OK);
    assert_string_equal(result.data, "text");
    assert_int_equal(result.steps, 100);
    assert_int_equal(result.memory, 2ull << 30);
    assert_true(result.rate == 25e9);
    assert_true(result.lr == 1e-3);
    assert_int_equal(result.dtype, 0);
    assert_false(result.prefetch);
    assert_true(result.resume);
    result.behind = UINT32_MAX; /* a value of 64 bits would reach it */
    assert_int_equal(parse_by(&table, &result, (const char *const[]){"--data=text", "--threads", "7", NULL}),
                     TIDE_OK);
    assert_true(result.threads == 7 && result.behind == UINT32_MAX);
    REFUSED("--threads 4294967296: out of range", "--data=text", "--threads", "4294967296");
}

/* A command with operands: two files, of which the second may be left out. */
typedef struct operands {
    const char *first, *second;
    bool quick;
} operands;

static const tide_option operand_options[] = {
    OPTION(operands, "FILE", TEXT, first, .operand = true, .required = true, .help = "a file"),
    OPTION(operands, "OTHER", TEXT, second, .operand = true, .help = "another"),
    OPTION(operands, "--quick", FLAG, quick, .help = "hurry"),
};

static const tide_option_table operand_table = {.command = "test",
                                                .summary = "usage: test FILE [OTHER]",
                                                .options = operand_options,
                                                .count = sizeof operand_options / sizeof operand_options[0]};

static tide_status operands_parse(operands *result, const char *const *words)
{
    *result = (operands){0};
    return parse_by(&operand_table, result, words);
}

#define OPERANDS(result, ...) operands_parse(result, (const char *const[]){__VA_ARGS__, NULL})

static void operands_are_taken_in_order_wherever_they_stand(void **state)
{
    operands result;
    assert_int_equal(OPERANDS(&result, "a", "--quick", "b"), TIDE_OK);
    assert_string_equal(result.first, "a");
    assert_string_equal(result.second, "b");
    assert_true(result.quick);
    assert_int_equal(OPERANDS(&result, "-"), TIDE_OK);
    assert_string_equal(result.first, "-");
    assert_null(result.second);
    assert_int_equal(OPERANDS(&result, "--", "--quick", "--"), TIDE_OK);
    assert_string_equal(result.first, "--quick");
    assert_string_equal(result.second, "--");
    assert_false(result.quick);
}

static void operands_that_make_no_sense_are_refused(void **state)
{
    operands result;
    assert_int_equal(OPERANDS(&result, "--quick"), TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), "test: FILE is required (a file)");
    assert_int_equal(OPERANDS(&result, "a", "b", "c"), TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), "test: 'c' is one too many (see test --help)");
    assert_int_equal(OPERANDS(&result, "a", "--fil"), TIDE_ERROR_ARGUMENT);
    assert_string_equal(tide_message(), "test: unknown option --fil (see test --help)");
    assert_int_equal(OPERANDS(&result, "a", "FILE=b", ""), TIDE_ERROR_ARGUMENT);
}

static void what_stands_behind_two_dashes_asks_for_nothing(void **state)
{
    char *arguments[] = {"a", "--", "--help"};
    assert_false(tide_options_asked(3, arguments, "--help"));
    assert_true(tide_options_asked(3, arguments, "a"));
}

static void assert_joined(const tide_option_texts *texts, const char *wanted)
{
    char *joined = tide_option_texts_join(texts);
    assert_string_equal(joined, wanted);
    free(joined);
}

static void an_option_of_many_texts_takes_them_in_their_order(void **state)
{
    values result;
    assert_int_equal(PARSE(&result, "--data", "x"), TIDE_OK);
    assert_int_equal(result.words.count, 0);
    assert_joined(&result.words, "");
    assert_int_equal(PARSE(&result, "--word", "b*", "--data", "x", "--word=a", "--word", "a"), TIDE_OK);
    assert_int_equal(result.words.count, 3);
    assert_string_equal(result.words.items[0], "b*");
    assert_string_equal(result.words.items[1], "a");
    assert_joined(&result.words, "b* a a");
    REFUSED("--word (empty): must not be empty", "--data", "x", "--word", "a", "--word=");
    REFUSED("--word needs a value (WORD)", "--data", "x", "--word", "--word");
}

static void an_option_of_many_texts_takes_no_more_than_there_is_room_for(void **state)
{
    char *arguments[2 + TIDE_OPTION_TEXTS_MAX + 1] = {"--data", "x"};
    values result = {0};
    for (int i = 2; i < 2 + TIDE_OPTION_TEXTS_MAX + 1; i++)
        arguments[i] = "--word=a";
    assert_int_equal(tide_options_parse(&table, 2 + TIDE_OPTION_TEXTS_MAX, arguments, &result, NULL),
                     TIDE_OK);
    assert_int_equal(result.words.count, TIDE_OPTION_TEXTS_MAX);
    result = (values){0};
    assert_int_equal(tide_options_parse(&table, 2 + TIDE_OPTION_TEXTS_MAX + 1, arguments, &result, NULL),
                     TIDE_ERROR_ARGUMENT);
    assert_non_null(strstr(tide_message(), "--word is given more than 64 times"));
}

static void a_slip_is_answered_with_the_nearest_option(void **state)
{
    REFUSED("unknown option --setps; did you mean --steps?", "--setps", "3");
    REFUSED("unknown option --memroy; did you mean --memory?", "--memroy=3");
    REFUSED("unknown option --prefech; did you mean --prefetch?", "--prefech");
    REFUSED("unknown option --frobnicate (see", "--frobnicate");
    /* Only the dashes agree with --lr, which is too little for a suggestion. */
    REFUSED("unknown option --frob (see", "--frob");
    REFUSED("unknown option --moment (see", "--moment");
    REFUSED("'train' is no option", "train");
}

static void bad_values_are_refused_with_what_would_be_right(void **state)
{
    REFUSED("--steps 101: out of range, must be 1 to 100", "--steps", "101");
    REFUSED("--steps 0: out of range", "--steps", "0");
    REFUSED("--steps -3: not a whole number", "--steps", "-3");
    REFUSED("--steps 3x: not a whole number", "--steps", "3x");
    REFUSED("--steps 99999999999999999999999: out of range", "--steps", "99999999999999999999999");
    REFUSED("--memory 3parsec: not a size", "--memory", "3parsec");
    REFUSED("--rate fast: not a rate", "--rate", "fast");
    REFUSED("--lr nan: not a number", "--lr", "nan");
    REFUSED("--lr 1e-3x: not a number", "--lr", "1e-3x");
    REFUSED("--dtype fp8: must be one of bf16|fp32", "--dtype", "fp8");
    REFUSED("--dtype bf: must be one of", "--dtype", "bf");
    REFUSED("--prefetch maybe: must be on or off", "--prefetch", "maybe");
    REFUSED("--data (empty): must not be empty", "--data", "");
}

static void missing_and_surplus_words_are_refused(void **state)
{
    REFUSED("--steps needs a value (N)", "--data", "x", "--steps");
    REFUSED("--steps needs a value (N)", "--steps", "--resume");
    REFUSED("--resume takes no value", "--resume=yes");
    REFUSED("--steps is given twice", "--steps", "1", "--steps", "2");
    REFUSED("--data PATH is required", "--steps", "1");
}

static void help_names_every_option_its_range_and_default(void **state)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    tide_options_help(&table, out);
    fclose(out);
    for (size_t i = 0; i < table.count; i++)
        assert_non_null(strstr(text, options[i].name != NULL ? options[i].name : options[i].help));
    assert_non_null(strstr(text, "[1 to 100] (default: 10)"));
    assert_non_null(strstr(text, "(required)"));
    assert_non_null(strstr(text, "some (repeatable) (default: none)"));
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_are_read_exactly),
        cmocka_unit_test(what_is_no_size_is_refused_and_changes_nothing),
        cmocka_unit_test(sizes_are_written_as_people_and_parsers_want),
        cmocka_unit_test(defaults_stand_until_said_otherwise),
        cmocka_unit_test(every_kind_takes_its_values),
        cmocka_unit_test(an_option_of_many_texts_takes_them_in_their_order),
        cmocka_unit_test(an_option_of_many_texts_takes_no_more_than_there_is_room_for),
        cmocka_unit_test(a_slip_is_answered_with_the_nearest_option),
        cmocka_unit_test(bad_values_are_refused_with_what_would_be_right),
        cmocka_unit_test(missing_and_surplus_words_are_refused),
        cmocka_unit_test(operands_are_taken_in_order_wherever_they_stand),
        cmocka_unit_test(operands_that_make_no_sense_are_refused),
        cmocka_unit_test(what_stands_behind_two_dashes_asks_for_nothing),
        cmocka_unit_test(help_names_every_option_its_range_and_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
