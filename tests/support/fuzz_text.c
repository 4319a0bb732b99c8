#include "tests/support/fuzz_text.h"

#include "src/data/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *const words[] = {"null",
                                    "true",
                                    "false",
                                    "{}",
                                    "[]",
                                    "\"\"",
                                    "-1",
                                    "0",
                                    "1e999",
                                    "2.5",
                                    "-0.0",
                                    "9223372036854775807",
                                    "18446744073709551616",
                                    "4294967296",
                                    "[0,18446744073709551615]",
                                    "\"\\u0000\"",
                                    "\"\xff\"",
                                    "{\"a\":1,\"a\":1}",
                                    ",",
                                    ":",
                                    "\"F32\"",
                                    "\"gpt2\"",
                                    "\"yarn\"",
                                    "0.5",
                                    "\n"};

enum { WORDS = sizeof words / sizeof words[0] };

uint64_t fuzz_rounds(unsigned usual)
{
    const char *wanted = getenv("FUZZ_ROUNDS");
    return wanted == NULL ? usual : strtoull(wanted, NULL, 10);
}

size_t fuzz_draw(fuzz *run, size_t sides)
{
    return (size_t)(tide_random_uniform(run->round, TIDE_RANDOM_USE_TEST, 1, run->drawn++) * (double)sides);
}

/* Replaces `count` bytes at `at` by `bytes`. */
static void splice(fuzz *run, size_t at, size_t count, const char *bytes, size_t byte_count)
{
    if (run->bytes - count + byte_count > FUZZ_TEXT_MAX_BYTES)
        return;
    memmove(run->text + at + byte_count, run->text + at + count, run->bytes - at - count);
    memcpy(run->text + at, bytes, byte_count);
    run->bytes = run->bytes - count + byte_count;
}

static void mutate_once(fuzz *run)
{
    if (run->bytes == 0)
        return;
    size_t at = fuzz_draw(run, run->bytes), left = run->bytes - at;
    char piece[64];
    size_t count = fuzz_draw(run, left < sizeof piece ? left : sizeof piece);
    const char *word = words[fuzz_draw(run, WORDS)];
    memcpy(piece, run->text + at, count);
    switch (fuzz_draw(run, 6)) {
    case 0:
        run->text[at] = (char)(run->text[at] ^ (char)(1u << fuzz_draw(run, 8)));
        return;
    case 1:
        splice(run, at, count, "", 0);
        return;
    case 2:
        splice(run, fuzz_draw(run, run->bytes), 0, piece, count);
        return;
    case 3:
        splice(run, at, 0, word, strlen(word));
        return;
    case 4: { /* replaces a value by a number or a word */
        size_t end = at;
        while (at > 0 && run->text[at - 1] != ':' && run->text[at - 1] != '[' && run->text[at - 1] != ',')
            at--;
        while (end < run->bytes && run->text[end] != ',' && run->text[end] != '}' && run->text[end] != ']')
            end++;
        splice(run, at, end - at, word, strlen(word));
        return;
    }
    default:
        run->text[at] = (char)fuzz_draw(run, 256);
        return;
    }
}

void fuzz_mutate(fuzz *run, uint64_t round, const char *text, size_t bytes)
{
    assert_true(bytes <= FUZZ_TEXT_MAX_BYTES);
    run->round = round;
    run->drawn = 0;
    memcpy(run->text, text, bytes);
    run->bytes = bytes;
    for (size_t count = 1 + fuzz_draw(run, 4); count > 0; count--)
        mutate_once(run);
}

char *fuzz_exact_copy(const fuzz *run)
{
    char *copy = malloc(run->bytes + (run->bytes == 0));
    assert_non_null(copy);
    memcpy(copy, run->text, run->bytes);
    return copy;
}
