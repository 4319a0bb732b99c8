/* Each column stands for an equal part of the time, and shows the slots in the middle of that part, sorted by
 * content. Each row stands for an equal part of the tier's slots; its letter is the content of the slot in
 * the middle of that part.
 */
#include "tools/trace/trace_plot.h"

#include "tools/trace/trace_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { COLUMNS = 80, DEVICE_ROWS = 5, HOST_ROWS = 3 };

typedef enum holding {
    HOLDS_NOTHING = 0, /* the chunk has no slot in the tier */
    HOLDS_PARAMS,
    HOLDS_GRADIENTS,
    HOLDS_STATE,
    HOLDS_ACTIVATIONS,
    HOLDS_MOVING,
    HOLDS_OTHER, /* stale, or without content */
    HOLDINGS,
} holding;

static const char letters[HOLDINGS] = {' ', 'p', 'g', 's', 'a', '~', '-'};

typedef struct occupancy {
    unsigned char *held[TIDE_TIER_COUNT]; /* by chunk: a holding */
    uint32_t counts[TIDE_TIER_COUNT][HOLDINGS];
    uint32_t columns[COLUMNS][TIDE_TIER_COUNT][HOLDINGS];
} occupancy;

static holding holding_of(tide_stand stand, tide_content content)
{
    static const holding of_content[] = {
        [TIDE_CONTENT_NOTHING] = HOLDS_OTHER,       [TIDE_CONTENT_PARAMS] = HOLDS_PARAMS,
        [TIDE_CONTENT_GRADIENTS] = HOLDS_GRADIENTS, [TIDE_CONTENT_BOTH] = HOLDS_GRADIENTS,
        [TIDE_CONTENT_STATE] = HOLDS_STATE,         [TIDE_CONTENT_ACTIVATIONS] = HOLDS_ACTIVATIONS};
    if (stand == TIDE_STAND_NONE)
        return HOLDS_NOTHING;
    if (stand == TIDE_STAND_THERE)
        return of_content[content];
    return stand == TIDE_STAND_STALE ? HOLDS_OTHER : HOLDS_MOVING;
}

static void chunk_place(occupancy *slots, tide_tier tier, uint32_t chunk, holding held)
{
    slots->counts[tier][slots->held[tier][chunk]]--;
    slots->held[tier][chunk] = (unsigned char)held;
    slots->counts[tier][held]++;
}

static void event_apply(occupancy *slots, const tide_trace_event *event)
{
    if (event->kind != TIDE_TRACE_CHUNK && event->kind != TIDE_TRACE_SNAPSHOT)
        return;
    chunk_place(slots, TIDE_TIER_DEVICE, event->chunk, holding_of(event->device, event->content));
    chunk_place(slots, TIDE_TIER_HOST, event->chunk, holding_of(event->host, event->content));
}

static void columns_fill(const tide_trace_model *model, uint64_t begin_ns, uint64_t end_ns, occupancy *slots)
{
    uint64_t at = 0;
    for (int column = 0; column < COLUMNS; column++) {
        double middle = (double)begin_ns + (double)(end_ns - begin_ns) * (column + 0.5) / COLUMNS;
        for (; at < model->event_count && (double)model->events[at].begin_ns <= middle; at++)
            event_apply(slots, &model->events[at]);
        memcpy(slots->columns[column], slots->counts, sizeof slots->counts);
    }
}

/* The letter of the slot at `share` (0 to 1) of the column's height. */
static char letter_at(const uint32_t counts[HOLDINGS], uint32_t slots, double share)
{
    double slot = share * slots, below = 0;
    for (int held = HOLDS_PARAMS; held < HOLDINGS; held++) {
        below += counts[held];
        if (slot < below)
            return letters[held];
    }
    return ' ';
}

static void tier_print(const occupancy *slots, tide_tier tier, uint32_t slot_count, int rows, FILE *out)
{
    for (int row = rows; row-- > 0;) {
        tide_text_line line = {.length = 0};
        const char *name = tier == TIDE_TIER_DEVICE ? "device" : "host";
        if (row == rows - 1)
            tide_text_add(&line, "%7s %6" PRIu32, name, slot_count);
        else if (row == 0)
            tide_text_add(&line, "%14d", 0);
        tide_text_pad(&line, 14);
        tide_text_add(&line, " |");
        for (int column = 0; column < COLUMNS; column++)
            tide_text_add(&line, "%c",
                          letter_at(slots->columns[column][tier], slot_count, (row + 0.5) / rows));
        tide_text_add(&line, "|");
        tide_text_print(&line, TIDE_TEXT_COLUMNS, out);
    }
}

tide_status tide_trace_plot(const tide_trace_model *model, uint64_t begin_ns, uint64_t end_ns, FILE *out)
{
    occupancy *slots = calloc(1, sizeof *slots);
    unsigned char *held = calloc(2 * ((size_t)model->chunk_count + 1), 1);
    if (slots == NULL || held == NULL) {
        free(slots);
        free(held);
        return tide_fail(TIDE_ERROR_NO_MEMORY, "%s: no memory to draw its slots", model->path);
    }
    slots->held[TIDE_TIER_DEVICE] = held;
    slots->held[TIDE_TIER_HOST] = held + model->chunk_count + 1;
    slots->counts[TIDE_TIER_DEVICE][HOLDS_NOTHING] = slots->counts[TIDE_TIER_HOST][HOLDS_NOTHING] =
        model->chunk_count;
    columns_fill(model, begin_ns, end_ns, slots);
    fputs("slots over time (p params, g gradients, s state, a activations, ~ moving, - other)\n", out);
    tier_print(slots, TIDE_TIER_DEVICE, model->device_slots, DEVICE_ROWS, out);
    tier_print(slots, TIDE_TIER_HOST, model->host_slots, HOST_ROWS, out);
    free(slots);
    free(held);
    return TIDE_OK;
}
