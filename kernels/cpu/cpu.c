/* Chooses the variant that this machine runs, and describes it for `tidepool info`. */
#include "kernels/cpu/cpu.h"
#include "base/team.h"
#include "kernels/cpu/matmul_onednn.h"

#include <inttypes.h>
#include <stdatomic.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* The build option cpu_variants defines TIDE_CPU_HAVE_AVX2 and TIDE_CPU_HAVE_AVX512, on x86-64 alone. */
#if defined(TIDE_CPU_HAVE_AVX2) || defined(TIDE_CPU_HAVE_AVX512)
#define HAVE_X86_VARIANTS 1
#else
#define HAVE_X86_VARIANTS 0
#endif

extern const tide_cpu_variant tide_cpu_variant_avx2, tide_cpu_variant_avx512, tide_cpu_variant_portable;

#if HAVE_X86_VARIANTS
/* Whether the processor converts fp16 (F16C); __builtin_cpu_supports of clang 14 does not know this name. */
static bool has_f16c(void)
{
    unsigned int a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) != 0;
}
#endif

const tide_cpu_variant *tide_cpu_variant_get(tide_cpu_isa isa)
{
#if HAVE_X86_VARIANTS
    /* The compiler's support library finds out once which instructions the processor has and whether the
     * operating system saves their registers. */
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
#ifdef TIDE_CPU_HAVE_AVX512
    if (isa == TIDE_CPU_ISA_AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                   ? &tide_cpu_variant_avx512
                   : NULL;
#endif
#ifdef TIDE_CPU_HAVE_AVX2
    if (isa == TIDE_CPU_ISA_AVX2)
        return avx2 ? &tide_cpu_variant_avx2 : NULL;
#endif
#endif
    return isa == TIDE_CPU_ISA_PORTABLE ? &tide_cpu_variant_portable : NULL;
}

/* If a user limits oneDNN to an instruction set (ONEDNN_MAX_CPU_ISA), the limit applies to the other kernels,
 * too. */
static tide_cpu_isa most_isa(void)
{
#if TIDE_HAVE_ONEDNN
    return tide_onednn_most_isa();
#else
    return TIDE_CPU_ISA_AVX512;
#endif
}

static tide_cpu_isa best_isa(void)
{
    for (tide_cpu_isa isa = most_isa(); isa > TIDE_CPU_ISA_PORTABLE; isa--)
        if (tide_cpu_variant_get(isa))
            return isa;
    return TIDE_CPU_ISA_PORTABLE;
}

/* The answer is kept, since in a virtual machine the query traps to the hypervisor. */
const tide_cpu_variant *tide_cpu_variant_best(void)
{
    static _Atomic(const tide_cpu_variant *) best;
    const tide_cpu_variant *known = atomic_load_explicit(&best, memory_order_relaxed);
    if (known == NULL) {
        known = tide_cpu_variant_get(best_isa());
        atomic_store_explicit(&best, known, memory_order_relaxed);
    }
    return known;
}

const tide_kernels *tide_kernels_cpu(void)
{
    return &tide_cpu_variant_best()->kernels;
}

void tide_kernels_cpu_normals(const tide_normals_args *args, uint64_t first_block, size_t blocks,
                              float *values)
{
    tide_cpu_variant_best()->normals(args, first_block, blocks, values);
}

void tide_kernels_cpu_place(const tide_place_args *args)
{
    tide_cpu_variant_best()->place(args);
}

void tide_kernels_cpu_configure(int threads)
{
    tide_team_configure(threads);
#if TIDE_HAVE_ONEDNN
    tide_onednn_forget();
#endif
}

/* ---- info ---- */

/* The name that the processor reports, 48 bytes padded with blanks; "unknown" if not an x86-64.
 */
static void read_processor(char name[49])
{
    memcpy(name, "unknown", 8);
#if defined(__x86_64__)
    unsigned int part[12];
    for (unsigned int leaf = 0; leaf < 3; leaf++) {
        unsigned int *p = part + leaf * 4;
        if (!__get_cpuid(0x80000002u + leaf, &p[0], &p[1], &p[2], &p[3]))
            return;
    }
    memcpy(name, part, sizeof part);
    name[48] = '\0';
    size_t length = strlen(name);
    while (length > 0 && name[length - 1] == ' ')
        name[--length] = '\0';
#endif
}

const tide_cpu_info *tide_kernels_cpu_info(void)
{
    static const char *const isa_names[TIDE_CPU_ISA_COUNT] = {"portable", "avx2", "avx512"};
    static _Thread_local char processor[49];
    static _Thread_local tide_cpu_info info;
    read_processor(processor);
    info = (tide_cpu_info){
        .processor = processor,
        .instructions = isa_names[best_isa()],
        .matmul = "built-in",
        .matmul_isa = isa_names[best_isa()],
    };
#if TIDE_HAVE_ONEDNN
    tide_onednn_describe(&info);
#endif
    return &info;
}
