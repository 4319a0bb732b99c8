/* A message is one line on a terminal, so text from a file must neither end the line nor send control
 * characters to the terminal. */
#include "base/printable.h"

#include "base/text.h"

#include <stddef.h>
#include <string.h>

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
