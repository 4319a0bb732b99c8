/* Parsing of command lines and help texts; the contract is in options.h. */
#include "tools/options.h"

#include "base/minmax.h"
#include "tools/units.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- similar words ---- */

enum { WORD_MAX = 63 };

size_t tide_word_distance(const char *a, const char *b)
{
    size_t rows[3][WORD_MAX + 1];
    size_t *before_last = rows[0], *last = rows[1], *row = rows[2];
    size_t a_length = strlen(a), b_length = strlen(b);
    if (a_length > WORD_MAX || b_length > WORD_MAX)
        return SIZE_MAX;
    for (size_t j = 0; j <= b_length; j++)
        last[j] = j;
    for (size_t i = 1; i <= a_length; i++) {
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            row[j] =
                tide_min_u64(tide_min_u64(last[j], row[j - 1]) + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = tide_min_u64(row[j], before_last[j - 2] + 1);
        }
        size_t *oldest = before_last;
        before_last = last, last = row, row = oldest;
    }
    return last[b_length];
}

/* Strips leading dashes: with them all options would look more similar to each other than they are. */
static const char *bare_word(const char *word)
{
    return word + strspn(word, "-");
}

/* How many letters may differ from a name for a word to count as a misspelling of it. */
static size_t slips_most(const char *bare)
{
    return 1 + strlen(bare) / 6;
}

bool tide_word_is_nearer(const char *word, const char *name, size_t *distance)
{
    const char *bare = bare_word(word);
    size_t found = tide_word_distance(bare, bare_word(name));
    if (found > slips_most(bare) || found >= *distance)
        return false;
    *distance = found;
    return true;
}

const char *tide_options_nearest(const tide_option_table *table, const char *word)
{
    const char *nearest = NULL;
    size_t distance = SIZE_MAX;
    for (size_t i = 0; i < table->count; i++)
        if (table->options[i].name != NULL && !table->options[i].operand &&
            tide_word_is_nearer(word, table->options[i].name, &distance))
            nearest = table->options[i].name;
    return nearest;
}

/* ---- one value ---- */

static tide_status bad_value(const tide_option_table *table, const tide_option *option, const char *text,
                             const char *want)
{
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s %s: %s", table->command, option->name,
                     *text == '\0' ? "(empty)" : text, want);
}

static bool has_range(const tide_option *option)
{
    return option->least != 0 || option->most != 0;
}

/* Help and messages do not mention an upper bound above this one, which only keeps numbers inside their
 * type. */
#define TELLING_BOUND 1e12

enum { RANGE_TEXT_BYTES = 3 * TIDE_UNITS_TEXT_BYTES };

static const char *bound_write(const tide_option *option, double bound, char text[TIDE_UNITS_TEXT_BYTES])
{
    bool size = option->kind == TIDE_OPTION_SIZE || option->kind == TIDE_OPTION_RATE;
    if (size)
        return tide_size_format_exact((uint64_t)bound, text);
    snprintf(text, TIDE_UNITS_TEXT_BYTES, "%.10g", bound);
    return text;
}

static void range_write(const tide_option *option, char *text, size_t bytes)
{
    char least[TIDE_UNITS_TEXT_BYTES], most[TIDE_UNITS_TEXT_BYTES];
    bound_write(option, option->least, least);
    if (option->most >= TELLING_BOUND)
        snprintf(text, bytes, "at least %s", least);
    else
        snprintf(text, bytes, "%s to %s", least, bound_write(option, option->most, most));
}

static tide_status range_check(const tide_option_table *table, const tide_option *option, const char *text,
                               double value)
{
    char range[RANGE_TEXT_BYTES], want[128];
    if (!has_range(option) || (value >= option->least && value <= option->most))
        return TIDE_OK;
    range_write(option, range, sizeof range);
    if (value > option->most && option->most >= TELLING_BOUND)
        return bad_value(table, option, text, "larger than anything");
    snprintf(want, sizeof want, "out of range, must be %s", range);
    return bad_value(table, option, text, want);
}

static tide_status count_parse(const tide_option_table *table, const tide_option *option, const char *text,
                               uint64_t *value)
{
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end != '\0')
        return bad_value(table, option, text, "not a whole number");
    tide_status status = range_check(table, option, text, errno == ERANGE ? HUGE_VAL : (double)number);
    if (status == TIDE_OK)
        *value = number;
    return status;
}

static tide_status count32_parse(const tide_option_table *table, const tide_option *option, const char *text,
                                 uint32_t *value)
{
    uint64_t number = 0;
    assert(option->most > 0 && option->most <= UINT32_MAX);
    const tide_status status = count_parse(table, option, text, &number);
    if (status == TIDE_OK)
        *value = (uint32_t)number;
    return status;
}

static tide_status real_parse(const tide_option_table *table, const tide_option *option, const char *text,
                              double *value)
{
    char *end = NULL;
    double number = strtod(text, &end);
    if (end == text || *end != '\0' || !isfinite(number))
        return bad_value(table, option, text, "not a number");
    tide_status status = range_check(table, option, text, number);
    if (status == TIDE_OK)
        *value = number;
    return status;
}

static tide_status size_parse(const tide_option_table *table, const tide_option *option, const char *text,
                              uint64_t *value)
{
    uint64_t bytes = 0;
    if (!tide_size_parse(text, &bytes))
        return bad_value(table, option, text, "not a size; write it like 64MiB, 8GiB, 500MB or in bytes");
    tide_status status = range_check(table, option, text, (double)bytes);
    if (status == TIDE_OK)
        *value = bytes;
    return status;
}

static tide_status rate_parse(const tide_option_table *table, const tide_option *option, const char *text,
                              double *value)
{
    double rate = 0;
    if (!tide_rate_parse(text, &rate))
        return bad_value(table, option, text, "not a rate; write it like 25GB/s or 500MiB/s");
    tide_status status = range_check(table, option, text, rate);
    if (status == TIDE_OK)
        *value = rate;
    return status;
}

static tide_status choice_parse(const tide_option_table *table, const tide_option *option, const char *text,
                                int *value)
{
    char want[160];
    int index = 0;
    for (const char *choice = option->metavar; choice != NULL; index++) {
        size_t length = strcspn(choice, "|");
        if (strlen(text) == length && strncmp(choice, text, length) == 0) {
            *value = index;
            return TIDE_OK;
        }
        choice = choice[length] == '|' ? choice + length + 1 : NULL;
    }
    snprintf(want, sizeof want, "must be one of %s", option->metavar);
    return bad_value(table, option, text, want);
}

static tide_status switch_parse(const tide_option_table *table, const tide_option *option, const char *text,
                                bool *value)
{
    if (strcmp(text, "on") != 0 && strcmp(text, "off") != 0)
        return bad_value(table, option, text, "must be on or off");
    *value = text[1] == 'n';
    return TIDE_OK;
}

static tide_status texts_parse(const tide_option_table *table, const tide_option *option, const char *text,
                               tide_option_texts *texts)
{
    if (*text == '\0')
        return bad_value(table, option, text, "must not be empty");
    if (texts->count == TIDE_OPTION_TEXTS_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s is given more than %d times", table->command,
                         option->name, TIDE_OPTION_TEXTS_MAX);
    texts->items[texts->count++] = text;
    return TIDE_OK;
}

static tide_status value_parse(const tide_option_table *table, const tide_option *option, const char *text,
                               void *values)
{
    void *field = (char *)values + option->offset;
    switch (option->kind) {
    case TIDE_OPTION_SWITCH:
        return switch_parse(table, option, text, field);
    case TIDE_OPTION_CHOICE:
        return choice_parse(table, option, text, field);
    case TIDE_OPTION_COUNT:
        return count_parse(table, option, text, field);
    case TIDE_OPTION_COUNT32:
        return count32_parse(table, option, text, field);
    case TIDE_OPTION_REAL:
        return real_parse(table, option, text, field);
    case TIDE_OPTION_SIZE:
        return size_parse(table, option, text, field);
    case TIDE_OPTION_RATE:
        return rate_parse(table, option, text, field);
    case TIDE_OPTION_TEXT:
        if (*text == '\0')
            return bad_value(table, option, text, "must not be empty");
        *(const char **)field = text;
        return TIDE_OK;
    case TIDE_OPTION_TEXTS:
        return texts_parse(table, option, text, field);
    case TIDE_OPTION_FLAG:
        break;
    }
    *(bool *)field = true;
    return TIDE_OK;
}

/* ---- the command line ---- */

/* Finds the option that an argument names; the name ends at "=". NULL: none. */
static const tide_option *option_find(const tide_option_table *table, const char *argument)
{
    size_t length = strcspn(argument, "=");
    for (size_t i = 0; i < table->count; i++) {
        const char *name = table->options[i].name;
        if (name != NULL && !table->options[i].operand && strlen(name) == length &&
            strncmp(name, argument, length) == 0)
            return &table->options[i];
    }
    return NULL;
}

static bool has_operands(const tide_option_table *table)
{
    for (size_t i = 0; i < table->count; i++)
        if (table->options[i].operand)
            return true;
    return false;
}

/* Whether the argument is an operand's value. Where the table has no operand such an argument is a mistake,
 * which unknown_option reports. */
static bool is_operand(const tide_option_table *table, const char *argument)
{
    return (argument[0] != '-' || argument[1] == '\0') && has_operands(table);
}

/* Stores the argument as the value of the first operand that has none yet. */
static tide_status operand_read(const tide_option_table *table, const char *argument, void *values,
                                bool *given)
{
    for (size_t i = 0; i < table->count; i++) {
        const tide_option *option = &table->options[i];
        if (!option->operand || (given[i] && option->kind != TIDE_OPTION_TEXTS))
            continue;
        given[i] = true;
        return value_parse(table, option, argument, values);
    }
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s: '%s' is one too many (see %s --help)", table->command,
                     argument, table->command);
}

static tide_status unknown_option(const tide_option_table *table, const char *argument)
{
    if (argument[0] != '-')
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "%s: '%s' is no option; every value follows its --option (see %s --help)",
                         table->command, argument, table->command);
    char word[WORD_MAX + 1];
    snprintf(word, sizeof word, "%.*s", (int)strcspn(argument, "="), argument);
    const char *nearest = tide_options_nearest(table, word);
    if (nearest == NULL)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: unknown option %s (see %s --help)", table->command, word,
                         table->command);
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s: unknown option %s; did you mean %s?", table->command, word,
                     nearest);
}

/* Reads the option at arguments[*at]. If its value is the next argument, increments *at. */
static tide_status option_read(const tide_option_table *table, int count, char *const *arguments, int *at,
                               void *values, bool *given)
{
    const char *argument = arguments[*at];
    const tide_option *option = option_find(table, argument);
    if (option == NULL)
        return unknown_option(table, argument);
    if (given[option - table->options] && option->kind != TIDE_OPTION_TEXTS)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s is given twice", table->command, option->name);
    given[option - table->options] = true;
    const char *equals = strchr(argument, '=');
    if (option->kind == TIDE_OPTION_FLAG) {
        if (equals != NULL)
            return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s takes no value", table->command, option->name);
        return value_parse(table, option, "", values);
    }
    if (equals != NULL)
        return value_parse(table, option, equals + 1, values);
    if (*at + 1 >= count || strncmp(arguments[*at + 1], "--", 2) == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s needs a value (%s)", table->command, option->name,
                         option->metavar != NULL ? option->metavar : "on|off");
    *at += 1;
    return value_parse(table, option, arguments[*at], values);
}

void tide_options_default(const tide_option_table *table, void *values)
{
    for (size_t i = 0; i < table->count; i++) {
        const tide_option *option = &table->options[i];
        if (option->name == NULL || option->value == NULL)
            continue;
        tide_status status = value_parse(table, option, option->value, values);
        assert(status == TIDE_OK && "a default is a value that the option takes");
        (void)status;
    }
}

static tide_status required_check(const tide_option_table *table, const bool *given)
{
    for (size_t i = 0; i < table->count; i++) {
        const tide_option *option = &table->options[i];
        if (option->required && !given[i])
            return tide_fail(TIDE_ERROR_ARGUMENT, "%s: %s%s%s is required (%s)", table->command, option->name,
                             option->operand ? "" : " ", option->operand ? "" : option->metavar,
                             option->help);
    }
    return TIDE_OK;
}

tide_status tide_options_parse(const tide_option_table *table, int count, char *const *arguments,
                               void *values, bool *given)
{
    bool seen[TIDE_OPTIONS_MAX] = {false};
    assert(table->count <= TIDE_OPTIONS_MAX);
    tide_options_default(table, values);
    tide_status status = TIDE_OK;
    bool operands_only = false;
    for (int i = 0; i < count && status == TIDE_OK; i++) {
        if (!operands_only && has_operands(table) && strcmp(arguments[i], "--") == 0)
            operands_only = true;
        else if (operands_only || is_operand(table, arguments[i]))
            status = operand_read(table, arguments[i], values, seen);
        else
            status = option_read(table, count, arguments, &i, values, seen);
    }
    if (status == TIDE_OK)
        status = required_check(table, seen);
    if (status == TIDE_OK && given != NULL)
        memcpy(given, seen, table->count * sizeof *given);
    return status;
}

bool tide_options_given(const tide_option_table *table, const bool *given, const char *name)
{
    for (size_t i = 0; i < table->count; i++)
        if (table->options[i].name != NULL && strcmp(table->options[i].name, name) == 0)
            return given[i];
    return false;
}

const char *tide_option_table_name(const tide_option_table *table)
{
    const char *blank = strrchr(table->command, ' ');
    return blank != NULL ? blank + 1 : table->command;
}

bool tide_options_asked(int count, char *const *arguments, const char *name)
{
    for (int i = 0; i < count && strcmp(arguments[i], "--") != 0; i++)
        if (strcmp(arguments[i], name) == 0)
            return true;
    return false;
}

char *tide_option_texts_join(const tide_option_texts *texts)
{
    size_t bytes = 1;
    for (uint32_t i = 0; i < texts->count; i++)
        bytes += strlen(texts->items[i]) + 1;
    char *joined = malloc(bytes), *end = joined;
    if (joined == NULL)
        return NULL;
    *end = '\0';
    for (uint32_t i = 0; i < texts->count; i++) {
        end = stpcpy(end, i > 0 ? " " : "");
        end = stpcpy(end, texts->items[i]);
    }
    return joined;
}

/* ---- help ---- */

const char *tide_option_metavar(const tide_option *option)
{
    return option->kind == TIDE_OPTION_SWITCH ? "on|off" : option->metavar;
}

void tide_option_tell(const tide_option *option, FILE *out)
{
    char range[RANGE_TEXT_BYTES];
    const char *value = option->value != NULL ? option->value : option->value_help;
    fputs(option->help, out);
    if (option->required)
        fputs(" (required)", out);
    if (option->kind == TIDE_OPTION_TEXTS)
        fputs(" (repeatable)", out);
    if (has_range(option) && (option->least > 1 || option->most < TELLING_BOUND)) {
        range_write(option, range, sizeof range);
        fprintf(out, " [%s]", range);
    }
    if (value != NULL)
        fprintf(out, " (default: %s)", value);
}

static void option_help(const tide_option *option, FILE *out)
{
    char head[96];
    const char *metavar = tide_option_metavar(option);
    snprintf(head, sizeof head, "  %s%s%s", option->name, metavar != NULL ? " " : "",
             metavar != NULL ? metavar : "");
    fprintf(out, strlen(head) > 38 ? "%s\n%39s" : "%-38s%s", head, strlen(head) > 38 ? "" : " ");
    tide_option_tell(option, out);
    fputc('\n', out);
}

void tide_options_help(const tide_option_table *table, FILE *out)
{
    fprintf(out, "%s\n", table->summary);
    for (size_t i = 0; i < table->count; i++) {
        if (table->options[i].name == NULL)
            fprintf(out, "\n%s\n", table->options[i].help);
        else
            option_help(&table->options[i], out);
    }
}
