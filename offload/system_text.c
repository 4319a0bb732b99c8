/* Open, read, close. See the header. */
#include "offload/system_text.h"

#include <fcntl.h>
#include <stddef.h>
#include <unistd.h>

bool tide_system_text_read(const char *path, char text[TIDE_SYSTEM_TEXT_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t length = 0;
    ssize_t got = 1;
    while (got > 0 && length < TIDE_SYSTEM_TEXT_BYTES - 1) {
        got = read(fd, text + length, TIDE_SYSTEM_TEXT_BYTES - 1 - length);
        length += got > 0 ? (size_t)got : 0;
    }
    text[length] = '\0';
    (void)close(fd); /* read only */
    return got >= 0 && length > 0;
}
