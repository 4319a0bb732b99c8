/* A GPU that is not here, to plan for: its kernels' sizes. */
#ifndef TIDE_POOL_PLANNED_H
#define TIDE_POOL_PLANNED_H

#include "kernels/kernels.h"

/* A table whose sizes are a GPU's, matmuls' workspaces the most that they can be, and whose kernels must not be called. Static. */
const tide_kernels *tide_kernels_planned_gpu(void);

#endif
