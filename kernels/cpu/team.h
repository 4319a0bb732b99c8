/* Which thread of the kernel's team this is: 0 in a build without OpenMP. */
#ifndef TIDEPOOL_KERNELS_CPU_TEAM_H
#define TIDEPOOL_KERNELS_CPU_TEAM_H

#include "tide_config.h"

#include <stddef.h>

#if TIDE_HAVE_OPENMP
#include <omp.h>

static inline size_t team_member(void)
{
    return (size_t)omp_get_thread_num();
}
#else
static inline size_t team_member(void)
{
    return 0;
}
#endif

#endif
