/* Matrix products through oneDNN; matmul_onednn.c says which it takes and which it declines. Only with TIDE_HAVE_ONEDNN. */
#ifndef TIDEPOOL_KERNELS_CPU_MATMUL_ONEDNN_H
#define TIDEPOOL_KERNELS_CPU_MATMUL_ONEDNN_H

#include "kernels/cpu/cpu.h"

/* As the table's matmul_prepare, for a product that keeps its rules. *workspace_bytes is set if oneDNN takes the product and
 * stays as it is if it declines: a matter of shape and machine alone. */
tide_status tide_onednn_prepare(const tide_matmul_args *args, size_t *workspace_bytes);

/* The table's matmul, but that a product that was declined is left to the caller: OK, *declined, nothing done. `zero` is the
 * table's. */
tide_status tide_onednn_matmul(const tide_matmul_args *args, tide_kernel zero, bool *declined);

/* The widest variant within what oneDNN works with: the machine's, or less where ONEDNN_MAX_CPU_ISA says so. */
tide_cpu_isa tide_onednn_most_isa(void);

/* Drop every prepared product. */
void tide_onednn_forget(void);

/* Fill in what concerns matrix products, where oneDNN makes them. */
void tide_onednn_describe(tide_cpu_info *info);

#endif
