/* A message is one line on somebody's terminal: what a file says must neither end the line nor steer the terminal. */
#include "src/files/printable.h"

#include <stddef.h>
#include <string.h>

/* Bytes of the control character that begins here: one, or two of those above 0x7f; 0: none does. */
static size_t control_bytes(const unsigned char *at)
{
    if (at[0] < 0x20 || at[0] == 0x7f)
        return 1;
    return at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0 ? 2 : 0;
}

/* "..." there, or before the character that would be cut in two. The length. */
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
        if (control_bytes((const unsigned char *)text) > 0)
            return false;
    return true;
}

tide_printable_text tide_printable(const char *text)
{
    tide_printable_text printable;
    const unsigned char *at = (const unsigned char *)text;
    const size_t most = sizeof printable.text - 1;
    size_t length = 0;
    while (*at != '\0' && length < most) {
        const size_t control = control_bytes(at);
        printable.text[length++] = control > 0 ? '?' : (char)*at;
        at += control > 0 ? control : 1;
    }
    if (*at != '\0')
        length = cut_end(printable.text, most - 3);
    printable.text[length] = '\0';
    return printable;
}
