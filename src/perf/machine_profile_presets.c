/* Machines from published figures. They were not measured here, and the program says so.
 *
 *   products     The maker's figures for dense bf16 with fp32 sums (GeForce: half of those for fp16 sums).
 *                fp16 has the same; fp32 is without TF32: 1/16 of bf16 on A100 and Hopper, 1/2 on GeForce.
 *                Training reaches 0.7 of it (RTX 4090: 0.70 to 0.81 in LLMQ's tables), 0.6 on an A100 (0.56
 *                to 0.61 on 8 of them in llm.c's), 0.55 on Hopper (H100: 0.47 to 0.60 in LLMQ's).
 *   memory       The maker's figures in bytes a second, of which training reaches 0.85.
 *   GPU memory   The bytes that nvidia-smi shows, less 1 GiB for driver, context, libraries and the reserve.
 *   link         Pinned copies in nvbandwidth, in and out: PCIe 4 x16 24.8 and 26 GB/s (8 x A100, 8 x RTX
 *                4090), PCIe 5 x16 55.3 and 55.1 GB/s (8 x H800). With both directions at once PCIe 5 (on
 *                Hopper) keeps 0.9 and 0.65 of that, PCIe 4 keeps 0.5 and 0.9.
 *   host memory  GeForce: a desktop with two channels of DDR5-5600, 89.6 GB/s. A100: a socket of EPYC 7003
 *                with 8 channels of DDR4-3200, 204.8 GB/s. Hopper: a socket of EPYC 9004 with 12 channels of
 *                DDR5-4800, 460.8 GB/s. STREAM reaches 0.81 to 0.85 of it on two sockets; AdamW is assumed to
 *                reach 0.7.
 *
 * Sources: NVIDIA's Ampere, Ada, Hopper and Blackwell papers as quoted by llm.c's mfu.h and vendors' pages;
 * nvbandwidth issues 15 and 53; Azure's HBv3 and HBv4 pages on STREAM; LLMQ's benchmark tables. */
#include "src/perf/machine_profile.h"

#include <stdio.h>
#include <string.h>

typedef struct gpu {
    const char *name, *title;
    /* `reached`: the part of the products' peak that training reaches */
    double bf16_flops, fp32_flops, reached;
    double memory_bytes_per_second;
    uint64_t memory_mib; /* as nvidia-smi shows it */
    int pcie;
    double host_bytes_per_second; /* of one socket */
} gpu;

#define DESKTOP   89.6e9
#define EPYC_7003 204.8e9
#define EPYC_9004 460.8e9

static const gpu gpus[] = {
    {"rtx3090", "RTX 3090", 71.2e12, 35.6e12, 0.7, 936e9, 24576, 4, DESKTOP},
    {"rtx4090", "RTX 4090", 165.2e12, 82.6e12, 0.7, 1008e9, 24564, 4, DESKTOP},
    {"rtx5090", "RTX 5090", 209.5e12, 104.8e12, 0.7, 1792e9, 32607, 5, DESKTOP},
    {"a100-40", "A100 40 GB", 312e12, 19.5e12, 0.6, 1555e9, 40960, 4, EPYC_7003},
    {"a100-80", "A100 80 GB", 312e12, 19.5e12, 0.6, 2039e9, 81920, 4, EPYC_7003},
    {"h100", "H100 SXM", 989.4e12, 66.9e12, 0.55, 3350e9, 81559, 5, EPYC_9004},
    {"h200", "H200 SXM", 989.4e12, 66.9e12, 0.55, 4800e9, 143771, 5, EPYC_9004},
};

enum { GPUS = sizeof gpus / sizeof gpus[0] };

static const double memory_reached = 0.85, adam_reached = 0.7;

typedef struct link_figures {
    double in, out;           /* bytes a second when the other direction is idle */
    double in_both, out_both; /* when both directions are busy, as a part of `in` and `out` */
} link_figures;

static const link_figures pcie_4 = {24.8e9, 26e9, 0.5, 0.9}, pcie_5 = {55.3e9, 55.1e9, 0.9, 0.65};

const char *tide_machine_profile_preset_name(size_t index)
{
    return index < GPUS ? gpus[index].name : NULL;
}

/* The changes that follow the GPU's name. */
typedef struct variation {
    int pcie, sockets;
} variation;

static bool variation_read(const char *text, variation *of)
{
    static const struct {
        const char *word;
        variation is;
    } words[] = {{"pcie4", {4, 0}}, {"pcie5", {5, 0}}, {"1-socket", {0, 1}}, {"2-sockets", {0, 2}}};
    while (*text == '+') {
        const size_t length = strcspn(++text, "+");
        size_t i = 0;
        while (i < sizeof words / sizeof words[0] &&
               (strlen(words[i].word) != length || strncmp(words[i].word, text, length) != 0))
            i++;
        if (i == sizeof words / sizeof words[0])
            return false;
        of->pcie = words[i].is.pcie != 0 ? words[i].is.pcie : of->pcie;
        of->sockets = words[i].is.sockets != 0 ? words[i].is.sockets : of->sockets;
        text += length;
    }
    return *text == '\0';
}

static const gpu *gpu_find(const char *name, variation *of)
{
    const size_t length = strcspn(name, "+");
    for (size_t i = 0; i < GPUS; i++)
        if (strlen(gpus[i].name) == length && strncmp(gpus[i].name, name, length) == 0) {
            *of = (variation){gpus[i].pcie, 1};
            return variation_read(name + length, of) ? &gpus[i] : NULL;
        }
    return NULL;
}

static tide_status refuse(const char *name)
{
    char known[TIDE_MACHINE_PROFILE_TEXT_BYTES];
    size_t length = 0;
    for (size_t i = 0; i < GPUS; i++)
        length +=
            (size_t)snprintf(known + length, sizeof known - length, "%s%s", i > 0 ? ", " : "", gpus[i].name);
    return tide_fail(
        TIDE_ERROR_ARGUMENT,
        "machine %s: neither a file nor a preset (%s; behind it +pcie4, +pcie5, +1-socket, +2-sockets)", name,
        known);
}

static void slowdowns_fill(const link_figures *link, tide_slowdowns *slowdowns)
{
    for (unsigned set = 0; set < 1u << TIDE_STREAM_COUNT; set++) {
        const bool both = (set & 1u << TIDE_STREAM_IN) && (set & 1u << TIDE_STREAM_OUT);
        slowdowns->of[TIDE_STREAM_IN][set] = both ? link->in_both : 0;
        slowdowns->of[TIDE_STREAM_OUT][set] = both ? link->out_both : 0;
    }
}

tide_status tide_machine_profile_preset(const char *name, tide_machine_profile *profile)
{
    variation as;
    const gpu *card = gpu_find(name, &as);
    if (card == NULL)
        return refuse(name);
    const link_figures *link = as.pcie == 4 ? &pcie_4 : &pcie_5;
    const double memory = card->memory_bytes_per_second * memory_reached;
    tide_machine_profile made = {
        .gpu_bytes = (card->memory_mib - 1024) << 20,
        .flops_per_second = {[TIDE_DTYPE_BF16] = card->bf16_flops * card->reached,
                             [TIDE_DTYPE_FP16] = card->bf16_flops * card->reached,
                             [TIDE_DTYPE_FP32] = card->fp32_flops * card->reached},
        .device_bytes_per_second = memory,
        .device_adam_bytes_per_second = memory,
        .h2d_bytes_per_second = link->in,
        .d2h_bytes_per_second = link->out,
        .adams = {{1, as.sockets * card->host_bytes_per_second * adam_reached}},
        .adam_count = 1,
        /* cuMemMap with cuMemSetAccess, and cuMemUnmap, in kvcached's bench_vmm on an A100 */
        .map_ns = 37e3,
        .unmap_ns = 26e3,
        .launch_ns = 2e3, /* assumed */
    };
    snprintf(made.name, sizeof made.name, "%s, PCIe %d, %d socket%s", card->title, as.pcie, as.sockets,
             as.sockets > 1 ? "s" : "");
    snprintf(made.source, sizeof made.source, "published figures, not measured");
    slowdowns_fill(link, &made.slowdowns);
    *profile = made;
    return TIDE_OK;
}
