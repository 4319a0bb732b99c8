/* Memory, and members that are kept in it: see trace_members.h. */
#include "src/trace/trace_members.h"

#include "base/text.h"

#include <inttypes.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

struct tide_trace_block {
    tide_trace_block *before;
    size_t used, capacity; /* of `bytes` */
    alignas(max_align_t) char bytes[];
};

enum { BLOCK_BYTES = 1 << 16 };

void *tide_trace_memory_take(tide_trace_memory *memory, size_t bytes)
{
    tide_trace_block *block = memory->blocks;
    size_t rounded = (bytes + alignof(max_align_t) - 1) / alignof(max_align_t) * alignof(max_align_t);
    if (block == NULL || block->capacity - block->used < rounded) {
        size_t capacity = rounded > BLOCK_BYTES ? rounded : BLOCK_BYTES;
        block = malloc(sizeof *block + capacity);
        if (block == NULL)
            return NULL;
        *block = (tide_trace_block){.before = memory->blocks, .capacity = capacity};
        memory->blocks = block;
    }
    block->used += rounded;
    return block->bytes + block->used - rounded;
}

void tide_trace_memory_free(tide_trace_memory *memory)
{
    while (memory->blocks != NULL) {
        tide_trace_block *before = memory->blocks->before;
        free(memory->blocks);
        memory->blocks = before;
    }
}

/* Lists grow to powers of two, so their count says what they hold room for. */
bool tide_trace_reserve(tide_trace_reader *reader, void *list, uint64_t count, size_t bytes)
{
    enum { LEAST = 16 };
    bool full = count == 0 || (count >= LEAST && (count & (count - 1)) == 0);
    void *items = NULL;
    if (reader->scan.status != TIDE_OK || !full)
        return reader->scan.status == TIDE_OK;
    memcpy(&items, list, sizeof items);
    items = count >= UINT32_MAX / 2 ? NULL : realloc(items, (count < LEAST ? LEAST : 2 * count) * bytes);
    if (items == NULL) {
        tide_scan_no_memory(&reader->scan);
        return false;
    }
    memcpy(list, &items, sizeof items);
    return true;
}

/* ---- members ---- */

const char *tide_trace_text(tide_trace_reader *reader, const char *name)
{
    tide_scanned raw = tide_scan_raw(&reader->scan, name);
    if (reader->scan.status != TIDE_OK)
        return "";
    char *text = tide_trace_memory_take(reader->memory, tide_scan_text_bytes(raw) + 1);
    if (text == NULL) {
        tide_scan_no_memory(&reader->scan);
        return "";
    }
    tide_scan_text_write(raw, text);
    tide_text_make_printable(text); /* an escape may stand for a control character */
    return text;
}

void tide_trace_number_check(tide_trace_reader *reader, const char *name, uint32_t number, uint32_t count,
                             const char *what)
{
    const char *quote = name != NULL ? "\"" : "";
    if (number >= count && count == 0)
        tide_scan_refuse(&reader->scan, "%s%s%s is %" PRIu32 ", but there are no %s", quote,
                         name != NULL ? name : "a number in a list", quote, number, what);
    else if (number >= count)
        tide_scan_refuse(&reader->scan, "%s%s%s is %" PRIu32 ", but %s go from 0 to %" PRIu32, quote,
                         name != NULL ? name : "a number in a list", quote, number, what, count - 1);
}

uint32_t tide_trace_number(tide_trace_reader *reader, const char *name, uint32_t count, const char *what)
{
    uint32_t number = (uint32_t)tide_scan_count(&reader->scan, name, UINT32_MAX);
    if (reader->scan.status == TIDE_OK)
        tide_trace_number_check(reader, name, number, count, what);
    return number;
}
