/* The layout and the registered model of a pool, for the writers of the trace's tables. Not a part of the
 * public API. */
#ifndef TIDE_POOL_LAYOUT_H
#define TIDE_POOL_LAYOUT_H

#include "src/pool/model.h"
#include "tidepool/pool.h"

/* The layout of a sealed pool, which owns it; NULL before seal. */
const tide_layout *tide_pool_layout(const tide_pool *pool);
/* The registered params, activations and ops, owned by the pool. */
const tide_model *tide_pool_model(const tide_pool *pool);
/* Send options.trace, if set, an event for every chunk that is anywhere. Caller's thread. */
void tide_pool_trace_chunks(const tide_pool *pool);

#endif
