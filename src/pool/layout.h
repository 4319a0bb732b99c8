/* Where a sealed pool's tensors lie, for those who tell of it (the trace's tables). Not a part of the public API. */
#ifndef TIDE_POOL_LAYOUT_H
#define TIDE_POOL_LAYOUT_H

#include "chunk/layout.h"
#include "tidepool/pool.h"

/* It goes with the pool. NULL before seal. */
const tide_layout *tide_pool_layout(const tide_pool *pool);

#endif
