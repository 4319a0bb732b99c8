/* Internals of the CPU kernels: one source, from which one table is built for each instruction set.
 *
 * The build compiles every file of this folder but cpu.c and matmul_onednn.c once for each
 * instruction set ("variant"): AVX-512, AVX2 with FMA, and portable (the compiler's baseline). It passes
 * TIDE_CPU_VARIANT, and the code names its kernels VARIANT(gelu), so that the three have different names. At
 * run time tide_kernels_cpu returns the best table that the machine can run and that ONEDNN_MAX_CPU_ISA,
 * oneDNN's limit, allows; tests use each.
 *
 * The variants differ in vector width (lanes.h), so their sums over a row may differ in the last bits. Where
 * DESIGN.md demands the same bits on any machine (AdamW, norms, rounding), the code sums in an order that
 * does not depend on the width.
 */
#ifndef TIDEPOOL_KERNELS_CPU_CPU_H
#define TIDEPOOL_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"
#include "tide_config.h"

typedef enum tide_cpu_isa {
    TIDE_CPU_ISA_PORTABLE = 0,
    TIDE_CPU_ISA_AVX2,
    TIDE_CPU_ISA_AVX512,
    TIDE_CPU_ISA_COUNT,
} tide_cpu_isa;

/* The kernels for one instruction set. `blocked` is the built-in matrix product; `kernels` uses it in a build
 * without oneDNN, and for products that oneDNN declines (matmul_onednn.h). */
typedef struct tide_cpu_variant {
    tide_kernels kernels;
    tide_kernel blocked;
    size_t (*blocked_workspace_bytes)(void);
    /* tide_kernels_cpu_normals; every variant gives the same bits */
    void (*normals)(const tide_normals_args *args, uint64_t first_block, size_t blocks, float *values);
    /* Copy values as tide_place_args says. Not launched: it runs in the calling thread and its team. */
    void (*place)(const tide_place_args *args);
} tide_cpu_variant;

/* A variant, or NULL if this machine or this build does not have it; ignores ONEDNN_MAX_CPU_ISA. */
const tide_cpu_variant *tide_cpu_variant_get(tide_cpu_isa isa);

/* The best variant of this machine that ONEDNN_MAX_CPU_ISA allows. Never NULL. */
const tide_cpu_variant *tide_cpu_variant_best(void);

#endif
