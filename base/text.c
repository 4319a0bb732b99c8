/* Control characters could end the line or change the terminal's state. */
#include "base/text.h"

#include <stdint.h>
#include <string.h>

size_t tide_control_bytes(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    if (at[0] == '\0')
        return 0;
    if (at[0] < 0x20 || at[0] == 0x7f)
        return 1;
    return at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0 ? 2 : 0;
}

void tide_text_make_printable(char *text)
{
    char *to = text;
    while (*text != '\0') {
        const size_t control = tide_control_bytes(text);
        *to++ = control > 0 ? '?' : *text;
        text += control > 0 ? control : 1;
    }
    *to = '\0';
}

/* Ends the text with "..." at `at`, or earlier if a letter would be cut in two. Returns the new length. */
static size_t cut_end(char *text, size_t at)
{
    for (int i = 0; i < 3 && ((unsigned char)text[at] & 0xc0) == 0x80; i++)
        at--;
    memcpy(text + at, "...", 3);
    return at + 3;
}

bool tide_is_printable(const char *text)
{
    for (; *text != '\0'; text++)
        if (tide_control_bytes(text) > 0)
            return false;
    return true;
}

tide_printable_text tide_printable(const char *text)
{
    tide_printable_text printable;
    const size_t most = sizeof printable.text - 1;
    size_t length = 0;
    while (*text != '\0' && length < most) {
        const size_t control = tide_control_bytes(text);
        printable.text[length++] = control > 0 ? '?' : *text;
        text += control > 0 ? control : 1;
    }
    if (*text != '\0')
        length = cut_end(printable.text, most - 3);
    printable.text[length] = '\0';
    return printable;
}

/* A zero byte is never part of a longer letter, so the function reads nothing behind it. */
size_t tide_utf8_letter_bytes(const char *text)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *at = (const unsigned char *)text;
    if (at[0] < 0x80)
        return at[0] != 0;
    if (at[0] < 0xc2 || at[0] > 0xf4)
        return 0;
    const size_t bytes = at[0] >= 0xf0 ? 4 : at[0] >= 0xe0 ? 3 : 2;
    uint32_t letter = at[0] & (0xffu >> (bytes + 1));
    for (size_t i = 1; i < bytes; i++) {
        if ((at[i] & 0xc0u) != 0x80u)
            return 0;
        letter = letter << 6 | (at[i] & 0x3fu);
    }
    const bool sound =
        letter >= least[bytes] && letter <= 0x10ffff && !(letter >= 0xd800 && letter <= 0xdfff);
    return sound ? bytes : 0;
}
