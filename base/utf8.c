#include "base/utf8.h"

#include <stdbool.h>
#include <stdint.h>

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
