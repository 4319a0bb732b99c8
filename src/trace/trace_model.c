/* Reads the files of a trace, and completes the model when all lines are read.
 *
 * A file is read in pieces of 64 KiB and cut at its newlines. A last line without a newline is left out, in
 * FILE and in each segment (FILE.step-NUMBER). A FILE with a line `end` is whole, and the segments beside it
 * belong to another run. If a run was killed while it appended its segments to FILE, FILE has some of them
 * already; so FILE is then read only up to its first snapshot.
 */
#include "src/trace/trace_model.h"

#include "base/files.h"
#include "src/trace/trace_fields.h"
#include "src/trace/trace_read.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 16, LINE_BYTES_MAX = 1 << 26, LAST_LINE_BYTES_MAX = 256, SEGMENT_DIGITS_MAX = 19 };

/* ---- one file, line by line ---- */

typedef struct line_buffer {
    bool until_snapshot; /* the file is to be read only up to its first snapshot */
    bool is_over;        /* that snapshot has been met */
    char *text;
    size_t capacity, filled, begin; /* bytes [begin, filled) wait to become lines */
    uint64_t lines;
} line_buffer;

static tide_status file_failed(const char *path, const char *what)
{
    return tide_fail(TIDE_ERROR_IO, "%s: %s: %s", path, what, strerror(errno));
}

static tide_status no_memory(const char *path)
{
    return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory to read it", path);
}

/* Move the bytes that are left to the front, and make space after them for another piece. */
static tide_status reserve(line_buffer *buffer, const char *path)
{
    memmove(buffer->text, buffer->text + buffer->begin, buffer->filled - buffer->begin);
    buffer->filled -= buffer->begin;
    buffer->begin = 0;
    if (buffer->filled + PIECE_BYTES < buffer->capacity)
        return TIDE_OK;
    if (buffer->filled > LINE_BYTES_MAX)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s:%" PRIu64 ": a line of more than %d MiB is none of a trace",
                         path, buffer->lines + 1, LINE_BYTES_MAX >> 20);
    char *text = realloc(buffer->text, 2 * buffer->capacity);
    if (text == NULL)
        return no_memory(path);
    buffer->text = text;
    buffer->capacity *= 2;
    return TIDE_OK;
}

/* Read all whole lines in the buffer. */
static tide_status lines_read(line_buffer *buffer, const char *path, tide_trace_reader *reader)
{
    static const char snapshot[] = "{\"event\":\"snapshot\",";
    tide_status status = TIDE_OK;
    while (status == TIDE_OK) {
        char *line = buffer->text + buffer->begin;
        char *end = memchr(line, '\n', buffer->filled - buffer->begin);
        if (end == NULL)
            break;
        *end = '\0';
        buffer->is_over = buffer->until_snapshot && strncmp(line, snapshot, sizeof snapshot - 1) == 0;
        if (buffer->is_over)
            break;
        status = tide_trace_reader_line(reader, path, ++buffer->lines, line, (size_t)(end - line));
        buffer->begin += (size_t)(end - line) + 1;
    }
    return status;
}

static tide_status descriptor_read(int descriptor, const char *path, line_buffer *buffer,
                                   tide_trace_reader *reader)
{
    for (;;) {
        tide_status status = reserve(buffer, path);
        if (status != TIDE_OK)
            return status;
        ssize_t got = read(descriptor, buffer->text + buffer->filled, PIECE_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return file_failed(path, "can't be read");
        if (got == 0)
            return TIDE_OK;
        buffer->filled += (size_t)got;
        status = lines_read(buffer, path, reader);
        if (status != TIDE_OK || buffer->is_over)
            return status;
    }
}

/* Refuse a file without a newline: it is empty, breaks off within its first line, or is no trace. */
static tide_status half_line_refuse(const char *path, line_buffer *buffer, tide_trace_reader *reader)
{
    static const char begin[] = "{\"trace\":";
    if (buffer->filled == 0)
        return tide_fail(TIDE_ERROR_ARGUMENT, "%s:1: the file is empty; a trace begins with {\"trace\":%d",
                         path, TIDE_TRACE_FORMAT);
    buffer->text[buffer->filled] = '\0';
    tide_status status = tide_trace_reader_line(reader, path, 1, buffer->text, buffer->filled);
    bool breaks_off = status == TIDE_OK || strncmp(buffer->text, begin, sizeof begin - 1) == 0;
    if (status == TIDE_ERROR_NO_MEMORY || !breaks_off)
        return status;
    return tide_fail(TIDE_ERROR_ARGUMENT, "%s:1: the trace breaks off within its first line: nothing to see",
                     path);
}

static tide_status file_read(const char *path, bool until_snapshot, tide_trace_reader *reader)
{
    line_buffer buffer = {.until_snapshot = until_snapshot, .capacity = 2 * PIECE_BYTES};
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return file_failed(path, "can't be opened");
    buffer.text = malloc(buffer.capacity);
    tide_status status = buffer.text == NULL ? no_memory(path) : TIDE_OK;
    if (status == TIDE_OK)
        status = descriptor_read(descriptor, path, &buffer, reader);
    if (status == TIDE_OK && !reader->has_begun)
        status = half_line_refuse(path, &buffer, reader);
    free(buffer.text);
    close(descriptor);
    return status;
}

/* ---- segments ---- */

typedef struct segment_list {
    uint64_t *numbers;
    size_t count;
} segment_list;

static int numbers_compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return left < right ? -1 : left > right;
}

/* Whether `name` is exactly that of a segment of `base`; *number is its number. */
static bool segment_number(const char *name, const char *base, uint64_t *number)
{
    size_t length = strlen(base);
    static const char middle[] = ".step-";
    if (strncmp(name, base, length) != 0 || strncmp(name + length, middle, sizeof middle - 1) != 0)
        return false;
    const char *digits = name + length + sizeof middle - 1;
    size_t count = strspn(digits, "0123456789");
    if (count == 0 || count > SEGMENT_DIGITS_MAX || digits[count] != '\0' || (digits[0] == '0' && count > 1))
        return false;
    *number = strtoull(digits, NULL, 10);
    return true;
}

static tide_status segment_add(segment_list *list, uint64_t number, const char *path)
{
    if (!tide_array_grow(&list->numbers, list->count, sizeof *list->numbers))
        return no_memory(path);
    list->numbers[list->count++] = number;
    return TIDE_OK;
}

/* List the segments that lie beside `path`, in order of their numbers. */
static tide_status segments_find(const char *path, segment_list *list)
{
    const char *slash = strrchr(path, '/');
    const char *base = slash != NULL ? slash + 1 : path;
    char *folder = slash == path   ? strdup("/")
                   : slash != NULL ? strndup(path, (size_t)(slash - path))
                                   : strdup(".");
    tide_status status = folder == NULL ? no_memory(path) : TIDE_OK;
    DIR *directory = folder != NULL ? opendir(folder) : NULL;
    if (folder != NULL && directory == NULL && !tide_files_is_absent(errno))
        status = file_failed(folder, "can't be listed");
    free(folder);
    while (directory != NULL && status == TIDE_OK) {
        uint64_t number = 0;
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL) {
            status = errno == 0 ? TIDE_OK : file_failed(path, "its folder can't be listed");
            break;
        }
        if (segment_number(entry->d_name, base, &number))
            status = segment_add(list, number, path);
    }
    if (directory != NULL)
        closedir(directory);
    if (list->count > 0)
        qsort(list->numbers, list->count, sizeof *list->numbers, numbers_compare);
    return status;
}

static tide_status segment_read(const char *path, uint64_t number, tide_trace_reader *reader)
{
    char *name = NULL;
    if (asprintf(&name, "%s.step-%" PRIu64, path, number) < 0)
        return no_memory(path);
    tide_status status = file_read(name, false, reader);
    free(name);
    return status;
}

/* Does the file end with a line `end`? */
static bool is_whole(const char *path)
{
    char tail[LAST_LINE_BYTES_MAX + 1];
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return false;
    if (fseek(file, -LAST_LINE_BYTES_MAX, SEEK_END) != 0)
        rewind(file);
    tail[fread(tail, 1, LAST_LINE_BYTES_MAX, file)] = '\0';
    fclose(file);
    return strstr(tail, "\n{\"end\":true,") != NULL;
}

/* Read FILE and, if it is not whole, its segments. */
static tide_status files_read(const char *path, tide_trace_reader *reader)
{
    segment_list list = {0};
    tide_status status = segments_find(path, &list);
    if (status == TIDE_OK)
        status = file_read(path, list.count > 0 && !is_whole(path), reader);
    if (reader->has_ended)
        list.count = 0;
    for (size_t i = 0; i < list.count && status == TIDE_OK; i++)
        status = segment_read(path, list.numbers[i], reader);
    free(list.numbers);
    return status;
}

/* ---- when all is read ---- */

typedef struct place_in_time {
    uint64_t begin_ns, index;
} place_in_time;

static int places_compare(const void *a, const void *b)
{
    const place_in_time *left = a, *right = b;
    if (left->begin_ns != right->begin_ns)
        return left->begin_ns < right->begin_ns ? -1 : 1;
    return left->index < right->index ? -1 : left->index > right->index;
}

/* Sort by begin_ns; events that begin together keep their order. */
static tide_status events_sort(tide_trace_model *model)
{
    bool sorted = true;
    for (uint64_t i = 1; i < model->event_count && sorted; i++)
        sorted = model->events[i - 1].begin_ns <= model->events[i].begin_ns;
    if (sorted)
        return TIDE_OK;
    place_in_time *places = malloc(model->event_count * sizeof *places);
    tide_trace_event *events = malloc(model->event_count * sizeof *events);
    if (places == NULL || events == NULL) {
        free(places);
        free(events);
        return no_memory(model->path);
    }
    for (uint64_t i = 0; i < model->event_count; i++)
        places[i] = (place_in_time){model->events[i].begin_ns, i};
    qsort(places, model->event_count, sizeof *places, places_compare);
    for (uint64_t i = 0; i < model->event_count; i++)
        events[i] = model->events[places[i].index];
    free(places);
    free(model->events);
    model->events = events;
    return TIDE_OK;
}

/* Rows of ops name activations, whose rows come later. If the trace breaks off between the two tables, it has
 * no events, and the ops lose their activations. Otherwise refuse an activation without a row. */
static tide_status activations_check(const tide_trace_reader *reader)
{
    tide_trace_model *model = reader->model;
    if (reader->activations_used <= model->activation_count)
        return TIDE_OK;
    if (reader->has_ended || model->event_count > 0)
        return tide_fail(TIDE_ERROR_ARGUMENT,
                         "%s:%" PRIu64 ": table op: \"activations\" names number %" PRIu32
                         ", but there are %" PRIu32,
                         model->path, reader->activations_used_line, reader->activations_used - 1,
                         model->activation_count);
    for (uint32_t i = 0; i < model->op_count; i++)
        model->ops[i].activation_count = 0;
    return TIDE_OK;
}

typedef struct give_up {
    uint64_t step, event;
} give_up;

static int give_ups_compare(const void *a, const void *b)
{
    const give_up *left = a, *right = b;
    if (left->step != right->step)
        return left->step < right->step ? -1 : 1;
    return left->event < right->event ? -1 : left->event > right->event;
}

/* The index of the event with which the step was last given up; 0: it never was. `given_up` is sorted. */
static uint64_t last_give_up(const give_up *given_up, size_t count, uint64_t step)
{
    size_t from = 0, to = count;
    while (from < to) {
        const size_t middle = from + (to - from) / 2;
        if (given_up[middle].step <= step)
            from = middle + 1;
        else
            to = middle;
    }
    return from > 0 && given_up[from - 1].step == step ? given_up[from - 1].event : 0;
}

/* Set `step` to 0 in each event of a step that was given up later. This happens once, while events are still
 * in order of lines, since a run can give up many steps. */
static tide_status give_ups_apply(tide_trace_model *model)
{
    size_t count = 0;
    for (uint64_t i = 0; i < model->event_count; i++)
        count += model->events[i].kind == TIDE_TRACE_GIVEN_UP;
    if (count == 0)
        return TIDE_OK;
    give_up *given_up = malloc(count * sizeof *given_up);
    if (given_up == NULL)
        return no_memory(model->path);
    count = 0;
    for (uint64_t i = 0; i < model->event_count; i++)
        if (model->events[i].kind == TIDE_TRACE_GIVEN_UP)
            given_up[count++] = (give_up){model->events[i].step, i};
    qsort(given_up, count, sizeof *given_up, give_ups_compare);
    for (uint64_t i = 0; i < model->event_count; i++)
        if (i < last_give_up(given_up, count, model->events[i].step))
            model->events[i].step = 0;
    free(given_up);
    return TIDE_OK;
}

static tide_status model_finish(tide_trace_reader *reader)
{
    tide_status status = activations_check(reader);
    reader->model->dropped = reader->dropped;
    reader->model->is_cut = !reader->has_ended;
    if (status == TIDE_OK)
        status = give_ups_apply(reader->model);
    return status == TIDE_OK ? events_sort(reader->model) : status;
}

static tide_status model_fill(tide_trace_model *model, const char *path)
{
    tide_trace_reader reader;
    char *name = tide_arrays_add(&model->memory, strlen(path) + 1, 1);
    if (name == NULL)
        return no_memory(path);
    model->path = strcpy(name, path);
    model->machine.name = "";
    tide_trace_reader_begin(&reader, model);
    const tide_status status = files_read(path, &reader);
    return status == TIDE_OK ? model_finish(&reader) : status;
}

tide_status tide_trace_model_read(const char *path, tide_trace_model **model)
{
    tide_trace_model *made = calloc(1, sizeof *made);
    if (made == NULL)
        return no_memory(path);
    tide_status status = model_fill(made, path);
    if (status != TIDE_OK) {
        tide_trace_model_free(made);
        return status;
    }
    *model = made;
    return TIDE_OK;
}

void tide_trace_model_free(tide_trace_model *model)
{
    if (model == NULL)
        return;
    free(model->settings);
    free(model->params);
    free(model->chunks);
    free(model->ops);
    free(model->activations);
    free(model->events);
    free(model->steps);
    free(model->passes);
    tide_arrays_free(&model->memory);
    free(model);
}

const char *tide_trace_model_setting(const tide_trace_model *model, const char *name)
{
    for (uint32_t i = 0; i < model->setting_count; i++)
        if (strcmp(model->settings[i].name, name) == 0)
            return model->settings[i].value;
    return NULL;
}
