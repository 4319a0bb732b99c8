/* The sizes of kernels on a GPU that is not here, to plan for one. */
#ifndef TIDE_POOL_PLANNED_H
#define TIDE_POOL_PLANNED_H

#include "kernels/kernels.h"

/* A table with a GPU's sizes; a matmul's workspace is the largest possible. Its kernels must not be called.
 * Static. */
const tide_kernels *tide_kernels_planned_gpu(void);

#endif
