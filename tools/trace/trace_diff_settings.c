/* tidepool trace diff: the files, their different settings, and the steps that are compared. */
#include "tools/trace/trace_diff.h"

#include "tools/trace/trace_text.h"
#include "tools/units.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

enum { SETTING_LINES = 3 };

static void line_print(tide_text_line *line)
{
    tide_text_print(line, TIDE_TEXT_COLUMNS, stdout);
}

/* Settings that differ, on at most SETTING_LINES lines; `left_off` counts the settings that do not fit. */
typedef struct settings_list {
    tide_text_line line;
    uint32_t lines, left_off;
} settings_list;

static const char *value_shorten(const char *value, char shortened[TIDE_TEXT_NAME_BYTES])
{
    enum { VALUE_LETTERS = 29 }; /* two of them and a name fit a line */
    if (value == NULL || *value == '\0')
        return strcpy(shortened, "-");
    return strchr(value, '/') != NULL ? tide_path_shorten(value, VALUE_LETTERS, shortened)
                                      : tide_text_shorten(value, VALUE_LETTERS, shortened);
}

static void setting_add(settings_list *list, const char *name, const char *first, const char *second)
{
    tide_text_line added = {.length = 0};
    char shortened[TIDE_TEXT_NAME_BYTES];
    tide_text_add(&added, "%s ", tide_text_shorten(name, 32, shortened));
    tide_text_add(&added, "%s | ", value_shorten(first, shortened));
    tide_text_add(&added, "%s", value_shorten(second, shortened));
    if (list->lines == SETTING_LINES) {
        list->left_off++;
        return;
    }
    if (list->line.length + added.length + 2 > TIDE_TEXT_COLUMNS) {
        line_print(&list->line);
        if (++list->lines == SETTING_LINES) {
            list->left_off++;
            return;
        }
    }
    tide_text_add(&list->line, "%s%s",
                  list->line.length == 0 ? list->lines == 0 ? "settings A | B: " : "  " : "; ", added.text);
}

/* Add two sizes that differ. They are rounded unless they would then read the same. */
static void sizes_add(settings_list *list, const char *name, uint64_t first, uint64_t second)
{
    char one[TIDE_UNITS_TEXT_BYTES], other[TIDE_UNITS_TEXT_BYTES];
    if (first == second)
        return;
    if (strcmp(tide_size_format(first, one), tide_size_format(second, other)) == 0) {
        tide_size_format_exact(first, one);
        tide_size_format_exact(second, other);
    }
    setting_add(list, name, one, other);
}

/* Add two rates that differ, as "25 GB/s", or "-" for none. Two measurements of the same rate differ by up to
 * 2%. */
static void rates_add(settings_list *list, const char *name, double first, double second)
{
    char one[TIDE_UNITS_TEXT_BYTES] = "-", other[TIDE_UNITS_TEXT_BYTES] = "-";
    if (fabs(first - second) <= 0.02 * fmax(first, second))
        return;
    if (first > 0)
        snprintf(one, sizeof one, "%.3g GB/s", first / 1e9);
    if (second > 0)
        snprintf(other, sizeof other, "%.3g GB/s", second / 1e9);
    setting_add(list, name, one, other);
}

static void counts_add(settings_list *list, const char *name, uint64_t first, uint64_t second)
{
    char one[TIDE_UNITS_TEXT_BYTES], other[TIDE_UNITS_TEXT_BYTES];
    if (first != second)
        setting_add(list, name, tide_count_format(first, one), tide_count_format(second, other));
}

static void texts_add(settings_list *list, const char *name, const char *first, const char *second)
{
    if (first == NULL || second == NULL || strcmp(first, second) != 0)
        setting_add(list, name, first, second);
}

/* Settings that name output files do not count as differences. */
static bool is_telling(const char *name)
{
    return strcmp(name, "trace") != 0 && strcmp(name, "metrics") != 0;
}

static void settings_print(const tide_trace_model *first, const tide_trace_model *second)
{
    settings_list list = {.lines = 0};
    for (uint32_t i = 0; i < first->setting_count; i++)
        if (is_telling(first->settings[i].name))
            texts_add(&list, first->settings[i].name, first->settings[i].value,
                      tide_trace_model_setting(second, first->settings[i].name));
    for (uint32_t i = 0; i < second->setting_count; i++)
        if (is_telling(second->settings[i].name) &&
            tide_trace_model_setting(first, second->settings[i].name) == NULL)
            setting_add(&list, second->settings[i].name, NULL, second->settings[i].value);
    texts_add(&list, "device", first->device, second->device);
    texts_add(&list, "machine", first->machine.name, second->machine.name);
    texts_add(&list, "tidepool", first->version, second->version);
    texts_add(&list, "dtype", tide_dtype_name(first->dtype), tide_dtype_name(second->dtype));
    sizes_add(&list, "chunk", first->chunk_bytes, second->chunk_bytes);
    sizes_add(&list, "device memory", first->device_memory_bytes, second->device_memory_bytes);
    sizes_add(&list, "host memory", first->host_memory_bytes, second->host_memory_bytes);
    counts_add(&list, "device slots", first->device_slots, second->device_slots);
    rates_add(&list, "link", first->machine.link_bytes_per_second, second->machine.link_bytes_per_second);
    if (list.lines == 0 && list.line.length == 0)
        tide_text_add(&list.line, "settings: the same");
    if (list.line.length > 0)
        line_print(&list.line);
    if (list.left_off > 0)
        printf("  and %" PRIu32 " more\n", list.left_off);
}

static void range_add(tide_text_line *line, const tide_comparison *c, int side)
{
    tide_text_add(line, "%" PRIu64 " to %" PRIu64, c->paired[side][0]->line->step,
                  c->paired[side][c->pair_count - 1]->line->step);
}

void tide_diff_settings_print(const tide_comparison *c)
{
    char text[TIDE_UNITS_TEXT_BYTES], path[TIDE_TEXT_NAME_BYTES];
    tide_text_line line = {.length = 0};
    for (int side = 0; side < TIDE_SIDES; side++) {
        const tide_trace_model *model = c->steps[side].model;
        tide_text_add(&line, "%c: %s%s", "AB"[side], tide_path_shorten(model->path, 60, path),
                      model -> is_cut ? ", of a run that was killed" : "");
        if (model->dropped > 0)
            tide_text_add(&line, ", %s dropped", tide_count_noun(model->dropped, "event", text));
        line_print(&line);
    }
    settings_print(c->steps[0].model, c->steps[1].model);
    tide_text_add(&line, "compared: %s, ", tide_count_noun(c->pair_count, "step", text));
    range_add(&line, c, 0);
    if (c->by_number)
        tide_text_add(&line, ", by their numbers");
    else
        tide_text_add(&line, " of A with "), range_add(&line, c, 1),
            tide_text_add(&line, " of B, by their order: too few have the same number");
    line_print(&line);
    if (c->lone_ops[0] + c->lone_ops[1] > 0) {
        tide_text_add(&line, "ops differ: %" PRIu32 " are only in A, %" PRIu32 " only in B", c->lone_ops[0],
                      c->lone_ops[1]);
        line_print(&line);
    }
}
