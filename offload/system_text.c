#include "offload/system_text.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
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

bool tide_system_lines_open(const char *path, tide_system_lines *lines)
{
    lines->at = lines->filled = 0;
    lines->descriptor = open(path, O_RDONLY | O_CLOEXEC);
    return lines->descriptor >= 0;
}

/* Read the next piece. False at the end of the file, and on a failure, which counts as its end. */
static bool piece_read(tide_system_lines *lines)
{
    const ssize_t got = read(lines->descriptor, lines->piece, sizeof lines->piece);
    lines->at = 0;
    lines->filled = got > 0 ? (size_t)got : 0;
    return got > 0;
}

bool tide_system_lines_next(tide_system_lines *lines, char *line, size_t capacity)
{
    size_t length = 0;
    bool any = false;
    while (lines->at < lines->filled || piece_read(lines)) {
        const char letter = lines->piece[lines->at++];
        any = true;
        if (letter == '\n')
            break;
        if (length < capacity - 1)
            line[length++] = letter;
    }
    line[length] = '\0';
    return any;
}

void tide_system_lines_close(tide_system_lines *lines)
{
    (void)close(lines->descriptor); /* read only */
}

bool tide_system_number_read(const char *path, const char *key, uint64_t *number)
{
    tide_system_lines lines;
    char line[96], *end = line;
    const size_t length = strlen(key);
    if (!tide_system_lines_open(path, &lines))
        return false;
    while (end == line && tide_system_lines_next(&lines, line, sizeof line)) {
        if (strncmp(line, key, length) != 0)
            continue;
        const uint64_t read = strtoull(line + length, &end, 10);
        if (end == line + length)
            break;
        *number = read;
    }
    tide_system_lines_close(&lines);
    return end > line + length;
}
