/* Matrix products through oneDNN, in builds with TIDE_HAVE_ONEDNN; matmul_onednn.c says which products it
 * declines. */
#ifndef TIDEPOOL_KERNELS_CPU_MATMUL_ONEDNN_H
#define TIDEPOOL_KERNELS_CPU_MATMUL_ONEDNN_H

#include "kernels/cpu/cpu.h"

/* tide_kernels.matmul_prepare for a shape that keeps the rules. Sets *workspace_bytes if oneDNN can make
 * the product; if it declines the shape, which depends on shape and machine alone, leaves *workspace_bytes
 * unchanged. */
tide_status tide_onednn_prepare(const tide_matmul_args *args, size_t *workspace_bytes);

/* tide_kernels.matmul; `zero` is tide_kernels.zero. If oneDNN declined the shape, it does nothing, sets
 * *declined and returns OK: the caller has to make the product. */
tide_status tide_onednn_matmul(const tide_matmul_args *args, tide_kernel zero, bool *declined);

/* The widest instruction set that the machine has and ONEDNN_MAX_CPU_ISA allows. */
tide_cpu_isa tide_onednn_most_isa(void);

/* Drop every prepared product. */
void tide_onednn_forget(void);

/* Fill in the fields about matrix products if oneDNN makes them. */
void tide_onednn_describe(tide_cpu_info *info);

#endif
