#include "src/pool/ends.h"

#include <assert.h>

tide_status tide_op_ends_look(tide_op_ends *ends, tide_order *order)
{
    tide_status status = TIDE_OK;
    bool passed = true;
    if (ends->count - ends->passed > TIDE_OP_ENDS_MAX)
        ends->passed = ends->count - TIDE_OP_ENDS_MAX;
    while (status == TIDE_OK && passed && ends->passed < ends->count) {
        status =
            tide_order_query(order, TIDE_STREAM_COMPUTE, ends->numbers[(ends->passed + 1) % TIDE_OP_ENDS_MAX],
                             TIDE_SITE_UNMAP_COMPUTE, &passed);
        ends->passed += status == TIDE_OK && passed;
    }
    assert(ends->passed <= ends->count);
    return status;
}
