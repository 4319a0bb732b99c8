/* Inside the CPU kernels: one source, one table an instruction set.
 *
 * Every file of this folder but cpu.c, team.c and matmul_onednn.c is compiled once for each instruction set
 * ("variant"): AVX-512, AVX2 with FMA, and portable, whatever the compiler's baseline is. The build passes
 * TIDE_CPU_VARIANT and the code names its kernels VARIANT(gelu), so that the three live side by side. At run time the table is
 * the best one that the machine has, within what ONEDNN_MAX_CPU_ISA holds oneDNN to; tests ask for each.
 *
 * The variants differ in vector width (lanes.h), so sums over a row may differ in their last bits between
 * them. Where DESIGN.md asks for the same bits from any machine (AdamW, norms, rounding) the code fixes its
 * own order.
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

/* A stream of random numbers, and what its normals are multiplied by (normals.c). */
typedef struct tide_normals_args {
    uint32_t key[2];    /* Philox's */
    uint32_t stream[2]; /* the last two words of its counter; the first two are the block's number */
    double deviation;
} tide_normals_args;

/* Values on their way into memory that nobody reads soon: out[0] and, unless NULL, out[1] get all of them, each rounded to nearest
 * even to its dtype, past the caches where the instruction set can. Alignment: the element's. */
typedef struct tide_place_args {
    const void *in;
    void *out[2];
    size_t elements;
    tide_dtype in_dtype, out_dtype[2];
} tide_place_args;

/* One instruction set's kernels. `blocked` is the built-in matrix product with its workspace query: the
 * table's own in a build without oneDNN, and on a CPU without AVX-512. */
typedef struct tide_cpu_variant {
    tide_kernels kernels;
    tide_kernel blocked;
    size_t (*blocked_workspace_bytes)(void);
    /* Four values a block of the stream, from `first_block` on: standard normals times the deviation, rounded once. The same
     * bits from every variant. No kernel of a stream: it runs in the caller. */
    void (*normals)(const tide_normals_args *args, uint64_t first_block, size_t blocks, float *values);
    void (*place)(const tide_place_args *args); /* likewise, with the caller's team */
} tide_cpu_variant;

/* A variant, or NULL when this machine or this build does not have it; whatever oneDNN is held to. */
const tide_cpu_variant *tide_cpu_variant_get(tide_cpu_isa isa);

/* The best variant of this machine, no wider than what oneDNN is held to. Never NULL. */
const tide_cpu_variant *tide_cpu_variant_best(void);

#endif
