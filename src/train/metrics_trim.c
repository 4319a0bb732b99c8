/* Two passes over the lines. The first finds the first line to cut and whether any later line is kept. If
 * none is, the file is truncated, which needs no free space on the disk. Otherwise the second pass copies the
 * kept lines to a new file beside the old one, which then gets the old one's name. */
#include "src/train/metrics_trim.h"

#include "base/atomic_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct trimming {
    tide_output_file *file;
    uint64_t step;
    FILE *in; /* the file, opened again to read it from its start */
    char *line;
    size_t capacity;
    off_t kept_bytes; /* the bytes before the first line to cut */
    bool mixed;       /* a line after the first cut one is kept */
} trimming;

static bool is_standard_stream(const struct stat *about)
{
    struct stat stream;
    for (int descriptor = STDOUT_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        if (fstat(descriptor, &stream) == 0 && stream.st_dev == about->st_dev &&
            stream.st_ino == about->st_ino)
            return true;
    return false;
}

/* Must the line be cut? It must if it has no newline, or if it belongs to a later step than `step`; a
 * step's line begins as tide_metrics_line writes it. */
static bool goes(const char *line, ssize_t bytes, uint64_t step)
{
    uint64_t number;
    return line[bytes - 1] != '\n' || (sscanf(line, "{\"step\": %" SCNu64, &number) == 1 && number > step);
}

static tide_status read_failed(const trimming *it)
{
    return errno == ENOMEM
               ? tide_fail(TIDE_ERROR_NO_MEMORY, "metrics file %s: no memory for a line", it->file->path)
               : tide_output_file_failed(it->file, "can't be read", errno);
}

/* Read the next line; *bytes is 0 at the file's end. */
static tide_status line_read(trimming *it, ssize_t *bytes)
{
    errno = 0;
    *bytes = getline(&it->line, &it->capacity, it->in);
    if (*bytes >= 0)
        return TIDE_OK;
    *bytes = 0;
    return feof(it->in) && !ferror(it->in) ? TIDE_OK : read_failed(it);
}

static tide_status cut_find(trimming *it, bool *found)
{
    ssize_t bytes;
    tide_status status = line_read(it, &bytes);
    for (; status == TIDE_OK && bytes > 0; status = line_read(it, &bytes)) {
        const bool cut = goes(it->line, bytes, it->step);
        it->mixed = it->mixed || (*found && !cut);
        *found = *found || cut;
        if (!*found)
            it->kept_bytes += bytes;
    }
    return status;
}

/* Does not check the writes: tide_atomic_file_finish reports the first failure. */
static tide_status lines_copy(trimming *it, FILE *out)
{
    ssize_t bytes;
    rewind(it->in);
    tide_status status = line_read(it, &bytes);
    for (; status == TIDE_OK && bytes > 0; status = line_read(it, &bytes))
        if (!goes(it->line, bytes, it->step))
            (void)fwrite(it->line, 1, (size_t)bytes, out);
    return status;
}

/* Copies the kept lines to a new file of the old one's name, and lets the output's descriptor point to it. */
static tide_status rewrite(trimming *it)
{
    tide_atomic_file made;
    tide_status status = tide_atomic_file_open(it->file->kind, it->file->path, &made);
    if (status != TIDE_OK)
        return status;
    status = lines_copy(it, made.stream);
    const int descriptor = status == TIDE_OK ? fcntl(made.descriptor, F_DUPFD_CLOEXEC, 0) : -1;
    if (status == TIDE_OK && descriptor < 0)
        status = tide_output_file_failed(it->file, "can't be replaced", errno);
    if (status != TIDE_OK) {
        tide_atomic_file_abandon(&made);
        return status;
    }
    status = tide_atomic_file_finish(&made);
    if (status == TIDE_OK && dup3(descriptor, it->file->descriptor, O_CLOEXEC) < 0)
        status = tide_output_file_failed(it->file, "can't be replaced", errno);
    (void)close(descriptor); /* finish has synced the file: closing can lose nothing */
    return status;
}

static tide_status trim(trimming *it)
{
    bool found = false;
    tide_status status = cut_find(it, &found);
    if (status == TIDE_OK && found && it->mixed)
        status = rewrite(it);
    else if (status == TIDE_OK && found && ftruncate(it->file->descriptor, it->kept_bytes) != 0)
        status = tide_output_file_failed(it->file, "the lines behind the checkpoint can't be removed", errno);
    if (lseek(it->file->descriptor, 0, SEEK_END) < 0 && status == TIDE_OK)
        status = tide_output_file_failed(it->file, "its end can't be found", errno);
    return status;
}

tide_status tide_metrics_trim(tide_output_file *file, uint64_t step)
{
    struct stat about;
    if (fstat(file->descriptor, &about) != 0)
        return tide_output_file_failed(file, "can't be examined", errno);
    if (!S_ISREG(about.st_mode) || is_standard_stream(&about))
        return TIDE_OK;
    const int copy = dup(file->descriptor);
    trimming it = {.file = file, .step = step, .in = copy >= 0 ? fdopen(copy, "r") : NULL};
    tide_status status = TIDE_OK;
    if (it.in == NULL) {
        status = read_failed(&it);
        if (copy >= 0)
            (void)close(copy);
        return status;
    }
    rewind(it.in);
    status = trim(&it);
    (void)fclose(it.in); /* opened for reading only: closing can lose nothing */
    free(it.line);
    return status;
}
