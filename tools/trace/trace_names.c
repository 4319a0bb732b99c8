#include "tools/trace/trace_names.h"

#include <stdio.h>

const char *tide_trace_chunk_name(const tide_trace_model *model, uint32_t chunk,
                                  char text[TIDE_TRACE_NAME_BYTES])
{
    static const char *const spaces[TIDE_SPACE_COUNT] = {"param", "state", "activation"};
    const tide_traced_chunk *named = &model->chunks[chunk];
    int length = snprintf(text, TIDE_TRACE_NAME_BYTES, "%s %u", spaces[named->space], named->index);
    if (named->param_count == 0)
        return text;
    const char *first = model->params[named->params[0].param].name;
    if (named->param_count == 1)
        snprintf(text + length, TIDE_TRACE_NAME_BYTES - (size_t)length, ": %.100s", first);
    else
        snprintf(text + length, TIDE_TRACE_NAME_BYTES - (size_t)length, ": %.100s +%u", first,
                 named->param_count - 1);
    return text;
}

const char *tide_trace_op_name(const tide_trace_model *model, uint32_t op, uint32_t slice,
                               char text[TIDE_TRACE_NAME_BYTES])
{
    if (op == TIDE_TRACE_NONE)
        snprintf(text, TIDE_TRACE_NAME_BYTES, "between ops");
    else if (slice == TIDE_TRACE_NONE)
        snprintf(text, TIDE_TRACE_NAME_BYTES, "%.120s", model->ops[op].name);
    else
        snprintf(text, TIDE_TRACE_NAME_BYTES, "%.120s slice %u", model->ops[op].name, slice);
    return text;
}
