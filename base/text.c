/* Control characters are replaced because they would end the line or control the terminal. */
#include "base/text.h"

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
