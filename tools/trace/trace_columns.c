/* The member of the events that a column holds decides how the column is written (in quotes the name of the
 * way for page/data.js):
 *   begin_ns, t_ns     the distance from the event before ("delta"); events of a kind are in order of time
 *   end_ns             the length ("length")
 *   id                 the distance from the event before, its sign in the lowest bit ("near")
 *   a number or null   0, else one more than the number ("null")
 *   words              the word's number ("enum"); for `work`, the text's index in order of first use
 *   all others         the number ("count")
 *
 * Each column is written in a walk of its own over the model's events, so that no column is ever in memory.
 */
#include "tools/trace/trace_columns.h"

#include "base/minmax.h"
#include "src/trace/trace_fields.h"
#include "tools/trace/trace_text.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS_MAX = 24, WORKS_MAX = 128 };

typedef enum column_how {
    HOW_DELTA = 0,
    HOW_LENGTH,
    HOW_NEAR,
    HOW_NULL,
    HOW_ENUM,
    HOW_COUNT,
    HOW_PLACE, /* device, host, content and flags of a chunk in one number; written as a count */
} column_how;

static const char *how_name(column_how how)
{
    static const char *const names[] = {"delta", "length", "near", "null", "enum", "count", "count"};
    return names[how];
}

/* The different texts that the member `work` has, such as "save". */
typedef struct work_list {
    const char *works[WORKS_MAX];
    uint32_t count;
} work_list;

typedef struct column_plan {
    const char *name;
    column_how how;
    const tide_trace_field *field;
} column_plan;

typedef struct kind_columns {
    tide_trace_kind kind;
    uint64_t count;
    column_plan columns[COLUMNS_MAX];
    uint32_t column_count;
} kind_columns;

struct tide_trace_columns {
    const tide_trace_model *model;
    tide_trace_window window;
    /* by chunk: the last event before the window that says where the chunk is; its index plus one, 0: none */
    uint64_t *last_place;
    kind_columns kinds[TIDE_TRACE_KIND_COUNT];
    uint32_t kind_count;
    work_list works;
};

/* ---- which events and members are written ---- */

static bool tells_place(tide_trace_kind kind)
{
    return kind == TIDE_TRACE_CHUNK || kind == TIDE_TRACE_SNAPSHOT;
}

/* The page draws nothing from REQUEST and PARAM events; SNAPSHOT events are written as CHUNK events. */
static bool kind_is_left_out(tide_trace_kind kind)
{
    return kind == TIDE_TRACE_REQUEST || kind == TIDE_TRACE_PARAM || kind == TIDE_TRACE_SNAPSHOT;
}

static bool member_is_left_out(tide_trace_kind kind, const char *name)
{
    static const char *const unused[] = {"schedule_step", "host_slot", "zeroed", "in_place"};
    for (size_t i = 0; i < sizeof unused / sizeof unused[0]; i++)
        if (strcmp(name, unused[i]) == 0)
            return true;
    if (strcmp(name, "step") == 0)
        return kind != TIDE_TRACE_STALL && kind != TIDE_TRACE_GIVEN_UP;
    if (strcmp(name, "pass") == 0)
        return kind != TIDE_TRACE_PASS && kind != TIDE_TRACE_PASS_END && kind != TIDE_TRACE_GIVEN_UP;
    return false;
}

static bool is_told(const tide_trace_columns *columns, tide_trace_kind kind, uint64_t index)
{
    const tide_trace_event *event = &columns->model->events[index];
    if (event->kind != kind && !(tells_place(kind) && tells_place(event->kind)))
        return false;
    if (event->begin_ns >= columns->window.end_ns)
        return false;
    if (tells_place(kind) && event->begin_ns < columns->window.begin_ns)
        return columns->last_place[event->chunk] == index + 1;
    return event->begin_ns >= columns->window.begin_ns || event->end_ns > columns->window.begin_ns;
}

/* ---- plan ---- */

static column_how how_of(const tide_trace_field *field)
{
    if (strcmp(field->name, "begin_ns") == 0 || strcmp(field->name, "t_ns") == 0)
        return HOW_DELTA;
    if (strcmp(field->name, "end_ns") == 0)
        return HOW_LENGTH;
    if (strcmp(field->name, "id") == 0)
        return HOW_NEAR;
    switch (field->type) {
    case TIDE_TRACE_COUNT64_OR_NULL:
    case TIDE_TRACE_COUNT32_OR_NULL:
        return HOW_NULL;
    case TIDE_TRACE_WORD:
    case TIDE_TRACE_TEXT:
        return HOW_ENUM;
    default:
        return HOW_COUNT;
    }
}

static column_plan *column_add(kind_columns *kind)
{
    assert(kind->column_count < COLUMNS_MAX);
    return &kind->columns[kind->column_count++];
}

static void kind_plan(tide_trace_columns *columns, tide_trace_kind kind)
{
    const tide_trace_shape *shape = tide_trace_shape_of(kind);
    kind_columns *planned = &columns->kinds[columns->kind_count++];
    planned->kind = kind;
    for (uint32_t i = 0; i < shape->field_count; i++) {
        const tide_trace_field *field = &shape->fields[i];
        if (member_is_left_out(kind, field->name))
            continue;
        if (kind == TIDE_TRACE_CHUNK && strcmp(field->name, "device") == 0) {
            *column_add(planned) = (column_plan){.name = "place", .how = HOW_PLACE};
            return; /* the place holds the chunk's other members, too */
        }
        column_how how = how_of(field);
        *column_add(planned) =
            (column_plan){.name = how == HOW_DELTA ? "begin" : field->name, .how = how, .field = field};
    }
}

static void last_places_find(tide_trace_columns *columns)
{
    const tide_trace_model *model = columns->model;
    for (uint64_t i = 0; i < model->event_count; i++) {
        const tide_trace_event *event = &model->events[i];
        if (tells_place(event->kind) && event->begin_ns < columns->window.begin_ns)
            columns->last_place[event->chunk] = i + 1;
    }
}

/* The text's index. All texts beyond the list's end share its last entry, "other". */
static uint32_t work_index(work_list *list, const char *work)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(list->works[i], work) == 0)
            return i;
    if (list->count == WORKS_MAX)
        return WORKS_MAX - 1;
    list->works[list->count] = list->count == WORKS_MAX - 1 ? "other" : work;
    return list->count++;
}

static void kind_count(tide_trace_columns *columns, kind_columns *kind)
{
    for (uint64_t i = 0; i < columns->model->event_count; i++) {
        if (!is_told(columns, kind->kind, i))
            continue;
        kind->count++;
        if (kind->kind == TIDE_TRACE_WORK)
            (void)work_index(&columns->works, columns->model->events[i].work);
    }
}

tide_status tide_trace_columns_plan(const tide_trace_model *model, tide_trace_window window,
                                    tide_trace_columns **columns)
{
    tide_trace_columns *made = calloc(1, sizeof *made);
    uint64_t *last_place = calloc((size_t)model->chunk_count + 1, sizeof *last_place);
    if (made == NULL || last_place == NULL) {
        free(made);
        free(last_place);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "no memory for the columns of %" PRIu32 " chunks",
                         model->chunk_count);
    }
    *made = (tide_trace_columns){.model = model, .window = window, .last_place = last_place};
    last_places_find(made);
    for (int kind = 0; kind < TIDE_TRACE_KIND_COUNT; kind++)
        if (!kind_is_left_out((tide_trace_kind)kind))
            kind_plan(made, (tide_trace_kind)kind);
    for (uint32_t i = 0; i < made->kind_count; i++)
        kind_count(made, &made->kinds[i]);
    *columns = made;
    return TIDE_OK;
}

void tide_trace_columns_free(tide_trace_columns *columns)
{
    if (columns == NULL)
        return;
    free(columns->last_place);
    free(columns);
}

/* ---- description ---- */

/* Whether the words of the column have been written for an earlier column of the same name. */
static bool words_are_written(const tide_trace_columns *columns, uint32_t kind, uint32_t column)
{
    const char *name = columns->kinds[kind].columns[column].name;
    for (uint32_t i = 0; i <= kind; i++)
        for (uint32_t c = 0; c < (i < kind ? columns->kinds[i].column_count : column); c++)
            if (strcmp(columns->kinds[i].columns[c].name, name) == 0)
                return true;
    return false;
}

static void words_write(const tide_trace_columns *columns, const tide_trace_field *field, FILE *out)
{
    const work_list *works = &columns->works;
    const bool is_work = field->type == TIDE_TRACE_TEXT;
    fprintf(out, "\"%s\":[", field->name);
    for (uint32_t i = 0; is_work ? i < works->count : field->words(i) != NULL; i++) {
        fputs(i == 0 ? "" : ",", out);
        tide_text_json_write(is_work ? works->works[i] : field->words(i), out);
    }
    fputc(']', out);
}

void tide_trace_columns_description_write(const tide_trace_columns *columns, FILE *out)
{
    const char *between = "";
    fprintf(out, "\"origin_ns\":\"%" PRIu64 "\",\"kinds\":[", columns->window.begin_ns);
    for (uint32_t i = 0; i < columns->kind_count; i++) {
        const kind_columns *kind = &columns->kinds[i];
        fprintf(out, "%s{\"name\":\"%s\",\"count\":%" PRIu64 ",\"columns\":[", i == 0 ? "" : ",",
                tide_trace_shape_of(kind->kind)->name, kind->count);
        for (uint32_t c = 0; c < kind->column_count; c++)
            fprintf(out, "%s[\"%s\",\"%s\"]", c == 0 ? "" : ",", kind->columns[c].name,
                    how_name(kind->columns[c].how));
        fputs("]}", out);
    }
    fputs("],\"enums\":{", out);
    for (uint32_t i = 0; i < columns->kind_count; i++)
        for (uint32_t c = 0; c < columns->kinds[i].column_count; c++) {
            if (columns->kinds[i].columns[c].how != HOW_ENUM || words_are_written(columns, i, c))
                continue;
            fputs(between, out);
            words_write(columns, columns->kinds[i].columns[c].field, out);
            between = ",";
        }
    fputc('}', out);
}

/* ---- numbers ---- */

/* Three bytes become four letters. */
typedef struct base64_writer {
    FILE *out;
    uint32_t bits;
    int held;
} base64_writer;

static void letters_put(base64_writer *writer, int count)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char four[4];
    for (int i = 0; i < 4; i++)
        four[i] = i < count ? letters[writer->bits >> (18 - 6 * i) & 63] : '=';
    fwrite(four, 1, sizeof four, writer->out);
    writer->bits = 0;
    writer->held = 0;
}

static void byte_put(base64_writer *writer, uint8_t byte)
{
    writer->bits |= (uint32_t)byte << (16 - 8 * writer->held++);
    if (writer->held == 3)
        letters_put(writer, 4);
}

static void number_put(base64_writer *writer, uint64_t number)
{
    for (; number >= 128; number >>= 7)
        byte_put(writer, (uint8_t)(number | 128));
    byte_put(writer, (uint8_t)number);
}

static uint64_t near_number(uint64_t number, uint64_t before)
{
    return number >= before ? (number - before) * 2 : (before - number) * 2 - 1;
}

static uint64_t number_of(const tide_trace_field *field, const tide_trace_event *event)
{
    const char *at = (const char *)event + field->offset;
    uint64_t wide;
    uint32_t narrow;
    bool flag;
    switch (field->type) {
    case TIDE_TRACE_COUNT64:
    case TIDE_TRACE_COUNT64_OR_NULL:
        memcpy(&wide, at, sizeof wide);
        return wide;
    case TIDE_TRACE_BOOL:
        memcpy(&flag, at, sizeof flag);
        return flag;
    default:
        memcpy(&narrow, at, sizeof narrow);
        return narrow;
    }
}

/* The number plus one; 0 for null. */
static uint64_t nullable_of(const tide_trace_field *field, const tide_trace_event *event)
{
    uint64_t number = number_of(field, event);
    bool is_null = field->type == TIDE_TRACE_COUNT64_OR_NULL ? number == 0 : number == TIDE_TRACE_NONE;
    return is_null ? 0 : number + 1;
}

/* The chunk's place in one number, which page/lod.js takes apart. */
static uint64_t place_of(const tide_trace_event *event)
{
    uint32_t flags = (uint32_t)event->pinned | (uint32_t)event->pending << 1 |
                     (uint32_t)(event->device_slot != TIDE_TRACE_NONE) << 2 |
                     (uint32_t)(event->host_slot != TIDE_TRACE_NONE) << 3 |
                     (uint32_t)(event->kind == TIDE_TRACE_SNAPSHOT) << 4;
    return event->device + 5 * (event->host + 3 * (event->content + 6 * (uint64_t)flags));
}

static void column_write(const tide_trace_columns *columns, const kind_columns *kind,
                         const column_plan *column, base64_writer *writer)
{
    uint64_t start = columns->window.begin_ns, before = column->how == HOW_DELTA ? start : 0;
    work_list works = columns->works; /* a copy; the planning has found all texts, so none is added */
    for (uint64_t i = 0; i < columns->model->event_count; i++) {
        const tide_trace_event *event = &columns->model->events[i];
        if (!is_told(columns, kind->kind, i))
            continue;
        uint64_t begin = tide_max_u64(event->begin_ns, start), number = 0;
        switch (column->how) {
        case HOW_DELTA:
            number_put(writer, begin - before);
            before = begin;
            break;
        case HOW_LENGTH:
            number_put(writer, tide_max_u64(event->end_ns, begin) - begin);
            break;
        case HOW_NEAR:
            number = number_of(column->field, event);
            number_put(writer, near_number(number, before));
            before = number;
            break;
        case HOW_NULL:
            number_put(writer, nullable_of(column->field, event));
            break;
        case HOW_ENUM:
            number_put(writer, column->field->type == TIDE_TRACE_TEXT ? work_index(&works, event->work)
                                                                      : number_of(column->field, event));
            break;
        case HOW_PLACE:
            number_put(writer, place_of(event));
            break;
        case HOW_COUNT:
            number_put(writer, number_of(column->field, event));
            break;
        }
    }
}

void tide_trace_columns_events_write(const tide_trace_columns *columns, FILE *out)
{
    base64_writer writer = {.out = out};
    for (uint32_t i = 0; i < columns->kind_count; i++)
        for (uint32_t c = 0; c < columns->kinds[i].column_count && columns->kinds[i].count > 0; c++)
            column_write(columns, &columns->kinds[i], &columns->kinds[i].columns[c], &writer);
    if (writer.held > 0)
        letters_put(&writer, writer.held + 1);
}
