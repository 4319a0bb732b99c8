/* What a pool is made of, for those who tell of it (the trace's tables). Not a part of the public API. */
#ifndef TIDE_POOL_LAYOUT_H
#define TIDE_POOL_LAYOUT_H

#include "src/pool/model.h"
#include "tidepool/pool.h"

/* It goes with the pool. NULL before seal. */
const tide_layout *tide_pool_layout(const tide_pool *pool);
/* Likewise. */
const tide_model *tide_pool_model(const tide_pool *pool);
/* Tell options.trace, if anybody listens, where every chunk is that is anywhere. Caller's thread. */
void tide_pool_trace_chunks(const tide_pool *pool);

#endif
