#include "src/trace/trace_segments.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char suffix[] = ".step-";

/* --- bytes --- */

static void fail(tide_segments *segments)
{
    if (segments->failure == 0)
        segments->failure = errno != 0 ? errno : EIO;
}

static void put(tide_segments *segments, const char *text, size_t bytes)
{
    while (bytes > 0 && segments->failure == 0) {
        const ssize_t wrote = write(segments->descriptor, text, bytes);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0) {
            fail(segments);
            return;
        }
        text += wrote;
        bytes -= (size_t)wrote;
    }
}

void tide_segments_flush(tide_segments *segments)
{
    put(segments, segments->buffer, segments->used);
    segments->used = 0;
}

void tide_segments_write(tide_segments *segments, const char *text, size_t bytes)
{
    if (bytes > sizeof segments->buffer - segments->used)
        tide_segments_flush(segments);
    if (bytes > sizeof segments->buffer) {
        put(segments, text, bytes);
        return;
    }
    memcpy(segments->buffer + segments->used, text, bytes);
    segments->used += bytes;
}

/* --- open, begin --- */

tide_status tide_segments_open(tide_segments *segments, const char *path, uint64_t keep)
{
    segments->keep = keep;
    segments->path_bytes = strlen(path) + sizeof suffix + 20;
    segments->path = malloc(segments->path_bytes);
    segments->numbers = calloc(keep + 1, sizeof *segments->numbers);
    if (segments->path == NULL || segments->numbers == NULL) {
        free(segments->path);
        free(segments->numbers);
        return tide_fail(TIDE_ERROR_NO_MEMORY,
                         "trace file %s: no memory for the names of %" PRIu64 " segments", path, keep);
    }
    const tide_status status = tide_output_file_open("trace file", path, O_WRONLY, &segments->output);
    if (status != TIDE_OK) {
        free(segments->path);
        free(segments->numbers);
        return status;
    }
    segments->descriptor = segments->output.descriptor;
    return TIDE_OK;
}

static bool is_number(const char *text)
{
    return text[0] != '\0' && strspn(text, "0123456789") == strlen(text);
}

/* Removes the segments of an earlier run. Escapes the characters in the path that glob would expand. */
static tide_status remove_left(const tide_segments *segments)
{
    const size_t length = strlen(segments->output.path) + sizeof suffix - 1;
    char *pattern = malloc(2 * segments->path_bytes);
    glob_t found;
    if (pattern == NULL)
        return tide_fail(TIDE_ERROR_NO_MEMORY, "trace file %s: no memory to look for old segments",
                         segments->output.path);
    size_t at = 0;
    for (const char *letter = segments->output.path; *letter != '\0'; letter++) {
        if (strchr("*?[]\\", *letter) != NULL)
            pattern[at++] = '\\';
        pattern[at++] = *letter;
    }
    snprintf(pattern + at, 2 * segments->path_bytes - at, "%s*", suffix);
    const int status = glob(pattern, GLOB_NOSORT, NULL, &found);
    free(pattern);
    if (status != 0)
        return status == GLOB_NOMATCH
                   ? TIDE_OK
                   : tide_output_file_failed(&segments->output, "its folder can't be read", EACCES);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        if (is_number(found.gl_pathv[i] + length))
            (void)unlink(found.gl_pathv[i]);
    }
    globfree(&found);
    return TIDE_OK;
}

tide_status tide_segments_begin(tide_segments *segments)
{
    struct stat about;
    if (fstat(segments->output.descriptor, &about) != 0 || !S_ISREG(about.st_mode))
        segments->keep = 0;
    const tide_status status = tide_output_file_begin(&segments->output, false);
    return status == TIDE_OK && S_ISREG(about.st_mode) ? remove_left(segments) : status;
}

/* --- segments --- */

static const char *path_of(tide_segments *segments, uint64_t which)
{
    snprintf(segments->path, segments->path_bytes, "%s%s%" PRIu64, segments->output.path, suffix,
             segments->numbers[which % (segments->keep + 1)]);
    return segments->path;
}

static void end_segment(tide_segments *segments)
{
    tide_segments_flush(segments);
    if (segments->descriptor != segments->output.descriptor && close(segments->descriptor) != 0)
        fail(segments);
    segments->descriptor = segments->output.descriptor;
}

bool tide_segments_next(tide_segments *segments, uint64_t number)
{
    const uint64_t last = segments->numbers[(segments->count - 1) % (segments->keep + 1)];
    if (segments->keep == 0 || segments->failure != 0)
        return false;
    if (segments->count > 0 && last == number)
        return false; /* the step was given up and is repeated */
    end_segment(segments);
    if (segments->count - segments->first > segments->keep)
        (void)unlink(path_of(segments, segments->first++));
    segments->numbers[segments->count % (segments->keep + 1)] = number;
    const int opened =
        open(path_of(segments, segments->count++), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (opened < 0)
        fail(segments);
    else
        segments->descriptor = opened;
    return true;
}

static void append(tide_segments *segments, const char *path)
{
    const int from = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = from < 0 ? -1 : 1;
    while (got > 0 && segments->failure == 0) {
        got = read(from, segments->buffer, sizeof segments->buffer);
        if (got > 0)
            put(segments, segments->buffer, (size_t)got);
    }
    if (got < 0)
        fail(segments);
    if (from >= 0)
        (void)close(from);
}

void tide_segments_join(tide_segments *segments)
{
    end_segment(segments);
    if (segments->count - segments->first > segments->keep)
        (void)unlink(path_of(segments, segments->first++));
    for (uint64_t which = segments->first; which < segments->count && segments->failure == 0; which++)
        append(segments, path_of(segments, which));
}

void tide_segments_remove(tide_segments *segments)
{
    tide_segments_flush(segments);
    for (; segments->first < segments->count && segments->failure == 0; segments->first++)
        (void)unlink(path_of(segments, segments->first));
}

tide_status tide_segments_close(tide_segments *segments)
{
    assert(segments->path != NULL);
    if (segments->output.begun)
        end_segment(segments);
    tide_status status = TIDE_OK;
    if (segments->failure != 0)
        status = tide_output_file_failed(&segments->output, "can't be written", segments->failure);
    const tide_status closed = tide_output_file_close(&segments->output);
    free(segments->path);
    free(segments->numbers);
    segments->path = NULL;
    segments->numbers = NULL;
    return status == TIDE_OK ? closed : status;
}
