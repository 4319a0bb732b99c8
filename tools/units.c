/* Sizes with decimals are parsed as integers, so that "0.1GB" is exactly 100000000 and a size that includes a
 * fraction of a byte is refused. With doubles neither would hold. */
#include "tools/units.h"

#include <assert.h>
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct unit {
    const char *name;
    uint64_t bytes;
} unit;

static const unit units[] = {
    {"", 1},
    {"B", 1},
    {"kB", 1000},
    {"MB", 1000000},
    {"GB", 1000000000},
    {"TB", 1000000000000},
    {"KiB", 1ull << 10},
    {"MiB", 1ull << 20},
    {"GiB", 1ull << 30},
    {"TiB", 1ull << 40},
};

enum { UNITS = sizeof units / sizeof units[0], DIGITS_MAX = 18, DECIMALS_MAX = 12 };

static const unit *unit_find(const char *name, size_t length)
{
    for (size_t i = 0; i < UNITS; i++)
        if (strlen(units[i].name) == length && strncasecmp(units[i].name, name, length) == 0)
            return &units[i];
    return NULL;
}

/* Reads digits with at most one point: the value is *number / 10^*decimals. Returns the end of the digits;
 * NULL if there are none or too many. */
static const char *decimal_read(const char *text, uint64_t *number, unsigned *decimals)
{
    unsigned digits = 0;
    bool point = false;
    *number = 0, *decimals = 0;
    for (; isdigit((unsigned char)*text) || (*text == '.' && !point); text++) {
        if (*text == '.') {
            point = true;
            continue;
        }
        *number = *number * 10 + (uint64_t)(*text - '0');
        *decimals += point;
        if (++digits > DIGITS_MAX || *decimals > DECIMALS_MAX)
            return NULL;
    }
    return digits > 0 ? text : NULL;
}

/* Reads a size from the first `length` characters. */
static bool size_read(const char *text, size_t length, uint64_t *bytes)
{
    uint64_t number = 0;
    unsigned decimals = 0;
    const char *end = decimal_read(text, &number, &decimals);
    if (end == NULL || end > text + length)
        return false;
    while (*end == ' ')
        end++;
    const unit *found = end <= text + length ? unit_find(end, (size_t)(text + length - end)) : NULL;
    if (found == NULL)
        return false;
    unsigned __int128 product = (unsigned __int128)number * found->bytes;
    for (; decimals > 0; decimals--) {
        if (product % 10 != 0)
            return false;
        product /= 10;
    }
    if (product >> 63 != 0)
        return false;
    *bytes = (uint64_t)product;
    return true;
}

bool tide_size_parse(const char *text, uint64_t *bytes)
{
    return size_read(text, strlen(text), bytes);
}

bool tide_rate_parse(const char *text, double *bytes_per_second)
{
    size_t length = strlen(text);
    uint64_t bytes = 0;
    if (length >= 2 && strcmp(text + length - 2, "/s") == 0)
        length -= 2;
    if (!size_read(text, length, &bytes))
        return false;
    *bytes_per_second = (double)bytes;
    return true;
}

const char *tide_size_format(uint64_t bytes, char text[TIDE_UNITS_TEXT_BYTES])
{
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t step = 0;
    double value = (double)bytes;
    for (; value >= 1023.95 && step + 1 < sizeof names / sizeof names[0]; step++)
        value /= 1024;
    bool whole = step == 0 || value == (double)(uint64_t)value;
    (void)snprintf(text, TIDE_UNITS_TEXT_BYTES, "%.*f %s", whole ? 0 : 1, value, names[step]);
    return text;
}

const char *tide_size_format_exact(uint64_t bytes, char text[TIDE_UNITS_TEXT_BYTES])
{
    static const char *const names[] = {"", "KiB", "MiB", "GiB", "TiB"};
    size_t step = 0;
    for (; bytes != 0 && bytes % 1024 == 0 && step + 1 < sizeof names / sizeof names[0]; step++)
        bytes /= 1024;
    (void)snprintf(text, TIDE_UNITS_TEXT_BYTES, "%" PRIu64 "%s", bytes, names[step]);
    return text;
}

const char *tide_count_noun(uint64_t count, const char *noun, char text[TIDE_UNITS_TEXT_BYTES])
{
    size_t length = strlen(noun);
    bool hissing = length >= 2 && strcmp(noun + length - 2, "ch") == 0;
    (void)snprintf(text, TIDE_UNITS_TEXT_BYTES, "%" PRIu64 " %s%s", count, noun,
                   count == 1 ? "" : (hissing ? "es" : "s"));
    return text;
}

const char *tide_count_format(uint64_t count, char text[TIDE_UNITS_TEXT_BYTES])
{
    char digits[TIDE_UNITS_TEXT_BYTES];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count);
    size_t written = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            text[written++] = ',';
        text[written++] = digits[i];
    }
    assert(written < TIDE_UNITS_TEXT_BYTES);
    text[written] = '\0';
    return text;
}
